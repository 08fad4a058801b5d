"""Figures of merit, each against a value derived on paper."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest

from bentpipe import Result
from bentpipe.results.measures import (
    aggregate_goodput_bps,
    channel_utilization,
    competing_flows,
    finished_times_ns,
    jain,
    names_of_entries,
    rate_bps,
)

S = 1_000_000_000


def result_of(*flows: dict[str, Any]) -> Result:
    """Return a result of 10 s with these flows: kind, start_s, finished_s, last_s, megabytes."""
    plan = [
        {"name": str(i), "direction": "forward", "workload": flow["workload"]}
        for i, flow in enumerate(flows)
    ]
    table = pl.DataFrame(
        {
            "flow": range(len(flows)),
            "start_ns": [flow["start_s"] * S for flow in flows],
            "finished_ns": [
                None if f["finished_s"] is None else f["finished_s"] * S for f in flows
            ],
            "last_delivery_ns": [None if f["last_s"] is None else f["last_s"] * S for f in flows],
            "delivered_bytes": [int(flow["megabytes"] * 1e6) for flow in flows],
        },
        schema_overrides={"finished_ns": pl.UInt64, "last_delivery_ns": pl.UInt64},
    )
    return Result({"plan": {"flows": plan}, "end_ns": 10 * S}, {"flows": table})


def bulk(start_s: int, finished_s: int | None, last_s: int | None, megabytes: float) -> Any:
    """Return a bulk flow for `result_of`."""
    return {
        "workload": {"kind": "bulk"},
        "start_s": start_s,
        "finished_s": finished_s,
        "last_s": last_s,
        "megabytes": megabytes,
    }


def test_goodput_of_a_finished_transfer_ends_with_its_last_delivery() -> None:
    # 1 MB from 1 s to 5 s; its last acknowledgement came back at 6 s.
    assert result_of(bulk(1, 6, 5, 1.0)).goodput_bps == pytest.approx([2e6])


def test_goodput_of_an_unfinished_transfer_ends_with_the_run() -> None:
    assert result_of(bulk(2, None, 4, 1.0)).goodput_bps == pytest.approx([1e6])


def test_goodput_of_a_constant_rate_is_the_offered_rate_when_nothing_is_lost() -> None:
    workload = {"kind": "constant_rate", "duration_ns": 4 * S}
    call = {**bulk(1, 5, 5, 0.5), "workload": workload}
    assert result_of(call).goodput_bps == pytest.approx([1e6])
    # The run ended before the call did.
    late = {**bulk(8, None, 9, 0.5), "workload": workload}
    assert result_of(late).goodput_bps == pytest.approx([2e6])


def test_goodput_without_time_or_bytes_is_zero() -> None:
    result = result_of(bulk(10, None, None, 0.0), bulk(1, None, None, 0.0))
    assert result.goodput_bps.tolist() == [0, 0]


def test_aggregate_goodput_is_over_the_time_of_all_flows() -> None:
    """Given two flows of 1 Mbit/s, one after the other, expect 1 Mbit/s and not 2."""
    result = result_of(bulk(0, 5, 4, 0.5), bulk(4, 9, 8, 0.5))
    assert result.goodput_bps == pytest.approx([1e6, 1e6])
    assert aggregate_goodput_bps(result, [0, 1]) == pytest.approx(1e6)
    assert aggregate_goodput_bps(result, [1]) == pytest.approx(1e6)


def test_competing_flows_are_bulk_flows_of_one_direction() -> None:
    flows = [bulk(0, 5, 4, 0.5) for _ in range(5)]
    flows[4] = {**flows[4], "workload": {"kind": "constant_rate", "duration_ns": S}}
    result = result_of(*flows)
    result.plan["directions"] = [{"name": name} for name in ("forward", "return-1", "return-2")]
    for flow, (direction, terminal) in zip(
        result.plan["flows"],
        [("forward", 0), ("return", 0), ("forward", 1), ("return", 1), ("forward", 0)],
        strict=True,
    ):
        flow |= {"direction": direction, "terminal": terminal}
    assert competing_flows(result) == {"forward": [0, 2]}


def test_an_entry_without_a_name_has_those_of_its_first_and_last_flow() -> None:
    names = ["a-1", "a-2", "b-1", "b-2", "b-3", "c"]
    plan = {"flows": [{"name": name} for name in names]}
    sizes = (("a", 2), (None, 3), ("own", 1))
    entries = [{"name": name, "flows": flows} for name, flows in sizes]
    assert names_of_entries(plan, entries) == ["a", "a", *["b-1 to b-3"] * 3, "c"]
    assert names_of_entries(plan, []) == names


def exchanges_of(*times: tuple[int, int, int | None]) -> Result:
    """Return a result of two flows with these exchanges: flow, start and finish in s."""
    result = result_of(bulk(0, None, None, 0), bulk(0, None, None, 0))
    result.tables["exchanges"] = pl.DataFrame(
        {
            "flow": [flow for flow, _, _ in times],
            "start_ns": [start * S for _, start, _ in times],
            "finished_ns": [None if end is None else end * S for _, _, end in times],
        },
        schema={"flow": pl.UInt32, "start_ns": pl.UInt64, "finished_ns": pl.UInt64},
    )
    return result


def test_exchange_times_are_those_of_finished_exchanges() -> None:
    result = exchanges_of((0, 0, 2), (1, 1, 8), (0, 3, 6), (0, 7, None))
    assert finished_times_ns(result, "exchanges").tolist() == [2 * S, 7 * S, 3 * S]
    assert finished_times_ns(result, "exchanges", [0]).tolist() == [2 * S, 3 * S]


def test_rates_are_bits_over_seconds() -> None:
    assert rate_bps([1_000, 500], [S, 0]).tolist() == [8_000, 0]


def test_jain_is_one_when_shares_are_equal_and_one_nth_when_one_takes_all() -> None:
    assert jain([5, 5, 5]) == pytest.approx(1)
    assert jain([7, 0, 0, 0]) == pytest.approx(1 / 4)
    # (1 + 3)^2 / (2 (1 + 9)).
    assert jain([1, 3]) == pytest.approx(16 / 20)
    assert jain([0, 0]) == 1
    # Squares beyond 64 bits.
    assert jain([10**10, 10**10]) == pytest.approx(1)
    with pytest.raises(ValueError, match="no goodputs"):
        jain([])


def test_channel_utilization_of_a_full_link_is_what_headers_leave() -> None:
    """1460 of 1508 bytes on the link: 96.82 %, JPL's cell without delay and errors (96.81)."""
    rate = 2_000_000
    packets = 7_183
    elapsed_ns = packets * 1_508 * 8 * S // rate
    utilization = channel_utilization(packets * 1_460, rate, elapsed_ns)
    assert float(utilization) == pytest.approx(96.82, abs=0.005)
    both = channel_utilization(np.array([0, packets * 1_460]), rate, elapsed_ns)
    assert both.tolist() == pytest.approx([0, float(utilization)])
    assert float(channel_utilization(1, rate, 0)) == 0
