"""The TCP of a flow resolved into the plan."""

from __future__ import annotations

from typing import TypeVar

from bentpipe.plan.errors import PlanningError
from bentpipe.plan.types import TcpPlan
from bentpipe.scenario.document import FieldPath
from bentpipe.scenario.profiles import PROFILES
from bentpipe.scenario.tcp import MAX_MSS_BYTES, ProfileName, Tcp
from bentpipe.scenario.traffic import TcpEnds
from bentpipe.units import value_of

V = TypeVar("V")


def tcp_plan(flow: TcpEnds, path: FieldPath) -> TcpPlan:
    """Return the plan of a flow's TCP at either end.

    Raises:
        PlanningError: the MSS is larger than a packet.
    """
    return host_plan(flow.profile, flow.tcp, (*path, "tcp"))


def host_plan(profile: ProfileName, written: Tcp, path: FieldPath) -> TcpPlan:
    """Return the plan of a TCP host with ``written`` settings, whose field is ``path``.

    Raises:
        PlanningError: the MSS is larger than a packet.
    """
    tcp = written.over(PROFILES[profile])
    mss_bytes = value_of(tcp.mss)
    if mss_bytes > MAX_MSS_BYTES:
        message = f'read "{tcp.mss}"; must be at most {MAX_MSS_BYTES} B (one IP packet)'
        raise PlanningError((*path, "mss"), message)
    receive_bytes, initial_bytes = _receive_buffers(written, tcp)
    return {
        "mss_bytes": mss_bytes,
        "initial_window_segments": _given(tcp.initial_window),
        "congestion_control": _given(tcp.congestion_control),
        "sack": _given(tcp.sack),
        "timestamps": _given(tcp.timestamps),
        "window_scaling": _given(tcp.window_scaling),
        "send_buffer_bytes": value_of(tcp.send_buffer),
        "receive_buffer_bytes": receive_bytes,
        "receive_buffer_initial_bytes": initial_bytes,
        "receive_buffer_counts": _given(tcp.receive_buffer_counts),
        "delayed_ack_segments": _given(tcp.delayed_ack_segments),
        "delayed_ack_timeout_ns": value_of(tcp.delayed_ack_timeout),
        "quick_ack_segments": _given(tcp.quick_ack_segments),
        "rto_initial_ns": value_of(tcp.rto_initial),
        "rto_min_ns": value_of(tcp.rto_min),
        "rto_min_bounds": _given(tcp.rto_min_bounds),
        "rto_max_ns": value_of(tcp.rto_max),
        "clock_granularity_ns": value_of(tcp.clock_granularity),
        "slow_start_segments_per_ack": _given(tcp.slow_start_segments_per_ack),
        "avoidance_counting": _given(tcp.avoidance_counting),
        "limited_transmit": _given(tcp.limited_transmit),
        "rack_tlp": _given(tcp.rack_tlp),
        "prr": _given(tcp.prr),
        "hystart": _hystart(written, tcp),
        "ecn": _given(tcp.ecn),
        "stack": _given(tcp.stack),
    }


def _given(value: V | None) -> V:
    """Return a setting, which the profile gives if the scenario does not."""
    assert value is not None, "a profile gives every setting"
    return value


def _hystart(written: Tcp, tcp: Tcp) -> bool:
    """Return whether HyStart is on: as written, or as in Linux with CUBIC only."""
    if written.hystart is None and tcp.stack == "linux":
        return tcp.congestion_control == "cubic"
    return bool(tcp.hystart)


def _receive_buffers(written: Tcp, tcp: Tcp) -> tuple[int, int]:
    """Return the maximum and the initial receive buffer, in bytes."""
    receive_bytes = value_of(tcp.receive_buffer)
    if tcp.receive_buffer_initial is None:
        return receive_bytes, receive_bytes
    initial_bytes = value_of(tcp.receive_buffer_initial)
    if written.receive_buffer_initial is None:
        # A maximum from the scenario also bounds the initial size from the profile.
        initial_bytes = min(initial_bytes, receive_bytes)
    return receive_bytes, initial_bytes
