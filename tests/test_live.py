"""Programs behind a link, in real time; skipped where namespaces cannot be created."""

from __future__ import annotations

import json
import os
import random
import re
import shlex
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
from conftest import User, default_signals, in_process, measures, needs, needs_lab
from late import until_on_time

from bentpipe.cli.link_status import summary_lines
from bentpipe.errors import MachineError, UsageError
from bentpipe.live.capacity import refuse_beyond_capacity
from bentpipe.plan.presets import link_plan

BENTPIPE = [sys.executable, "-m", "bentpipe"]


def bentpipe(*arguments: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    if arguments[0] == "lab" and arguments[1] in {"list", "status", "set", "play", "down"}:
        # The process of the daemon does the work.
        return in_process(*arguments)
    return subprocess.run(
        [*BENTPIPE, *arguments], capture_output=True, text=True, timeout=timeout, check=False
    )


@dataclass(frozen=True)
class Measured:
    """What a program printed behind a link, and what `exec` said of the link."""

    stdout: str
    stderr: str

    @property
    def why_late(self) -> str | None:
        """Why the run is invalid; None if it is valid."""
        return next((line for line in self.stderr.splitlines() if "INVALID" in line), None)


# Ping, a download and a transfer, one after the other, as lines "ping ...", "curl ..." and JSON.
TRANSFERS = """
ping -c 10 -i 0.1 world | tail -n 1
curl -s -o /dev/null -w '%{size_download} %{time_total}\n' http://world/bytes/2000000
iperf3 -c world -t 1 --json
"""


@measures
@pytest.mark.smoke
@needs("ping")
@needs("curl")
@needs("iperf3")
def test_delays_and_rates_are_those_of_the_scenario(tmp_path: Path) -> None:
    """Given 16 and 2 Mbit/s and 20 ms each way, expect no program to see a faster link.

    A ping of 84 bytes takes 40.378 ms; the best of ten is not late in a valid run. 2 MB take at
    least 1 s and two round trips.
    """
    settings = ["--set", "link.forward.delay=20ms", "--set", "link.return.delay=20ms"]
    report = tmp_path / "report.json"

    def transfers() -> Measured:
        command = ["exec", "--link", "geo", *settings, "--statistics", str(report), "--"]
        ran = bentpipe(*command, "sh", "-c", TRANSFERS)
        assert ran.returncode == 0, ran.stderr
        measured = Measured(ran.stdout, ran.stderr)
        assert smallest_ms(measured) >= expected_ms - 0.001, measured
        return measured

    def smallest_ms(measured: Measured) -> float:
        # Single times are printed in whole milliseconds.
        found = re.match(r"rtt [a-z/]+ = ([0-9.]+)/", measured.stdout)
        assert found, measured
        return float(found[1])

    expected_ms = 2 * 20 + 84 * 8 / 16e6 * 1e3 + 84 * 8 / 2e6 * 1e3
    measured = until_on_time(transfers, lambda each: each.why_late)
    assert smallest_ms(measured) < expected_ms + 1
    _, downloaded, *sent = measured.stdout.split("\n")
    size, seconds = (float(word) for word in downloaded.split())
    assert size == 2_000_000
    assert seconds >= 2e6 * 8 / 16e6 + 2 * 0.040
    received = json.loads("".join(sent))["end"]["sum_received"]["bits_per_second"]
    assert 0 < received < 2e6, "the rate of the return"
    reported = json.loads(report.read_text())
    assert reported["directions"]["forward"]["delivered_bytes"] > 2_000_000
    assert reported["lateness"]["packets"] == sum(
        direction["delivered_packets"] for direction in reported["directions"].values()
    )
    assert reported["kernel_dropped_packets"] == reported["store_full_packets"] == 0


# A TCP handshake takes one round trip.
ROUND_TRIP = """
import socket, time
def handshake():
    start = time.monotonic()
    socket.create_connection(("world", 80)).close()
    return time.monotonic() - start
print(min(handshake() for _ in range(5)))
"""


@measures
def test_links_in_series_add_up_and_labs_do_not_disturb_each_other() -> None:
    """Given two links of 13 ms each way in a lab, one of 79 ms in another, and a lab in that.

    Expect 52 and 158 ms, and 26 ms in a lab of 13 ms within the second one.
    """
    look = [sys.executable, "-c", ROUND_TRIP]
    inner = [*BENTPIPE, "exec", "--link", "leo", "--", *look]
    both = ["sh", "-c", f"{shlex.join(look)}; exec {shlex.join(inner)}"]

    def measured() -> tuple[list[float], str | None]:
        with ThreadPoolExecutor(2) as threads:
            series = threads.submit(bentpipe, *("exec", *2 * ("--link", "leo"), "--", *look))
            nested = threads.submit(bentpipe, *("exec", "--link", "meo", "--", *both))
        runs = [Measured(ran.result().stdout, ran.result().stderr) for ran in (series, nested)]
        times_s = [float(word) for run in runs for word in run.stdout.split()]
        for time_s, least_s in zip(times_s, (0.052, 0.158, 0.026), strict=True):
            assert time_s >= least_s
        return times_s, runs[0].why_late or runs[1].why_late

    (series_s, outer_s, inner_s), _ = until_on_time(measured, lambda found: found[1])
    assert series_s < 0.062
    assert outer_s < 0.168
    assert inner_s < 0.036


# Says where it is, and then which signals it gets.
TELLING = """
pwd; echo $BENTPIPE_HOST; cat /proc/net/dev | grep -c link; echo $$
trap 'echo HUP' HUP; trap 'echo TERM' TERM; trap 'echo INT; exit 5' INT
echo ready; while :; do sleep 0.05; done
"""


def told_by_a_program_that_hears_signals(words: Sequence[str], folder: Path) -> list[str]:
    """Send bentpipe signals that its program must hear; return the place that the program tells."""
    with subprocess.Popen(
        [*BENTPIPE, *words, "--", "sh", "-c", TELLING],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=folder,
        preexec_fn=default_signals,  # noqa: PLW1509 - no threads
    ) as running:
        assert running.stdout is not None
        lines = [running.stdout.readline() for _ in range(5)]
        for sent in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
            running.send_signal(sent)
            lines.append(running.stdout.readline())
    assert running.returncode == 5
    assert "".join(lines[4:]).split() == ["ready", "HUP", "TERM", "INT"]
    return [line.strip() for line in lines[:4]]


@needs_lab
def test_programs_have_their_side_working_directory_and_signals(tmp_path: Path) -> None:
    for side in ("world", "island"):
        words = ["exec", "--link", "leo", "--host", side]
        told = told_by_a_program_that_hears_signals(words, tmp_path)
        assert told == [str(tmp_path), side, "1", "2"]


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
    kills: int, command: Callable[[int], Sequence[str]], environment: dict[str, str]
) -> None:
    """Given labs killed at random times, four at a time, expect the machine unchanged."""
    at_once, seed = 4, 1
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
@pytest.mark.parametrize("kills", [8, pytest.param(100, marks=pytest.mark.thorough)])
def test_killed_labs_of_an_ordinary_user_leave_nothing(user: User, kills: int) -> None:
    command = [*user.command, "exec", "--link", "leo"]
    assert_killed_labs_leave_nothing(kills, lambda _: command, user.environment)


@needs_lab
@needs("slirp4netns")
@pytest.mark.thorough
def test_killed_labs_with_captures_and_internet_leave_nothing(tmp_path: Path) -> None:
    def command(number: int) -> list[str]:
        # Four at a time, each with a file of its own.
        capture = tmp_path / f"{number % 8}.pcapng"
        return [*BENTPIPE, "exec", "--link", "leo", "--internet", "--capture", str(capture)]

    assert_killed_labs_leave_nothing(100, command, dict(os.environ))


# -- Without a lab -----------------------------------------------------------------------------


def test_a_link_is_a_preset_or_a_file(tmp_path: Path) -> None:
    geo = link_plan("geo", ["link.forward.rate=4Mbit/s"])
    assert geo["directions"][0]["rate_bps"] == {"kind": "constant", "value": 4_000_000}
    file = tmp_path / "mine.yaml"
    file.write_text("link: {preset: geo, forward: {rate: 4 Mbit/s}}\n")
    assert link_plan(str(file))["directions"] == geo["directions"]
    with pytest.raises(UsageError, match=r'no such file; read "gio"; .* did you mean "geo"'):
        link_plan("gio")


@pytest.mark.system
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
