"""The link resolved into the directions of the plan."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor
from typing import Final, TypedDict

from bentpipe.plan.errors import PlanningError, PlanningErrors
from bentpipe.plan.gateways import largest_packet_bytes
from bentpipe.plan.paths import branch, branches
from bentpipe.plan.queue_types import LimitPlan, QueuePlan, RedPlan
from bentpipe.plan.series import (
    Profile,
    channel_plan,
    delay_plan,
    rate_plan,
    refuse_many_steps,
)
from bentpipe.plan.traffic import largest_flow_packet_bytes
from bentpipe.plan.types import ChannelPlan, DirectionPlan, FlowPlan, WirePlan
from bentpipe.scenario.document import FieldPath
from bentpipe.scenario.framing import Framing, FramingOptions
from bentpipe.scenario.framings import FRAMINGS, FramingPlan, frame_bits, plan_framing
from bentpipe.scenario.gateways import BRIDGED_HEADER_BYTES, Gateway
from bentpipe.scenario.link import DEFAULT_DIRECTION, Direction, DirectionName, Link
from bentpipe.scenario.presets import PRESETS
from bentpipe.scenario.queues import (
    QUEUES,
    CoDel,
    DropTail,
    EarlyPacketDiscard,
    FqCoDel,
    PerFlowDropTail,
    Queue,
    Red,
    SelectiveDrop,
    StrictPriority,
)
from bentpipe.scenario.schema import Scenario
from bentpipe.units import (
    BDP_SCALE,
    LARGEST,
    NS_PER_S,
    LimitUnit,
    duration,
    format_duration,
    limit_of,
    value_of,
)

_NO_JITTER: Final = duration("0 s")
_BIT_NS_PER_BYTE_S: Final = 8 * 10**9
_LARGEST_IP_PACKET: Final = 65_535

_DIRECTIONS: Final[tuple[DirectionName, ...]] = ("forward", "return")
_LIMIT_NAMES: Final = {
    "bytes": "a size",
    "link_bytes": "cells, a share of the bdp",
    "packets": "packets",
    "time_ns": "a time",
    "unlimited": "unlimited",
}


@dataclass(frozen=True)
class _Reference:
    """The sizes and rates that the queue limit of a direction depends on."""

    bdp_bytes: Fraction
    rate_bps: int
    ip_packet_bytes: int
    link_packet_bits: int


class _CoDelOptions(TypedDict):
    target_ns: int
    interval_ns: int
    ecn: bool


@dataclass(frozen=True)
class _Allowed:
    """The units that a limit can have, and the name of what it limits."""

    what: str
    units: tuple[LimitUnit, ...]


def directions_plan(
    scenario: Scenario, flows: list[FlowPlan], errors: PlanningErrors
) -> list[DirectionPlan]:
    """Return the directions that carry these flows: forward, then each terminal's return.

    Errors are a missing rate or delay, or a queue that cannot hold a packet. With errors the list
    may be empty.
    """
    link = scenario.link
    stop_ns = value_of(scenario.duration)
    base, complete = _preset(link), complete_directions(link)
    written: dict[DirectionName, Direction] = {"forward": link.forward, "return": link.return_}
    bridged_bytes = errors.call(_bridged_header_bytes, scenario) or 0
    rates: dict[DirectionName, Profile] = {}
    delays: dict[DirectionName, Profile] = {}
    channels: dict[DirectionName, ChannelPlan] = {}
    for name in _DIRECTIONS:
        path = ("link", name)
        if (rate := errors.call(rate_plan, complete[name], path, stop_ns)) is not None:
            rates[name] = rate
        if (delay := errors.call(delay_plan, complete[name], path, stop_ns)) is not None:
            delays[name] = delay
        channel = errors.call(channel_plan, written[name], base[name], path, stop_ns)
        if channel is not None:
            channels[name] = channel
    if min(len(rates), len(delays), len(channels)) < len(_DIRECTIONS):
        return []
    largest = _with_functions(largest_flow_packet_bytes(flows), scenario)
    round_trip_ns = sum(delay.highest for delay in delays.values())
    resolved: dict[DirectionName, WirePlan] = {}
    for name in _DIRECTIONS:
        rate = rates[name]
        framing = _framing(complete[name].framing or "none")
        framing["header_bytes"] += bridged_bytes
        reference = _Reference(
            bdp_bytes=Fraction(rate.highest * round_trip_ns, _BIT_NS_PER_BYTE_S),
            rate_bps=rate.highest,
            ip_packet_bytes=largest[name],
            link_packet_bits=frame_bits(framing, largest[name]),
        )
        queue = complete[name].queue or DropTail()
        queue_plan = errors.call(_queue, queue, reference, ("link", name, "queue"))
        if queue_plan is None:
            continue
        resolved[name] = {
            "rate_bps": rate.plan,
            "delay_ns": delays[name].plan,
            "jitter_ns": value_of(complete[name].jitter or _NO_JITTER),
            "framing": framing,
            "queue": queue_plan,
            "channel": channels[name],
        }
        copies = link.terminals if name == "return" else 1
        errors.call(refuse_many_steps, resolved[name], copies, ("link", name))
    return _with_terminals(link, resolved, errors)


def _with_terminals(
    link: Link, resolved: dict[DirectionName, WirePlan], errors: PlanningErrors
) -> list[DirectionPlan]:
    """Return the directions with their ends, a return direction for each terminal."""
    if len(resolved) < len(_DIRECTIONS):
        return []
    forward, back = resolved["forward"], resolved["return"]
    reached = errors.call(branches, link, forward)
    if reached is None:
        return []
    alone = link.terminals == 1
    first: DirectionPlan = {"name": "forward", "from": 0, "to": reached, **forward}
    returns: list[DirectionPlan] = [
        {"name": "return" if alone else f"return-{n}", "from": n, "to": [branch(0)], **back}
        for n in range(1, 1 + link.terminals)
    ]
    return [first, *returns]


def bdp_bytes(scenario: Scenario) -> dict[DirectionName, Fraction]:
    """Return the bandwidth-delay product of each direction, in link bytes.

    It is the highest rate of the direction times the sum of the highest delays of both.

    Raises:
        PlanningError: a rate or a delay is missing or wrong.
    """
    stop_ns, directions = value_of(scenario.duration), complete_directions(scenario.link)
    round_trip_ns = sum(
        delay_plan(direction, ("link", name), stop_ns).highest
        for name, direction in directions.items()
    )
    return {
        name: Fraction(
            rate_plan(direction, ("link", name), stop_ns).highest * round_trip_ns,
            _BIT_NS_PER_BYTE_S,
        )
        for name, direction in directions.items()
    }


def complete_directions(link: Link) -> dict[DirectionName, Direction]:
    """Return the directions as written, with the preset's values and the defaults for the rest."""
    base = _preset(link)
    found: dict[DirectionName, Direction] = {
        "forward": link.forward.over(base["forward"]),
        "return": link.return_.over(base["return"]),
    }
    written: dict[DirectionName, Direction] = {"forward": link.forward, "return": link.return_}
    if link.outage is not None:
        for name, direction in found.items():
            if written[name].outage is None:
                found[name] = direction.model_copy(update={"outage": link.outage})
    return found


