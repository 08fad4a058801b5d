"""The charts of a run as data for the page: lines and bands, thinned to what it draws."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final

from bentpipe.report.export import CHARTS, Exports, svg_file
from bentpipe.report.plots import draw_data
from bentpipe.report.style import figure_of
from bentpipe.results.charts import (
    Chart,
    ChartData,
    chart_data,
    csv_of,
    is_sampled,
    rounded,
    rounded_x,
)

if TYPE_CHECKING:
    from bentpipe.results.result import Result

# Each interval has two points, so a line has at most some 2,000: more than a screen has columns.
INTERVALS: Final = 1_000
# Of rates; a part of a run is drawn with as many.
_BINS: Final = 300
_BINS_MAX: Final = 100_000
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
        "steps": chart.steps,
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
    exports = Exports()
    with _drawing:
        figure = figure_of(draw_data(data))
        exports.add(figure, chart.name, svg_file(figure, chart.name), csv_of(data))
    return exports.files[f"{CHARTS}/{chart.name}.{kind}"]
