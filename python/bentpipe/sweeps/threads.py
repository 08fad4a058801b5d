"""The default executor: threads of this process."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from functools import partial
from typing import TypeVar

from bentpipe.simulation.many import Job, Outcome, run_as_completed
from bentpipe.sweeps.executor import Executor, Finished, attempt_all

T = TypeVar("T")


class Threads(Executor):
    """Runs jobs on ``threads`` threads (None: one a core).

    Concurrent runs share ``memory_limit`` bytes (None: half of the available memory) equally.
    """

    def __init__(self, threads: int | None = None, *, memory_limit: int | None = None) -> None:
        self._threads = threads
        self._memory_limit = memory_limit

    def run(
        self, jobs: Iterable[tuple[int, Job]], reduce: Callable[[Outcome], T]
    ) -> Generator[Finished[T]]:
        """Yield jobs as they finish; see `bentpipe.sweeps.executor.Executor`."""
        runs = run_as_completed(
            jobs,
            partial(attempt_all, reduce=reduce),
            threads=self._threads,
            memory_limit=self._memory_limit,
        )
        with closing(runs):
            yield from runs
