"""Persistent labs, each kept by a daemon; skipped where namespaces cannot be created."""

from __future__ import annotations

import json
import os
import pty
import random
import re
import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from conftest import default_signals, measures, needs, needs_lab
from test_live import BENTPIPE, bentpipe, machine, processes

from bentpipe.errors import MachineError, UsageError
from bentpipe.lab import sockets
from bentpipe.lab.changes import link_changes
from bentpipe.plan.presets import link_plan

TIMEOUT_S = 20.0


@pytest.fixture(autouse=True)
def own_labs(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep the labs of a test apart from those of the user."""
    # As long as the folders of some systems are: longer than the address of a socket may be.
    folder = tmp_path_factory.mktemp("run" + 100 * "x")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    return folder


@contextmanager
def a_lab(name: str, *arguments: str) -> Iterator[int]:
    """Keep a lab up; yield the process of its daemon."""
    made = bentpipe("lab", "up", name, *arguments)
    assert made.returncode == 0, made.stderr
    try:
        found = re.search(r"kept by process (\d+)", made.stderr)
        assert found is not None, made.stderr
        yield int(found[1])
    finally:
        bentpipe("lab", "down", name)


def status(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(bentpipe("lab", "status", name, "--json").stdout)
    return found


def wait_until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def min_ms(name: str) -> float:
    ran = bentpipe("lab", "exec", name, "--", "ping", "-c", "3", "-i", "0.1", "world")
    times_ms = [float(text) for text in re.findall(r"time=([0-9.]+) ms", ran.stdout)]
    assert len(times_ms) == 3, ran.stdout + ran.stderr
    return min(times_ms)


# -- A lab and its programs --------------------------------------------------------------------


@measures
def test_a_lab_stays_until_it_is_taken_down() -> None:
    with a_lab("sat", "--link", "leo", "--set", "link.forward.rate=4Mbit/s") as daemon:
        (row,) = json.loads(bentpipe("lab", "list", "--json").stdout)
        assert (row["name"], row["process"], row["changes"]) == ("sat", daemon, [])
        assert row["links"] == ["leo", "--set link.forward.rate=4Mbit/s"]
        again = bentpipe("lab", "up", "sat", "--link", "geo")
        assert again.returncode == 2
        assert 'a lab "sat" exists already' in again.stderr
        ended = bentpipe("lab", "down", "sat")
        assert ended.returncode == 0
        assert "forward: 0 packets" in ended.stderr
        assert bentpipe("lab", "list", "--json").stdout == "[]\n"
        nothing = bentpipe("lab", "list")
        assert (nothing.returncode, nothing.stdout) == (0, "")
        assert nothing.stderr == "bentpipe: no lab is up; bentpipe lab up creates one\n"
        gone = bentpipe("lab", "down", "sat")
        assert (gone.returncode, "no lab exists" in gone.stderr) == (2, True)
        # The name is free.
        assert bentpipe("lab", "up", "sat", "--link", "leo").returncode == 0


@measures
def test_the_error_of_an_unknown_lab_names_those_that_exist() -> None:
    with a_lab("one", "--link", "leo"):
        for verb in (["down"], ["status"], ["exec", "--", "true"], ["set", "link.forward.rate=1"]):
            ran = bentpipe("lab", verb[0], "two", *verb[1:])
            assert ran.returncode == (125 if verb[0] == "exec" else 2), ran.stderr
            assert 'read "two"; allowed: one' in ran.stderr


@measures
def test_programs_keep_their_exit_codes_and_know_their_side(tmp_path: Path) -> None:
    with a_lab("sat", "--link", "leo"):
        run = ("lab", "exec", "sat", "--")
        assert bentpipe(*run, "sh", "-c", "exit 7").returncode == 7
        assert bentpipe(*run, "sh", "-c", "kill -TERM $$").returncode == 128 + 15
        missing = bentpipe(*run, "no-such-program")
        assert (missing.returncode, missing.stderr[:25]) == (127, "bentpipe: no-such-program")
        script = "pwd; echo $BENTPIPE_HOST; cat /proc/net/dev | grep -c link; cat"
        for side in ("world", "island"):
            ran = subprocess.run(
                [*BENTPIPE, "lab", "exec", "sat", "--host", side, "--", "sh", "-c", script],
                input="and its input",
                capture_output=True,
                text=True,
                check=False,
                cwd=tmp_path,
            )
            assert ran.stdout.split("\n") == [str(tmp_path), side, "1", "and its input"]


@measures
@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_reach_the_program(sent: signal.Signals) -> None:
    command = f"trap 'echo heard; exit 5' {sent.name[3:]}; echo ready; while :; do sleep 0.05; done"
    with (
        a_lab("sat", "--link", "leo"),
        subprocess.Popen(
            [*BENTPIPE, "lab", "exec", "sat", "--", "sh", "-c", command],
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=default_signals,  # noqa: PLW1509 - no threads
        ) as running,
    ):
        assert running.stdout is not None
        assert running.stdout.readline() == "ready\n"
        running.send_signal(sent)
        assert running.stdout.read() == "heard\n"
        assert running.wait() == 5


@measures
@needs("bash")
def test_programs_have_the_terminal() -> None:
    """Given a shell on a terminal, expect Ctrl-C to end only the program that it runs."""
    # dash cannot give the terminal back to a process group that its namespace has no number for.
    shell = ["bash", "--norc", "-i"]
    with a_lab("sat", "--link", "leo"):
        terminal, other_end = pty.openpty()
        running = subprocess.Popen(
            ["setsid", "--ctty", *BENTPIPE, "lab", "exec", "sat", "--", *shell],
            stdin=other_end,
            stdout=other_end,
            stderr=other_end,
        )
        os.close(other_end)
        shown = b""

        def type_until(text: bytes, *expected: bytes) -> None:
            nonlocal shown
            os.write(terminal, text)
            deadline = time.monotonic() + TIMEOUT_S
            while not any(each in shown for each in expected):
                assert time.monotonic() < deadline, shown
                if select.select([terminal], [], [], 0.1)[0]:
                    shown += os.read(terminal, 4096)
            shown = b""

        # The program that Ctrl-C ends is the one that says so.
        type_until(b"tty; sh -c \"echo re''ady; exec sleep 60\"; echo wo''ken\n", b"ready")
        type_until(b"\x03echo here $BENTPIPE_HOST\n", b"here island")
        os.write(terminal, b"exit 6\n")
        assert running.wait(TIMEOUT_S) == 6
        os.close(terminal)


@measures
def test_background_processes_stay_until_the_lab_ends() -> None:
    """Given a server started in the world and left there, expect the island to reach it."""
    mark = f"bentpipe-left-{os.getpid()}"
    with a_lab("sat", "--link", "leo"):
        serve = f"MARK={mark} sleep 60 > /dev/null 2>&1 &"
        assert (
            bentpipe("lab", "exec", "sat", "--host", "world", "--", "sh", "-c", serve).returncode
            == 0
        )
        assert len(processes(mark)) == 1
        bentpipe("lab", "down", "sat")
        wait_until(lambda: processes(mark) == [], "the program still runs")


@measures
@needs("ping")
def test_two_labs_do_not_disturb_each_other() -> None:
    with a_lab("near", "--link", "leo"), a_lab("far", "--link", "meo"):
        assert [row["name"] for row in json.loads(bentpipe("lab", "list", "--json").stdout)] == [
            "far",
            "near",
        ]
        assert 26 <= min_ms("near") < 36
        assert 158 <= min_ms("far") < 168


# -- Changes -----------------------------------------------------------------------------------


@measures
@needs("ping")
def test_a_changed_delay_is_the_delay() -> None:
    """Given 13 ms each way and then 100 one way, expect 26 ms and then 113."""
    with a_lab("sat", "--link", "leo"):
        assert 26 <= min_ms("sat") < 36
        changed = bentpipe("lab", "set", "sat", "link.forward.delay=100ms")
        assert changed.returncode == 0, changed.stderr
        assert 113 <= min_ms("sat") < 123
        (change,) = status("sat")["changes"]
        assert change["settings"] == ["link.forward.delay=100ms"]
        assert change["at_ns"] > 0


@measures
@needs("ping")
def test_of_several_links_each_can_be_changed() -> None:
    """Given 13 ms each way twice, expect 26 ms less with no delay on the second link."""
    with a_lab("sat", "--link", "leo", "--link", "leo"):
        assert 52 <= min_ms("sat") < 62
        delays = ["hop.2.link.forward.delay=0s", "hop.2.link.return.delay=0s"]
        assert bentpipe("lab", "set", "sat", *delays).returncode == 0
        assert 26 <= min_ms("sat") < 36
        assert bentpipe("lab", "set", "sat", "link.forward.delay=50ms").returncode == 0
        assert 113 <= min_ms("sat") < 123
        beyond = bentpipe("lab", "set", "sat", "hop.3.link.forward.delay=1ms")
        assert (beyond.returncode, "the lab has 2 links" in beyond.stderr) == (2, True)


@measures
@needs("curl")
def test_a_transfer_uses_the_changed_rate() -> None:
    """Given 400 kB of TCP, expect at least 1.6 s at 2 Mbit/s, and much less at 50 Mbit/s."""
    command = ["curl", "-s", "-o", "/dev/null", "-w", "%{size_download} %{time_total}"]

    def seconds() -> float:
        ran = bentpipe("lab", "exec", "sat", "--", *command, "http://world/bytes/400000")
        size, taken = (float(word) for word in ran.stdout.split())
        assert size == 400_000
        return taken

    with a_lab("sat", "--link", "leo"):
        assert bentpipe("lab", "set", "sat", "link.forward.rate=2Mbit/s").returncode == 0
        slow = seconds()
        assert slow >= 400e3 * 8 / 2e6
        assert bentpipe("lab", "set", "sat", "link.forward.rate=50Mbit/s").returncode == 0
        assert seconds() < slow / 2


@measures
def test_queued_packets_leave_at_the_new_rate() -> None:
    """Given a queue of UDP packets that takes 80 s at 10 kbit/s, expect it empty at 10 Mbit/s."""
    send = (
        "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        "for _ in range(100): s.sendto(bytes(972), ('island', 9))"
    )
    settings = ["link.forward.rate=10kbit/s", "link.forward.queue.limit=unlimited"]
    arguments = [word for setting in settings for word in ("--set", setting)]
    with a_lab("sat", "--link", "leo", *arguments):
        world = ["lab", "exec", "sat", "--host", "world", "--", BENTPIPE[0], "-c", send]
        assert bentpipe(*world).returncode == 0

        def forward() -> dict[str, Any]:
            found: dict[str, Any] = status("sat")["report"]["directions"]["forward"]
            return found

        # A report may be a tenth of a second old.
        wait_until(lambda: forward()["queue_packets"] >= 90, "the packets did not arrive")
        before_ns = status("sat")["report"]["at_ns"]
        assert bentpipe("lab", "set", "sat", "link.forward.rate=10Mbit/s").returncode == 0
        wait_until(lambda: forward()["delivered_packets"] == 100, "the packets did not leave")
        assert forward()["dropped_packets"] == {}
        assert status("sat")["report"]["at_ns"] - before_ns < 70e9, "sooner than at the old rate"


@measures
@needs("ping")
def test_an_outage_delays_and_loses_nothing() -> None:
    """Given packets during an outage, expect them queued, and all delivered after it."""
    ping = ["ping", "-c", "3", "-i", "0.1", "-W", "30", "world"]
    with a_lab("sat", "--link", "leo"):
        assert bentpipe("lab", "set", "sat", "link.forward.outage=on").returncode == 0
        with subprocess.Popen(
            [*BENTPIPE, "lab", "exec", "sat", "--", *ping], stdout=subprocess.PIPE, text=True
        ) as pinging:

            def held() -> bool:
                forward = status("sat")["report"]["directions"]["forward"]
                # The first is on the transmitter.
                return bool(forward["queue_packets"] == 2 and forward["sending_bytes"] == 84)

            wait_until(held, "nothing waits")
            assert bentpipe("lab", "set", "sat", "link.forward.outage=off").returncode == 0
            shown, _ = pinging.communicate()
        assert "3 received, 0% packet loss" in shown
        # One that ends by itself.
        assert bentpipe("lab", "set", "sat", "link.forward.outage=1500ms").returncode == 0
        assert bentpipe("lab", "exec", "sat", "--", *ping).returncode == 0
        assert status("sat")["report"]["directions"]["forward"]["dropped_packets"] == {}


@measures
@needs("ping")
def test_errors_begin_and_end_as_requested() -> None:
    ping = ["lab", "exec", "sat", "--", "ping", "-c", "2", "-i", "0.1", "-W", "1", "world"]
    with a_lab("sat", "--link", "leo"):
        assert bentpipe("lab", "set", "sat", "link.return.bit_error_rate=1").returncode == 0
        assert bentpipe(*ping).returncode == 1
        lost = status("sat")["report"]["directions"]["return"]["dropped_packets"]
        assert lost == {"bit_error": 2}
        assert bentpipe("lab", "set", "sat", "link.return.bit_error_rate=0").returncode == 0
        assert bentpipe(*ping).returncode == 0


@measures
@needs("ping")
def test_bad_values_change_nothing() -> None:
    """Given a valid and an invalid setting, expect that neither is applied."""
    with a_lab("sat", "--link", "leo"):
        for bad in [
            "link.forward.rate=fast",
            "link.forward.rate=0bit/s",
            "link.forward.rate=[{at: 0s, value: 1 Mbit/s}]",
            "link.forward.delay=-3ms",
            "link.forward.delay=300 days",
            "link.return.bit_error_rate=1.5",
            "link.forward.outage=maybe",
            "link.forward.framing=8 B",
            "link.terminals=2",
            "hop.0.link.forward.rate=1Mbit/s",
            "link.forward.rate",
            "",
        ]:
            ran = bentpipe("lab", "set", "sat", "link.forward.delay=100ms", bad)
            assert ran.returncode == 2, (bad, ran.stderr)
            assert len(ran.stderr.splitlines()) == 1, ran.stderr
        assert status("sat")["changes"] == []
        assert 26 <= min_ms("sat") < 36


# -- Nothing is left ---------------------------------------------------------------------------


@needs_lab
def test_a_killed_daemon_leaves_nothing() -> None:
    """Given programs on both sides and a killed daemon, expect all to end with it."""
    mark, before = f"bentpipe-daemon-{os.getpid()}", machine()
    environment = os.environ | {"MARK": mark}
    with a_lab("sat", "--link", "leo") as daemon:
        command = ["sh", "-c", "sleep 60 & sleep 60 & echo ready; sleep 60"]
        running = [
            subprocess.Popen(
                [*BENTPIPE, "lab", "exec", "sat", "--host", side, "--", *command],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=environment,
            )
            for side in ("world", "island")
        ]
        for each in running:
            assert each.stdout is not None
            assert each.stdout.readline() == "ready\n"
        os.kill(daemon, signal.SIGKILL)
        for each in running:
            _, stderr = each.communicate(timeout=TIMEOUT_S)
            assert each.returncode == 128 + 9
            assert "lab sat has ended" in stderr
        wait_until(lambda: processes(mark) == [], "programs still run")
        assert bentpipe("lab", "list").stdout == ""
        assert list(sockets.folder().glob("*.sock")) == [], "what it left is removed"
        assert bentpipe("lab", "up", "sat", "--link", "leo").returncode == 0, "the name is free"
    assert machine() == before


@needs_lab
def test_labs_killed_at_random_times_leave_nothing(own_labs: Path) -> None:
    """Given 40 kills while labs are set up, used and changed, expect the machine unchanged."""
    before, seed = machine(), 1
    mark = f"bentpipe-any-time-{os.getpid()}"
    environment = os.environ | {"MARK": mark, "XDG_RUNTIME_DIR": str(own_labs)}
    draw = random.Random(seed)

    def set_up_and_kill(number_and_seconds: tuple[int, float]) -> None:
        number, seconds = number_and_seconds
        name = f"lab-{number}"
        script = (
            f'bentpipe() {{ {" ".join(BENTPIPE)} "$@"; }}\n'
            f"bentpipe lab up {name} --link leo && "
            f"bentpipe lab set {name} link.forward.rate=1Mbit/s && "
            f"bentpipe lab exec {name} -- sh -c 'sleep 60 & sleep 60'"
        )
        with subprocess.Popen(
            ["sh", "-c", script],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        ) as running:
            time.sleep(seconds)
            # The daemon has a session of its own and is killed separately.
            for process in processes(f"bentpipe.lab.daemon\0{name}\0"):
                kill(int(process), signal.SIGKILL)
            os.killpg(running.pid, signal.SIGKILL)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(set_up_and_kill, enumerate(draw.uniform(0.1, 3.0) for _ in range(40))))

    # A daemon whose parent was killed during the set-up ends by itself, or runs as any other.
    for name in sockets.names():
        bentpipe("lab", "down", name)
    wait_until(lambda: processes(mark) == [], f"seed {seed}")
    assert bentpipe("lab", "list").stdout == ""
    after = machine()
    for name, value in before.items():
        assert after[name] == value, f"{name}, seed {seed}"


def kill(process: int, sent: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(process, sent)


# -- The socket --------------------------------------------------------------------------------


@measures
def test_a_daemon_survives_malformed_requests() -> None:
    """Given random bytes, incomplete requests and wrong types, expect that the lab goes on."""
    draw = random.Random(1)
    lines = [draw.randbytes(draw.randrange(200)) + b"\n" for _ in range(60)]
    settings: list[object] = [3, [4], {"a": 1}, ["\0=\0"], ["=" * 999]]
    sides: list[object] = [None, 4, [], "moon"]
    requests: list[object] = [[], 7, None, "down", {}, {"do": 3}, {"do": ["set"]}, {"do": "set"}]
    requests.extend({"do": "set", "settings": each} for each in settings)
    requests.extend({"do": "enter", "host": each} for each in sides)
    lines.extend(json.dumps(request).encode() + b"\n" for request in requests)
    lines.extend([b"[" * 60_000 + b"\n", b"x" * 200_000, b'{"do": "status"', b"\n" * 100])
    with a_lab("sat", "--link", "leo"):
        for line in lines:
            with sockets.connect("sat") as connection:
                try:
                    connection.sendall(line)
                    connection.shutdown(socket.SHUT_WR)
                    reply = connection.recv(1 << 20)
                except OSError:
                    continue
                assert reply == b"" or "error" in json.loads(reply), line[:80]
        assert status("sat")["changes"] == []


def test_a_folder_that_others_can_access_is_refused(own_labs: Path) -> None:
    (own_labs / "bentpipe").mkdir(mode=0o755)
    with pytest.raises(MachineError, match="other users can access"):
        sockets.folder()


def test_without_a_session_folder_the_user_has_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = sockets.folder()
    assert folder == tmp_path / f"bentpipe-{os.geteuid()}"
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("name", ["", "-x", "a/b", "..", "a b", "ä", "a" * 33, "a\n"])
def test_invalid_names_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="allowed are up to 32"):
        sockets.checked_name(name)


def test_a_malformed_reply_is_an_error() -> None:
    for sent, message in [(b"no json\n", "cannot be read"), (b"", "has ended"), (b"{}", "ended")]:
        here, there = socket.socketpair()
        with here, there:
            there.sendall(sent)
            there.shutdown(socket.SHUT_WR)
            with pytest.raises(MachineError, match=message):
                sockets.ask(here, {"do": "status"})


# -- Settings ----------------------------------------------------------------------------------


def test_settings_are_changes_by_direction() -> None:
    """Given settings of two links, expect one change for each direction with all its values."""
    settings = [
        "link.forward.rate=4 Mbit/s",
        "hop.2.link.forward.outage=5s",
        "link.return.bit_error_rate=1e-6",
        "hop.1.link.forward.delay=270ms",
    ]
    fields = ("rate_bps", "delay_ns", "jitter_ns", "bit_error_rate", "loss_rate", "outage_ns")
    nothing = dict.fromkeys((*fields, "queue"))
    one = [link_plan("geo")]
    four = {"direction": "forward", **nothing, "rate_bps": 4_000_000}
    lossy = {"direction": "return", **nothing, "bit_error_rate": 1e-6}
    assert link_changes(settings, one * 2) == [
        {"hop": 0, **four, "delay_ns": 270_000_000},
        {"hop": 1, **four, "outage_ns": 5_000_000_000},
        {"hop": 0, **lossy},
        {"hop": 1, **lossy},
    ]
    (on,), (off,) = (link_changes([f"link.return.outage={word}"], one) for word in ("on", "off"))
    assert (on["outage_ns"], off["outage_ns"]) == (1 << 62, 0)
    assert link_changes(["link.forward.bit_error_rate=0"], one)[0]["bit_error_rate"] == 0.0
