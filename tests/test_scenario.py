"""Scenarios, the plans that they resolve into, and the source of each default."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any, get_args

import pydantic
import pytest
from conftest import EXAMPLES, SMALL

from bentpipe import Plan, Scenario, _core
from bentpipe.errors import ScenarioError
from bentpipe.results.tables import DROP_CAUSES
from bentpipe.scenario import PRESETS, Bulk, ConstantRate, Direction, DropTail, Link, RateStep, Tcp
from bentpipe.scenario.link import PresetName
from bentpipe.scenario.tcp import MAX_MSS_BYTES, PROFILES, CongestionControl, ProfileName
from bentpipe.scenario.traffic import MAX_PAYLOAD_BYTES


def planned(**changes: Any) -> Any:
    """Return the plan of the small scenario with some fields replaced."""
    return Plan.resolve({**copy.deepcopy(SMALL), **changes}).data


def bulk(**fields: Any) -> dict[str, Any]:
    """Return the plan of a bulk flow's sender when the scenario has these TCP fields."""
    flow = {"kind": "bulk", "direction": "forward", "size": "1 MB", **fields}
    sender: dict[str, Any] = planned(traffic=[flow])["flows"][0]["workload"]["sender"]
    return sender


# --- the plan -----------------------------------------------------------------------------------


def framed(header_bytes: int) -> dict[str, Any]:
    """Return the plan of a framing that only adds bytes."""
    return {
        "header_bytes": header_bytes,
        "min_bytes": 0,
        "cells": None,
        "expansion": [1, 1],
        "inter_frame_bytes": 0,
    }


def test_the_plan_has_every_field_in_base_units() -> None:
    call = {
        "name": "call",
        "kind": "constant_rate",
        "direction": "return",
        "start": "1 s",
        "rate": "64 kbit/s",
        "payload": "160 B",
    }
    hop = {"rate": "16 Mbit/s", "delay": "275 ms"}
    forward = {**hop, "framing": "8 B", "queue": {"limit": "120 kB"}, "bit_error_rate": 1e-7}
    link = {"forward": forward, "return": hop}
    scenario = {"link": link, "traffic": [call], "duration": "60 s"}
    common = {
        "rate_bps": {"kind": "constant", "value": 16_000_000},
        "delay_ns": {"kind": "constant", "value": 275_000_000},
    } | {"jitter_ns": 0}
    limits = ({"unit": "bytes", "value": 120_000}, {"unit": "packets", "value": 100})
    assert Plan.resolve(scenario).data == {
        "format_version": 4,
        "stop_ns": 60_000_000_000,
        "sample_interval_ns": 100_000_000,
        "packet_events": False,
        "gateways": [
            {"name": "hub", "functions": []},
            {"name": "terminal-1", "functions": []},
        ],
        "directions": [
            {
                **common,
                "name": "forward",
                "from": 0,
                "to": [{"gateway": 1, "delay_ns": 0, "channel": {"kind": "clear"}}],
                "framing": framed(8),
                "queue": {"discipline": "drop_tail", "limit": limits[0]},
                "channel": {"kind": "bit_errors", "bit_error_rate": 1e-7},
            },
            {
                **common,
                "name": "return",
                "from": 1,
                "to": [{"gateway": 0, "delay_ns": 0, "channel": {"kind": "clear"}}],
                "framing": framed(0),
                "queue": {"discipline": "drop_tail", "limit": limits[1]},
                "channel": {"kind": "clear"},
            },
        ],
        "hosts": [],
        "flows": [
            {
                "name": "call",
                "terminal": 0,
                "direction": "return",
                "start_ns": 1_000_000_000,
                "start_jitter_ns": 0,
                "world_host": None,
                "island_host": None,
                "priority": 0,
                "splittable": True,
                "workload": {
                    "kind": "constant_rate",
                    "rate_bps": 64_000,
                    "payload_bytes": 160,
                    "duration_ns": 59_000_000_000,  # to the end of the run
                },
            }
        ],
    }


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_is_a_scenario(example: Path) -> None:
    scenario = Scenario.load(example)
    assert scenario.name
    assert Plan.resolve(scenario).data["flows"]


def test_the_documented_examples_exist() -> None:
    assert [path.stem for path in EXAMPLES] == [
        "calls-60",
        "channels-50",
        "channels",
        "coded-tunnel",
        "conference",
        "fq-codel",
        "geo-bulk",
        "geo-pep",
        "geo-voip-and-bulk",
        "hub-four-terminals",
        "isdn-return",
        "jpl-cell",
        "leo-handover",
        "leo-trace",
        "leo-two-flows",
        "linux-geo-15",
        "lossy-bbr",
        "lossy-cubic",
        "osu-geo-15",
        "osu-geo-50",
        "osu-leo-100",
        "reserved-rate",
        "snip-duplex",
        "video",
        "voice",
        "web-and-bulk",
        "web-pages-one-user",
        "web-pages",
    ]


