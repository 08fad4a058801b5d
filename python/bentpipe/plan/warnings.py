"""Warnings about scenarios that are valid, but may not mean what was intended.

They are about flows that cannot end, rates that the link cannot carry, starts, priorities and
settings of tunnels without effect, the returns of several terminals, CoDel queues that drop too
early, queues of two packets, queue limits that a setting changed, gaps in recordings, and round
trips as delays.
Every bound is on the safe side: a flow without a warning may still not end.
"""

from __future__ import annotations

import re
import sys
from bisect import bisect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any, Final

from bentpipe.errors import ScenarioError, ScenarioWarning
from bentpipe.metrics import UDP
from bentpipe.plan.csv_file import DURATION, SourceFile, Table
from bentpipe.plan.gateways import largest_coded_packet_bytes
from bentpipe.plan.link import codel_fields, complete_directions, directions_plan
from bentpipe.plan.lower import Part, PlanningError, PlanningErrors
from bentpipe.plan.presets import direction_number, queues_of, series_values
from bentpipe.plan.traffic import datagram_interval_ns, largest_flow_packet_bytes
from bentpipe.scenario.document import FieldPath, dotted
from bentpipe.scenario.framings import frame_bits
from bentpipe.scenario.gateways import Titration, Tunnel
from bentpipe.scenario.link import DirectionName, ScaledSeries, TimeSeries
from bentpipe.scenario.record import Record
from bentpipe.scenario.schema import Scenario
from bentpipe.scenario.traffic import Conference, ConstantRate, Flow, Voice, WebPage
from bentpipe.text import counted, shown
from bentpipe.units import (
    BITS_PER_BYTE,
    NS_PER_S,
    UDP_IP_BYTES,
    checked,
    format_duration,
    format_rate,
    value_of,
)

if TYPE_CHECKING:
    from bentpipe.plan.plan import Plan

# Fields of a record with what may be wrong about them.
Warnings = Iterator[tuple[str, str]]

# The fields of a direction that may be series, and of its plan.
_SERIES: Final = {"rate": "rate_bps", "delay": "delay_ns", "errors": "channel"}
# Rows of a recording are equally far apart: all but a tenth, to a tenth. A gap is as long as three.
_MIN_ROWS: Final = 10
_REGULAR: Final = 0.1
_GAP: Final = 3
# In the names of columns.
_ROUND_TRIP: Final = re.compile(r"(?<![a-z])(ping|rtt|round.?trip)", re.IGNORECASE)
_TLS_ROUND_TRIPS: Final = {None: 0, "1.3": 1, "1.2": 2}


def warnings_of(plan: Plan) -> list[ScenarioWarning]:
    """Return the warnings about traffic in order, tunnels, terminals and queues."""
    messages = [
        ((*path, field), f"read {shown(getattr(record, field))}; {message}")
        for path, record, warnings in (*_of_entries(plan), *_of_tunnels(plan))
        for field, message in warnings
    ]
    messages += [*_about_terminals(plan), *_about_codel(plan), *_about_two_packets(plan)]
    messages += [*_about_changed_queues(plan), *_about_gaps(plan), *_about_round_trips(plan)]
    return [ScenarioWarning(field=dotted(path), message=message) for path, message in messages]


# --- entries of traffic -------------------------------------------------------------------------


def _of_entries(plan: Plan) -> Iterator[tuple[FieldPath, Record, Warnings]]:
    for number, written in enumerate(plan.scenario.traffic):
        flows = [plan.data["flows"][flow] for flow in plan.entry_flows[number]]
        for check in (_about_end, _about_rate, _about_settings):
            yield ("traffic", number), written, check(written, flows, plan.data)


