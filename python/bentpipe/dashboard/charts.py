"""Charts as data for pages: of a run, thinned to what a page draws, and of a sweep.

A chart of a sweep is a metric over a varied value: means with 95 % intervals. Values that are
varied together, as by a zipped list or a Latin hypercube, are one axis. A chart has one axis in the
horizontal, may have lines for the values of another one, and takes one value of each other axis.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import cycle
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from bentpipe import metrics
from bentpipe.errors import UsageError
from bentpipe.quantities import quantity
from bentpipe.report import style
from bentpipe.report.html import CHARTS, Exports, svg_file
from bentpipe.report.plots import draw_data, fitting_unit
from bentpipe.results import charts
from bentpipe.results.confidence import mean_intervals
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
    data = charts.ChartData(chart, [], [], [], [])
    if chart.is_shown(result) or not charts.is_sampled(result):
        data = charts.chart_data(chart, result, span_s=span_s, intervals=INTERVALS, bins=bins)
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
            {"name": line.name, "x": charts.rounded_x(line.x), "y": charts.rounded(line.values)}
            for line in data.lines
        ],
        "bands": [
            {"name": band.name, "x": charts.rounded_x(band.x)}
            | {
                "y": charts.rounded(band.middle),
                "low": charts.rounded(band.low),
                "high": charts.rounded(band.high),
            }
            for band in data.bands
        ],
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
        return _file(draw_data(data), chart.name, kind, charts.csv_of(data))


def _file(axes: Axes, name: str, kind: str, csv: str) -> str | bytes:
    exports = Exports()
    exports.add(style.figure_of(axes), name, svg_file(style.figure_of(axes), name), csv)
    return exports.files[f"{CHARTS}/{name}.{kind}"]


# --- sweeps ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Axis:
    """Varied fields whose values change together: a label for each of their combinations."""

    paths: tuple[str, ...]
    rows: pl.DataFrame
    labels: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class SweepView:
    """What a chart shows.

    ``x`` is a varied field, ``by`` another one or None; ``fixed`` has the number of the row of each
    other axis. ``metric`` is a column after the name of its table, ``of`` an entry of traffic or a
    direction, None for all.
    """

    metric: str
    x: str
    by: str | None
    of: str | None
    fixed: Mapping[int, int]


def axes_of(sweep: Sweep) -> list[Axis]:
    """Return the axes of a sweep that has results."""
    found = []
    for axis in sweep.manifest["axes"]:
        paths = tuple(axis["paths"])
        rows = sweep.flows.select(paths).unique(maintain_order=True)
        labels = [", ".join(str(value) for value in row) for row in rows.rows()]
        found.append(Axis(paths, rows, tuple(labels)))
    return found


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
        f"{metric.table}.{metric.name}": charts.label_of(f"{metric.table}: {metric.label}", unit)
        for metric in known
        for unit in [quantity(metric.name).units[-1][0]]
    }


def parts_of(sweep: Sweep) -> dict[str, list[str]]:
    """Return the entries of traffic and the directions."""
    return {
        table: getattr(sweep, table)[column].unique(maintain_order=True).to_list()
        for table, column in _OF.items()
    }


def view_of(sweep: Sweep, query: Mapping[str, str]) -> SweepView:
    """Return the view that a query asks for; what it leaves out is the first choice.

    Raises:
        UsageError: it names what the sweep does not have.
    """
    axes = axes_of(sweep)
    paths = [path for axis in axes for path in axis.paths]
    if not paths:
        raise UsageError("nothing was varied in this sweep, so there is nothing to draw")
    known_metrics = metrics_of(sweep)
    metric = query.get("metric") or next(iter(known_metrics))
    x = query.get("x") or paths[0]
    own = next((axis for axis in axes if x in axis.paths), axes[0])
    others = [path for axis in axes if axis is not own for path in axis.paths]
    by = query.get("by", others[0] if others else "") or None
    of = query.get("of") or None
    parts = parts_of(sweep)[metric.partition(".")[0]] if metric in known_metrics else []
    for name, given, known in (
        ("metric", metric, known_metrics),
        ("x", x, paths),
        ("by", by, others),
        ("of", of, parts),
    ):
        if given is not None and given not in known:
            raise UsageError(f"{name}: {choice(given, tuple(known))}")
    fixed = {}
    for number, axis in enumerate(axes):
        if x in axis.paths or by in axis.paths:
            continue
        text = query.get(f"axis{number}", "0")
        if not text.isdecimal() or int(text) >= len(axis.labels):
            raise UsageError(f"axis{number}: expected a number below {len(axis.labels)}")
        fixed[number] = int(text)
    return SweepView(metric=metric, x=x, by=by, of=of, fixed=fixed)


def sweep_chart(sweep: Sweep, view: SweepView) -> dict[str, Any]:
    """Return the lines of a chart for JSON.

    The run is the sample: the rows of a run are averaged first (`mean_intervals`).

    Raises:
        UsageError: the runs of a point differ in further values.
    """
    table, _, column = view.metric.partition(".")
    frame: pl.DataFrame = getattr(sweep, table)
    axes = axes_of(sweep)
    for number, row in view.fixed.items():
        axis = axes[number]
        frame = frame.join(axis.rows[row], on=list(axis.paths), how="semi", nulls_equal=True)
    if view.of is not None:
        frame = frame.filter(pl.col(_OF[table]) == view.of)
    numbers = _numbers_of(frame, view.x)
    by = [] if view.by is None else [view.by]
    points = mean_intervals(frame, column, list(dict.fromkeys([*by, numbers or view.x])))
    unit, size = fitting_unit(column, points["mean"])
    x_unit, x_size = ("", 1.0)
    labels: list[str] | None = None
    if numbers is None:
        labels = [str(value) for value in frame[view.x].unique(maintain_order=True)]
        order = {label: i for i, label in enumerate(labels)}
        at = pl.Series([order[str(value)] for value in points[view.x]], dtype=pl.Float64)
    else:
        x_unit, x_size = fitting_unit(numbers, points[numbers])
        at = points[numbers].cast(float) / x_size
    known = [] if labels else at.to_list()
    points = points.with_columns(
        at.alias("at"), *(pl.col(name) / size for name in ("mean", "low", "high"))
    ).sort("at")
    names = [None] if view.by is None else frame[view.by].unique(maintain_order=True).to_list()
    lines = [_line(points, view.by, name) for name in names[:LINES_MAX]]
    return {
        "title": metrics.metrics_of(table)[column].label,
        "unit": unit,
        "x": view.x,
        "x_unit": x_unit,
        "labels": labels,
        # On a linear scale, small values would be one point.
        "log": bool(known) and 0 < _WIDE * min(known) <= max(known),
        "lines": lines,
        "left_out": max(len(names) - LINES_MAX, 0),
    }


def _line(points: pl.DataFrame, by: str | None, name: Any) -> dict[str, Any]:
    own = points if by is None else points.filter(pl.col(by) == name)
    own = own.head(POINTS_MAX)
    return {
        "name": "mean" if by is None else str(name),
        "x": own["at"].to_list(),
        "y": own["mean"].to_list(),
        **{column: own[column].to_list() for column in _COLUMNS[1:]},
    }


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
    x_label, label = (
        charts.label_of(data["x"], data["x_unit"]),
        charts.label_of(data["title"], data["unit"]),
    )
    rows = [
        (line["name"], labels[int(x)] if labels else x, *values)
        for line in data["lines"]
        for x, *values in zip(*(line[name] for name in ("x", *_COLUMNS)), strict=True)
    ]
    csv = csv_text(("line", x_label, label, *_COLUMNS[1:]), rows)
    with _drawing:
        axes = style.new_figure(1, 1, height_in=_SWEEP_HEIGHT_IN)[1][0]
        for line, colour in zip(data["lines"], cycle(style.PALETTE)):
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
            style.log_axis(axes.xaxis)
        style.from_zero(axes)
        axes.set_xlabel(x_label)
        axes.set_ylabel(label)
        style.add_legend(axes)
        return _file(axes, "sweep", kind, csv)
