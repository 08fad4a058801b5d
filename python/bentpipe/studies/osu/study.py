"""The study: buffers from two round trips down to 1/64, sources from 5 to 100."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bentpipe.report import INK, MUTED, PALETTE, add_legend, log_axis, new_figure
from bentpipe.results import Column, View
from bentpipe.studies.base import tables
from bentpipe.studies.base.comparison import (
    Comparison,
    Measurement,
    Row,
    difference,
    read_tolerances,
)
from bentpipe.studies.base.inputs import COUNTED, Provenance, read_rows, read_scenario
from bentpipe.studies.base.outcome import StudyOutcome
from bentpipe.studies.base.tables import add_figure_legend, margin_text, number, plot_samples
from bentpipe.studies.base.work import Measured, Work
from bentpipe.studies.osu import cells
from bentpipe.studies.osu.cells import Cell

EFFICIENCY, RISE, FAIRNESS, SENSITIVITY = "efficiency", "rise", "fairness", "sensitivity"
# Shown with the efficiency of each cell.
FIGURES: Final = (
    "efficiency_whole_run",
    "fairness",
    "fairness_after_warm_up",
    "recoveries_per_source",
    "timeouts_per_source",
)
# The buffers down to which cells are to be fair, and by what: the source says "high".
SMALLEST_FAIR_BUFFER_K: Final = 3
MIN_FAIRNESS: Final = 0.95
FAIR, ENOUGH, NOISE = read_tolerances("osu")

# All sources halve at a loss, or every second one.
SHARES: Final = (1.0, 0.5)
# R of selective drop: the buffer fills no further when all sources have their share.
_FILLED: Final = 0.9


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What the source says in text, what is checked of it, and the bound."""

    published: str
    claim: str
    min_value: float
    from_buffer_rtt: float


Claims = Mapping[str, Claim]


def read_claims() -> dict[str, Claim]:
    """Return the claims by the comparison that checks each."""
    return {
        row["comparison"]: Claim(
            published=row["published"],
            claim=row["claim"],
            min_value=float(row["min_value"]),
            from_buffer_rtt=float(row["from_buffer_rtt"] or 0),
        )
        for row in read_rows("osu", "claims.csv")
    }


def compare(measured: Measured[Cell], claims: Claims) -> dict[str, Comparison]:
    """Return the comparisons for the three claims, which are all about selective drop.

    That of the efficiency has every cell; where nothing is claimed, the row has no published value.
    """
    selective = [cell for cell in measured if cell.discipline == cells.SELECTIVE]
    halves = [(cell, replace(cell, k=cell.k + 1)) for cell in selective]
    rises = (rise_row(measured, *pair) for pair in halves if pair[1] in measured)
    fair = (
        fairness_row(cell, measured[cell], claims[FAIRNESS])
        for cell in selective
        if cell.buffer_rtt >= claims[FAIRNESS].from_buffer_rtt
    )
    every = (efficiency_row(*pair, claims[EFFICIENCY]) for pair in measured.items())
    by_claim = {EFFICIENCY: every, RISE: rises, FAIRNESS: fair}
    return {name: Comparison(tuple(rows)) for name, rows in by_claim.items()}


def efficiency_row(cell: Cell, measurement: Measurement, claim: Claim) -> Row:
    """Return a cell with its efficiency; the claim is on selective drop and large buffers."""
    is_claimed = cell.discipline == cells.SELECTIVE and cell.buffer_rtt >= claim.from_buffer_rtt
    together, half = halving(cell.k)
    return _row(
        cell,
        unit="%",
        published=claim.min_value if is_claimed else None,
        simulated=measurement[EFFICIENCY],
        tolerance=ENOUGH,
        reason=(
            "In theory, with this buffer equal sources that all halve at once leave "
            f"{number(together)} %, with every second one {number(half)} %: too many lose in the "
            "same round trip, or too much is lost in slow start to recover before the end "
            f"({number(measurement['recoveries_per_source'].mean)} recoveries a source)."
        ),
        more={
            "one_way_ms": cell.route.one_way_ms,
            "rtt_ms": cell.route.rtt_ms,
            "mss_bytes": cell.route.mss_bytes,
            "buffer_cells": cell.buffer_cells,
            **{figure: measurement[figure] for figure in FIGURES},
        },
    )