def _about_end(written: Flow, flows: Sequence[Part], plan: Mapping[str, Any]) -> Warnings:
    """Yield the amount of flows that cannot end before the run does."""
    fields = ["duration", "exchanges", "files", "pages"]
    fields += [] if written.kind == "fetch" else ["size"]
    # Only of channels is it an amount: web pages have so many connections at the same time.
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
        ends = f"the run ends {format_duration(left_ns)} after {which}"
        yield bounds[0], f"{needs} {format_duration(needs_ns)}, but {ends}"
        return


def _needed_ns(flows: Sequence[Part], plan: Mapping[str, Any]) -> int:
    """Return the shortest time from the first start to the end of flows that share a direction."""
    workload = flows[0]["workload"]
    rate_bps = max(series_values(plan["directions"][direction_number(flows[0])]["rate_bps"]))
    delays_ns = [min(series_values(direction["delay_ns"])) for direction in plan["directions"][:2]]
    rtt_ns = sum(delays_ns)
    # What follows a handshake and takes round trips: a number of exchanges, pages or connections.
    first_ns, size_bytes, think = 0, 0, 0
    match workload["kind"]:
        case "bulk":
            amount = workload["amount"]
            if amount["unit"] == "duration_ns":
                # The only way to write "to the end of the run" is its duration.
                is_whole = amount["value"] == plan["stop_ns"]
                return 0 if is_whole or len(flows) > 1 else int(amount["value"])
            # A handshake, and the way of the last segment.
            first_ns = delays_ns[min(1, direction_number(flows[0]))]
            count, round_trips, size_bytes = 1, 1, amount["value"] * len(flows)
        case "request_response":
            # Each exchange takes a round trip, and a connection another one before its first.
            count, kept = workload["exchanges"] or 0, workload["keep_connection"]
            first_ns = rtt_ns if kept and count else 0
            round_trips, size_bytes = 2 - kept, _smallest(workload["response_bytes"])
            think = _smallest(workload["think_ns"])
        case "video":
            # A handshake and a request, and then the media.
            count, round_trips, first_ns = 1, 2, workload["media"]["duration_ns"]
        case "web_page":
            # TCP, the document and its objects; TLS (RFC 5246 and RFC 8446).
            count, objects = workload["pages"] or 0, _smallest(workload["objects"])
            round_trips = 2 + (objects > 0) + bool(workload["dns"])
            round_trips += _TLS_ROUND_TRIPS[workload["tls"]]
            size_bytes = _smallest(workload["document_bytes"])
            size_bytes += objects * _smallest(workload["object_bytes"])
            think = _smallest(workload["think_ns"])
        case "channel":
            # Each connection takes a round trip for the handshake, and another one for the data.
            count, round_trips = workload["connections"] or 0, 2
            size_bytes = min(size_bytes for size_bytes, _ in workload["sizes"])
        case _:
            return int(workload["duration_ns"])
    sending_ns = size_bytes * BITS_PER_BYTE * NS_PER_S // rate_bps
    return int(first_ns + count * (round_trips * rtt_ns + sending_ns) + max(0, count - 1) * think)


def _smallest(draw: Part) -> int:
    return int(draw.get("value", draw.get("min", 0)))


def _about_rate(written: Flow, flows: Sequence[Part], plan: Mapping[str, Any]) -> Warnings:
    """Yield the rate of datagrams that a direction cannot carry."""
    if not isinstance(written, ConstantRate | Voice | Conference):
        return
    workload = flows[0]["workload"]
    mean_bps: float = workload["rate_bps"]
    if (spurts := workload.get("talk_spurts")) is not None:
        mean_bps *= spurts["talk_ns"] / (spurts["talk_ns"] + spurts["pause_ns"])
    counts = {number: _concurrent(group) for number, group in _by_direction(flows).items()}
    if isinstance(written, Conference):
        # The reflector sends a copy of each datagram to every other participant.
        counts[0] = written.participants * (written.participants - 1)
    for number, count in counts.items():
        direction = plan["directions"][number]
        needs_bps = count * mean_bps * _expansion(workload["payload_bytes"], direction, plan)
        carries_bps = max(series_values(direction["rate_bps"]))
        if needs_bps > carries_bps:
            which = "it needs" if count == 1 else f"{count} of them need"
            has = f"{direction['name']} has {format_rate(carries_bps)}"
            lost = f"{1 - carries_bps / needs_bps:.1%} is lost once the queue is full"
            if direction["queue"]["limit"]["unit"] == "unlimited":
                lost = "the queue grows without a limit"
            message = f"{which} {format_rate(needs_bps)} with headers, and {has}: {lost}"
            yield "codec" if isinstance(written, Voice) else "rate", message


