"""The gateways resolved into their parts of the plan."""

from __future__ import annotations

from typing import Literal

from bentpipe.plan.tcp import host_plan
from bentpipe.plan.types import FunctionPlan, GatewayPlan, PepPlan
from bentpipe.scenario.document import FieldPath
from bentpipe.scenario.gateways import (
    PROCESSOR_PPS,
    Aggregator,
    Gateway,
    GatewayFunction,
    Pep,
    Processor,
)
from bentpipe.scenario.schema import Scenario
from bentpipe.units import value_of


def gateway_plans(scenario: Scenario) -> list[GatewayPlan]:
    """Return the plans of all gateways: the hub's, then each terminal's.

    Raises:
        PlanningError: the MSS of a PEP is larger than a packet.
    """
    hub, terminal = _functions(scenario, "hub"), _functions(scenario, "terminal")
    names = (f"terminal-{number + 1}" for number in range(scenario.link.terminals))
    plans: list[GatewayPlan] = [{"name": name, "functions": terminal} for name in names]
    return [{"name": "hub", "functions": hub}, *plans]


def _functions(scenario: Scenario, end: Literal["hub", "terminal"]) -> list[FunctionPlan]:
    gateway: Gateway = getattr(scenario.gateways, end)
    named = gateway.in_order()
    return [_plan(function, ("gateways", end, name)) for name, function in named]


def largest_packet_bytes(gateway: Gateway) -> int:
    """Return the size of the largest packet that the gateway itself makes; 0 if none."""
    return max(
        (
            value_of(function.frame_size)
            for _, function in gateway.in_order()
            if isinstance(function, Aggregator)
        ),
        default=0,
    )


def _plan(function: GatewayFunction, path: FieldPath) -> FunctionPlan:
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