def rise_row(measured: Measured[Cell], cell: Cell, half: Cell) -> Row:
    """Return how much efficiency twice the buffer gains."""
    small, large = measured[half], measured[cell]
    whole_run, gain = (
        difference(small.by_seed(figure), large.by_seed(figure))
        for figure in ("efficiency_whole_run", EFFICIENCY)
    )
    reason = (
        f"The efficiency is {margin_text(large[EFFICIENCY])} %, and "
        f"{margin_text(small[EFFICIENCY])} % with half of the buffer; over the whole run, twice "
        f"the buffer gains {margin_text(whole_run)} points"
    )
    if (whole_run.mean or 0.0) >= -NOISE.value:
        reason += ", so that the smaller buffer only delivers more of it after the warm-up"
    row = _row(
        cell,
        unit="points",
        published=0.0,
        simulated=gain,
        tolerance=NOISE,
        how="Efficiency less that with half of the buffer, by pairs of runs with the same seed.",
        reason=f"{reason}.",
        more={"whole_run": whole_run},
    )
    # With windows that grow by bytes, these rows lose 1 to 2 points.
    is_calibrated = (cell.route_name, cell.k) == (cells.LEO_SINGLE, 4)
    return replace(row, provenance=Provenance.CALIBRATED) if is_calibrated else row


def fairness_row(cell: Cell, measurement: Measurement, claim: Claim) -> Row:
    """Return the fairness of a cell against the study's own bound."""
    recoveries = measurement["recoveries_per_source"]
    return _row(
        cell,
        unit="(Jain's index)",
        published=claim.min_value,
        simulated=measurement[FAIRNESS],
        tolerance=FAIR,
        how=f"The source says 'high'; {claim.min_value:g} is this study's bound.",
        reason=(
            f"{number(recoveries.mean, 1)} loss recoveries a source in the run: windows are halved "
            "at random, and so few halvings do not even them out."
        ),
        more={"recoveries_per_source": recoveries},
    )


def _row(cell: Cell, **values: Any) -> Row:
    return Row(
        labels=cell.labels,
        title=cell.title,
        provenance=cell.provenance,
        bound="at_least",
        **values,
    )


def sensitivity_row(changed: str, measured: Mapping[Cell, Measurement]) -> Row:
    """Return the cells of a variant together; nothing is published for it."""
    half, eighth = (
        [measurement for cell, measurement in measured.items() if cell.k == k]
        for k in cells.VARIANT_KS
    )
    every = list(measured.values())
    return Row(
        labels={"changed": changed},
        unit="%",
        published=None,
        simulated=cells.mean_over(half, EFFICIENCY),
        provenance=Provenance.PREDICTED,
        tolerance=ENOUGH,
        how="Mean efficiency of the cells with selective drop and half a round trip of buffer.",
        more={
            "efficiency_min": cells.lowest(half, EFFICIENCY),
            "efficiency_at_eighth_rtt": cells.mean_over(eighth, EFFICIENCY),
            "fairness_min": cells.lowest(every, FAIRNESS),
            "fairness": cells.mean_over(every, FAIRNESS),
        },
    )


def efficiency_if_halving(buffer_rtt: float, share: float) -> float:
    """Return the efficiency in percent when a share of equal sources halves at each loss.

    In theory, with windows in bandwidth-delay products: the sum of the windows grows to the link
    and the filled buffer, ``1 + b``, falls to ``w = (1 + b) (1 - share / 2)`` and grows evenly. A
    round trip takes 1 up to the window 1, and as long as the window above. Below 1 the link sends
    what the window lets it, above it is busy.
    """
    highest = 1 + buffer_rtt
    lowest = highest * (1 - share / 2)
    if lowest >= 1:
        return 100.0
    busy = (highest**2 - 1) / 2
    return 100 * ((1 - lowest**2) / 2 + busy) / (1 - lowest + busy)


def halving(k: int) -> list[float]:
    """Return these efficiencies with a buffer of 2^-k round trips, for each of `SHARES`.

    The buffer fills no further than selective drop lets it.
    """
    return [efficiency_if_halving(_FILLED * 2.0**-k, share) for share in SHARES]


_COLOURS: Final = dict(zip((5, 15, 50, 100), PALETTE, strict=False))
_LINES: Final[dict[str, dict[str, Any]]] = {
    cells.SELECTIVE: {"linestyle": "solid", "marker": "o", "markersize": 3.5},
    cells.DROP_TAIL: {"linestyle": "dashed"},
}
_GUIDE: Final[dict[str, Any]] = {"color": MUTED, "linewidth": 1.0}
# As `SHARES`.
_THEORY: Final = {"all halve at once": "dotted", "every second halves": "dashdot"}


def efficiency_figure(measured: Measured[Cell]) -> Figure:
    """Draw efficiency over the buffer, a panel for each scenario."""
    figure, panels = _panels(measured, "efficiency", "Efficiency [%]")
    curves = zip(_THEORY.items(), zip(*map(halving, cells.KS), strict=True), strict=True)
    for ((name, line), curve), axes in product(curves, panels):
        label = name if axes is panels[0] else None
        axes.plot([-k for k in cells.KS], curve, label=label, linestyle=line, **_GUIDE)
        axes.set_ylim(40, 101)
    add_figure_legend(figure, panels[0], columns=4)
    return figure


