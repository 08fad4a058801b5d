"""Where the capacity of the link went: the parts add up, and are those computed on paper."""

from __future__ import annotations

import os
from collections.abc import Mapping
from fractions import Fraction
from random import Random
from typing import Any, Final

import polars as pl
import pytest

import bentpipe
from bentpipe.metrics import CAPACITY_PARTS
from bentpipe.results.measures import part_times

# Single-flow runs: `BENTPIPE_RUNS=1000` tries more.
RUNS: Final = int(os.environ.get("BENTPIPE_RUNS", "200"))
NS_PER_S: Final = 1_000_000_000
RATE_BPS: Final = 10_000_000
# A data packet of 1,500 bytes with 40 bytes of headers takes 1.2 ms of 10 Mbit/s.
PACKET_NS: Final = 1_200_000


def link(**forward: Any) -> dict[str, Any]:
    """Return a link of 10 Mbit/s and 275 ms without framing, with large queues."""
    base = {"rate": "10 Mbit/s", "delay": "275 ms", "queue": {"limit": "10 MB"}}
    return {"forward": {**base, **forward}, "return": base}


def run(data: Mapping[str, Any], seed: int = 1) -> bentpipe.Result:
    """Simulate a scenario with one TCP flow."""
    return bentpipe.simulate(
        bentpipe.Scenario.from_dict({"sample_interval": None, **data}), seed=seed
    )


def bulk(**settings: Any) -> list[dict[str, Any]]:
    """Return the traffic of one transfer, whose packets have 1,500 bytes."""
    tcp = {"timestamps": False, **settings.pop("tcp", {})}
    return [{"name": "flow", "kind": "bulk", "direction": "forward", "tcp": tcp, **settings}]


def parts(result: bentpipe.Result) -> dict[str, float]:
    """Return the parts of the only flow in percent."""
    (row,) = result.attribution.to_dicts()
    return {name: row[f"{name}_percent"] for name in CAPACITY_PARTS}


def times(result: bentpipe.Result) -> dict[str, Fraction]:
    """Return the parts of the only flow in ns."""
    (row,) = result.tables["capacity"].to_dicts()
    (flow,) = result.tables["flows"].to_dicts()
    return part_times({**row, "delivered_bytes": flow["delivered_bytes"]})


def random_scenario(random: Random) -> dict[str, Any]:
    """Return a scenario with one TCP flow over a random link."""
    rate = random.choice([256_000, 2_000_000, 10_000_000, 45_000_000])
    limits = ["20 kB", "200 kB", "2 MB", "30 packets", "200 ms", "unlimited"]
    queue: dict[str, Any] = {"limit": random.choice(limits)}
    if random.random() < 0.3:
        queue = {"discipline": random.choice(["codel", "fq_codel", "red"]), "limit": "200 kB"}
    forward = {
        "rate": f"{rate} bit/s",
        "delay": f"{random.randrange(5, 300)} ms",
        "queue": queue,
        "framing": random.choice(["none", "8 B", "gse"]),
        "bit_error_rate": random.choice([0, 0, 1e-8, 1e-7, 1e-6]),
    }
    tcp = {
        "congestion_control": random.choice(
            ["reno", "newreno", "cubic", "bbr", "hybla", "vegas", "westwood"]
        ),
        "sack": random.random() < 0.7,
        "receive_buffer": f"{random.choice([64, 512, 6_144])} KiB",
    }
    kind = random.choice(["size", "size", "duration", "requests", "fetches"])
    flow: dict[str, Any] = {"name": "flow", "direction": random.choice(["forward", "return"])}
    flow |= {"tcp": tcp, "start": f"{random.choice([0, 0, 1_700])} ms"}
    if kind == "size":
        flow |= {"kind": "bulk", "size": f"{random.randrange(1, 4_000)} kB"}
    elif kind == "duration":
        flow |= {"kind": "bulk", "duration": f"{random.randrange(1, 12)} s"}
    else:
        flow |= {
            "kind": "request_response",
            "request": "300 B",
            "response": f"{random.randrange(1, 300)} kB",
            "think": f"{random.randrange(0, 2_000)} ms",
            "exchanges": random.randrange(1, 8),
        }
        if kind == "fetches":
            flow |= {"kind": "fetch", "size": flow.pop("response"), "files": flow.pop("exchanges")}
    data: dict[str, Any] = {
        "link": {"forward": forward, "return": {**forward, "bit_error_rate": 0}},
        "traffic": [flow],
        "duration": f"{random.choice([6, 20, 60])} s",
    }
    if random.random() < 0.25:
        processor = {"packets_per_second": random.choice([100, 400, 3_000]), "buffer": "40 packets"}
        data["gateways"] = {"hub": {"processor": processor}}
    return data


