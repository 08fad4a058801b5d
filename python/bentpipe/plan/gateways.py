"""The gateways resolved into their parts of the plan, with the ends of coded tunnels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from bentpipe.plan.hosts import host_plan
from bentpipe.plan.lower import Part, lower, wrong
from bentpipe.plan.presets import series_values
from bentpipe.scenario.document import FieldPath
from bentpipe.scenario.framings import frame_bits
from bentpipe.scenario.gateways import (
    PROCESSOR_PPS,
    Aggregator,
    Gateway,
    GatewayFunction,
    Pep,
    Processor,
    Tunnel,
)
from bentpipe.scenario.record import share_of
from bentpipe.units import BITS_PER_BYTE, NS_PER_S, value_of

if TYPE_CHECKING:
    from bentpipe.scenario.schema import Scenario


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
    sizes = [0]
    for _, function in gateway.in_order():
        if isinstance(function, Aggregator):
            sizes.append(value_of(function.frame_size))
        elif isinstance(function, Tunnel):
            sizes.append(value_of(function.symbol_size) + _SYMBOL_HEADERS_BYTES)
    return max(sizes)


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
    plan["kind"] = path[-1]
    return plan


EndName = Literal["hub", "terminal"]

# `docs/model/tunnel-policies.md` gives the reasons for these numbers.
_INITIAL_LOSS_PPM: Final = 10_000
_MARGIN: Final = 5
_AVERAGING_SYMBOLS: Final = 512
_DECAY_TIME_NS: Final = 2 * NS_PER_S
_SLACK_NS: Final = 100_000_000
_THRESHOLD_SHARE: Final = 10
# The queue has three of these.
_OVERFLOW_THRESHOLD_THIRDS: Final = 2
_OVERFLOW_HOLD_QUEUES: Final = 2
_ORDER_HOLD_SHARE: Final = 5
_HOLD_BUFFER_BYTES_MIN: Final = 64_000

# The largest that a tunnel accepts (`settings.rs`).
_HOLD_BUFFER_BYTES_MAX: Final = 2**30
_CAPACITY_BYTES_MAX: Final = 2**40

_MILLION: Final = 10**6
_PACKET_BYTES: Final = 1_500
# UDP and IP, the transport of the tunnel (`docs/model/tunnel-sessions.md`) and the header of a
# symbol (`crates/core/src/tunnel/message.rs`).
_SYMBOL_HEADERS_BYTES: Final = 28 + 29 + 11
# The header of a packet within a symbol.
_PACKET_HEADER_BYTES: Final = 6


@dataclass(frozen=True)
class Uplink:
    """What one end knows of the link: the direction away from it, and the round-trip time."""

    rate_bps: int
    capacity_bytes: int
    packet_overhead_bytes: int
    round_trip_ns: int


def uplink_of(directions: Sequence[Mapping[str, Any]], end: EndName) -> Uplink:
    """Return the link as an end of it sees it; terminals at different distances as the farthest."""
    forward, *returns = directions
    away = forward if end == "hub" else returns[0]
    branches = [branch["delay_ns"] for direction in directions for branch in direction["to"]]
    delays = [max(series_values(direction["delay_ns"])) for direction in (forward, returns[0])]
    rate_bps = max(series_values(away["rate_bps"]))
    link_bytes = -(-frame_bits(away["framing"], _PACKET_BYTES) // BITS_PER_BYTE)
    return Uplink(
        rate_bps=rate_bps,
        capacity_bytes=min(_capacity_bytes(away["queue"]["limit"], rate_bps), _CAPACITY_BYTES_MAX),
        packet_overhead_bytes=link_bytes - _PACKET_BYTES,
        round_trip_ns=sum(delays) + max(branches),
    )


def tunnel_plan(tunnel: Tunnel, peer: Tunnel, uplink: Uplink, path: FieldPath) -> Part:
    """Return the plan of an end of a tunnel, whose other end is ``peer``.

    Raises:
        PlanningError: the settings of the ends do not fit together.
    """
    _check_ends(tunnel, peer, path)
    plan, round_trip_ns = lower(tunnel, path), uplink.round_trip_ns
    if tunnel.classes is not None:
        plan["classes"] = sorted(set(tunnel.classes))
    for percent in ("redundancy", "redundancy_max", "congestion_signal"):
        if plan[percent] not in {"adaptive", "hidden", "ecn"}:
            plan[percent] = round(share_of(plan[percent]) * _MILLION)
    plan["memory"] = tunnel.memory_symbols
    plan.default("rate_bps", uplink.rate_bps)
    plan.default("queue_bytes", uplink.capacity_bytes)
    threshold_bytes, drain_ns = plan["queue_bytes"] // _THRESHOLD_SHARE, 0
    if tunnel.overflow_repairs is not None:
        threshold_bytes = plan["queue_bytes"] * _OVERFLOW_THRESHOLD_THIRDS // 3
        # Repair for a full queue waits until it drains.
        drain_ns = plan["queue_bytes"] * BITS_PER_BYTE * NS_PER_S // max(plan["rate_bps"], 1)
    plan.default("threshold_bytes", max(1, threshold_bytes))
    plan.default("hold_time_ns", round_trip_ns + drain_ns)
    plan.default("order_hold_time_ns", round_trip_ns // _ORDER_HOLD_SHARE)
    plan.default("hold_buffer_bytes", _hold_bytes(tunnel, plan))
    queue = plan.select({}, "rate_bps", capacity_bytes="queue_bytes")
    queue["packet_overhead_bytes"] = uplink.packet_overhead_bytes
    queue.origins["packet_overhead_bytes"] = (*path, "packet_overhead")
    parts = plan.select(
        {"kind": "tunnel"},
        "redundancy",
        "titration",
        "density",
        "congestion_signal",
        hold_bytes="hold_buffer_bytes",
        memory_symbols="memory",
        symbol_size_bytes="symbol_size_bytes",
        feedback_interval_ns="feedback_interval_ns",
        delivery="order",
    )
    hold = {"titrated": ("threshold_bytes", "hold_time_ns"), "delayed": ("delay_ns",)}
    parts |= {
        "classifier": plan.select(
            {}, "packet_size_bytes", "classes", young_bytes="uncoded_first_bytes"
        ),
        "queue": queue,
        "redundancy": _redundancy(tunnel, peer, round_trip_ns, plan),
        "overflow": _overflow(tunnel, plan),
        "titration": plan.select({"kind": tunnel.titration}, *hold.get(tunnel.titration, ())),
        "delivery": (
            plan.select(
                {"kind": "ordered"}, hold_time_ns="order_hold_time_ns", pace_bps="order_pace_bps"
            )
            if tunnel.order
            else plan.select({"kind": "unordered"})
        ),
        "congestion_signal": (
            plan.select({"kind": tunnel.congestion_signal})
            if tunnel.congestion_signal in {"hidden", "ecn"}
            else plan.select({"kind": "visible"}, share_ppm="congestion_signal")
        ),
    }
    if tunnel.feedback_interval == "none":
        parts["feedback_interval_ns"] = None
    return parts


def largest_coded_packet_bytes(tunnel: Tunnel) -> int:
    """Return the IP bytes of the largest packet that is coded."""
    return value_of(tunnel.symbol_size) - _PACKET_HEADER_BYTES


def _check_ends(tunnel: Tunnel, peer: Tunnel, path: FieldPath) -> None:
    if value_of(tunnel.symbol_size) != value_of(peer.symbol_size):
        message = f'the other end has "{peer.symbol_size}": both need the same'
        raise wrong((*path, "symbol_size"), tunnel.symbol_size, message)
    if tunnel.longest_window > peer.memory_symbols:
        message = f"the other end keeps {peer.memory_symbols} symbols: raise its memory"
        raise wrong((*path, tunnel.longest_window_name), tunnel.longest_window, message)
    if tunnel.is_adaptive and peer.feedback_interval == "none":
        message = 'the other end reports no loss, as its feedback_interval is "none": set a'
        advice = f'{message} redundancy such as "10 %", or a feedback_interval there'
        raise wrong((*path, "redundancy"), tunnel.redundancy, advice)


def _redundancy(tunnel: Tunnel, peer: Tunnel, round_trip_ns: int, plan: Part) -> Part:
    if not tunnel.is_adaptive:
        return plan.select({"kind": "fixed"}, redundancy_ppm="redundancy", window_symbols="window")
    constants = {
        "kind": "adaptive",
        "initial_loss_ppm": _INITIAL_LOSS_PPM,
        "margin": _MARGIN,
        "averaging_symbols": _AVERAGING_SYMBOLS,
        "decay_time_ns": _DECAY_TIME_NS,
    }
    adaptive = plan.select(
        constants,
        cap_ppm="redundancy_max",
        window_min_symbols="window",
        window_max_symbols="window_max",
        report_delay_ns="feedback_interval_ns",
    )
    # The other end makes the reports.
    adaptive["report_delay_ns"] = round_trip_ns + value_of(peer.feedback_interval) + _SLACK_NS
    return adaptive


def _overflow(tunnel: Tunnel, plan: Part) -> Part | None:
    if tunnel.overflow_repairs is None:
        return None
    plan["overflow_repairs"] = round(tunnel.overflow_repairs * _MILLION)
    return plan.select({}, repair_ppm="overflow_repairs", window_symbols="overflow_window")


def _hold_bytes(tunnel: Tunnel, plan: Part) -> int:
    wait_ns: int = {"titrated": plan["hold_time_ns"], "delayed": plan["delay_ns"]}.get(
        tunnel.titration, 0
    )
    share_ppm: int = plan["redundancy_max" if tunnel.is_adaptive else "redundancy"]
    min_bytes = _HOLD_BUFFER_BYTES_MIN
    if tunnel.overflow_repairs is not None:
        # The link sends no more in that time.
        share_ppm = _MILLION
        min_bytes = max(min_bytes, _OVERFLOW_HOLD_QUEUES * plan["queue_bytes"])
    repair_bytes: int = (
        plan["rate_bps"] * wait_ns * share_ppm // (BITS_PER_BYTE * NS_PER_S * _MILLION)
    )
    return min(max(repair_bytes, min_bytes), _HOLD_BUFFER_BYTES_MAX)


def _capacity_bytes(limit: Mapping[str, Any], rate_bps: int) -> int:
    value: int = limit.get("value", 0)
    return {
        "bytes": value,
        "link_bytes": value,
        "packets": value * _PACKET_BYTES,
        "time_ns": max(1, rate_bps * value // (BITS_PER_BYTE * NS_PER_S)),
        "unlimited": max(1, rate_bps // BITS_PER_BYTE),
    }[limit["unit"]]