def fairness_figure(measured: Measured[Cell]) -> Figure:
    """Draw Jain's index over the buffer, a panel for each scenario."""
    figure, panels = _panels(measured, "fairness", "Fairness (Jain)")
    for axes in panels:
        axes.axhline(MIN_FAIRNESS, linestyle="dotted", **_GUIDE)
        axes.set_ylim(0.78, 1.002)
    add_figure_legend(figure, panels[0], columns=4)
    return figure


def losses_figure(measured: Measured[Cell]) -> Figure:
    """Draw fairness over loss recoveries a source: a mark for each cell with selective drop."""
    figure, (axes,) = new_figure(1, 1, height_in=3.0)
    for colour, scenario in zip(PALETTE, cells.ROUTES, strict=False):
        measurements = [
            measurement
            for cell, measurement in measured.items()
            if (cell.route_name, cell.discipline) == (scenario, cells.SELECTIVE)
            and measurement.runs
        ]
        axes.plot(
            [measurement["recoveries_per_source"].mean or 0.0 for measurement in measurements],
            [measurement["fairness"].mean or 0.0 for measurement in measurements],
            linestyle="none",
            marker="o",
            markersize=4,
            color=colour,
            label=scenario,
        )
    axes.axhline(MIN_FAIRNESS, linestyle="dotted", **_GUIDE)
    log_axis(axes.xaxis)
    axes.set(xlabel="Loss recoveries of each source in the run", ylabel="Fairness (Jain)")
    add_legend(axes)
    return figure


def _panels(measured: Measured[Cell], name: str, label: str) -> tuple[Figure, list[Axes]]:
    figure, panels = new_figure(2, 2, height_in=5.6)
    x = [-k for k in cells.KS]
    for axes, (scenario, route) in zip(panels, cells.ROUTES.items(), strict=True):
        for sources, (discipline, style) in product(route.sources, _LINES.items()):
            curve = (Cell(scenario, sources, k, discipline) for k in cells.KS)
            plot_samples(axes, x, measured.line(curve, name), color=_COLOURS[sources], **style)
        axes.text(0.97, 0.06, scenario, transform=axes.transAxes, ha="right", color=INK)
        axes.set_xticks(x, [f"1/{2**k}" if k > 0 else str(2**-k) for k in cells.KS])
        axes.set(xlabel="Buffer [round trips at the link's rate]", ylabel=label)
        axes.label_outer()
    for sources, colour in _COLOURS.items():
        panels[0].plot([], [], color=colour, label=f"{sources} sources")
    for discipline, style in _LINES.items():
        panels[0].plot([], [], color=INK, label=discipline.replace("_", " "), **style)
    return figure, panels


DIGITS: Final = {EFFICIENCY: 2, RISE: 2, FAIRNESS: 3}
_view: Final = partial(tables.view, "osu")
_TAIL: Final = ", drop-tail"
_CURVES: Final = {
    EFFICIENCY: "Efficiency in percent after the warm-up, over the buffer (2^-k round trips)",
    FAIRNESS: "Fairness (Jain's index) over the whole run",
}


