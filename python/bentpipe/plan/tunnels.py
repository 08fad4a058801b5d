"""The ends of a coded tunnel resolved into their parts of the plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from bentpipe.plan.data import series_values
from bentpipe.plan.errors import PlanningError
from bentpipe.plan.lower import Part, part
from bentpipe.scenario.document import FieldPath
from bentpipe.scenario.framings import frame_bits
from bentpipe.scenario.percent import share_of
from bentpipe.scenario.tunnel import Tunnel
from bentpipe.units import NS_PER_S, value_of

EndName = Literal["hub", "terminal"]

# `docs/model/tunnel-policies.md` gives the reasons for these numbers.
_INITIAL_LOSS_PPM: Final = 10_000
_MARGIN: Final = 5
_AVERAGING_SYMBOLS: Final = 512
_DECAY_TIME_NS: Final = 2 * NS_PER_S
_SLACK_NS: Final = 100_000_000
_THRESHOLD_SHARE: Final = 10
_ORDER_HOLD_SHARE: Final = 5
_HOLD_BUFFER_BYTES_MIN: Final = 64_000

# The largest that a tunnel accepts (`settings.rs`).
_HOLD_BUFFER_BYTES_MAX: Final = 2**30
_CAPACITY_BYTES_MAX: Final = 2**40

_MILLION: Final = 10**6
_BITS_PER_BYTE: Final = 8
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
    branches = [branch["delay_ns"] for each in directions for branch in each["to"]]
    delays = [max(series_values(each["delay_ns"])) for each in (forward, returns[0])]
    rate_bps = max(series_values(away["rate_bps"]))
    link_bytes = -(-frame_bits(away["framing"], _PACKET_BYTES) // _BITS_PER_BYTE)
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
    queue = part(
        path,
        {
            "rate_bps": uplink.rate_bps if tunnel.rate is None else value_of(tunnel.rate),
            "capacity_bytes": (
                uplink.capacity_bytes if tunnel.queue is None else value_of(tunnel.queue)
            ),
            "packet_overhead_bytes": uplink.packet_overhead_bytes,
        },
        rate_bps="rate",
        capacity_bytes="queue",
        packet_overhead_bytes="packet_overhead",
    )
    classes = tunnel.classes
    classifier = part(
        path,
        {
            "packet_size_bytes": value_of(tunnel.packet_size),
            "classes": None if classes is None else sorted(set(classes)),
            "young_bytes": value_of(tunnel.uncoded_first),
        },
        packet_size_bytes="packet_size",
        classes="classes",
        young_bytes="uncoded_first",
    )
    titration = _titration(tunnel, queue, uplink.round_trip_ns, path)
    interval = tunnel.feedback_interval
    return part(
        path,
        {
            "kind": "tunnel",
            "classifier": classifier,
            "redundancy": _redundancy(tunnel, peer, uplink.round_trip_ns, path),
            "titration": titration,
            "hold_bytes": _hold_bytes(tunnel, titration, queue["rate_bps"]),
            "queue": queue,
            "memory_symbols": tunnel.memory_symbols,
            "symbol_size_bytes": value_of(tunnel.symbol_size),
            "density": tunnel.density,
            "feedback_interval_ns": None if interval == "none" else value_of(interval),
            "delivery": _delivery(tunnel, uplink.round_trip_ns, path),
            "congestion_signal": _signal(tunnel.congestion_signal, path),
        },
        hold_bytes="hold_buffer",
        memory_symbols="memory",
        symbol_size_bytes="symbol_size",
        density="density",
        feedback_interval_ns="feedback_interval",
        redundancy="redundancy",
        titration="titration",
        delivery="order",
        congestion_signal="congestion_signal",
    )


def largest_packet_bytes(tunnel: Tunnel) -> int:
    """Return the IP bytes of the largest packet that is coded."""
    return value_of(tunnel.symbol_size) - _PACKET_HEADER_BYTES


def largest_symbol_packet_bytes(tunnel: Tunnel) -> int:
    """Return the IP bytes of a packet with the largest symbol."""
    return value_of(tunnel.symbol_size) + _SYMBOL_HEADERS_BYTES


def _check_ends(tunnel: Tunnel, peer: Tunnel, path: FieldPath) -> None:
    if value_of(tunnel.symbol_size) != value_of(peer.symbol_size):
        message = f'read "{tunnel.symbol_size}"; the other end has "{peer.symbol_size}"'
        raise PlanningError((*path, "symbol_size"), f"{message}: both need the same")
    if tunnel.longest_window > peer.memory_symbols:
        name = "window_max" if tunnel.is_adaptive else "window"
        message = f"read {tunnel.longest_window}; the other end keeps {peer.memory_symbols} symbols"
        raise PlanningError((*path, name), f"{message}: raise its memory")
    if tunnel.is_adaptive and peer.feedback_interval == "none":
        raise PlanningError(
            (*path, "redundancy"),
            'read "adaptive"; the other end reports no loss, as its feedback_interval is "none": '
            'set a redundancy such as "10 %", or a feedback_interval there',
        )


def _redundancy(tunnel: Tunnel, peer: Tunnel, round_trip_ns: int, path: FieldPath) -> Part:
    if not tunnel.is_adaptive:
        values: dict[str, Any] = {
            "kind": "fixed",
            "redundancy_ppm": _ppm(tunnel.redundancy),
            "window_symbols": tunnel.window,
        }
        return part(path, values, redundancy_ppm="redundancy", window_symbols="window")
    values = {
        "kind": "adaptive",
        "cap_ppm": _ppm(tunnel.redundancy_max),
        "initial_loss_ppm": _INITIAL_LOSS_PPM,
        "margin": _MARGIN,
        "averaging_symbols": _AVERAGING_SYMBOLS,
        "decay_time_ns": _DECAY_TIME_NS,
        "window_min_symbols": tunnel.window,
        "window_max_symbols": tunnel.window_max,
        # The other end makes the reports.
        "report_delay_ns": round_trip_ns + value_of(peer.feedback_interval) + _SLACK_NS,
    }
    return part(
        path,
        values,
        cap_ppm="redundancy_max",
        window_min_symbols="window",
        window_max_symbols="window_max",
        report_delay_ns="feedback_interval",
    )


def _titration(
    tunnel: Tunnel, queue: Mapping[str, Any], round_trip_ns: int, path: FieldPath
) -> Part:
    values: dict[str, Any] = {"kind": tunnel.titration}
    if tunnel.titration == "titrated":
        threshold_bytes = max(1, queue["capacity_bytes"] // _THRESHOLD_SHARE)
        if tunnel.threshold is not None:
            threshold_bytes = value_of(tunnel.threshold)
        hold = tunnel.hold_time
        hold_ns = round_trip_ns if hold is None else value_of(hold)
        values |= {"threshold_bytes": threshold_bytes, "hold_time_ns": hold_ns}
    elif tunnel.titration == "delayed":
        values["delay_ns"] = value_of(tunnel.delay)
    return part(
        path, values, threshold_bytes="threshold", hold_time_ns="hold_time", delay_ns="delay"
    )


def _hold_bytes(tunnel: Tunnel, titration: Mapping[str, Any], rate_bps: int) -> int:
    """Return what is written, or the repair of the longest wait at the rate."""
    if tunnel.hold_buffer is not None:
        return value_of(tunnel.hold_buffer)
    wait_ns: int = titration.get("hold_time_ns", 0) + titration.get("delay_ns", 0)
    share_ppm: int = _ppm(tunnel.redundancy_max if tunnel.is_adaptive else tunnel.redundancy)
    repair_bytes = rate_bps * wait_ns * share_ppm // (_BITS_PER_BYTE * NS_PER_S * _MILLION)
    return min(max(repair_bytes, _HOLD_BUFFER_BYTES_MIN), _HOLD_BUFFER_BYTES_MAX)


def _delivery(tunnel: Tunnel, round_trip_ns: int, path: FieldPath) -> Part:
    if not tunnel.order:
        return part(path, {"kind": "unordered"})
    hold = tunnel.order_hold_time
    hold_ns = round_trip_ns // _ORDER_HOLD_SHARE if hold is None else value_of(hold)
    return part(path, {"kind": "ordered", "hold_time_ns": hold_ns}, hold_time_ns="order_hold_time")


def _signal(written: str, path: FieldPath) -> Part:
    values: dict[str, Any] = {"kind": written}
    if written not in {"hidden", "ecn"}:
        values = {"kind": "visible", "share_ppm": _ppm(written)}
    return part(path, values, share_ppm="congestion_signal")


def _capacity_bytes(limit: Mapping[str, Any], rate_bps: int) -> int:
    value: int = limit.get("value", 0)
    return {
        "bytes": value,
        "link_bytes": value,
        "packets": value * _PACKET_BYTES,
        "time_ns": max(1, rate_bps * value // (_BITS_PER_BYTE * NS_PER_S)),
        "unlimited": max(1, rate_bps // _BITS_PER_BYTE),
    }[limit["unit"]]


def _ppm(percent: str) -> int:
    return round(share_of(percent) * _MILLION)
