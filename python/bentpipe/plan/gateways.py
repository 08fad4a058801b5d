"""The gateways resolved into their parts of the plan."""

from __future__ import annotations

from bentpipe.plan.types import FunctionPlan, GatewayPlan
from bentpipe.scenario.gateways import (
    PROCESSOR_PPS,
    Aggregator,
    Gateway,
    GatewayFunction,
    Processor,
)
from bentpipe.scenario.schema import Scenario
from bentpipe.units import value_of


def gateway_plans(scenario: Scenario) -> list[GatewayPlan]:
    """Return the plans of all gateways: the hub's, then each terminal's."""
    hub, terminal = scenario.gateways.hub, scenario.gateways.terminal
    names = (f"terminal-{number + 1}" for number in range(scenario.link.terminals))
    return [_gateway(hub, "hub"), *(_gateway(terminal, name) for name in names)]


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


def _gateway(gateway: Gateway, name: str) -> GatewayPlan:
    return {"name": name, "functions": [_plan(function) for _, function in gateway.in_order()]}


def _plan(function: GatewayFunction) -> FunctionPlan:
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
        case Processor():
            rate = function.packets_per_second
            return {
                "kind": "processor",
                "packets_per_second": PROCESSOR_PPS[function.mode] if rate is None else rate,
                "per_byte_ns": value_of(function.per_byte),
                "buffer_packets": value_of(function.buffer),
            }
    raise AssertionError(f"{type(function).__name__} has no plan")
