"""Traffic resolved into the flows of the plan, and what they send."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from itertools import product
from typing import Any, Final, NamedTuple

from bentpipe.errors import ScenarioError
from bentpipe.plan.csv_file import NUMBER, SourceFile
from bentpipe.plan.hosts import HostPlans, host_plan
from bentpipe.plan.lower import Part, PlanningError, PlanningErrors, lower, origins_of, wrong
from bentpipe.scenario.document import FieldPath
from bentpipe.scenario.link import DirectionName
from bentpipe.scenario.schema import Scenario
from bentpipe.scenario.tables import CODECS
from bentpipe.scenario.traffic import (
    MAX_FLOWS,
    MAX_PAYLOAD_BYTES,
    MAX_SIZES,
    Bulk,
    Channels,
    Conference,
    ConstantRate,
    Fetch,
    Flow,
    RequestResponse,
    SharedFields,
    SizeFile,
    Sizes,
    SizeWeight,
    TcpEnds,
    Video,
    Voice,
    WebPage,
)
from bentpipe.units import (
    BITS_PER_BYTE,
    NS_PER_S,
    TCP_IP_BYTES,
    UDP_IP_BYTES,
    format_duration,
    value_of,
)

# IPv4 header and the largest TCP header: no acknowledgement is larger.
_LARGEST_ACK_BYTES: Final = 80
# ITU-T P.59 (03/1993), table 2: conversational speech, mean durations.
_TALK_SPURTS: Final = {"talk_ns": 1_004_000_000, "pause_ns": 1_587_000_000}
# A GET with the headers of a browser; the round figure is ours.
_VIDEO_REQUEST_BYTES: Final = 400

# Weights are integers in the plan, with this many digits more than the scenario has integers.
_FRACTION_DIGITS: Final = 6


class _Copy(NamedTuple):
    """One flow of an entry; ``number`` counts them, and both directions share one.

    ``place`` and ``way`` are the parts of its name that tell it from the others.
    """

    number: int
    terminal: int
    direction: DirectionName
    place: str
    way: str


def flow_plans(
    scenario: Scenario, hosts: HostPlans, stop_ns: int, errors: PlanningErrors
) -> list[Part]:
    """Return the flows of the plan, in the order of the entries; entries with errors have none.

    Errors are too many flows, a start after the end of the run, or an unknown terminal or host.
    """
    terminals = scenario.link.terminals
    total = sum(flows_of_entry(flow, terminals) for flow in scenario.traffic)
    if total > MAX_FLOWS:
        message = f"has {total} flows; at most {MAX_FLOWS} are allowed"
        errors.found.append(PlanningError(("traffic",), message))
        return []
    terminal_paths = scenario.link.terminal_paths
    priorities = {p.terminal: p.priority for p in terminal_paths if p.priority is not None}
    plans: list[Part] = []
    unnamed: Counter[str] = Counter()
    conferences = 0
    for i, flow in enumerate(scenario.traffic):
        path: FieldPath = ("traffic", i)
        errors_before = len(errors.found)
        copies = list(_copies(flow, terminals))
        errors.call(_check_terminals, flow, terminals, path)
        starts = errors.call(_starts, flow, copies, stop_ns, path)
        workload = errors.call(workload_of, flow, conferences, hosts.servers.get(i, []), path)
        errors.call(hosts.check, "world", flow.world_host, path)
        errors.call(hosts.check, "island", flow.island_host, path)
        if starts is None or workload is None or len(errors.found) > errors_before:
            continue
        of_terminals = {} if "priority" in flow.model_fields_set else priorities
        jitter_ns = _start_jitter_ns(flow, copies, workload)
        origins = origins_of(flow, path)
        conferences += flow.kind == "conference"
        for name, copy, start_ns in zip(_names(flow, copies, unnamed), copies, starts, strict=True):
            place = (copy.number, copy.terminal)
            values = {
                "name": name,
                "terminal": copy.terminal,
                "direction": copy.direction,
                "start_ns": start_ns,
                "start_jitter_ns": jitter_ns,
                "world_host": hosts.chosen("world", flow.world_host, place),
                "island_host": hosts.chosen("island", flow.island_host, place),
                "priority": of_terminals.get(1 + copy.terminal, flow.priority),
                # A PEP passes datagrams unchanged anyway.
                "splittable": flow.splittable if isinstance(flow, TcpEnds) else True,
                "workload": _with_duration(workload, stop_ns - start_ns),
            }
            plans.append(Part(values, path, origins))
    return plans


def flows_of_entry(flow: Flow, terminals: int) -> int:
    """Return the number of flows in the plan for an entry of ``traffic``."""
    if flow.kind == "conference":
        return flow.participants
    at = terminals if flow.terminal == "all" else 1
    ways = 2 if flow.direction == "both" else 1
    return at * flow.count * ways


def _copies(flow: Flow, terminals: int) -> Iterator[_Copy]:
    if flow.kind == "conference":
        for participant in range(flow.participants):
            # A participant's direction is that of the packets that it sends.
            yield _Copy(0, participant, "return", "", f"-{participant + 1}")
        return
    ways: tuple[DirectionName, ...] = (
        ("forward", "return") if flow.direction == "both" else (flow.direction,)
    )
    repeated = range(terminals) if flow.terminal == "all" else range(1)
    for number, (copy, k) in enumerate(product(repeated, range(flow.count))):
        match flow.terminal:
            case "all":
                terminal = copy
            case "spread":
                terminal = k % terminals
            case given:
                terminal = given - 1
        place = f"-{copy + 1}" if len(repeated) > 1 else ""
        place += f"-{k + 1}" if flow.count > 1 else ""
        for direction in ways:
            way = f"-{direction}" if len(ways) > 1 else ""
            yield _Copy(number, terminal, direction, place, way)


def _names(flow: Flow, copies: list[_Copy], unnamed: Counter[str]) -> list[str]:
    """Return the names of an entry's flows; ``unnamed`` counts flows without a name by kind."""
    if flow.name is not None:
        return [f"{flow.name}{copy.place}{copy.way}" for copy in copies]
    first = unnamed[flow.kind] + 1
    unnamed[flow.kind] += copies[-1].number + 1
    return [f"{flow.kind}-{first + copy.number}{copy.way}" for copy in copies]


