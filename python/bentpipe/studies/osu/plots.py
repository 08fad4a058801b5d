"""The study's figures: efficiency and fairness over the buffer, and fairness over losses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from bentpipe.report.style import INK, MUTED, PALETTE, add_legend, log_axis, new_figure
from bentpipe.studies.base.plots import add_figure_legend, plot_samples
from bentpipe.studies.base.samples import Samples
from bentpipe.studies.osu.cells import DROP_TAIL, KS, ROUTES, SELECTIVE, Cell
from bentpipe.studies.osu.compare import MIN_FAIRNESS, halving
from bentpipe.studies.osu.measure import Measurement

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS: Final = dict(zip((5, 15, 50, 100), PALETTE, strict=False))
_LINES: Final = {SELECTIVE: ("solid", "o"), DROP_TAIL: ("dashed", "")}
# As `SHARES`.
_THEORY: Final = {"all halve at once": "dotted", "every second halves": "dashdot"}


def efficiency_figure(measured: Mapping[Cell, Measurement]) -> Figure:
    """Draw efficiency over the buffer, a panel for each scenario."""
    figure, panels = _panels(measured, "efficiency", "Efficiency [%]")
    for axes in panels:
        for (name, line), curve in zip(
            _THEORY.items(), zip(*map(halving, KS), strict=True), strict=True
        ):
            label = name if axes is panels[0] else None
            style: dict[str, Any] = {"color": MUTED, "linestyle": line, "linewidth": 1.0}
            axes.plot([-k for k in KS], curve, label=label, **style)
        axes.set_ylim(40, 101)
    add_figure_legend(figure, panels[0], columns=4)
    return figure


def fairness_figure(measured: Mapping[Cell, Measurement]) -> Figure:
    """Draw Jain's index over the buffer, a panel for each scenario."""
    figure, panels = _panels(measured, "fairness", "Fairness (Jain)")
    for axes in panels:
        axes.axhline(MIN_FAIRNESS, color=MUTED, linewidth=1.0, linestyle="dotted")
        axes.set_ylim(0.78, 1.002)
    add_figure_legend(figure, panels[0], columns=4)
    return figure


def losses_figure(measured: Mapping[Cell, Measurement]) -> Figure:
    """Draw fairness over loss recoveries a source: a mark for each cell with selective drop."""
    figure, (axes,) = new_figure(1, 1, height_in=3.0)
    for colour, scenario in zip(PALETTE, ROUTES, strict=False):
        found = [
            each
            for cell, each in measured.items()
            if (cell.scenario, cell.discipline) == (scenario, SELECTIVE) and each.runs
        ]
        axes.plot(
            [each["recoveries_per_source"].mean or 0.0 for each in found],
            [each["fairness"].mean or 0.0 for each in found],
            linestyle="none",
            marker="o",
            markersize=4,
            color=colour,
            label=scenario,
        )
    axes.axhline(MIN_FAIRNESS, color=MUTED, linewidth=1.0, linestyle="dotted")
    log_axis(axes.xaxis)
    axes.set_xlabel("Loss recoveries of each source in the run")
    axes.set_ylabel("Fairness (Jain)")
    add_legend(axes)
    return figure


def _panels(
    measured: Mapping[Cell, Measurement], name: str, label: str
) -> tuple[Figure, list[Axes]]:
    figure, panels = new_figure(2, 2, height_in=5.6)
    nothing = Samples()
    for axes, (scenario, route) in zip(panels, ROUTES.items(), strict=True):
        for sources in route.sources:
            for discipline, (line, marker) in _LINES.items():
                found = [measured.get(Cell(scenario, sources, k, discipline)) for k in KS]
                samples = [nothing if each is None else each[name] for each in found]
                colour = _COLOURS[sources]
                x = [-k for k in KS]
                plot_samples(
                    axes, x, samples, color=colour, linestyle=line, marker=marker, markersize=3.5
                )
        axes.text(0.97, 0.06, scenario, transform=axes.transAxes, ha="right", color=INK)
        axes.set_xticks([-k for k in KS], [_buffer(k) for k in KS])
        axes.label_outer()
    for axes in panels[-2:]:
        axes.set_xlabel("Buffer [round trips at the link's rate]")
    for axes in panels[::2]:
        axes.set_ylabel(label)
    for sources, colour in _COLOURS.items():
        panels[0].plot([], [], color=colour, label=f"{sources} sources")
    for discipline, (line, marker) in _LINES.items():
        text = discipline.replace("_", " ")
        panels[0].plot([], [], color=INK, linestyle=line, marker=marker, markersize=3.5, label=text)
    return figure, panels


def _buffer(k: int) -> str:
    return f"1/{2**k}" if k > 0 else str(2**-k)
