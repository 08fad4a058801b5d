"""Coded tunnels in scenarios: what they are resolved to, warnings and refusals."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from bentpipe import Plan
from bentpipe.errors import ScenarioError

ROOT = Path(__file__).resolve().parents[1]
MS = 1_000_000

# GEO with Ethernet, whose overhead is 18 bytes; the return is slower and has the default queue of
# 100 packets.
LINK: dict[str, Any] = {
    "forward": {
        "rate": "16 Mbit/s",
        "delay": "250 ms",
        "framing": "ethernet",
        "queue": {"limit": "120 kB"},
    },
    "return": {"rate": "2 Mbit/s", "delay": "300 ms"},
}


def scenario(
    hub: dict[str, Any] | None = None, terminal: dict[str, Any] | None = None, **link: Any
) -> dict[str, Any]:
    """Return a scenario with a tunnel; settings of the terminal are those of the hub by default."""
    ends = {"hub": hub or {}, "terminal": (hub or {}) if terminal is None else terminal}
    return {
        "name": "tunnel",
        "link": {**copy.deepcopy(LINK), **link},
        "gateways": {end: {"tunnel": settings} for end, settings in ends.items()},
        "traffic": [{"kind": "bulk", "direction": "forward", "size": "1 MB"}],
        "duration": "60 s",
    }


def tunnels(data: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the plan of the hub's end, and of each terminal's."""
    gateways = Plan.resolve(data).data["gateways"]
    return [gateway["functions"][0] for gateway in gateways]


def warnings(data: dict[str, Any]) -> dict[str, str]:
    found = Plan.resolve(data).warnings
    return {each.field: each.message for each in found if ".tunnel." in each.field}


def refused(data: dict[str, Any]) -> str:
    with pytest.raises(ScenarioError) as raised:
        Plan.resolve(data)
    return str(raised.value)


def test_defaults_match_hand_calculations() -> None:
    """Given a round trip of 250 ms + 300 ms, expect these times and sizes.

    Repair waits for a round trip: 16 Mbit/s x 550 ms x 20 % / 8 = 220,000 bytes. At 2 Mbit/s it is
    27,500, less than the least buffer.
    """
    hub, terminal = tunnels(scenario())
    assert hub == {
        "kind": "tunnel",
        "classifier": {"packet_size_bytes": 100, "classes": None, "young_bytes": 0},
        "redundancy": {
            "kind": "adaptive",
            "cap_ppm": 200_000,
            "initial_loss_ppm": 10_000,
            "margin": 5,
            "averaging_symbols": 512,
            "decay_time_ns": 2_000 * MS,
            "window_min_symbols": 128,
            "window_max_symbols": 1_024,
            "report_delay_ns": (550 + 100 + 100) * MS,
        },
        "overflow": None,
        "titration": {"kind": "titrated", "threshold_bytes": 12_000, "hold_time_ns": 550 * MS},
        "hold_bytes": 220_000,
        "queue": {
            "rate_bps": 16_000_000,
            "capacity_bytes": 120_000,
            "packet_overhead_bytes": 18,
        },
        "memory_symbols": 1_024,
        "symbol_size_bytes": 1_432,
        "density": 15,
        "feedback_interval_ns": 100 * MS,
        "delivery": {"kind": "ordered", "hold_time_ns": 110 * MS, "pace_bps": None},
        "congestion_signal": {"kind": "hidden"},
    }
    queue = {"rate_bps": 2_000_000, "capacity_bytes": 150_000, "packet_overhead_bytes": 0}
    titration = {"kind": "titrated", "threshold_bytes": 15_000, "hold_time_ns": 550 * MS}
    assert terminal == {**hub, "hold_bytes": 64_000, "queue": queue, "titration": titration}


