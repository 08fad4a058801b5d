"""The study: 44 cells, simulated from one configuration, then compared with the published table.

The cells are made in code and the published figures are read after the last run, so that no run can
depend on them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from bentpipe.results.measures import channel_utilization
from bentpipe.results.views import View
from bentpipe.scenario.schema import Scenario
from bentpipe.simulation.many import Job, Outcome
from bentpipe.studies.base import tables
from bentpipe.studies.base.comparison import Comparison, Row, Tolerance, errors_of, mean_error
from bentpipe.studies.base.files import read_rows, read_scenario
from bentpipe.studies.base.outcome import StudyOutcome
from bentpipe.studies.base.provenance import COUNTED, Input, Provenance, read_inputs
from bentpipe.studies.base.samples import Samples
from bentpipe.studies.base.work import Work, jobs_of
from bentpipe.studies.jpl.cells import (
    BIT_ERROR_RATES,
    LINUX_HOSTS,
    LINUX_SMALL_WINDOW,
    LONG_DELAYS_MS,
    SHORT_DELAYS_MS,
    SMALL_WINDOW,
    WINDOWS,
    Cell,
    cells,
    either_window,
    scenario_of,
    small_window_cells,
)
from bentpipe.studies.jpl.plots import curves

if TYPE_CHECKING:
    from typing import Unpack

    from bentpipe.studies import RunOptions

TOLERANCE: Final = Tolerance(
    1.0,
    "points",
    "published cells with bit errors exceed the cell without errors at the same delay by up to 0.3 "
    "points, so the table itself is uncertain by that much; this is three times as much.",
)

BSD, BSD_SMALL, LINUX = "bsd-1997", "both_with_64_kb_windows", "linux"
_view: Final = partial(tables.view, "jpl")


@dataclass(frozen=True, kw_only=True)
class JplOutcome(StudyOutcome):
    """The table for the bsd-1997 profile of the testbed, and for the linux profile."""

    def extras(self) -> dict[str, Any]:
        """Return the errors by bit error rate and provenance, in points."""
        found: dict[str, dict[str, Any]] = {}
        for rate in BIT_ERROR_RATES:
            groups = ((each, self._rows(rate, each)) for each in COUNTED)
            found[rate] = {each.value: errors_of(rows) for each, rows in groups if rows}
        return {"by_bit_error_rate": found}

    def context(self) -> dict[str, Any]:
        """Return figures, tables, and inconsistencies of the published table."""
        small, linux = self.comparisons[BSD_SMALL], self.comparisons[LINUX]
        return {
            "tolerances": (TOLERANCE,),
            "main_table": _view("main", self.main.rows, tolerance=TOLERANCE),
            "small_table": _view("small", small.rows),
            "linux_table": _view("linux", linux.rows),
            "linux": linux,
            "errors_by_rate": self.errors_by_rate(),
            "signed_errors": self.signed_errors(),
            "either_window": either_window(self.main, small),
            "counted": COUNTED,
            "inconsistencies": inconsistencies(self.main),
            "curves": curves(self.main, small),
            "linux_curves": curves(linux),
        }

    def errors_by_rate(self) -> View:
        """Return the mean absolute errors by bit error rate and provenance."""
        rows: list[list[Any]] = []
        for rate in BIT_ERROR_RATES:
            groups = [self._rows(rate, each) for each in COUNTED]
            rows.append([rate, *(x for rows in groups for x in (mean_error(rows), len(rows)))])
        return _view("errors", rows)

    def signed_errors(self) -> View:
        """Return the mean errors with their sign by bit error rate and windows."""
        rows: list[list[Any]] = []
        for rate in BIT_ERROR_RATES:
            groups = (self.main.where(bit_error_rate=rate, large_windows=each) for each in WINDOWS)
            rows.append([rate, *(mean_error(group.rows, absolute=False) for group in groups)])
        return _view("signed", rows)

    def terminal(self) -> Iterator[View | str]:
        """Yield the table and its errors."""
        yield _view("terminal", self.main.rows)
        yield ""
        yield from self.headline()
        for each in COUNTED:
            errors = ((rate, self._rows(rate, each)) for rate in BIT_ERROR_RATES)
            yield f"{each.value.capitalize()}, by bit error rate: " + ", ".join(
                f"{rate}: {tables.estimate_text(mean_error(rows))}" for rate, rows in errors if rows
            )
        yield (
            "Hosts of the linux profile, which the source did not run (difference): "
            + tables.errors_text(self.comparisons[LINUX].rows)
        )

    def _rows(self, rate: str, provenance: Provenance) -> tuple[Row, ...]:
        return self.main.where(bit_error_rate=rate).of(provenance)


def run(**options: Unpack[RunOptions]) -> JplOutcome:
    """Simulate all cells for both profiles, then read the published table and compare.

    A cell without bit errors is deterministic and runs once.
    """
    work = Work("jpl", **options)
    base = read_scenario("jpl")
    jobs = {
        (linux, cell): jobs_of_cell(cell, scenario_of(cell, base, linux=linux), work)
        for linux, every in ((False, (*cells(), *small_window_cells())), (True, cells()))
        for cell in every
    }
    samples = {key: samples_of(key[1], outcomes) for key, outcomes in work.run(jobs).items()}
    # Every run is over: the published figures may be read.
    return JplOutcome(
        study="jpl",
        title="JPL testbed: TCP channel utilization over satellite delay and bit error rate",
        inputs=inputs(base),
        comparisons=compare(samples, read_published()),
        configuration=work.configuration(
            runs_of_a_cell_with_bit_errors=work.runs,
            runs_of_a_cell_without=1,
            scenario=base,
            tcp_with_64_kb_windows=SMALL_WINDOW,
            linux=LINUX_HOSTS,
            linux_tcp_with_64_kb_windows=LINUX_SMALL_WINDOW,
        ),
        interrupted=work.interrupted,
        about_runs=f"first seed {work.seed}; {work.runs} runs of each cell with bit errors, one of "
        "each cell without, which is deterministic",
    )


def compare(
    samples: Mapping[tuple[bool, Cell], Samples], published: Mapping[Cell, float]
) -> dict[str, Comparison]:
    """Return the table for the profile of the time, with small windows, and for linux hosts."""
    main, linux = (
        tuple(row_of(cell, published[cell], samples[hosts, cell]) for cell in cells())
        for hosts in (False, True)
    )
    small = (
        row_of(cell, published[replace(cell, large_windows="both")], samples[False, cell])
        for cell in small_window_cells()
    )
    predicted = (replace(row, provenance=Provenance.PREDICTED, judged=False) for row in linux)
    return {
        BSD: Comparison(main),
        BSD_SMALL: Comparison(tuple(small)),
        LINUX: Comparison(tuple(predicted)),
    }


def jobs_of_cell(cell: Cell, scenario: Scenario, work: Work) -> list[Job]:
    """Return the runs of a cell: several if it has random bit errors, else one."""
    return jobs_of(scenario, work.seeds(None if cell.is_stochastic else 1))


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
        for row in read_rows("jpl", "published.csv")
    }


def inputs(base: Mapping[str, Any]) -> tuple[Input, ...]:
    """Return the inputs with their provenance."""
    values = {
        "link.*.delay": f"{SHORT_DELAYS_MS[0]} to {LONG_DELAYS_MS[-1]} ms",
        "link.*.bit_error_rate": ", ".join(BIT_ERROR_RATES),
        "64 KB window": SMALL_WINDOW["receive_buffer"],
    }
    return read_inputs("jpl", base, values)


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