def _with_functions(
    largest: dict[DirectionName, int], scenario: Scenario
) -> dict[DirectionName, int]:
    """Return the largest packets, including those that gateways make."""
    ends: dict[DirectionName, Gateway] = {
        "forward": scenario.gateways.hub,
        "return": scenario.gateways.terminal,
    }
    return {name: max(largest[name], largest_packet_bytes(end)) for name, end in ends.items()}


def _preset(link: Link) -> dict[DirectionName, Direction]:
    """Return the values of the fields that the scenario leaves out."""
    if link.preset is None:
        return dict.fromkeys(_DIRECTIONS, DEFAULT_DIRECTION)
    preset = Link.model_validate(PRESETS[link.preset].link)
    return {
        "forward": preset.forward.over(DEFAULT_DIRECTION),
        "return": preset.return_.over(DEFAULT_DIRECTION),
    }


def _framing(framing: Framing) -> FramingPlan:
    """Return the plan of a framing."""
    if isinstance(framing, FramingOptions):
        return plan_framing(framing.kind, framing.options)
    if framing in FRAMINGS:
        return plan_framing(framing, {})
    return plan_framing("none", {}) | {"header_bytes": value_of(framing)}


# --- queues -------------------------------------------------------------------------------------


def _queue(  # noqa: PLR0911 - one return a discipline
    queue: Queue, reference: _Reference, path: FieldPath
) -> QueuePlan:
    discipline = queue.discipline or "drop_tail"
    written = QUEUES[discipline].default_limit if queue.limit is None else queue.limit
    units = QUEUES[discipline].limit_units
    limit = _limit(written, _Allowed(discipline, units), reference, (*path, "limit"))
    match queue:
        case Red():
            return _red(queue, limit, path)
        case CoDel():
            return {"discipline": "codel", "limit": limit, **_codel(queue)}
        case FqCoDel():
            return {
                "discipline": "fq_codel",
                "limit": limit,
                **_codel(queue),
                "quantum_bytes": value_of(queue.quantum),
                "queues": queue.queues,
            }
        case PerFlowDropTail():
            allowed = _Allowed("a flow's share", queue.share_units)
            share = _limit(queue.per_flow_limit, allowed, reference, (*path, "per_flow_limit"))
            return {"discipline": "per_flow_drop_tail", "limit": limit, "per_flow_limit": share}
        case EarlyPacketDiscard():
            threshold = queue.threshold
            return {"discipline": "early_packet_discard", "limit": limit, "threshold": threshold}
        case SelectiveDrop():
            return {
                "discipline": "selective_drop",
                "limit": limit,
                "threshold": queue.threshold,
                "load_ratio": queue.load_ratio,
            }
        case StrictPriority():
            return {"discipline": "strict_priority", "limit": limit, "classes": queue.classes}
        case DropTail():
            return {"discipline": "drop_tail", "limit": limit}


