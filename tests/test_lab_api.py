"""`bentpipe.Lab`: a lab from Python, as in a notebook; skipped without namespaces."""

from __future__ import annotations

import os
import re
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from conftest import User, needs, needs_lab
from test_lab import wait_until
from test_live import processes

import bentpipe
from bentpipe import plan
from bentpipe.errors import InvalidRunError, MachineError, ScenarioError, UsageError
from bentpipe.live.sockets import LabEndedError, ask

SCENARIO = {
    "link": {
        "forward": {"rate": "20 Mbit/s", "delay": "5 ms"},
        "return": {"rate": "20 Mbit/s", "delay": "5 ms"},
    },
    "hosts": {"world": [{"name": "far", "delay": "20 ms"}]},
    "traffic": [{"kind": "bulk", "direction": "forward", "size": "1 MB"}],
    "duration": "5 s",
}
# How many labs are set up whose first report is read; `BENTPIPE_STRESS` times as many.
FRESH_LABS = int(os.environ.get("BENTPIPE_STRESS", "1"))
PING = ["ping", "-c", "3", "-i", "0.1"]


def min_rtt_ms(lab: bentpipe.Lab, host: str = "world") -> float:
    done = lab.run("island", [*PING, host])
    found = re.findall(r"time=([0-9.]+) ms", done.stdout)
    assert len(found) == 3, done.stdout + done.stderr
    return min(float(text) for text in found)


@pytest.fixture(scope="module")
def leo() -> Iterator[bentpipe.Lab]:
    with bentpipe.Lab("leo") as lab:
        yield lab


@needs_lab
@needs("ping")
def test_a_preset_is_a_lab_whose_link_can_be_changed(leo: bentpipe.Lab) -> None:
    """Given 13 ms each way and then 100 ms one way, expect at least 26 ms and then 113 ms."""
    assert leo.hosts == ("world", "island")
    assert min_rtt_ms(leo) >= 26
    first_ns = leo.set("link.forward.delay=100ms")
    assert min_rtt_ms(leo) >= 113
    changed_ns = leo.set("link.forward.rate=1Mbit/s", "link.return.rate=1Mbit/s")
    assert changed_ns > first_ns
    wait_until(lambda: leo.report()["at_ns"] > changed_ns, "there is no later report")
    directions = leo.report()["directions"]
    assert directions["forward"]["delivered_packets"] >= 6
    assert directions["forward"]["dropped_packets"] == {}
    assert leo.report()["fault"] != "idle"
    assert leo.report()["slowdown_percent"] > 0


@needs_lab
def test_the_first_report_is_complete() -> None:
    """Given labs whose report is read at once, expect each direction and the window of time."""
    for _ in range(FRESH_LABS):
        with bentpipe.Lab("leo") as lab:
            first = lab.report()
        assert list(first["directions"]) == ["forward", "return"]
        assert (first["window_count"], len(first["windows"])) == (1, 1)
        # Nothing shows yet whether the link is on time.
        assert (first["fault"], first["verdict"]["valid"]) == ("idle", False)


@needs_lab
@needs("ping")
def test_links_are_scenarios_mappings_files_and_plans_in_series(tmp_path: Path) -> None:
    """Given 5 ms each way, 20 ms to a distant host and one link in series with another."""
    scenario = bentpipe.Scenario.from_dict(SCENARIO)
    with bentpipe.Lab(scenario) as lab:
        assert lab.hosts == ("world", "island", "far")
        assert min_rtt_ms(lab, "far") >= 50
    file = tmp_path / "link.yaml"
    file.write_text("link: {preset: leo}\n")
    near = {"link": SCENARIO["link"]}
    with bentpipe.Lab(file, near, plan.link_plan(near)) as lab:
        assert min_rtt_ms(lab) >= 26 + 10 + 10
        lab.set("hop.3.link.forward.delay=50ms")
        assert min_rtt_ms(lab) >= 26 + 10 + 55


