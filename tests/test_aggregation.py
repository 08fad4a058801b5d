"""Packet aggregation in scenarios: results and refusals."""

from __future__ import annotations

import copy
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from conftest import Program
from test_capture import fields, needs_tshark

from bentpipe import Plan, Result, simulate
from bentpipe.errors import ScenarioError

# 1,000 datagrams of 128 bytes of IP a second, for a second.
CALLS: dict[str, Any] = {
    "name": "calls",
    "link": {
        "forward": {"rate": "10 Mbit/s", "delay": "100 ms"},
        "return": {"rate": "1 Mbit/s", "delay": "100 ms"},
    },
    "gateways": {"hub": {"aggregator": {}}, "terminal": {"aggregator": {}}},
    "traffic": [
        {
            "kind": "constant_rate",
            "direction": "forward",
            "rate": "800 kbit/s",
            "payload": "100 B",
            "duration": "1 s",
        }
    ],
    "duration": "10 s",
}


def with_functions(hub: dict[str, Any], terminal: dict[str, Any]) -> dict[str, Any]:
    return copy.deepcopy(CALLS) | {"gateways": {"hub": hub, "terminal": terminal}}


def statistics(result: Result, place: str) -> dict[str, int]:
    table = result.function_statistics
    rows = table.filter(table["place"] == place)
    return dict(zip(rows["statistic"], rows["value"], strict=True))


@pytest.mark.system
def test_the_command_prints_aggregator_statistics(bentpipe: Program, tmp_path: Path) -> None:
    """200 frames of five packets each, which waited (5 + 4 + 3 + 2 + 1) / 5 = 3 ms on average."""
    file, out = tmp_path / "calls.json", tmp_path / "calls"
    file.write_text(json.dumps(CALLS))
    printed = bentpipe("run", file, "--out", out).out
    row = next(line for line in printed.splitlines() if line.startswith("hub-aggregator"))
    assert row.split() == ["hub-aggregator", "200", "1,000", "0", "3", "ms", "5", "ms"]
    assert "<td>3 ms</td><td>5 ms</td>" in (out / "report.html").read_text()
    hub = json.loads(bentpipe("run", file, "--json").out)["functions"][0]
    assert (hub["function"], hub["sent_frames"], hub["hold_time_mean_ns"]) == (
        "hub-aggregator",
        200,
        3e6,
    )


def test_frames_match_hand_calculations() -> None:
    """A packet every ms and 5 ms of hold time: the packet that comes at 5 ms is in the next frame.

    So 200 frames of five packets, of 28 + 3 + 128 + 4 (2 + 128) = 679 bytes, in which the packets
    have waited 5, 4, 3, 2 and 1 ms.
    """
    result = simulate(CALLS)
    hub, terminal = (
        statistics(result, "hub-aggregator"),
        statistics(result, "terminal-1-aggregator"),
    )
    assert hub == {
        "sent_frames": 200,
        "received_frames": 0,
        "packed_packets": 1000,
        "packed_bytes": 128_000,
        "unpacked_packets": 0,
        "unpacked_bytes": 0,
        "single_packets": 0,
        "hold_time_sum_ns": 200 * 15_000_000,
        "hold_time_max_ns": 5_000_000,
    }
    assert terminal["received_frames"] == 200
    assert terminal["unpacked_packets"] == 1000
    directions = result.directions
    assert directions["received_packets"].to_list() == [200, 0]
    assert directions["delivered_bytes"].to_list() == [200 * 679, 0]
    # 3 ms of hold time in the mean, 679 bytes at 10 Mbit/s, and the link's delay.
    flow = result.flows.to_dicts()[0]
    assert flow["received_segments"] == 1000
    assert flow["one_way_delay_mean_ns"] == pytest.approx(3e6 + 679 * 800 + 100e6, abs=1)


