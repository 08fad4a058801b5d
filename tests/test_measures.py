"""Figures of merit, each against a value derived on paper."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, strategies as st
from properties import examples

from bentpipe import Result, check_thresholds, simulate
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
    """Return a result of 10 s with these flows: `bulk` or `datagrams`."""
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


# 1 Mbit/s: an interval of 1 ms.
RATE_BPS, PAYLOAD_BYTES = 1_000_000, 125


def datagrams(
    first_s: float | None,
    last_s: float | None,
    received: int,
    *,
    lost: int | None = 0,
    expected: int = 4_000,
    **workload: Any,
) -> Any:
    """Return datagrams at 1 Mbit/s for 4 s for `arrivals_of`, with more of the workload."""
    about = {"kind": "constant_rate", "rate_bps": RATE_BPS, "payload_bytes": PAYLOAD_BYTES}
    return {
        "workload": about | {"duration_ns": 4 * S} | workload,
        "row": {
            "start_ns": 0,
            "finished_ns": None,
            "first_delivery_ns": None if first_s is None else round(first_s * S),
            "last_delivery_ns": None if last_s is None else round(last_s * S),
            "delivered_bytes": received * PAYLOAD_BYTES,
            "received_segments": received,
            "expected_segments": expected,
            "lost_queue_full_packets": lost,
            "lost_bit_error_packets": 0,
        },
    }


def arrivals_of(*flows: Any, end_s: float = 10) -> Result:
    """Return a result of some seconds with these flows of datagrams."""
    plan = [{"name": str(i), "workload": flow["workload"]} for i, flow in enumerate(flows)]
    rows = [{"flow": i} | flow["row"] for i, flow in enumerate(flows)]
    table = pl.DataFrame(rows, schema=dict.fromkeys(rows[0], pl.UInt64))
    return Result({"plan": {"flows": plan}, "end_ns": round(end_s * S)}, {"flows": table})


# All 4,000 datagrams, of which the first is in flight for half a second.
WHOLE = (0.5, 0.5 + 3.999, 4_000)


@examples(40)
@given(
    rate_bps=st.integers(8_000, 5_000_000),
    payload_bytes=st.integers(20, 1_400),
    delay_ns=st.integers(0, 600_000_000),
    intervals=st.floats(0.1, 60),
    ends_in_flight=st.booleans(),
)
def test_goodput_of_a_constant_rate_without_loss_is_the_rate_and_not_less_by_the_delay(
    rate_bps: int, payload_bytes: int, delay_ns: int, intervals: float, ends_in_flight: bool
) -> None:
    """Given any rate, payload, delay and duration, expect the rate, and its guarantee to pass.

    The run ends with the flow, when its last datagrams are in flight, or later.
    """
    sent_ns = max(1, round(intervals * payload_bytes * 8e9 / rate_bps))
    # At 100 Mbit/s a datagram takes at most 0.12 ms.
    run_ns = delay_ns + 200_000 + sent_ns
    traffic: dict[str, Any] = {"kind": "constant_rate", "direction": "forward"}
    traffic |= {"rate": f"{rate_bps} bit/s", "payload": f"{payload_bytes} B"}
    traffic |= {"duration": f"{run_ns if ends_in_flight else sent_ns} ns"}
    link = {"rate": "100 Mbit/s", "delay": f"{delay_ns} ns"}
    result = simulate(
        {
            "link": {"forward": link, "return": link},
            "traffic": [traffic],
            "duration": f"{run_ns} ns",
            "sample_interval": None,
        }
    )
    assert result.goodput_bps.tolist() == [rate_bps]
    (check,) = check_thresholds(result, [f"flows.goodput_bps.min >= {rate_bps} bit/s"])
    assert check.passed


@pytest.mark.parametrize(
    ("flow", "end_s", "share"),
    [
        (datagrams(*WHOLE), 10, 1),
        # The run ends 0.5 s before the last datagrams arrive.
        (datagrams(0.5, 3.999, 3_500), 4, 1),
        (datagrams(0.5, 0.5, 1, expected=1), 10, 1 / 4_000),
        # Half are lost: every second one, all of the first 2 s, or all of the last.
        (datagrams(0.5, 4.498, 2_000, lost=2_000), 10, 1 / 2),
        (datagrams(2.5, 4.499, 2_000, lost=2_000), 4.5, 1 / 2),
        (datagrams(0.5, 2.499, 2_000, lost=2_000), 4.5, 1 / 2),
        # A tunnel hides which are lost.
        (datagrams(0.5, 2.499, 2_000, lost=None), 4.5, 1 / 2),
        # From 2.5 s on they wait in the queue, until after the run.
        (datagrams(0.5, 2.499, 2_000), 4.5, 1 / 2),
        # The link has half the rate: the last one arrives 4 s later than the first would.
        (datagrams(0.5, 0.5 + 8, 4_000), 10, 1 / 2),
        (datagrams(None, None, 0, lost=3_500), 4, 0),
    ],
)
def test_goodput_of_datagrams_counts_what_is_lost_or_held_back(
    flow: Any, end_s: float, share: float
) -> None:
    found = arrivals_of(flow, end_s=end_s).goodput_bps
    assert found.tolist() == pytest.approx([share * RATE_BPS], rel=1e-9)


def test_goodput_of_a_participant_is_that_of_all_others_together() -> None:
    """Given three participants in phase, expect each to receive two streams at their rate."""
    one = datagrams(0.5, 0.5 + 3.999, 8_000, expected=8_000, kind="conference", conference=0)
    assert arrivals_of(one, one, one).goodput_bps.tolist() == [2 * RATE_BPS] * 3


def test_goodput_of_speech_with_pauses_is_over_the_call() -> None:
    """Given 1,600 datagrams of a call of 4 s, from 0.6 to 3.6 s, expect 40 % of the rate."""
    call = datagrams(0.6, 3.6, 1_600, expected=1_600, talk_spurts={})
    assert arrivals_of(call).goodput_bps.tolist() == pytest.approx([0.4 * RATE_BPS])


def test_aggregate_goodput_of_datagrams_is_at_the_receiver() -> None:
    flows = [datagrams(*WHOLE), datagrams(*WHOLE)]
    assert aggregate_goodput_bps(arrivals_of(*flows), [0, 1]) == pytest.approx(2 * RATE_BPS)


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
