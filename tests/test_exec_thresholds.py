"""`exec --threshold` and `--json`: what a program behind a link must reach, for a pipeline."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from conftest import Program, User, needs, needs_lab
from late import until_on_time
from test_live import BENTPIPE

from bentpipe import live, scenario
from bentpipe.errors import ThresholdError, UsageError

S = 1_000_000_000
EXIT_MISSED = ThresholdError.exit_code
# 100 packets of 1,000 bytes were offered, of which 2 were lost in the queue.
DIRECTION = {
    "sent_packets": 98,
    "sent_bits": 784_000,
    "delivered_packets": 98,
    "delivered_bytes": 98_000,
    "busy_ns": S,
    "queue_packets": 0,
    "queue_bytes": 0,
    "sending_bytes": 0,
    "in_flight_bytes": 0,
    "dropped_packets": {"queue_full": 2},
    "dropped_bytes": {"queue_full": 2_000},
}
REPORT: dict[str, Any] = {
    "at_ns": 4 * S,
    "directions": {"forward": DIRECTION, "return": {**DIRECTION, "dropped_packets": {}}},
}
LATENESS = {"packets": 196, "p50_ns": 2_000, "p99_ns": 106_000, "max_ns": 827_000}


def checked(text: str) -> tuple[bool, float | None]:
    """Return whether a program of 3 s in `REPORT` meets a threshold, and the value."""
    threshold = scenario.read_threshold(text, scenario.PROGRAM_TABLES)
    (check,) = live.check_program(REPORT, 3 * S, [threshold])
    return check.passed, check.value


@pytest.mark.parametrize(
    ("text", "passed", "value"),
    [
        ("time <= 3 s", True, 3 * S),
        ("time < 3 s", False, 3 * S),
        ("program.time_ns >= 2999 ms", True, 3 * S),
        ("directions.forward.loss_percent <= 1 %", False, 2),
        ("directions.return.loss_percent <= 1 %", True, 0),
        ("directions.delivered_bytes.sum >= 196 kB", True, 196_000),
        ("directions.forward.utilization <= 0.25", True, 0.25),
        # The report of a lab has no percentile of it.
        ("directions.forward.queue_delay_p99_ns <= 1 s", False, None),
    ],
)
def test_a_program_has_its_time_and_the_metrics_of_directions(
    text: str, passed: bool, value: float | None
) -> None:
    assert checked(text) == (passed, value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("time <= 10", 'the unit is missing; write "10 ns", "10 us", "10 ms" or "10 s"'),
        ("tiem <= 10 s", 'table: read "tiem"; allowed: time, program, directions; did you mean'),
        ("flows.goodput_bps.min >= 1 Mbit/s", "allowed: time, program, directions"),
        ("directions.forward.goodput_bps >= 1 bit/s", "has no column"),
    ],
)
def test_what_a_program_does_not_have_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        scenario.read_threshold(text, scenario.PROGRAM_TABLES)


def test_a_direction_that_the_lab_does_not_have_is_refused() -> None:
    with pytest.raises(UsageError, match='name: read "hop-2"; allowed: forward, return'):
        checked("directions.hop-2.utilization <= 1")


def test_a_scenario_has_no_program() -> None:
    with pytest.raises(UsageError, match='table: read "time"; allowed: flows, exchanges'):
        scenario.read_threshold("time <= 10 s")


@pytest.mark.parametrize(
    ("threshold", "program_code", "invalid", "code"),
    [
        ("time <= 3 s", 0, None, 0),
        ("time <= 2 s", 0, None, EXIT_MISSED),
        # The program says why it failed itself.
        ("time <= 2 s", 7, None, 7),
        # The figures of an invalid run decide nothing, whichever way they point.
        ("time <= 3 s", 0, "packets were late", 125),
        ("time <= 2 s", 0, "packets were late", 125),
        ("time <= 2", 0, None, 125),
    ],
)
def test_the_exit_code_says_whether_thresholds_hold(
    threshold: str,
    program_code: int,
    invalid: str | None,
    code: int,
    bentpipe: Program,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    def execute(run: Any, *, watch: bool) -> None:
        del watch
        report = REPORT | {"lateness": LATENESS, "capture": None, "invalid": invalid}
        run.congestion_control = "cubic"
        run.finish(report, program_code, 3 * S)

    monkeypatch.setattr("bentpipe.cli.exec.ProgramRun.execute", execute)
    junit = tmp_path / "junit.xml"
    words = ("exec", "--link", "leo", "--json", "--junit", junit, "--threshold", threshold)
    called = bentpipe(*words, "--", "true")
    assert called.code == code, called.err
    missed = "bentpipe: time <= 2 s: 3 s, missed by 1 s (50 %)"
    assert (missed in called.err) is (code == EXIT_MISSED)
    if threshold == "time <= 2":
        assert called.out == ""
        return
    printed = json.loads(called.out)
    program = {"command": ["true"], "time_ns": 3 * S, "code": program_code}
    assert printed["program"] == program | {"congestion_control": "cubic"}
    assert "bentpipe: TCP: cubic, as on this machine" in called.err
    checks = [each["passed"] for each in printed.get("thresholds", ())]
    assert checks == ([] if invalid else [threshold == "time <= 3 s"])
    # The metrics that thresholds use, beside the counters.
    assert printed["directions"]["forward"].items() >= {"loss_percent": 2.0, **DIRECTION}.items()
    assert printed["directions"]["return"]["loss_percent"] == 0
    # A program that failed, or a link that was late, has met no threshold.
    root = ET.parse(junit).getroot()
    errors, failures = int(bool(invalid or program_code)), int(code == EXIT_MISSED)
    assert (root.get("errors"), root.get("failures")) == (str(errors), str(failures))
    assert [case.get("name") for case in root.iter("testcase")] == [threshold]


# --- in a lab -------------------------------------------------------------------------------------

PING = ("ping", "-c", "2", "-i", "0.2", "world")


def on_time(*words: str, user: User | None = None) -> subprocess.CompletedProcess[str]:
    """Call bentpipe until the run is valid: stdout and stderr are pipes."""

    def call() -> subprocess.CompletedProcess[str]:
        if user is not None:
            return user(*words)
        return subprocess.run([*BENTPIPE, *words], capture_output=True, text=True, check=False)

    def why_late(done: subprocess.CompletedProcess[str]) -> str | None:
        return next((line for line in done.stderr.splitlines() if "INVALID" in line), None)

    return until_on_time(call, why_late)


@needs_lab
@needs("ping")
@pytest.mark.unprivileged
@needs("setpriv")
def test_a_user_without_privileges_has_the_json_alone_on_stdout_in_a_pipe(user: User) -> None:
    """Given a ping that takes 0.2 s and a round trip, expect its output on stderr."""
    link = ("exec", "--link", "leo", "--json")
    limits = ("time <= 20 s", "time >= 0.2 s", "directions.forward.loss_percent <= 0 %")
    words = [word for text in limits for word in ("--threshold", text)]
    done = on_time(*link, *words, "--", *PING, user=user)
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert "2 received" in done.stderr
    assert [each["passed"] for each in printed["thresholds"]] == [True] * 3
    assert printed["program"]["code"] == 0
    assert printed["program"]["time_ns"] >= 0.2 * S
    assert printed["directions"]["forward"]["delivered_packets"] >= 2
    assert printed["verdict"]["valid"]
    assert printed["verdict"]["bounds"]["delay_ns"] == printed["lateness"]["max_ns"]
    assert 0 < printed["verdict"]["bounds"]["transfer_percent"] < 100


@needs_lab
@needs("ping")
def test_a_missed_threshold_is_99_after_the_output_of_the_program() -> None:
    """Given a ping over 26 ms, expect that 1 ms is missed, and its own stdout untouched."""
    done = on_time("exec", "--link", "leo", "--threshold", "time <= 1 ms", "--", *PING)
    assert done.returncode == EXIT_MISSED, done.stderr
    assert "2 received" in done.stdout
    head, missed = done.stderr.splitlines()[-2:]
    assert head == "bentpipe: 1 of 1 thresholds failed"
    assert missed.startswith("bentpipe: time <= 1 ms: ")


@needs_lab
def test_an_unknown_direction_is_refused_before_the_program() -> None:
    words = ("exec", "--link", "leo", "--threshold", "directions.back.loss_percent <= 1 %")
    done = subprocess.run(
        [*BENTPIPE, *words, "--", "echo", "ran"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 125
    assert 'name: read "back"; allowed: forward, return' in done.stderr
    assert done.stdout == ""


@needs_lab
@pytest.mark.parametrize("option", [["--strict"], ["--threshold", "time <= 60 s"], []])
def test_a_run_without_packets_cannot_be_judged(option: list[str]) -> None:
    """Expect it to be invalid, and its exit code to say so if it is to be used."""
    words = [*BENTPIPE, "exec", "--link", "geo", *option, "--json", "--", "true"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == (125 if option else 0)
    assert "INVALID: no packet has left the link" in done.stderr
    assert json.loads(done.stdout)["fault"] == "idle"