def _concurrent(flows: Sequence[Part]) -> int:
    """Return the largest number of flows of one entry that send at the same time."""
    starts = sorted(flow["start_ns"] for flow in flows)
    duration_ns: int = flows[0]["workload"]["duration_ns"]
    ended_counts = (bisect(starts, start_ns - duration_ns) for start_ns in starts)
    return max(started - ended for started, ended in enumerate(ended_counts, start=1))


def _expansion(payload_bytes: int, direction: Part, plan: Mapping[str, Any]) -> float:
    """Return the bits on the link for each bit of payload."""
    packet_bytes = payload_bytes + UDP_IP_BYTES
    functions = plan["gateways"][direction["from"]]["functions"]
    # A frame of an aggregator has one framing for many packets.
    packed = any(function["kind"] == "aggregator" for function in functions)
    bits = packet_bytes * BITS_PER_BYTE
    if not packed:
        bits = frame_bits(direction["framing"], packet_bytes)
    return bits / (payload_bytes * BITS_PER_BYTE)


def _about_settings(written: Flow, flows: Sequence[Part], plan: Mapping[str, Any]) -> Warnings:
    """Yield starts that may be wrong, and settings without effect."""
    jitter_ns, stop_ns = flows[0]["start_jitter_ns"], plan["stop_ns"]
    last_ns = max(flow["start_ns"] for flow in flows) + jitter_ns
    if written.start_jitter is not None and last_ns > stop_ns:
        end = f"the end of the run, {format_duration(stop_ns)}"
        yield "start_jitter", f"a flow may start after {end}"
    if isinstance(written, ConstantRate | Voice) and written.count > 1 and not jitter_ns:
        spacing_ns, workload = value_of(written.start_spacing), flows[0]["workload"]
        interval_ns = datagram_interval_ns(workload)
        if spacing_ns and interval_ns and spacing_ns % interval_ns == 0:
            interval = format_duration(interval_ns)
            message = f"a multiple of the interval between datagrams, {interval}: the flows are in"
            advice = f"phase; start_jitter: {interval} gives them random phases"
            yield "start_spacing", f"{message} {advice}"
    fields = written.model_fields_set
    if "priority" in fields and written.priority and not _uses_classes(plan):
        yield "priority", "no effect, since no queue of the link has classes"
    if isinstance(written, WebPage) and written.http == "2" and "connections" in fields:
        yield "connections", 'HTTP/2 uses one connection: set http: "1.1", or leave it out'


def _uses_classes(plan: Mapping[str, Any]) -> bool:
    """Return whether a queue or a function of a gateway looks at the class of packets."""
    functions = [function for gateway in plan["gateways"] for function in gateway["functions"]]
    classes = (function.get("classifier", function).get("classes") for function in functions)
    queues = ("classes" in direction["queue"] for direction in plan["directions"])
    return any(queues) or any(of_function is not None for of_function in classes)


# --- tunnels --------------------------------------------------------------------------------------


# The fields that do not matter, by the kind of titration.
_UNUSED: Final[Mapping[Titration, tuple[str, ...]]] = {
    "titrated": (),
    "delayed": ("threshold", "hold_time", "queue"),
    "immediate": ("threshold", "hold_time", "queue", "rate", "hold_buffer"),
    "none": ("threshold", "hold_time", "queue", "rate", "hold_buffer"),
}