@needs_lab
def test_programs_have_exit_codes_output_input_and_signals(leo: bentpipe.Lab) -> None:
    done = leo.run("island", ["sh", "-c", "echo $BENTPIPE_HOST; echo bad >&2; exit 7"])
    assert (done.returncode, done.stdout, done.stderr) == (7, "island\n", "bad\n")
    assert leo.run("world", ["sh", "-c", "kill -9 $$"]).returncode == 128 + 9
    mark = f"bentpipe-api-{os.getpid()}"
    with pytest.raises(subprocess.TimeoutExpired):
        leo.run("island", ["env", f"MARK={mark}", "sleep", "60"], timeout_s=0.5)
    wait_until(lambda: processes(mark) == [], "the program still runs")
    with leo.spawn("island", ["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as cat:
        assert cat.communicate(b"input")[0] == b"input"
    script = "trap 'echo caught; exit 5' TERM; echo ready; while :; do sleep 0.05; done"
    with leo.spawn("island", ["sh", "-c", script], stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "ready\n"
        running.terminate()
        assert running.stdout.read() == "caught\n"
        assert running.wait(20) == 5


@needs_lab
def test_what_a_lab_has_not_is_refused(leo: bentpipe.Lab) -> None:
    with pytest.raises(UsageError, match='read "moon"; allowed: world, island'):
        leo.run("moon", ["true"])
    with pytest.raises(UsageError, match="no-such-program: no such program"):
        leo.run("island", ["no-such-program"])
    with pytest.raises(UsageError, match="a running link can change"):
        leo.set("link.terminals=2")


def test_what_cannot_be_a_lab_is_refused() -> None:
    with pytest.raises(UsageError, match="links: none"):
        bentpipe.Lab()
    with pytest.raises(UsageError, match='did you mean "geo"'):
        bentpipe.Lab("gio")
    with pytest.raises(ScenarioError, match=r"link\.forward\.rate"):
        bentpipe.Lab({"link": {"preset": "leo", "forward": {"rate": "fast"}}})
    with pytest.raises(UsageError, match="seed: read -1"):
        bentpipe.Lab("leo", seed=-1)


@needs_lab
@pytest.mark.unprivileged
@needs("ip")
def test_a_lab_that_fails_or_is_closed_runs_no_program() -> None:
    """Given a program, a deleted device and then the end of the lab, expect its end, and errors."""
    mark = f"bentpipe-api-{os.getpid()}"
    with bentpipe.Lab("leo") as lab:
        command = ["env", f"MARK={mark}", "sh", "-c", "echo ready; exec sleep 60"]
        left = lab.spawn("world", command, stdout=subprocess.PIPE)
        assert left.stdout is not None
        assert left.stdout.readline() == b"ready\n"
        lab.run("island", ["ip", "link", "del", "dev", "link"])
        wait_until(lambda: lab.report()["failure"], "the link has not failed")
        with pytest.raises(InvalidRunError, match="the link has failed"):
            lab.run("island", ["true"])
    assert left.wait(20) == 128 + signal.SIGKILL
    left.stdout.close()
    wait_until(lambda: processes(mark) == [], "the program outlived the lab")
    for closed in (lab.report, lambda: lab.run("island", ["true"])):
        with pytest.raises(UsageError, match="the lab is closed"):
            closed()
    lab.close()


@needs_lab
def test_a_process_with_many_open_files_ends_its_lab() -> None:
    """Given descriptors from 1,024 on, which select(2) refuses, expect the lab to end."""
    mark = f"bentpipe-api-files-{os.getpid()}"
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        files = [stack.enter_context(Path(os.devnull).open()) for _ in range(1_024)]
        assert files[-1].fileno() >= 1_024
        lab = bentpipe.Lab("leo")
        command = ["env", f"MARK={mark}", "sh", "-c", "echo ready; exec sleep 60"]
        program = lab.spawn("world", command, stdout=subprocess.PIPE)
        assert program.stdout is not None
        assert program.stdout.readline() == b"ready\n"
        lab.close()
        program.stdout.close()
    assert program.wait(20) == 128 + signal.SIGKILL
    wait_until(lambda: processes(mark) == [], "the program outlived the lab")


@needs_lab
def test_a_killed_daemon_is_an_error() -> None:
    mark = f"bentpipe-api-daemon-{os.getpid()}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MARK", mark)
        lab = bentpipe.Lab("leo")
    # Its descendants have the same command line, and lower numbers where those began anew.
    (daemon,) = (each for each in processes(mark) if parent(each) == os.getpid())
    os.kill(int(daemon), signal.SIGKILL)
    wait_until(lambda: processes(mark) == [], "something outlived the daemon")
    with pytest.raises(MachineError, match="the lab has ended"):
        lab.report()
    lab.close()


def test_a_daemon_that_ends_with_a_request_unread_is_the_same_error() -> None:
    """Given a peer that closes before it reads, expect ECONNRESET told as the end of the lab."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)

    def end() -> None:
        select.select([there], [], [])
        there.close()

    ending = threading.Thread(target=end)
    ending.start()
    with here, pytest.raises(LabEndedError, match="the lab has ended; to fix it: set it up again"):
        ask(here, {"do": "status"})
    ending.join()


def parent(process: str) -> int:
    # The name before it may have spaces and brackets: proc(5).
    after_name = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2]
    return int(after_name.split()[1])


# A process with the threads of numpy and polars, which cannot create a user namespace.
NOTEBOOK = """
import os
import numpy, polars
import bentpipe
polars.DataFrame({"a": numpy.arange(9)}).select(polars.col("a").sum())
assert len(os.listdir("/proc/self/task")) > 1
lab = bentpipe.Lab("leo")
print(os.geteuid(), lab.run("island", ["ping", "-c", "1", "world"]).returncode, flush=True)
lab.set("link.forward.rate=4Mbit/s")
if os.environ.get("WAIT"):
    input()
else:
    print(sorted(lab.report()["directions"]))
"""


@needs_lab
@needs("ping")
@needs("setpriv")
def test_an_ordinary_user_has_a_lab_in_a_process_with_threads(user: User) -> None:
    user.environment["MARK"] = mark = f"bentpipe-notebook-{os.getpid()}"
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
    assert done.stdout.splitlines() == [f"{uid} 0", "['forward', 'return']"]
    wait_until(lambda: processes(mark) == [], "the lab outlived its process")
    assert list(user.folder.iterdir()) == []


@needs_lab
@needs("ping")
def test_a_lab_ends_with_its_process_even_if_that_is_killed(tmp_path: Path) -> None:
    mark = f"bentpipe-killed-{os.getpid()}"
    environment = os.environ | {"MARK": mark, "WAIT": "1", "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", NOTEBOOK],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline().endswith(" 0\n")
        assert len(processes(mark)) > 1
        running.kill()
    wait_until(lambda: processes(mark) == [], "the lab outlived its process")
    assert list(tmp_path.iterdir()) == []
