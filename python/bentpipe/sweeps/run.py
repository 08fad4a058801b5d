"""A sweep from begin to end: its runs by an executor, the journal, and the data set."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from typing import Final

from bentpipe.errors import MachineError, UsageError
from bentpipe.results.execution import utc_now
from bentpipe.results.result import Result
from bentpipe.scenario.schema import Scenario
from bentpipe.simulation.many import Job, Outcome
from bentpipe.sweeps.cells import Cell, cells_of
from bentpipe.sweeps.executor import Executor
from bentpipe.sweeps.folder import Definition, SweepFolder, run_name
from bentpipe.sweeps.journal import RESULT, Run
from bentpipe.sweeps.precision import UntilCi, check_metric
from bentpipe.sweeps.records import flow_schema, pack, rows_of, unpack
from bentpipe.sweeps.storage import Storage

RUNS_MAX: Final = 1_000_000

# The record of a run, and its result if it is kept in the folder.
Kept = bytes | tuple[bytes, Result]


def reduce_to_result(outcome: Outcome, *, started: str) -> Kept:
    """Return the record of a run, and its result."""
    return pack(outcome), outcome.result(started=started)


def reduce_to_storage(outcome: Outcome, *, started: str, url: str) -> Kept:
    """Write the result of a run to shared storage, from the worker that executed it."""
    Storage(url).save(outcome.result(started=started), outcome.job.name)
    return pack(outcome)


@dataclass
class Running:
    """A sweep under way: its cells, and the runs that are wanted so far, by point and seed."""

    folder: SweepFolder
    definition: Definition
    cells: Sequence[Cell]
    seeds: list[list[int]] = field(init=False)
    interrupted: bool = False

    def __post_init__(self) -> None:
        self.seeds = [list(self.definition.seeds) for _ in self.cells]
        self._check_count()
        # Cells whose interval is narrow enough.
        self._narrow: set[int] = set()

    @classmethod
    def begin(cls, folder: SweepFolder, definition: Definition, cells: Sequence[Cell]) -> Running:
        """Begin a sweep in an empty folder, or one whose result is replaced at the end.

        Raises:
            UsageError: there are too many runs, or no such metric; nothing was written.
        """
        running = cls(folder, definition, cells)
        if definition.until_ci is not None:
            schema = flow_schema(cells[0].plan.data, cells[0].plan.entries)
            check_metric(definition.until_ci["metric"], schema)
        folder.begin(definition)
        return running

    @classmethod
    def resume(cls, folder: SweepFolder) -> Running:
        """Continue the unfinished sweep of a folder.

        Raises:
            UsageError: another version of bentpipe began it, or its scenario has changed.
        """
        definition = folder.resume()
        cells = cells_of(Scenario.from_dict(definition.scenario), definition.points)
        folder.check_plans(definition, cells)
        return cls(folder, definition, cells)

    @property
    def runs(self) -> list[Run]:
        """Return the wanted runs in order."""
        return [Run(point, seed) for point, seeds in enumerate(self.seeds) for seed in seeds]

    @property
    def total(self) -> int:
        """Return the number of wanted runs; more may be added for narrow intervals."""
        return sum(len(seeds) for seeds in self.seeds)

    def execute(
        self,
        executor: Executor,
        progress: Callable[[int, int], None],
        writing: AbstractContextManager[None] | None = None,
    ) -> None:
        """Do the runs that have not ended, and write the data set in the context ``writing``.

        Ctrl-C ends it early; what has ended is kept.

        Raises:
            UsageError: the folder cannot be written.
            MachineError: the executor lost what it runs on; what has ended is kept.
        """
        failure: MachineError | None = None
        try:
            while True:
                if todo := [run for run in self.runs if run not in self.folder.journal]:
                    self._do(todo, executor, progress)
                if not self._add_seeds():
                    break
        except KeyboardInterrupt:
            self.interrupted = True
        except MachineError as error:
            failure = error
        with writing or nullcontext():
            self.write(complete=not self.interrupted and failure is None)
        if failure is not None:
            raise MachineError(f"{failure}{self.folder.advice}") from None

    def write(self, *, complete: bool) -> None:
        """Write the data set of the runs that have ended, if there is one."""
        if len(self.folder.journal):
            self.folder.write(self.definition, self.cells, self.runs, complete=complete)

    def _do(
        self, todo: Sequence[Run], executor: Executor, progress: Callable[[int, int], None]
    ) -> None:
        journal, total = self.folder.journal, self.total
        with closing(executor.run(self._jobs(todo), self._reduce())) as finished:
            for each in finished:
                run = todo[each.index]
                if each.error is not None:
                    self.folder.add_failure(run, each.error)
                elif isinstance(each.value, bytes):
                    self.folder.add(run, each.value)
                elif each.value is not None:
                    self.folder.add(run, *each.value)
                progress(len(journal), total)

    def _reduce(self) -> Callable[[Outcome], Kept]:
        if not self.definition.keep_runs:
            return pack
        if self.folder.storage is None:
            return partial(reduce_to_result, started=utc_now())
        return partial(reduce_to_storage, started=utc_now(), url=self.folder.storage.url)

    def _jobs(self, todo: Sequence[Run]) -> Iterator[tuple[int, Job]]:
        """Yield the jobs of runs, each with its index."""
        index, keep = 0, self.definition.keep_runs
        for point, runs in groupby(todo, key=lambda run: run.point):
            seeds = [run.seed for run in runs]
            for job in self.cells[point].jobs(seeds, samples=keep):
                yield index, replace(job, name=run_name(Run(point, job.seed))) if keep else job
                index += 1

    def _add_seeds(self) -> bool:
        """Add seeds to the cells whose interval is too wide; return whether there are any.

        All runs that were wanted so far have ended, so that the seeds do not depend on the order in
        which they ended, and a resumed sweep adds the same ones.
        """
        if self.definition.until_ci is None:
            return False
        before = self.total
        until = UntilCi(**self.definition.until_ci)
        journal = self.folder.journal
        for point, cell in enumerate(self.cells):
            if point in self._narrow:
                continue
            seeds = self.seeds[point]
            runs = [Run(point, seed) for seed in seeds]
            records = [journal.read(run) for run in runs if journal.kind(run) == RESULT]
            more = 0
            if records:
                flows, _ = rows_of(unpack(records), cell.plan.data, cell.plan.entries)
                more = until.missing_seeds(flows, len(seeds))
            if more == 0:
                self._narrow.add(point)
            first = max(seeds) + 1
            seeds += range(first, first + more)
        self._check_count()
        return self.total > before

    def _check_count(self) -> None:
        if self.total > RUNS_MAX:
            raise UsageError(f"{self.total:,} runs; at most {RUNS_MAX:,} are allowed")
