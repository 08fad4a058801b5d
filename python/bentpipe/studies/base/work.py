"""The runs of a study: jobs by cell and searches, with one progress bar and one Ctrl-C."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar

from bentpipe.emulation.pool import EmulatedRun, EmulationJob, emulate_many
from bentpipe.errors import RunsInterrupted
from bentpipe.scenario.schema import Scenario
from bentpipe.simulation.many import Job, Outcome
from bentpipe.simulation.no_drop import NoDropSearch
from bentpipe.simulation.search import max_trials, search_rates
from bentpipe.sweeps.executor import Executor, Threads, run_all

Cell = TypeVar("Cell", bound=Hashable)
_MINUTES_FROM_S: Final = 120


class Work:
    """Runs jobs and searches, one batch after the other.

    ``executor`` runs them, by default threads, one a core. ``total`` is the number of runs that
    ``progress(done, total)`` counts up to. After Ctrl-C ``interrupted`` is true and no further
    batch runs.
    """

    def __init__(
        self,
        *,
        executor: Executor | None,
        progress: Callable[[int, int], None] | None,
        total: int,
    ) -> None:
        self.interrupted = False
        self._executor = executor or Threads()
        self._progress = progress
        self._total = total
        self._done = 0

    def run(self, jobs: Mapping[Cell, Sequence[Job]]) -> dict[Cell, tuple[Outcome, ...]]:
        """Run the jobs of cells; return the complete outcomes of each, in the order of its jobs."""
        cells = [cell for cell, of_cell in jobs.items() for _ in of_cell]
        found: dict[Cell, list[Outcome]] = {cell: [] for cell in jobs}
        if not self.interrupted:
            every = [job for of_cell in jobs.values() for job in of_cell]
            complete: Sequence[Outcome]
            try:
                complete = run_all(self._executor, every, progress=self._count)
            except RunsInterrupted as ended:
                complete = ended.outcomes
                self.interrupted = True
            for outcome in complete:
                found[cells[outcome.index]].append(outcome)
            self._done += len(every)
        return {cell: tuple(outcomes) for cell, outcomes in found.items()}

    def search(
        self, scenario: Scenario, sizes: Sequence[int], *, resolution: float, seed: int
    ) -> NoDropSearch | None:
        """Search the largest rate without a loss for payloads in bytes; None after Ctrl-C."""
        if self.interrupted:
            return None
        found = search_rates(
            scenario,
            sizes,
            partial(run_all, self._executor),
            resolution=resolution,
            seed=seed,
            progress=self._count,
        )
        self._done += max_trials(scenario, sizes, resolution)
        self.interrupted = found.interrupted
        return found

    def _count(self, done: int, _total: int) -> None:
        if self._progress is not None:
            self._progress(self._done + done, self._total)


class RealWork:
    """Runs jobs in real time, up to ``parallel`` at a time, one batch after the other.

    ``total`` is the expected number of runs; ``progress`` takes the fraction done, 0 to 1, and
    ``note`` the expected time of all runs, before the first one.
    """

    def __init__(
        self,
        *,
        parallel: int,
        progress: Callable[[float], None],
        note: Callable[[str], None],
        total: int,
    ) -> None:
        self.interrupted = False
        self._parallel = parallel
        self._progress = progress
        self._note = note
        self._total = total
        self._done = 0

    def run(self, jobs: Mapping[Cell, EmulationJob]) -> dict[Cell, EmulatedRun | None]:
        """Run the jobs of cells; a cell that Ctrl-C prevented has None."""
        if self.interrupted or not jobs:
            return dict.fromkeys(jobs)
        if not self._done:
            time_s = expected_time_s(list(jobs.values()), self._total, self._parallel)
            self._note(f"{self._total} runs in real time: about {duration_text(time_s)}")

        def count(share: float) -> None:
            self._progress(min(1.0, (self._done + share * len(jobs)) / self._total))

        runs = emulate_many(list(jobs.values()), parallel=self._parallel, progress=count)
        self._done += len(jobs)
        self.interrupted = None in runs
        return dict(zip(jobs, runs, strict=True))


def expected_time_s(jobs: Sequence[EmulationJob], total: int, parallel: int) -> float:
    """Return how long ``total`` runs like ``jobs`` take in real time, in s.

    Their loads of a processor add up to ``parallel`` at most; a run may exceed it alone.
    """
    each_s = [job.expected_s * min(1.0, job.load / parallel) for job in jobs]
    longest_s = max(job.expected_s for job in jobs)
    return max(longest_s, total * sum(each_s) / len(jobs))


def duration_text(time_s: float) -> str:
    """Return a time in s, or in minutes from two minutes on."""
    return f"{time_s:.0f} s" if time_s < _MINUTES_FROM_S else f"{time_s / 60:.0f} min"