def test_a_scenario_round_trips_through_plain_data() -> None:
    assert Scenario.from_dict(SMALL).to_dict() == SMALL


def test_python_and_yaml_give_equal_scenarios() -> None:
    scenario = Scenario(
        name="small",
        link=Link(
            forward=Direction(rate="8 Mbit/s", delay="20 ms", bit_error_rate=1e-6),
            return_=Direction(rate="1 Mbit/s", delay="20 ms"),
        ),
        traffic=(
            Bulk(direction="forward", size="1 MB"),
            ConstantRate(
                name="call",
                direction="return",
                rate="64 kbit/s",
                payload="160 B",
                duration="2 s",
            ),
        ),
        duration="20 s",
        packet_events=True,
    )
    assert scenario == Scenario.from_dict(SMALL)
    assert scenario.to_dict() == SMALL


def test_a_scenario_is_immutable() -> None:
    scenario = Scenario.from_dict(SMALL)
    with pytest.raises(pydantic.ValidationError, match="frozen"):
        scenario.duration = "1 s"


# --- link ---------------------------------------------------------------------------------------


def test_written_fields_override_presets_and_presets_override_defaults() -> None:
    forward, back = planned(link={"preset": "geo", "forward": {"rate": "5 Mbit/s"}})["directions"]
    assert forward["rate_bps"]["value"] == 5_000_000
    assert forward["delay_ns"]["value"] == 271_000_000
    assert forward["framing"]["header_bytes"] == 0
    assert back["rate_bps"]["value"] == 2_000_000
    # The preset's queue, 1 bdp, follows the rate: 5 Mbit/s x 542 ms / 8.
    assert forward["queue"]["limit"] == {"unit": "link_bytes", "value": 338_750}


def test_null_means_left_out() -> None:
    assert (
        planned(link={"preset": "geo", "forward": {"rate": None}})["directions"]
        == planned(link={"preset": "geo"})["directions"]
    )


@pytest.mark.parametrize(
    ("limit", "resolved"),
    [
        ("unlimited", {"unit": "unlimited"}),
        ("50 packets", {"unit": "packets", "value": 50}),
        # ATM cells of 53 bytes.
        ("100 cells", {"unit": "link_bytes", "value": 5_300}),
        ("50 ms", {"unit": "time_ns", "value": 50_000_000}),
        # 3 Mbit/s x (100 ms + 20 ms) / 8 = 45000 bytes.
        ("1 bdp", {"unit": "link_bytes", "value": 45_000}),
        ("0.5 bdp", {"unit": "link_bytes", "value": 22_500}),
        # A third is 15000 bytes less a little: rounded down.
        ("0.333333 bdp", {"unit": "link_bytes", "value": 14_999}),
    ],
)
def test_queue_limits_resolve_on_their_link(limit: str, resolved: dict[str, Any]) -> None:
    forward, _ = planned(
        link={
            "forward": {"rate": "3 Mbit/s", "delay": "100 ms", "queue": {"limit": limit}},
            "return": {"rate": "1 Mbit/s", "delay": "20 ms"},
        }
    )["directions"]
    assert forward["queue"]["limit"] == resolved


def test_the_bdp_of_steps_takes_the_highest_rate_and_delays() -> None:
    forward = {
        "rate": [{"at": "0 s", "value": "1 Mbit/s"}, {"at": "5 s", "value": "4 Mbit/s"}],
        "delay": [{"at": "0 s", "value": "60 ms"}, {"at": "5 s", "value": "20 ms"}],
        "queue": {"limit": "1 bdp"},
    }
    plan = planned(link={"forward": forward, "return": {"rate": "1 Mbit/s", "delay": "40 ms"}})
    # 4 Mbit/s x (60 ms + 40 ms) / 8.
    assert plan["directions"][0]["queue"]["limit"]["value"] == 50_000
    assert plan["directions"][0]["rate_bps"] == {
        "kind": "steps",
        "steps": [[0, 1_000_000], [5_000_000_000, 4_000_000]],
    }
    assert plan["directions"][0]["delay_ns"]["steps"] == [
        [0, 60_000_000],
        [5_000_000_000, 20_000_000],
    ]


def test_an_outage_is_a_step_of_zero() -> None:
    steps = (
        RateStep(at="0 s", value="1 Mbit/s"),
        RateStep(at="1 s", value="0 bit/s"),
        RateStep(at="2 s", value="1 Mbit/s"),
    )
    forward = Direction(rate=steps, delay="10 ms", queue=DropTail(limit="unlimited"))
    scenario = Scenario(
        link=Link(forward=forward, return_=Direction(rate="1 Mbit/s", delay="10 ms")),
        traffic=(Bulk(direction="forward", size="1 MB"),),
        duration="20 s",
    )
    rate: Any = Plan.resolve(scenario).data["directions"][0]["rate_bps"]
    assert rate["steps"][1] == [1_000_000_000, 0]


