"""Soak test of a lab: many changes for a long time, with checks for leaks and of the clean-up.

Usage: `python benches/soak.py [--minutes 30]`, as a user who may run labs. Brings a lab up, carries
traffic (iperf3, or ping if iperf3 is not installed), changes the link every second, and samples
the lab daemon: resident memory, threads and file descriptors. Exit code 1 if memory grows, a thread
or a file descriptor leaks, a window of time has no verdict, or anything remains when the lab is
down.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from bentpipe.live import sockets as lab_sockets

NAME: Final = "soak"
BENTPIPE: Final = [sys.executable, "-m", "bentpipe"]
# One change per second, in a cycle.
CHANGES: Final = (
    ["link.forward.rate=8Mbit/s"],
    ["link.forward.delay=40ms", "link.return.delay=40ms"],
    ["link.return.bit_error_rate=1e-6"],
    ["link.forward.outage=100ms"],
    ["link.forward.rate=20Mbit/s", "link.forward.delay=20ms", "link.return.delay=20ms"],
    ["link.return.bit_error_rate=0"],
)
TRAFFIC_SECONDS: Final = 20
SAMPLE_SECONDS: Final = 5
PRINT_SECONDS: Final = 60
# The share of the run for one-time allocations, and the limits of memory growth after it.
WARM_UP_SHARE: Final = 0.2
GROWTH_SHARE: Final = 0.05
GROWTH_KIB: Final = 2_048
# The minimum that the programs send.
PACKETS_PER_SECOND: Final = 20
DOWN_SECONDS: Final = 5.0


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The lab daemon's resources at one time, and the report of the lab."""

    at_s: float
    resident_kib: int
    threads: int
    descriptors: int
    packets: int
    windows: int
    invalid_windows: int
    has_gap: bool
    invalid: str | None

    def line(self) -> str:
        """Return a row of the table."""
        verdict = "VALID" if self.invalid is None else f"INVALID: {self.invalid}"
        return (
            f"{self.at_s:8.0f}{self.resident_kib:12,}{self.threads:9}{self.descriptors:13}"
            f"{self.packets:13,}{self.windows:9}{self.invalid_windows:9}  {verdict}"
        )


HEADING: Final = (
    f"{'time, s':>8}{'memory, KiB':>12}{'threads':>9}{'descriptors':>13}{'packets':>13}"
    f"{'windows':>9}{'invalid':>9}"
)


def main() -> int:
    """Run the soak test; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--minutes", type=float, default=30.0)
    seconds = parser.parse_args().minutes * 60
    with tempfile.TemporaryDirectory() as runtime:
        os.environ["XDG_RUNTIME_DIR"] = runtime
        subprocess.run([*BENTPIPE, "lab", "up", NAME, "--link", "leo"], check=True)
        process = int(_ask("status")["process"])
        try:
            samples = list(_soak(process, seconds))
        finally:
            descendants = _descendants(process)
            subprocess.run([*BENTPIPE, "lab", "down", NAME], check=True)
        failures = [*_failures(samples), *_leftovers([process, *descendants], Path(runtime))]
    print("\n".join([f"FAILED: {failure}" for failure in failures] or ["passed"]))
    return 1 if failures else 0


def _ask(verb: str, **request: object) -> dict[str, Any]:
    with lab_sockets.connect(NAME) as connection:
        answer, _ = lab_sockets.ask(connection, {"do": verb, **request})
    return answer


def _soak(process: int, seconds: float) -> Iterator[Sample]:
    """Carry traffic and change the link every second."""
    print(HEADING)
    start = time.monotonic()
    traffic = _traffic()
    try:
        for second in range(int(seconds)):
            time.sleep(max(0.0, start + second - time.monotonic()))
            _ask("set", settings=CHANGES[second % len(CHANGES)])
            if second % SAMPLE_SECONDS == 0:
                sample = _sample(process, time.monotonic() - start)
                if second % PRINT_SECONDS == 0:
                    print(sample.line(), flush=True)
                yield sample
            if traffic.poll() is not None:
                traffic = _traffic()
    finally:
        traffic.wait()
    # No program is running, as at the start.
    sample = _sample(process, time.monotonic() - start)
    print(sample.line())
    yield sample


def _traffic() -> subprocess.Popen[bytes]:
    if shutil.which("iperf3") is not None:
        program = ["iperf3", "--client", "world", "--time", str(TRAFFIC_SECONDS)]
    else:
        program = ["ping", "-i", "0.01", "-w", str(TRAFFIC_SECONDS), "world"]
    command = [*BENTPIPE, "lab", "exec", NAME, "--", *program]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _sample(process: int, at_s: float) -> Sample:
    report = _ask("status")["report"]
    windows = report["windows"]
    status = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    fields = dict(line.split(":", 1) for line in status.splitlines())
    descriptors = list(Path(f"/proc/{process}/fd").iterdir())
    return Sample(
        at_s=at_s,
        resident_kib=int(fields["VmRSS"].split()[0]),
        threads=int(fields["Threads"]),
        descriptors=len(descriptors),
        packets=sum(one["delivered_packets"] for one in report["directions"].values()),
        windows=report["window_count"],
        invalid_windows=report["invalid_windows"],
        has_gap=any(one["end_ns"] != after["start_ns"] for one, after in pairwise(windows)),
        invalid=report["invalid"],
    )


def _failures(samples: Sequence[Sample]) -> Iterator[str]:
    """Describe what grew after the warm-up."""
    steady = samples[int(len(samples) * WARM_UP_SHARE) :]
    first, last = steady[0], steady[-1]
    limit = first.resident_kib + max(GROWTH_SHARE * first.resident_kib, GROWTH_KIB)
    peak = max(sample.resident_kib for sample in steady)
    if peak > limit:
        yield f"memory grew from {first.resident_kib:,} to {peak:,} KiB"
    # A request in progress takes one more file descriptor, so the minima are compared.
    half = len(steady) // 2
    for name in ("threads", "descriptors"):
        before, after = (
            min(getattr(sample, name) for sample in part) for part in (steady[:half], steady[half:])
        )
        if after > before:
            yield f"{name} grew from {before} to {after}"
    if last.packets - first.packets < PACKETS_PER_SECOND * (last.at_s - first.at_s):
        yield f"only {last.packets - first.packets:,} packets were delivered"
    if last.windows == 0 or any(sample.has_gap for sample in samples):
        yield "a period has no verdict"


def _leftovers(processes: Sequence[int], runtime: Path) -> Iterator[str]:
    """Describe what remains of a lab that is down."""
    until = time.monotonic() + DOWN_SECONDS
    while (remaining := [pid for pid in processes if Path(f"/proc/{pid}").exists()]) and (
        time.monotonic() < until
    ):
        time.sleep(0.05)
    if remaining:
        yield f"processes remain: {remaining}"
    sockets = [path.name for path in runtime.rglob("*") if path.is_socket()]
    if sockets:
        yield f"sockets remain: {sockets}"


def _descendants(process: int) -> list[int]:
    """Return the descendants of a process (proc_pid_task_children(5))."""
    descendants = []
    for path in Path(f"/proc/{process}/task").glob("*/children"):
        for child in path.read_text(encoding="utf-8").split():
            descendants += [int(child), *_descendants(int(child))]
    return descendants


if __name__ == "__main__":
    sys.exit(main())