@pytest.mark.parametrize("number", range(RUNS))
def test_parts_of_a_single_flow_add_up(number: int) -> None:
    """Given a random run with one flow, expect parts of 0 to 100 % that add up to 100 %.

    The flow has no competitor, so other traffic has no part. What was sent and neither delivered
    nor lost is on its way, so there is none if all data were delivered and the link is empty.
    """
    result = run(random_scenario(Random(number)), seed=number)
    (row,) = result.tables["capacity"].to_dicts()
    (flow,) = result.tables["flows"].to_dicts()
    exact = times(result)
    assert sum(exact.values()) == row["until_ns"] - flow["start_ns"]
    found = parts(result)
    assert sum(found.values()) == pytest.approx(100, abs=1e-9)
    assert min(exact.values()) >= 0, exact
    assert found["other_traffic"] == 0, found
    if flow["finished_ns"] is not None and result.manifest["traffic_ended"]:
        assert found["in_flight"] == 0, found
    until_ns = flow["last_delivery_ns"] if flow["finished_ns"] else result.manifest["end_ns"]
    assert row["until_ns"] >= until_ns
    life = sum(flow[f"{name}_limited_ns"] for name in SENDER_LIMITS)
    assert life == (flow["finished_ns"] or result.manifest["end_ns"]) - flow["start_ns"]


SENDER_LIMITS: Final = (
    "application",
    "handshake",
    "receive_window",
    "send_buffer",
    "slow_start",
    "congestion_avoidance",
    "recovery",
)


def test_the_bytes_of_a_flow_divide_its_airtime() -> None:
    """Given 1,000 bytes in 1,000 ns, 100 of headers and 60 that were lost, expect 1 ns a byte."""
    row = {"sent_bits": 8_000, "sending_ns": 1_000, "payload_bytes": 900, "delivered_bytes": 700}
    row |= {"recovered_bytes": 100, "dropped_bytes": 40, "discarded_bytes": 20}
    limits = "handshake slow_start congestion_avoidance receive_window send_buffer recovery"
    idle = f"{limits} application gateway access_line".split()
    row |= {f"idle_{cause}_ns": number for number, cause in enumerate(idle, 1)}
    row |= {"other_traffic_ns": 10, "outage_ns": 11, "last_delay_ns": 12}
    assert part_times(row) == {
        "goodput": 600,
        "headers": 100,
        "handshake": 1,
        "slow_start": 2,
        "congestion_avoidance": 3,
        "window_limit": 4 + 5,
        "loss_recovery": 6 + 60,
        "other_traffic": 10,
        "application_idle": 7,
        "packet_processor": 8,
        "access_line": 9,
        "outage": 11,
        "in_flight": 240,
        "last_delay": 12,
    }
    nothing = part_times(dict.fromkeys(row, 0))
    assert set(nothing.values()) == {0}


def test_headers_of_a_clean_link() -> None:
    """Given 100 MB over a clean link, expect 40 of each 1,500 bytes sent to be headers.

    The transmitter is busy but for the handshake (550 ms and 96 us for a SYN and a SYN-ACK of 60
    bytes or less), slow start and the last delay (275 ms).
    """
    result = run({"link": link(), "traffic": bulk(size="100 MB"), "duration": "200 s"})
    found = times(result)
    assert found["headers"] / found["goodput"] == pytest.approx(40 / 1460, rel=1e-4)
    assert found["goodput"] == 100_000_000 * 8 * NS_PER_S // RATE_BPS
    assert found["last_delay"] == 275_000_000
    assert 550_000_000 <= found["handshake"] <= 550_200_000
    names = {name for name, time in found.items() if time}
    assert names <= {"goodput", "headers", "handshake", "slow_start", "last_delay"}


