"""Traffic resolved into the flows of the plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Final

from bentpipe.plan.channels import channel
from bentpipe.plan.draws import draw_plan
from bentpipe.plan.errors import PlanningError, PlanningErrors
from bentpipe.plan.hosts import HostPlans
from bentpipe.plan.tcp import tcp_plan
from bentpipe.plan.types import (
    Amount,
    DatagramsPlan,
    FlowPlan,
    TalkSpurtsPlan,
    WorkloadPlan,
)
from bentpipe.plan.videos import video
from bentpipe.scenario.codecs import CODECS, PACKET_INTERVAL_MS
from bentpipe.scenario.document import FieldPath
from bentpipe.scenario.link import DirectionName
from bentpipe.scenario.schema import Scenario
from bentpipe.scenario.traffic import (
    MAX_FLOWS,
    MAX_PAYLOAD_BYTES,
    Bulk,
    Channels,
    Conference,
    ConstantRate,
    Fetch,
    Flow,
    RequestResponse,
    TcpEnds,
    Video,
    Voice,
    WebPage,
)
from bentpipe.units import NS_PER_S, format_duration, value_of

# IPv4 and TCP headers without options; the MSS is what remains of the packet (RFC 9293 3.7.1).
_TCP_IP_HEADER_BYTES: Final = 40
# IPv4 header and the largest TCP header: no acknowledgement is larger.
_LARGEST_ACK_BYTES: Final = 80
_UDP_IP_HEADER_BYTES: Final = 28
# ITU-T P.59 (03/1993), table 2: conversational speech, mean durations.
_TALK_SPURTS: Final[TalkSpurtsPlan] = {"talk_ns": 1_004_000_000, "pause_ns": 1_587_000_000}


@dataclass(frozen=True)
class _Copy:
    """One flow of an entry.

    ``number`` counts the flows of the entry; the two directions of one flow share a number.
    """

    number: int
    terminal: int
    direction: DirectionName
    suffix: str


def flow_plans(
    scenario: Scenario, hosts: HostPlans, stop_ns: int, errors: PlanningErrors
) -> list[FlowPlan]:
    """Return the flows of the plan, in the order of the entries; entries with errors have none.

    Errors are too many flows, a start after the end of the run, or an unknown terminal or host.
    """
    terminals = scenario.link.terminals
    total = sum(flows_of_entry(flow, terminals) for flow in scenario.traffic)
    if total > MAX_FLOWS:
        message = f"has {total} flows; at most {MAX_FLOWS} are allowed"
        errors.found.append(PlanningError(("traffic",), message))
        return []
    plans: list[FlowPlan] = []
    unnamed: Counter[str] = Counter()
    conferences = 0
    priorities = {path.terminal: path.priority for path in scenario.link.terminal_paths}
    for i, flow in enumerate(scenario.traffic):
        path: FieldPath = ("traffic", i)
        found = len(errors.found)
        copies = list(_copies(flow, terminals))
        errors.call(_check_terminals, flow, terminals, path)
        starts = errors.call(_starts, flow, copies, stop_ns, path)
        servers = hosts.servers(i) if isinstance(flow, Channels) else []
        workload = errors.call(_workload, flow, conferences, servers, path)
        errors.call(hosts.check, "world", _world_host(flow), path)
        errors.call(hosts.check, "island", flow.island_host, path)
        if starts is None or workload is None or len(errors.found) > found:
            continue
        jitter_ns = _start_jitter_ns(flow, copies)
        conferences += flow.kind == "conference"
        for name, copy, start_ns in zip(_names(flow, copies, unnamed), copies, starts, strict=True):
            place = (copy.number, copy.terminal)
            plans.append(
                {
                    "name": name,
                    "terminal": copy.terminal,
                    "direction": copy.direction,
                    "start_ns": start_ns,
                    "start_jitter_ns": jitter_ns,
                    "world_host": hosts.chosen("world", _world_host(flow), place),
                    "island_host": hosts.chosen("island", flow.island_host, place),
                    "priority": _priority(flow, priorities.get(1 + copy.terminal)),
                    "splittable": _is_splittable(flow),
                    "workload": workload(stop_ns - start_ns),
                }
            )
    return plans


def _world_host(flow: Flow) -> str | None:
    return None if flow.kind == "conference" else flow.world_host


def _is_splittable(flow: Flow) -> bool:
    """Return whether a PEP can split the flow; it passes datagrams unchanged anyway."""
    return flow.splittable if isinstance(flow, TcpEnds) else True


def _priority(flow: Flow, of_terminal: int | None) -> int:
    if of_terminal is None or "priority" in flow.model_fields_set:
        return flow.priority
    return of_terminal


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
            yield _Copy(0, participant, "return", f"-{participant + 1}")
        return
    at = range(terminals) if flow.terminal == "all" else [flow.terminal - 1]
    ways: tuple[DirectionName, ...] = (
        ("forward", "return") if flow.direction == "both" else (flow.direction,)
    )
    for number, (terminal, k) in enumerate(product(at, range(flow.count))):
        suffix = f"-{terminal + 1}" if len(at) > 1 else ""
        suffix += f"-{k + 1}" if flow.count > 1 else ""
        for direction in ways:
            way = f"-{direction}" if len(ways) > 1 else ""
            yield _Copy(number, terminal, direction, suffix + way)


def _names(flow: Flow, copies: list[_Copy], unnamed: Counter[str]) -> list[str]:
    """Return the names of an entry's flows; ``unnamed`` counts flows without a name by kind."""
    if flow.name is not None:
        return [f"{flow.name}{copy.suffix}" for copy in copies]
    first = unnamed[flow.kind] + 1
    unnamed[flow.kind] += copies[-1].number + 1
    if flow.kind == "conference":
        return [f"{flow.kind}-{first}{copy.suffix}" for copy in copies]
    both = flow.direction == "both"
    return [
        f"{flow.kind}-{first + copy.number}" + (f"-{copy.direction}" if both else "")
        for copy in copies
    ]


