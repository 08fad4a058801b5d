"""Many runs: of plans, and of a scenario with every combination of varied values and seeds."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, Final

import polars as pl

from bentpipe.errors import MemoryLimitError, RunsInterrupted, UnitError, UsageError
from bentpipe.plan.entries import traffic_entries
from bentpipe.plan.resolver import loaded
from bentpipe.results.execution import utc_now
from bentpipe.results.frames import Frame, to_pandas
from bentpipe.results.result import Result
from bentpipe.scenario.document import Document
from bentpipe.scenario.schema import Scenario
from bentpipe.scenario.seeds import check_seed
from bentpipe.simulation.many import Job, Outcome, run_jobs
from bentpipe.simulation.run import as_scenario
from bentpipe.text import choice
from bentpipe.units import parse_duration, parse_rate, parse_size

RUNS_MAX: Final = 100_000
# What a text such as "275 ms" may be, and the unit that its value gets in a column.
_QUANTITIES: Final[tuple[tuple[str, Callable[[object], int]], ...]] = (
    ("bps", parse_rate),
    ("ns", parse_duration),
    ("bytes", parse_size),
)


@dataclass(frozen=True)
class Sweep:
    """Many runs of one scenario.

    ``results`` are in the order of the runs: the last varied field changes fastest, and the seeds
    faster still. ``flows`` has a row a flow a run: ``run`` (index into ``results``), the varied
    values, ``seed``, and then the columns of `Result.flows`; ``directions`` likewise. The column of
    a varied value is named after its path. Where all values are quantities, such as "275 ms", a
    second column has the numbers, and its name ends in the unit: ``link.forward.delay_ns``.

    ``interrupted``: Ctrl-C ended the sweep before all runs were complete; ``results`` has the
    complete ones, and the sweep is that of the exception.
    """

    results: tuple[Result, ...]
    flows: pl.DataFrame
    directions: pl.DataFrame
    interrupted: bool

    def to_pandas(self, table: str = "flows") -> Any:
        """Return ``flows`` or ``directions`` as a pandas frame.

        Raises:
            UsageError: there is no such table, or pandas is not installed.
        """
        tables = {"flows": self.flows, "directions": self.directions}
        if table not in tables:
            raise UsageError(f"table: {choice(table, tuple(tables))}")
        return to_pandas(tables[table])

    def _repr_html_(self) -> str:
        """Show the flows of all runs, for notebooks."""
        table: str = self.flows._repr_html_()
        return table


@dataclass(frozen=True)
class _Run:
    job: Job
    varied: tuple[Any, ...]


def run_many(
    jobs: Sequence[Job],
    *,
    threads: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    memory_limit: int | None = None,
) -> list[Result]:
    """Simulate plans on ``threads`` threads (None: one a core); results are in the order of jobs.

    ``progress(done, total)`` is called from this thread. Concurrent runs share ``memory_limit``
    bytes (None: half of the available memory) equally.

    Raises:
        ScenarioError: a plan is not valid.
        UsageError: the hosts and links of a plan alone take more than its part of the memory limit.
        MemoryLimitError: a run reached its part and ended early; all results are in the error.
        InternalError: a run violated an invariant of the simulator; the message has its seed.
        RunsInterrupted: Ctrl-C; the results of the complete runs are in the exception, which is a
            KeyboardInterrupt.
    """
    started = utc_now()

    def results(outcomes: Iterable[Outcome]) -> list[Result]:
        return [outcome.result(started=started) for outcome in outcomes]

    try:
        return results(
            run_jobs(jobs, threads=threads, progress=progress, memory_limit=memory_limit)
        )
    except RunsInterrupted as ended:
        raise RunsInterrupted(str(ended), results=results(ended.outcomes)) from None
    except MemoryLimitError as error:
        raise MemoryLimitError(str(error), results=results(error.outcomes)) from None


def simulate_many(
    scenario: Scenario | str | Path | Mapping[str, Any],
    *,
    vary: Mapping[str, Sequence[Any]] | None = None,
    seeds: int | Iterable[int] | None = None,
    threads: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    memory_limit: int | None = None,
) -> Sweep:
    """Simulate a scenario with every combination of varied values and seeds, on all cores.

    ``vary`` maps the path of a field, as ``--set`` takes it, to its values, such as
    ``{"link.forward.delay": ["10 ms", "250 ms"], "traffic.web.size": ["100 kB", "1 MB"]}``.
    ``seeds`` is a number of seeds, from the scenario's on, or the seeds themselves; by default the
    scenario's alone. ``threads`` is one a core by default; ``progress(done, total)`` counts runs;
    ``memory_limit`` in bytes is shared by the runs under way. Results do not depend on ``threads``.

    Raises:
        ScenarioError: the scenario, or one with a varied value, is wrong; nothing was run.
        UsageError: a field has no values, a seed is out of range, or there are too many runs.
        MemoryLimitError: a run reached its part of the memory limit; all results are in the error.
        InternalError: a run violated an invariant of the simulator.
        RunsInterrupted: Ctrl-C; the sweep of the complete runs is in the exception, which is a
            KeyboardInterrupt.
    """
    base = as_scenario(scenario)
    vary = {path: list(values) for path, values in (vary or {}).items()}
    runs = _runs(base, vary, _seeds(base, seeds))
    started = utc_now()

    def sweep(outcomes: Iterable[Outcome]) -> Sweep:
        return _sweep(list(vary), runs, list(outcomes), started)

    jobs = [run.job for run in runs]
    try:
        return sweep(run_jobs(jobs, threads=threads, progress=progress, memory_limit=memory_limit))
    except RunsInterrupted as ended:
        kept = sweep(ended.outcomes)
        raise RunsInterrupted(str(ended), results=kept.results, sweep=kept) from None
    except MemoryLimitError as error:
        raise MemoryLimitError(str(error), results=sweep(error.outcomes).results) from None


def _sweep(
    paths: Sequence[str], runs: Sequence[_Run], outcomes: Sequence[Outcome], started: str
) -> Sweep:
    results = tuple(outcome.result(started=started) for outcome in outcomes)
    keys = _keys(paths, [runs[outcome.index] for outcome in outcomes])
    return Sweep(
        results=results,
        flows=_tidy(keys, [result.flows for result in results]),
        directions=_tidy(keys, [result.directions for result in results]),
        interrupted=len(results) < len(runs),
    )


def _runs(base: Scenario, vary: Mapping[str, Sequence[Any]], seeds: Sequence[int]) -> list[_Run]:
    for path, values in vary.items():
        if not values:
            raise UsageError(f"vary: {path} has no values; give at least one")
    count = len(seeds)
    for values in vary.values():
        count *= len(values)
    if count > RUNS_MAX:
        raise UsageError(f"vary: {count:,} runs; at most {RUNS_MAX:,} are allowed")
    document = Document(data=base.to_dict(), source="scenario")
    runs = []
    for varied in product(*vary.values()):
        settings = [f"{path}={json.dumps(value)}" for path, value in zip(vary, varied, strict=True)]
        scenario, plan, warnings = loaded(document, settings)
        job = Job(
            plan=plan,
            seed=0,
            scenario=scenario.to_dict(),
            entries=traffic_entries(scenario),
            warnings=warnings,
        )
        runs += [_Run(replace(job, seed=seed), varied) for seed in seeds]
    return runs


def _seeds(base: Scenario, seeds: int | Iterable[int] | None) -> list[int]:
    if seeds is None:
        return [base.seed]
    chosen = list(range(base.seed, base.seed + seeds)) if isinstance(seeds, int) else list(seeds)
    if not chosen:
        raise UsageError("seeds: none are given; give a number of seeds, or the seeds")
    for seed in chosen:
        check_seed(seed, "seeds")
    return chosen


def _keys(paths: Sequence[str], runs: Sequence[_Run]) -> pl.DataFrame:
    """Return a row a run: its index, the varied values and the seed."""
    columns = [pl.Series("run", range(len(runs)), dtype=pl.UInt32)]
    for position, path in enumerate(paths):
        values = [run.varied[position] for run in runs]
        columns.append(_column(path, values))
        columns += _numbers(path, values)
    columns.append(pl.Series("seed", [run.job.seed for run in runs], dtype=pl.UInt64))
    return pl.DataFrame(columns)


def _column(path: str, values: Sequence[Any]) -> pl.Series:
    """Return the values as they were given, or as JSON if they have no common column type."""
    types = {type(value) for value in values}
    if types == {int, float}:
        return pl.Series(path, [float(value) for value in values])
    if len(types) == 1 and types <= {bool, int, float, str}:
        return pl.Series(path, values)
    return pl.Series(path, [json.dumps(value) for value in values])


def _numbers(path: str, values: Sequence[Any]) -> list[pl.Series]:
    """Return the column of a varied quantity in its base unit; none if a value is not a text."""
    if not values or not all(isinstance(value, str) for value in values):
        return []
    for unit, parse in _QUANTITIES:
        try:
            return [pl.Series(f"{path}_{unit}", [parse(value) for value in values])]
        except UnitError:
            continue
    return []


def _tidy(keys: pl.DataFrame, frames: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Return the rows of all runs, each with the key of its run in front."""
    if not frames:
        return Frame(keys)
    numbered = [
        frame.select(pl.lit(run, dtype=pl.UInt32).alias("run"), pl.all())
        for run, frame in enumerate(frames)
    ]
    rows = pl.concat(numbered, how="diagonal_relaxed")
    joined = keys.join(rows, on="run", how="right", maintain_order="right")
    return Frame(joined.select(*keys.columns, pl.exclude(keys.columns)))
