"""The gateways resolved into their parts of the plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from bentpipe.plan.tcp import host_plan
from bentpipe.plan.tunnels import (
    EndName,
    Uplink,
    largest_symbol_packet_bytes,
    tunnel_plan,
    uplink_of,
)
from bentpipe.plan.types import DirectionPlan, FunctionPlan, GatewayPlan, PepPlan
from bentpipe.scenario.document import FieldPath
from bentpipe.scenario.function import GatewayFunction
from bentpipe.scenario.gateways import PROCESSOR_PPS, Aggregator, Gateway, Pep, Processor
from bentpipe.scenario.schema import Scenario
from bentpipe.scenario.tunnel import Tunnel
from bentpipe.units import value_of


class _Ends(NamedTuple):
    """A function's counterpart at the other end of the link, if any, and the link in between."""

    peer: GatewayFunction | None
    uplink: Uplink | None


def gateway_plans(scenario: Scenario, directions: Sequence[DirectionPlan]) -> list[GatewayPlan]:
    """Return the plans of all gateways: the hub's, then each terminal's.

    Without ``directions``, which have errors then, tunnels are left out.

    Raises:
        PlanningError: the MSS of a PEP is larger than a packet, or the ends of a tunnel do not fit
            together.
    """
    hub = _functions(scenario, "hub", directions)
    terminal = _functions(scenario, "terminal", directions)
    names = (f"terminal-{number + 1}" for number in range(scenario.link.terminals))
    plans: list[GatewayPlan] = [{"name": name, "functions": terminal} for name in names]
    return [{"name": "hub", "functions": hub}, *plans]


def _functions(
    scenario: Scenario, end: EndName, directions: Sequence[DirectionPlan]
) -> list[FunctionPlan]:
    gateways = scenario.gateways
    here, there = gateways.hub, gateways.terminal
    if end == "terminal":
        here, there = there, here
    peers = dict(there.in_order())
    uplink = uplink_of(directions, end) if directions else None
    plans = (
        _plan(function, _Ends(peers.get(name), uplink), ("gateways", end, name))
        for name, function in here.in_order()
    )
    return [plan for plan in plans if plan is not None]


def largest_packet_bytes(gateway: Gateway) -> int:
    """Return the size of the largest packet that the gateway itself makes; 0 if none."""
    largest = 0
    for _, function in gateway.in_order():
        if isinstance(function, Aggregator):
            largest = max(largest, value_of(function.frame_size))
        elif isinstance(function, Tunnel):
            largest = max(largest, largest_symbol_packet_bytes(function))
    return largest


def _plan(function: GatewayFunction, ends: _Ends, path: FieldPath) -> FunctionPlan | None:
    match function:
        case Aggregator():
            frame_bytes = value_of(function.frame_size)
            return {
                "kind": "aggregator",
                "frame_size_bytes": frame_bytes,
                "packet_size_bytes": min(value_of(function.packet_size), frame_bytes),
                "hold_time_ns": value_of(function.hold_time),
                "classes": None if function.classes is None else sorted(set(function.classes)),
            }
        case Pep():
            return _pep(function, path)
        case Processor():
            rate = function.packets_per_second
            return {
                "kind": "processor",
                "packets_per_second": PROCESSOR_PPS[function.mode] if rate is None else rate,
                "per_byte_ns": value_of(function.per_byte),
                "buffer_packets": value_of(function.buffer),
            }
        case Tunnel():
            assert isinstance(ends.peer, Tunnel), "a scenario without one is refused"
            if ends.uplink is None:
                return None
            return tunnel_plan(function, ends.peer, ends.uplink, path)
    raise AssertionError(f"{type(function).__name__} has no plan")


def _pep(pep: Pep, path: FieldPath) -> PepPlan:
    lowat = pep.notsent_lowat
    return {
        "kind": "pep",
        "lan_tcp": host_plan(pep.profile, pep.lan_tcp, (*path, "lan_tcp")),
        "link_tcp": host_plan(pep.profile, pep.link_tcp, (*path, "link_tcp")),
        "notsent_lowat_bytes": None if lowat is None else value_of(lowat),
        "buffer_bytes": value_of(pep.buffer),
        "connections": pep.connections,
        "early_accept": pep.early_accept,
    }
