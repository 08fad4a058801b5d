"""Parallel efficiency of sweeps: threads and Dask workers, beside the simulator alone.

Usage: `python benches/sweeps.py [--runs 10000] [--size 20MB] [--workers 2] [--check]`. Two
processors often share one core, and memory bandwidth is shared by all: no program is then twice as
fast on two. So the same runs are executed by processes that only call the simulator, alone and at
once, and an efficiency is the share of that speed-up. Sweeps are measured from their begin until
their data set is written. Each is measured several times, in turns, and the fastest counts, since
other work on the machine makes it slower. The CPU time of all processes per run depends less on
other work. With `--check` the exit code is 1 if threads reach less than 90 %, or Dask workers less
than 80 %.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from bentpipe import Plan, Scenario
from bentpipe.sweeps import (
    Definition,
    Executor,
    LocalCluster,
    Points,
    SweepFolder,
    SweepRun,
    Threads,
)

LIMITS: Final = {"threads": 0.9, "Dask": 0.8}
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


def scenario_of(size: str) -> Scenario:
    """Return the scenario of one transfer over a GEO link."""
    bulk = {"kind": "bulk", "direction": "forward", "size": size}
    return Scenario.from_dict({"link": {"preset": "geo"}, "traffic": [bulk], "duration": "600 s"})


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


def sweep_s(executor: Executor, scenario: Scenario, runs: int) -> tuple[float, float]:
    """Return the time and the CPU time of a sweep by an executor that has started."""
    definition = Definition.of(scenario, Points([]), range(runs))
    with TemporaryDirectory() as folder, SweepFolder(Path(folder)) as out:
        began_s, began_cpu_s = time.perf_counter(), cpu_s()
        SweepRun.begin(out, definition).execute(executor, lambda _done, _total: None)
        took_s, took_cpu_s = time.perf_counter() - began_s, cpu_s() - began_cpu_s
        complete = len(out.journal)
    assert complete == runs
    return took_s, took_cpu_s


def cpu_s() -> float:
    """Return the CPU time of this process and of those below it (proc_pid_stat(5))."""
    ticks, found = 0, {os.getpid()}
    stats = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            stats[int(path.parent.name)] = path.read_text().rpartition(")")[2].split()
    while more := {pid for pid, stat in stats.items() if int(stat[1]) in found} - found:
        found |= more
    for pid in found & stats.keys():
        ticks += int(stats[pid][11]) + int(stats[pid][12])
    return ticks / os.sysconf("SC_CLK_TCK")


def main() -> int:
    """Measure, print, and compare with the limits."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--size", default="20MB")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    scenario, runs, workers = scenario_of(options.size), options.runs, options.workers
    plan = {**Plan.resolve(scenario).data, "sample_interval_ns": None}
    turns: dict[str, list[tuple[float, float]]] = {}
    with Threads(1) as thread, Threads(workers) as threads, LocalCluster(workers) as cluster:
        sweep_s(cluster, scenario, 20)
        for _ in range(options.turns):
            for name, seconds in (
                ("alone", (simulator_alone_s(plan, runs, 1), 0.0)),
                ("at once", (simulator_alone_s(plan, runs, workers), 0.0)),
                ("thread", sweep_s(thread, scenario, runs)),
                ("threads", sweep_s(threads, scenario, runs)),
                ("Dask", sweep_s(cluster, scenario, runs)),
            ):
                turns.setdefault(name, []).append(seconds)
    times = {name: min(seconds for seconds, _ in each) for name, each in turns.items()}
    cpu_us = {name: 1e6 * min(cpu for _, cpu in each) / runs for name, each in turns.items()}
    each_ms = 1e3 * times["alone"] / runs
    print(f"{options.turns} times {runs:,} runs of {each_ms:.2f} ms each, {workers} workers")
    possible = workers * times["alone"] / times["at once"]
    print(f"simulator alone, {workers} processes: {possible:.2f} times as fast as one")
    print(
        f"one thread: {runs / times['thread']:,.0f} runs/s, CPU time {cpu_us['thread']:.0f} us/run"
    )
    failed = 0
    for name, limit in LIMITS.items():
        faster = times["thread"] / times[name]
        efficiency = faster / possible
        failed += efficiency < limit
        print(
            f"{name}: {runs / times[name]:,.0f} runs/s, CPU time {cpu_us[name]:.0f} us/run, "
            f"{faster:.2f} times as fast as one thread: {efficiency:.0%} of that; limit {limit:.0%}"
        )
    return int(options.check and failed > 0)


if __name__ == "__main__":
    sys.exit(main())
