"""Points of a validation in either engine, and the metrics of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from bentpipe.emulation.pool import EmulationJob, emulate_as_completed
from bentpipe.errors import RunsInterrupted
from bentpipe.plan.plan import Plan
from bentpipe.results.files import utc_now
from bentpipe.results.measures import aggregate_goodput_bps, finished_times_ns
from bentpipe.results.result import Result
from bentpipe.simulation.executor import run_jobs
from bentpipe.simulation.run import Job, Outcome
from bentpipe.units import NS_PER_S
from bentpipe.validation.points import (
    OUTAGE_AT_S,
    OUTAGE_S,
    OUTAGE_WINDOW_S,
    STEP_AT_S,
    STEP_WINDOW_S,
    Point,
)

# Recovery after an outage is complete once as much is delivered as in this time before it.
RECOVERY_BASE_S: Final = 2.0
_BITS_PER_BYTE: Final = 8


@dataclass(frozen=True, kw_only=True)
class RunMetrics:
    """The metrics of a run with a seed by name; None for an event that did not happen.

    - ``goodput``: ``goodput_bps`` of all flows together, from the first SYN to the end of the run,
      slow start included; ``queue_ms``, the mean queueing time of the forward direction;
      ``retransmitted_segments``.
    - ``completion``: ``completion_s``, the mean over the files, from the client's SYN to the last
      byte at the client.
    - ``two-way``: ``forward_bps`` and ``return_bps``, the goodput of each direction.
    - ``rate-step``: ``before_bps`` and ``after_bps``, the goodput on either side of the step.
    - ``outage``: ``after_bps``, the goodput in the 6 s after it; ``recovery_s``, from its end until
      as much is delivered as in the 2 s before it.
    """

    seed: int
    values: dict[str, float | None]


def metrics_of(result: Result, point: Point) -> RunMetrics:
    """Return the metrics of a run of a point, in either engine."""
    seed = int(result.manifest["seed"])
    return RunMetrics(seed=seed, values=_VALUES[point.kind.removeprefix("pep-")](result, point))


def simulate_point(point: Point, seconds: float, seeds: Sequence[int]) -> list[RunMetrics]:
    """Simulate a point with each of the seeds; after Ctrl-C return the finished runs."""
    plan = Plan.resolve(point.scenario(seconds))
    jobs = [Job(plan=plan, seed=seed) for seed in seeds]
    outcomes: Sequence[Outcome]
    try:
        outcomes = run_jobs(jobs)
    except RunsInterrupted as ended:
        outcomes = ended.outcomes
    return [metrics_of(outcome.result(started=utc_now()), point) for outcome in outcomes]


def _goodput(result: Result, point: Point) -> dict[str, float | None]:
    samples = result.tables["direction_samples"]
    waiting = samples.filter(samples["direction"] == 0)["queue_bytes"].to_numpy()
    mean_bytes = float(np.mean(waiting)) if len(waiting) else 0.0
    return {
        "goodput_bps": aggregate_goodput_bps(result, range(point.flows)),
        "queue_ms": mean_bytes * _BITS_PER_BYTE / (point.rate_mbps * 1e3),
        "retransmitted_segments": float(
            result.tables["flows"]["retransmitted_segments"].fill_null(0).sum()
        ),
    }


def _completion(result: Result, _: Point) -> dict[str, float | None]:
    workload = result.plan["flows"][0]["workload"]
    times_ns = finished_times_ns(result, "exchanges")
    # Without the unfinished files, which take longest, the mean would be too small.
    complete = len(times_ns) == workload["exchanges"]
    return {"completion_s": float(np.mean(times_ns)) / NS_PER_S if complete else None}


def _two_way(result: Result, point: Point) -> dict[str, float | None]:
    there, back = range(point.flows), range(point.flows, 2 * point.flows)
    return {
        "forward_bps": aggregate_goodput_bps(result, there),
        "return_bps": aggregate_goodput_bps(result, back),
    }


def _rate_step(result: Result, _: Point) -> dict[str, float | None]:
    delivered = DeliveredBytes(result)
    return {
        "before_bps": delivered.goodput_bps(0.0, STEP_AT_S),
        "after_bps": delivered.goodput_bps(STEP_AT_S, STEP_AT_S + STEP_WINDOW_S),
    }


def _outage(result: Result, _: Point) -> dict[str, float | None]:
    delivered = DeliveredBytes(result)
    end_s = OUTAGE_AT_S + OUTAGE_S
    wanted = delivered.bytes(OUTAGE_AT_S) - delivered.bytes(OUTAGE_AT_S - RECOVERY_BASE_S)
    return {
        "after_bps": delivered.goodput_bps(end_s, end_s + OUTAGE_WINDOW_S),
        "recovery_s": delivered.seconds_until(delivered.bytes(end_s) + wanted, after_s=end_s),
    }


_VALUES: Final[dict[str, Callable[[Any, Point], dict[str, float | None]]]] = {
    "goodput": _goodput,
    "completion": _completion,
    "two-way": _two_way,
    "rate-step": _rate_step,
    "outage": _outage,
}


class DeliveredBytes:
    """The bytes that all flows have delivered over time, from the samples of a run."""

    def __init__(self, result: Result) -> None:
        samples = result.tables["flow_samples"].drop_nulls("delivered_bytes").sort("time_ns")
        self._flows = [
            (
                np.append(0.0, own["time_ns"].to_numpy() / NS_PER_S),
                np.append(0.0, own["delivered_bytes"].to_numpy()).astype(np.float64),
            )
            for own in samples.partition_by("flow", maintain_order=True)
        ]

    def bytes(self, at_s: float) -> float:
        """Return the bytes delivered by a time, interpolated between samples."""
        return float(sum(np.interp(at_s, times_s, sizes) for times_s, sizes in self._flows))

    def goodput_bps(self, from_s: float, until_s: float) -> float:
        """Return the goodput in bit/s between two times."""
        return (self.bytes(until_s) - self.bytes(from_s)) * _BITS_PER_BYTE / (until_s - from_s)

    def seconds_until(self, wanted_bytes: float, *, after_s: float) -> float:
        """Return the time in s until so many bytes are delivered, or until the last sample."""
        times_s = np.unique(np.concatenate([[after_s], *(times for times, _ in self._flows)]))
        times_s = times_s[times_s >= after_s]
        reached = np.array([self.bytes(at_s) for at_s in times_s])
        behind = int(np.searchsorted(reached, wanted_bytes))
        if behind == 0 or behind == len(times_s):
            return float(times_s[min(behind, len(times_s) - 1)] - after_s)
        low, high = reached[behind - 1], reached[behind]
        share = (wanted_bytes - low) / (high - low)
        at_s = times_s[behind - 1] + share * (times_s[behind] - times_s[behind - 1])
        return float(at_s - after_s)


@dataclass(frozen=True, kw_only=True)
class PointRun:
    """One run of a point with a seed; without metrics if it was late in every attempt."""

    point: Point
    seed: int
    metrics: RunMetrics | None = None
    invalid: str | None = None


def run_points(
    points: Sequence[Point],
    *,
    seconds: float,
    seeds: Sequence[int],
    parallel: int,
    folder: Path,
    progress: Callable[[float], None],
) -> Iterator[PointRun]:
    """Run points in real time with all seeds, on ``parallel`` processors; yield finished runs.

    Closing the iterator ends the runs.

    Raises:
        MachineError: the machine lacks something.
        BentpipeError: a run failed.
    """
    order = _fast_with_slow([(point, seed) for point in points for seed in seeds])
    jobs = [
        EmulationJob(
            Plan.resolve(point.scenario(seconds)),
            seed,
            max_s=point.max_s(seconds),
            expected_s=point.expected_s(seconds),
            folder=f"point-{point.number:03}-seed-{seed}",
            load=point.load,
        )
        for point, seed in order
    ]
    runs = emulate_as_completed(jobs, parallel=parallel, folder=folder, progress=progress)
    with closing(runs):
        for run in runs:
            point, seed = order[run.index]
            metrics = metrics_of(run.result, point) if run.invalid is None else None
            yield PointRun(point=point, seed=seed, metrics=metrics, invalid=run.invalid)


def _fast_with_slow(runs: list[tuple[Point, int]]) -> list[tuple[Point, int]]:
    """Return the runs in an order in which fast ones run at the same time as slow ones."""
    by_rate = sorted(runs, key=lambda run: run[0].rate_mbps)
    pairs = zip(reversed(by_rate), by_rate, strict=True)
    return [run for pair in pairs for run in pair][: len(runs)]
