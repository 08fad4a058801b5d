"""Where the capacity of the link went, in the time of a TCP flow (docs/model/capacity.md).

The table ``capacity`` divides the time of a flow into times of the transmitter; the airtime of the
flow's own packets is divided in proportion to their bits. So the parts add up to the flow's time.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from bentpipe.metrics import CAPACITY_PARTS

if TYPE_CHECKING:
    from bentpipe.results.result import Result

_BITS_PER_BYTE: Final = 8


def capacity_attribution(result: Result) -> pl.DataFrame:
    """Return what the capacity of the link was used for in the time of each TCP flow, in percent.

    A row has ``flow``, ``name``, ``direction``, ``from_ns``, ``until_ns`` and ``PART_percent`` for
    each of `CAPACITY_PARTS`, which add up to 100. It is empty for a run in real time, and has no
    flow of a direction that carries the data of more than 12 TCP flows.
    """
    flows = result.tables["flows"].select("flow", "start_ns", "delivered_bytes")
    table = result.tables["capacity"].join(flows, on="flow", how="left", maintain_order="left")
    rows = []
    for row in table.to_dicts():
        elapsed_ns = row["until_ns"] - row["start_ns"]
        parts = {name: 100 * time_ns / elapsed_ns for name, time_ns in part_times(row).items()}
        rows.append(
            {
                "flow": row["flow"],
                "name": result.plan["flows"][row["flow"]]["name"],
                "direction": result.flow_directions[row["flow"]],
                "from_ns": row["start_ns"],
                "until_ns": row["until_ns"],
                **{f"{name}_percent": float(parts[name]) for name in CAPACITY_PARTS},
            }
        )
    types: dict[str, Any] = {"flow": pl.UInt32, "name": pl.String, "direction": pl.String}
    types |= {"from_ns": pl.UInt64, "until_ns": pl.UInt64}
    types |= {f"{name}_percent": pl.Float64 for name in CAPACITY_PARTS}
    return pl.DataFrame(rows, schema=types)


def part_times(row: Mapping[str, int]) -> dict[str, Fraction]:
    """Return the time of each part in ns, exactly.

    ``row`` is a row of the table ``capacity`` with ``delivered_bytes`` of the flow.
    """
    wasted_bytes = row["dropped_bytes"] + row["discarded_bytes"]
    # Recovered data came as repair, the airtime of which is that of other traffic.
    direct_bytes = row["delivered_bytes"] - row["recovered_bytes"]
    airtime_ns = Fraction(row["sending_ns"])
    per_byte_ns = airtime_ns * _BITS_PER_BYTE / max(row["sent_bits"], 1)
    return {
        "goodput": direct_bytes * per_byte_ns,
        "headers": airtime_ns - row["payload_bytes"] * per_byte_ns,
        "handshake": Fraction(row["idle_handshake_ns"]),
        "slow_start": Fraction(row["idle_slow_start_ns"]),
        "congestion_avoidance": Fraction(row["idle_congestion_avoidance_ns"]),
        "window_limit": Fraction(row["idle_receive_window_ns"] + row["idle_send_buffer_ns"]),
        "loss_recovery": row["idle_recovery_ns"] + wasted_bytes * per_byte_ns,
        "other_traffic": Fraction(row["other_traffic_ns"]),
        "application_idle": Fraction(row["idle_application_ns"]),
        "packet_processor": Fraction(row["idle_gateway_ns"]),
        "access_line": Fraction(row["idle_access_line_ns"]),
        "outage": Fraction(row["outage_ns"]),
        "in_flight": (row["payload_bytes"] - direct_bytes - wasted_bytes) * per_byte_ns,
        "last_delay": Fraction(row["last_delay_ns"]),
    }
