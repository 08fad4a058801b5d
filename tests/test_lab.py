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
from conftest import measures, needs, needs_lab
from test_live import BENTPIPE, bentpipe, machine, processes, told_by_a_program_that_hears_signals

from bentpipe.errors import MachineError, UsageError
from bentpipe.live import sockets
from bentpipe.live.changes import link_changes
from bentpipe.plan.presets import link_plan

# For machines that are busy: an idle one takes a second.
TIMEOUT_S = 60.0


@pytest.fixture(scope="module", autouse=True)
def labs_of_a_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the labs of a module apart from those of the user."""
    with pytest.MonkeyPatch.context() as patch:
        # As long as folders of some systems are: longer than the address of a socket may be.
        patch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("run" + 100 * "x")))
        yield


@pytest.fixture
def own_labs(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep the labs of a test apart from those of its module."""
    folder = tmp_path_factory.mktemp("run")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    return folder


@pytest.fixture(scope="module")
def sat() -> Iterator[int]:
    """A lab "sat" with a link of 13 ms each way, which tests may change, but for its delay."""
    with a_lab("sat", "--link", "leo") as daemon:
        yield daemon


@pytest.fixture(scope="module")
def far() -> Iterator[int]:
    """A lab "far" with links of 13 and 79 ms each way in series."""
    with a_lab("far", "--link", "leo", "--link", "meo") as daemon:
        yield daemon


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


def set_link(name: str, *settings: str) -> None:
    changed = bentpipe("lab", "set", name, *settings)
    assert changed.returncode == 0, changed.stderr


def forward_of(name: str) -> dict[str, Any]:
    found: dict[str, Any] = status(name)["report"]["directions"]["forward"]
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


@needs_lab
@pytest.mark.usefixtures("own_labs")
def test_labs_are_listed_until_they_are_taken_down() -> None:
    """Given two labs, expect them in the list and in errors, and nothing of them at the end."""
    mark = f"bentpipe-left-{os.getpid()}"
    with (
        a_lab("one", "--link", "leo", "--set", "link.forward.rate=4Mbit/s") as daemon,
        a_lab("two", "--link", "geo"),
    ):
        row, other = json.loads(bentpipe("lab", "list", "--json").stdout)
        assert (row["name"], row["process"], row["changes"]) == ("one", daemon, [])
        assert row["links"] == ["leo", "--set link.forward.rate=4Mbit/s"]
        assert other["name"] == "two"
        again = bentpipe("lab", "up", "one", "--link", "geo")
        assert again.returncode == 2
        assert 'a lab "one" exists already' in again.stderr
        for verb in (["status"], ["exec", "--", "true"], ["set", "link.forward.rate=1"]):
            ran = bentpipe("lab", verb[0], "three", *verb[1:])
            assert ran.returncode == (125 if verb[0] == "exec" else 2), ran.stderr
            assert 'read "three"; allowed: one, two' in ran.stderr
        leave = f"MARK={mark} sleep 60 > /dev/null 2>&1 &"
        assert bentpipe("lab", "exec", "one", "--", "sh", "-c", leave).returncode == 0
        assert len(processes(mark)) == 1, "what a program leaves behind stays"
        assert_labs_end_together_or_none("one", "two")
        wait_until(lambda: processes(mark) == [], "the program still runs")
        assert bentpipe("lab", "list", "--json").stdout == "[]\n"
        nothing = bentpipe("lab", "list")
        assert (nothing.returncode, nothing.stdout) == (0, "")
        assert nothing.stderr == "bentpipe: no lab is up; bentpipe lab up creates one\n"
        gone = bentpipe("lab", "down", "one")
        assert (gone.returncode, "no lab exists" in gone.stderr) == (2, True)
        assert bentpipe("lab", "up", "one", "--link", "leo").returncode == 0, "the name is free"


def assert_labs_end_together_or_none(one: str, two: str) -> None:
    """Given a name that does not exist, expect no lab to end; else all, each once."""
    wrong = bentpipe("lab", "down", one, two, "three")
    assert wrong.returncode == 2
    assert f'read "three"; allowed: {one}, {two}' in wrong.stderr
    assert len(json.loads(bentpipe("lab", "list", "--json").stdout)) == 2
    ended = bentpipe("lab", "down", one, two, two)
    assert ended.returncode == 0
    for name in (one, two):
        assert ended.stderr.count(f"{name}: forward: 0 packets, 0 B delivered") == 1