def _of_tunnels(plan: Plan) -> Iterator[tuple[FieldPath, Record, Warnings]]:
    gateways = plan.scenario.gateways
    ends: dict[str, DirectionName] = {"hub": "forward", "terminal": "return"}
    for end, direction in ends.items():
        for name, tunnel in getattr(gateways, end).in_order():
            if isinstance(tunnel, Tunnel):
                yield ("gateways", end, name), tunnel, _about_tunnel(tunnel, plan.data, direction)


def _unused_in(tunnel: Tunnel) -> Warnings:
    """Yield the fields that change nothing if they are written, and why."""
    kind = tunnel.titration
    if not tunnel.is_adaptive:
        for field in ("redundancy_max", "window_max"):
            yield field, "redundancy is not adaptive"
    unused = set(_UNUSED[kind])
    if tunnel.overflow_repairs is None:
        yield "overflow_window", "overflow_repairs is not set"
        if kind == "delayed" and tunnel.hold_buffer is not None:
            unused.add("rate")
    elif kind == "none":
        unused |= {"overflow_repairs", "overflow_window"}
    else:
        unused -= {"queue", "rate"}
    for field in sorted(unused):
        yield field, f"titration is {kind}"


def _about_overflow(tunnel: Tunnel) -> Warnings:
    """Yield settings with which repair on overflow is dropped as well, or made twice."""
    if tunnel.titration == "immediate":
        yield "overflow_repairs", "titration is immediate: the full queue drops that repair, too"
    if tunnel.is_adaptive and tunnel.titration != "none":
        message = "redundancy is adaptive, and makes repair for the same losses again"
        yield "overflow_repairs", f"{message}: set a small one, such as 2 %"


def _about_tunnel(tunnel: Tunnel, plan: Mapping[str, Any], direction: DirectionName) -> Warnings:
    """Yield the fields that change nothing, and symbols that are too small for datagrams."""
    for field, reason in _unused_in(tunnel):
        if field in tunnel.model_fields_set:
            yield field, f"no effect, since {reason}"
    if tunnel.overflow_repairs is not None:
        yield from _about_overflow(tunnel)
    if tunnel.congestion_signal == "ecn" and not _any_ecn([plan["flows"], plan["gateways"]]):
        yield "congestion_signal", "no effect, since no flow is ECN-capable"
    # The segments of TCP are made to fit.
    datagrams = [flow for flow in plan["flows"] if flow["workload"]["kind"] in UDP]
    largest = largest_flow_packet_bytes(datagrams)[direction]
    if largest > (holds := largest_coded_packet_bytes(tunnel)):
        message = f"it holds a packet of {holds} bytes, so datagrams of {largest} bytes are not"
        yield "symbol_size", f"{message} coded"


def _any_ecn(part: Any) -> bool:
    if isinstance(part, dict):
        return part.get("ecn") is True or any(map(_any_ecn, part.values()))
    return isinstance(part, list) and any(map(_any_ecn, part))


# --- terminals ----------------------------------------------------------------------------------


def _about_terminals(plan: Plan) -> Iterator[tuple[FieldPath, str]]:
    """Return a warning if flows use several returns, which have their rate each."""
    flows, directions = plan.data["flows"], plan.data["directions"]
    if len({flow["terminal"] for flow in flows}) > 1:
        terminals, rate_bps = len(directions) - 1, max(series_values(directions[1]["rate_bps"]))
        message = (
            f"read {terminals}; each terminal has its own return of {format_rate(rate_bps)}, so "
            f"together they have {format_rate(terminals * rate_bps)}"
        )
        yield ("link", "terminals"), message


# --- queues -------------------------------------------------------------------------------------

# With an interval of 100 ms CoDel is excellent from 10 to 300 ms of round trip (Nichols and
# Jacobson, Controlling Queue Delay, ACM Queue 10(5), 2012).
_CODEL_MAX_ROUND_TRIPS: Final = 3


