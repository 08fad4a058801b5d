"""Charts as data for pages: of a run, thinned to what a page draws, and of a sweep.

A chart of a sweep is a metric over a varied value: means with 95 % intervals. Values that are
varied together, as by a zipped list or a Latin hypercube, are one axis. A chart has one axis in the
horizontal, may have lines for the values of another one, and takes one value of each other axis.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from bentpipe import metrics
from bentpipe.errors import UsageError
from bentpipe.quantities import quantity
from bentpipe.report import style
from bentpipe.report.html import CHARTS, Exports, svg_file
from bentpipe.report.plots import draw, draw_means, means
from bentpipe.results import charts
from bentpipe.results.files import csv_text
from bentpipe.text import choice

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from bentpipe.results.result import Result
    from bentpipe.sweeps import Sweep

# Each interval has two points, so a line has at most some 2,000: more than a screen has columns.
INTERVALS: Final = 1_000
# Of rates; a part of a run is drawn with as many.
_BINS: Final = 300
_BINS_MAX: Final = 100_000
_SWEEP_HEIGHT_IN: Final = 2.7
_COLUMNS: Final = ("y", "low", "high", "runs")
# The settings of matplotlib are those of the process.
_drawing: Final = threading.Lock()
LINES_MAX: Final = 12
POINTS_MAX: Final = 2_000
_WIDE: Final = 30
# The table that a metric is of, and the column whose values select rows of it.
_OF: Final = {"flows": "entry", "directions": "direction"}


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
            {"name": each.name, "intervals": [charts.rounded_x(row) for row in shown]}
            for each in data.outages
            if (shown := each.visible(start, stop, INTERVALS)).size
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


def axes_of(sweep: Sweep) -> list[pl.DataFrame]:
    """Return the values of each axis of a sweep that has results: a column for each field."""
    return [
        sweep.flows.select(axis["paths"]).unique(maintain_order=True)
        for axis in sweep.manifest["axes"]
    ]


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


def metrics_of(sweep: Sweep) -> dict[str, str]:
    """Return the metrics of a sweep that have values, each with its title.

    First come those that the registry (`bentpipe.metrics`) has for the dashboard.
    """
    known = [
        metric
        for table in _OF
        for metric in metrics.metrics_of(table).values()
        if getattr(sweep, table)[metric.name].count() > 0
    ]
    known.sort(key=lambda metric: "dashboard" not in metric.shown.split())
    return {
        f"{metric.table}.{metric.name}": charts.with_unit(f"{metric.table}: {metric.label}", unit)
        for metric in known
        for unit in [quantity(metric.name).units[-1][0]]
    }


def parts_of(sweep: Sweep) -> dict[str, list[str]]:
    """Return the entries of traffic and the directions."""
    return {
        table: getattr(sweep, table)[column].unique(maintain_order=True).to_list()
        for table, column in _OF.items()
    }


def sweep_chart(sweep: Sweep, query: Mapping[str, str]) -> dict[str, Any]:
    """Return the lines of the chart that a query asks for; what it leaves out is the first choice.

    ``metric`` is a column after the name of its table, ``of`` an entry of traffic or a direction,
    ``x`` a varied field, ``by`` another one, and ``axis0`` the number of a row of an axis. The run
    is the sample: the rows of a run are averaged first (`mean_intervals`).

    Raises:
        UsageError: the query names what the sweep does not have, or the runs of a point differ in
            further values.
    """
    frame, metric, x, by = _chosen(sweep, query)
    at, labels = _numbers_of(frame, x), None
    if at is None:
        # Names are at 0, 1, 2 ... in the order of the sweep.
        names = frame[x].unique(maintain_order=True)
        at, labels = "at", [str(name) for name in names]
        places = pl.DataFrame({x: names, at: pl.Series(range(names.len()), dtype=pl.Float64)})
        frame = frame.join(places, on=x, how="left", nulls_equal=True, maintain_order="left")
    found = means(frame, at, metric.name, by)
    drawn = [place for line in found.lines for place in line["x"]]
    return {
        "title": metric.label,
        "unit": found.y_unit[0],
        "x": x,
        "x_unit": found.x_unit[0],
        "labels": labels,
        # On a linear scale, small values would be one point.
        "log": labels is None and bool(drawn) and 0 < _WIDE * min(drawn) <= max(drawn),
        "lines": [
            {key: values[:POINTS_MAX] for key, values in line.items()}
            for line in found.lines[:LINES_MAX]
        ],
        "left_out": max(len(found.lines) - LINES_MAX, 0),
    }


def _chosen(
    sweep: Sweep, query: Mapping[str, str]
) -> tuple[pl.DataFrame, metrics.Metric, str, str | None]:
    """Return the rows that a query asks for, the metric, and the fields ``x`` and ``by``."""
    axes = axes_of(sweep)
    paths = [path for axis in axes for path in axis.columns]
    if not paths:
        raise UsageError("nothing was varied in this sweep, so there is nothing to draw")
    known_metrics = metrics_of(sweep)
    metric = query.get("metric") or next(iter(known_metrics))
    x = query.get("x") or paths[0]
    own = next((axis.columns for axis in axes if x in axis.columns), axes[0].columns)
    others = [path for path in paths if path not in own]
    by = query.get("by", others[0] if others else "") or None
    of = query.get("of") or None
    table, _, column = metric.partition(".")
    parts = parts_of(sweep)[table] if metric in known_metrics else []
    for name, given, known in (
        ("metric", metric, known_metrics),
        ("x", x, paths),
        ("by", by, others),
        ("of", of, parts),
    ):
        if given is not None and given not in known:
            raise UsageError(f"{name}: {choice(given, tuple(known))}")
    frame: pl.DataFrame = getattr(sweep, table)
    for number, axis in enumerate(axes):
        if x not in axis.columns and by not in axis.columns:
            text = query.get(f"axis{number}", "0")
            if not text.isdecimal() or int(text) >= axis.height:
                raise UsageError(f"axis{number}: expected a number below {axis.height}")
            frame = frame.join(axis[int(text)], on=axis.columns, how="semi", nulls_equal=True)
    if of is not None:
        frame = frame.filter(pl.col(_OF[table]) == of)
    return frame, metrics.metrics_of(table)[column], x, by


def _numbers_of(frame: pl.DataFrame, path: str) -> str | None:
    """Return the column with the numbers of a varied field; None if its values are names."""
    if frame.schema[path].is_numeric():
        return path
    following = frame.columns[frame.columns.index(path) + 1]
    is_twin = following.startswith(f"{path}_") and frame.schema[following].is_numeric()
    return following if is_twin else None


def export_sweep(data: Mapping[str, Any], kind: str) -> str | bytes:
    """Return a chart of a sweep (`sweep_chart`) as a file: means with their intervals."""
    labels = data["labels"]
    x_label = charts.with_unit(data["x"], data["x_unit"])
    label = charts.with_unit(data["title"], data["unit"])
    rows = [
        (line["name"], labels[int(x)] if labels else x, *values)
        for line in data["lines"]
        for x, *values in zip(*(line[name] for name in ("x", *_COLUMNS)), strict=True)
    ]
    csv = csv_text(("line", x_label, label, *_COLUMNS[1:]), rows)
    with _drawing:
        axes = style.new_figure(1, 1, height_in=_SWEEP_HEIGHT_IN)[1][0]
        draw_means(axes, data["lines"], markers="o", has_names=bool(labels))
        if labels:
            axes.set_xticks(range(len(labels)), labels)
        elif data["log"]:
            style.log_axis(axes.xaxis)
        style.from_zero(axes)
        axes.set_xlabel(x_label)
        axes.set_ylabel(label)
        style.add_legend(axes)
        return _file(axes, "sweep", kind, csv)
