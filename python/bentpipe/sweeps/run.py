"""A sweep from begin to end, in a folder or in memory: its runs, the journal, and the data set."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import polars as pl

from bentpipe.errors import MachineError, MemoryLimitError, RunsInterrupted, UsageError
from bentpipe.results.confidence import mean_half_width
from bentpipe.results.files import utc_now
from bentpipe.results.result import Result
from bentpipe.results.tables import Frame
from bentpipe.scenario.document import SourceLocation
from bentpipe.scenario.schema import Scenario
from bentpipe.simulation.executor import Executor, Threads, run_jobs
from bentpipe.simulation.run import Job, Outcome, pack
from bentpipe.sweeps.cells import Cell, cells_of, seeds_of
from bentpipe.sweeps.folder import Definition, SweepFolder, run_name
from bentpipe.sweeps.frames import Keys, decoded, flow_schema, rows_of, run_rows, unpack
from bentpipe.sweeps.journal import RESULT, Run
from bentpipe.sweeps.points import Points, grid_axis, zip_axis
from bentpipe.sweeps.reader import Sweep
from bentpipe.sweeps.storage import Storage
from bentpipe.text import choice

DEFAULT_METRIC: Final = "goodput_bps"
MAX_SEEDS: Final = 1_000
# A cell at most doubles its seeds at a time: the first few tell little about the variance.
_GROWTH: Final = 2
RUNS_MAX: Final = 1_000_000
# All results are in memory; a folder has room for more.
RUNS_IN_MEMORY_MAX: Final = 100_000
_SOURCE: Final = SourceLocation("vary")

# The record of a run, and its result if it is kept in the folder.
Kept = bytes | tuple[bytes, Result]


@dataclass(frozen=True)
class UntilCi:
    """The half width of the 95 % interval of a cell's mean at which no more seeds are added.

    ``width`` is a share of the mean. The value of a run is the mean of ``metric``, a column of
    `Result.flows`, over the flows that have one. No cell gets more than ``max_seeds`` seeds.

    Raises:
        UsageError: the width is not above 0.
    """

    width: float
    metric: str = DEFAULT_METRIC
    max_seeds: int = MAX_SEEDS

    def __post_init__(self) -> None:
        if self.width <= 0:
            raise UsageError("until_ci: the width must be above 0 %")

    def missing_seeds(self, flows: pl.DataFrame, seeds: int) -> int:
        """Return how many seeds to add to a cell, from the flows of its complete runs.

        ``seeds`` is how many it has, failed runs included. The interval is by Student's t
        distribution. Its width shrinks with the square root of the runs, so that their number for
        the wanted width is known approximately.
        """
        left = self.max_seeds - seeds
        if left <= 0:
            return 0
        of_run = pl.col(self.metric).cast(pl.Float64).mean()
        runs = flows.group_by("run", maintain_order=True).agg(of_run)
        values = runs[self.metric].drop_nulls().to_list()
        half_width = mean_half_width(values)
        if half_width is None:
            return min(seeds, left)
        mean = abs(sum(values) / len(values))
        if half_width <= self.width * mean:
            return 0
        wanted = seeds * _GROWTH
        if mean > 0:
            wanted = min(wanted, math.ceil(seeds * (half_width / (self.width * mean)) ** 2))
        return min(max(wanted - seeds, 1), left)


def keep_run(outcome: Outcome, *, started: str, url: str | None) -> Kept:
    """Return the record of a run, and its result, which is written to shared storage if there is.

    The worker that executed the run writes it.
    """
    result = outcome.result(started=started)
    if url is None:
        return pack(outcome), result
    Storage(url).save(result, outcome.job.name)
    return pack(outcome)


@dataclass
class SweepRun:
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
    def begin(cls, folder: SweepFolder, definition: Definition, cells: Sequence[Cell]) -> SweepRun:
        """Begin a sweep in an empty folder, or one whose result is replaced at the end.

        Raises:
            UsageError: there are too many runs, or no such metric; nothing was written.
        """
        running = cls(folder, definition, cells)
        if definition.until_ci is not None:
            schema = flow_schema(cells[0].plan.data, cells[0].plan.entries)
            numeric = tuple(name for name, dtype in schema.items() if dtype.is_numeric())
            if (metric := definition.until_ci["metric"]) not in numeric:
                raise UsageError(f"metric: {choice(metric, numeric)}")
        folder.begin(definition)
        return running

    @classmethod
    def resume(cls, folder: SweepFolder) -> SweepRun:
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
            if len(self.folder.journal):
                is_complete = not self.interrupted and failure is None
                self.folder.write(self.definition, self.cells, self.runs, complete=is_complete)
        if failure is not None:
            raise MachineError(f"{failure}{self.folder.advice}") from None

    def _do(
        self, todo: Sequence[Run], executor: Executor, progress: Callable[[int, int], None]
    ) -> None:
        journal, total = self.folder.journal, self.total
        with closing(executor.run(self._jobs(todo), self._reduce())) as finished:
            for each in finished:
                run = todo[each.index]
                if each.error is not None:
                    self.folder.add_failure(run, each.error)
                elif each.value is not None:
                    kept = each.value if isinstance(each.value, tuple) else (each.value,)
                    self.folder.add(run, *kept)
                progress(len(journal), total)

    def _reduce(self) -> Callable[[Outcome], Kept]:
        if not self.definition.keep_runs:
            return pack
        storage = self.folder.storage
        return partial(keep_run, started=utc_now(), url=None if storage is None else storage.url)

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


def sweep(
    scenario: Scenario | str | Path | Mapping[str, Any],
    *,
    vary: Mapping[str, Sequence[Any]] | None = None,
    zipped: Sequence[Mapping[str, Sequence[Any]]] = (),
    seeds: int | Iterable[int] | None = None,
    threads: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    memory_limit: int | None = None,
) -> Sweep:
    """Simulate a scenario with every combination of varied values and seeds, on all cores.

    Results do not depend on ``threads``.

    Parameters
    ----------
    scenario
        A `Scenario`, the path of a scenario file, or a mapping.
    vary
        Maps the path of a field, as ``--set`` takes it, to its values.
    zipped
        Fields of one mapping are varied together: their first values are one combination, their
        second ones the next.
    seeds
        A number of seeds, from the scenario's on, or the seeds themselves; by default the
        scenario's alone.
    threads
        One for each core by default.
    progress
        Called with the runs that are done, and their number.
    memory_limit
        In bytes, shared by concurrent runs; by default half of the available memory.

    Returns
    -------
    Sweep
        The results, and the tables of all runs with the varied values.

    Raises
    ------
    ScenarioError
        The scenario, or one with a varied value, is wrong; nothing was run.
    UsageError
        A field has no values, a seed is out of range, or there are too many runs.
    MemoryLimitError
        A run reached its part of the memory limit; all results are in the error.
    InternalError
        A run violated an invariant of the simulator.
    RunsInterrupted
        Ctrl-C; the sweep of the complete runs is in the exception, a KeyboardInterrupt.

    Examples
    --------
    >>> delays = {"link.forward.delay": ["10 ms", "250 ms"]}
    >>> found = bentpipe.sweep("scenarios/geo-bulk.yaml", vary=delays, seeds=2)
    >>> found.runs.height, found.cells.height
    (4, 2)
    """
    base = Scenario.of(scenario)
    axes = [grid_axis(path, values, _SOURCE) for path, values in (vary or {}).items()]
    points = Points([*axes, *(zip_axis(each, [_SOURCE] * len(each)) for each in zipped if each)])
    numbers = seeds_of(base, seeds)
    count = len(points) * len(numbers)
    if count > RUNS_IN_MEMORY_MAX:
        raise UsageError(f"vary: {count:,} runs; at most {RUNS_IN_MEMORY_MAX:,} are allowed")
    cells = cells_of(base, points)
    runs = [Run(point, seed) for point in range(len(cells)) for seed in numbers]
    jobs = [job for cell in cells for job in cell.jobs(numbers)]
    started = utc_now()
    gather = partial(_sweep, points, cells, runs, started)
    executor = Threads(threads, memory_limit=memory_limit)
    try:
        return gather(run_jobs(jobs, executor, progress=progress))
    except RunsInterrupted as ended:
        kept = gather(ended.outcomes)
        raise RunsInterrupted(str(ended), results=kept.results, sweep=kept) from None
    except MemoryLimitError as error:
        raise MemoryLimitError(str(error), results=gather(error.outcomes).results) from None


def _sweep(
    points: Points,
    cells: Sequence[Cell],
    runs: Sequence[Run],
    started: str,
    outcomes: Sequence[Outcome],
) -> Sweep:
    keys = Keys(points)
    numbered = enumerate(runs[outcome.index] for outcome in outcomes)
    found = decoded(keys, cells, numbered, lambda number, _: pack(outcomes[number]))
    rows = [(*each.with_keys(), run_rows(each.keys, each.runs, each.tables)) for each in found]
    rows = rows or [(keys.runs([], []),) * 3]
    flows, directions, about = (Frame(pl.concat(of_table)) for of_table in zip(*rows, strict=True))
    return Sweep(
        results=tuple(outcome.result(started=started) for outcome in outcomes),
        flows=flows,
        directions=directions,
        interrupted=len(outcomes) < len(runs),
        runs=about,
    )
