"""The values of metrics (`bentpipe.scenario.metric_ref`) in the tables of runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import polars as pl

from bentpipe.errors import UsageError
from bentpipe.metrics import KEYS, KINDS_OF_ROWS
from bentpipe.results.measures import names_of_entries
from bentpipe.scenario.metric_ref import MetricRef
from bentpipe.text import choice

if TYPE_CHECKING:
    from bentpipe.results.result import Result


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

    Those of transfers and videos are as `unfinished` has them.
    """
    if table in KINDS_OF_ROWS:
        names = pl.Series(names_of_entries(plan, entries), dtype=pl.String)
        return frame.with_columns(entry=names.gather(frame["flow"]))
    if table == "flows":
        amounts = [flow["workload"].get("amount", {}) for flow in plan["flows"]]
        sized = pl.Series([each.get("unit") == "bytes" for each in amounts], dtype=pl.Boolean)
        return frame.with_columns(unfinished(pl.lit(sized.gather(frame["flow"]))))
    return frame


def unfinished(has_size: pl.Expr) -> list[pl.Expr]:
    """Return completion and start-up times, infinite for what did not end or did not start.

    Otherwise flows that end fewer transfers, or start fewer videos, would look faster. ``has_size``
    says which flows are transfers of a given size.
    """
    is_of = {"completion_time_ns": has_size, "start_up_time_ns": pl.col("played_ns").is_not_null()}
    return [
        pl.when(own).then(pl.col(name).cast(pl.Float64).fill_null(float("inf"))).alias(name)
        for name, own in is_of.items()
    ]


def metric_value(result: Result, metric: MetricRef) -> float | None:
    """Return a metric of a run; None if it has no value, such as the loss of TCP.

    Raises:
        UsageError: no flow or direction has the name, or several rows need a statistic.
    """
    found = metric_values(metric_frame(result, metric.table), metric)
    return float(found["value"][0]) if found.height else None


def metric_values(frame: pl.DataFrame, metric: MetricRef) -> pl.DataFrame:
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
    found = values.group_by("run", maintain_order=True).agg(
        reduced(pl.col("value"), metric).alias("value")
    )
    # A percentile between a finite and an infinite value.
    return found.with_columns(pl.col("value").fill_nan(float("inf")))


def _selected(frame: pl.DataFrame, metric: MetricRef) -> pl.DataFrame:
    """Return the rows with the name and the heading of a metric."""
    # The first column with the name counts.
    columns = [name for name in ("entry", "name") if name in frame.columns] or KEYS[metric.table]
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


def reduced(value: pl.Expr, ref: MetricRef) -> pl.Expr:
    """Return the expression that reduces values, none of them null, by a statistic."""
    if ref.share is not None:
        return value.quantile(ref.share, interpolation="linear")
    if ref.statistic == "jain":
        # As `results.measures.jain`: 1 if all are zero.
        squares = (value * value).sum()
        fairness = value.sum().pow(2) / (value.count() * squares)
        return pl.when(squares > 0).then(fairness).otherwise(1.0)
    return {
        None: value.first(),
        "min": value.min(),
        "max": value.max(),
        "mean": value.mean(),
        "sum": value.sum(),
    }[ref.statistic]
