"""The study: 44 cells, simulated from one configuration, then compared with the published table.

Cells can be run on the kernel's own TCP, too, over the same link in real time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise, product
from typing import Any, Final

from matplotlib.figure import Figure

from bentpipe.report import INK, PALETTE, add_legend, new_figure
from bentpipe.results import Result, View, channel_utilization
from bentpipe.scenario import Scenario
from bentpipe.simulation import Outcome
from bentpipe.studies.base import tables
from bentpipe.studies.base.comparison import (
    Comparison,
    Row,
    Samples,
    errors_of,
    mean_error,
    read_tolerances,
)
from bentpipe.studies.base.inputs import COUNTED, Provenance, read_rows, read_scenario
from bentpipe.studies.base.outcome import StudyOutcome
from bentpipe.studies.base.real_time import RealCell, RealOutcome, RealWork, cells_by_name
from bentpipe.studies.base.tables import plot_published, plot_samples
from bentpipe.studies.base.work import KERNEL_RENO, Measured, Work
from bentpipe.units import parse_rate

# The rows of the table by their names in the source, and the seven delays in ms.
BIT_ERROR_RATES: Final = {"1e-7": 1e-7, "1e-8": 1e-8, "1e-9": 1e-9, "0": 0.0}
SHORT_DELAYS_MS: Final = (0, 50, 100)
LONG_DELAYS_MS: Final = (150, 200, 250, 300)
# One figure for both windows, that of large windows, that of 64 KB windows.
WINDOWS: Final = ("both", "yes", "no")

# Without the window scale option TCP can advertise at most 65,535 bytes.
SMALL_WINDOW: Final = {
    "window_scaling": False,
    "receive_buffer": "65535 B",
    "receive_buffer_counts": "window",
}
# These replace the scenario's profile and its whole tcp. With ``stack: rfc`` the details follow the
# RFCs, so that the figures are those of the algorithms, not of one kernel.
LINUX_HOSTS: Final[dict[str, Any]] = {"profile": "linux", "tcp": {"stack": "rfc"}}
# `KERNEL_TCP` has a larger initial buffer; that of the linux profile is bounded by receive_buffer.
LINUX_SMALL_WINDOW: Final = {**SMALL_WINDOW, "receive_buffer_initial": "65535 B"}
# The settings of the study's hosts (profile bsd-1997) that the kernel has.
KERNEL_TCP: Final[dict[str, Any]] = {
    **KERNEL_RENO,
    "receive_buffer": "256 KiB",
    "receive_buffer_initial": "256 KiB",
}
# Hosts of the time, of today, and of the time as far as the kernel can be set; `BSD_SMALL` only
# names the comparison of `small_window_cells`.
BSD, BSD_SMALL, LINUX, KERNEL = "bsd-1997", "both_with_64_kb_windows", "linux", "kernel"
# As ``size`` in scenario.yaml.
_TRANSFER_BYTES: Final = 10 << 20
# Simulated runs, at least, beside those in real time of a stochastic cell: a choice.
_SIMULATED_RUNS: Final = 20
UTILIZATION: Final = "utilization_percent"


@dataclass(frozen=True)
class Cell(RealCell):
    """One cell; the windows are ``yes`` (large), ``no`` (64 KB) or ``both``.

    A cell with one published figure for ``both`` is simulated with large windows;
    `small_window_cells` are the same cells with 64 KB. ``hosts`` is `BSD`, `LINUX` or `KERNEL`.
    """

    bit_error_rate: str
    one_way_delay_ms: int
    large_windows: str
    hosts: str = BSD

    @property
    def labels(self) -> dict[str, str | int]:
        """What tells the cell from the others with these hosts."""
        names = ("bit_error_rate", "one_way_delay_ms", "large_windows")
        return {name: getattr(self, name) for name in names}

    @property
    def key(self) -> str:
        """The name on the command line."""
        return ":".join(map(str, self.labels.values()))

    @property
    def expected_s(self) -> float:
        """Twice the time of the transfer at the link's rate: many cells use half of it or more."""
        rate = read_scenario("jpl")["link"]["forward"]["rate"]
        return 2 * 8 * _TRANSFER_BYTES / parse_rate(rate)

    @property
    def is_stochastic(self) -> bool:
        """Return whether the cell has random bit errors."""
        return BIT_ERROR_RATES[self.bit_error_rate] > 0

    @property
    def provenance(self) -> Provenance:
        """The evidential value of the cell.

        The framing is computed from the cell without delay and bit errors. Another value of a
        calibrated setting (the queue, the growth of the window) moves the calibrated cells by more
        than half a point.
        """
        if (self.bit_error_rate, self.one_way_delay_ms) == ("0", 0):
            return Provenance.DERIVED
        if self.large_windows == "no" and self.bit_error_rate in {"0", "1e-9"}:
            return Provenance.PREDICTED
        return Provenance.CALIBRATED

    def scenario(self) -> Scenario:
        """Return the complete scenario."""
        data = read_scenario("jpl")
        where = f"{self.bit_error_rate}, {self.one_way_delay_ms} ms, {self.large_windows}"
        data["name"] = f"{data['name']}: {where}"
        for direction in ("forward", "return"):
            data["link"][direction]["delay"] = f"{self.one_way_delay_ms} ms"
            data["link"][direction]["bit_error_rate"] = BIT_ERROR_RATES[self.bit_error_rate]
        (flow,) = data["traffic"]
        settings = {LINUX: LINUX_HOSTS, KERNEL: {"profile": "linux", "tcp": KERNEL_TCP}}
        flow |= settings.get(self.hosts, {})
        if self.large_windows == "no":
            flow["tcp"] = flow["tcp"] | (SMALL_WINDOW if self.hosts == BSD else LINUX_SMALL_WINDOW)
        return Scenario.from_dict(data)

    def figures(self, outcome: Outcome) -> dict[str, float | None]:
        """Return the channel utilization: acknowledged information bits over R T, in percent.

        R is the link's rate. T runs from "established" to the last acknowledgement, as netperf
        times its transfers.
        """
        elapsed_ns = (
            outcome.column("flows", "last_ack_ns")[0] - outcome.column("flows", "established_ns")[0]
        )
        rate_bps = outcome.job.plan.data["directions"][0]["rate_bps"]["value"]
        acked_bytes = outcome.column("flows", "acked_bytes")[0]
        return {UTILIZATION: float(channel_utilization(acked_bytes, rate_bps, elapsed_ns))}

    def measure(self, result: Result) -> dict[str, float | None]:
        """Return the same of a run in real time; None without a complete transfer.

        The last acknowledgement arrives one delay after the receiver has all data.
        """
        row = result.flows.row(0, named=True)
        if row["finished_ns"] is None or row["established_ns"] is None:
            return {UTILIZATION: None}
        forward, back = result.plan["directions"]
        elapsed_ns = row["finished_ns"] + back["delay_ns"]["value"] - row["established_ns"]
        rate_bps, delivered_bytes = forward["rate_bps"]["value"], row["delivered_bytes"]
        return {UTILIZATION: float(channel_utilization(delivered_bytes, rate_bps, elapsed_ns))}


