"""The link resolved into the directions of the plan, each with its queue."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor
from typing import Any, Final

from bentpipe.plan.gateways import largest_packet_bytes
from bentpipe.plan.lower import Part, PlanningError, PlanningErrors, lower, origins_of, wrong
from bentpipe.plan.presets import series_values
from bentpipe.plan.series import bit_errors, channel_plan, delay_plan, rate_plan, refuse_many_steps
from bentpipe.plan.traffic import largest_flow_packet_bytes
from bentpipe.scenario.document import FieldPath
from bentpipe.scenario.framings import frame_bits, framing_plan
from bentpipe.scenario.gateways import BRIDGED_HEADER_BYTES, Processor
from bentpipe.scenario.link import (
    DEFAULT_DIRECTION,
    QUEUES,
    Direction,
    DirectionName,
    DropTail,
    Link,
    PerFlowDropTail,
    Queue,
    Red,
    SharedRate,
    TerminalPath,
)
from bentpipe.scenario.schema import Scenario
from bentpipe.scenario.tables import PRESETS
from bentpipe.units import (
    BDP_SCALE,
    LARGEST,
    NS_PER_S,
    BaseUnit,
    checked,
    format_duration,
    format_rate,
    value_of,
)

_BIT_NS_PER_BYTE_S: Final = 8 * 10**9


def directions_plan(
    scenario: Scenario, flows: Sequence[Part], errors: PlanningErrors
) -> list[Part]:
    """Return the directions that carry these flows: forward, then each terminal's return.

    Errors are a missing rate or delay, or a queue that cannot hold a packet. With errors the list
    may be empty.
    """
    link = scenario.link
    stop_ns = value_of(scenario.duration)
    base, complete = _preset(link), complete_directions(link)
    bridged_bytes = errors.call(_bridged_header_bytes, scenario) or 0
    properties: dict[DirectionName, dict[str, Any]] = {}
    for name, written in link.directions().items():
        path = ("link", name)
        properties[name] = {
            "rate_bps": errors.call(rate_plan, complete[name], path, stop_ns),
            "delay_ns": errors.call(delay_plan, complete[name], path, stop_ns),
            "jitter_ns": value_of(complete[name].jitter),
            "channel": errors.call(channel_plan, written, base[name], path, stop_ns),
        }
    if any(value is None for values in properties.values() for value in values.values()):
        return []
    largest, ends = largest_flow_packet_bytes(flows), scenario.gateways
    round_trip_ns = sum(max(series_values(values["delay_ns"])) for values in properties.values())
    resolved: dict[DirectionName, Part] = {}
    for name, values in properties.items():
        path, rate_bps = ("link", name), max(series_values(values["rate_bps"]))
        gateway = ends.hub if name == "forward" else ends.terminal
        packet_bytes = max(largest[name], largest_packet_bytes(gateway))
        framing = framing_plan(complete[name].framing or "none")
        framing["header_bytes"] += bridged_bytes
        reference = Reference(
            bdp_bytes=Fraction(rate_bps * round_trip_ns, _BIT_NS_PER_BYTE_S),
            rate_bps=rate_bps,
            ip_packet_bytes=packet_bytes,
            link_packet_bits=frame_bits(framing, packet_bytes),
        )
        queue = complete[name].queue or DropTail()
        plan = errors.call(queue_plan, queue, reference, (*path, "queue"))
        if plan is not None:
            values |= {"framing": framing, "queue": plan}
            resolved[name] = Part(values, path, origins_of(complete[name], path))
            copies = link.terminals if name == "return" else 1
            errors.call(refuse_many_steps, resolved[name], copies, path)
    return _with_terminals(link, resolved, errors)


def _with_terminals(
    link: Link, resolved: dict[DirectionName, Part], errors: PlanningErrors
) -> list[Part]:
    """Return the directions with their ends, a return direction for each terminal."""
    if len(resolved) < len(link.directions()):
        return []
    forward, back = resolved["forward"], resolved["return"]
    reached = errors.call(branches, link, forward)
    if reached is None:
        return []
    numbers = range(1, 1 + link.terminals)
    names = ["return"] if len(numbers) == 1 else [f"return-{number}" for number in numbers]
    ends: list[tuple[Part, dict[str, Any]]] = [
        (forward, {"name": "forward", "from": 0, "to": reached}),
        *((back, {"name": name, "from": n, "to": [branch(0)]}) for n, name in enumerate(names, 1)),
    ]
    return [Part(end | wire, wire.path, wire.origins) for wire, end in ends]


def complete_directions(link: Link) -> dict[DirectionName, Direction]:
    """Return the directions as written, with the preset's values and the defaults for the rest."""
    base = _preset(link)
    directions: dict[DirectionName, Direction] = {}
    for name, written in link.directions().items():
        directions[name] = written.over(base[name])
        if written.outage is None and link.outage is not None:
            directions[name] = directions[name].model_copy(update={"outage": link.outage})
    return directions


