"""The page of an answer: one self-contained HTML file with its charts and tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from bentpipe import _core
from bentpipe.answers.answer import Answer, Chart, DataTable, Effect, signed_percent
from bentpipe.report.html import environment
from bentpipe.report.style import INK, MUTED, PALETTE, add_legend, from_zero, log_axis, new_figure
from bentpipe.results.folder import write_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_TEMPLATES: Final = Path(__file__).parent / "templates"
_BAND: Final = "Bands and bars are 95 % confidence intervals of means over seeds."
_LINE_HEIGHT_IN: Final = 2.9
_BAR_HEIGHT_IN: Final = 0.3
# The opacity of a confidence band.
_ALPHA: Final = 0.2


def write_page(answer: Answer, path: Path, *, real_time: str | None = None) -> None:
    """Write the page of an answer.

    Raises:
        UsageError: the file cannot be written; an existing one is unchanged.
    """
    write_text(path, page(answer, real_time=real_time))


def page(answer: Answer, *, real_time: str | None = None) -> str:
    """Return the page of an answer as HTML; the same answer gives identical bytes.

    ``real_time`` is what a run in real time gave.
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
    )


def draw(chart: Chart) -> Figure:
    """Draw a chart with its confidence intervals."""
    if chart.kind == "bars":
        figure, (axes,) = new_figure(1, 1, height_in=1 + _BAR_HEIGHT_IN * len(chart.x))
        _draw_bars(axes, chart)
    else:
        figure, (axes,) = new_figure(1, 1, height_in=_LINE_HEIGHT_IN)
        _draw_lines(axes, chart)
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


def _draw_lines(axes: Axes, chart: Chart) -> None:
    x = np.array(chart.x, dtype=np.float64)
    marker = "o" if chart.markers else None
    for colour, (label, estimates) in zip(PALETTE, chart.series.items(), strict=False):
        axes.plot(x, [each.mean for each in estimates], color=colour, marker=marker, markersize=3.5)
        axes.plot([], [], color=colour, label=label)
        axes.fill_between(
            x,
            [each.low for each in estimates],
            [each.high for each in estimates],
            color=colour,
            alpha=_ALPHA,
            linewidth=0,
        )
    axes.set_xlabel(chart.x_label)
    axes.set_ylabel(chart.y_label)
    from_zero(axes)
    if chart.scale == "log":
        log_axis(axes.xaxis)
    for place, text in chart.marks:
        axes.axvline(place, color=MUTED, linestyle="--", linewidth=1)
        axes.annotate(
            text,
            (place, 1),
            xycoords=("data", "axes fraction"),
            xytext=(4, -10),
            textcoords="offset points",
            color=MUTED,
        )
    if len(chart.series) > 1:
        add_legend(axes)


def _effects_table(effects: Sequence[Effect]) -> DataTable:
    rows = [
        [effect.assumption, effect.instead, signed_percent(effect.percent)] for effect in effects
    ]
    return DataTable(
        title="How the answer depends on what it assumes",
        columns=(("if it is", ""), ("instead of", ""), ("change", "%, 95 % interval")),
        rows=rows,
    )
