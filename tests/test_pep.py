"""Split-TCP PEPs in scenarios: results and refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import Program

import bentpipe
from bentpipe import Plan, simulate
from bentpipe.errors import ScenarioError
from bentpipe.live.requirements import refuse
from bentpipe.results.run_views import link_views

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "scenarios" / "geo-pep.yaml"
MS = 1_000_000
_PEP: dict[str, Any] = {"pep": {}}
_NONE: dict[str, Any] = {}


def example(**changes: Any) -> dict[str, Any]:
    return bentpipe.Scenario.load(EXAMPLE).to_dict() | changes


def with_functions(hub: dict[str, Any], terminal: dict[str, Any] | None = None) -> dict[str, Any]:
    return example(gateways={"hub": hub, "terminal": terminal or {}})


def test_a_pep_saves_round_trips_to_the_server() -> None:
    """The link is the same, so at most the rounds of slow start are shorter, each by 80 ms.

    10 MB are 6,907 segments, ten rounds from an initial window of 10.
    """
    split, plain = simulate(example()), simulate(with_functions({}))
    saved_ns = plain.flows["completion_time_ns"][0] - split.flows["completion_time_ns"][0]
    assert 3 * 80 * MS < saved_ns < 11 * 80 * MS
    assert plain.legs.is_empty()


def test_each_leg_has_a_row() -> None:
    """Given PEPs at both ends, expect the RTT of the server, of the link and of a local network."""
    both: dict[str, Any] = {"pep": {}}
    result = simulate(with_functions(both, both))
    assert result.legs.select("name", "direction", "leg", "from", "to").rows() == [
        ("download", "forward", 0, "sender", "hub"),
        ("download", "forward", 1, "hub", "terminal-1"),
        ("download", "forward", 2, "terminal-1", "receiver"),
    ]
    assert result.legs["delivered_bytes"].to_list() == [10_000_000] * 3
    rtt_ms = [round(rtt / MS) for rtt in result.legs["rtt_min_ns"]]
    assert rtt_ms[0] == 80
    assert 540 <= rtt_ms[1] <= 550
    assert rtt_ms[2] == 0
    flow = result.flows.to_dicts()[0]
    assert flow["finished_ns"] == flow["last_delivery_ns"] > flow["last_ack_ns"]
    hub = next(each for each in result.functions if each["function"] == "hub-pep")
    assert (hub["split_connections"], hub["max_buffered_bytes"]) == (1, 64 * 1024)


def test_exchanges_pass_two_peps() -> None:
    """Given a connection for each of 20 exchanges, expect all of them split, and none left."""
    requests = {
        "kind": "fetch",
        "direction": "forward",
        "size": "20 kB",
        "think": "10 ms",
        "files": 20,
        "world_host": "server",
        "name": "web",
    }
    both: dict[str, Any] = {"pep": {}}
    scenario = with_functions(both, both) | {"traffic": [requests], "duration": "100 s"}
    result = simulate(scenario)
    assert result.flows["exchanges"].to_list() == [20]
    assert result.legs["connections"].to_list() == [20] * 3
    assert result.manifest["traffic_ended"]
    assert all(each["max_open_connections"] <= 2 for each in result.functions)


def test_connections_beyond_the_limit_pass_unsplit() -> None:
    traffic = {"kind": "bulk", "direction": "forward", "size": "1 MB", "count": 3, "name": "file"}
    scenario = with_functions({"pep": {"connections": 1}}) | {"traffic": [traffic]}
    result = simulate(scenario)
    assert result.flows["delivered_bytes"].to_list() == [1_000_000] * 3
    (hub,) = result.functions
    assert (hub["split_connections"], hub["unsplit_connections"]) == (1, 2)
    assert result.legs["name"].unique().to_list() == ["file-1"]


def test_the_settings_of_a_leg_override_those_of_the_profile() -> None:
    pep = {"link_tcp": {"congestion_control": "bbr", "initial_window": 100}, "buffer": "1 MB"}
    plan = Plan.resolve(with_functions({"pep": pep})).data
    (found,) = plan["gateways"][0]["functions"]
    assert found["kind"] == "pep"
    assert found["link_tcp"]["congestion_control"] == "bbr"
    assert found["link_tcp"]["initial_window_segments"] == 100
    assert found["link_tcp"]["hystart"] is False
    assert found["lan_tcp"]["congestion_control"] == "cubic"
    assert found["buffer_bytes"] == 1_000_000


def test_the_command_prints_peps_and_legs(bentpipe: Program) -> None:
    printed = bentpipe("run", EXAMPLE).out
    row = next(line for line in printed.splitlines() if line.startswith("hub-pep"))
    assert row.split() == ["hub-pep", "1", "0", "0", "0", "1", "65.54", "kB"]
    legs = [line for line in printed.splitlines() if line.startswith("download: ")]
    assert [leg.split("10 MB")[0].strip() for leg in legs] == [
        "download: sender - hub",
        "download: hub - receiver",
    ]
    report = json.loads(bentpipe("run", EXAMPLE, "--json").out)
    assert report["functions"][0]["split_connections"] == 1


def test_the_legs_of_many_flows_are_shown_together() -> None:
    traffic = {
        "kind": "bulk",
        "direction": "forward",
        "size": "100 kB",
        "count": 20,
        "name": "file",
    }
    result = simulate(with_functions({"pep": {}}) | {"traffic": [traffic]})
    legs = next(table for table in link_views(result, 12) if table.title.startswith("Legs"))
    assert sorted({row[0] for row in legs.rows}) == ["hub - receiver", "sender - hub"]
    assert {row[2] for row in legs.rows} == {20}


@pytest.mark.parametrize(
    ("functions", "where", "what"),
    [
        (
            {"functions": ["aggregator", "pep"]},
            ("gateways", "hub"),
            "read aggregator before pep in functions; a pep splits single packets, not frames",
        ),
        ({"pep": {"connections": 0}}, ("gateways", "hub", "pep", "connections"), "1"),
        (
            {"pep": {"link_tcp": {"mss": "70000 B"}}},
            ("gateways", "hub", "pep", "link_tcp", "mss"),
            'read "70000 B"; must be at most 65495 B',
        ),
        (
            {"pep": {"lan_tcp": {"delayed_ack_segments": 2_000}}},
            ("gateways", "hub", "pep", "lan_tcp", "delayed_ack_segments"),
            "from 1 to 1000",
        ),
        ({"pep": {"link_tpc": {}}}, ("gateways", "hub", "pep", "link_tpc"), "link_tcp"),
    ],
)
def test_wrong_settings_are_refused(
    functions: dict[str, Any], where: tuple[str, ...], what: str
) -> None:
    terminal: dict[str, Any] = {"aggregator": {}} if "functions" in functions else {}
    with pytest.raises(ScenarioError) as raised:
        Plan.resolve(with_functions(functions, terminal))
    message = str(raised.value)
    assert ".".join(where) in message
    assert what in message


def test_a_pep_does_not_split_quic() -> None:
    """Given a download that stands for QUIC beside one over TCP, expect that only TCP has legs.

    Alone, the download takes as long as without a PEP.
    """
    tcp, quic = (
        {**example()["traffic"][0], "name": name, "splittable": name == "tcp"}
        for name in ("tcp", "quic")
    )
    both = simulate(example(traffic=[tcp, quic]))
    assert both.legs["name"].unique().to_list() == ["tcp"]
    (hub,) = both.functions
    assert (hub["split_connections"], hub["unsplit_connections"]) == (1, 0)
    alone, plain = (
        simulate(with_functions(functions) | {"traffic": [quic]}) for functions in (_PEP, _NONE)
    )
    assert alone.flows["completion_time_ns"][0] == plain.flows["completion_time_ns"][0]


def test_quic_is_not_run_in_real_time() -> None:
    refuse(Plan.resolve(example(gateways={})))
    flow = {**example()["traffic"][0], "splittable": False}
    plan = Plan.resolve(example(gateways={}, traffic=[flow]))
    with pytest.raises(ScenarioError, match=r"traffic\.0\.splittable: read false"):
        refuse(plan)