def branch(gateway: int, delay_ns: int = 0, channel: Part | None = None) -> dict[str, Any]:
    """Return the path to a gateway; by default it adds neither delay nor errors."""
    return {"gateway": gateway, "delay_ns": delay_ns, "channel": channel or {"kind": "clear"}}


def branches(link: Link, forward: Part) -> list[dict[str, Any]]:
    """Return the path to each terminal; properties that differ move from the direction to them.

    Raises:
        PlanningError: a terminal is unknown or written twice, or the delay of the link varies.
    """
    terminals = range(1, 1 + link.terminals)
    special: dict[int, TerminalPath] = {}
    for i, path in enumerate(link.terminal_paths):
        where = ("link", "terminal_paths", i, "terminal")
        if path.terminal not in terminals:
            raise wrong(where, path.terminal, f"link.terminals is {link.terminals}")
        if path.terminal in special:
            raise PlanningError(where, f"read {path.terminal} twice")
        special[path.terminal] = path
    delays = _own_delays(link, forward, special)
    rates = {n: p.bit_error_rate for n, p in special.items() if p.bit_error_rate is not None}
    channels: dict[int, Part] = {}
    if rates:
        channels = dict.fromkeys(terminals, forward["channel"])
        channels |= {n: bit_errors(rate, ("link", "terminal_paths")) for n, rate in rates.items()}
        forward["channel"] = bit_errors(None, ())
    return [branch(n, delays.get(n, 0), channels.get(n)) for n in terminals]


def _own_delays(link: Link, forward: Part, special: dict[int, TerminalPath]) -> dict[int, int]:
    """Return the additional delay of each terminal over the smallest, which the direction gets."""
    written = {n: value_of(p.delay) for n, p in special.items() if p.delay is not None}
    if not written:
        return {}
    series = forward["delay_ns"]
    if series["kind"] != "constant":
        (first, *_) = (i for i, path in enumerate(link.terminal_paths) if path.delay is not None)
        message = "needs a link.forward.delay that does not vary"
        raise PlanningError(("link", "terminal_paths", first, "delay"), message)
    delays = {n: written.get(n, series["value"]) for n in range(1, 1 + link.terminals)}
    nearest_ns = min(delays.values())
    forward["delay_ns"] = {"kind": "constant", "value": nearest_ns}
    return {n: delay_ns - nearest_ns for n, delay_ns in delays.items()}


def _preset(link: Link) -> dict[DirectionName, Direction]:
    preset = Link.model_validate({} if link.preset is None else PRESETS[link.preset].link)
    return {name: written.over(DEFAULT_DIRECTION) for name, written in preset.directions().items()}


def _bridged_header_bytes(scenario: Scenario) -> int:
    ends = (scenario.gateways.hub, scenario.gateways.terminal)
    functions = [function for end in ends for _, function in end.in_order()]
    modes = {function.mode for function in functions if isinstance(function, Processor)}
    if "bridge" not in modes:
        return 0
    if len(modes) > 1:
        (other,) = modes - {"bridge"}
        path = ("gateways", "terminal", "processor", "mode")
        raise PlanningError(
            path, f'one end has the mode "bridge" and the other "{other}"; both ends need "bridge"'
        )
    return BRIDGED_HEADER_BYTES


_LARGEST_IP_PACKET: Final = 65_535
_LIMIT_NAMES: Final = {
    "bytes": "a size",
    "link_bytes": "cells, a share of the bdp",
    "packets": "packets",
    "time_ns": "a time",
    "unlimited": "unlimited",
}


@dataclass(frozen=True)
class Reference:
    """The sizes and rates that the queue limit of a direction depends on.

    ``bdp_bytes`` is the bandwidth-delay product in link bytes: the highest rate of the direction
    times the sum of the highest delays of both.
    """

    bdp_bytes: Fraction
    rate_bps: int
    ip_packet_bytes: int
    link_packet_bits: int


