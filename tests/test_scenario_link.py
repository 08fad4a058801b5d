"""The link of a scenario: how framings, queues, terminals and gateways resolve."""

from __future__ import annotations

from typing import Any

import pytest

from bentpipe import Plan, Scenario
from bentpipe.errors import ScenarioError
from bentpipe.scenario import (
    CoDel,
    Direction,
    DropTail,
    FqCoDel,
    FramingOptions,
    Gateway,
    Gateways,
    Processor,
    Red,
    SelectiveDrop,
)
from bentpipe.scenario.framings import plan_framing
from bentpipe.scenario.gateways import PROCESSOR_PPS
from bentpipe.scenario.link import DEFAULT_DIRECTION, QUEUES

BULK = {"kind": "bulk", "direction": "forward", "size": "1 MB"}


def scenario(
    forward: dict[str, Any] | None = None, *, traffic: list[Any] | None = None, **fields: Any
) -> Scenario:
    """Return a scenario of 8 Mbit/s and 50 ms each way with changes."""
    hop = {"rate": "8 Mbit/s", "delay": "50 ms"}
    link = {"forward": {**hop, **(forward or {})}, "return": hop, **fields.pop("link", {})}
    return Scenario.from_dict(
        {"link": link, "traffic": traffic or [BULK], "duration": "20 s", **fields}
    )


def queue_of(queue: dict[str, Any], **direction: Any) -> dict[str, Any]:
    """Return the plan of a forward queue."""
    plan = Plan.resolve(scenario({"queue": queue, **direction})).data["directions"][0]
    return dict(plan["queue"])


# --- framing ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "kind", "options"),
    [
        ("none", "none", {}),
        ("ethernet-line", "ethernet-line", {}),
        ("aal5", "aal5", {}),
        ({"kind": "ppp"}, "ppp", {}),
        ({"kind": "ppp", "fcs": 32, "payload": "zeros"}, "ppp", {"fcs": 32, "payload": "zeros"}),
        ({"kind": "gse", "code_rate": "3/4"}, "gse", {"code_rate": "3/4"}),
    ],
)
def test_a_framing_is_a_name_or_a_mapping(written: Any, kind: str, options: dict[str, Any]) -> None:
    made = scenario({"framing": written})
    assert Plan.resolve(made).data["directions"][0]["framing"] == plan_framing(kind, options)
    assert Plan.resolve(made).data["directions"][1]["framing"] == plan_framing("none", {})
    assert made.to_dict()["link"]["forward"]["framing"] == written


def test_a_framing_is_a_size() -> None:
    framing = Plan.resolve(scenario({"framing": "8 B"})).data["directions"][0]["framing"]
    assert framing == {**plan_framing("none", {}), "header_bytes": 8}


def test_framing_options_are_not_inherited_by_another_framing() -> None:
    ppp = FramingOptions.model_validate({"kind": "ppp", "fcs": 32})
    gse = FramingOptions.model_validate({"kind": "gse", "label_bytes": 3})
    assert Direction(framing=gse).over(Direction(framing=ppp)).framing == gse
    assert Direction().over(Direction(framing=ppp)).framing == ppp


# --- queues -------------------------------------------------------------------------------------


