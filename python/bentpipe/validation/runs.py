"""Points of a validation in real time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from bentpipe.emulation.pool import EmulationJob, emulate_as_completed
from bentpipe.plan.plan import Plan
from bentpipe.validation.metrics import RunMetrics, metrics_of
from bentpipe.validation.points import Point


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
    by_rate = deque(sorted(runs, key=lambda run: run[0].rate_mbps))
    mixed = []
    while by_rate:
        mixed.append(by_rate.pop())
        if by_rate:
            mixed.append(by_rate.popleft())
    return mixed
