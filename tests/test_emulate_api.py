"""`bentpipe.emulate`: a scenario in real time from Python, as in a notebook."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, User, measures, needs, needs_lab
from test_emulated_sweeps import FakeLabs
from test_lab import wait_until
from test_live import processes

import bentpipe
from bentpipe import Result
from bentpipe.errors import InvalidRunError, ScenarioError, UsageError

CALL: dict[str, Any] = {
    "link": {"preset": "leo"},
    "traffic": [
        {
            "kind": "constant_rate",
            "direction": "forward",
            "rate": "80 kbit/s",
            "payload": "1000 B",
            "duration": "1 s",
        }
    ],
    "duration": "3 s",
}


def emulate(scenario: Any, **options: Any) -> Result:
    """Emulate once; return the result also if the machine was busy."""
    try:
        return bentpipe.emulate(scenario, **options)
    except InvalidRunError as error:
        result: Result = error.result
        return result


@pytest.mark.thorough
@measures
@needs("iperf3")
def test_a_file_is_run_in_real_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Given 10 datagrams of 1,000 B in 1 s, expect those that were sent, each after 13 ms.

    The series of rates is in the scenario's folder, which is not that of this process.
    """
    folder, capture = tmp_path / "scenarios", tmp_path / "a.pcapng"
    folder.mkdir()
    (folder / "rate.csv").write_text("time_s,rate_mbps\n0,8\n1,4\n")
    link = {"preset": "leo", "forward": {"rate": {"csv": "rate.csv"}}}
    (folder / "call.yaml").write_text(json.dumps(CALL | {"link": link}))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="cannot be written"):
        bentpipe.emulate("scenarios/call.yaml", capture=tmp_path / "missing" / "a.pcapng")
    started = time.monotonic()
    result = emulate("scenarios/call.yaml", seed=7, capture=capture)
    assert time.monotonic() - started > 1
    steps = result.plan["directions"][0]["rate_bps"]["steps"]
    assert [step[1] for step in steps] == [8_000_000, 4_000_000]
    assert result.manifest["engine"] == "emulate"
    assert result.manifest["seed"] == 7
    (flow,) = result.flows.to_dicts()
    assert flow["delivered_bytes"] == flow["sent_bytes"] > 0
    assert flow["one_way_delay_mean_ns"] >= 13e6
    assert capture.stat().st_size > 1_000


def test_what_cannot_be_run_is_refused_as_by_simulate() -> None:
    for call in (bentpipe.simulate, bentpipe.emulate):
        with pytest.raises(ScenarioError, match=r"link\.preset"):
            call({**CALL, "link": {"preset": "gio"}})
        with pytest.raises(UsageError, match="seed: read -1; must be 0 to"):
            call(CALL, seed=-1)
    with pytest.raises(ScenarioError, match="packet_events: are not recorded in real time"):
        bentpipe.emulate({**CALL, "packet_events": True})


@pytest.mark.usefixtures("_no_checks")
def test_an_invalid_run_raises_its_result(
    monkeypatch: pytest.MonkeyPatch, small_result: Result
) -> None:
    """Given a child process whose run is late, expect an error that holds its result."""
    FakeLabs(monkeypatch, small_result).ends = {1: ["late"]}
    with pytest.raises(InvalidRunError, match="late; do not use") as raised:
        bentpipe.emulate(CALL)
    assert raised.value.result.flows.equals(small_result.flows)


@pytest.fixture
def _no_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bentpipe.live.pool.check_plan", lambda _: None)


LONG = ROOT / "scenarios" / "geo-bulk.yaml"
INTERRUPTED = f"""
import bentpipe, sys
print("ready", flush=True)
try:
    bentpipe.emulate(bentpipe.Scenario.load({str(LONG)!r}, settings=("traffic.0.size=1GB",)))
except KeyboardInterrupt:
    print("interrupted")
"""


@needs_lab
@needs("iperf3")
@pytest.mark.parametrize(
    ("sent", "printed", "code"),
    [(signal.SIGINT, "interrupted\n", 0), (signal.SIGKILL, "", -signal.SIGKILL)],
)
def test_a_run_ends_with_its_process(sent: signal.Signals, printed: str, code: int) -> None:
    """Given Ctrl-C or a killed process, expect no process of the run, and no file of it."""
    mark = f"bentpipe-interrupted-{os.getpid()}"
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen(
            [sys.executable, "-c", INTERRUPTED],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"MARK": mark, "TMPDIR": folder},
        ) as running,
    ):
        assert running.stdout is not None
        assert running.stdout.readline() == "ready\n"
        wait_until(lambda: len(processes(mark)) > 3, "the run does not start")
        running.send_signal(sent)
        assert running.stdout.read() == printed
        assert running.wait() == code
        wait_until(lambda: processes(mark) == [], "the run goes on")
        assert list(Path(folder).iterdir()) == []


NOTEBOOK = f"""
import os
import numpy, polars
import bentpipe
polars.DataFrame({{"a": numpy.arange(9)}}).select(polars.col("a").sum())
assert len(os.listdir("/proc/self/task")) > 1
try:
    result = bentpipe.emulate({CALL!r})
except bentpipe.errors.InvalidRunError as error:
    result = error.result
print(os.geteuid(), result.flows["delivered_bytes"].sum() > 0)
"""


@needs_lab
@needs("iperf3")
@needs("setpriv")
def test_an_ordinary_user_emulates_in_a_process_with_threads(user: User) -> None:
    *python, _, _ = user.command
    done = subprocess.run(
        [*python, "-c", NOTEBOOK],
        capture_output=True,
        text=True,
        check=False,
        env=user.environment,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    uid = 65534 if os.geteuid() == 0 else os.geteuid()
    assert done.stdout == f"{uid} True\n"
    assert list(user.folder.iterdir()) == []