def _check_terminals(flow: Flow, terminals: int, path: FieldPath) -> None:
    if flow.kind == "conference":
        if flow.participants > terminals:
            message = f"each needs its own terminal, and link.terminals is {terminals}"
            raise wrong((*path, "participants"), flow.participants, message)
    elif isinstance(flow.terminal, int) and flow.terminal > terminals:
        raise wrong((*path, "terminal"), flow.terminal, f"link.terminals is {terminals}")


def _starts(flow: Flow, copies: list[_Copy], stop_ns: int, path: FieldPath) -> list[int]:
    start_ns = value_of(flow.start)
    spacing = None if isinstance(flow, Channels | Conference) else flow.start_spacing
    spacing_ns = 0 if spacing is None else value_of(spacing)
    end = f"the end of the run, {format_duration(stop_ns)}"
    if start_ns >= stop_ns:
        raise wrong((*path, "start"), flow.start, f"must be before {end}")
    starts = [start_ns + copy.number * spacing_ns for copy in copies]
    if spacing is not None and starts[-1] >= stop_ns:
        last = f"the last of {len(copies)} flows would start at {format_duration(starts[-1])}"
        raise wrong((*path, "start_spacing"), spacing, f"{last}, after {end}")
    return starts


def _start_jitter_ns(flow: Flow, copies: list[_Copy], workload: Part) -> int:
    """Return the range of the starts: as written, or one datagram interval of several flows."""
    if flow.start_jitter is not None:
        return value_of(flow.start_jitter)
    spaced = "start_spacing" in flow.model_fields_set
    alone = copies[-1].number == 0 and flow.kind != "conference"
    return 0 if spaced or alone else datagram_interval_ns(workload)


