"""The page of an answer: one self-contained HTML file with its charts and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from matplotlib.ticker import MaxNLocator

from bentpipe import _core
from bentpipe.answers.answer import Answer, Chart, columns
from bentpipe.report.html import Exports, environment, write_report
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
from bentpipe.results.files import REPORT, json_text
from bentpipe.results.output import write_folder
from bentpipe.results.views import View, csv_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from bentpipe.results.output import OutputFolder

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


def write_answer(
    answer: Answer, out: Path | OutputFolder, *, real_time: Mapping[str, Any] | None = None
) -> Path:
    """Write the page of an answer, its tables as CSV, answer.json and the manifest to a folder.

    ``real_time`` is what a run in real time gave, with its ``sentence``. An earlier answer in the
    folder is replaced.

    Raises:
        UsageError: the folder contains other files, or cannot be written.
    """
    exports = Exports()
    sentence = real_time["sentence"] if real_time else None
    data = answer.to_json() | ({"real_time": real_time} if real_time else {})
    files = {
        REPORT: page(answer, exports, real_time=sentence),
        "answer.json": json_text(data),
        **{f"table-{i}.csv": csv_table(view) for i, view in enumerate(_tables(answer), start=1)},
    }
    manifest = {
        "bentpipe_version": _core.version(),
        "question": answer.question,
        "answer": list(answer.lines),
        "parameters": data["parameters"],
        "seeds": data["seeds"],
        "interrupted": answer.interrupted,
    }
    return write_folder(out, kind="question", manifest=manifest, files={**files, **exports.files})


def page(answer: Answer, exports: Exports | None = None, *, real_time: str | None = None) -> str:
    """Return the page of an answer as HTML; the same answer gives identical bytes.

    ``real_time`` is what a run in real time gave. Figures are added to ``exports``, and linked.
    """
    template = environment(_TEMPLATES).get_template("answer.html.j2")
    return template.render(
        title=answer.question,
        facts=f"bentpipe {_core.version()}",
        answer=answer,
        real_time=real_time,
        charts=[(chart, draw(chart)) for chart in answer.charts],
        band=_BAND,
        tables=_tables(answer),
        exports=exports,
    )


def _tables(answer: Answer) -> list[View]:
    tables = [*([answer.summary] if answer.summary else []), *answer.tables]
    if answer.effects:
        rows = [(effect.assumption, effect.instead, effect.percent) for effect in answer.effects]
        title = "How the answer depends on what it assumes"
        tables.append(View(title, columns("effects"), rows))
    return tables


def draw(chart: Chart) -> Figure:
    """Draw a chart with its confidence intervals."""
    if chart.kind == "bars":
        figure, (axes,) = new_figure(1, 1, height_in=1 + _BAR_HEIGHT_IN * len(chart.x))
        _draw_bars(axes, chart)
        return figure
    rows, height_in = 1, _LINE_HEIGHT_IN
    if chart.kind == "panels":
        rows = len(chart.series)
        height_in = _PANEL_HEIGHT_IN * rows + _SCALE_HEIGHT_IN
    height_in += _SCALE_HEIGHT_IN * len(chart.x_units)
    figure, panels = new_figure(rows, 1, height_in=height_in)
    _draw_over_x(panels, chart)
    return figure


def _draw_bars(axes: Axes, chart: Chart) -> None:
    (estimates,) = chart.series.values()
    places = np.arange(len(chart.x))
    means, halves = zip(
        *((estimate.mean, estimate.half_width or 0) for estimate in estimates), strict=True
    )
    axes.barh(places, means, xerr=halves, color=PALETTE[0], ecolor=INK, height=0.6)
    axes.set_yticks(places, [str(name) for name in chart.x])
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(chart.y_label)


def _draw_over_x(panels: Sequence[Axes], chart: Chart) -> None:
    """Draw each series on axes of its own, one below the other, or all on the same axes."""
    x = np.array(chart.x, dtype=np.float64)
    own_axes = panels if panels[1:] else [panels[0]] * len(chart.series)
    for axes, colour, (label, estimates) in zip(
        own_axes, PALETTE, chart.series.items(), strict=False
    ):
        axes.plot(
            x,
            [estimate.mean for estimate in estimates],
            color=colour,
            label=label,
            marker="o" if chart.markers else None,
            markersize=3.5,
        )
        low, high = ([getattr(estimate, end) for estimate in estimates] for end in ("low", "high"))
        axes.fill_between(x, low, high, color=colour, alpha=_ALPHA, linewidth=0)
        from_zero(axes)
        axes.set_ylabel(label if panels[1:] else chart.y_label)
    for axes in panels:
        if panels[1:]:
            axes.yaxis.set_major_locator(MaxNLocator(_PANEL_TICKS))
        for place, _text in chart.marks:
            axes.axvline(place, color=MUTED, linestyle="--", linewidth=1)
    for place, text in chart.marks:
        panels[0].annotate(
            text,
            (place, 1),
            xycoords=("data", "axes fraction"),
            # In points from the top; above the only axes is the legend.
            xytext=(0, 3) if panels[1:] else (4, -10),
            textcoords="offset points",
            horizontalalignment="center" if panels[1:] else "left",
            color=INK,
        )
    if panels[1:]:
        figure_of(panels[0]).align_ylabels(panels)
    elif len(chart.series) > 1:
        add_legend(panels[0])
    lowest = panels[-1]
    lowest.set_xlabel(chart.x_label)
    if chart.scale == "log":
        log_axis(lowest.xaxis)
    # Below the scale of x, one for each of its further units.
    for i, (label, factor) in enumerate(chart.x_units, start=1):
        add_unit(lowest, label, factor, below_in=i * _SCALE_HEIGHT_IN)
