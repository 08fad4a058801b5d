"""The report of a sweep, and its charts: a metric over a varied value.

A chart has means with 95 % intervals. Values that are varied together, as by a zipped list or a
Latin hypercube, are one axis. A chart has one axis in the horizontal, may have lines for the values
of another one, and takes one value of each other axis.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from bentpipe import metrics
from bentpipe.errors import UsageError
from bentpipe.quantities import QUANTITIES, quantity
from bentpipe.report import style
from bentpipe.report.html import Exports, environment, write_report
from bentpipe.report.plots import draw_means, means
from bentpipe.report.terminal import cells_view, sweep_facts
from bentpipe.results.charts import with_unit
from bentpipe.results.files import csv_text
from bentpipe.results.metric_values import with_unfinished
from bentpipe.results.views import Cell, Column, View
from bentpipe.text import choice

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from bentpipe.sweeps import Sweep

# Of a table of a page.
ROWS_MAX: Final = 200
LINES_MAX: Final = 12
POINTS_MAX: Final = 2_000
_WIDE: Final = 30
_HEIGHT_IN: Final = 2.7
_COLUMNS: Final = ("y", "low", "high", "runs")
# The table that a metric is of, and the column whose values select rows of it.
_OF: Final = {"flows": "entry", "directions": "direction"}
_CAPTION: Final = "Mean of the runs and its 95 % confidence interval (Student's t)."


def write_sweep_report(sweep: Sweep, path: str | Path) -> Path:
    """Write the report of a sweep as one HTML file, with its figure beside it; return its path.

    Raises:
        UsageError: a file cannot be written; an existing report is unchanged.
    """
    return write_report(path, partial(sweep_report, sweep))


def sweep_report(sweep: Sweep, exports: Exports | None = None) -> str:
    """Return the report of a sweep as HTML; the same data set gives identical bytes.

    Its figure, of the first metric over the first varied field, is added to ``exports``.
    """
    chart = None
    if sweep.runs.height and sweep.manifest["axes"]:
        data = sweep_chart(sweep, {})
        axes, csv = draw_sweep(data)
        at = f", at {', '.join(data['fixed'])}" if data["fixed"] else ""
        caption = f"{data['title']} over {data['x']}{at}. {_CAPTION}"
        chart = {"figure": style.figure_of(axes), "caption": caption, "csv": csv}
    name = sweep.manifest["scenario"].get("name")
    version = f"bentpipe {sweep.manifest['bentpipe_version']}"
    template = environment().get_template("sweep.html.j2")
    return template.render(
        title=f"{name or 'Scenario'}: sweep",
        facts="; ".join([version, *sweep_facts(sweep)]),
        interrupted=sweep.interrupted,
        chart=chart,
        views=sweep_views(sweep),
        exports=exports,
    )


def sweep_views(sweep: Sweep, most: int = ROWS_MAX) -> list[View]:
    """Return the tables of the report of a sweep, with at most so many cells."""
    cells = cells_view(sweep, most, "the folder has all")
    views = cells, sweep_threshold_view(sweep), failures_view(sweep)
    return [view for view in views if view is not None]


def sweep_threshold_view(sweep: Sweep) -> View | None:
    """Return the thresholds of each cell, of the run that misses one most; None without any."""
    checks = sweep.thresholds
    columns = [
        Column("cell", "cell"),
        Column("threshold", "threshold"),
        Column("value", "worst run"),
        Column("seed", "its seed", text=str),
        Column("failed_runs", "failed runs"),
        Column("passed", "result", text=lambda passed: "passed" if passed else "FAILED"),
    ]
    rows = [
        [
            check["cell"] or "all",
            check["threshold"],
            Cell(check["value"], check["message"].removeprefix(f"{check['threshold']}: ")),
            check["seed"],
            Cell(check["failed_runs"], f"{check['failed_runs']:,} of {check['runs']:,}"),
            check["passed"],
        ]
        # Those that fail come first.
        for check in sorted(checks, key=lambda check: check["passed"])[:ROWS_MAX]
    ]
    more = f"{len(checks) - ROWS_MAX:,} more" if len(checks) > ROWS_MAX else ""
    return View("Thresholds", columns, rows, key=2, more=more) if rows else None


def failures_view(sweep: Sweep) -> View | None:
    """Return the first failed runs; None without any."""
    if not sweep.failures.height:
        return None
    columns = [Column(name, name, text=str) for name in sweep.failures.columns]
    title = "The first failed runs; the others were not affected."
    return View(title, columns, sweep.failures.head(ROWS_MAX).rows(), len(columns))


# --- charts ---------------------------------------------------------------------------------------


def axes_of(sweep: Sweep) -> list[pl.DataFrame]:
    """Return the values of each axis of a sweep that has results: a column for each field."""
    return [
        sweep.flows.select(axis["paths"]).unique(maintain_order=True)
        for axis in sweep.manifest["axes"]
    ]


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
        f"{metric.table}.{metric.name}": with_unit(f"{metric.table}: {metric.label}", unit)
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
    frame, metric, x, by, fixed = _chosen(sweep, query)
    at, labels = _numbers_of(frame, x), None
    if at is None:
        # Names are at 0, 1, 2 ... in the order of the sweep.
        names = frame[x].unique(maintain_order=True)
        at, labels = "at", [str(name) for name in names]
        places = pl.DataFrame({x: names, at: pl.Series(range(names.len()), dtype=pl.Float64)})
        frame = frame.join(places, on=x, how="left", nulls_equal=True, maintain_order="left")
    averages = means(frame, at, metric.name, by)
    drawn = [place for line in averages.lines for place in line["x"]]
    return {
        "title": metric.label,
        "unit": averages.y_unit[0],
        "x": x,
        "x_unit": averages.x_unit[0],
        "labels": labels,
        "by": by,
        "fixed": fixed,
        # On a linear scale, small values would be one point.
        "log": labels is None and bool(drawn) and 0 < _WIDE * min(drawn) <= max(drawn),
        "lines": [
            {key: values[:POINTS_MAX] for key, values in line.items()}
            for line in averages.lines[:LINES_MAX]
        ],
        "left_out": max(len(averages.lines) - LINES_MAX, 0),
    }


def _chosen(
    sweep: Sweep, query: Mapping[str, str]
) -> tuple[pl.DataFrame, metrics.Metric, str, str | None, list[str]]:
    """Return the rows that a query asks for, the metric, the fields ``x`` and ``by``, and others.

    Others are the fields of which one value is taken, each with it as in ``--set``.
    """
    axes = axes_of(sweep)
    paths = [path for axis in axes for path in axis.columns]
    if not paths:
        raise UsageError("nothing was varied in this sweep, so there is nothing to draw")
    known_metrics = metrics_of(sweep)
    metric = query.get("metric") or next(iter(known_metrics))
    x = query.get("x") or paths[0]
    x_paths = next((axis.columns for axis in axes if x in axis.columns), axes[0].columns)
    others = [path for path in paths if path not in x_paths]
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
    frame = with_unfinished(frame) if table == "flows" else frame
    fixed: list[str] = []
    for number, axis in enumerate(axes):
        if x not in axis.columns and by not in axis.columns:
            text = query.get(f"axis{number}", "0")
            if not text.isdecimal() or int(text) >= axis.height:
                raise UsageError(f"axis{number}: expected a number below {axis.height}")
            row = axis[int(text)]
            frame = frame.join(row, on=axis.columns, how="semi", nulls_equal=True)
            fixed += [f"{path}={value}" for path, value in row.row(0, named=True).items()]
    if of is not None:
        frame = frame.filter(pl.col(_OF[table]) == of)
    return frame, metrics.metrics_of(table)[column], x, by, fixed


def _numbers_of(frame: pl.DataFrame, path: str) -> str | None:
    """Return the column with the numbers of a varied field; None if its values are names."""
    if frame.schema[path].is_numeric():
        return path
    following = frame.columns[frame.columns.index(path) + 1]
    return following if following in {f"{path}_{unit}" for unit, _, _ in QUANTITIES} else None


def draw_sweep(data: Mapping[str, Any]) -> tuple[Axes, str]:
    """Draw a chart of a sweep (`sweep_chart`); return its axes, and its points as CSV."""
    labels = data["labels"]
    x_label = with_unit(data["x"], data["x_unit"])
    label = with_unit(data["title"], data["unit"])
    rows = [
        (line["name"], labels[int(x)] if labels else x, *values)
        for line in data["lines"]
        for x, *values in zip(*(line[name] for name in ("x", *_COLUMNS)), strict=True)
    ]
    axes = style.new_figure(1, 1, height_in=_HEIGHT_IN)[1][0]
    draw_means(axes, data["lines"], markers="o", has_names=bool(labels))
    if labels:
        axes.set_xticks(range(len(labels)), labels)
    elif data["log"]:
        style.log_axis(axes.xaxis)
    style.from_zero(axes)
    axes.set_xlabel(x_label)
    axes.set_ylabel(label)
    style.add_legend(axes, data["by"])
    return axes, csv_text((data["by"] or "line", x_label, label, *_COLUMNS[1:]), rows)
