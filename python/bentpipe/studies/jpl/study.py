"""The study: 44 cells, simulated from one configuration, then compared with the published table.

The cells are made in code and the published figures are read after the last run, so that no run can
depend on them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from bentpipe import _core
from bentpipe.plan.plan import Plan
from bentpipe.results.measures import channel_utilization
from bentpipe.scenario.schema import Scenario
from bentpipe.simulation.many import Job, Outcome
from bentpipe.studies.base import tables
from bentpipe.studies.base.comparison import Comparison, Row, Tolerance, errors_of, mean_error
from bentpipe.studies.base.files import read_rows
from bentpipe.studies.base.outcome import StudyOutcome
from bentpipe.studies.base.provenance import COUNTED, Input, Provenance, read_inputs
from bentpipe.studies.base.samples import Samples
from bentpipe.studies.base.work import Work
from bentpipe.studies.jpl.cells import (
    BIT_ERROR_RATES,
    LINUX_HOSTS,
    LINUX_SMALL_WINDOW,
    LONG_DELAYS_MS,
    SHORT_DELAYS_MS,
    SMALL_WINDOW,
    WINDOWS,
    Cell,
    base_scenario,
    cells,
    either_window,
    scenario_of,
    small_window_cells,
)
from bentpipe.studies.jpl.plots import curves
from bentpipe.sweeps.executor import Executor

if TYPE_CHECKING:
    from rich.console import RenderableType

DEFAULT_RUNS: Final = 30
TOLERANCE: Final = Tolerance(
    1.0,
    "points",
    "published cells with bit errors exceed the cell without errors at the same delay by up to 0.3 "
    "points, so the table itself is uncertain by that much; this is three times as much.",
)

BSD, BSD_SMALL, LINUX = "bsd-1997", "both_with_64_kb_windows", "linux"

_HERE: Final = Path(__file__).parent


@dataclass(frozen=True, kw_only=True)
class JplOutcome(StudyOutcome):
    """The table for the bsd-1997 profile of the testbed, and for the linux profile."""

    folder: ClassVar[Path] = _HERE

    def extras(self) -> dict[str, Any]:
        """Return the errors by bit error rate and provenance, in points."""
        return {
            "by_bit_error_rate": {
                row: {
                    provenance.value: errors_of(rows)
                    for provenance in COUNTED
                    if (rows := self.main.where(bit_error_rate=row).of(provenance))
                }
                for row in BIT_ERROR_RATES
            }
        }

    def context(self) -> dict[str, Any]:
        """Return figures, columns, and inconsistencies of the published table."""
        small = self.comparisons[BSD_SMALL]
        linux = self.comparisons[LINUX]
        return {
            "columns": columns(),
            "difference_columns": [each for each in columns() if each is not tables.AGREEMENT],
            "tolerance": TOLERANCE,
            "small": small,
            "linux": linux,
            "either_window": either_window(self.main, small),
            "counted": COUNTED,
            "inconsistencies": inconsistencies(self.main),
            "curves": curves(self.main, small),
            "linux_curves": curves(linux),
        }

    @property
    def facts(self) -> str:
        """The line under the report's title."""
        return (
            f"bentpipe {self.configuration['bentpipe_version']}; first seed "
            f"{self.configuration['first_seed']}; "
            f"{self.configuration['runs_of_a_cell_with_bit_errors']} runs of each cell with bit "
            "errors, one of each cell without, which is deterministic"
        )

    def errors_by_rate(self) -> list[list[str]]:
        """Return the mean absolute errors by bit error rate and provenance, as texts."""
        table = []
        for rate in BIT_ERROR_RATES:
            texts = [rate]
            for provenance in COUNTED:
                rows = self.main.where(bit_error_rate=rate).of(provenance)
                texts += [tables.estimate_text(mean_error(rows)), str(len(rows))]
            table.append(texts)
        return table

    def signed_errors(self) -> list[list[str]]:
        """Return the mean errors with their sign by bit error rate and windows, as texts."""
        table = []
        for rate in BIT_ERROR_RATES:
            groups = (
                self.main.where(bit_error_rate=rate, large_windows=each).rows for each in WINDOWS
            )
            errors = (mean_error(rows, absolute=False) for rows in groups)
            table.append([rate, *(tables.estimate_text(each, sign=True) for each in errors)])
        return table

    def terminal(self) -> Iterator[RenderableType]:
        """Yield the table and its errors."""
        yield tables.terminal_table(
            "TCP channel utilization in percent, profile bsd-1997 (error: percentage points)",
            columns(),
            self.main.rows,
        )
        yield ""
        yield from self.headline()
        for provenance in COUNTED:
            errors = (
                (row, self.main.where(bit_error_rate=row).of(provenance)) for row in BIT_ERROR_RATES
            )
            yield f"{provenance.value.capitalize()}, by bit error rate: " + ", ".join(
                f"{row}: {tables.estimate_text(mean_error(rows))}" for row, rows in errors if rows
            )
        yield (
            "Hosts of the linux profile, which the source did not run (difference): "
            + tables.errors_text(self.comparisons[LINUX].rows)
        )


def label_columns() -> tuple[tables.Column, ...]:
    """Return the columns that identify a cell."""
    return (
        tables.label("bit_error_rate", "bit error rate"),
        tables.label("one_way_delay_ms", "one-way delay", "ms"),
        tables.label("large_windows", "large windows"),
    )


def columns() -> tuple[tables.Column, ...]:
    """Return the columns of the table."""
    return (
        *label_columns(),
        *tables.figures(),
        tables.AGREEMENT,
        tables.PROVENANCE,
        tables.RUNS,
    )