def cells(hosts: str = BSD) -> tuple[Cell, ...]:
    """Return the 44 cells in the order of the source."""
    short = product(SHORT_DELAYS_MS, ("both",))
    columns = (*short, *product(LONG_DELAYS_MS, ("yes", "no")))
    return tuple(Cell(row, *column, hosts) for row, column in product(BIT_ERROR_RATES, columns))


def small_window_cells() -> tuple[Cell, ...]:
    """Return the cells with one published figure for both windows, with 64 KB ones."""
    return tuple(
        replace(cell, large_windows="no") for cell in cells() if cell.large_windows == "both"
    )


def either_window(main: Comparison, small: Comparison) -> Comparison:
    """Return the table with 64 KB windows where one published figure serves both windows."""
    others = {row.name: row for row in small.rows}
    names = ((row.name.replace("both", "no"), row) for row in main.rows)
    return Comparison(tuple(others.get(name, row) for name, row in names))


# "both" holds for either window.
_CURVES: Final = {"large windows": ("both", "yes"), "64 KB windows": ("both", "no")}


def curves(main: Comparison, small: Comparison | None = None) -> Figure:
    """Draw a panel for each bit error rate; ``small`` as in `either_window`.

    Without ``small``, the curve of 64 KB windows has large ones where a figure is for both.
    """
    with_small = main if small is None else either_window(main, small)
    figure, panels = new_figure(2, 2, height_in=5.4)
    for axes, rate in zip(panels, BIT_ERROR_RATES, strict=True):
        for colour, (name, windows) in zip(PALETTE, _CURVES.items(), strict=False):
            ours = main if "yes" in windows else with_small
            pairs = zip(main.rows, ours.rows, strict=True)
            rows = [
                drawn
                for row, drawn in pairs
                if row.labels["bit_error_rate"] == rate and row.labels["large_windows"] in windows
            ]
            delays_ms = [float(row.labels["one_way_delay_ms"]) for row in rows]
            plot_samples(axes, delays_ms, [row.simulated for row in rows], color=colour, label=name)
            plot_published(axes, delays_ms, rows, colour)
        title = "no bit errors" if rate == "0" else f"bit error rate {rate}"
        axes.text(0.03, 0.06, title, transform=axes.transAxes, fontsize=10, color=INK)
        axes.set(xlabel="One-way delay [ms]", ylabel="Channel utilization [%]", ylim=(0, 100))
        axes.label_outer()
    add_legend(panels[0])
    return figure


