"""Programs behind a link, in real time; skipped where namespaces cannot be created."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import User, default_signals, measures, needs, needs_lab
from late import until_on_time

from bentpipe.cli.link_status import summary_lines
from bentpipe.errors import MachineError, UsageError
from bentpipe.lab.capacity import refuse_beyond_capacity
from bentpipe.plan.presets import link_plan

BENTPIPE = [sys.executable, "-m", "bentpipe"]


def bentpipe(*arguments: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*BENTPIPE, *arguments], capture_output=True, text=True, timeout=timeout, check=False
    )


@dataclass(frozen=True)
class Measured:
    value: float
    # What `exec` printed on stderr, with its verdict.
    stderr: str

    @property
    def why_late(self) -> str | None:
        """Why the run is invalid; None if it is valid."""
        return next((line for line in self.stderr.splitlines() if "INVALID" in line), None)


def assert_between(low: float, high: float, measure: Callable[[], Measured]) -> None:
    """No run is early, and the first valid one is not late."""

    def try_once() -> Measured:
        measured = measure()
        assert measured.value >= low, measured
        return measured

    assert until_on_time(try_once, lambda each: each.why_late).value < high


@measures
@needs("ping")
def test_a_round_trip_takes_as_long_as_the_scenario_says() -> None:
    """Given GEO with 271 ms each way, a ping of 84 bytes at 16 and at 2 Mbit/s takes 542.4 ms."""
    expected_ms = 2 * 271 + 84 * 8 / 16e6 * 1e3 + 84 * 8 / 2e6 * 1e3

    def smallest() -> Measured:
        # The minimum: ping itself may wait for a processor, which is not a delay of the link.
        ran = bentpipe("exec", "--link", "geo", "--", "ping", "-c", "20", "-i", "0.2", "world")
        # Single times are printed in whole milliseconds.
        found = re.search(r"20 received.*\nrtt [a-z/]+ = ([0-9.]+)/", ran.stdout)
        assert found, ran.stdout + ran.stderr
        return Measured(float(found.group(1)), ran.stderr)

    assert_between(expected_ms - 0.001, expected_ms + 1, smallest)


@measures
@needs("curl")
def test_a_download_is_no_faster_than_the_link(tmp_path: Path) -> None:
    """Given 2 MB over 16 Mbit/s with 20 ms each way, expect at least 1 s and two round trips."""
    settings = ["--set", "link.forward.delay=20ms", "--set", "link.return.delay=20ms"]
    report = tmp_path / "report.json"
    command = ["curl", "-s", "-o", "/dev/null", "-w", "%{size_download} %{time_total}"]
    ran = bentpipe(
        *("exec", "--link", "geo", *settings, "--report", str(report), "--"),
        *(*command, "http://world/bytes/2000000"),
    )
    size, seconds = (float(word) for word in ran.stdout.split())
    assert size == 2_000_000
    assert seconds >= 2e6 * 8 / 16e6 + 2 * 0.040
    measured = json.loads(report.read_text())
    assert measured["directions"]["forward"]["delivered_bytes"] > 2_000_000
    assert measured["lateness"]["packets"] == sum(
        direction["delivered_packets"] for direction in measured["directions"].values()
    )
    assert measured["kernel_dropped_packets"] == measured["store_full_packets"] == 0


@measures
@needs("iperf3")
def test_iperf3_finds_its_server() -> None:
    ran = bentpipe("exec", "--link", "leo", "--", "iperf3", "-c", "world", "-t", "2", "--json")
    assert ran.returncode == 0, ran.stderr
    received = json.loads(ran.stdout)["end"]["sum_received"]["bits_per_second"]
    assert 0 < received < 20e6, "the return carries 20 Mbit/s"


@measures
def test_exec_exits_with_the_status_of_the_program() -> None:
    assert bentpipe("exec", "--link", "leo", "--", "sh", "-c", "exit 7").returncode == 7
    assert bentpipe("exec", "--link", "leo", "--", "sh", "-c", "kill -9 $$").returncode == 128 + 9


@measures
def test_programs_have_their_side_and_working_directory(tmp_path: Path) -> None:
    script = "pwd; echo $BENTPIPE_HOST; cat /proc/net/dev | grep -c link; echo $$"
    for side in ("world", "island"):
        ran = subprocess.run(
            [*BENTPIPE, "exec", "--link", "leo", "--host", side, "--", "sh", "-c", script],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
        )
        assert ran.stdout.split() == [str(tmp_path), side, "1", "2"]


@measures
@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_reach_the_program(sent: signal.Signals) -> None:
    wait = f"trap 'echo heard; exit 5' {sent.name[3:]}; echo ready; while :; do sleep 0.05; done"
    with subprocess.Popen(
        [*BENTPIPE, "exec", "--link", "leo", "--", "sh", "-c", wait],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        preexec_fn=default_signals,  # noqa: PLW1509 - no threads
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "ready\n"
        running.send_signal(sent)
        assert running.stdout.read() == "heard\n"
    assert running.returncode == 5


@measures
@needs("ping")
def test_links_in_series_add_up_and_labs_nest() -> None:
    """Given 13 ms each way, expect 26 ms; two in series, 52 ms; a lab in a lab is separate."""
    ping = ["ping", "-c", "3", "-i", "0.1", "world"]

    def min_ms(*arguments: str) -> Measured:
        ran = bentpipe("exec", *arguments, "--", *ping)
        times_ms = [float(text) for text in re.findall(r"time=([0-9.]+) ms", ran.stdout)]
        return Measured(min(times_ms), ran.stderr)

    assert_between(26, 30, lambda: min_ms("--link", "leo"))
    assert_between(52, 57, lambda: min_ms("--link", "leo", "--link", "leo"))
    nested = ["--link", "meo", "--", *BENTPIPE, "exec", "--link", "leo"]
    assert_between(26, 31, lambda: min_ms(*nested))


# -- Nothing is left ---------------------------------------------------------------------------


def machine() -> dict[str, object]:
    """What a lab must not change. The kernel removes a namespace that no process uses."""
    settings: dict[str, str] = {}
    for path in Path("/proc/sys/net").rglob("*"):
        # Counters of the kernel and random values.
        if path.is_file() and not re.search(r"nf_conntrack_count|random|stable_secret", str(path)):
            try:
                settings[str(path)] = path.read_text()
            except (OSError, UnicodeDecodeError):
                continue
    interfaces = sorted(line.split(":")[0] for line in read("/proc/net/dev").splitlines()[2:])
    routes = sorted(re.findall(r"^\S+\s+\S+\s+\S+", read("/proc/net/route"), re.MULTILINE))
    rules = None
    if shutil.which("ip") is not None:
        rules = subprocess.run(["ip", "rule"], capture_output=True, text=True, check=False).stdout
    return {
        "interfaces": interfaces,
        "routes": routes,
        "rules": rules,
        "settings": settings,
        # Those of namespaces belong to other tests.
        "mounts": [
            line for line in read("/proc/self/mounts").splitlines() if "/run/netns" not in line
        ],
    }


def read(path: str) -> str:
    return Path(path).read_text()


def processes(mark: str) -> list[str]:
    """Return the other processes with a mark in their environment or command line."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        if folder.name == str(os.getpid()):
            continue
        try:
            text = (folder / "environ").read_bytes() + (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if mark.encode() in text:
            found.append(folder.name)
    return found


def kill_at(seconds: float, command: Sequence[str], environment: dict[str, str]) -> None:
    """Start a lab with programs that have descendants, and kill it after a delay."""
    program = ["sh", "-c", "sleep 60 & sleep 60 & curl -s http://world/bytes/100000000 | cat"]
    with subprocess.Popen(
        [*command, "--world", "sleep 60", "--world", "sleep 60", "--", *program],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
    ) as running:
        time.sleep(seconds)
        running.kill()


def assert_killed_labs_leave_nothing(
    command: Callable[[int], Sequence[str]], environment: dict[str, str]
) -> None:
    """Given 100 labs killed at random times, four at a time, expect the machine unchanged."""
    kills, at_once, seed = 100, 4, 1
    mark = f"bentpipe-kills-{os.getpid()}"
    before = machine()
    draw = random.Random(seed)
    moments = [draw.uniform(0.05, 1.2) for _ in range(kills)]

    def kill(number: int) -> None:
        kill_at(moments[number], command(number), environment | {"MARK": mark})

    with ThreadPoolExecutor(at_once) as threads:
        list(threads.map(kill, range(kills)))
    deadline = time.monotonic() + 60
    while (left := processes(mark)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left == [], f"seed {seed}"
    after = machine()
    for name, value in before.items():
        assert after[name] == value, f"{name}, seed {seed}"


@needs_lab
@needs("setpriv")
def test_killed_labs_of_an_ordinary_user_leave_nothing(user: User) -> None:
    command = [*user.command, "exec", "--link", "leo"]
    assert_killed_labs_leave_nothing(lambda _: command, user.environment)


@needs_lab
@needs("slirp4netns")
def test_killed_labs_with_captures_and_internet_leave_nothing(tmp_path: Path) -> None:
    def command(number: int) -> list[str]:
        # Four at a time, each with a file of its own.
        capture = tmp_path / f"{number % 8}.pcapng"
        return [*BENTPIPE, "exec", "--link", "leo", "--internet", "--capture", str(capture)]

    assert_killed_labs_leave_nothing(command, dict(os.environ))


@measures
def test_two_labs_do_not_disturb_each_other() -> None:
    """Given two labs with 13 and 79 ms each way at a time, expect 26 and 158 ms."""
    look = [sys.executable, "-c", WORLD_ROUND_TRIP]

    def smallest(link: str) -> Measured:
        ran = bentpipe("exec", "--link", link, "--", *look)
        return Measured(float(ran.stdout), ran.stderr)

    def both() -> list[Measured]:
        with ThreadPoolExecutor(2) as threads:
            leo, meo = threads.map(smallest, ["leo", "meo"])
        assert leo.value >= 0.026
        assert meo.value >= 0.158
        return [leo, meo]

    leo, meo = until_on_time(both, lambda found: found[0].why_late or found[1].why_late)
    assert leo.value < 0.036
    assert meo.value < 0.168


# A TCP handshake takes one round trip.
WORLD_ROUND_TRIP = """
import socket, time
def handshake():
    start = time.monotonic()
    socket.create_connection(("world", 80)).close()
    return time.monotonic() - start
print(min(handshake() for _ in range(5)))
"""


# -- Without a lab -----------------------------------------------------------------------------


def test_a_link_is_a_preset_or_a_file(tmp_path: Path) -> None:
    geo = link_plan("geo", ["link.forward.rate=4Mbit/s"])
    assert geo["directions"][0]["rate_bps"] == {"kind": "constant", "value": 4_000_000}
    file = tmp_path / "mine.yaml"
    file.write_text("link: {preset: geo, forward: {rate: 4 Mbit/s}}\n")
    assert link_plan(str(file))["directions"] == geo["directions"]
    with pytest.raises(UsageError, match=r'no such file; read "gio"; .* did you mean "geo"'):
        link_plan("gio")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--link", "gio"], "gio"),
        (["--link", "leo", "--host", "moon"], "allowed: world, island"),
        (["--link", "leo", "--set", "link.forward.rate=-1"], "link.forward.rate"),
    ],
)
def test_bad_input_is_one_message_and_exit_code_125(arguments: Sequence[str], message: str) -> None:
    ran = bentpipe("exec", *arguments, "--", "true")
    assert ran.returncode == 125, ran.stderr
    assert message in ran.stderr
    assert len(ran.stderr.splitlines()) == 1