def test_every_discipline_resolves_with_its_defaults_alone() -> None:
    """The published values: RFC 8289, RFC 8290, Floyd 1997, Goyal and others 1997."""
    hundred = {"unit": "packets", "value": 100}
    expected: dict[str, dict[str, Any]] = {
        "drop_tail": {"limit": hundred},
        "red": {
            "limit": hundred,
            "unit": "packets",
            "min_threshold": 5,
            "max_threshold": 15,
            "max_probability": 0.1,
            "weight": 0.002,
            "gentle": True,
            "mean_packet_bytes": 1_000,
            "ecn": False,
        },
        "codel": {
            "limit": {"unit": "packets", "value": 1000},
            "target_ns": 5_000_000,
            "interval_ns": 100_000_000,
            "ecn": False,
        },
        "fq_codel": {
            "limit": {"unit": "packets", "value": 10_240},
            "target_ns": 5_000_000,
            "interval_ns": 100_000_000,
            "quantum_bytes": 1_514,
            "queues": 1_024,
            "ecn": True,
        },
        "per_flow_drop_tail": {
            "limit": {"unit": "packets", "value": 10_000},
            "per_flow_limit": hundred,
        },
        "early_packet_discard": {"limit": hundred, "threshold": 0.9},
        "selective_drop": {"limit": hundred, "threshold": 0.9, "load_ratio": 0.8},
        "strict_priority": {"limit": hundred, "classes": 8},
    }
    assert {*expected, "shared_rate"} == set(QUEUES)
    for discipline, options in expected.items():
        assert queue_of({"discipline": discipline}) == {"discipline": discipline, **options}


def test_classes_of_a_shared_rate_resolve() -> None:
    classes = [
        {"reserved": "512 kbit/s", "queue": {"limit": "9 packets"}},
        {"weight": 3, "ceiling": "1 Mbit/s", "queue": {"discipline": "codel"}},
        {},
    ]
    plain = {"queue": None, "reserved_bps": None, "weight": 1, "ceiling_bps": None}
    codel = queue_of({"discipline": "codel"})
    nine = {"discipline": "drop_tail", "limit": {"unit": "packets", "value": 9}}
    assert queue_of({"discipline": "shared_rate", "classes": classes}) == {
        "discipline": "shared_rate",
        "limit": {"unit": "packets", "value": 100},
        "classes": [
            plain | {"reserved_bps": 512_000, "queue": nine},
            plain | {"weight": 3, "ceiling_bps": 1_000_000, "queue": codel},
            plain,
        ],
    }


def test_options_of_a_discipline_resolve() -> None:
    assert queue_of(
        {
            "discipline": "red",
            "min_threshold": "30 kB",
            "max_threshold": "60 kB",
            "gentle": False,
            "mean_packet_size": "576 B",
        }
    ) == {
        "discipline": "red",
        "limit": {"unit": "packets", "value": 100},
        "unit": "bytes",
        "min_threshold": 30_000,
        "max_threshold": 60_000,
        "max_probability": 0.1,
        "weight": 0.002,
        "gentle": False,
        "mean_packet_bytes": 576,
        "ecn": False,
    }
    fq_codel = queue_of(
        {"discipline": "fq_codel", "target": "20 ms", "quantum": "300 B", "queues": 16}
    )
    assert (fq_codel["target_ns"], fq_codel["quantum_bytes"], fq_codel["queues"]) == (
        20_000_000,
        300,
        16,
    )


def test_a_queue_with_per_flow_limits_accepts_a_limit_in_time() -> None:
    queue = queue_of({"discipline": "per_flow_drop_tail", "limit": "50 ms"})
    assert queue["limit"] == {"unit": "time_ns", "value": 50_000_000}


def test_thresholds_of_red_are_three_to_one_by_default() -> None:
    red = queue_of({"discipline": "red", "min_threshold": "12 packets"})
    assert (red["min_threshold"], red["max_threshold"]) == (12, 36)


def test_a_share_of_the_bdp_depends_on_the_link() -> None:
    """8 Mbit/s x 100 ms / 8 = 100000 bytes, framing included, also for a flow's share."""
    queue = queue_of(
        {"discipline": "per_flow_drop_tail", "limit": "1 bdp", "per_flow_limit": "0.25 bdp"},
        framing="ethernet",
    )
    assert queue["limit"] == {"unit": "link_bytes", "value": 100_000}
    assert queue["per_flow_limit"] == {"unit": "link_bytes", "value": 25_000}