(TOLERANCE,) = read_tolerances("jpl")
_view: Final = partial(tables.view, "jpl")


@dataclass(frozen=True, kw_only=True)
class JplOutcome(StudyOutcome):
    """The table for the bsd-1997 profile of the testbed, and for the linux profile."""

    def extras(self) -> dict[str, Any]:
        """Return the errors by bit error rate and provenance, in points."""
        by_rate = {
            rate: {
                provenance.value: errors_of(rows)
                for provenance in COUNTED
                if (rows := self._rows(rate, provenance))
            }
            for rate in BIT_ERROR_RATES
        }
        return {"by_bit_error_rate": by_rate}

    def context(self) -> dict[str, Any]:
        """Return figures, tables, and inconsistencies of the published table."""
        small, linux = self.comparisons[BSD_SMALL], self.comparisons[LINUX]
        return {
            "tolerances": (TOLERANCE,),
            "main_table": _view("main", self.main.rows, tolerance=TOLERANCE),
            "small_table": _view("small", small.rows),
            "linux_table": _view("linux", linux.rows),
            "linux": linux,
            **self._errors_views(),
            "either_window": either_window(self.main, small),
            "counted": COUNTED,
            "inconsistencies": inconsistencies(self.main),
            "curves": curves(self.main, small),
            "linux_curves": curves(linux),
        }

    def _errors_views(self) -> dict[str, View]:
        """Return the mean errors by bit error rate and provenance, and with sign by windows."""
        errors: list[list[Any]] = []
        signed: list[list[Any]] = []
        for rate in BIT_ERROR_RATES:
            groups = [self._rows(rate, provenance) for provenance in COUNTED]
            errors.append([rate, *(x for rows in groups for x in (mean_error(rows), len(rows)))])
            of_rate = (self.main.where(bit_error_rate=rate, large_windows=w).rows for w in WINDOWS)
            signed.append([rate, *(mean_error(rows, absolute=False) for rows in of_rate)])
        return {"errors_by_rate": _view("errors", errors), "signed_errors": _view("signed", signed)}

    def terminal(self) -> Iterator[View | str]:
        """Yield the table and its errors."""
        yield _view("terminal", self.main.rows)
        yield ""
        yield from self.headline()
        for provenance in COUNTED:
            errors = ((rate, self._rows(rate, provenance)) for rate in BIT_ERROR_RATES)
            yield f"{provenance.value.capitalize()}, by bit error rate: " + ", ".join(
                f"{rate}: {tables.estimate_text(mean_error(rows))}" for rate, rows in errors if rows
            )
        yield (
            "Hosts of the linux profile, which the source did not run (difference): "
            + tables.errors_text(self.comparisons[LINUX].rows)
        )

    def _rows(self, rate: str, provenance: Provenance) -> tuple[Row, ...]:
        return self.main.where(bit_error_rate=rate).of(provenance)