def datagram_interval_ns(workload: Mapping[str, Any]) -> int:
    """Return the time between two datagrams of a flow; 0 of other workloads."""
    if "payload_bytes" not in workload:
        return 0
    return int(workload["payload_bytes"] * BITS_PER_BYTE * NS_PER_S // workload["rate_bps"])


def largest_flow_packet_bytes(flows: Sequence[Part]) -> dict[DirectionName, int]:
    """Return the largest IP packet of the flows in each direction, in bytes."""
    largest: dict[DirectionName, int] = {"forward": 0, "return": 0}
    for flow in flows:
        there: DirectionName = flow["direction"]
        back: DirectionName = "return" if there == "forward" else "forward"
        there_bytes, back_bytes = largest_packets(flow["workload"])
        largest[there] = max(largest[there], there_bytes)
        largest[back] = max(largest[back], back_bytes)
    return largest


# --- what flows send ------------------------------------------------------------------------------


def workload_of(flow: Flow, conference: int, servers: list[int], path: FieldPath) -> Part:
    """Return the workload of a flow; a duration that is not written is None.

    ``conference`` is the number of one, ``servers`` are the hosts of channels.

    Raises:
        PlanningError: a value does not fit to others, or to a packet.
    """
    plan = lower(flow, path, leave_out=_NOT_OF_WORKLOADS)
    _add_ends(flow, plan)
    match flow:
        case Bulk():
            field, unit = ("duration", "duration_ns") if flow.size is None else ("size", "bytes")
            plan["amount"] = {"unit": unit, "value": value_of(getattr(flow, field))}
            plan.origins["amount"] = (*path, field)
            del plan["size_bytes"], plan["duration_ns"]
        case Voice():
            codec = CODECS[flow.codec]
            plan |= {"rate_bps": codec.udp_rate_bps, "payload_bytes": codec.payload_bytes}
            talks = plan.pop("silence_suppression")
            plan["talk_spurts"] = _TALK_SPURTS.copy() if talks else None
        case Conference():
            plan["conference"] = conference
        case RequestResponse():
            plan["keep_connection"] = True
        case Fetch():
            plan.rename("size_bytes", "response_bytes")
            plan.rename("files", "exchanges")
            plan |= {"kind": "request_response", "keep_connection": False}
        case Video():
            plan |= {"request_bytes": _VIDEO_REQUEST_BYTES, "media": _media(flow, plan)}
        case WebPage():
            plan["tls"] = None if flow.tls == "none" else flow.tls
        case Channels():
            plan |= {"kind": "channel", "servers": servers}
            plan["sizes"] = _sizes(flow.sizes, (*path, "sizes"))
    return plan


# Fields of flows that are not those of their workload, or are resolved apart.
_NOT_OF_WORKLOADS: Final = frozenset(
    {*SharedFields.model_fields, *TcpEnds.model_fields, "direction"}
    | {"channels", "participants", "servers", "sizes"}
)


def _with_duration(plan: Part, remaining_ns: int) -> Part:
    """Return a workload that lasts to the end of the run if it has no duration of its own."""
    changed: dict[str, Any] = {}
    if "media" in plan:
        changed["media"] = _with_duration(plan["media"], remaining_ns)
    elif plan.get("duration_ns", 0) is None:
        changed["duration_ns"] = remaining_ns
    return Part(plan | changed, plan.path, plan.origins) if changed else plan


def _add_ends(flow: Flow, plan: Part) -> None:
    """Add the TCP of both ends, or check that datagrams fit into packets."""
    if isinstance(flow, TcpEnds):
        tcp = host_plan(flow.profile, flow.tcp, (*plan.path, "tcp"))
        ends = ("sender", "receiver") if isinstance(flow, Bulk) else ("server", "client")
        plan |= dict.fromkeys(ends, tcp)
        plan.origins |= dict.fromkeys(ends, tcp.path)
    elif isinstance(flow, ConstantRate | Conference) and plan["payload_bytes"] > MAX_PAYLOAD_BYTES:
        limit = f"must be at most {MAX_PAYLOAD_BYTES} B (one UDP datagram)"
        raise wrong((*plan.path, "payload"), flow.payload, limit)


def _media(flow: Video, plan: Part) -> Part:
    """Move what is of the media of a video out of its workload."""
    names = ("rate_bps", "duration_ns", "segment_ns", "buffer_ns", "start_up_ns")
    media = Part({name: plan.pop(name) for name in names}, plan.path, plan.origins)
    needed_ns = -(-media["start_up_ns"] // media["segment_ns"]) * media["segment_ns"]
    if media["buffer_ns"] < needed_ns:
        least = f"must be at least {format_duration(needed_ns)}: start_up in whole segments"
        raise wrong((*plan.path, "buffer"), flow.buffer, least)
    return media


def largest_packets(workload: Mapping[str, Any]) -> tuple[int, int]:
    """Return the largest IP packet of a workload, in its direction and in the other, in bytes."""
    tcp = workload.get("sender") or workload.get("server")
    if tcp is None:
        datagram_bytes = workload["payload_bytes"] + UDP_IP_BYTES
        # The reflector of a conference forwards the same datagrams to the other participants.
        return datagram_bytes, datagram_bytes if workload["kind"] == "conference" else 0
    largest = tcp["mss_bytes"] + TCP_IP_BYTES
    if workload["kind"] == "web_page":
        # Requests may follow each other, and the flights of TLS fill several packets.
        return largest, largest
    if "request_bytes" in workload:
        return largest, min(largest, workload["request_bytes"] + _LARGEST_ACK_BYTES)
    return largest, _LARGEST_ACK_BYTES


# --- the sizes of downloads ----------------------------------------------------------------------


def _sizes(written: Sizes, path: FieldPath) -> list[list[int]]:
    """Return pairs of a size in bytes and its weight as an integer.

    Weights are exact up to `_FRACTION_DIGITS` digits of a fraction.
    """
    rows = written
    if isinstance(rows, SizeFile):
        rows = _read(SourceFile(rows.csv, (*path, "csv")))
    weights = [Decimal(repr(row.weight)) for row in rows]
    if any(weight != weight.to_integral_value() for weight in weights):
        weights = [max(Decimal(1), round(weight.scaleb(_FRACTION_DIGITS), 0)) for weight in weights]
    return [[value_of(row.size), int(weight)] for row, weight in zip(rows, weights, strict=True)]


def _read(file: SourceFile) -> tuple[SizeWeight, ...]:
    """Read a table of sizes and weights."""
    lines = file.rows()
    if not lines:
        raise file.error("has no rows; expected the header size,weight")
    (first, header), *rows = lines
    if header != ["size", "weight"]:
        raise file.line_error(first, ",".join(header), "expected the header size,weight")
    if not rows:
        raise file.error("has no rows; expected a row for each size after the header")
    if len(rows) > MAX_SIZES:
        raise file.error(f"has {len(rows)} rows; at most {MAX_SIZES} are allowed")
    by_size: dict[int, tuple[int, SizeWeight]] = {}
    for line, cells in rows:
        if len(cells) != len(header):
            raise file.line_error(line, ",".join(cells), "expected a size and a weight")
        size, weight = file.with_points([(line, cell) for cell in cells])
        try:
            # A plain integer is in bytes.
            size = f"{size} B" if size.isdecimal() else size
            number: Any = float(weight) if NUMBER.fullmatch(weight) else weight
            row = SizeWeight(size=size, weight=number)
        except ScenarioError as error:
            (problem, *_) = error.problems
            message = f'{file.name}:{line}: column "{problem.field}": {problem.message}'
            raise PlanningError(file.field, message) from None
        if (size_bytes := value_of(row.size)) in by_size:
            reason = f"line {by_size[size_bytes][0]} has the same size; add their weights"
            raise file.line_error(line, size, reason, "size")
        by_size[size_bytes] = (line, row)
    return tuple(row for _, row in by_size.values())