@pytest.mark.parametrize(("cells", "fits"), [(32, True), (31, False)])
def test_a_queue_in_cells_holds_the_cells_of_a_packet(cells: int, *, fits: bool) -> None:
    """1500 bytes and 16 of LLC and trailer are 31.6 cells' payload."""
    queue = {"discipline": "selective_drop", "limit": f"{cells} cells"}
    if fits:
        value = queue_of(queue, framing="aal5")["limit"]["value"]
        assert value == 53 * cells
    else:
        with pytest.raises(ScenarioError, match="smaller than one packet, 1696 link bytes"):
            queue_of(queue, framing="aal5")


def test_a_discipline_keeps_the_limit_of_its_preset() -> None:
    preset = Direction(queue=DropTail(limit="1 bdp")).over(DEFAULT_DIRECTION)
    assert Direction(queue=CoDel()).over(preset).queue == CoDel(limit="1 bdp")
    assert Direction(queue=CoDel(limit="9 packets")).over(preset).queue == CoDel(limit="9 packets")
    geo = {"link": {"preset": "geo", "forward": {"queue": {"discipline": "fq_codel"}}}}
    plan: Any = Plan.resolve({**geo, "traffic": [BULK], "duration": "9 s"}).data
    # 16 Mbit/s x 542 ms / 8.
    assert plan["directions"][0]["queue"]["limit"] == {"unit": "link_bytes", "value": 1_084_000}


def test_a_limit_alone_keeps_the_discipline_of_the_preset() -> None:
    base = Direction(queue=Red(limit="1 bdp", weight=0.01))
    merged = Direction(queue=DropTail(limit="50 packets")).over(base).queue
    assert merged == Red(limit="50 packets", weight=0.01)
    named = Direction(queue=DropTail(discipline="drop_tail")).over(base).queue
    assert named == DropTail(discipline="drop_tail", limit="1 bdp")


def test_default_limits_are_supported_by_their_discipline() -> None:
    for queue in QUEUES.values():
        assert queue.default_limit.unit in queue.limit_units


def test_python_and_yaml_give_equal_queues() -> None:
    made = scenario({"queue": {"discipline": "selective_drop", "limit": "2000 cells"}})
    queue = made.link.forward.queue
    assert queue == SelectiveDrop(limit="2000 cells")
    assert FqCoDel(queues=8).model_dump(mode="json", exclude_unset=True) == {
        "discipline": "fq_codel",
        "queues": 8,
    }


# --- terminals and gateways ---------------------------------------------------------------------


def test_each_terminal_has_a_return_and_a_gateway_of_its_own() -> None:
    plan: Any = Plan.resolve(scenario(link={"terminals": 3})).data
    forward, *returns = plan["directions"]
    assert [branch["gateway"] for branch in forward["to"]] == [1, 2, 3]
    assert [(back["name"], back["from"]) for back in returns] == [
        ("return-1", 1),
        ("return-2", 2),
        ("return-3", 3),
    ]
    alike = [{**back, "name": "", "from": 0} for back in returns]
    assert alike[0] == alike[1] == alike[2]
    names = ["hub", "terminal-1", "terminal-2", "terminal-3"]
    assert plan["gateways"] == [{"name": name, "functions": []} for name in names]


def test_a_terminal_path_overrides_delay_errors_and_class() -> None:
    """The nearest terminal sets the delay of the direction; errors move to the branches."""
    paths = [
        {"terminal": 2, "delay": "260 ms", "bit_error_rate": 1e-6},
        {"terminal": 3, "priority": 1},
    ]
    bulk = {"kind": "bulk", "direction": "forward", "size": "1 MB"}
    plan: Any = Plan.resolve(
        scenario(
            {"delay": "250 ms", "bit_error_rate": 1e-7},
            link={"terminals": 3, "terminal_paths": paths},
            traffic=[{**bulk, "terminal": "all"}, {**bulk, "terminal": 3, "priority": 0}],
        )
    ).data
    forward = plan["directions"][0]
    assert forward["delay_ns"] == {"kind": "constant", "value": 250_000_000}
    assert forward["channel"] == {"kind": "clear"}
    ways = [(way["delay_ns"], way["channel"]["bit_error_rate"]) for way in forward["to"]]
    assert ways == [(0, 1e-7), (10_000_000, 1e-6), (0, 1e-7)]
    assert [flow["priority"] for flow in plan["flows"]] == [0, 0, 1, 0]