def _about_codel(plan: Plan) -> Iterator[tuple[FieldPath, str]]:
    """Yield a warning about each CoDel queue whose interval is too short for the link."""
    directions = plan.data["directions"][:2]
    rtt_ns = sum(max(series_values(direction["delay_ns"])) for direction in directions)
    for name, direction in zip(("forward", "return"), directions, strict=True):
        queues = queues_of(direction["queue"])
        interval_ns = min(queue.get("interval_ns", rtt_ns) for queue in queues)
        if rtt_ns > _CODEL_MAX_ROUND_TRIPS * interval_ns:
            interval, rtt = format_duration(interval_ns), format_duration(rtt_ns)
            message = f"an interval of {interval} is too short for round trips of {rtt}: CoDel"
            advice = f"drops before senders can react; set {codel_fields(rtt_ns, direction)}"
            yield ("link", name, "queue"), f"{message} {advice}"


# Delayed ACKs let a sender send two or three packets at once. With less room, whether the last one
# fits depends on which of two equal times comes first (Floyd and Jacobson, On Traffic Phase Effects
# in Packet-Switched Gateways, 1992); measured: docs/model/validation.md, "One transfer".
_MIN_ROOM_PACKETS: Final = 3
_PACED: Final = frozenset({"bbr"})


def _about_two_packets(plan: Plan) -> Iterator[tuple[FieldPath, str]]:
    """Yield a warning about each queue that is so short that microseconds decide what it drops."""
    directions = plan.data["directions"][:2]
    if any(direction["jitter_ns"] for direction in directions):
        return
    flows = _window_limited(plan)
    ends: tuple[DirectionName, DirectionName] = ("forward", "return")
    # Of several terminals all returns are alike.
    for name, back, direction in zip(ends, reversed(ends), directions, strict=True):
        data = [flow for flow in flows if flow["direction"] == name]
        packet_bytes = largest_flow_packet_bytes(data)[name]
        if data and (packets := _room_packets(direction, packet_bytes)) < _MIN_ROOM_PACKETS:
            message = (
                f"it has room for {counted(packets, 'packet')} of {packet_bytes:,} bytes, so "
                "microseconds decide which packets of TCP are dropped: simulated goodputs can be "
                f"several times too high; set link.{back}.jitter: 20 us, as real hosts have"
            )
            yield ("link", name, "queue"), message


def _window_limited(plan: Plan) -> list[Part]:
    """Return the flows whose ACKs let them send over the link: those of TCP without pacing."""
    functions = [function for gateway in plan.data["gateways"] for function in gateway["functions"]]
    legs = [function["link_tcp"] for function in functions if function["kind"] == "pep"]

    def is_paced(tcp: Part) -> bool:
        return all(each["congestion_control"] in _PACED for each in legs or [tcp])

    senders = ((flow, flow["workload"].get("sender")) for flow in plan.data["flows"])
    return [flow for flow, tcp in senders if tcp is not None and not is_paced(tcp)]


def _room_packets(direction: Part, packet_bytes: int) -> int:
    """Return how many packets fit into a queue; `sys.maxsize` without a limit."""
    limit, packet_bits = direction["queue"]["limit"], frame_bits(direction["framing"], packet_bytes)
    value, rate_bps = limit.get("value", sys.maxsize), max(series_values(direction["rate_bps"]))
    packets: dict[str, int] = {
        "packets": value,
        "bytes": value // packet_bytes,
        "link_bytes": value * BITS_PER_BYTE // packet_bits,
        "time_ns": value * rate_bps // (packet_bits * NS_PER_S),
        "unlimited": value,
    }
    return packets[limit["unit"]]


# --- queues that settings change ----------------------------------------------------------------


