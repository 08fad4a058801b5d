"""Sweeps in memory: `bentpipe.simulate_many`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import polars as pl

from bentpipe.errors import MemoryLimitError, RunsInterrupted, UsageError
from bentpipe.results.execution import utc_now
from bentpipe.results.frames import Frame
from bentpipe.scenario.document import SourceLocation
from bentpipe.scenario.schema import Scenario
from bentpipe.simulation.many import Outcome, run_jobs
from bentpipe.sweeps.cells import Cell, cells_of, seeds_of
from bentpipe.sweeps.frames import Keys, with_keys
from bentpipe.sweeps.journal import Run
from bentpipe.sweeps.points import Points, grid_axis, zip_axis
from bentpipe.sweeps.records import pack, rows_of, unpack
from bentpipe.sweeps.sweep import Sweep

# All results are in memory; a folder has room for more.
RUNS_MAX: Final = 100_000
_SOURCE: Final = SourceLocation("vary")


def simulate_many(
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

    ``vary`` maps the path of a field, as ``--set`` takes it, to its values, such as
    ``{"link.forward.delay": ["10 ms", "250 ms"], "traffic.web.size": ["100 kB", "1 MB"]}``. Fields
    in one mapping of ``zipped`` are varied together: their first values are one combination, their
    second ones the next.
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
    base = Scenario.of(scenario)
    axes = [grid_axis(path, values, _SOURCE) for path, values in (vary or {}).items()]
    points = Points([*axes, *(zip_axis(each, [_SOURCE] * len(each)) for each in zipped if each)])
    numbers = seeds_of(base, seeds)
    count = len(points) * len(numbers)
    if count > RUNS_MAX:
        raise UsageError(f"vary: {count:,} runs; at most {RUNS_MAX:,} are allowed")
    cells = cells_of(base, points)
    runs = [Run(point, seed) for point in range(len(cells)) for seed in numbers]
    jobs = [job for cell in cells for job in cell.jobs(numbers)]
    started = utc_now()

    def sweep(outcomes: Iterable[Outcome]) -> Sweep:
        return _sweep(points, cells, runs, list(outcomes), started)

    try:
        return sweep(run_jobs(jobs, threads=threads, progress=progress, memory_limit=memory_limit))
    except RunsInterrupted as ended:
        kept = sweep(ended.outcomes)
        raise RunsInterrupted(str(ended), results=kept.results, sweep=kept) from None
    except MemoryLimitError as error:
        raise MemoryLimitError(str(error), results=sweep(error.outcomes).results) from None


def _sweep(
    points: Points,
    cells: Sequence[Cell],
    runs: Sequence[Run],
    outcomes: Sequence[Outcome],
    started: str,
) -> Sweep:
    keys = Keys(points)
    found: list[tuple[pl.DataFrame, pl.DataFrame]] = []
    first = 0
    for point, group in groupby(outcomes, key=lambda outcome: runs[outcome.index].point):
        own = list(group)
        of_cell = [runs[outcome.index] for outcome in own]
        numbers = range(first, first + len(own))
        tables, cell = unpack([pack(outcome) for outcome in own]), cells[point]
        names = keys.runs(of_cell, numbers)
        flows, directions = rows_of(tables, cell.plan.data, cell.plan.entries)
        found.append((with_keys(flows, names), with_keys(directions, names)))
        first += len(own)
    columns = zip(*found, strict=True) if found else ([keys.runs([], [])],) * 2
    flows, directions = (Frame(pl.concat(rows)) for rows in columns)
    return Sweep(
        results=tuple(outcome.result(started=started) for outcome in outcomes),
        flows=flows,
        directions=directions,
        interrupted=len(outcomes) < len(runs),
    )