def _check_terminals(flow: Flow, terminals: int, path: FieldPath) -> None:
    if flow.kind == "conference":
        if flow.participants > terminals:
            raise PlanningError(
                (*path, "participants"),
                f"read {flow.participants}; each needs its own terminal, and link.terminals is "
                f"{terminals}",
            )
    elif flow.terminal != "all" and flow.terminal > terminals:
        raise PlanningError(
            (*path, "terminal"), f"read {flow.terminal}; link.terminals is {terminals}"
        )


def _starts(flow: Flow, copies: list[_Copy], stop_ns: int, path: FieldPath) -> list[int]:
    start_ns = value_of(flow.start)
    spacing = None if isinstance(flow, Channels | Conference) else flow.start_spacing
    spacing_ns = 0 if spacing is None else value_of(spacing)
    if start_ns >= stop_ns:
        message = (
            f'read "{flow.start}"; must be before the end of the run, {format_duration(stop_ns)}'
        )
        raise PlanningError((*path, "start"), message)
    starts = [start_ns + copy.number * spacing_ns for copy in copies]
    if spacing is not None and starts[-1] >= stop_ns:
        raise PlanningError(
            (*path, "start_spacing"),
            f'read "{spacing}"; the last of {len(copies)} flows would start at '
            f"{format_duration(starts[-1])}, after the end of the run, {format_duration(stop_ns)}",
        )
    return starts


def _start_jitter_ns(flow: Flow, copies: list[_Copy]) -> int:
    """Return the range of the starts: as written, or one datagram interval of several flows."""
    if flow.start_jitter is not None:
        return value_of(flow.start_jitter)
    spaced = "start_spacing" in flow.model_fields_set
    alone = copies[-1].number == 0 and flow.kind != "conference"
    if spaced or alone or not isinstance(flow, ConstantRate | Voice | Conference):
        return 0
    if isinstance(flow, Voice):
        return PACKET_INTERVAL_MS * 10**6
    return value_of(flow.payload) * 8 * NS_PER_S // value_of(flow.rate)


# --- workloads ----------------------------------------------------------------------------------

# Returns the workload of a flow that starts this many nanoseconds before the end of the run.
_Workload = Callable[[int], WorkloadPlan]


def _workload(flow: Flow, conference: int, servers: list[int], path: FieldPath) -> _Workload:
    """Return a workload: ``conference`` is the number of one, ``servers`` are a channel's hosts."""
    match flow:
        case Bulk():
            found = _bulk(flow, path)
        case ConstantRate():
            found = _constant_rate(flow, path)
        case Voice():
            found = _voice(flow)
        case RequestResponse():
            found = _request_response(flow, path)
        case Fetch():
            found = _fetch(flow, path)
        case Video():
            found = video(flow, path)
        case WebPage():
            found = _web_page(flow, path)
        case Channels():
            found = channel(flow, servers, path)
        case Conference():
            found = _conference(flow, conference, path)
    return found


def _bulk(flow: Bulk, path: FieldPath) -> _Workload:
    tcp = tcp_plan(flow, path)
    amount: Amount
    if flow.size is not None:
        amount = {"unit": "bytes", "value": value_of(flow.size)}
    else:
        amount = {"unit": "duration_ns", "value": value_of(flow.duration)}
    return lambda _: {
        "kind": "bulk",
        "amount": amount,
        "sender": tcp.copy(),
        "receiver": tcp.copy(),
    }


def _constant_rate(flow: ConstantRate, path: FieldPath) -> _Workload:
    datagrams = _datagrams(flow, path)
    return lambda remaining_ns: {"kind": "constant_rate", **datagrams(remaining_ns)}