@needs_lab
@pytest.mark.usefixtures("sat")
def test_programs_have_their_side_input_and_signals(tmp_path: Path) -> None:
    script = "pwd; echo $BENTPIPE_HOST; cat /proc/net/dev | grep -c link; cat"
    ran = subprocess.run(
        [*BENTPIPE, "lab", "exec", "sat", "--host", "world", "--", "sh", "-c", script],
        input="and its input",
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert ran.stdout.split("\n") == [str(tmp_path), "world", "1", "and its input"]
    told = told_by_a_program_that_hears_signals(["lab", "exec", "sat"], tmp_path)
    assert told[:3] == [str(tmp_path), "island", "1"]


@needs_lab
@needs("bash")
@needs("setsid")
@pytest.mark.usefixtures("sat")
def test_programs_have_the_terminal() -> None:
    """Given a shell on a terminal, expect Ctrl-C to end only the program that it runs."""
    # dash cannot give the terminal back to a process group that its namespace has no number for.
    shell, mark = ["bash", "--norc", "-i"], f"bentpipe-terminal-{os.getpid()}"
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

    type_until(f"tty; echo re''ady; MARK={mark} sleep 60; echo wo''ken\n".encode(), b"ready")
    wait_until(lambda: processes(mark), "the program does not start")
    type_until(b"\x03echo here $BENTPIPE_HOST\n", b"here island")
    os.write(terminal, b"exit 6\n")
    assert running.wait(TIMEOUT_S) == 6
    os.close(terminal)


# -- Changes -----------------------------------------------------------------------------------

BAD_SETTINGS = [
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
]


@measures
@pytest.mark.smoke
@needs("ping")
@needs("curl")
@pytest.mark.usefixtures("sat", "far")
def test_changes_apply_to_the_link_of_one_lab() -> None:
    """Given 13 ms each way and then 100 one way, expect 26 ms and then 113; in another lab 184.

    400 kB take at least 1.6 s at 2 Mbit/s, and much less at 50.
    """
    assert 26 <= min_ms("sat") < 36
    set_link("sat", "link.forward.delay=100ms")
    assert 113 <= min_ms("sat") < 123
    change = status("sat")["changes"][-1]
    assert change["settings"] == ["link.forward.delay=100ms"]
    assert change["at_ns"] > 0
    assert 184 <= min_ms("far") < 194
    set_link("sat", "link.forward.delay=13ms", "link.forward.rate=2Mbit/s")
    slow_s = seconds_of_a_download("sat")
    assert slow_s >= 400e3 * 8 / 2e6
    set_link("sat", "link.forward.rate=50Mbit/s")
    assert seconds_of_a_download("sat") < slow_s / 2
    assert 26 <= min_ms("sat") < 36


def seconds_of_a_download(name: str) -> float:
    """Return how long 400 kB take."""
    command = ["curl", "-s", "-o", "/dev/null", "-w", "%{size_download} %{time_total}"]
    ran = bentpipe("lab", "exec", name, "--", *command, "http://world/bytes/400000")
    size, taken = (float(word) for word in ran.stdout.split())
    assert size == 400_000
    return taken


@measures
@needs("ping")
@pytest.mark.usefixtures("far")
def test_of_several_links_each_can_be_changed() -> None:
    """Given 13 and 79 ms each way in series, expect 26 ms without a delay on the second link.

    A setting that names no link is one of both: 50 ms, twice, and 13 ms back.
    """
    set_link("far", "hop.2.link.forward.delay=0s", "hop.2.link.return.delay=0s")
    assert 26 <= min_ms("far") < 36
    set_link("far", "link.forward.delay=50ms")
    assert 113 <= min_ms("far") < 123
    beyond = bentpipe("lab", "set", "far", "hop.3.link.forward.delay=1ms")
    assert (beyond.returncode, "the lab has 2 links" in beyond.stderr) == (2, True)
    set_link("far", "link.forward.delay=13ms")
    set_link("far", "hop.2.link.forward.delay=79ms", "hop.2.link.return.delay=79ms")


@needs_lab
@pytest.mark.usefixtures("sat")
def test_bad_values_change_nothing() -> None:
    """Given a valid and an invalid setting, expect that neither is applied."""
    before = status("sat")["changes"]
    for bad in BAD_SETTINGS:
        ran = bentpipe("lab", "set", "sat", "link.forward.delay=100ms", bad)
        assert ran.returncode == 2, (bad, ran.stderr)
        assert len(ran.stderr.splitlines()) == 1, ran.stderr
    found = status("sat")
    assert found["changes"] == before
    assert found["link"]["forward"]["delay_ns"] == 13_000_000


@needs_lab
@needs("ping")
@pytest.mark.usefixtures("own_labs")
def test_packets_wait_and_are_lost_as_the_link_is_changed() -> None:
    """Given 100 datagrams that take 80 s at 10 kbit/s, pings in an outage, and then full loss."""
    settings = ["link.forward.rate=10kbit/s", "link.forward.queue.limit=unlimited"]
    arguments = [word for setting in settings for word in ("--set", setting)]
    with a_lab("slow", "--link", "leo", *arguments):
        assert_queued_packets_leave_at_the_new_rate("slow")
        assert_an_outage_delays_and_loses_nothing("slow")
        assert_errors_begin_and_end("slow")


def assert_queued_packets_leave_at_the_new_rate(name: str) -> None:
    """Given a full queue at 10 kbit/s, expect it empty at 10 Mbit/s, sooner than in 80 s."""
    send = (
        "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        "for _ in range(100): s.sendto(bytes(972), ('island', 9))"
    )
    world = ["lab", "exec", name, "--host", "world", "--", BENTPIPE[0], "-c", send]
    assert bentpipe(*world).returncode == 0
    # A report may be a tenth of a second old.
    wait_until(lambda: forward_of(name)["queue_packets"] >= 90, "the packets did not arrive")
    before_ns = status(name)["report"]["at_ns"]
    set_link(name, "link.forward.rate=10Mbit/s")
    wait_until(lambda: forward_of(name)["delivered_packets"] == 100, "the packets did not leave")
    assert forward_of(name)["dropped_packets"] == {}
    assert status(name)["report"]["at_ns"] - before_ns < 70e9, "sooner than at the old rate"


PING = ["ping", "-i", "0.1", "-W", "30", "-c"]


def assert_an_outage_delays_and_loses_nothing(name: str) -> None:
    """Given packets during an outage, expect them queued, and all delivered after it."""
    set_link(name, "link.forward.outage=on")
    with subprocess.Popen(
        [*BENTPIPE, "lab", "exec", name, "--", *PING, "3", "world"],
        stdout=subprocess.PIPE,
        text=True,
    ) as pinging:

        def held() -> bool:
            forward = forward_of(name)
            # The first is on the transmitter.
            return bool(forward["queue_packets"] == 2 and forward["sending_bytes"] == 84)

        wait_until(held, "nothing waits")
        set_link(name, "link.forward.outage=off")
        shown, _ = pinging.communicate()
    assert "3 received, 0% packet loss" in shown
    # One that ends by itself.
    set_link(name, "link.forward.outage=500ms")
    assert bentpipe("lab", "exec", name, "--", *PING, "3", "world").returncode == 0
    assert forward_of(name)["dropped_packets"] == {}


def assert_errors_begin_and_end(name: str) -> None:
    set_link(name, "link.return.bit_error_rate=1")
    lost = ["-W", "1", "world"]
    assert bentpipe("lab", "exec", name, "--", *PING, "2", *lost).returncode == 1
    dropped = status(name)["report"]["directions"]["return"]["dropped_packets"]
    assert dropped == {"bit_error": 2}
    set_link(name, "link.return.bit_error_rate=0")
    assert bentpipe("lab", "exec", name, "--", *PING, "2", "world").returncode == 0


# -- Nothing is left ---------------------------------------------------------------------------


@needs_lab
@pytest.mark.unprivileged
@pytest.mark.usefixtures("own_labs")
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
@pytest.mark.thorough
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
            for process in processes(f"bentpipe.live.child\0{name}\0"):
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


@needs_lab
def test_a_daemon_survives_malformed_requests(sat: int) -> None:
    """Given random bytes, incomplete requests and wrong types, expect that the lab goes on."""
    draw = random.Random(1)
    lines = [draw.randbytes(draw.randrange(200)) + b"\n" for _ in range(60)]
    settings: list[object] = [3, [4], {"a": 1}, ["=" * 20_000]]
    wrongs: list[dict[str, object]] = [
        {"hop": 1},
        {"hop": -1},
        {"hop": 10**30},
        {"direction": "up"},
        {"x": 1},
        {"rate_bps": 0},
        {"rate_bps": 1 << 63},
        {"rate_bps": 0.5},
        {"rate_bps": "1"},
        {"loss_rate": 2},
        {"loss_rate": float("nan")},
        {"delay_ns": 1 << 62},
        {"queue": {}},
        {"queue": {"discipline": "fifo"}},
        {"queue": 1},
    ]
    right = {"hop": 0, "direction": "forward", "rate_bps": 10**6}
    changes: list[object] = [
        *([{**right, **wrong}] for wrong in wrongs),
        *(None, 1, "x", [1], [{}], [{"hop": 0}], [[]]),
    ]
    sides: list[object] = [None, 4, [], "moon"]
    requests: list[object] = [[], 7, None, "down", {}, {"do": 3}, {"do": ["set"]}, {"do": "set"}]
    whole = {"do": "set", **sockets.request("sat", "link"), "settings": []}
    requests.extend({**whole, "settings": each, "changes": []} for each in settings)
    requests.extend([{**whole, "revision": "1", "changes": []}, {**whole, "revision": None}])
    requests.extend({**whole, "changes": each} for each in changes)
    requests.extend({"do": "enter", "host": each} for each in sides)
    lines.extend(json.dumps(request).encode() + b"\n" for request in requests)
    lines.extend([b"[" * 60_000 + b"\n", b"x" * 200_000, b'{"do": "status"', b"\n" * 100])
    before = status("sat")["changes"]
    for line in lines:
        with sockets.connect("sat") as connection:
            try:
                connection.sendall(line)
                connection.shutdown(socket.SHUT_WR)
                reply = connection.recv(1 << 20)
            except OSError:
                continue
            assert reply == b"" or "error" in json.loads(reply), line[:80]
    found = status("sat")
    assert (found["process"], found["changes"]) == (sat, before)


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
