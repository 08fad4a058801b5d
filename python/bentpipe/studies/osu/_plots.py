"""The study's figures: efficiency and fairness over the buffer, and fairness over losses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from bentpipe.report.style import INK, MUTED, PALETTE, STYLE, add_legend, new_figure
from bentpipe.studies.osu._checks import (
    MIN_FAIRNESS,
    efficiency_if_halving,
    filled_buffer_rtt,
)
from bentpipe.studies.osu.study import KS, ROUTES, Measurement, OsuOutcome

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS: Final = dict(zip((5, 15, 50, 100), PALETTE, strict=False))
_LINES: Final = {"selective_drop": "solid", "drop_tail": "dashed"}
_MARKERS: Final = {"selective_drop": "o", "drop_tail": ""}
_SHARES: Final = {"all halve at once": 1.0, "every second halves": 0.5}


def efficiency_figure(outcome: OsuOutcome) -> Figure:
    """Draw efficiency over the buffer, a panel for each scenario."""
    figure, panels = _panels(outcome, "efficiency")
    for axes in panels:
        for style, share in zip(("dotted", "dashdot"), _SHARES.values(), strict=True):
            curve = [efficiency_if_halving(filled_buffer_rtt(k), share) for k in KS]
            axes.plot([-k for k in KS], curve, color=MUTED, linestyle=style, linewidth=1.0)
        axes.set_ylim(40, 101)
    for style, name in zip(("dotted", "dashdot"), _SHARES, strict=True):
        panels[0].plot([], [], color=MUTED, linestyle=style, label=name)
    for axes in panels[::2]:
        axes.set_ylabel("Efficiency [%]")
    _add_figure_legend(figure, panels[0])
    return figure


def fairness_figure(outcome: OsuOutcome) -> Figure:
    """Draw Jain's index over the buffer, a panel for each scenario."""
    figure, panels = _panels(outcome, "fairness")
    for axes in panels:
        axes.axhline(MIN_FAIRNESS, color=MUTED, linewidth=1.0, linestyle="dotted")
        axes.set_ylim(0.78, 1.002)
    for axes in panels[::2]:
        axes.set_ylabel("Fairness (Jain)")
    _add_figure_legend(figure, panels[0])
    return figure


def losses_figure(measurements: Sequence[Measurement]) -> Figure:
    """Draw fairness over loss recoveries a source: a mark for each cell with selective drop."""
    figure, (axes,) = new_figure(1, 1, height_in=3.0)
    for colour, scenario in zip(PALETTE, ROUTES, strict=False):
        cells = [
            each
            for each in measurements
            if each.cell.scenario == scenario and each.cell.discipline == "selective_drop"
        ]
        axes.plot(
            [_or_nan(each.mean("recoveries_per_source")) for each in cells],
            [_or_nan(each.mean("fairness")) for each in cells],
            linestyle="none",
            marker="o",
            markersize=4,
            color=colour,
            label=scenario,
        )
    axes.axhline(MIN_FAIRNESS, color=MUTED, linewidth=1.0, linestyle="dotted")
    axes.set_xscale("log")
    axes.set_xticks([1, 3, 10, 30, 100], ["1", "3", "10", "30", "100"])
    axes.minorticks_off()
    axes.set_xlabel("Loss recoveries of each source in the run")
    axes.set_ylabel("Fairness (Jain)")
    add_legend(axes)
    return figure


def _panels(outcome: OsuOutcome, measured: str) -> tuple[Figure, list[Axes]]:
    figure, panels = new_figure(2, 2, height_in=5.6)
    for axes, (scenario, route) in zip(panels, ROUTES.items(), strict=True):
        for sources in route.sources:
            for discipline, line in _LINES.items():
                cells = outcome.curve(scenario, sources, discipline)
                axes.plot(
                    [-each.cell.k for each in cells],
                    [_or_nan(each.mean(measured)) for each in cells],
                    color=_COLOURS[sources],
                    linestyle=line,
                    marker=_MARKERS[discipline],
                    markersize=3.5,
                )
        axes.text(0.97, 0.06, scenario, transform=axes.transAxes, ha="right", color=INK)
        axes.set_xticks([-k for k in KS], [_buffer(k) for k in KS])
        axes.label_outer()
    for axes in panels[-2:]:
        axes.set_xlabel("Buffer [round trips at the link's rate]")
    for sources, colour in _COLOURS.items():
        panels[0].plot([], [], color=colour, label=f"{sources} sources")
    for discipline, line in _LINES.items():
        name = discipline.replace("_", " ")
        marker = _MARKERS[discipline]
        panels[0].plot([], [], color=INK, linestyle=line, marker=marker, markersize=3.5, label=name)
    return figure, panels


def _add_figure_legend(figure: Figure, axes: Axes) -> None:
    """Add the legend of one panel above all of them: above its own it would narrow it."""
    import matplotlib as mpl

    with mpl.rc_context(STYLE):
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper left", ncols=4, labelcolor=INK)


def _buffer(k: int) -> str:
    return f"1/{2**k}" if k > 0 else str(2**-k)


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value
