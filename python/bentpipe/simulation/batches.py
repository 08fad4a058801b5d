"""Runs that one thread does one after the other: without repeating their plan, and how many.

A batch of short runs costs little more than one of them, wherever it is executed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bentpipe.simulation.many import Job


@dataclass(frozen=True, slots=True)
class SeededRuns:
    """Runs that differ in their seeds only: the job of the first one, and the number of each."""

    job: Job
    indices: Sequence[int]
    seeds: Sequence[int]

    def jobs(self) -> Iterator[tuple[int, Job]]:
        """Yield the job of each run with its number."""
        for index, seed in zip(self.indices, self.seeds, strict=True):
            yield index, replace(self.job, seed=seed)


def by_plan(jobs: Iterable[tuple[int, Job]]) -> tuple[SeededRuns, ...]:
    """Return jobs, of which those of one plan follow each other, without repeating the plan."""
    found = []
    for _, group in groupby(jobs, key=lambda each: (id(each[1].plan), each[1].name)):
        indices, same = zip(*group, strict=True)
        found.append(SeededRuns(same[0], indices, [job.seed for job in same]))
    return tuple(found)


@dataclass
class BatchSize:
    """The number of runs of the next batch: as many as take ``seconds``, but at most ``largest``.

    It starts with one run, and grows slowly since the next runs may be longer.
    """

    seconds: float
    largest: int
    runs: int = 1

    def adapt(self, runs: int, seconds: float) -> None:
        """Choose it by how long a batch of ``runs`` took."""
        fits = int(self.seconds * max(runs, 1) / max(seconds, 1e-6))
        self.runs = max(1, min(fits, 2 * self.runs, self.largest))