def _voice(flow: Voice) -> _Workload:
    codec = CODECS[flow.codec]
    written_ns = None if flow.duration is None else value_of(flow.duration)
    return lambda remaining_ns: {
        "kind": "voice",
        "codec": codec.name,
        "rate_bps": codec.udp_rate_bps,
        "payload_bytes": codec.payload_bytes,
        "duration_ns": remaining_ns if written_ns is None else written_ns,
        "jitter_buffer_ns": value_of(flow.jitter_buffer),
        "talk_spurts": _TALK_SPURTS.copy() if flow.silence_suppression else None,
    }


def _conference(flow: Conference, number: int, path: FieldPath) -> _Workload:
    datagrams = _datagrams(flow, path)
    return lambda remaining_ns: {
        "kind": "conference",
        "conference": number,
        **datagrams(remaining_ns),
    }


def _datagrams(flow: ConstantRate | Conference, path: FieldPath) -> Callable[[int], DatagramsPlan]:
    payload_bytes = value_of(flow.payload)
    if payload_bytes > MAX_PAYLOAD_BYTES:
        message = f'read "{flow.payload}"; must be at most {MAX_PAYLOAD_BYTES} B (one UDP datagram)'
        raise PlanningError((*path, "payload"), message)
    rate_bps = value_of(flow.rate)
    written_ns = None if flow.duration is None else value_of(flow.duration)
    return lambda remaining_ns: {
        "rate_bps": rate_bps,
        "payload_bytes": payload_bytes,
        "duration_ns": remaining_ns if written_ns is None else written_ns,
    }


def _request_response(flow: RequestResponse, path: FieldPath) -> _Workload:
    tcp = tcp_plan(flow, path)
    response = draw_plan(flow.response, (*path, "response"))
    think = draw_plan(flow.think, (*path, "think"))
    return lambda _: {
        "kind": "request_response",
        "request_bytes": value_of(flow.request),
        "response_bytes": response,
        "think_ns": think,
        "exchanges": flow.exchanges,
        "keep_connection": True,
        "server": tcp.copy(),
        "client": tcp.copy(),
    }


def _fetch(flow: Fetch, path: FieldPath) -> _Workload:
    tcp = tcp_plan(flow, path)
    response = draw_plan(flow.size, (*path, "size"))
    think = draw_plan(flow.think, (*path, "think"))
    return lambda _: {
        "kind": "request_response",
        "request_bytes": value_of(flow.request),
        "response_bytes": response,
        "think_ns": think,
        "exchanges": flow.files,
        "keep_connection": False,
        "server": tcp.copy(),
        "client": tcp.copy(),
    }


def _web_page(flow: WebPage, path: FieldPath) -> _Workload:
    tcp = tcp_plan(flow, path)
    think = draw_plan(flow.think, (*path, "think"))
    objects = draw_plan(flow.objects, (*path, "objects"))
    document = draw_plan(flow.document, (*path, "document"))
    each = draw_plan(flow.object, (*path, "object"))
    return lambda _: {
        "kind": "web_page",
        "pages": flow.pages,
        "think_ns": think,
        "objects": objects,
        "document_bytes": document,
        "object_bytes": each,
        "request_bytes": value_of(flow.request),
        "http": flow.http,
        "connections": flow.connections,
        "tls": None if flow.tls == "none" else flow.tls,
        "dns": flow.dns,
        "server": tcp.copy(),
        "client": tcp.copy(),
    }


def largest_flow_packet_bytes(flows: list[FlowPlan]) -> dict[DirectionName, int]:
    """Return the largest IP packet of the flows in each direction, in bytes."""
    largest: dict[DirectionName, int] = {"forward": 0, "return": 0}
    for flow in flows:
        there: DirectionName = flow["direction"]
        back: DirectionName = "return" if there == "forward" else "forward"
        there_bytes, back_bytes = _packets_of(flow["workload"])
        largest[there] = max(largest[there], there_bytes)
        largest[back] = max(largest[back], back_bytes)
    return largest


def _packets_of(workload: WorkloadPlan) -> tuple[int, int]:
    """Return the largest IP packet of a workload, in its direction and in the other, in bytes."""
    if workload["kind"] == "bulk":
        return workload["sender"]["mss_bytes"] + _TCP_IP_HEADER_BYTES, _LARGEST_ACK_BYTES
    if workload["kind"] == "channel":
        return workload["server"]["mss_bytes"] + _TCP_IP_HEADER_BYTES, _LARGEST_ACK_BYTES
    if workload["kind"] == "web_page":
        # Requests may follow each other, and the flights of TLS fill several packets.
        largest = workload["server"]["mss_bytes"] + _TCP_IP_HEADER_BYTES
        return largest, largest
    if workload["kind"] == "request_response" or workload["kind"] == "video":
        largest = workload["server"]["mss_bytes"] + _TCP_IP_HEADER_BYTES
        return largest, min(largest, workload["request_bytes"] + _LARGEST_ACK_BYTES)
    datagram_bytes = workload["payload_bytes"] + _UDP_IP_HEADER_BYTES
    # The reflector of a conference forwards the same datagrams to the other participants.
    return datagram_bytes, datagram_bytes if workload["kind"] == "conference" else 0