def test_every_setting_is_in_the_plan() -> None:
    hub, _ = tunnels(
        scenario(
            {
                "redundancy": "12.5 %",
                "window": 2_000,
                "overflow_repairs": 1.15,
                "overflow_window": 256,
                "titration": "delayed",
                "delay": "40 ms",
                "hold_buffer": "1 MB",
                "packet_size": "0 B",
                "uncoded_first": "15 kB",
                "classes": [3, 1, 3],
                "order_hold_time": "1 s",
                "order_pace": "20 Mbit/s",
                "feedback_interval": "none",
                "symbol_size": "1200 B",
                "density": 7,
                "congestion_signal": "10 %",
                "rate": "15 Mbit/s",
                "queue": "60 kB",
            }
        )
    )
    assert hub == {
        "kind": "tunnel",
        "classifier": {"packet_size_bytes": 0, "classes": [1, 3], "young_bytes": 15_000},
        "redundancy": {"kind": "fixed", "redundancy_ppm": 125_000, "window_symbols": 2_000},
        "overflow": {"repair_ppm": 1_150_000, "window_symbols": 256},
        "titration": {"kind": "delayed", "delay_ns": 40 * MS},
        "hold_bytes": 1_000_000,
        "queue": {
            "rate_bps": 15_000_000,
            "capacity_bytes": 60_000,
            "packet_overhead_bytes": 18,
        },
        # The longest window, as that is more than 1,024.
        "memory_symbols": 2_000,
        "symbol_size_bytes": 1_200,
        "density": 7,
        "feedback_interval_ns": None,
        "delivery": {"kind": "ordered", "hold_time_ns": 1_000 * MS, "pace_bps": 20_000_000},
        "congestion_signal": {"kind": "visible", "share_ppm": 100_000},
    }


def test_repair_on_overflow_waits_until_the_queue_drains() -> None:
    """Given repair on overflow, expect these defaults.

    At 16 Mbit/s a queue of 120 kB drains in 60 ms, beside a round trip of 550 ms. In these 610 ms
    the link sends 16 Mbit/s x 610 ms / 8 = 1,220,000 bytes.
    """
    hub, terminal = tunnels(scenario({"redundancy": "2 %", "overflow_repairs": 1}))
    assert hub["overflow"] == {"repair_ppm": 1_000_000, "window_symbols": 128}
    titration = {"kind": "titrated", "threshold_bytes": 80_000, "hold_time_ns": 610 * MS}
    assert (hub["titration"], hub["hold_bytes"]) == (titration, 1_220_000)
    assert terminal["overflow"] == {"repair_ppm": 1_000_000, "window_symbols": 128}


def test_settings_depend_on_the_other_end() -> None:
    """Given a terminal that reports each 50 ms, expect the hub to count on reports at that rate."""
    hub, terminal = tunnels(scenario({}, {"order": False, "feedback_interval": "50 ms"}))
    assert hub["delivery"]["kind"] == "ordered"
    assert hub["redundancy"]["kind"] == terminal["redundancy"]["kind"] == "adaptive"
    assert hub["redundancy"]["report_delay_ns"] == 700 * MS
    assert terminal["redundancy"]["report_delay_ns"] == 750 * MS
    assert terminal["delivery"] == {"kind": "unordered"}


@pytest.mark.parametrize(
    ("limit", "capacity_bytes"),
    [
        ("120 kB", 120_000),
        ("50 packets", 75_000),
        ("100 cells", 5_300),
        # 16 Mbit/s x 60 ms / 8.
        ("60 ms", 120_000),
        # 16 Mbit/s x 550 ms / 8 / 2.
        ("0.5 bdp", 550_000),
        # What the link sends in a second.
        ("unlimited", 2_000_000),
    ],
)
def test_the_capacity_of_the_queue_is_in_bytes(limit: str, capacity_bytes: int) -> None:
    forward = {**LINK["forward"], "queue": {"limit": limit}}
    hub, _ = tunnels(scenario(forward=forward))
    assert hub["queue"]["capacity_bytes"] == capacity_bytes
    assert hub["titration"]["kind"] == "titrated"
    assert hub["titration"]["threshold_bytes"] == capacity_bytes // 10


def test_the_overhead_of_a_packet_is_rounded_up() -> None:
    """AAL5: 1500 + 16 bytes are in 32 cells of 53, with 196 bytes more. PPP: 1507 x 63 / 62 + 1."""
    for framing, overhead_bytes in (("aal5", 196), ("ppp", 32)):
        hub, _ = tunnels(scenario(forward={**LINK["forward"], "framing": framing}))
        assert hub["queue"]["packet_overhead_bytes"] == overhead_bytes


