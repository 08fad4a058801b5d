"""The means of the cells of a sweep, with their confidence intervals."""

from __future__ import annotations

import math
from functools import cache

import polars as pl

from bentpipe.metrics import Metric, metrics_shown
from bentpipe.results.confidence import CONFIDENCE, t_quantile


def cell_metrics() -> dict[str, Metric]:
    """Return the metrics that a cell has means of, by the name of the column.

    They are the metrics of flows and, with ``forward_`` in front, of the forward direction.
    """
    of_flows = {metric.name: metric for metric in metrics_shown("sweep", "flows")}
    directions = metrics_shown("sweep", "directions")
    return of_flows | {f"forward_{metric.name}": metric for metric in directions}


def key_columns(flows: pl.DataFrame) -> list[str]:
    """Return the columns of the varied values."""
    return flows.columns[1 : flows.columns.index("seed")] if flows.width else []


def cell_means(flows: pl.DataFrame, directions: pl.DataFrame) -> pl.DataFrame:
    """Return a row a cell: the varied values, ``runs``, and the mean of each of `cell_metrics`.

    The value of a run is the mean over its flows that have one. ``NAME_half_width`` is half the
    width of the 95 % interval of the mean ``NAME``, by Student's t distribution; null with less
    than two runs.
    """
    if not flows.height:
        return pl.DataFrame()
    keys, metrics = key_columns(flows), cell_metrics()
    of_flows = [name for name, metric in metrics.items() if metric.table == "flows"]
    forward = directions.filter(pl.col("direction") == "forward").select(
        "run",
        *(pl.col(each.name).alias(name) for name, each in metrics.items() if name not in of_flows),
    )
    of_runs = (
        flows.group_by("run", maintain_order=True)
        .agg(pl.col(keys).first(), pl.col(of_flows).cast(pl.Float64).mean())
        .join(forward, on="run", how="left", maintain_order="left")
    )
    # Without varied values there is one cell.
    of_runs = of_runs.with_columns(cell=pl.lit(0)) if not keys else of_runs
    names = pl.col(list(metrics))
    cells = of_runs.group_by(keys or ["cell"], maintain_order=True).agg(
        pl.len().alias("runs"),
        names.mean(),
        names.std().name.suffix("_deviation"),
        names.count().name.suffix("_count"),
    )
    return cells.select(
        *keys, "runs", *(each for name in metrics for each in (name, _half_width(cells, name)))
    )


def _half_width(cells: pl.DataFrame, name: str) -> pl.Series:
    counts, deviations = cells[f"{name}_count"].to_list(), cells[f"{name}_deviation"].to_list()
    widths = [
        None if deviation is None else _quantile(count) * deviation / math.sqrt(count)
        for count, deviation in zip(counts, deviations, strict=True)
    ]
    return pl.Series(f"{name}_half_width", widths, dtype=pl.Float64)


@cache
def _quantile(count: int) -> float:
    return t_quantile((1 + CONFIDENCE) / 2, count - 1)