def test_a_queue_must_hold_the_largest_packet_of_its_direction() -> None:
    """1500 bytes forward (MSS 1460 and 40 of headers); returning ACKs are 80 at most."""
    for limit, fits in (("1500 B", True), ("1499 B", False)):
        link = {"preset": "geo", "forward": {"queue": {"limit": limit}}}
        traffic = [{"kind": "bulk", "direction": "forward", "size": "1 MB"}]
        if fits:
            assert planned(link=link, traffic=traffic)
        else:
            with pytest.raises(ScenarioError, match="smaller than one packet, 1500 IP bytes"):
                planned(link=link, traffic=traffic)
    small = {"preset": "geo", "return": {"queue": {"limit": "80 B"}}}
    assert planned(link=small, traffic=[{"kind": "bulk", "direction": "forward", "size": "1 MB"}])


# --- traffic ------------------------------------------------------------------------------------


def test_flows_are_counted_named_and_spaced() -> None:
    flows = planned(
        traffic=[
            {
                "kind": "bulk",
                "direction": "forward",
                "size": "1 MB",
                "count": 2,
                "start": "1 s",
                "start_spacing": "100 ms",
            },
            {"kind": "bulk", "direction": "return", "duration": "3 s"},
            {"name": "web", "kind": "bulk", "direction": "forward", "size": "1 kB", "count": 2},
            {"name": "one", "kind": "bulk", "direction": "forward", "size": "1 kB"},
        ]
    )["flows"]
    assert [(flow["name"], flow["start_ns"]) for flow in flows] == [
        ("bulk-1", 1_000_000_000),
        ("bulk-2", 1_100_000_000),
        ("bulk-3", 0),
        ("web-1", 0),
        ("web-2", 0),
        ("one", 0),
    ]
    assert flows[0]["workload"]["amount"] == {"unit": "bytes", "value": 1_000_000}
    assert flows[2]["workload"]["amount"] == {"unit": "duration_ns", "value": 3_000_000_000}


def test_profiles_are_complete_and_hold_at_both_ends() -> None:
    for name, profile in PROFILES.items():
        missing = {field for field in Tcp.model_fields if getattr(profile, field) is None}
        # A host of 1997 advertises its whole buffer from the start.
        assert missing == ({"receive_buffer_initial"} if name == "bsd-1997" else set())
    flow = {"kind": "bulk", "direction": "forward", "size": "1 MB", "profile": "bsd-1997"}
    workload = planned(traffic=[flow])["flows"][0]["workload"]
    assert workload["sender"] == workload["receiver"]
    assert workload["sender"]["initial_window_segments"] == 1
    assert workload["sender"]["receive_buffer_initial_bytes"] == 262_144


def test_tcp_settings_override_the_profile() -> None:
    """HyStart is on with CUBIC only, as in Linux, unless it is set, or ``stack`` is ``rfc``."""
    plain, changed = bulk(), bulk(tcp={"sack": False, "congestion_control": "newreno"})
    assert plain["sack"] is True
    assert {name for name in plain if plain[name] != changed[name]} == {
        "sack",
        "congestion_control",
        "hystart",
    }
    assert bulk(tcp={"congestion_control": "reno", "hystart": True})["hystart"]
    assert (bulk(tcp={})["ecn"], bulk(tcp={"ecn": True})["ecn"]) == (False, True)
    assert bulk(tcp={"congestion_control": "reno", "stack": "rfc"})["hystart"]


def test_the_receive_buffer_bounds_the_initial_window() -> None:
    tcp = bulk(tcp={"receive_buffer": "16 KiB"})
    assert (tcp["receive_buffer_bytes"], tcp["receive_buffer_initial_bytes"]) == (16_384, 16_384)
    tcp = bulk(tcp={"receive_buffer": "1 MiB"})
    buffers = (tcp["receive_buffer_bytes"], tcp["receive_buffer_initial_bytes"])
    assert buffers == (1_048_576, 131_072)


# --- bounds that Python and the simulator share -------------------------------------------------


def test_enumerations_are_those_of_the_simulator() -> None:
    names = _core.names()
    assert list(get_args(CongestionControl)) == names["congestion_controls"]
    elsewhere = ["processor_overload", "no_route"]
    assert [*DROP_CAUSES, *elsewhere] == sorted(names["drop_causes"], key=elsewhere.count)
    assert set(get_args(PresetName)) == set(PRESETS)
    assert set(get_args(ProfileName)) == set(PROFILES)