def test_the_round_trip_is_that_of_the_farthest_terminal() -> None:
    data = scenario(terminals=2, terminal_paths=[{"terminal": 2, "delay": "290 ms"}])
    for end in tunnels(data):
        assert end["delivery"]["hold_time_ns"] == 590 * MS // 5


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (
            {"redundancy": "5 %", "redundancy_max": "10 %", "window_max": 512},
            {
                "redundancy_max": 'read "10 %"; no effect, since redundancy is not adaptive',
                "window_max": "read 512; no effect, since redundancy is not adaptive",
            },
        ),
        (
            {"titration": "none", "threshold": "9 kB", "rate": "1 Mbit/s", "hold_buffer": "9 kB"},
            {
                "threshold": 'read "9 kB"; no effect, since titration is none',
                "rate": 'read "1 Mbit/s"; no effect, since titration is none',
                "hold_buffer": 'read "9 kB"; no effect, since titration is none',
            },
        ),
        (
            {"titration": "delayed", "delay": "1 s", "hold_time": "1 s", "queue": "9 kB"},
            {
                "hold_time": 'read "1 s"; no effect, since titration is delayed',
                "queue": 'read "9 kB"; no effect, since titration is delayed',
            },
        ),
        ({"titration": "delayed", "delay": "1 s", "rate": "1 Mbit/s"}, {}),
        (
            {"overflow_window": 64},
            {"overflow_window": "read 64; no effect, since overflow_repairs is not set"},
        ),
        (
            {"redundancy": "2 %", "titration": "immediate", "overflow_repairs": 1, "queue": "9 kB"},
            {
                "overflow_repairs": "read 1.0; titration is immediate: the full queue drops that "
                "repair, too",
            },
        ),
        (
            {"overflow_repairs": 1.15},
            {
                "overflow_repairs": "read 1.15; redundancy is adaptive, and makes repair for the "
                "same losses again: set a small one, such as 2 %",
            },
        ),
        (
            {"titration": "none", "overflow_repairs": 1.15, "overflow_window": 64},
            {
                "overflow_repairs": "read 1.15; no effect, since titration is none",
                "overflow_window": "read 64; no effect, since titration is none",
            },
        ),
        (
            {"congestion_signal": "ecn"},
            {"congestion_signal": 'read "ecn"; no effect, since no flow is ECN-capable'},
        ),
        ({"threshold": "9 kB", "hold_time": "1 s", "queue": "90 kB", "window_max": 512}, {}),
    ],
)
def test_settings_without_effect_are_warned_about(
    settings: dict[str, Any], expected: dict[str, str]
) -> None:
    ends = {f"gateways.{end}.tunnel": expected for end in ("hub", "terminal")}
    wanted = {f"{path}.{field}": text for path, of in ends.items() for field, text in of.items()}
    assert warnings(scenario(settings)) == wanted


def test_datagrams_that_no_symbol_holds_are_warned_about() -> None:
    """A symbol of 1,200 bytes holds a packet of 1,194, so a datagram with a payload of 1,166."""
    for payload, expected in ((1_166, {}), (1_167, {"symbol_size": "1195 bytes are not coded"})):
        data = scenario({"symbol_size": "1200 B"})
        flow = {"kind": "constant_rate", "rate": "1 Mbit/s", "duration": "1 s"}
        data["traffic"] = [{**flow, "payload": f"{payload} B", "direction": "forward"}]
        found = warnings(data)
        assert set(found) == {f"gateways.hub.tunnel.{field}" for field in expected}
        assert all(text in "".join(found.values()) for text in expected.values())


def test_a_flow_that_is_ecn_capable_is_marked() -> None:
    data = scenario({"congestion_signal": "ecn"})
    data["traffic"][0]["tcp"] = {"ecn": True}
    assert warnings(data) == {}


