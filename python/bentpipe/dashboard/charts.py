"""The charts of a run as data for the page: lines and bands, thinned to what it draws."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from itertools import cycle
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from bentpipe.report.export import CHARTS, Exports, svg_file
from bentpipe.report.plots import draw_data
from bentpipe.report.style import (
    PALETTE,
    add_legend,
    figure_of,
    from_zero,
    log_axis,
    new_figure,
)
from bentpipe.results.charts import (
    Chart,
    ChartData,
    chart_data,
    csv_of,
    is_sampled,
    label_of,
    rounded,
    rounded_x,
)
from bentpipe.results.folder import csv_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from bentpipe.results.result import Result

# Each interval has two points, so a line has at most some 2,000: more than a screen has columns.
INTERVALS: Final = 1_000
# Of rates; a part of a run is drawn with as many.
_BINS: Final = 300
_BINS_MAX: Final = 100_000
_SWEEP_HEIGHT_IN: Final = 2.7
_COLUMNS: Final = ("y", "low", "high", "runs")
# The settings of matplotlib are those of the process.
_drawing: Final = threading.Lock()


def page_data(
    chart: Chart, result: Result, from_s: float | None = None, to_s: float | None = None
) -> dict[str, Any]:
    """Return a chart from ``from_s`` to ``to_s`` (None: the whole run) for JSON.

    It has no lines if a sampled run has nothing to show; the other one of a pair may have.

    Raises:
        UsageError: the run was not sampled.
    """
    end_s = max(float(result.manifest["end_ns"]) / 1e9, 1e-9)
    start = 0.0 if from_s is None else from_s
    stop = end_s if to_s is None else to_s
    part = max(stop - start, 1e-9) / end_s
    bins = int(min(_BINS_MAX, max(_BINS, _BINS / part)))
    span_s = (start, stop) if chart.kind == "time" else None
    data = ChartData(chart, [], [], [], [])
    if chart.is_shown(result) or not is_sampled(result):
        data = chart_data(chart, result, span_s=span_s, intervals=INTERVALS, bins=bins)
    return {
        "name": chart.name,
        "title": chart.title,
        "unit": chart.label if chart.kind == "distribution" else chart.unit,
        "steps": bool(chart.steps),
        "kind": chart.kind,
        "x_label": chart.x_label,
        "bars": data.bars,
        "end_s": end_s,
        "lines": [
            {"name": line.name, "x": rounded_x(line.x), "y": rounded(line.values)}
            for line in data.lines
        ],
        "bands": [
            {
                "name": band.name,
                "x": rounded_x(band.x),
                "y": rounded(band.middle),
                "low": rounded(band.low),
                "high": rounded(band.high),
            }
            for band in data.bands
        ],
        "outages": [
            {"name": each.name, "intervals": [rounded_x(row) for row in shown]}
            for each in data.outages
            if (shown := each.visible(start, stop, INTERVALS)).size
        ],
    }


def export_chart(chart: Chart, result: Result, kind: str) -> str | bytes:
    """Return a chart of the whole run as a file: ``png``, ``svg`` or ``csv``.

    Raises:
        UsageError: the result has nothing to show.
    """
    data = chart_data(chart, result)
    with _drawing:
        return _file(draw_data(data), chart.name, kind, csv_of(data))


def export_sweep(data: Mapping[str, Any], kind: str) -> str | bytes:
    """Return a chart of a sweep (`sweep_chart`) as a file: means with their intervals."""
    labels = data["labels"]
    x_label, label = label_of(data["x"], data["x_unit"]), label_of(data["title"], data["unit"])
    rows = [
        (line["name"], labels[int(x)] if labels else x, *values)
        for line in data["lines"]
        for x, *values in zip(*(line[name] for name in ("x", *_COLUMNS)), strict=True)
    ]
    csv = csv_text(("line", x_label, label, *_COLUMNS[1:]), rows)
    with _drawing:
        axes = new_figure(1, 1, height_in=_SWEEP_HEIGHT_IN)[1][0]
        for line, colour in zip(data["lines"], cycle(PALETTE)):
            x, y, low, high = (np.array(line[name], float) for name in ("x", "y", "low", "high"))
            if labels:
                # Between names there is nothing that a band could be of.
                axes.vlines(x, low, high, color=colour, alpha=0.5)
            else:
                axes.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
            axes.plot(x, y, color=colour, marker="o", markersize=4, label=line["name"])
        if labels:
            axes.set_xticks(range(len(labels)), labels)
        elif data["log"]:
            log_axis(axes.xaxis)
        from_zero(axes)
        axes.set_xlabel(x_label)
        axes.set_ylabel(label)
        add_legend(axes)
        return _file(axes, "sweep", kind, csv)


def _file(axes: Axes, name: str, kind: str, csv: str) -> str | bytes:
    exports = Exports()
    exports.add(figure_of(axes), name, svg_file(figure_of(axes), name), csv)
    return exports.files[f"{CHARTS}/{name}.{kind}"]