@pytest.mark.system
@needs_tshark
def test_a_capture_shows_frames_as_datagrams_of_the_first_packet_s_hosts(
    bentpipe: Program, tmp_path: Path
) -> None:
    file, capture = tmp_path / "calls.yaml", tmp_path / "calls.pcapng"
    file.write_text(json.dumps(CALLS))
    assert bentpipe("run", file, "--capture", capture).code == 0
    seen = fields(capture, "frame.interface_name", "ip.src", "ip.len", "udp.length")
    counted = Counter(tuple(each) for each in seen)
    points = [f"forward.{point}" for point in ("queue", "transmitter", "delivered")]
    assert counted == {(point, "10.0.0.1", "679", "659"): 200 for point in points}


def test_large_packets_and_other_classes_are_not_aggregated() -> None:
    plain = simulate(with_functions({}, {}))
    for settings in ({"packet_size": "127 B"}, {"classes": [1, 2]}):
        both = {"aggregator": settings}
        result = simulate(with_functions(both, both))
        assert statistics(result, "hub-aggregator")["sent_frames"] == 0
        assert result.flows["one_way_delay_mean_ns"][0] == plain.flows["one_way_delay_mean_ns"][0]


def test_a_lost_frame_loses_its_packets() -> None:
    """Given a queue of one packet and a slow link, expect packets to be dropped by fives."""
    scenario = copy.deepcopy(CALLS)
    scenario["link"]["forward"] |= {"rate": "500 kbit/s", "queue": {"limit": "1 packets"}}
    result = simulate(scenario)
    lost = int(result.directions["dropped_queue_full_packets"][0])
    assert lost > 0
    assert result.flows["received_segments"][0] == 1000 - 5 * lost


def test_each_terminal_has_its_own_frames() -> None:
    scenario = copy.deepcopy(CALLS)
    scenario["link"]["terminals"] = 3
    scenario["traffic"][0]["terminal"] = "all"
    result = simulate(scenario)
    assert statistics(result, "hub-aggregator")["sent_frames"] == 600
    for number in (1, 2, 3):
        found = statistics(result, f"terminal-{number}-aggregator")
        assert (found["received_frames"], found["unpacked_packets"]) == (200, 1000)


@pytest.mark.parametrize("queue", ["fq_codel", "per_flow_drop_tail", "codel", "red"])
def test_frames_pass_every_queue(queue: str) -> None:
    scenario = copy.deepcopy(CALLS)
    settings = {"per_flow_limit": "20 packets"} if queue.startswith("per_flow") else {}
    scenario["link"]["forward"]["queue"] = {"discipline": queue, "limit": "60 packets", **settings}
    assert simulate(scenario).flows["received_segments"].to_list() == [1000]


def test_functions_keep_the_written_order() -> None:
    """By default the aggregator precedes the processor, which then processes frames."""
    for functions, handled in ((None, 200), (["processor", "aggregator"], 1000)):
        hub: dict[str, Any] = {"aggregator": {}, "processor": {}}
        result = simulate(with_functions(hub | {"functions": functions}, {"aggregator": {}}))
        assert result.processors["received_lan_packets"].to_list() == [handled]


def test_a_missing_peer_is_refused() -> None:
    def refused(hub: dict[str, Any], terminal: dict[str, Any]) -> str:
        with pytest.raises(ScenarioError) as error:
            Plan.resolve(with_functions(hub, terminal))
        return str(error.value)

    alone = refused({"aggregator": {}}, {})
    assert (
        "read aggregator at the hub and none at the terminal; both ends of the link need one"
        in alone
    )
    alone = refused({}, {"functions": ["aggregator"]})
    assert (
        "read aggregator at the terminal and none at the hub; both ends of the link need one"
        in alone
    )
    tiny = with_functions(*[{"aggregator": {"frame_size": "70 B"}}] * 2)
    with pytest.raises(ScenarioError, match=r"aggregator\.frame_size: .*from 71 to 65535"):
        simulate(tiny)