@pytest.mark.parametrize(
    ("flow", "path", "largest"),
    [
        (
            {"kind": "bulk", "size": "1 MB", "tcp": {"mss": f"{MAX_MSS_BYTES} B"}},
            ("sender", "mss_bytes"),
            MAX_MSS_BYTES,
        ),
        (
            {"kind": "constant_rate", "rate": "1 Mbit/s", "payload": f"{MAX_PAYLOAD_BYTES} B"},
            ("payload_bytes",),
            MAX_PAYLOAD_BYTES,
        ),
    ],
    ids=["mss", "payload"],
)
def test_bounds_are_those_of_the_simulator(
    flow: dict[str, Any], path: tuple[str, ...], largest: int
) -> None:
    """Given the largest value, expect both to accept it; given one more, expect both to refuse."""
    link = {"preset": "leo", "forward": {"queue": {"limit": "unlimited"}}}
    plan = planned(link=link, traffic=[{"direction": "forward", **flow}])
    *outer, last = path
    part = plan["flows"][0]["workload"]
    for name in outer:
        part = part[name]
    assert part[last] == largest
    part[last] += 1
    with pytest.raises(_core.PlanError, match=last):
        _core.validate(json.dumps(plan))


def test_a_refusal_of_the_simulator_names_the_entry_of_the_scenario() -> None:
    """The fourth flow of the plan is the second entry of the scenario."""
    fine = {"kind": "bulk", "direction": "forward", "size": "1 MB", "count": 3}
    wrong = {"kind": "bulk", "direction": "return", "size": "1 MB", "tcp": {"rto_min": "300 s"}}
    with pytest.raises(ScenarioError) as refusal:
        planned(traffic=[fine, wrong])
    (problem,) = refusal.value.problems
    assert problem.field == "traffic.1.tcp.rto_min"
    assert 'read "300 s"' in problem.message
    assert "rto_min_ns" in problem.message


def test_the_schema_is_checked_before_the_plan(tmp_path: Path) -> None:
    """Given a queue below one packet, expect the schema to accept it, and the plan to refuse it."""
    file = tmp_path / "scenario.yaml"
    file.write_text(
        "link:\n"
        "  preset: geo\n"
        "  forward: {queue: {limit: 100 B}}\n"
        "traffic: [{kind: bulk, direction: forward, size: 1 MB}]\n"
        "duration: 9 s\n"
    )
    loaded = Scenario.load(file)
    assert loaded.duration == "9 s"
    with pytest.raises(ScenarioError, match=r"^scenario: link\.forward\.queue\.limit: read "):
        Plan.resolve(loaded.to_dict())
    with pytest.raises(ScenarioError, match=rf"^{file}:3: link\.forward\.queue\.limit: read "):
        Plan.resolve(file)


# --- settings that override a file --------------------------------------------------------------


def test_settings_override_a_file_in_order(tmp_path: Path) -> None:
    file = tmp_path / "scenario.yaml"
    file.write_text(
        "link: {preset: geo}\n"
        "traffic: [{kind: bulk, direction: forward, size: 1 MB}]\n"
        "duration: 60 s\n",
        encoding="utf-8",
    )
    scenario = Scenario.load(
        file,
        settings=(
            "link.forward.delay=150ms",
            "traffic.0.size=2 MB",
            "traffic.0.size=3 MB",
            "traffic.0.tcp.sack=false",
            "link.forward.bit_error_rate=1e-6",
            "sample_interval=null",
        ),
    )
    plan: Any = Plan.resolve(scenario).data
    assert plan["directions"][0]["delay_ns"]["value"] == 150_000_000
    assert plan["directions"][0]["channel"]["bit_error_rate"] == 1e-6
    assert plan["flows"][0]["workload"]["amount"]["value"] == 3_000_000
    assert plan["flows"][0]["workload"]["sender"]["sack"] is False
    assert plan["sample_interval_ns"] is None


def test_yaml_aliases_are_expanded(tmp_path: Path) -> None:
    file = tmp_path / "scenario.yaml"
    file.write_text(
        "link: {forward: &hop {rate: 1 Mbit/s, delay: 5 ms}, return: *hop}\n"
        "traffic: [{kind: bulk, direction: forward, size: 1 MB}]\n"
        "duration: 60 s\n",
        encoding="utf-8",
    )
    # A setting changes only the forward direction, although both share an alias in the file.
    directions: Any = Plan.resolve(
        Scenario.load(file, settings=("link.forward.rate=2 Mbit/s",))
    ).data["directions"]
    forward, back = directions
    assert forward["rate_bps"]["value"] == 2_000_000
    assert back["rate_bps"]["value"] == 1_000_000
