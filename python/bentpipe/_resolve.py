"""A scenario resolved into the plan: integers in ns, bytes and bit/s, with every field present.

What can only be judged when the parts are seen together is judged here: a rate that neither the
scenario nor its preset gives, a queue smaller than the largest packet, a flow that starts after the
end. Values that each are legal alone were checked when the scenario was made.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from math import ceil, floor
from typing import Any, Final

from bentpipe import _core
from bentpipe._document import FieldPath
from bentpipe._explain import shown
from bentpipe.presets import PRESETS
from bentpipe.scenario import (
    DEFAULT_DIRECTION,
    LARGEST_MSS,
    LARGEST_PAYLOAD,
    MOST_FLOWS,
    PROFILES,
    Bulk,
    ConstantRate,
    DelayStep,
    Direction,
    DirectionName,
    Link,
    Queue,
    RateStep,
    Scenario,
    Tcp,
)
from bentpipe.units import (
    BDP_SCALE,
    LARGEST,
    format_duration,
    parse_duration,
    parse_queue_limit,
    parse_rate,
    parse_size,
)

PLAN_FORMAT_VERSION: Final = 1

# IPv4 and TCP headers without options; the MSS is what remains of the packet (RFC 9293 3.7.1).
_TCP_IP_HEADER_BYTES: Final = 40
# IPv4 header and the largest TCP header: no acknowledgement is larger.
_LARGEST_ACK_BYTES: Final = 80
_UDP_IP_HEADER_BYTES: Final = 28
_BIT_NS_PER_BYTE_S: Final = 8 * 10**9
# 10 million rows of samples are about 500 MB; more is a slip of the interval.
_MOST_SAMPLE_ROWS: Final = 10_000_000

_DIRECTIONS: Final[tuple[DirectionName, ...]] = ("forward", "return")


@dataclass
class PlanningError(Exception):
    """The scenario's parts do not fit together; ``path`` is the field to change."""

    path: FieldPath
    message: str


@dataclass(frozen=True)
class _Profile:
    """A value over time as the plan has it, and its largest value."""

    plan: dict[str, Any]
    highest: int


@dataclass(frozen=True)
class _Traffic:
    """What the queue limit of a direction is measured against."""

    bdp_bytes: Fraction
    rate_bps: int
    ip_packet_bytes: int
    link_packet_bytes: int


def resolve(scenario: Scenario) -> dict[str, Any]:
    """Return the plan of a scenario, which the simulator has accepted.

    Raises:
        PlanningError: the parts do not fit together, or the simulator has a bound on one of them.
    """
    stop_ns = parse_duration(scenario.duration)
    flows = _flows(scenario, stop_ns)
    plan = {
        "format_version": PLAN_FORMAT_VERSION,
        "stop_ns": stop_ns,
        "sample_interval_ns": _sample_interval(scenario, stop_ns, len(flows)),
        "packet_events": scenario.packet_events,
        "link": _link(scenario.link, _largest_packets(flows)),
        "flows": flows,
    }
    try:
        _core.validate(json.dumps(plan))
    except _core.PlanError as error:
        raise _in_scenario(str(error), scenario) from None
    return plan


