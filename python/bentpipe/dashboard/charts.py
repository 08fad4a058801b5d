"""Charts as data for pages: of a run, thinned to what a page draws, and the choices of a sweep."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from bentpipe.report import style
from bentpipe.report.html import CHARTS, Exports, svg_file
from bentpipe.report.plots import draw
from bentpipe.report.sweep import axes_of, draw_sweep, metrics_of, parts_of
from bentpipe.results import charts

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from bentpipe.results.result import Result
    from bentpipe.sweeps import Sweep

# Each interval has two points, so a line has at most some 2,000: more than a screen has columns.
INTERVALS: Final = 1_000
# Of rates; a part of a run is drawn with as many.
_BINS: Final = 300
_BINS_MAX: Final = 100_000
# The settings of matplotlib are those of the process.
_drawing: Final = threading.Lock()


def page_data(
    chart: charts.Chart, result: Result, from_s: float | None = None, to_s: float | None = None
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
    data = charts.ChartData(chart, [], [], [])
    if chart.is_shown(result) or not charts.is_sampled(result):
        data = charts.chart_data(chart, result, span_s=span_s, intervals=INTERVALS, bins=bins)
    lines = [
        {"name": line.name, "x": charts.rounded_x(line.x)}
        | dict(zip(("y", "low", "high"), map(charts.rounded, columns), strict=False))
        for line, columns in ((line, (line.values, *line.bounds)) for line in data.lines)
    ]
    return {
        "name": chart.name,
        "title": chart.title,
        "unit": chart.label if chart.kind == "distribution" else chart.unit,
        "steps": bool(chart.steps),
        "kind": chart.kind,
        "x_label": chart.x_label,
        "bars": data.bars,
        "end_s": end_s,
        "lines": [line for line in lines if "low" not in line],
        "bands": [line for line in lines if "low" in line],
        "outages": [
            {"name": outages.name, "intervals": [charts.rounded_x(row) for row in shown]}
            for outages in data.outages
            if (shown := outages.visible(start, stop, INTERVALS)).size
        ],
    }


def export_chart(chart: charts.Chart, result: Result, kind: str) -> str | bytes:
    """Return a chart of the whole run as a file: ``png``, ``svg`` or ``csv``.

    Raises:
        UsageError: the result has nothing to show.
    """
    data = charts.chart_data(chart, result)
    with _drawing:
        return _file(draw(data), chart.name, kind, charts.csv_of(data))


def _file(axes: Axes, name: str, kind: str, csv: str) -> str | bytes:
    exports = Exports()
    exports.add(style.figure_of(axes), name, svg_file(style.figure_of(axes), name), csv)
    return exports.files[f"{CHARTS}/{name}.{kind}"]


# --- sweeps ---------------------------------------------------------------------------------------


def choices_of(sweep: Sweep) -> dict[str, Any]:
    """Return what a query of `sweep_chart` can ask for."""
    return {
        "axes": [
            {"paths": axis.columns, "labels": [", ".join(map(str, row)) for row in axis.rows()]}
            for axis in axes_of(sweep)
        ],
        # Pairs, because the keys of JSON in a template are sorted.
        "metrics": list(metrics_of(sweep).items()),
        "parts": parts_of(sweep),
    }


def export_sweep(data: Mapping[str, Any], kind: str) -> str | bytes:
    """Return a chart of a sweep (`sweep_chart`) as a file: means with their intervals."""
    with _drawing:
        axes, csv = draw_sweep(data)
        return _file(axes, "sweep", kind, csv)
