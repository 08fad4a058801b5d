"""A sweep from begin to end, in a folder or in memory: its runs, the journal, and the data set."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import polars as pl

from bentpipe.errors import MachineError, MemoryLimitError, RunsInterrupted, UsageError
from bentpipe.results.files import utc_now
from bentpipe.results.result import Result
from bentpipe.results.tables import Frame
from bentpipe.scenario.document import SourceLocation
from bentpipe.scenario.schema import Scenario
from bentpipe.simulation.executor import Executor, Threads, run_jobs
from bentpipe.simulation.run import Job, Outcome, pack
from bentpipe.sweeps.definition import Definition, seeds_of
from bentpipe.sweeps.folder import Storage, SweepFolder, run_name
from bentpipe.sweeps.journal import RESULT, Run
from bentpipe.sweeps.points import Points, axis
from bentpipe.sweeps.reader import Sweep
from bentpipe.sweeps.tables import Keys, decoded, rows_of, unpack
from bentpipe.text import choice

RUNS_MAX: Final = 1_000_000
# All results are in memory; a folder has room for more.
RUNS_IN_MEMORY_MAX: Final = 100_000
_SOURCE: Final = SourceLocation("vary")

# The record of a run, and its result if it is kept in the folder.
Kept = bytes | tuple[bytes, Result]


def keep_run(outcome: Outcome, *, started: str, url: str | None) -> Kept:
    """Return the record of a run, and its result, which is written to shared storage if there is.

    The worker that executed the run writes it.
    """
    result = outcome.result(started=started)
    if url is None:
        return pack(outcome), result
    Storage(url).save(result, outcome.job.name)
    return pack(outcome)


class TooManyRunsError(UsageError):
    """A sweep needs more than `RUNS_MAX` runs, and nobody has said that they are wanted."""


def runs_message(runs: int) -> str:
    """Return that so many runs are more than is done without being asked for."""
    return f"{runs:,} runs; more than {RUNS_MAX:,} need --yes"


class SweepRun:
    """A sweep under way in a folder: the runs that are wanted so far, by point and seed.

    ``unlimited``: narrow intervals may take more than `RUNS_MAX` runs.

    Raises:
        UsageError: there is no such metric.
    """

    def __init__(
        self, folder: SweepFolder, definition: Definition, *, unlimited: bool = False
    ) -> None:
        self.folder = folder
        self.definition = definition
        self.interrupted = False
        self.seeds = [list(definition.seeds) for _ in definition.cells]
        self._runs_max = None if unlimited else max(RUNS_MAX, self.total)
        # Cells that get no more seeds; those of them that have no value in any run.
        self._narrow: set[int] = set()
        self.cells_without_value = 0
        # Cells whose interval is too wide with as many seeds as a cell may have.
        self.cells_too_wide = 0
        if definition.until_ci is not None:
            most = definition.until_ci.max_seeds
            if len(definition.seeds) > most:
                raise UsageError(
                    f"max_seeds: read {most}; each cell has {len(definition.seeds)} seeds at first"
                )
            # Of no runs: its columns are known before there are any.
            flows = rows_of(unpack([]), definition.cells[0].plan)["flows"].drop("run")
            numeric = tuple(name for name, dtype in flows.schema.items() if dtype.is_numeric())
            if (metric := definition.until_ci.metric) not in numeric:
                raise UsageError(f"metric: {choice(metric, numeric)}")

    @classmethod
    def begin(
        cls, folder: SweepFolder, definition: Definition, *, unlimited: bool = False
    ) -> SweepRun:
        """Begin a sweep in an empty folder, or one whose result is replaced at the end."""
        running = cls(folder, definition, unlimited=unlimited)
        folder.begin(definition)
        return running

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
            UsageError: the folder cannot be written, or narrow intervals need too many runs; what
                has ended is kept.
            MachineError: the executor lost what it runs on; what has ended is kept.
        """
        failure: MachineError | TooManyRunsError | None = None
        try:
            while True:
                if todo := [run for run in self.runs if run not in self.folder.journal]:
                    self._do(todo, executor, progress)
                if not self._add_seeds():
                    break
        except KeyboardInterrupt:
            self.interrupted = True
        except (MachineError, TooManyRunsError) as error:
            failure = error
        with writing or nullcontext():
            if len(self.folder.journal):
                is_complete = not self.interrupted and failure is None
                self.folder.write(self.definition, self.runs, complete=is_complete)
        if failure is not None:
            raise type(failure)(f"{failure}{self.folder.advice}") from None

    def _do(
        self, todo: Sequence[Run], executor: Executor, progress: Callable[[int, int], None]
    ) -> None:
        journal, total = self.folder.journal, self.total
        with closing(executor.run(self._jobs(todo), self._reduce())) as finished:
            for job in finished:
                run = todo[job.index]
                if job.error is not None:
                    self.folder.add(run, job.error)
                elif job.value is not None:
                    kept = job.value if isinstance(job.value, tuple) else (job.value,)
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
            for job in self.definition.cells[point].jobs(seeds, samples=keep):
                yield index, replace(job, name=run_name(Run(point, job.seed))) if keep else job
                index += 1

    def _add_seeds(self) -> bool:
        """Add seeds to the cells whose interval is too wide; return whether there are any.

        All runs that were wanted so far have ended, so that the seeds do not depend on the order in
        which they ended, and a resumed sweep adds the same ones.
        """
        until = self.definition.until_ci
        if until is None:
            return False
        before = self.total
        journal = self.folder.journal
        for point, cell in enumerate(self.definition.cells):
            if point in self._narrow:
                continue
            seeds = self.seeds[point]
            runs = [Run(point, seed) for seed in seeds]
            records = [journal.read(run) for run in runs if journal.kind(run) == RESULT]
            more: int | None = 0
            if records:
                flows = rows_of(unpack(records), cell.plan)["flows"]
                more = until.missing_seeds(flows, len(seeds))
                self.cells_without_value += more is None
                left = max(until.max_seeds - len(seeds), 0)
                self.cells_too_wide += bool(more) and left == 0
                more = more and min(more, left)
            if not more:
                self._narrow.add(point)
                continue
            first = max(seeds) + 1
            seeds += range(first, first + more)
        if self._runs_max is not None and self.total > self._runs_max:
            raise TooManyRunsError(runs_message(self.total))
        return self.total > before


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
    >>> swept = bentpipe.sweep("scenarios/geo-bulk.yaml", vary=delays, seeds=2)
    >>> swept.runs.height, swept.cells.height
    (4, 2)
    """
    base = Scenario.of(scenario)
    axes = [axis({path: values}, [_SOURCE]) for path, values in (vary or {}).items()]
    axes += [axis(group, [_SOURCE] * len(group), "zip") for group in zipped if group]
    definition = _definition_in_memory(base, Points(axes), seeds_of(base, seeds))
    jobs = [job for cell in definition.cells for job in cell.jobs(definition.seeds)]
    gather = partial(_sweep, definition, utc_now())
    executor = Threads(threads, memory_limit=memory_limit)
    try:
        return gather(run_jobs(jobs, executor, progress=progress))
    except (RunsInterrupted, MemoryLimitError) as ended:
        kept = gather(ended.outcomes)
        raise type(ended)(str(ended), results=kept.results, sweep=kept) from None


def simulate_together(
    scenarios: Sequence[Scenario],
    seeds: Sequence[int],
    *,
    threads: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Sweep]:
    """Simulate scenarios with the same seeds: one seed of all of them after the other.

    After Ctrl-C the sweeps have the seeds that are complete in all, and are marked interrupted.

    Raises:
        RunsInterrupted: Ctrl-C, and no seed is.
        BentpipeError: see `sweep`.
    """
    started, count = utc_now(), len(scenarios)
    definitions = [_definition_in_memory(scenario, Points(), seeds) for scenario in scenarios]
    plans = [definition.cells[0].plan for definition in definitions]
    jobs = [Job(plan=plan, seed=seed) for seed in seeds for plan in plans]
    try:
        outcomes = run_jobs(jobs, Threads(threads), progress=progress)
    except RunsInterrupted as ended:
        complete = Counter(outcome.index // count for outcome in ended.outcomes)
        outcomes = [
            outcome for outcome in ended.outcomes if complete[outcome.index // count] == count
        ]
        if not outcomes:
            raise
    # Outcomes are in the order of the jobs, and each seed has one of every scenario.
    numbered = [replace(outcome, index=outcome.index // count) for outcome in outcomes]
    return [_sweep(definitions[i], started, numbered[i::count]) for i in range(count)]


def _definition_in_memory(base: Scenario, points: Points, seeds: Sequence[int]) -> Definition:
    count = len(points) * len(seeds)
    if count > RUNS_IN_MEMORY_MAX:
        raise UsageError(f"vary: {count:,} runs; at most {RUNS_IN_MEMORY_MAX:,} are allowed")
    return Definition.of(base, points, seeds)


def _sweep(definition: Definition, started: str, outcomes: Sequence[Outcome]) -> Sweep:
    cells, keys = definition.cells, Keys(definition.points)
    runs = [Run(point, seed) for point in range(len(cells)) for seed in definition.seeds]
    numbered = enumerate(runs[outcome.index] for outcome in outcomes)
    batches = decoded(keys, cells, numbered, lambda number, _: pack(outcomes[number]))
    empty = dict.fromkeys(("flows", "directions", "runs"), keys.runs([], []))
    frames = [batch.frames() for batch in batches] or [empty]
    flows, directions, about = (
        Frame(pl.concat([tables[name] for tables in frames])) for name in empty
    )
    return Sweep(
        results=tuple(outcome.result(started=started) for outcome in outcomes),
        flows=flows,
        directions=directions,
        interrupted=len(outcomes) < len(runs),
        runs=about,
    )