def test_window_limit() -> None:
    """Given a window of 44 segments and a round trip of 550 ms, expect 44 packets per round trip.

    They take 52.8 ms, and the window leaves the link idle for the rest of the round trip. The round
    trip is 550 ms, the time of a data packet and that of an ACK of 40 bytes, 32 us: 551.232 ms. The
    link is idle for 551.232 - 52.8 = 498.432 ms of it: 90.42 %. Handshake and slow start at the
    begin take some 2.8 s of 200 s.
    """
    window = {"receive_buffer": "64240 B", "receive_buffer_counts": "window"}
    traffic = bulk(duration="200 s", tcp=window)
    result = run({"link": link(), "traffic": traffic, "duration": "200 s"})
    found = times(result)
    round_trips = found["window_limit"] / Fraction(498_432_000)
    assert 355 <= round_trips <= 363
    assert found["goodput"] / found["window_limit"] == pytest.approx(
        44 * 1460 * 8 / 10e6 / 0.498432, rel=0.01
    )
    assert parts(result)["window_limit"] == pytest.approx(90.42, abs=1.5)
    assert found["congestion_avoidance"] == found["loss_recovery"] == 0


def test_send_buffer_is_a_window_limit() -> None:
    """Given a send buffer of 44 segments instead, expect the same share."""
    traffic = bulk(duration="200 s", tcp={"send_buffer": "64240 B"})
    result = run({"link": link(), "traffic": traffic, "duration": "200 s"})
    assert parts(result)["window_limit"] == pytest.approx(90.42, abs=1.5)
    (row,) = result.tables["capacity"].to_dicts()
    assert row["idle_send_buffer_ns"] > 0 == row["idle_receive_window_ns"]


def test_packet_processor_limit() -> None:
    """Given a processor of 300 packets per second, expect the link to wait for it.

    The processor handles two data packets and one ACK in 10 ms, of which the link is busy for 2.4
    ms: the processor's share is 76 %, but for the begin.
    """
    data = {
        "link": link(),
        "gateways": {"hub": {"processor": {"packets_per_second": 300, "buffer": "10000 packets"}}},
        "traffic": bulk(duration="200 s", tcp={"receive_buffer": "1 MB"}),
        "duration": "200 s",
    }
    found = parts(run(data))
    assert found["packet_processor"] == pytest.approx(76, abs=3)
    assert found["goodput"] + found["headers"] == pytest.approx(24, abs=2)


def test_application_idle() -> None:
    """Given 20 responses of one packet, a second of think time apart, expect the rest to be idle.

    Each exchange has 1.2 ms of airtime; the next response follows after 1 s and a round trip.
    """
    flow = {
        "name": "flow",
        "kind": "request_response",
        "direction": "forward",
        "response": "1460 B",
        "request": "100 B",
        "think": "1 s",
        "exchanges": 20,
        "tcp": {"timestamps": False},
    }
    result = run({"link": link(), "traffic": [flow], "duration": "100 s"})
    found = times(result)
    assert found["goodput"] + found["headers"] >= 20 * PACKET_NS
    assert found["goodput"] + found["headers"] <= 20 * PACKET_NS + 25 * 52_000
    # From the start to the first response, and from each to the next: a request and its response.
    gap_ns = Fraction(found["application_idle"], 20)
    assert 1_000_000_000 * 19 / 20 < gap_ns < 1_560_000_000
    busy = {"goodput", "headers", "application_idle", "last_delay"}
    assert {name for name, time in found.items() if time} == busy
    (row,) = result.flows.to_dicts()
    assert row["idle_percent"] == pytest.approx(100, abs=0.5)


def test_loss_recovery_on_a_noisy_link() -> None:
    """Given bit errors, expect lost and repeated payload and waiting for it as loss recovery."""
    traffic = bulk(size="10 MB", tcp={"congestion_control": "newreno"})
    clean = times(run({"link": link(), "traffic": traffic, "duration": "600 s"}))
    noisy = link(bit_error_rate=2e-7)
    result = run({"link": noisy, "traffic": traffic, "duration": "600 s"})
    found = times(result)
    (row,) = result.tables["capacity"].to_dicts()
    (flow,) = result.tables["flows"].to_dicts()
    assert clean["loss_recovery"] == 0
    assert row["dropped_bytes"] > 0
    assert flow["retransmitted_bytes"] >= row["dropped_bytes"]
    # All payload sent beyond the transfer was lost on the channel, or arrived twice.
    wasted_bytes = row["dropped_bytes"] + row["discarded_bytes"]
    assert row["payload_bytes"] == 10_000_000 + wasted_bytes
    wasted_ns = wasted_bytes * 8 * NS_PER_S // RATE_BPS
    assert found["loss_recovery"] - row["idle_recovery_ns"] == pytest.approx(wasted_ns, rel=1e-3)
    assert row["idle_recovery_ns"] > 0
    assert found["congestion_avoidance"] > 0