def _about_changed_queues(plan: Plan) -> Iterator[tuple[FieldPath, str]]:
    """Return a warning about each queue limit in ``bdp`` that settings changed indirectly."""
    document, limits = plan.scenario.document.before, _bdp_limits(plan.scenario)
    if document is None or not limits:
        return
    try:
        before = Scenario.from_document(document)
    except ScenarioError:
        # A document can need its settings to be valid.
        return
    earlier = _bdp_limits(before)
    without = directions_plan(before, [], PlanningErrors())
    for (number, field), written in limits.items() if without else ():
        if earlier.get((number, field)) == written:
            plans = (without[number], plan.data["directions"][number])
            old, new = (direction["queue"][field]["value"] for direction in plans)
            if old != new:
                message = f'"{written}" is {new:,} B with these settings; without them, {old:,} B'
                yield ("link", ("forward", "return")[number], "queue", field), message


def _bdp_limits(scenario: Scenario) -> dict[tuple[int, str], str]:
    """Return the queue limits in ``bdp``, by the number of the direction and field."""
    return {
        (number, field): written
        for number, direction in enumerate(complete_directions(scenario.link).values())
        for field in ("limit", "per_flow_limit")
        if (written := getattr(direction.queue, field, None)) is not None
        and checked(written).unit == "bdp_millionths"
    }


# --- recordings ---------------------------------------------------------------------------------


def _about_gaps(plan: Plan) -> Iterator[tuple[FieldPath, str]]:
    """Yield the series of files whose rows are equally far apart, but for a gap.

    Files that have rows for changes only are left out: they have no gaps.
    """
    directions = plan.scenario.link.directions().items()
    for (name, written), data in zip(directions, plan.data["directions"], strict=False):
        for field, series in _SERIES.items():
            steps = data[series].get("steps", ())
            if not isinstance(getattr(written, field), TimeSeries) or len(steps) < _MIN_ROWS:
                continue
            times_ns = [step["at_ns"] if field == "errors" else step[0] for step in steps]
            gaps = [(end - start, start) for start, end in pairwise(times_ns)]
            usual_ns = sorted(gaps)[len(gaps) // 2][0]
            equal = sum(abs(gap_ns - usual_ns) <= _REGULAR * usual_ns for gap_ns, _ in gaps)
            gap_ns, start_ns = max(gaps)
            if equal >= (1 - _REGULAR) * len(gaps) and gap_ns > _GAP * usual_ns:
                message = (
                    f"has no value for {format_duration(gap_ns)} from "
                    f"{format_duration(start_ns)} on, where others are "
                    f"{format_duration(usual_ns)} apart; the value before the gap holds"
                )
                yield ("link", name, field, "csv"), message


def _about_round_trips(plan: Plan) -> Iterator[tuple[FieldPath, str]]:
    """Yield a warning if measured round trips are the delay of both directions, not divided."""
    delays = [direction.delay for direction in plan.scenario.link.directions().values()]
    series = [delay for delay in delays if isinstance(delay, ScaledSeries)]
    if len(series) < len(delays) or sum(delay.scale for delay in series) <= 1:
        return
    columns = list(map(_delay_column, series))
    if all(map(_ROUND_TRIP.search, columns)):
        message = (
            f'column "{columns[0]}" is a round trip by its name, and both directions have it: '
            "round trips are longer than it is; write scale: 0.5 in both"
        )
        yield ("link", "forward", "delay"), message


def _delay_column(series: ScaledSeries) -> str:
    """Return the name of a column; empty if its file has changed since the plan was made."""
    if series.column is None:
        with suppress(PlanningError):
            return Table(SourceFile(series.csv, ("link",))).column(DURATION, None)
    return series.column or ""


def _by_direction(flows: Sequence[Part]) -> dict[int, list[Part]]:
    """Return the flows by the number of the direction that carries their data."""
    ordered = sorted(flows, key=direction_number)
    return {number: list(group) for number, group in groupby(ordered, key=direction_number)}
