"""Columns of flows and directions that are derived from those of the tables."""

from __future__ import annotations

from typing import Any

import polars as pl

from bentpipe.results.entries import TCP_KINDS
from bentpipe.results.tables import DROP_CAUSES, LOSS_CAUSES


def losses(planned: list[dict[str, Any]]) -> list[pl.Expr]:
    """Return the expressions of lost packets, loss and retransmissions of the flows of a plan."""
    is_tcp = pl.lit(
        pl.Series([flow["workload"]["kind"] in TCP_KINDS for flow in planned], dtype=pl.Boolean)
    )
    # Null if a cause is unknown.
    lost = pl.sum_horizontal((f"lost_{cause}_packets" for cause in LOSS_CAUSES), ignore_nulls=False)
    again = _percent(pl.col("retransmitted_segments"), pl.col("sent_segments"))
    return [
        lost.alias("lost_packets"),
        _percent(lost, pl.col("expected_segments")).alias("loss_percent"),
        pl.when(is_tcp).then(again).alias("retransmitted_percent"),
    ]


def direction_losses() -> list[pl.Expr]:
    """Return the expressions of dropped packets and loss of a direction."""
    dropped = pl.sum_horizontal(f"dropped_{cause}_packets" for cause in DROP_CAUSES)
    loss = _percent(dropped, pl.col("received_packets"))
    return [dropped.alias("dropped_packets"), loss.alias("loss_percent")]


def completion_time(planned: list[dict[str, Any]]) -> pl.Expr:
    """Return the expression of the time from start to end of transfers of a given size."""
    sized = [flow["workload"].get("amount", {}).get("unit") == "bytes" for flow in planned]
    time_ns = pl.col("finished_ns") - pl.col("start_ns")
    has_size = pl.lit(pl.Series(sized, dtype=pl.Boolean))
    return pl.when(has_size).then(time_ns).alias("completion_time_ns")


def _percent(part: pl.Expr, whole: pl.Expr) -> pl.Expr:
    """Return the expression of ``part`` in percent of ``whole``, null where that is 0."""
    return pl.when(whole > 0).then(100 * part / whole)
