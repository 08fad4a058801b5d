"""The page of an answer: one self-contained HTML file with its charts and tables."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
from matplotlib.ticker import MaxNLocator

from bentpipe import _core
from bentpipe.answers.answer import Answer, Chart, DataTable, Effect, Estimate, signed_percent
from bentpipe.report.export import Exports, write_report
from bentpipe.report.html import environment
from bentpipe.report.style import (
    INK,
    MUTED,
    PALETTE,
    add_legend,
    add_unit,
    figure_of,
    from_zero,
    log_axis,
    new_figure,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_TEMPLATES: Final = Path(__file__).parent / "templates"
_BAND: Final = "Bands and bars are 95 % confidence intervals of means over seeds."
_LINE_HEIGHT_IN: Final = 2.9
_BAR_HEIGHT_IN: Final = 0.3
_PANEL_HEIGHT_IN: Final = 1.05
# Of the x axis, and of each further unit of it.
_SCALE_HEIGHT_IN: Final = 0.45
# More numbers on the y axis of a panel would overlap.
_PANEL_TICKS: Final = 4
# The opacity of a confidence band.
_ALPHA: Final = 0.2


def write_page(answer: Answer, path: Path, *, real_time: str | None = None) -> None:
    """Write the page of an answer.

    Raises:
        UsageError: the file cannot be written; an existing one is unchanged.
    """
    write_report(path, partial(page, answer, real_time=real_time))


def page(answer: Answer, exports: Exports | None = None, *, real_time: str | None = None) -> str:
    """Return the page of an answer as HTML; the same answer gives identical bytes.

    ``real_time`` is what a run in real time gave. Figures are added to ``exports``, and linked.
    """
    tables = list(answer.tables)
    if answer.effects:
        tables.append(_effects_table(answer.effects))
    template = environment(_TEMPLATES).get_template("answer.html.j2")
    return template.render(
        title=answer.question,
        facts=f"bentpipe {_core.version()}",
        answer=answer,
        real_time=real_time,
        charts=[(chart, draw(chart)) for chart in answer.charts],
        band=_BAND,
        tables=tables,
        exports=exports,
    )


def draw(chart: Chart) -> Figure:
    """Draw a chart with its confidence intervals."""
    scales_in = _SCALE_HEIGHT_IN * len(chart.x_units)
    if chart.kind == "bars":
        figure, (axes,) = new_figure(1, 1, height_in=1 + _BAR_HEIGHT_IN * len(chart.x))
        _draw_bars(axes, chart)
    elif chart.kind == "panels":
        height_in = _PANEL_HEIGHT_IN * len(chart.series) + _SCALE_HEIGHT_IN + scales_in
        figure, panels = new_figure(len(chart.series), 1, height_in=height_in)
        _draw_panels(panels, chart)
    else:
        figure, (axes,) = new_figure(1, 1, height_in=_LINE_HEIGHT_IN + scales_in)
        _draw_lines(axes, chart)
        _draw_x_axis(axes, chart)
    return figure


def _draw_bars(axes: Axes, chart: Chart) -> None:
    places = np.arange(len(chart.x))
    for colour, estimates in zip(PALETTE, chart.series.values(), strict=False):
        axes.barh(
            places,
            [each.mean for each in estimates],
            xerr=[each.half_width or 0 for each in estimates],
            color=colour,
            ecolor=INK,
            height=0.6,
        )
    axes.set_yticks(places, [str(name) for name in chart.x])
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(chart.y_label)


def _draw_panels(panels: Sequence[Axes], chart: Chart) -> None:
    """Draw each series on its own axes, one below the other; the lowest has the scales of x."""
    for axes, colour, (label, estimates) in zip(
        panels, PALETTE, chart.series.items(), strict=False
    ):
        _draw_line(axes, chart, estimates, colour)
        axes.set_ylabel(label)
        axes.yaxis.set_major_locator(MaxNLocator(_PANEL_TICKS))
        _draw_marks(axes, chart)
    _name_marks(panels[0], chart, (0, 3), "center")
    _draw_x_axis(panels[-1], chart)
    figure_of(panels[0]).align_ylabels(panels)


def _draw_lines(axes: Axes, chart: Chart) -> None:
    for colour, (label, estimates) in zip(PALETTE, chart.series.items(), strict=False):
        _draw_line(axes, chart, estimates, colour)
        axes.plot([], [], color=colour, label=label)
    axes.set_ylabel(chart.y_label)
    _draw_marks(axes, chart)
    # Above is the legend.
    _name_marks(axes, chart, (4, -10), "left")
    if len(chart.series) > 1:
        add_legend(axes)


def _draw_line(axes: Axes, chart: Chart, estimates: Sequence[Estimate], colour: str) -> None:
    x = np.array(chart.x, dtype=np.float64)
    marker = "o" if chart.markers else None
    axes.plot(x, [each.mean for each in estimates], color=colour, marker=marker, markersize=3.5)
    axes.fill_between(
        x,
        [each.low for each in estimates],
        [each.high for each in estimates],
        color=colour,
        alpha=_ALPHA,
        linewidth=0,
    )
    from_zero(axes)


def _draw_marks(axes: Axes, chart: Chart) -> None:
    for place, _text in chart.marks:
        axes.axvline(place, color=MUTED, linestyle="--", linewidth=1)


def _name_marks(
    axes: Axes, chart: Chart, from_top: tuple[float, float], align: Literal["left", "center"]
) -> None:
    """Write the text of each mark at ``from_top``, in points from the top of its line."""
    for place, text in chart.marks:
        axes.annotate(
            text,
            (place, 1),
            xycoords=("data", "axes fraction"),
            xytext=from_top,
            textcoords="offset points",
            horizontalalignment=align,
            color=INK,
        )


def _draw_x_axis(axes: Axes, chart: Chart) -> None:
    """Draw the scale of x, and below it a scale for each of its further units."""
    axes.set_xlabel(chart.x_label)
    if chart.scale == "log":
        log_axis(axes.xaxis)
    for i, (label, factor) in enumerate(chart.x_units, start=1):
        add_unit(axes, label, factor, below_in=i * _SCALE_HEIGHT_IN)


def _effects_table(effects: Sequence[Effect]) -> DataTable:
    rows = [
        [effect.assumption, effect.instead, signed_percent(effect.percent)] for effect in effects
    ]
    return DataTable(
        title="How the answer depends on what it assumes",
        columns=(("if it is", ""), ("instead of", ""), ("change", "%, 95 % interval")),
        rows=rows,
    )
