"""The means of the cells of a sweep, with their confidence intervals."""

from __future__ import annotations

import math
from functools import cache
from typing import Final

import polars as pl

from bentpipe.results.confidence import CONFIDENCE, t_quantile

# Columns of `Result.flows`. The value of a run is the mean over its flows that have one.
_OF_FLOWS: Final = (
    "goodput_bps",
    "loss_percent",
    "retransmitted_percent",
    "completion_time_ns",
    "page_load_time_p95_ns",
    "one_way_delay_p95_ns",
    "start_up_time_ns",
    "stall_ratio_percent",
)
METRICS: Final = (*_OF_FLOWS, "forward_utilization_percent")


def key_columns(flows: pl.DataFrame) -> list[str]:
    """Return the columns of the varied values."""
    return flows.columns[1 : flows.columns.index("seed")] if flows.width else []


def cell_means(flows: pl.DataFrame, directions: pl.DataFrame) -> pl.DataFrame:
    """Return a row a cell: the varied values, ``runs``, and the mean of each of `METRICS`.

    ``NAME_half_width`` is half the width of the 95 % interval of the mean ``NAME``, by Student's t
    distribution; null with less than two runs.
    """
    if not flows.height:
        return pl.DataFrame()
    keys = key_columns(flows)
    forward = directions.filter(pl.col("direction") == "forward").select(
        "run", (100 * pl.col("utilization")).alias("forward_utilization_percent")
    )
    of_runs = (
        flows.group_by("run", maintain_order=True)
        .agg(pl.col(keys).first(), pl.col(_OF_FLOWS).cast(pl.Float64).mean())
        .join(forward, on="run", how="left", maintain_order="left")
    )
    # Without varied values there is one cell.
    of_runs = of_runs.with_columns(cell=pl.lit(0)) if not keys else of_runs
    cells = of_runs.group_by(keys or ["cell"], maintain_order=True).agg(
        pl.len().alias("runs"),
        pl.col(METRICS).mean(),
        pl.col(METRICS).std().name.suffix("_deviation"),
        pl.col(METRICS).count().name.suffix("_count"),
    )
    return cells.select(
        *keys, "runs", *(each for name in METRICS for each in (name, _half_width(cells, name)))
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
