"""Totals of a flow mean the same in both engines; the reports are constructed here."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bentpipe.live.flows import Flow
from bentpipe.live.programs import Program
from bentpipe.live.run import verdict
from bentpipe.live.tables import FlowRun, RunRecord, Watched
from bentpipe.results.tables import LOSS_CAUSES

S = 10**9
MB = 10**6
# What the link carries in 40 s at 1 MB/s.
CAN_CARRY = 40 * MB


def program(total: str, count: int) -> Program:
    report = {"end": {"streams": [], total: {"bytes": count}}, "intervals": []}
    return Program(0, text=json.dumps(report), code=0)


def bulk_flow(written: int, delivered: int) -> Flow:
    workload = {"kind": "bulk", "amount": {"unit": "duration_ns", "value": 40 * S}}
    plan = {"name": "a", "terminal": 0, "direction": "forward", "start_ns": 0}
    return Flow(
        index=0,
        plan=plan | {"workload": workload},
        program="",
        interval_ns=S,
        mtu_bytes=1_500,
        hosts={"world": "world", "island": "island"},
        start_ns=0,
        traffic_class=0,
        seed=1,
        state="stopped",
        programs={
            "client": program("sum_sent", written),
            "server": program("sum_received", delivered),
        },
    )


def row(at_s: int, acked: int, delivered: int) -> dict[str, Any]:
    return {"time_ns": at_s * S, "srtt_ns": S, "acked_bytes": acked, "delivered_bytes": delivered}


def record(watched: Watched) -> RunRecord:
    tally = {"packets": 9, "segments": 9, "payload_bytes": 9}
    times = ("first_ns", "last_ns", "first_payload_ns", "last_payload_ns")
    place = {**tally, **dict.fromkeys(times, 50 * S)}
    side = {"offered": place, "delivered": place, "delay_sum_ns": 9, "delay_max_ns": 1}
    side["dropped_packets"] = dict.fromkeys(LOSS_CAUSES, 0)
    report = {"ports": {5_201: {"world": side, "island": side}}}
    return RunRecord(ended_ns=60 * S, watched={0: watched}, report=report)


def sender(acked: int) -> dict[str, Any]:
    # The SYN and the 37 bytes by which iperf3 names a stream count for the kernel.
    return {"bytes_acked": acked + 38, "total_retrans": 0, "total_rto": 0, "min_rtt_us": 1_000}


def test_data_sent_after_the_end_does_not_count() -> None:
    """Given 44 MB written of which 4 MB are unsent at 40 s, expect 40 MB, acknowledged at 41 s.

    The simulator never sends what TCP had not sent when the application stopped.
    """
    rows = [row(39, 38 * MB, 39 * MB), row(40, 39 * MB, 40 * MB), row(42, 41 * MB, 42 * MB)]
    rows.append(row(45, 44 * MB, 44 * MB))
    watched = Watched(rows=rows, sender=sender(44 * MB), to_the_end=True, unsent_bytes=4 * MB)
    flow = bulk_flow(written=44 * MB, delivered=44 * MB)
    run = FlowRun(flow, flow.report(), record(watched))
    found = run.row()
    assert found["sent_bytes"] == found["delivered_bytes"] == found["acked_bytes"] == CAN_CARRY
    assert (found["last_delivery_ns"], found["finished_ns"]) == (40 * S, 41 * S)
    delivered, acked = (
        [each[name] // MB for each in run.samples()] for name in ("delivered_bytes", "acked_bytes")
    )
    assert (delivered, acked) == ([39, 40, 40, 40], [38, 39, 40, 40])


def test_a_flow_without_unsent_data_counts_everything() -> None:
    """Given nothing unsent at the end, expect all that was written, done at the last ACK."""
    watched = Watched(rows=[row(41, 40 * MB, 40 * MB)], sender=sender(40 * MB), to_the_end=True)
    flow = bulk_flow(written=40 * MB, delivered=40 * MB)
    found = FlowRun(flow, flow.report(), record(watched)).row()
    assert found["sent_bytes"] == found["delivered_bytes"] == CAN_CARRY
    assert found["finished_ns"] == found["last_delivery_ns"] == 50 * S


def test_a_flow_that_is_still_draining_has_not_finished() -> None:
    """Given 44 MB written, 4 MB unsent, and a run that ends with 30 MB delivered, expect 30 MB."""
    watched = Watched(
        rows=[row(40, 29 * MB, 30 * MB)],
        sender=sender(29 * MB),
        to_the_end=True,
        unsent_bytes=4 * MB,
    )
    flow = bulk_flow(written=44 * MB, delivered=30 * MB)
    found = FlowRun(flow, flow.report(), record(watched)).row()
    assert (found["sent_bytes"], found["delivered_bytes"]) == (CAN_CARRY, 30 * MB)
    assert "finished_ns" not in found
    assert found["acked_bytes"] == 29 * MB


def test_windows_are_on_the_clock_of_the_run() -> None:
    """Given a run that started 3 s after its lab, expect a window from 0 s to 10 s from -3 s on."""
    counts = [
        *("lateness", "wait", "rejected_packets", "kernel_dropped_packets", "store_full_packets"),
        *("too_long_packets", "future_stamped_packets", "clock_steps", "window_count"),
        *("invalid_windows", "slowdown_percent", "capture", "invalid", "fault"),
    ]
    window = {"start_ns": 0, "end_ns": 10 * S, "packets": 7, "invalid": None}
    report = {**dict.fromkeys(counts, 1), "windows": [window], "at_ns": 13 * S}
    found = verdict(report, 3 * S, 5 * S)
    assert found["windows"] == [window | {"start_ns": -3 * S, "end_ns": 7 * S}]
    assert set(found) == {*counts, "windows"}
    # 1 % of 13 s is 2.6 % of the 5 s of the run.
    assert found["slowdown_percent"] == pytest.approx(2.6)
