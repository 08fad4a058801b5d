"""Channels in scenarios: servers, sizes, starts, results and refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

import bentpipe
from bentpipe import Plan, simulate
from bentpipe.errors import ScenarioError
from bentpipe.scenario.traffic import DEFAULT_SERVERS, DEFAULT_SIZES
from bentpipe.units import value_of

MS = 1_000_000
LINK = {
    "forward": {"rate": "16 Mbit/s", "delay": "250 ms"},
    "return": {"rate": "16 Mbit/s", "delay": "250 ms"},
}


def scenario(*more: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """Return a scenario with an entry of channels, and others after it."""
    entry = {"kind": "channels", "name": "users", "channels": 3, **fields}
    return {"duration": "30 s", "link": LINK, "traffic": [entry, *more]}


def planned(*more: dict[str, Any], **fields: Any) -> Any:
    return Plan.resolve(scenario(*more, **fields)).data


def error_of(data: dict[str, Any]) -> str:
    with pytest.raises(ScenarioError) as caught:
        Plan.resolve(data)
    return str(caught.value)


# --- the defaults -------------------------------------------------------------------------------


def test_the_default_servers_have_the_stated_round_trips() -> None:
    """Expect 13 servers from 0 to 390 ms, with a mean of 206 ms; a round trip is two delays."""
    round_trips_ms = [2 * value_of(server.delay) / MS for server in DEFAULT_SERVERS]
    assert len(round_trips_ms) == 13
    assert (min(round_trips_ms), max(round_trips_ms)) == (0, 390)
    assert sum(round_trips_ms) / 13 == 206


def test_the_default_sizes_have_the_documented_shares() -> None:
    """Expect three small sizes in half of the connections, and a tail with an exponent of 1.05."""
    rows = [(value_of(row.size), row.weight) for row in DEFAULT_SIZES]
    total = sum(weight for _, weight in rows)
    assert [weight / total for _, weight in rows[:3]] == [0.2, 0.17, 0.13]
    for size_bytes, _ in rows[3:]:
        share = sum(weight for size, weight in rows if size >= size_bytes) / total
        # Weights are rounded to a millionth of all connections.
        assert share == pytest.approx(0.5 * (size_bytes / 10_000) ** -1.05, rel=1e-4, abs=2e-6)
    mean = sum(size * weight for size, weight in rows) / total
    assert mean == pytest.approx(26_656, abs=1)
    large = [(size, weight) for size, weight in rows if size >= 1_000_000]
    assert sum(weight for _, weight in large) / total == pytest.approx(0.004, abs=1e-4)
    assert sum(s * w for s, w in large) / (mean * total) == pytest.approx(0.5, abs=0.01)


# --- the plan -----------------------------------------------------------------------------------


def test_each_channel_is_a_flow_and_servers_are_shared() -> None:
    other = {"kind": "channels", "channels": 2, "client_jitter": "0 ms"}
    plan = planned(other, terminal=1)
    names = [flow["name"] for flow in plan["flows"]]
    assert names == ["users-1", "users-2", "users-3", "channels-1", "channels-2"]
    assert [host["name"] for host in plan["hosts"]] == [server.name for server in DEFAULT_SERVERS]
    for flow in plan["flows"]:
        assert flow["workload"]["servers"] == list(range(13))
        assert flow["start_jitter_ns"] == 5_000 * MS
        assert flow["direction"] == "forward"
    jitters = [flow["workload"]["client_jitter_ns"] for flow in plan["flows"]]
    assert jitters == [6 * MS] * 3 + [0] * 2


def test_the_servers_can_be_the_hosts_of_the_world() -> None:
    hosts = {"world": [{"name": "a", "delay": "10 ms"}, {"name": "b", "delay": "90 ms"}]}
    plan: Any = Plan.resolve(scenario(servers="world") | {"hosts": hosts}).data
    assert [host["name"] for host in plan["hosts"]] == ["a", "b"]
    assert plan["flows"][0]["workload"]["servers"] == [0, 1]


def test_listed_servers_come_between_the_hosts_of_both_sides() -> None:
    """Expect servers behind the hub, after its other hosts: hosts are in order of gateways."""
    hosts = {"world": [{"name": "a"}], "island": [{"name": "b"}]}
    data = scenario(servers=[{"name": "x", "delay": "7 ms"}], island_host="b") | {"hosts": hosts}
    plan: Any = Plan.resolve(data).data
    placed = [(host["name"], host["gateway"]) for host in plan["hosts"]]
    assert placed == [("a", 0), ("x", 0), ("b", 1)]
    assert plan["flows"][0]["workload"]["servers"] == [1]
    assert plan["flows"][0]["island_host"] == {"kind": "named", "host": 2}


def test_weights_are_integers_in_the_plan() -> None:
    whole = planned(sizes=[{"size": "1 kB", "weight": 3}, {"size": "2 kB", "weight": 1}])
    assert whole["flows"][0]["workload"]["sizes"] == [[1_000, 3], [2_000, 1]]
    parts = planned(sizes=[{"size": "1 kB", "weight": 0.25}, {"size": "2 kB", "weight": 1e-9}])
    assert parts["flows"][0]["workload"]["sizes"] == [[1_000, 250_000], [2_000, 1]]


def test_a_table_is_read_from_a_file_beside_the_scenario(tmp_path: Path) -> None:
    (tmp_path / "sizes.csv").write_text(
        "# measured\nsize, weight\n235, 4\n\n2 kB, 0.5\n1 MB,1e-2\n", encoding="utf-8"
    )
    file = tmp_path / "scenario.yaml"
    file.write_text(
        "link: {preset: geo}\nduration: 9 s\ntraffic:\n"
        "  - {kind: channels, channels: 2, sizes: {csv: sizes.csv}}\n",
        encoding="utf-8",
    )
    plan: Any = Plan.resolve(bentpipe.Scenario.load(file)).data
    sizes = plan["flows"][1]["workload"]["sizes"]
    assert sizes == [[235, 4_000_000], [2_000, 500_000], [1_000_000, 10_000]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no rows; expected the header size,weight"),
        ("size,weight\n", "has no rows; expected a row for each size after the header"),
        ("235,4\n", ':1: read "235,4"; expected the header size,weight'),
        ("size,weight\n235\n", ':2: read "235"; expected a size and a weight'),
        ("size,weight\n235,x\n", ':2: column "weight": read "x"; expected a number'),
        ("size,weight\n235,0\n", ':2: column "weight": read 0.0; must be above 0'),
        ("size,weight\n235,-1\n", ':2: column "weight": read -1.0; must be above 0'),
        ("size,weight\n0,1\n", ':2: column "size": read "0 B": must be above zero'),
        ("size,weight\n1.5,1\n", ':2: column "size": '),
        ("size,weight\n9,1\n8,1\n9 B,2\n", "line 2 has the same size; add their weights"),
        ("size,weight\n" + "".join(f"{n},1\n" for n in range(1, 10_002)), "at most 10000"),
    ],
)
def test_a_wrong_table_is_refused(tmp_path: Path, text: str, message: str) -> None:
    """Expect the field of the scenario, the file, its line, and what was read."""
    file = tmp_path / "sizes.csv"
    file.write_text(text, encoding="utf-8")
    found = error_of(scenario(sizes={"csv": str(file)}))
    assert "traffic.0.sizes.csv" in found
    assert str(file) in found
    assert message in found


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (scenario(channels=0), "traffic.0.channels"),
        (scenario(servers=[]), "traffic.0.servers"),
        (scenario(servers="world"), 'read "world"; hosts.world lists no host'),
        (scenario(servers=[{"name": "a"}, {"name": "a"}]), "another host has that name"),
        (scenario(sizes=[{"size": "1 kB", "weight": 0}]), "traffic.0.sizes.0.weight"),
        (scenario(sizes={"csv": "missing.csv"}), "missing.csv: no such file"),
        (scenario(connections=0), "traffic.0.connections"),
        (scenario(direction="return"), "direction"),
        (scenario(terminal=2), "link.terminals is 1"),
        (scenario(tcp={"mss": "70000 B"}), "must be at most 65495 B"),
    ],
)
def test_wrong_channels_are_refused(data: dict[str, Any], message: str) -> None:
    assert message in error_of(data)


def test_a_random_host_is_not_drawn_from_the_servers_of_channels() -> None:
    bulk = {"kind": "bulk", "direction": "forward", "size": "1 MB", "world_host": "random"}
    data = scenario(bulk) | {"hosts": {"world": [{"name": "a"}]}}
    assert "the servers of channels would be drawn, too" in error_of(data)
    data["traffic"][0]["servers"] = "world"
    assert Plan.resolve(data).data["flows"][3]["world_host"] == {"kind": "random"}


def test_more_connections_than_the_run_has_time_for_are_a_warning() -> None:
    """Given two round trips of 500 ms for each connection, expect no time for 31 in 30 s."""

    def texts(connections: int) -> list[str]:
        plan = Plan.resolve(scenario(connections=connections, channels=1, start_jitter="0 s"))
        return [warning.message for warning in plan.warnings]

    assert not any("at least" in text for text in texts(29))
    assert any("at least 31 s" in text for text in texts(31))


# --- results ------------------------------------------------------------------------------------


def test_the_entry_has_its_goodput_and_the_times_of_its_connections() -> None:
    """Given one size and one server, expect 2 R = 1.2 s per connection, and the counts of rows."""
    servers = [{"name": "far", "delay": "50 ms"}]
    data = scenario(
        servers=servers,
        sizes=[{"size": "1 kB", "weight": 1}],
        client_jitter="0 ms",
        server_jitter="0 ms",
        start_jitter="0 s",
        channels=2,
    )
    result = simulate(data)
    (entry,) = result.entries
    # At 1.2 s and the few ms of packets on the link, the 25th would end after 30 s.
    assert entry["exchanges"] == 2 * 24
    assert entry["kind"] == "channel"
    median_ns = entry["completion_time_ns"]["p50"]
    assert 1_200 * MS < median_ns < 1_205 * MS
    finished = result.exchanges.filter(pl.col("finished_ns").is_not_null())
    assert finished.height == 48
    assert finished["host"].unique().to_list() == [0]
    assert result.plan["hosts"][0]["name"] == "far"
    total_bps = sum(result.flows["goodput_bps"])
    assert total_bps == pytest.approx(48 * 1_000 * 8 / 30, rel=1e-9)
    check = bentpipe.results.check_thresholds(result, ["exchanges.users.time_ns.p95 <= 1.3 s"])
    assert all(each.passed for each in check)


def test_channels_change_no_other_flow_and_repeat() -> None:
    """Given another entry in front, expect the same downloads of the same names."""
    alone = simulate(scenario(), seed=3).exchanges
    rows = ["name", "exchange", "response_bytes", "host"]
    again = simulate(scenario(), seed=3).exchanges
    assert alone.equals(again)
    data = scenario()
    other = {"kind": "channels", "name": "others", "channels": 4}
    data["traffic"] = [other, *data["traffic"]]
    both = simulate(data, seed=3).exchanges.filter(pl.col("name").str.starts_with("users"))
    shared = alone.select(rows).join(both.select(rows), on=rows[:2], suffix="_beside")
    assert shared.height > 30
    assert shared["response_bytes"].equals(shared["response_bytes_beside"], check_names=False)
    assert shared["host"].equals(shared["host_beside"], check_names=False)


def test_a_large_load_keeps_the_goodput_below_the_link() -> None:
    """Given 200 channels on 16 Mbit/s, expect a busy link, and goodput below MSS over packet."""
    result = simulate(scenario(channels=200) | {"duration": "60 s"})
    total_bps = result.flows["delivered_bytes"].sum() * 8 / 60
    assert 8e6 < total_bps < 16e6 * 1_448 / 1_500
    assert result.directions["dropped_queue_full_packets"][0] > 0
