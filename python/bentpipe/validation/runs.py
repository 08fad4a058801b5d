"""Points of a validation in real time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from bentpipe.emulation.pool import RealJob, RealRun, emulate_each
from bentpipe.validation.figures import Figures, figures_of
from bentpipe.validation.points import Point


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run of a point: a seed, and what came of it; no figures if it was late each time."""

    point: Point
    seed: int
    figures: Figures | None = None
    invalid: str | None = None
    attempts: int = 1


def in_real_time(
    points: Sequence[Point],
    *,
    seconds: float,
    seeds: Sequence[int],
    parallel: int,
    folder: Path,
    progress: Callable[[float], None],
) -> Iterator[Run]:
    """Run all points with all seeds, on ``parallel`` processors; yield each run that is over.

    Runs under way are ended when the iterator is closed.

    Raises:
        MachineError: the machine lacks something.
        BentpipeError: a run failed.
    """
    whole = _fast_with_slow([(point, seed) for point in points for seed in seeds])
    jobs = [
        RealJob(
            point.scenario(seconds),
            seed,
            longest_s=point.longest_s(seconds),
            usual_s=point.usual_s(seconds),
            folder=f"point-{point.number:03}-seed-{seed}",
            load=point.load,
        )
        for point, seed in whole
    ]
    runs = emulate_each(jobs, parallel=parallel, folder=folder, progress=progress)
    with closing(runs):
        for real in runs:
            yield _run(*whole[real.index], real)


def _run(point: Point, seed: int, real: RealRun) -> Run:
    figures = figures_of(real.result, point) if real.invalid is None else None
    return Run(
        point=point, seed=seed, figures=figures, invalid=real.invalid, attempts=real.attempts
    )


def _fast_with_slow(runs: list[tuple[Point, int]]) -> list[tuple[Point, int]]:
    """Return runs such that the fastest go beside the slowest."""
    by_rate = deque(sorted(runs, key=lambda run: run[0].rate_mbps))
    mixed = []
    while by_rate:
        mixed.append(by_rate.pop())
        if by_rate:
            mixed.append(by_rate.popleft())
    return mixed