def test_competing_flows_are_other_traffic() -> None:
    """Given two equal transfers, expect the airtime of each as other traffic of the other."""
    flows = [{**flow, "name": name} for name in ("a", "b") for flow in bulk(duration="60 s")]
    result = run({"link": link(), "traffic": flows, "duration": "60 s"})
    rows = result.tables["capacity"].to_dicts()
    assert [row["until_ns"] for row in rows] == [60 * NS_PER_S] * 2
    assert rows[0]["other_traffic_ns"] == rows[1]["sending_ns"]
    assert rows[1]["other_traffic_ns"] == rows[0]["sending_ns"]


def test_an_outage_has_its_own_part() -> None:
    """Given a rate of zero for 3 s in the middle of a transfer, expect 3 s of outage."""
    steps = {"0 s": "10 Mbit/s", "5 s": "0 bit/s", "8 s": "10 Mbit/s"}
    rates = [{"at": at, "value": rate} for at, rate in steps.items()]
    data = {"link": link(rate=rates), "traffic": bulk(size="10 MB"), "duration": "100 s"}
    found = times(run(data))
    assert found["outage"] == 3 * NS_PER_S
    assert found["goodput"] == 8 * NS_PER_S
    assert found["other_traffic"] == 0


def test_many_flows_have_no_attribution() -> None:
    """Given 13 flows in a direction, expect no rows: results show them by entry."""
    few, many = (
        run(
            {
                "link": link(),
                "traffic": [{**bulk(size="10 kB")[0], "count": count}],
                "duration": "20 s",
            }
        ).attribution
        for count in (12, 13)
    )
    assert (few.height, many.height) == (12, 0)
    assert few.schema == many.schema


def test_queue_of_an_overloaded_direction() -> None:
    """Given datagrams at twice the rate of the link and room for 10, expect a queue of 9 to 10.

    A packet waits for the rest of the one being sent, up to 1.2 ms, and for those before it: after
    the begin 9 to 10 times 1.2 ms. The queue is empty before the second packet and after the last
    one, and full about three quarters of the time: it has room from each start to the next arrival,
    0 to 0.6 ms of 1.2 ms.
    """
    flow = {"name": "flow", "kind": "constant_rate", "direction": "forward"}
    flow |= {"rate": "19.63 Mbit/s", "payload": "1472 B", "duration": "20 s"}
    data = {"link": link(queue={"limit": "10 packets"}), "traffic": [flow], "duration": "20 s"}
    row = run(data).directions.to_dicts()[0]
    delays_ns = [row[f"queue_delay_p{p}_ns"] for p in (50, 95, 99)]
    assert all(9 * PACKET_NS <= delay_ns <= 10.1 * PACKET_NS for delay_ns in delays_ns)
    assert row["queue_empty_percent"] < 1
    assert 72 < row["queue_full_percent"] < 78
    assert row["dropped_queue_full_packets"] > 0


def test_entries_have_p99_and_idle_shares() -> None:
    """Given 14 calls and 3 transfers, expect percentiles of both up to p99 by entry."""
    call = {"name": "call", "kind": "constant_rate", "direction": "forward", "count": 14}
    call |= {"rate": "64 kbit/s", "payload": "160 B", "duration": "5 s"}
    file = {**bulk(size="50 kB")[0], "name": "file", "count": 3}
    result = run({"link": link(), "traffic": [call, file], "duration": "20 s"})
    calls, files = result.entries
    for name in ("one_way_delay_p95_ns", "one_way_delay_p99_ns"):
        assert calls[name]["p5"] <= calls[name]["p95"] <= calls[name]["p99"], name
        assert calls[name]["p50"] >= 275_000_000
        assert files[name] is None
    assert calls["idle_percent"] is None
    assert (calls["finished_flows"], calls["lost_packets"]) == (14, 0)
    assert files["completion_time_ns"]["p99"] >= files["completion_time_ns"]["p50"] > 0
    assert 0 <= files["idle_percent"]["p50"] <= 100


def test_the_loss_of_an_entry_is_unknown_where_that_of_its_flows_is(
    small_result: bentpipe.Result,
) -> None:
    """Given flows without a count of one cause, as of runs in real time, expect no sum."""
    unknown = pl.lit(None, dtype=pl.UInt64).alias("lost_red_packets")
    flows = small_result.tables["flows"].with_columns(unknown)
    result = bentpipe.Result(small_result.manifest, {**small_result.tables, "flows": flows})
    assert [entry["lost_packets"] for entry in result.entries] == [None, None]
