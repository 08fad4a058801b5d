"""The traffic of a scenario: terminals, names, starts and workloads of flows."""

from __future__ import annotations

from typing import Any

import pytest

from bentpipe import Plan, Scenario, simulate
from bentpipe.errors import ScenarioError
from bentpipe.plan.traffic import (
    largest_flow_packet_bytes,  # queues must hold these
)
from bentpipe.scenario import (
    Conference,
    Fetch,
    LognormalTime,
    ParetoSize,
    RequestResponse,
    SizeDraw,
    TimeDraw,
)

HOP = {"rate": "8 Mbit/s", "delay": "20 ms"}
BULK = {"kind": "bulk", "direction": "forward", "size": "1 MB"}
PING = {
    "kind": "request_response",
    "direction": "forward",
    "request": "100 B",
    "response": "20 kB",
}
WEB = {"kind": "fetch", "direction": "forward", "size": "20 kB"}
CALL = {"kind": "constant_rate", "direction": "both", "rate": "64 kbit/s", "payload": "160 B"}
TALK = {"kind": "conference", "rate": "64 kbit/s", "payload": "160 B"}


def scenario(*traffic: dict[str, Any], terminals: int = 1) -> Scenario:
    """Return a scenario of 20 s with this traffic."""
    link = {"terminals": terminals, "forward": HOP, "return": HOP}
    return Scenario.from_dict({"link": link, "traffic": list(traffic), "duration": "20 s"})


def flows(*traffic: dict[str, Any], terminals: int = 1) -> list[Any]:
    """Return the flows of the plan with this traffic."""
    planned: list[Any] = Plan.resolve(scenario(*traffic, terminals=terminals)).data["flows"]
    return planned


def workload(**fields: Any) -> dict[str, Any]:
    """Return the workload of an entry."""
    (flow,) = flows(fields)
    return dict(flow["workload"])


# --- terminals, names, starts -------------------------------------------------------------------


def test_a_flow_is_on_the_terminal_that_it_names() -> None:
    placed = flows(BULK, {**BULK, "terminal": 3}, terminals=3)
    assert [flow["terminal"] for flow in placed] == [0, 2]


def test_a_flow_on_all_terminals_becomes_one_at_each() -> None:
    copies = flows({**BULK, "name": "web", "terminal": "all"}, BULK, terminals=3)
    assert [(flow["name"], flow["terminal"]) for flow in copies] == [
        ("web-1", 0),
        ("web-2", 1),
        ("web-3", 2),
        ("bulk-1", 0),
    ]
    alone = flows({**BULK, "name": "web", "terminal": "all"})
    assert [(flow["name"], flow["terminal"]) for flow in alone] == [("web", 0)]


def test_spread_flows_take_turns_at_the_terminals() -> None:
    """Given five flows at three terminals, expect the first two to have two, by the same names."""
    entry = {**BULK, "name": "web", "terminal": "spread", "count": 5}
    spread, alone = flows(entry, terminals=3), flows({**entry, "terminal": 1})
    assert [flow["terminal"] for flow in spread] == [0, 1, 2, 0, 1]
    # A flow draws from a stream of its name: it has the same sizes wherever it is.
    assert [flow["name"] for flow in spread] == [flow["name"] for flow in alone]


def test_flows_of_an_entry_are_numbered_and_spaced() -> None:
    entry = {**BULK, "name": "web", "terminal": "all", "count": 2, "start_spacing": "1 s"}
    assert [(flow["name"], flow["start_ns"] / 1e9) for flow in flows(entry, terminals=2)] == [
        ("web-1-1", 0),
        ("web-1-2", 1),
        ("web-2-1", 2),
        ("web-2-2", 3),
    ]
    assert [flow["name"] for flow in flows({**entry, "name": None}, BULK, terminals=2)] == [
        "bulk-1",
        "bulk-2",
        "bulk-3",
        "bulk-4",
        "bulk-5",
    ]


def test_the_last_flow_must_start_before_the_end() -> None:
    entry = {**BULK, "terminal": "all", "start_spacing": "10 s"}
    assert flows(entry, terminals=2)
    with pytest.raises(ScenarioError, match="the last of 3 flows would start at 20 s"):
        flows(entry, terminals=3)


