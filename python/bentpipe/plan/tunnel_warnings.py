"""Warnings about coded tunnels: settings without effect, and packets that are not coded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from bentpipe.plan.tunnels import largest_packet_bytes
from bentpipe.plan.types import DirectionName
from bentpipe.scenario.document import FieldPath
from bentpipe.scenario.tunnel import Tunnel
from bentpipe.text import shown

if TYPE_CHECKING:
    from bentpipe.plan.plan import Plan

_UDP_IP_HEADER_BYTES: Final = 28


def about_tunnels(plan: Plan) -> Iterator[tuple[FieldPath, str]]:
    """Return warnings about settings of tunnels that change nothing, and about large datagrams."""
    gateways = plan.scenario.gateways
    for end, gateway in (("hub", gateways.hub), ("terminal", gateways.terminal)):
        for name, tunnel in gateway.in_order():
            if isinstance(tunnel, Tunnel):
                for field, reason in _without_effect(tunnel, plan):
                    read = f"read {shown(getattr(tunnel, field))}"
                    yield ("gateways", end, name, field), f"{read}; no effect, since {reason}"
                largest = _largest_datagram_bytes(plan, "forward" if end == "hub" else "return")
                if largest > (holds := largest_packet_bytes(tunnel)):
                    read = f"read {shown(tunnel.symbol_size)}; it holds a packet of {holds} bytes"
                    text = f"{read}, so datagrams of {largest} bytes are not coded"
                    yield ("gateways", end, name, "symbol_size"), text


def _without_effect(tunnel: Tunnel, plan: Plan) -> Iterator[tuple[str, str]]:
    """Return the written fields that change nothing, and why."""
    titration = f"titration is {tunnel.titration}"
    is_titrated = tunnel.titration == "titrated"
    sizes_buffer = tunnel.titration == "delayed" and tunnel.hold_buffer is None
    reasons = {
        "redundancy_max": None if tunnel.is_adaptive else "redundancy is not adaptive",
        "window_max": None if tunnel.is_adaptive else "redundancy is not adaptive",
        "threshold": None if is_titrated else titration,
        "hold_time": None if is_titrated else titration,
        "queue": None if is_titrated else titration,
        "rate": None if is_titrated or sizes_buffer else titration,
        "hold_buffer": titration if tunnel.titration in {"none", "immediate"} else None,
    }
    for field, reason in reasons.items():
        if reason is not None and field in tunnel.model_fields_set:
            yield field, reason
    if tunnel.congestion_signal == "ecn" and not _any_ecn(
        [plan.data["flows"], plan.data["gateways"]]
    ):
        yield "congestion_signal", "no flow is ECN-capable"


def _largest_datagram_bytes(plan: Plan, direction: DirectionName) -> int:
    """Return the size of the largest datagram in a direction, with UDP and IP headers; 0 if none.

    The segments of TCP are made to fit.
    """
    largest = 0
    for flow in plan.data["flows"]:
        workload = flow["workload"]
        is_there = flow["direction"] == direction
        if workload["kind"] == "conference" or (
            is_there and (workload["kind"] == "constant_rate" or workload["kind"] == "voice")
        ):
            largest = max(largest, workload["payload_bytes"] + _UDP_IP_HEADER_BYTES)
    return largest


def _any_ecn(part: Any) -> bool:
    """Return whether some TCP in a part of the plan negotiates ECN."""
    if isinstance(part, dict):
        return part.get("ecn") is True or any(map(_any_ecn, part.values()))
    return isinstance(part, list) and any(map(_any_ecn, part))