def run(work: Work) -> JplOutcome:
    """Simulate all cells for both profiles, then read the published table and compare."""
    measured = work.measure((*cells(), *small_window_cells(), *cells(LINUX)))
    # Every run is over: the published figures may be read.
    return work.outcome(
        JplOutcome,
        compare(measured, read_published()),
        {
            "runs_of_a_cell_with_bit_errors": work.runs,
            "runs_of_a_cell_without": 1,
            "scenario": read_scenario("jpl"),
            "tcp_with_64_kb_windows": SMALL_WINDOW,
            "linux": LINUX_HOSTS,
            "linux_tcp_with_64_kb_windows": LINUX_SMALL_WINDOW,
        },
        about_runs=f"first seed {work.seed}; {work.runs} runs of each cell with bit errors, one of "
        "each cell without, which is deterministic",
    )


def run_real_time(work: RealWork) -> RealOutcome:
    """Run cells in real time, and simulate them with both hosts."""
    table = cells_named(work.chosen)
    measurements = work.compare(
        {cell: replace(cell, hosts=KERNEL) for cell in table}, runs=_SIMULATED_RUNS
    )
    # Every run is over: the published figures may be read.
    published = read_published()
    rows = (
        measurement.row(
            row_of(cell, published[cell], measurement.simulated[UTILIZATION]), UTILIZATION
        )
        for cell, measurement in measurements.items()
    )
    return work.outcome(
        RealOutcome,
        {BSD: Comparison(tuple(rows))},
        {
            "simulated_runs_of_a_cell_with_bit_errors": max(_SIMULATED_RUNS, work.runs),
            "tcp": KERNEL_TCP,
            "tcp_with_64_kb_windows": KERNEL_TCP | LINUX_SMALL_WINDOW,
        },
        labels=tables.columns("jpl", "main")[:3],
        folder=work.folder,
    )


def cells_named(chosen: str | None) -> tuple[Cell, ...]:
    """Return cells by `BIT_ERROR_RATE[:DELAY_MS[:WINDOWS]]`, as `cells_by_name` does."""
    return cells_by_name("jpl", chosen, {cell: (cell.key,) for cell in cells()})


def compare(measured: Measured[Cell], published: Mapping[Cell, float]) -> dict[str, Comparison]:
    """Return the table for the profile of the time, with small windows, and for linux hosts."""
    every = {
        BSD: zip(cells(), cells(), strict=True),
        BSD_SMALL: ((cell, replace(cell, large_windows="both")) for cell in small_window_cells()),
        LINUX: zip(cells(LINUX), cells(), strict=True),
    }
    compared = {
        name: tuple(row_of(c, published[of], measured[c][UTILIZATION]) for c, of in pairs)
        for name, pairs in every.items()
    }
    # No published value is of these hosts: a difference, not an error.
    compared[LINUX] = tuple(
        replace(row, provenance=Provenance.PREDICTED, judged=False) for row in compared[LINUX]
    )
    return {name: Comparison(rows) for name, rows in compared.items()}


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


def read_published() -> dict[Cell, float]:
    """Return the published utilization of every cell, in percent."""
    rows = (row.values() for row in read_rows("jpl", "published.csv"))
    return {Cell(rate, int(ms), windows): float(percent) for rate, ms, windows, percent in rows}


def inconsistencies(main: Comparison) -> list[str]:
    """Return where published utilization rises, in sentences: with the delay or with bit errors.

    Of the rows, only 1e-7 rises with the delay.
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
    values = {tuple(row.labels.values()): row.published or 0.0 for row in main.rows}
    excess = (value - values.get(("0", *place), value) for (_, *place), value in values.items())
    above = [difference for difference in excess if difference > 0]
    if above:
        texts.append(
            f"{len(above)} published cells with bit errors exceed the cell without errors at the "
            f"same delay, by up to {tables.number(max(above))} points."
        )
    return texts