def test_a_priority_is_in_the_plan() -> None:
    assert [flow["priority"] for flow in flows(BULK, {**BULK, "priority": 7})] == [0, 7]


# --- constant rate ------------------------------------------------------------------------------


def test_both_directions_are_two_flows_that_start_together() -> None:
    entry = {**CALL, "name": "call", "count": 2, "start_spacing": "1 s"}
    made = flows(entry, {**CALL, "duration": "3 s"}, {**CALL, "direction": "return"})
    assert [(flow["name"], flow["direction"], flow["start_ns"] / 1e9) for flow in made] == [
        ("call-1-forward", "forward", 0),
        ("call-1-return", "return", 0),
        ("call-2-forward", "forward", 1),
        ("call-2-return", "return", 1),
        ("constant_rate-1-forward", "forward", 0),
        ("constant_rate-1-return", "return", 0),
        ("constant_rate-2", "return", 0),
    ]
    assert [flow["workload"]["duration_ns"] / 1e9 for flow in made] == [20, 20, 19, 19, 3, 3, 20]


# --- exchanges ----------------------------------------------------------------------------------


def test_requests_and_responses_keep_their_connection() -> None:
    made = workload(**PING, exchanges=5, think={"exponential": "2 s"})
    server, client = made.pop("server"), made.pop("client")
    assert server == client
    assert server["congestion_control"] == "cubic"
    assert made == {
        "kind": "request_response",
        "request_bytes": 100,
        "response_bytes": {"kind": "constant", "value": 20_000},
        "think_ns": {"kind": "exponential", "mean": 2_000_000_000},
        "exchanges": 5,
        "keep_connection": True,
    }


@pytest.mark.parametrize("name", ["reno", "newreno", "cubic", "bbr", "hybla", "vegas", "westwood"])
def test_each_congestion_control_is_planned_and_carries_data(name: str) -> None:
    made = scenario({**BULK, "tcp": {"congestion_control": name}})
    flow: Any
    (flow,) = Plan.resolve(made).data["flows"]
    ends = (flow["workload"][end]["congestion_control"] for end in ("sender", "receiver"))
    assert set(ends) == {name}
    # 1 MB needs a second at 8 Mbit/s, and some rounds of 40 ms.
    assert 1 < simulate(made).flows["finished_ns"][0] / 1e9 < 2


def test_only_a_linux_host_counts_the_memory_of_its_receive_buffer() -> None:
    """tcp_rmem is 128 KiB of memory initially and 6 MiB at most; a share of it is window."""
    sizes = ("receive_buffer_initial_bytes", "receive_buffer_bytes", "receive_buffer_counts")
    planned = {
        profile: tuple(workload(**BULK, profile=profile)["receiver"][size] for size in sizes)
        for profile in ("linux", "bsd-1997")
    }
    assert planned["linux"] == (131_072, 6_291_456, "memory")
    assert planned["bsd-1997"] == (262_144, 262_144, "window")


def test_each_file_has_its_own_connection() -> None:
    made = workload(**WEB, profile="bsd-1997", tcp={"mss": "512 B"})
    assert made["server"]["mss_bytes"] == made["client"]["mss_bytes"] == 512
    assert made["server"]["initial_window_segments"] == 1
    assert made["keep_connection"] is False
    # By default as many files as there is time for, without a pause.
    assert made["exchanges"] is None
    assert made["think_ns"] == {"kind": "constant", "value": 0}
    assert made["request_bytes"] == 350
    assert workload(**WEB, files=3)["exchanges"] == 3


@pytest.mark.parametrize(
    ("size", "drawn"),
    [
        ("4 kB", {"kind": "constant", "value": 4_000}),
        ({"exponential": "20 kB"}, {"kind": "exponential", "mean": 20_000}),
        (
            {"pareto": {"min": "4 kB", "shape": 1.2, "max": "10 MB"}},
            {"kind": "pareto", "min": 4_000, "shape": 1.2, "max": 10_000_000},
        ),
        (
            {"lognormal": {"median": "10 kB", "sigma": 1.5, "max": "10 MB"}},
            {"kind": "lognormal", "median": 10_000, "sigma": 1.5, "max": 10_000_000},
        ),
    ],
)
def test_sizes_are_constant_or_drawn(size: Any, drawn: dict[str, Any]) -> None:
    assert workload(**{**WEB, "size": size})["response_bytes"] == drawn
    assert workload(**{**PING, "response": size})["response_bytes"] == drawn


