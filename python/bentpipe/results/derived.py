"""Columns of flows and directions that are derived from those of the tables.

The rows may be those of several runs of one plan. The tables then have a column ``run``, whose
values are indices into the ends of the runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import polars as pl

from bentpipe.results.calls import call_columns
from bentpipe.results.entries import TCP_KINDS, names_of_entries
from bentpipe.results.metrics import exchange_quantiles_of_rows, goodput_of_rows
from bentpipe.results.tables import DROP_CAUSES, LOSS_CAUSES, SENDER_TIMES
from bentpipe.results.tunnel_figures import add_figures, is_tunnel
from bentpipe.scenario.metrics import PAGE_COLUMNS

_EXCHANGE_SHARES: Final = {"0": "exchange_time_median_ns", "1": "exchange_time_p95_ns"}


def flow_rows(
    tables: Mapping[str, pl.DataFrame],
    plan: Mapping[str, Any],
    entries: Sequence[Mapping[str, Any]],
    ends_ns: Sequence[int],
) -> pl.DataFrame:
    """Return the table ``flows`` with names in front and derived columns (`Result.flows`)."""
    table = tables["flows"]
    numbers = table["flow"].to_list()
    planned = [plan["flows"][flow] for flow in numbers]
    ends = np.asarray(ends_ns, dtype=np.int64)
    by = [name for name in ("run", "flow") if name in table.columns]
    end_ns = ends[table["run"].to_numpy()] if "run" in by else ends[0]
    names = [direction["name"] for direction in plan["directions"]]
    directions = flow_directions(plan, names)
    entry_names = names_of_entries(plan, entries)
    quantiles = exchange_quantiles_of_rows(tables["exchanges"], (0.5, 0.95), by)
    joined = table.join(quantiles, on=by, how="left", maintain_order="left")
    loads = exchange_quantiles_of_rows(tables["pages"], (0.5, 0.95, 0.99), by)
    loads = loads.rename(dict(zip("012", PAGE_COLUMNS, strict=True)))
    joined = joined.join(loads, on=by, how="left", maintain_order="left")
    named = joined.select(
        *(pl.col(name) for name in by if name == "run"),
        pl.Series("name", [flow["name"] for flow in planned], dtype=pl.String),
        pl.Series("kind", [flow["workload"]["kind"] for flow in planned], dtype=pl.String),
        pl.Series("direction", [directions[flow] for flow in numbers], dtype=pl.String),
        pl.exclude("run", *_EXCHANGE_SHARES, *PAGE_COLUMNS),
        pl.Series("entry", [entry_names[flow] for flow in numbers], dtype=pl.String),
        pl.Series("goodput_bps", goodput_of_rows(table, plan, end_ns)),
        *losses(planned),
        completion_time(planned),
        idle_percent(),
        stall_ratio(),
        *(pl.col(share).alias(name) for share, name in _EXCHANGE_SHARES.items()),
        *PAGE_COLUMNS,
    )
    return named.with_columns(call_columns(planned, named))


def direction_rows(
    table: pl.DataFrame, plan: Mapping[str, Any], ends_ns: Sequence[int]
) -> pl.DataFrame:
    """Return the table ``directions`` with names, utilization and loss (`Result.directions`)."""
    names = dict(enumerate(direction["name"] for direction in plan["directions"]))
    named = table.with_columns(pl.col("direction").replace_strict(names, return_dtype=pl.String))
    return used(named, ends_ns).with_columns(of_directions(run_time(named, ends_ns)))


def processor_rows(table: pl.DataFrame, ends_ns: Sequence[int]) -> pl.DataFrame:
    """Return the table ``processors`` with names and utilization (`Result.processors`)."""
    number = pl.col("processor")
    name = pl.format("terminal-{}-processor", number)
    name = pl.when(number == 0).then(pl.lit("hub-processor")).otherwise(name)
    return used(table.with_columns(name.alias("processor")), ends_ns)


def exchange_rows(table: pl.DataFrame, plan: Mapping[str, Any]) -> pl.DataFrame:
    """Return the table ``exchanges`` with names and the time of each (`Result.exchanges`)."""
    duration_ns = (pl.col("finished_ns") - pl.col("start_ns")).alias("time_ns")
    return with_flow_names(table, plan).with_columns(duration_ns)


def with_flow_names(table: pl.DataFrame, plan: Mapping[str, Any]) -> pl.DataFrame:
    """Return a table with ``name`` and ``direction`` of the flow of each row in front."""
    names = [direction["name"] for direction in plan["directions"]]
    flows = pl.DataFrame(
        {
            "flow": pl.Series(range(len(plan["flows"])), dtype=pl.UInt32),
            "name": pl.Series([flow["name"] for flow in plan["flows"]], dtype=pl.String),
            "direction": pl.Series(flow_directions(plan, names), dtype=pl.String),
        }
    )
    joined = table.join(flows, on="flow", how="left", maintain_order="left")
    return joined.select("name", "direction", pl.exclude("name", "direction"))


def used(table: pl.DataFrame, ends_ns: Sequence[int]) -> pl.DataFrame:
    """Add the utilization: ``busy_ns`` over the time of the run."""
    return table.with_columns((pl.col("busy_ns") / run_time(table, ends_ns)).alias("utilization"))


def run_time(table: pl.DataFrame, ends_ns: Sequence[int]) -> pl.Expr:
    """Return the expression of the time of the run of each row."""
    ends = np.maximum(np.asarray(ends_ns, dtype=np.int64), 1)
    if "run" in table.columns:
        return pl.lit(pl.Series(ends[table["run"].to_numpy()]))
    return pl.lit(int(ends[0]))


def flow_directions(plan: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """Return the name of the direction of each flow's data, in the order of the plan.

    ``names`` are those of the directions: forward, and the return of each terminal.
    """
    return [
        names[0 if flow["direction"] == "forward" else 1 + flow["terminal"]]
        for flow in plan["flows"]
    ]


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


def of_directions(run_ns: pl.Expr) -> list[pl.Expr]:
    """Return the expressions of loss and of the shares of time of the queue of a direction."""
    dropped = pl.sum_horizontal(f"dropped_{cause}_packets" for cause in DROP_CAUSES)
    loss = _percent(dropped, pl.col("received_packets"))
    return [
        dropped.alias("dropped_packets"),
        loss.alias("loss_percent"),
        *(
            _percent(pl.col(f"queue_{state}_ns"), run_ns).alias(f"queue_{state}_percent")
            for state in ("empty", "full")
        ),
    ]


def idle_percent() -> pl.Expr:
    """Return the expression of the share of time in which a TCP flow had nothing to send."""
    life = pl.sum_horizontal(SENDER_TIMES, ignore_nulls=False)
    return _percent(pl.col("application_limited_ns"), life).alias("idle_percent")


def stall_ratio() -> pl.Expr:
    """Return the expression of the share of stalls in the time after the first frame of a video.

    It is 100 % of a video that has not started.
    """
    stalled, played = pl.col("stalled_ns"), pl.col("played_ns")
    waits = pl.col("start_up_time_ns").is_null() & played.is_not_null()
    ratio = _percent(stalled, stalled + played).fill_nan(0.0)
    return pl.when(waits).then(100.0).otherwise(ratio).alias("stall_ratio_percent")


def completion_time(planned: list[dict[str, Any]]) -> pl.Expr:
    """Return the expression of the time from start to end of transfers of a given size."""
    sized = [flow["workload"].get("amount", {}).get("unit") == "bytes" for flow in planned]
    time_ns = pl.col("finished_ns") - pl.col("start_ns")
    has_size = pl.lit(pl.Series(sized, dtype=pl.Boolean))
    return pl.when(has_size).then(time_ns).alias("completion_time_ns")


def leg_rows(table: pl.DataFrame, plan: Mapping[str, Any]) -> pl.DataFrame:
    """Return the table ``legs`` with the names of gateways as ``from`` and ``to``."""
    names = dict(enumerate(gateway["name"] for gateway in plan["gateways"]))
    ends = [
        pl.col(f"{end}_gateway")
        .replace_strict(names, return_dtype=pl.String)
        .fill_null(pl.lit(host))
        .alias(end)
        for end, host in (("from", "sender"), ("to", "receiver"))
    ]
    front = ("name", "direction", "flow", "leg")
    others = pl.exclude(*front, "from_gateway", "to_gateway")
    return table.select(*front, *ends, others)


def by_function(rows: list[dict[str, Any]], offered_bytes: Sequence[int]) -> list[dict[str, Any]]:
    """Return the statistics of each gateway function from rows of ``function_statistics``.

    ``offered_bytes`` are the IP bytes that each direction received.
    """
    functions: dict[str, dict[str, Any]] = {}
    for row in rows:
        function = functions.setdefault(row["place"], {"function": row["place"]})
        function[row["statistic"]] = row["value"]
    for function in functions.values():
        if "packed_packets" in function:
            waited = function["packed_packets"] + function["single_packets"]
            mean_ns = function["hold_time_sum_ns"] / waited if waited else None
            function["hold_time_mean_ns"] = mean_ns
        if is_tunnel(function):
            add_figures(function, offered_bytes)
    return list(functions.values())


def _percent(part: pl.Expr, whole: pl.Expr) -> pl.Expr:
    """Return the expression of ``part`` in percent of ``whole``, null where that is 0."""
    return pl.when(whole > 0).then(100 * part / whole)