def queue_plan(queue: Queue, reference: Reference, path: FieldPath) -> Part:
    """Return the plan of a queue.

    Raises:
        PlanningError: a limit has a unit that the discipline does not support, or cannot hold a
            packet, or thresholds are wrong.
    """
    discipline = queue.named or "drop_tail"
    record = QUEUES[discipline]
    written = record.default_limit if queue.limit is None else queue.limit
    plan = lower(queue, path)
    plan["discipline"] = discipline
    plan["limit"] = _limit(written, discipline, record.limit_units, reference, (*path, "limit"))
    if isinstance(queue, PerFlowDropTail):
        field, units = (*path, "per_flow_limit"), queue.share_units
        share = _limit(queue.per_flow_limit, "a flow's share", units, reference, field)
        plan["per_flow_limit"] = share
    elif isinstance(queue, Red):
        _resolve_red(queue, plan, path)
    elif isinstance(queue, SharedRate):
        plan["classes"] = list(_sharing_classes(queue, reference, path))
    return plan


def _sharing_classes(queue: SharedRate, reference: Reference, path: FieldPath) -> Iterator[Part]:
    """Yield the plans of classes.

    Raises:
        PlanningError: their reserved rates add up to more than the link, or one is above the
            ceiling of its class.
    """
    reserved_bps = 0
    for number, written in enumerate(queue.classes):
        here = (*path, "classes", number)
        plan = lower(written, here)
        of_class, ceiling_bps = plan["reserved_bps"] or 0, plan["ceiling_bps"]
        reserved_bps += of_class
        if reserved_bps > reference.rate_bps:
            total, rate = format_rate(reserved_bps), format_rate(reference.rate_bps)
            message = f"the reserved rates add up to {total} so far, and the link has {rate}"
            raise wrong((*here, "reserved"), written.reserved, message)
        if ceiling_bps is not None and ceiling_bps < of_class:
            message = f"must not be below what is reserved, {written.reserved}"
            raise wrong((*here, "ceiling"), written.ceiling, message)
        if written.queue is not None:
            plan["queue"] = queue_plan(written.queue, reference, (*here, "queue"))
        yield plan


# CoDel's interval is about the longest round trip, so that flows have the time to react; its target
# is 5 % of that (RFC 8289, sections 4.3 and 4.4). The defaults are the minimum: paths go on behind
# the link. A packet that waits for another one is no standing queue, so a target is at least the
# time of a large packet.
_CODEL_INTERVAL_NS: Final = 100_000_000
_CODEL_TARGET: Final = 0.05
_LARGE_PACKET_BITS: Final = 12_000


def codel_fields(rtt_ns: int, direction: Mapping[str, Any]) -> str:
    """Return the fields of a CoDel queue for a round trip of ``rtt_ns`` of propagation, as YAML.

    ``direction`` is that of the plan; its lowest rate but 0 counts.
    """
    interval_ns = max(rtt_ns, _CODEL_INTERVAL_NS)
    rate_bps = min(filter(None, series_values(direction["rate_bps"])))
    packet_ns = _LARGE_PACKET_BITS * NS_PER_S / rate_bps
    times_ns = (max(_CODEL_TARGET * interval_ns, packet_ns), interval_ns)
    target, interval = (f"{time_ns / 1e6:g} ms" for time_ns in times_ns)
    return f"target: {target}, interval: {interval}"


def _resolve_red(queue: Red, plan: Part, path: FieldPath) -> None:
    low = checked(queue.min_threshold)
    # Floyd, 1997: max_th at three times min_th.
    high = 3 * low.value
    if queue.max_threshold is not None:
        max_threshold = checked(queue.max_threshold)
        field, least = (*path, "max_threshold"), f'min_threshold, "{queue.min_threshold}"'
        if max_threshold.unit != low.unit:
            raise wrong(field, max_threshold, f"must be in the unit of {least}")
        high = max_threshold.value
        if high <= low.value:
            raise wrong(field, max_threshold, f"must be above {least}")
    plan.rename("mean_packet_size_bytes", "mean_packet_bytes")
    if plan["mean_packet_bytes"] > _LARGEST_IP_PACKET:
        limit = f"must be at most {_LARGEST_IP_PACKET} B, the largest IP packet"
        raise wrong((*path, "mean_packet_size"), queue.mean_packet_size, limit)
    plan |= {"unit": low.unit, "min_threshold": low.value, "max_threshold": high}


def _limit(
    written: str,
    what: str,
    units: tuple[BaseUnit, ...],
    reference: Reference,
    path: FieldPath,
) -> dict[str, Any]:
    unit, value = checked(written).unit, value_of(written)
    read = f'read "{written}"'
    if unit == "bdp_millionths":
        unit, value = "link_bytes", floor(reference.bdp_bytes * value / BDP_SCALE)
        read = f"{read} ({value} link bytes here)"
    if unit not in units:
        names = ", ".join(_LIMIT_NAMES[allowed] for allowed in units)
        raise PlanningError(path, f"{read}; a limit of {what} is one of: {names}")
    if unit == "unlimited":
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