def _sample_interval(scenario: Scenario, stop_ns: int, flows: int) -> int | None:
    if scenario.sample_interval is None:
        return None
    interval_ns = parse_duration(scenario.sample_interval)
    rows = (stop_ns // interval_ns + 1) * (flows + len(_DIRECTIONS))
    if rows > _MOST_SAMPLE_ROWS:
        raise PlanningError(
            ("sample_interval",),
            f'read "{scenario.sample_interval}"; over {scenario.duration} and {flows} flows that '
            f"is {rows} rows of samples; at most {_MOST_SAMPLE_ROWS} are allowed",
        )
    return interval_ns


# --- link ---------------------------------------------------------------------------------------


def _link(link: Link, largest_packets: dict[DirectionName, int]) -> dict[str, Any]:
    written: dict[DirectionName, Direction] = {"forward": link.forward, "return": link.return_}
    base = _preset(link)
    complete = {name: written[name].over(base[name]) for name in _DIRECTIONS}
    rates = {name: _rate(complete[name], ("link", name)) for name in _DIRECTIONS}
    delays = {name: _delay(complete[name], ("link", name)) for name in _DIRECTIONS}
    round_trip_ns = sum(delay.highest for delay in delays.values())
    resolved: dict[str, Any] = {}
    for name in _DIRECTIONS:
        rate = rates[name]
        framing_bytes = parse_size(complete[name].framing)
        traffic = _Traffic(
            bdp_bytes=Fraction(rate.highest * round_trip_ns, _BIT_NS_PER_BYTE_S),
            rate_bps=rate.highest,
            ip_packet_bytes=largest_packets[name],
            link_packet_bytes=largest_packets[name] + framing_bytes,
        )
        resolved[name] = {
            "rate_bps": rate.plan,
            "delay_ns": delays[name].plan,
            "framing_overhead_bytes": framing_bytes,
            "queue": _queue(complete[name].queue or Queue(), traffic, ("link", name, "queue")),
            "channel": _channel(complete[name].bit_error_rate),
        }
    return resolved


def _preset(link: Link) -> dict[DirectionName, Direction]:
    """Return what holds for the fields that the scenario leaves out."""
    if link.preset is None:
        return dict.fromkeys(_DIRECTIONS, DEFAULT_DIRECTION)
    preset = Link.model_validate(PRESETS[link.preset].link)
    return {
        "forward": preset.forward.over(DEFAULT_DIRECTION),
        "return": preset.return_.over(DEFAULT_DIRECTION),
    }


def _rate(direction: Direction, path: FieldPath) -> _Profile:
    if direction.rate is None:
        raise PlanningError(
            (*path, "rate"), 'missing; write one ("16 Mbit/s") or name a preset in link.preset'
        )
    if isinstance(direction.rate, str):
        rate_bps = parse_rate(direction.rate)
        return _Profile({"kind": "constant", "value": rate_bps}, rate_bps)
    profile = _steps(direction.rate, parse_rate)
    if profile.highest == 0:
        raise PlanningError((*path, "rate"), "is 0 bit/s in every step; nothing could be sent")
    return profile


def _delay(direction: Direction, path: FieldPath) -> _Profile:
    if direction.delay is None:
        raise PlanningError(
            (*path, "delay"), 'missing; write one ("275 ms") or name a preset in link.preset'
        )
    if isinstance(direction.delay, str):
        delay_ns = parse_duration(direction.delay)
        return _Profile({"kind": "constant", "value": delay_ns}, delay_ns)
    return _steps(direction.delay, parse_duration)


def _steps(
    steps: tuple[RateStep, ...] | tuple[DelayStep, ...], parse: Callable[[object], int]
) -> _Profile:
    resolved = [[parse_duration(step.at), parse(step.value)] for step in steps]
    return _Profile({"kind": "steps", "steps": resolved}, max(value for _, value in resolved))


def _queue(queue: Queue, traffic: _Traffic, path: FieldPath) -> dict[str, Any]:
    limit = parse_queue_limit(queue.limit)
    if limit.value is None:
        return {"discipline": queue.discipline, "limit": {"unit": limit.unit}}
    unit, value = limit.unit, limit.value
    read = f'read "{queue.limit}"'
    if unit == "bdp_millionths":
        unit, value = "bytes", floor(traffic.bdp_bytes * value / BDP_SCALE)
        read = f"{read} ({value} bytes here)"
    # The simulator's queue counts IP bytes; sending a packet takes the time of its framing too.
    sending_ns = ceil(Fraction(traffic.link_packet_bytes * _BIT_NS_PER_BYTE_S, traffic.rate_bps))
    smallest, packet = {
        "bytes": (traffic.ip_packet_bytes, f"{traffic.ip_packet_bytes} IP bytes"),
        "packets": (1, "1 packet"),
        "time_ns": (sending_ns, f"{format_duration(sending_ns)} to send"),
    }[unit]
    if value < smallest:
        raise PlanningError((*path, "limit"), f"{read}; smaller than one packet, {packet}")
    if value > LARGEST:
        raise PlanningError((*path, "limit"), f"{read}; beyond 64 bits")
    return {"discipline": queue.discipline, "limit": {"unit": unit, "value": value}}


def _channel(bit_error_rate: float | None) -> dict[str, Any]:
    if not bit_error_rate:
        return {"kind": "clear"}
    return {"kind": "bit_errors", "bit_error_rate": bit_error_rate}


# --- flows --------------------------------------------------------------------------------------


def _flows(scenario: Scenario, stop_ns: int) -> list[dict[str, Any]]:
    total = sum(flow.count for flow in scenario.traffic)
    if total > MOST_FLOWS:
        raise PlanningError(("traffic",), f"has {total} flows; at most {MOST_FLOWS} are allowed")
    flows: list[dict[str, Any]] = []
    unnamed: Counter[str] = Counter()
    for i, flow in enumerate(scenario.traffic):
        path: FieldPath = ("traffic", i)
        starts = _starts(flow, stop_ns, path)
        for k, start_ns in enumerate(starts):
            if flow.name is None:
                unnamed[flow.kind] += 1
                name = f"{flow.kind}-{unnamed[flow.kind]}"
            else:
                name = flow.name if flow.count == 1 else f"{flow.name}-{k + 1}"
            flows.append(
                {
                    "name": name,
                    "direction": flow.direction,
                    "start_ns": start_ns,
                    "workload": _workload(flow, stop_ns - start_ns, path),
                }
            )
    return flows


def _starts(flow: Bulk | ConstantRate, stop_ns: int, path: FieldPath) -> list[int]:
    start_ns = parse_duration(flow.start)
    spacing_ns = parse_duration(flow.start_spacing)
    if start_ns >= stop_ns:
        message = (
            f'read "{flow.start}"; must be before the end of the run, {format_duration(stop_ns)}'
        )
        raise PlanningError((*path, "start"), message)
    last_ns = start_ns + (flow.count - 1) * spacing_ns
    if last_ns >= stop_ns:
        raise PlanningError(
            (*path, "start_spacing"),
            f'read "{flow.start_spacing}"; the last of {flow.count} flows would start at '
            f"{format_duration(last_ns)}, after the end of the run, {format_duration(stop_ns)}",
        )
    return [start_ns + k * spacing_ns for k in range(flow.count)]


def _workload(flow: Bulk | ConstantRate, remaining_ns: int, path: FieldPath) -> dict[str, Any]:
    if flow.kind == "bulk":
        tcp = _tcp(flow, path)
        if flow.size is not None:
            amount = {"unit": "bytes", "value": parse_size(flow.size)}
        else:
            amount = {"unit": "duration_ns", "value": parse_duration(flow.duration)}
        return {"kind": "bulk", "amount": amount, "sender": tcp, "receiver": dict(tcp)}
    payload_bytes = parse_size(flow.payload)
    if payload_bytes > LARGEST_PAYLOAD:
        message = f'read "{flow.payload}"; must be at most {LARGEST_PAYLOAD} B (one UDP datagram)'
        raise PlanningError((*path, "payload"), message)
    duration_ns = remaining_ns if flow.duration is None else parse_duration(flow.duration)
    return {
        "kind": "constant_rate",
        "rate_bps": parse_rate(flow.rate),
        "payload_bytes": payload_bytes,
        "duration_ns": duration_ns,
    }


def _tcp(flow: Bulk, path: FieldPath) -> dict[str, Any]:
    profile = PROFILES[flow.profile]
    tcp = flow.tcp.over(profile)
    mss_bytes = parse_size(tcp.mss)
    if mss_bytes > LARGEST_MSS:
        message = f'read "{tcp.mss}"; must be at most {LARGEST_MSS} B (one IP packet)'
        raise PlanningError((*path, "tcp", "mss"), message)
    receive_bytes, initial_bytes = _receive_buffers(flow.tcp, tcp)
    return {
        "mss_bytes": mss_bytes,
        "initial_window_segments": tcp.initial_window,
        "congestion_control": tcp.congestion_control,
        "sack": tcp.sack,
        "timestamps": tcp.timestamps,
        "window_scaling": tcp.window_scaling,
        "send_buffer_bytes": parse_size(tcp.send_buffer),
        "receive_buffer_bytes": receive_bytes,
        "receive_buffer_initial_bytes": initial_bytes,
        "delayed_ack_segments": tcp.delayed_ack_segments,
        "delayed_ack_timeout_ns": parse_duration(tcp.delayed_ack_timeout),
        "quick_ack_segments": tcp.quick_ack_segments,
        "rto_initial_ns": parse_duration(tcp.rto_initial),
        "rto_min_ns": parse_duration(tcp.rto_min),
        "rto_min_bounds": tcp.rto_min_bounds,
        "rto_max_ns": parse_duration(tcp.rto_max),
        "clock_granularity_ns": parse_duration(tcp.clock_granularity),
        "slow_start_segments_per_ack": tcp.slow_start_segments_per_ack,
        "avoidance_counting": tcp.avoidance_counting,
        "limited_transmit": tcp.limited_transmit,
        "rack_tlp": tcp.rack_tlp,
        "prr": tcp.prr,
        "hystart": tcp.hystart,
    }


def _receive_buffers(written: Tcp, tcp: Tcp) -> tuple[int, int]:
    """Return the cap of the window and the window offered first, in bytes."""
    receive_bytes = parse_size(tcp.receive_buffer)
    if tcp.receive_buffer_initial is None:
        return receive_bytes, receive_bytes
    initial_bytes = parse_size(tcp.receive_buffer_initial)
    if written.receive_buffer_initial is None:
        # A cap that the scenario lowered holds for the profile's first window too.
        initial_bytes = min(initial_bytes, receive_bytes)
    return receive_bytes, initial_bytes


def _largest_packets(flows: list[dict[str, Any]]) -> dict[DirectionName, int]:
    """Return the largest IP packet that the flows put into each direction, in bytes."""
    largest: dict[DirectionName, int] = {"forward": 0, "return": 0}
    for flow in flows:
        there: DirectionName = flow["direction"]
        back: DirectionName = "return" if there == "forward" else "forward"
        workload = flow["workload"]
        if workload["kind"] == "bulk":
            data_bytes = workload["sender"]["mss_bytes"] + _TCP_IP_HEADER_BYTES
            largest[there] = max(largest[there], data_bytes)
            largest[back] = max(largest[back], _LARGEST_ACK_BYTES)
        else:
            data_bytes = workload["payload_bytes"] + _UDP_IP_HEADER_BYTES
            largest[there] = max(largest[there], data_bytes)
    return largest


# --- the simulator's own checks -----------------------------------------------------------------

# Plan fields whose name is more than the scenario's name and a unit.
_RENAMED: Final = {
    "stop_ns": "duration",
    "framing_overhead_bytes": "framing",
    "payload_bytes": "payload",
    "flows": "traffic",
}
_UNIT: Final = re.compile(r"_(ns|bps|bytes|segments)$")


def _in_scenario(refusal: str, scenario: Scenario) -> PlanningError:
    """Say what the simulator refuses about a plan in the words of the scenario."""
    field, found, reason = refusal.partition(": ")
    if not found or " " in field:
        return PlanningError((), f"the plan is refused: {refusal}")
    first, *rest = field.split(".")
    path: list[int | str] = [_RENAMED.get(first, _UNIT.sub("", first))]
    if first == "flows" and rest:
        entry = _entry_of_flow(int(rest.pop(0)), scenario)
        path.append(entry)
        rest = _flow_path(rest, scenario.traffic[entry])
    elif first == "link":
        path.append(rest.pop(0))
        rest = ["bit_error_rate"] if rest[0] == "channel" else rest
    path.extend(_scenario_name(part) for part in rest)
    return PlanningError(
        tuple(path), f"{_as_written(path, scenario)}{reason} ({field.split('.')[-1]})"
    )


def _entry_of_flow(flow: int, scenario: Scenario) -> int:
    """Return the entry of ``traffic`` that the plan's flow came from."""
    ends = accumulate(entry.count for entry in scenario.traffic)
    return next(i for i, end in enumerate(ends) if flow < end)


def _flow_path(rest: list[str], flow: Bulk | ConstantRate) -> list[str]:
    if rest[:2] == ["workload", "amount"]:
        return ["size" if flow.kind == "bulk" and flow.size else "duration"]
    if rest[0] == "workload" and rest[1] in ("sender", "receiver"):
        return ["tcp", *rest[2:]]
    return [part for part in rest if part != "workload"]


def _scenario_name(part: str) -> str:
    if part in Tcp.model_fields:
        return part
    return _RENAMED.get(part, _UNIT.sub("", part))


def _as_written(path: list[int | str], scenario: Scenario) -> str:
    value: Any = scenario.to_dict()
    for part in path:
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            return ""
    return f"read {shown(value)}; " if isinstance(value, str | int | float) else ""
