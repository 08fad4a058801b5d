"""The gateways resolved into their parts of the plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bentpipe.plan.hosts import host_plan
from bentpipe.plan.lower import Part, lower
from bentpipe.plan.tunnels import (
    EndName,
    Uplink,
    largest_symbol_packet_bytes,
    tunnel_plan,
    uplink_of,
)
from bentpipe.scenario.document import FieldPath
from bentpipe.scenario.gateways import PROCESSOR_PPS, Aggregator, Gateway, Pep, Processor
from bentpipe.scenario.record import GatewayFunction
from bentpipe.scenario.schema import Scenario
from bentpipe.scenario.tunnel import Tunnel
from bentpipe.units import value_of


def gateway_plans(scenario: Scenario, directions: Sequence[dict[str, Any]]) -> list[Part]:
    """Return the plans of all gateways: the hub's, then each terminal's.

    Without ``directions``, which have errors then, tunnels are left out.

    Raises:
        PlanningError: the MSS of a PEP is larger than a packet, or the ends of a tunnel do not fit
            together.
    """
    hub = _functions(scenario, "hub", directions)
    terminal = _functions(scenario, "terminal", directions)
    names = (f"terminal-{number + 1}" for number in range(scenario.link.terminals))
    return [
        Part({"name": "hub", "functions": hub}, ("gateways", "hub")),
        # Terminals are equal, and written once.
        *(Part({"name": name, "functions": terminal}, ("gateways", "terminal")) for name in names),
    ]


def _functions(
    scenario: Scenario, end: EndName, directions: Sequence[dict[str, Any]]
) -> list[Part]:
    here, there = scenario.gateways.hub, scenario.gateways.terminal
    if end == "terminal":
        here, there = there, here
    peers = dict(there.in_order())
    uplink = uplink_of(directions, end) if directions else None
    plans = (
        _plan(function, peers.get(name), uplink, ("gateways", end, name))
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


def _plan(
    function: GatewayFunction, peer: GatewayFunction | None, uplink: Uplink | None, path: FieldPath
) -> Part | None:
    """Return the plan of a function, whose counterpart at the other end is ``peer``, if any."""
    match function:
        case Aggregator():
            plan = lower(function, path)
            plan["packet_size_bytes"] = min(plan["packet_size_bytes"], plan["frame_size_bytes"])
            if function.classes is not None:
                plan["classes"] = sorted(set(function.classes))
        case Pep():
            plan = lower(function, path, leave_out=("profile",))
            for leg in ("lan_tcp", "link_tcp"):
                plan[leg] = host_plan(function.profile, getattr(function, leg), (*path, leg))
        case Processor():
            plan = lower(function, path, leave_out=("mode",))
            if function.packets_per_second is None:
                plan["packets_per_second"] = PROCESSOR_PPS[function.mode]
        case Tunnel():
            assert isinstance(peer, Tunnel), "a scenario without one is refused"
            if uplink is None:
                return None
            plan = tunnel_plan(function, peer, uplink, path)
        case _:
            raise AssertionError(f"{type(function).__name__} has no plan")
    plan["kind"] = path[-1]
    return plan
