"""Hosts with a delay to their gateway, in scenarios and results."""

from __future__ import annotations

from typing import Any

import pytest

from bentpipe import Plan, Scenario, simulate
from bentpipe.errors import ScenarioError

HOP = {"rate": "10 Mbit/s", "delay": "1 ms"}
LINK = {"forward": HOP, "return": HOP}
WORLD = [{"name": "near"}, {"name": "far", "delay": "195 ms"}]
FETCH = {"kind": "fetch", "direction": "forward", "size": "1 kB", "files": 1}


def scenario(traffic: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    """Return a scenario over a short hop with these hosts behind the hub."""
    return {
        "link": LINK,
        "hosts": {"world": WORLD},
        "traffic": traffic,
        "duration": "20 s",
        **fields,
    }


def test_round_trips_are_those_of_the_hosts_to_the_microsecond() -> None:
    """A SYN and its answer: two delays of link and host, and 64 bytes a way at 10 Mbit/s.

    The SYN has 20 bytes of IP header, 20 of TCP and 24 of options: MSS 4, window scale 4, SACK 4,
    timestamps 12. The second flow starts when the first is over, so nothing waits.
    """
    starts = {"near": "0 s", "far": "5 s"}
    flows = [{**FETCH, "world_host": name, "start": start} for name, start in starts.items()]
    result = simulate(Scenario.from_dict(scenario(flows)))
    exchanges = result.exchanges
    took_ns = (exchanges["established_ns"] - exchanges["start_ns"]).to_list()
    assert took_ns[1] - took_ns[0] == pytest.approx(390_000_000, abs=1_000)
    assert took_ns[0] == pytest.approx(2_000_000 + 2 * 64 * 8 * 100, abs=1_000)


def test_the_line_rate_of_a_host_limits_its_flow() -> None:
    """At 1 Mbit/s of IP, 1448 of 1500 bytes are data."""
    hosts = {"world": [{"name": "slow", "rate": "1 Mbit/s"}]}
    bulk = {"kind": "bulk", "direction": "forward", "duration": "15 s", "world_host": "slow"}
    (goodput,) = simulate(Scenario.from_dict(scenario([bulk], hosts=hosts))).goodput_bps
    assert goodput == pytest.approx(1e6 * 1448 / 1500, rel=0.03)


def test_hosts_are_named_random_or_round_robin() -> None:
    flows = [
        {**FETCH, "world_host": "far"},
        {**FETCH, "world_host": "round-robin", "count": 3},
        {**FETCH, "world_host": "random", "count": 2},
        FETCH,
    ]
    chosen = [flow["world_host"] for flow in Plan.resolve(scenario(flows)).data["flows"]]
    near, far = ({"kind": "named", "host": number} for number in (0, 1))
    assert chosen == [far, near, far, near, *[{"kind": "random"}] * 2, None]


def test_random_hosts_follow_the_seed() -> None:
    """Given twenty flows and two hosts, expect both, and other draws from another seed."""
    flow = {**FETCH, "world_host": "random", "count": 20}
    drawn = []
    for seed in (1, 1, 2):
        result = simulate(Scenario.from_dict(scenario([flow], seed=seed)))
        took = result.exchanges["finished_ns"] - result.exchanges["start_ns"]
        drawn.append(tuple(took > 300_000_000))
    assert drawn[0] == drawn[1] != drawn[2]
    assert 0 < sum(drawn[0]) < 20


def test_each_terminal_has_the_hosts_of_the_island() -> None:
    hosts = {"island": [{"name": "pc", "delay": "2 ms"}]}
    flow = {**FETCH, "terminal": "all", "island_host": "pc"}
    link = {**LINK, "terminals": 2}
    plan: Any = Plan.resolve(scenario([flow], hosts=hosts, link=link)).data
    assert [(host["name"], host["gateway"]) for host in plan["hosts"]] == [("pc-1", 1), ("pc-2", 2)]
    assert [flow["island_host"]["host"] for flow in plan["flows"]] == [0, 1]


@pytest.mark.parametrize(
    ("change", "field", "message"),
    [
        (
            {"world_host": "fra"},
            "traffic.0.world_host",
            'read "fra"; expected a host of ',
        ),
        ({"island_host": "random"}, "traffic.0.island_host", "hosts.island lists no host"),
    ],
)
def test_an_unknown_host_is_refused(change: dict[str, str], field: str, message: str) -> None:
    with pytest.raises(ScenarioError, match=message) as refused:
        Plan.resolve(scenario([{**FETCH, **change}]))
    assert field in str(refused.value)


def test_host_names_are_unique_and_not_reserved() -> None:
    for names, message in (("aa", "another host"), (("random",), "for a choice")):
        hosts = {"world": [{"name": name} for name in names]}
        with pytest.raises(ScenarioError, match=message):
            Plan.resolve(scenario([FETCH], hosts=hosts))