def test_a_rate_above_the_capacity_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    plans = [link_plan("geo")]
    refuse_beyond_capacity(plans)  # nothing was measured
    kept = tmp_path / "bentpipe" / "capacity.json"
    kept.parent.mkdir()
    kept.write_text('{"tcp_bits_per_second": 16e6}')
    refuse_beyond_capacity(plans)
    kept.write_text('{"tcp_bits_per_second": 15e6}')
    with pytest.raises(MachineError, match=r"16 Mbit/s is above .* 15 Mbit/s"):
        refuse_beyond_capacity(plans)


def test_the_summary_has_losses_and_the_verdict() -> None:
    direction = {"delivered_packets": 7, "delivered_bytes": 9_000, "dropped_packets": {}}
    lost = direction | {"dropped_packets": {"queue_full": 3}}
    lateness = {"p50_ns": 9_000, "p99_ns": 80_000, "max_ns": 11_000_000}
    measured = {
        "at_ns": 2_500_000_000,
        "directions": {"forward": lost, "return": direction},
        "lateness": lateness,
        "invalid": "lateness maximum is too much",
    }
    forward, back, late, verdict = summary_lines(measured)
    assert forward == "forward: 7 packets, 9 kB delivered; lost: 3 queue_full"
    assert back.endswith("none lost")
    assert late.startswith("2.5 s; packets were late by 9 µs (median), 80 µs (p99), 11,000 µs")
    assert verdict.startswith("INVALID: lateness maximum")