def test_a_priority_has_an_effect_on_a_tunnel_with_classes() -> None:
    for classes, expected in (({"classes": [1]}, 0), ({}, 1)):
        data = scenario(classes)
        data["traffic"][0]["priority"] = 1
        found = Plan.resolve(data).warnings
        assert len([each for each in found if each.field == "traffic.0.priority"]) == expected


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"titration": "delayed"}, "read titration delayed without delay; set one, such as 100 ms"),
        (
            {"delay": "100 ms"},
            "read delay 100 ms with titration titrated; only delayed repair has one",
        ),
        ({"titration": "paced"}, "tunnel.titration: "),
        (
            {"order": False, "order_hold_time": "1 s"},
            "read order_hold_time 1 s with order false; packets wait only for the order",
        ),
        (
            {"redundancy": 0.1},
            'read 0.1; expected "adaptive", or a percentage, such as "10 %"',
        ),
        ({"redundancy": "101 %"}, 'read "101 %"; must be at most 100 %'),
        (
            {"congestion_signal": "drop"},
            'read "drop"; expected "hidden", "ecn", or a percentage, such as "10 %"',
        ),
        ({"window": 128, "window_max": 64}, "read window 128 and window_max 64; window must be"),
        ({"window": 4_096}, "must be at most 4095"),
        (
            {"memory": 512},
            "read window_max 1024 and memory 512; the sender must keep the symbols of its longest",
        ),
        ({"redundancy": "5 %", "window": 600, "memory": 512}, "read window 600 and memory 512"),
        (
            {"redundancy": "5 %", "overflow_repairs": 1, "overflow_window": 600, "memory": 512},
            "read overflow_window 600 and memory 512; the sender must keep",
        ),
        ({"order": False, "order_pace": "1 Mbit/s"}, "read order_pace 1 Mbit/s with order false"),
        ({"overflow_repairs": 11}, "must be at most 10"),
        ({"feedback_interval": "0 ms"}, 'read "0 ms"; must be above zero, or "none"'),
        ({"feedback_interval": "never"}, 'or "none"'),
        ({"windows": 3}, 'unknown field; did you mean "window"?'),
        ({"density": 16}, "must be at most 15"),
        ({"threshold": "0 B"}, "must be above zero"),
        ({"classes": []}, "is empty"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    assert message in refused(scenario(settings))


@pytest.mark.parametrize(
    ("settings", "field", "message"),
    [
        ({"symbol_size": "63 B"}, "symbol_size", "from 64 to"),
        ({"feedback_interval": "1 us"}, "feedback_interval", "from 1000000 to"),
        ({"hold_buffer": "2 GiB"}, "hold_buffer", "from 0 to"),
        ({"order_hold_time": "9999 h"}, "order_hold_time", "from 0 to"),
        ({"hold_time": "9999 h"}, "hold_time", "from 0 to"),
    ],
)
def test_what_the_simulator_refuses_names_the_field(
    settings: dict[str, Any], field: str, message: str
) -> None:
    text = refused(scenario(settings))
    assert f"gateways.hub.tunnel.{field}: read " in text
    assert message in text


@pytest.mark.parametrize(
    ("hub", "terminal", "message"),
    [
        (
            {"symbol_size": "1200 B"},
            {},
            'hub.tunnel.symbol_size: read "1200 B"; the other end has "1432 B": both need the same',
        ),
        (
            {"window_max": 2_048},
            {},
            "hub.tunnel.window_max: read 2048; the other end keeps 1024 symbols: raise its memory",
        ),
        (
            {},
            {"feedback_interval": "none"},
            'hub.tunnel.redundancy: read "adaptive"; the other end reports no loss',
        ),
    ],
)
def test_ends_that_do_not_fit_together_are_refused(
    hub: dict[str, Any], terminal: dict[str, Any], message: str
) -> None:
    assert f"gateways.{message}" in refused(scenario(hub, terminal))


def test_the_order_of_functions_is_checked() -> None:
    """By default a tunnel follows a PEP and precedes an aggregator; both ends need the same."""
    data = scenario()
    both: dict[str, Any] = {"aggregator": {}, "processor": {}, "pep": {}, "tunnel": {}}
    data["gateways"] = {"hub": both, "terminal": both}
    hub, *_ = Plan.resolve(data).data["gateways"]
    order = ["pep", "tunnel", "aggregator", "processor"]
    assert [function["kind"] for function in hub["functions"]] == order

    functions = {"functions": ["aggregator", "tunnel"]}
    data["gateways"] = {"hub": functions, "terminal": functions}
    hub, *_ = Plan.resolve(data).data["gateways"]
    assert [function["kind"] for function in hub["functions"]] == ["aggregator", "tunnel"]

    data["gateways"] = {"hub": functions, "terminal": {"functions": ["tunnel", "aggregator"]}}
    assert "functions that both ends need must be in the same order" in refused(data)
    data["gateways"] = {"hub": {"functions": ["tunnel", "pep"]}, "terminal": {"tunnel": {}}}
    assert (
        "gateways.hub: read tunnel before pep in functions; a pep splits single packets, not "
        "symbols: put pep first"
    ) in refused(data)
    data["gateways"] = {"hub": {"tunnel": {}}}
    assert (
        "read tunnel at the hub and none at the terminal; both ends of the link need one"
    ) in refused(data)


def test_a_queue_must_hold_a_symbol() -> None:
    """A packet with a symbol of 1,432 bytes has 28 + 29 + 11 bytes of headers."""
    data = scenario(forward={**LINK["forward"], "queue": {"limit": "1499 B"}})
    assert 'read "1499 B"; smaller than one packet, 1500 IP bytes' in refused(data)
