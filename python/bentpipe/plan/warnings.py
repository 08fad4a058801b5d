"""Warnings about scenarios that are valid, but may not mean what was intended.

They are about flows that cannot end, rates that the link cannot carry, starts, priorities and
settings of tunnels without effect, and queue limits that a setting changed.
Every bound is on the safe side: a flow without a warning may still not end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import groupby
from math import floor
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from bentpipe.errors import ScenarioError, ScenarioWarning
from bentpipe.plan.gateways import largest_coded_packet_bytes
from bentpipe.plan.link import bdp_bytes, complete_directions
from bentpipe.plan.lower import Part, PlanningError
from bentpipe.plan.presets import direction_number, series_values
from bentpipe.scenario.document import FieldPath, dotted
from bentpipe.scenario.framings import frame_bits
from bentpipe.scenario.gateways import Tunnel
from bentpipe.scenario.link import DirectionName, Link
from bentpipe.scenario.schema import Scenario
from bentpipe.scenario.traffic import Conference, ConstantRate, Flow, Voice, WebPage
from bentpipe.text import shown
from bentpipe.units import (
    BDP_SCALE,
    NS_PER_S,
    checked,
    format_duration,
    format_rate,
    value_of,
)

if TYPE_CHECKING:
    from bentpipe.plan.plan import Plan

# Fields with what may be wrong about them.
Warnings = Iterator[tuple[FieldPath, str]]

_BITS_PER_BYTE: Final = 8
_DATAGRAMS: Final = {"constant_rate", "voice", "conference"}
_UDP_IP_HEADER_BYTES: Final = 28
_TLS_ROUND_TRIPS: Final = {None: 0, "1.3": 1, "1.2": 2}


class _Entry(NamedTuple):
    """An entry of ``traffic`` and its flows in the plan."""

    path: FieldPath
    written: Flow
    flows: list[Part]


def warnings_of(plan: Plan) -> list[ScenarioWarning]:
    """Return the warnings about a scenario: its traffic in order, its tunnels, changed queues."""
    data = plan.data
    found: list[tuple[FieldPath, str]] = []
    for number, written in enumerate(plan.scenario.traffic):
        flows = [data["flows"][flow] for flow in plan.entry_flows[number]]
        entry = _Entry(("traffic", number), written, flows)
        found += _about_end(entry, data)
        found += _about_rate(entry, data)
        found += _about_start(entry, data)
        found += _about_priority(entry, data)
        found += _about_connections(entry)
    found += _about_tunnels(plan)
    found += _about_changed_queues(plan.scenario)
    return [ScenarioWarning(field=dotted(path), message=message) for path, message in found]


# --- flows that cannot end ----------------------------------------------------------------------


def _about_end(entry: _Entry, plan: Mapping[str, Any]) -> Warnings:
    written, flows = entry.written, entry.flows
    fields = ["duration", "exchanges", "files", "pages"]
    fields += [] if written.kind == "fetch" else ["size"]
    # That of web pages is how many are parallel.
    fields += ["connections"] if written.kind == "channels" else []
    bounds = [field for field in fields if getattr(written, field, None) is not None]
    groups = [[max(flows, key=lambda flow: flow["start_ns"])]]
    if written.kind == "bulk":
        groups += _by_direction(flows).values()
    for group in groups if bounds else ():
        needs_ns = _needed_ns(group, plan)
        left_ns = plan["stop_ns"] - min(flow["start_ns"] for flow in group)
        if needs_ns <= left_ns:
            continue
        needs = "lasts" if bounds[0] == "duration" else "takes at least"
        if len(group) > 1:
            needs = f"{len(group)} flows together take at least"
        starts = {flow["start_ns"] for flow in flows}
        which = "the start of the last flow" if len(group) == 1 < len(starts) else "the start"
        read = f"read {shown(getattr(written, bounds[0]))}; {needs} {format_duration(needs_ns)}"
        message = f"{read}, but the run ends {format_duration(left_ns)} after {which}"
        yield (*entry.path, bounds[0]), message
        return


def _needed_ns(flows: Sequence[Part], plan: Mapping[str, Any]) -> int:
    """Return the shortest time from the first start to the end of flows that share a direction."""
    workload = flows[0]["workload"]
    rate_bps = max(series_values(plan["directions"][direction_number(flows[0])]["rate_bps"]))
    rtt_ns = sum(min(series_values(plan["directions"][number]["delay_ns"])) for number in (0, 1))
    match workload["kind"]:
        case "bulk":
            amount = workload["amount"]
            if amount["unit"] == "duration_ns":
                # The only way to write "to the end of the run" is its duration.
                is_whole = amount["value"] == plan["stop_ns"]
                return 0 if is_whole or len(flows) > 1 else int(amount["value"])
            # A handshake, and the way of the last segment.
            way = plan["directions"][min(1, direction_number(flows[0]))]["delay_ns"]
            sending_ns = _sending_ns(amount["value"] * len(flows), rate_bps)
            return rtt_ns + min(series_values(way)) + sending_ns
        case "request_response":
            # Each exchange takes a round trip, and a connection another one before its first.
            count, kept = int(workload["exchanges"] or 0), workload["keep_connection"]
            each_ns = (2 - kept) * rtt_ns
            each_ns += _sending_ns(_smallest(workload["response_bytes"]), rate_bps)
            first_ns = rtt_ns if kept and count else 0
            return first_ns + _repeated_ns(count, each_ns, workload["think_ns"])
        case "video":
            # A handshake and a request, and then the media.
            needed_ns = 2 * rtt_ns + int(workload["media"]["duration_ns"])
        case "web_page":
            # TCP, the document and its objects; TLS (RFC 5246 and RFC 8446).
            objects, round_trips = _smallest(workload["objects"]), _TLS_ROUND_TRIPS[workload["tls"]]
            round_trips += 2 + (objects > 0) + bool(workload["dns"])
            page_bytes = _smallest(workload["document_bytes"])
            page_bytes += objects * _smallest(workload["object_bytes"])
            each_ns = round_trips * rtt_ns + _sending_ns(page_bytes, rate_bps)
            needed_ns = _repeated_ns(int(workload["pages"] or 0), each_ns, workload["think_ns"])
        case "channel":
            # Each connection takes a round trip for the handshake, and another one for the data.
            smallest = min(size_bytes for size_bytes, _ in workload["sizes"])
            each_ns = 2 * rtt_ns + _sending_ns(smallest, rate_bps)
            needed_ns = int(workload["connections"] or 0) * each_ns
        case _:
            needed_ns = int(workload["duration_ns"])
    return needed_ns


def _repeated_ns(count: int, each_ns: int, think: Part) -> int:
    return count * each_ns + max(0, count - 1) * _smallest(think)


def _sending_ns(size_bytes: int, rate_bps: int) -> int:
    return size_bytes * _BITS_PER_BYTE * NS_PER_S // rate_bps


def _smallest(draw: Part) -> int:
    return int(draw.get("value", draw.get("min", 0)))


# --- settings without effect --------------------------------------------------------------------


def _about_connections(entry: _Entry) -> Warnings:
    page = entry.written
    if not isinstance(page, WebPage) or page.http != "2":
        return
    if "connections" in page.model_fields_set:
        read = f"read {page.connections}; HTTP/2 uses one connection"
        yield (*entry.path, "connections"), f'{read}: set http: "1.1", or leave it out'


# --- rates beyond that of the link --------------------------------------------------------------


def _about_rate(entry: _Entry, plan: Mapping[str, Any]) -> Warnings:
    written = entry.written
    if not isinstance(written, ConstantRate | Voice | Conference):
        return
    workload = entry.flows[0]["workload"]
    field, read = "rate", getattr(written, "rate", "")
    mean_bps: float = workload["rate_bps"]
    if workload["kind"] == "voice":
        field, read = "codec", workload["codec"]
        if (spurts := workload["talk_spurts"]) is not None:
            mean_bps *= spurts["talk_ns"] / (spurts["talk_ns"] + spurts["pause_ns"])
    counts = {number: _concurrent(flows) for number, flows in _by_direction(entry.flows).items()}
    if isinstance(written, Conference):
        # The reflector sends a copy of each datagram to every other participant.
        counts[0] = written.participants * (written.participants - 1)
    for number, count in counts.items():
        direction = plan["directions"][number]
        needs_bps = count * mean_bps * _expansion(workload["payload_bytes"], direction, plan)
        carries_bps = max(series_values(direction["rate_bps"]))
        if needs_bps <= carries_bps:
            continue
        which = "it needs" if count == 1 else f"{count} of them need"
        lost = 1 - carries_bps / needs_bps
        yield (
            (*entry.path, field),
            f'read "{read}"; {which} {format_rate(needs_bps)} with headers, and '
            f"{direction['name']} has {format_rate(carries_bps)}: at least {lost:.1%} is lost",
        )


def _concurrent(flows: Sequence[Part]) -> int:
    """Return the largest number of flows of one entry that send at the same time."""
    starts = sorted(flow["start_ns"] for flow in flows)
    duration_ns: int = flows[0]["workload"]["duration_ns"]
    first = most = 0
    for last, start_ns in enumerate(starts):
        while starts[first] + duration_ns <= start_ns:
            first += 1
        most = max(most, last - first + 1)
    return most


def _expansion(payload_bytes: int, direction: Part, plan: Mapping[str, Any]) -> float:
    """Return the bits on the link for each bit of payload."""
    packet_bytes = payload_bytes + _UDP_IP_HEADER_BYTES
    functions = plan["gateways"][direction["from"]]["functions"]
    # A frame of an aggregator has one framing for many packets.
    packed = any(function["kind"] == "aggregator" for function in functions)
    bits = packet_bytes * _BITS_PER_BYTE
    if not packed:
        bits = frame_bits(direction["framing"], packet_bytes)
    return bits / (payload_bytes * _BITS_PER_BYTE)


# --- starts and priorities ----------------------------------------------------------------------


def _about_start(entry: _Entry, plan: Mapping[str, Any]) -> Warnings:
    written = entry.written
    last_ns = max(flow["start_ns"] for flow in entry.flows)
    jitter_ns = entry.flows[0]["start_jitter_ns"]
    stop_ns = plan["stop_ns"]
    if written.start_jitter is not None and last_ns + jitter_ns > stop_ns:
        message = f"a flow may start after the end of the run, {format_duration(stop_ns)}"
        yield (*entry.path, "start_jitter"), f'read "{written.start_jitter}"; {message}'
    if isinstance(written, ConstantRate | Voice) and written.count > 1 and not jitter_ns:
        spacing_ns = value_of(written.start_spacing)
        workload = entry.flows[0]["workload"]
        interval_ns = workload["payload_bytes"] * _BITS_PER_BYTE * NS_PER_S // workload["rate_bps"]
        if spacing_ns and interval_ns and spacing_ns % interval_ns == 0:
            interval = format_duration(interval_ns)
            yield (
                (*entry.path, "start_spacing"),
                f'read "{written.start_spacing}"; a multiple of the interval between datagrams, '
                f"{interval}: the flows are in phase; start_jitter: {interval} gives them random "
                "phases",
            )


def _about_priority(entry: _Entry, plan: Mapping[str, Any]) -> Warnings:
    if "priority" not in entry.written.model_fields_set or not entry.written.priority:
        return
    queues: list[Part] = [direction["queue"] for direction in plan["directions"]]
    functions = [each for gateway in plan["gateways"] for each in gateway["functions"]]
    sorts = any(queue["discipline"] == "strict_priority" for queue in queues)
    classes = (each.get("classifier", each).get("classes") for each in functions)
    if not sorts and all(each is None for each in classes):
        message = "no effect, since no queue of the link is a strict_priority queue"
        yield (*entry.path, "priority"), f"read {entry.written.priority}; {message}"


# --- tunnels --------------------------------------------------------------------------------------


def _about_tunnels(plan: Plan) -> Warnings:
    gateways = plan.scenario.gateways
    for end, gateway in (("hub", gateways.hub), ("terminal", gateways.terminal)):
        for name, tunnel in gateway.in_order():
            if isinstance(tunnel, Tunnel):
                for field, reason in _without_effect(tunnel, plan):
                    read = f"read {shown(getattr(tunnel, field))}"
                    yield ("gateways", end, name, field), f"{read}; no effect, since {reason}"
                largest = _largest_datagram_bytes(plan, "forward" if end == "hub" else "return")
                if largest > (holds := largest_coded_packet_bytes(tunnel)):
                    read = f"read {shown(tunnel.symbol_size)}; it holds a packet of {holds} bytes"
                    text = f"{read}, so datagrams of {largest} bytes are not coded"
                    yield ("gateways", end, name, "symbol_size"), text


def _without_effect(tunnel: Tunnel, plan: Plan) -> Iterator[tuple[str, str]]:
    """Return the written fields that change nothing, and why."""
    kind = tunnel.titration
    # The fields that do not matter with some kinds of titration.
    unused = [] if kind == "titrated" else ["threshold", "hold_time", "queue"]
    if kind in {"none", "immediate"}:
        unused += ["rate", "hold_buffer"]
    elif kind == "delayed" and tunnel.hold_buffer is not None:
        unused += ["rate"]
    reasons = dict.fromkeys(unused, f"titration is {kind}")
    if not tunnel.is_adaptive:
        adaptive = ("redundancy_max", "window_max")
        reasons = dict.fromkeys(adaptive, "redundancy is not adaptive") | reasons
    for field, reason in reasons.items():
        if field in tunnel.model_fields_set:
            yield field, reason
    if tunnel.congestion_signal == "ecn" and not _any_ecn(
        [plan.data["flows"], plan.data["gateways"]]
    ):
        yield "congestion_signal", "no flow is ECN-capable"


def _largest_datagram_bytes(plan: Plan, direction: DirectionName) -> int:
    """Return the size of the largest datagram in a direction, with UDP and IP headers; 0 if none.

    The segments of TCP are made to fit.
    """
    sizes = (
        workload["payload_bytes"] + _UDP_IP_HEADER_BYTES
        for flow in plan.data["flows"]
        if (workload := flow["workload"])["kind"] in _DATAGRAMS
        and (flow["direction"] == direction or workload["kind"] == "conference")
    )
    return max(sizes, default=0)


def _any_ecn(part: Any) -> bool:
    if isinstance(part, dict):
        return part.get("ecn") is True or any(map(_any_ecn, part.values()))
    return isinstance(part, list) and any(map(_any_ecn, part))


# --- queues that settings change ----------------------------------------------------------------


def _about_changed_queues(scenario: Scenario) -> Warnings:
    """Return a warning about each queue limit in ``bdp`` that settings changed indirectly."""
    limits = dict(_bdp_limits(scenario.link))
    document = scenario.document.before
    if document is None or not limits:
        return
    try:
        before = Scenario.from_document(document)
        old, new = bdp_bytes(before), bdp_bytes(scenario)
    except (ScenarioError, PlanningError):
        # A document can need its settings to be valid.
        return
    earlier = dict(_bdp_limits(before.link))
    for (name, field), written in limits.items():
        share = Fraction(value_of(written), BDP_SCALE)
        old_bytes, new_bytes = floor(old[name] * share), floor(new[name] * share)
        if earlier.get((name, field)) == written and old_bytes != new_bytes:
            message = (
                f'"{written}" is {new_bytes:,} B with these settings; without them, {old_bytes:,} B'
            )
            yield ("link", name, "queue", field), message


def _bdp_limits(link: Link) -> Iterator[tuple[tuple[DirectionName, str], str]]:
    """Return the queue limits in ``bdp``, by direction and field."""
    for name, direction in complete_directions(link).items():
        for field in ("limit", "per_flow_limit"):
            written = getattr(direction.queue, field, None)
            if written is not None and checked(written).unit == "bdp_millionths":
                yield (name, field), written


def _by_direction(flows: Sequence[Part]) -> dict[int, list[Part]]:
    """Return the flows by the number of the direction that carries their data."""
    ordered = sorted(flows, key=direction_number)
    return {number: list(group) for number, group in groupby(ordered, key=direction_number)}