def run(
    *,
    runs: int | None = None,
    seed: int = 1,
    executor: Executor | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> JplOutcome:
    """Simulate all cells for both profiles, then read the published table and compare.

    ``runs`` (default 30) is the number of runs of a cell with bit errors, with the seeds ``seed``,
    ``seed`` + 1, ...; a cell without errors is deterministic and runs once.
    """
    count = DEFAULT_RUNS if runs is None else runs
    base = base_scenario()
    jobs: dict[tuple[bool, Cell], list[Job]] = {}
    for linux, cell in (
        *((False, cell) for cell in (*cells(), *small_window_cells())),
        *((True, cell) for cell in cells()),
    ):
        jobs[linux, cell] = jobs_of(cell, scenario_of(cell, base, linux=linux), seed, count)
    work = Work(executor=executor, progress=progress, total=sum(map(len, jobs.values())))
    samples = {key: samples_of(key[1], outcomes) for key, outcomes in work.run(jobs).items()}
    # Every run is over: the published figures may be read.
    return JplOutcome(
        study="jpl",
        title="JPL testbed: TCP channel utilization over satellite delay and bit error rate",
        inputs=inputs(base),
        comparisons=compare(samples, read_published()),
        configuration={
            "bentpipe_version": _core.version(),
            "first_seed": seed,
            "runs_of_a_cell_with_bit_errors": count,
            "runs_of_a_cell_without": 1,
            "scenario": base,
            "tcp_with_64_kb_windows": SMALL_WINDOW,
            "linux": LINUX_HOSTS,
            "linux_tcp_with_64_kb_windows": LINUX_SMALL_WINDOW,
        },
        interrupted=work.interrupted,
    )


def compare(
    samples: Mapping[tuple[bool, Cell], Samples], published: Mapping[Cell, float]
) -> dict[str, Comparison]:
    """Return the table for the profile of the time, with small windows, and for linux hosts."""
    both = {cell: replace(cell, large_windows="both") for cell in small_window_cells()}
    linux = (row_of(cell, published[cell], samples[True, cell]) for cell in cells())
    return {
        BSD: Comparison(
            tuple(row_of(cell, published[cell], samples[False, cell]) for cell in cells())
        ),
        BSD_SMALL: Comparison(
            tuple(
                row_of(cell, published[published_as], samples[False, cell])
                for cell, published_as in both.items()
            )
        ),
        LINUX: Comparison(
            tuple(replace(row, provenance=Provenance.PREDICTED, judged=False) for row in linux)
        ),
    }


def jobs_of(cell: Cell, scenario: Scenario, seed: int, runs: int) -> list[Job]:
    """Return the runs of a cell: ``runs`` if it has random bit errors, else one."""
    plan = Plan.resolve(scenario)
    return [Job(plan=plan, seed=seed + i) for i in range(runs if cell.is_stochastic else 1)]


def samples_of(cell: Cell, outcomes: Sequence[Outcome]) -> Samples:
    """Return the utilization of the runs of a cell."""
    return Samples.of(map(utilization, outcomes), exact=not cell.is_stochastic)


def row_of(cell: Cell, published: float, simulated: Samples) -> Row:
    """Return a cell compared with the published figure."""
    return Row(
        labels=cell.labels,
        unit="%",
        published=published,
        simulated=simulated,
        provenance=cell.provenance,
        tolerance=TOLERANCE,
    )


def utilization(outcome: Outcome) -> float:
    """Return acknowledged information bits over R T, in percent.

    T runs from "established" to the last acknowledgement, as netperf times its transfers.
    """
    elapsed_ns = (
        outcome.column("flows", "last_ack_ns")[0] - outcome.column("flows", "established_ns")[0]
    )
    rate_bps = outcome.job.plan.data["directions"][0]["rate_bps"]["value"]
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


def inputs(base: Mapping[str, Any]) -> tuple[Input, ...]:
    """Return the inputs with their provenance."""
    values = {
        "link.*.delay": f"{SHORT_DELAYS_MS[0]} to {LONG_DELAYS_MS[-1]} ms",
        "link.*.bit_error_rate": ", ".join(BIT_ERROR_RATES),
        "64 KB window": SMALL_WINDOW["receive_buffer"],
    }
    return read_inputs(_HERE / "inputs.csv", base, values)


def inconsistencies(main: Comparison) -> list[str]:
    """Return inconsistencies of the published figures, one sentence each.

    Utilization should not rise with the delay, and not exceed that of the cell without bit errors.
    """
    texts = []
    for name, windows in (("large windows", "yes"), ("64 KB windows", "no")):
        curve = [
            row
            for row in main.where(bit_error_rate="1e-7").rows
            if row.labels["large_windows"] in {"both", windows}
        ]
        texts += [
            f"The published row 1e-7 is not monotone: with {name}, {first.published:g} % at "
            f"{first.labels['one_way_delay_ms']} ms and {second.published:g} % at "
            f"{second.labels['one_way_delay_ms']} ms."
            for first, second in pairwise(curve)
            if (second.published or 0.0) > (first.published or 0.0)
        ]
    clean = {
        (row.labels["one_way_delay_ms"], row.labels["large_windows"]): row.published
        for row in main.where(bit_error_rate="0").rows
    }
    excess = [
        (row.published or 0.0) - (clean[place] or 0.0)
        for row in main.rows
        if (place := (row.labels["one_way_delay_ms"], row.labels["large_windows"])) in clean
    ]
    above = [each for each in excess if each > 0]
    if above:
        texts.append(
            f"{len(above)} published cells with bit errors exceed the cell without errors at the "
            f"same delay, by up to {tables.number(max(above))} points."
        )
    return texts