@dataclass(frozen=True, kw_only=True)
class OsuOutcome(StudyOutcome):
    """All cells, the variants, and what the source says."""

    measured: Measured[Cell]
    claims: Claims

    def extras(self) -> dict[str, Any]:
        """Return the claims in words."""
        return {
            "published_claims": [claim.published for claim in self.claims.values()],
            "claims": {name: claim.claim for name, claim in self.claims.items()},
        }

    def headline(self) -> list[str]:
        """Return the outcome of each claim, by provenance."""
        texts = []
        for name, claim in self.claims.items():
            known = [row for row in self.comparisons[name].rows if row.error is not None]
            texts.append(f"{claim.claim}.")
            for provenance in COUNTED:
                if rows := [row for row in known if row.provenance is provenance]:
                    texts[-1] += f" {provenance.value.capitalize()}: {tables.errors_text(rows)}"
            if known:
                row = min(known, key=lambda row: row.error or 0.0)
                mean = margin_text(row.simulated, DIGITS[name])
                texts[-1] += f" Lowest: {mean} {row.unit}, {row.name}."
        return texts

    def terminal(self) -> Iterator[View | str]:
        """Yield efficiency and fairness over the buffer and, below them, the claims."""
        for figure, title in _CURVES.items():
            yield curves_view(self.measured, figure, title)
            yield ""
        for name, claim in zip(self.claims, self.headline(), strict=True):
            yield claim
            for row in self.comparisons[name].outside:
                text = tables.row_text(row, DIGITS[name])
                yield f"  outside: {row.name}: {text}. {row.reason}"

    def context(self) -> dict[str, Any]:
        """Return figures, tables, and the numbers in the report's prose."""
        fair = {
            discipline: [
                measured
                for cell, measured in self.measured.items()
                if cell.discipline == discipline and cell.k <= SMALLEST_FAIR_BUFFER_K
            ]
            for discipline in cells.DISCIPLINES
        }
        few = self.main.where(
            scenario=cells.LEO_SINGLE, sources=15, discipline=cells.SELECTIVE
        ).rows
        halved = [[row["k"], *halving(row["k"]), row.simulated] for row in few]
        return {
            **self.comparisons,
            "runs": self.configuration["runs_of_a_cell"],
            "claims": self.claims.values(),
            "efficiency_figure": efficiency_figure(self.measured),
            "fairness_figure": fairness_figure(self.measured),
            "losses_figure": losses_figure(self.measured),
            "margin_text": margin_text,
            "mean_over": {
                discipline: {figure: cells.mean_over(measurements, figure) for figure in _CURVES}
                for discipline, measurements in fair.items()
            },
            "halving_table": _view("halving", halved),
            "cells_table": _view("cells", self._cells_beside_drop_tail()),
            "sensitivity_table": _view("sensitivity", self.comparisons[SENSITIVITY].rows),
            "tolerances": (ENOUGH, NOISE, FAIR),
        }

    def _cells_beside_drop_tail(self) -> tuple[Row, ...]:
        tails = self.main.where(discipline="drop_tail").rows
        beside = {
            "fair": self.comparisons[FAIRNESS],
            "tail": Comparison(tuple(replace(t, title=t.title.removesuffix(_TAIL)) for t in tails)),
        }
        return self.main.where(discipline=cells.SELECTIVE).beside(**beside)


def curves_view(measured: Measured[Cell], figure: str, title: str) -> View:
    """Return a figure over the buffer, a row for each curve."""
    columns = [
        *(Column(name, name, text=str) for name in ("scenario", "sources", "discipline")),
        *(
            Column(f"{figure}_{k}", f"k = {k}", text=partial(margin_text, digits=DIGITS[figure]))
            for k in cells.KS
        ),
    ]
    rows: list[list[Any]] = []
    for discipline, (scenario, route) in product(cells.DISCIPLINES, cells.ROUTES.items()):
        for sources in route.sources:
            curve = [Cell(scenario, sources, k, discipline) for k in cells.KS]
            if any(cell in measured for cell in curve):
                values = (measured[cell][figure] if cell in measured else None for cell in curve)
                rows.append([scenario, sources, discipline, *values])
    return View(title, columns, rows, key=3)


def run(
    work: Work,
    *,
    grid: Sequence[Cell] | None = None,
    variants: Sequence[cells.Variant] = cells.VARIANTS,
) -> OsuOutcome:
    """Simulate all cells and the variants, then read what the source says and compare.

    A variant has at most 3 runs of a cell. ``grid`` are the cells to measure, all of them by
    default; a variant takes those with selective drop and a buffer of 1/2 or 1/8 round trip.
    """
    few = min(work.runs, cells.MAX_VARIANT_RUNS)
    grid = tuple(cells.cells() if grid is None else grid)
    some = [
        cell for cell in grid if cell.k in cells.VARIANT_KS and cell.discipline == cells.SELECTIVE
    ]
    varied = {
        variant.name: [replace(cell, variant_name=variant.name) for cell in some]
        for variant in variants
    }
    every = dict.fromkeys(grid, work.runs)
    every |= {cell: few for of_variant in varied.values() for cell in of_variant}

    # Long runs first, so that no core is left with one at the end.
    def length(cell: Cell) -> tuple[int, int]:
        return cell.variant.duration_s, -cell.route.mss_bytes

    measured = work.measure({cell: every[cell] for cell in sorted(every, key=length, reverse=True)})
    # Every run is over: the source's claims may be read.
    claims = read_claims()
    by_cell = Measured({cell: measured[cell] for cell in grid})
    sensitivity = {"nothing": {cell: measured[cell].first(few) for cell in some}}
    sensitivity |= {
        name: {cell: measured[cell] for cell in of_variant} for name, of_variant in varied.items()
    }
    rows = tuple(sensitivity_row(*pair) for pair in sensitivity.items())
    return work.outcome(
        OsuOutcome,
        {**compare(by_cell, claims), SENSITIVITY: Comparison(rows)},
        {
            "runs_of_a_cell": work.runs,
            "runs_of_a_cell_in_a_variant": few,
            "warm_up_s": cells.WARM_UP_S,
            "starts_within_ms": cells.BASE.start_within_ms,
            "scenario": read_scenario("osu"),
        },
        about_runs=f"first seed {work.seed}; {work.runs} runs of each cell",
        measured=by_cell,
        claims=claims,
    )