def test_think_times_are_constant_or_drawn() -> None:
    pareto = {"pareto": {"min": "1 s", "shape": 1.5, "max": "60 s"}}
    assert workload(**WEB, think=pareto)["think_ns"] == {
        "kind": "pareto",
        "min": 10**9,
        "shape": 1.5,
        "max": 60 * 10**9,
    }
    lognormal = {"lognormal": {"median": "1 s", "sigma": 0, "max": "1 s"}}
    assert workload(**WEB, think=lognormal)["think_ns"]["median"] == 10**9


def test_fetches_are_numbered_like_other_flows() -> None:
    sessions = flows({**WEB, "name": "web", "count": 3, "start_spacing": "100 ms"})
    assert [flow["name"] for flow in sessions] == ["web-1", "web-2", "web-3"]
    assert [flow["start_ns"] for flow in sessions] == [0, 100_000_000, 200_000_000]


# --- conferences --------------------------------------------------------------------------------


def test_participants_are_at_the_first_terminals() -> None:
    made = flows(
        {**TALK, "participants": 2, "start": "5 s"},
        {**TALK, "name": "staff", "participants": 3},
        terminals=4,
    )
    assert [
        (flow["name"], flow["terminal"], flow["direction"], flow["workload"]["conference"])
        for flow in made
    ] == [
        ("conference-1-1", 0, "return", 0),
        ("conference-1-2", 1, "return", 0),
        ("staff-1", 0, "return", 1),
        ("staff-2", 1, "return", 1),
        ("staff-3", 2, "return", 1),
    ]
    assert made[0]["workload"] == {
        "kind": "conference",
        "conference": 0,
        "rate_bps": 64_000,
        "payload_bytes": 160,
        "duration_ns": 15 * 10**9,
    }


# --- largest packets ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entry", "forward", "back"),
    [
        # 1460 of data and 40 of headers; acknowledgements have 80 at most.
        (BULK, 1500, 80),
        # The request of 100 bytes with the longest headers.
        (PING, 1500, 180),
        ({**PING, "request": "1 MB"}, 1500, 1500),
        ({**CALL, "direction": "forward"}, 188, 0),
        (CALL, 188, 188),
        # What a participant sends comes back from the reflector.
        ({**TALK, "participants": 2}, 188, 188),
    ],
)
def test_the_largest_packets_of_each_kind(entry: dict[str, Any], forward: int, back: int) -> None:
    assert largest_flow_packet_bytes(flows(entry, terminals=2)) == {
        "forward": forward,
        "return": back,
    }


# --- Python -------------------------------------------------------------------------------------


def test_python_and_yaml_give_equal_traffic() -> None:
    in_yaml = scenario(
        {**WEB, "size": {"pareto": {"min": "4 kB", "shape": 1.2, "max": "1 MB"}}, "files": 9},
        {**PING, "think": {"lognormal": {"median": "1 s", "sigma": 1.0, "max": "9 s"}}},
        {**TALK, "participants": 2},
        terminals=2,
    )
    pareto = ParetoSize(min="4 kB", shape=1.2, max="1 MB")
    lognormal = LognormalTime(median="1 s", sigma=1.0, max="9 s")
    traffic = (
        Fetch(direction="forward", size=SizeDraw(pareto=pareto), files=9),
        RequestResponse(
            direction="forward",
            request="100 B",
            response="20 kB",
            think=TimeDraw(lognormal=lognormal),
        ),
        Conference(participants=2, rate="64 kbit/s", payload="160 B"),
    )
    assert traffic == in_yaml.traffic
    assert [entry.model_dump(mode="json", exclude_unset=True) for entry in traffic] == (
        in_yaml.to_dict()["traffic"]
    )