def test_a_nearer_terminal_keeps_the_delay_of_the_others() -> None:
    path = {"terminal": 1, "delay": "240 ms"}
    link = {"terminals": 2, "terminal_paths": [path]}
    forward: Any = Plan.resolve(scenario({"delay": "250 ms"}, link=link)).data["directions"][0]
    assert forward["delay_ns"]["value"] == 240_000_000
    assert [way["delay_ns"] for way in forward["to"]] == [0, 10_000_000]


def test_functions_of_a_gateway_keep_their_order_and_defaults() -> None:
    plan: Any = Plan.resolve(scenario(gateways={"hub": {"functions": ["processor"]}})).data
    (processor,) = plan["gateways"][0]["functions"]
    assert processor["kind"] == "processor"
    assert processor["packets_per_second"] == 6_000
    twice = {"hub": {"functions": ["processor", "processor"]}}
    with pytest.raises(ScenarioError, match="processor twice"):
        scenario(gateways=twice)


def test_the_mode_of_a_processor_sets_its_rate() -> None:
    """SnIP: 6,000 packets a second when it routes, 5,400 otherwise."""
    assert PROCESSOR_PPS == {"bridge": 5_400, "pass-thru": 5_400, "route": 6_000}
    gateways = {"hub": {"processor": {}}, "terminal": {"processor": {"mode": "pass-thru"}}}
    plan: Any = Plan.resolve(scenario(link={"terminals": 2}, gateways=gateways)).data["gateways"]
    defaults = {"per_byte_ns": 0, "buffer_packets": 50}
    hub, *terminals = (gateway["functions"] for gateway in plan)
    assert hub == [{"kind": "processor", "packets_per_second": 6_000, **defaults}]
    assert terminals == [[{"kind": "processor", "packets_per_second": 5_400, **defaults}]] * 2


def test_processor_settings_resolve() -> None:
    processor = {"packets_per_second": 900, "per_byte": "8 ns", "buffer": "7 packets"}
    plan: Any = Plan.resolve(scenario(gateways={"terminal": {"processor": processor}})).data[
        "gateways"
    ]
    assert plan[0] == {"name": "hub", "functions": []}
    assert plan[1]["functions"] == [
        {
            "kind": "processor",
            "packets_per_second": 900,
            "per_byte_ns": 8,
            "buffer_packets": 7,
        }
    ]
    assert Gateways(terminal=Gateway(processor=Processor.model_validate(processor))).model_dump(
        mode="json", exclude_unset=True
    ) == {"terminal": {"processor": processor}}


def test_a_bridge_carries_the_ethernet_header_over_the_link() -> None:
    """14 bytes in both directions, on top of the link's own framing."""
    bridge = {"processor": {"mode": "bridge"}}
    gateways = {"hub": bridge, "terminal": bridge}
    forward, back = Plan.resolve(scenario({"framing": "8 B"}, gateways=gateways)).data["directions"]
    assert forward["framing"]["header_bytes"] == 22
    assert back["framing"]["header_bytes"] == 14


def test_the_bridged_header_counts_against_a_queue_in_link_bytes() -> None:
    bridge = {"hub": {"processor": {"mode": "bridge"}}}
    for limit, fits in (("0.01514 bdp", True), ("0.01513 bdp", False)):
        if fits:
            assert Plan.resolve(scenario({"queue": {"limit": limit}}, gateways=bridge)).data
        else:
            with pytest.raises(ScenarioError, match="one packet, 1514 link bytes"):
                Plan.resolve(scenario({"queue": {"limit": limit}}, gateways=bridge))