def _red(queue: Red, limit: LimitPlan, path: FieldPath) -> RedPlan:
    low = limit_of(queue.min_threshold)
    value = low.value or 0
    # Floyd, 1997: max_th at three times min_th.
    high = 3 * value
    if queue.max_threshold is not None:
        max_threshold = limit_of(queue.max_threshold)
        if max_threshold.unit != low.unit:
            raise PlanningError(
                (*path, "max_threshold"),
                f'read "{queue.max_threshold}"; must be in the unit of min_threshold, '
                f'"{queue.min_threshold}"',
            )
        high = max_threshold.value or 0
        if high <= value:
            raise PlanningError(
                (*path, "max_threshold"),
                f'read "{queue.max_threshold}"; must be above min_threshold, '
                f'"{queue.min_threshold}"',
            )
    mean_packet_bytes = value_of(queue.mean_packet_size)
    if mean_packet_bytes > _LARGEST_IP_PACKET:
        raise PlanningError(
            (*path, "mean_packet_size"),
            f'read "{queue.mean_packet_size}"; must be at most {_LARGEST_IP_PACKET} B, the largest '
            "IP packet",
        )
    return {
        "discipline": "red",
        "limit": limit,
        "unit": "packets" if low.unit == "packets" else "bytes",
        "min_threshold": value,
        "max_threshold": high,
        "max_probability": queue.max_probability,
        "weight": queue.weight,
        "gentle": queue.gentle,
        "mean_packet_bytes": mean_packet_bytes,
        "ecn": queue.ecn,
    }


def _codel(queue: CoDel | FqCoDel) -> _CoDelOptions:
    return {
        "target_ns": value_of(queue.target),
        "interval_ns": value_of(queue.interval),
        "ecn": queue.ecn,
    }


def _limit(written: str, allowed: _Allowed, reference: _Reference, path: FieldPath) -> LimitPlan:
    limit = limit_of(written)
    unit, value = limit.unit, limit.value
    read = f'read "{written}"'
    if unit == "bdp_millionths":
        unit, value = "link_bytes", floor(reference.bdp_bytes * (value or 0) / BDP_SCALE)
        read = f"{read} ({value} link bytes here)"
    if unit not in allowed.units:
        names = ", ".join(_LIMIT_NAMES[each] for each in allowed.units)
        raise PlanningError(path, f"{read}; a limit of {allowed.what} is one of: {names}")
    if value is None:
        return {"unit": unit}
    # The transmission time of a packet includes its framing.
    sending_ns = ceil(Fraction(reference.link_packet_bits * NS_PER_S, reference.rate_bps))
    link_bytes = ceil(Fraction(reference.link_packet_bits, 8))
    smallest, packet = {
        "bytes": (reference.ip_packet_bytes, f"{reference.ip_packet_bytes} IP bytes"),
        "link_bytes": (link_bytes, f"{link_bytes} link bytes"),
        "packets": (1, "1 packet"),
        "time_ns": (sending_ns, f"{format_duration(sending_ns)} to send"),
    }[unit]
    if value < smallest:
        raise PlanningError(path, f"{read}; smaller than one packet, {packet}")
    if value > LARGEST:
        raise PlanningError(path, f"{read}; beyond 64 bits")
    return {"unit": unit, "value": value}


def _bridged_header_bytes(scenario: Scenario) -> int:
    """Return the bytes that bridged frames add to each packet on the link.

    Raises:
        PlanningError: one end bridges and the other does not.
    """
    ends = (scenario.gateways.hub, scenario.gateways.terminal)
    modes = {mode for end in ends if (mode := end.mode()) is not None}
    if "bridge" not in modes:
        return 0
    if len(modes) > 1:
        (other,) = modes - {"bridge"}
        path = ("gateways", "terminal", "processor", "mode")
        raise PlanningError(
            path, f'one end has the mode "bridge" and the other "{other}"; both ends need "bridge"'
        )
    return BRIDGED_HEADER_BYTES
