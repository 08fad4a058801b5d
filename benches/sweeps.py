"""Parallel efficiency of sweeps: threads and Dask workers, beside the simulator alone.

Usage: `python benches/sweeps.py [--runs 10000] [--size 20MB] [--workers 2] [--check]`. Two
processors often share one core, and memory bandwidth is shared by all: no program is then twice as
fast on two. So the same runs are executed by processes that only call the simulator, alone and at
once, and an efficiency is the share of that speed-up. The runs are divided into turns, in each of
which all are measured. The fastest turn counts, since other work on the machine makes a turn
slower. With `--check` the exit code is 1 if threads reach less than 90 %, or Dask workers less than
80 %.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Final

from bentpipe import Job, from_dict, resolve
from bentpipe.sweeps import Executor, LocalCluster, Threads
from bentpipe.sweeps.records import pack

LIMITS: Final = {"threads": 0.9, "Dask": 0.8}
TURNS: Final = 10
SIMULATOR: Final = """
import sys, time
from bentpipe import _core
plan, runs = sys.stdin.readline(), int(sys.argv[1])
_core.run(plan, 0)
print(flush=True)
sys.stdin.readline()
began_s = time.perf_counter()
for seed in range(runs):
    _core.run(plan, seed)
print(time.perf_counter() - began_s)
"""


def plan_of(size: str) -> dict[str, object]:
    """Return the plan of one transfer over a GEO link."""
    bulk = {"kind": "bulk", "direction": "forward", "size": size}
    scenario = {"link": {"preset": "geo"}, "traffic": [bulk], "duration": "600 s"}
    return {**resolve(from_dict(scenario)), "sample_interval_ns": None}


def simulator_alone_s(plan: dict[str, object], runs: int, processes: int) -> float:
    """Return the time in which each of some processes does ``runs`` runs, all at once."""
    started = [
        subprocess.Popen(
            [sys.executable, "-c", SIMULATOR, str(runs)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(processes)
    ]
    for each in started:
        assert each.stdin is not None
        assert each.stdout is not None
        each.stdin.write(json.dumps(plan) + "\n")
        each.stdin.flush()
        each.stdout.readline()
    return max(float(each.communicate("\n")[0]) for each in started)


def sweep_s(executor: Executor, plan: dict[str, object], runs: int) -> float:
    """Return the time of a sweep by an executor that has started."""

    def jobs() -> Iterator[tuple[int, Job]]:
        for seed in range(runs):
            yield seed, Job(plan=plan, seed=seed)

    began_s = time.perf_counter()
    finished = list(executor.run(jobs(), pack))
    assert len(finished) == runs
    assert all(each.error is None for each in finished)
    return time.perf_counter() - began_s


def main() -> int:
    """Measure, print, and compare with the limits."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--size", default="20MB")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    plan, runs, workers = plan_of(options.size), options.runs // TURNS, options.workers
    turns: dict[str, list[float]] = {}
    with Threads(1) as thread, Threads(workers) as threads, LocalCluster(workers) as cluster:
        sweep_s(cluster, plan, 20)
        for _ in range(TURNS):
            for name, seconds in (
                ("alone", simulator_alone_s(plan, runs, 1)),
                ("at once", simulator_alone_s(plan, runs, workers)),
                ("thread", sweep_s(thread, plan, runs)),
                ("threads", sweep_s(threads, plan, runs)),
                ("Dask", sweep_s(cluster, plan, runs)),
            ):
                turns.setdefault(name, []).append(seconds)
    times = {name: min(seconds) for name, seconds in turns.items()}
    each_ms = 1e3 * times["alone"] / runs
    print(f"{TURNS} times {runs:,} runs of {each_ms:.2f} ms each, {workers} workers")
    possible = workers * times["alone"] / times["at once"]
    print(f"simulator alone, {workers} processes: {possible:.2f} times as fast as one")
    failed = 0
    for name, limit in LIMITS.items():
        faster = times["thread"] / times[name]
        efficiency = faster / possible
        failed += efficiency < limit
        print(
            f"{name}: {runs / times[name]:,.0f} runs/s, {faster:.2f} times as fast as one thread: "
            f"{efficiency:.0%} of that ({faster / workers:.0%} of {workers}); limit {limit:.0%}"
        )
    return int(options.check and failed > 0)


if __name__ == "__main__":
    sys.exit(main())
