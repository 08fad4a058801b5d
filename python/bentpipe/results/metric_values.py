"""The values of metrics (`bentpipe.scenario.metrics`) in the tables of runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from bentpipe.errors import UsageError
from bentpipe.results.entries import names_of_entries
from bentpipe.scenario.metrics import Metric
from bentpipe.text import choice

if TYPE_CHECKING:
    from bentpipe.results.result import Result

# The columns of each table that a name may be in; the first one with it counts.
_NAMES: Final = {
    "flows": ("entry", "name"),
    "exchanges": ("entry", "name"),
    "pages": ("entry", "name"),
    "directions": ("direction",),
    "processors": ("processor",),
}


def metric_frame(result: Result, table: str) -> pl.DataFrame:
    """Return a table of a result for `metric_values`, its run as number 0."""
    frame: pl.DataFrame = getattr(result, table)
    entries = result.manifest.get("entries", [])
    return of_runs(
        frame.select(pl.lit(0, dtype=pl.UInt32).alias("run"), pl.all()), table, result.plan, entries
    )


def of_runs(
    frame: pl.DataFrame, table: str, plan: Mapping[str, Any], entries: Sequence[Mapping[str, Any]]
) -> pl.DataFrame:
    """Return the rows of a table of one or more runs of a plan for `metric_values`.

    The completion time of a transfer that did not end is infinite, and so is the start-up time of a
    video that did not start.
    """
    if table in {"exchanges", "pages"}:
        names = pl.Series(names_of_entries(plan, entries), dtype=pl.String)
        return frame.with_columns(entry=names.gather(frame["flow"]))
    if table == "flows":
        amounts = [flow["workload"].get("amount", {}) for flow in plan["flows"]]
        sized = pl.Series([each.get("unit") == "bytes" for each in amounts], dtype=pl.Boolean)
        time = pl.col("completion_time_ns").cast(pl.Float64).fill_null(float("inf"))
        finished = pl.when(pl.lit(sized.gather(frame["flow"]))).then(time)
        return frame.with_columns(finished, unfinished_start_up())
    return frame


def unfinished_start_up() -> pl.Expr:
    """Return start-up times, infinite for a video that did not start."""
    time = pl.col("start_up_time_ns").cast(pl.Float64)
    is_video = pl.col("played_ns").is_not_null()
    return pl.when(is_video).then(time.fill_null(float("inf")))


def metric_value(result: Result, metric: Metric) -> float | None:
    """Return a metric of a run; None if it has no value, such as the loss of TCP.

    Raises:
        UsageError: no flow or direction has the name, or several rows need a statistic.
    """
    found = metric_values(metric_frame(result, metric.table), metric)
    return float(found["value"][0]) if found.height else None


def metric_values(frame: pl.DataFrame, metric: Metric) -> pl.DataFrame:
    """Return a metric of each run of a frame: ``run`` and ``value``; runs without one are left out.

    ``frame`` has the rows of a table for one or more runs, and their column ``run``.

    Raises:
        UsageError: no row has the name, or several rows of a run need a statistic.
    """
    if metric.column not in frame.columns:
        raise UsageError(f"{metric}: these results have no column {metric.column}")
    rows = _selected(frame, metric)
    values = rows.select("run", pl.col(metric.column).cast(pl.Float64).alias("value")).drop_nulls()
    if metric.statistic is None and values["run"].is_duplicated().any():
        raise UsageError(
            f"{metric}: has several values in a run; add a statistic, such as {metric}.mean"
        )
    found = values.group_by("run", maintain_order=True).agg(_statistic(metric))
    # A percentile between a finite and an infinite value.
    return found.with_columns(pl.col("value").fill_nan(float("inf")))


def _selected(frame: pl.DataFrame, metric: Metric) -> pl.DataFrame:
    """Return the rows with the name and the heading of a metric."""
    columns = [name for name in _NAMES[metric.table] if name in frame.columns]
    if metric.heading is not None:
        if "direction" not in frame.columns:
            raise UsageError(f"{metric}: the table {metric.table} has no directions")
        # Each of several terminals has a return of its own: return-1.
        direction = pl.col("direction")
        own = (direction == metric.heading) | direction.str.starts_with(f"{metric.heading}-")
        frame = frame.filter(own)
    if metric.name is None or frame.height == 0:
        return frame
    for column in columns:
        rows = frame.filter(pl.col(column) == metric.name)
        if rows.height:
            return rows
    allowed: Sequence[str] = [
        str(each) for column in columns for each in frame[column].unique(maintain_order=True)
    ]
    raise UsageError(f"{metric}: name: {choice(metric.name, tuple(dict.fromkeys(allowed)))}")


def _statistic(metric: Metric) -> pl.Expr:
    """Return the expression that reduces the values of a run."""
    value = pl.col("value")
    if metric.share is not None:
        return value.quantile(metric.share, interpolation="linear")
    if metric.statistic == "jain":
        # As `results.metrics.jain`: 1 if all are zero.
        squares = (value * value).sum()
        return (
            pl.when(squares > 0)
            .then(value.sum().pow(2) / (pl.len() * squares))
            .otherwise(1.0)
            .alias("value")
        )
    return {
        None: value.first(),
        "min": value.min(),
        "max": value.max(),
        "mean": value.mean(),
        "sum": value.sum(),
    }[metric.statistic]
