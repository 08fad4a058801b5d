"""The study: 44 cells, simulated from one configuration, then compared with the published table.

The grid of cells stands here in code and the published figures are read after the last run, so that
no run can depend on them.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from bentpipe import _core
from bentpipe.plan.resolver import from_dict, load, resolve
from bentpipe.results.metrics import channel_utilization
from bentpipe.scenario.schema import Scenario
from bentpipe.simulation.many import Job, Outcome, run_many
from bentpipe.studies._common import read_rows

if TYPE_CHECKING:
    from rich.console import RenderableType

DEFAULT_RUNS: Final = 30
# The rows of the table by their names in the source, and the seven delays in ms.
BIT_ERROR_RATES: Final = {"1e-7": 1e-7, "1e-8": 1e-8, "1e-9": 1e-9, "0": 0.0}
SHORT_DELAYS_MS: Final = (0, 50, 100)
LONG_DELAYS_MS: Final = (150, 200, 250, 300)

_HERE: Final = Path(__file__).parent
# Without the window scale option 65,535 bytes is the most that TCP can advertise.
SMALL_WINDOW: Final = {
    "window_scaling": False,
    "receive_buffer": "65535 B",
    "receive_buffer_counts": "window",
}
# What each profile has in the place of the scenario's profile and tcp; None keeps those.
# Its details are the RFCs': the figures are of the algorithms, not of one kernel's.
_LINUX: Final[dict[str, Any]] = {"profile": "linux", "tcp": {"stack": "rfc"}}
# The linux profile tunes its window from 64 KiB up, one byte more than the small window's cap.
_LINUX_SMALL: Final = {**SMALL_WINDOW, "receive_buffer_initial": "65535 B"}


@dataclass(frozen=True)
class Cell:
    """One cell: its row, the delay one way, and the windows: ``yes`` (large), ``no`` or ``both``.

    Where the source has one figure for ``both``, the large windows count; 64 KB windows are
    simulated beside them (`small_window_cells`).
    """

    row: str
    one_way_delay_ms: int
    large_windows: str


@dataclass(frozen=True)
class Measurement:
    """What the runs of one cell gave, in percent: mean and standard deviation of ``runs`` runs.

    Both are None without a run; the deviation is also None after one run of a cell with errors.
    """

    cell: Cell
    published: float
    measured: float | None
    stdev: float | None
    runs: int

    @property
    def error(self) -> float | None:
        """Measured less published, in percentage points."""
        return None if self.measured is None else self.measured - self.published

    @property
    def standard_error(self) -> float | None:
        """The standard deviation of the mean."""
        return None if self.stdev is None else self.stdev / math.sqrt(self.runs)

    @property
    def stands_out(self) -> bool:
        """Whether one published transfer would hardly be this far off: 1 point and 2 deviations."""
        return self.error is not None and abs(self.error) > max(1.0, 2 * (self.stdev or 0.0))

    def to_json(self) -> dict[str, Any]:
        """Return the cell as plain data, in percent."""
        return {
            "bit_error_rate": BIT_ERROR_RATES[self.cell.row],
            "one_way_delay_ms": self.cell.one_way_delay_ms,
            "large_windows": self.cell.large_windows,
            "published": self.published,
            "measured": self.measured,
            "stdev": self.stdev,
            "runs": self.runs,
        }


@dataclass(frozen=True)
class Comparison:
    """All cells for one host profile."""

    measurements: tuple[Measurement, ...]

    def row(self, row: str) -> tuple[Measurement, ...]:
        """Return the cells with this bit error rate."""
        return tuple(each for each in self.measurements if each.cell.row == row)

    @property
    def mean_absolute_error(self) -> float | None:
        """The mean over all measured cells of abs(measured - published), in points."""
        return _mean_absolute_error(self.measurements)

    @property
    def mean_absolute_error_by_row(self) -> dict[str, float | None]:
        """The same for each bit error rate."""
        return {row: _mean_absolute_error(self.row(row)) for row in BIT_ERROR_RATES}

    def to_json(self) -> dict[str, Any]:
        """Return cells and errors as plain data."""
        return {
            "cells": [each.to_json() for each in self.measurements],
            "mean_absolute_error": self.mean_absolute_error,
            "mean_absolute_error_by_row": self.mean_absolute_error_by_row,
        }


@dataclass(frozen=True, kw_only=True)
class JplOutcome:
    """The table for the profile of the testbed's time, and for one that it never saw.

    ``small_windows`` are the cells with one published figure for both windows, with 64 KB ones.
    """

    bsd: Comparison
    small_windows: tuple[Measurement, ...]
    linux: Comparison
    configuration: dict[str, Any]
    interrupted: bool

    def to_json(self) -> dict[str, Any]:
        """Return the figures as plain data; all in percent or percentage points."""
        return {
            "study": "jpl",
            "interrupted": self.interrupted,
            **self.bsd.to_json(),
            "both_with_64_kb_windows": [each.to_json() for each in self.small_windows],
            "linux": self.linux.to_json(),
            "configuration": self.configuration,
        }

    def table(self) -> RenderableType:
        """Return the table and its errors for a terminal."""
        from bentpipe.studies.jpl._tables import terminal_table

        return terminal_table(self)

    def write(self, out_dir: Path) -> Path:
        """Write report.html, cells.csv, result.json and manifest.json; return the folder.

        Raises:
            UsageError: the folder has other things in it, or cannot be written.
        """
        from bentpipe.studies.jpl._tables import write_outcome

        return write_outcome(self, out_dir)


def cells() -> tuple[Cell, ...]:
    """Return the 44 cells in the order of the source."""
    grid = []
    for row in BIT_ERROR_RATES:
        grid += [Cell(row, delay_ms, "both") for delay_ms in SHORT_DELAYS_MS]
        for delay_ms in LONG_DELAYS_MS:
            grid += [Cell(row, delay_ms, windows) for windows in ("yes", "no")]
    return tuple(grid)


def small_window_cells() -> tuple[Cell, ...]:
    """Return the cells that have one published figure for both windows, with 64 KB windows."""
    return tuple(
        replace(cell, large_windows="no") for cell in cells() if cell.large_windows == "both"
    )


def scenario_of(cell: Cell, *, linux: bool = False) -> Scenario:
    """Return the complete scenario of one cell, as `run` simulates it."""
    return _scenario_of(cell, load(_HERE / "scenario.yaml").to_dict(), linux=linux)


def run(
    *,
    runs: int | None = None,
    seed: int = 1,
    threads: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> JplOutcome:
    """Simulate all cells for both profiles, then read the published table and compare.

    ``runs`` (default 30) is the number of runs of a cell with bit errors, with the seeds ``seed``,
    ``seed`` + 1, ...; a cell without errors draws no chance and runs once.
    """
    count = DEFAULT_RUNS if runs is None else runs
    base = load(_HERE / "scenario.yaml").to_dict()
    keys = [(False, cell) for cell in (*cells(), *small_window_cells())]
    keys += [(True, cell) for cell in cells()]
    jobs: list[Job] = []
    owners: list[tuple[bool, Cell]] = []
    for linux, cell in keys:
        plan = resolve(_scenario_of(cell, base, linux=linux))
        seeds = range(seed, seed + (count if BIT_ERROR_RATES[cell.row] > 0 else 1))
        jobs += [Job(plan=plan, seed=each) for each in seeds]
        owners += [(linux, cell)] * len(seeds)
    outcomes = run_many(jobs, threads=threads, progress=progress)

    complete = [outcome for outcome in outcomes if not outcome.interrupted]
    found: dict[tuple[bool, Cell], list[float]] = {key: [] for key in keys}
    for outcome in complete:
        found[owners[outcome.index]].append(utilization(outcome))
    published = read_published()
    bsd, linux_table = (
        Comparison(tuple(_measure(cell, published[cell], found[linux, cell]) for cell in cells()))
        for linux in (False, True)
    )
    small_windows = tuple(
        _measure(cell, published[replace(cell, large_windows="both")], found[False, cell])
        for cell in small_window_cells()
    )
    return JplOutcome(
        bsd=bsd,
        small_windows=small_windows,
        linux=linux_table,
        configuration={
            "bentpipe_version": _core.version(),
            "first_seed": seed,
            "runs_of_a_cell_with_bit_errors": count,
            "runs_of_a_cell_without": 1,
            "scenario": base,
            "tcp_with_64_kb_windows": SMALL_WINDOW,
            "linux": _LINUX,
            "linux_tcp_with_64_kb_windows": _LINUX_SMALL,
        },
        interrupted=len(complete) < len(jobs),
    )


def utilization(outcome: Outcome) -> float:
    """Return acknowledged information bits over R T, in percent.

    T runs from "established" to the last acknowledgement, as netperf times its transfers.
    """
    elapsed_ns = (
        outcome.column("flows", "last_ack_ns")[0] - outcome.column("flows", "established_ns")[0]
    )
    rate_bps = outcome.job.plan["directions"][0]["rate_bps"]["value"]
    acked_bytes = outcome.column("flows", "acked_bytes")[0]
    return float(channel_utilization(acked_bytes, rate_bps, elapsed_ns))


def read_published() -> dict[Cell, float]:
    """Return the published utilization of every cell, in percent."""
    return {
        Cell(row["bit_error_rate"], int(row["one_way_delay_ms"]), row["large_windows"]): float(
            row["utilization_percent"]
        )
        for row in read_rows(_HERE / "published.csv")
    }


def _scenario_of(cell: Cell, base: dict[str, Any], *, linux: bool) -> Scenario:
    data = copy.deepcopy(base)
    data["name"] = f"{data['name']}: {cell.row}, {cell.one_way_delay_ms} ms, {cell.large_windows}"
    for direction in ("forward", "return"):
        data["link"][direction]["delay"] = f"{cell.one_way_delay_ms} ms"
        data["link"][direction]["bit_error_rate"] = BIT_ERROR_RATES[cell.row]
    (flow,) = data["traffic"]
    if linux:
        flow.update(copy.deepcopy(_LINUX))
    if cell.large_windows == "no":
        flow["tcp"] |= _LINUX_SMALL if linux else SMALL_WINDOW
    return from_dict(data)


def _measure(cell: Cell, published: float, found: Sequence[float]) -> Measurement:
    stdev = None
    if len(found) > 1:
        stdev = float(np.std(found, ddof=1))
    elif found and BIT_ERROR_RATES[cell.row] == 0:
        stdev = 0.0
    return Measurement(
        cell=cell,
        published=published,
        measured=float(np.mean(found)) if found else None,
        stdev=stdev,
        runs=len(found),
    )


def _mean_absolute_error(measurements: Sequence[Measurement]) -> float | None:
    errors = [abs(each.error) for each in measurements if each.error is not None]
    return float(np.mean(errors)) if errors else None
