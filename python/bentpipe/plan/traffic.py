"""Traffic resolved into the flows of the plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple

from bentpipe.plan.hosts import HostPlans
from bentpipe.plan.lower import Part, PlanningError, PlanningErrors, origins_of, wrong
from bentpipe.plan.workloads import largest_packets, workload_of
from bentpipe.scenario.document import FieldPath
from bentpipe.scenario.link import DirectionName
from bentpipe.scenario.schema import Scenario
from bentpipe.scenario.tables import PACKET_INTERVAL_MS
from bentpipe.scenario.traffic import (
    MAX_FLOWS,
    Channels,
    Conference,
    ConstantRate,
    Flow,
    TcpEnds,
    Voice,
)
from bentpipe.units import NS_PER_S, format_duration, value_of


class _Copy(NamedTuple):
    """One flow of an entry; ``number`` counts them, and both directions share one."""

    number: int
    terminal: int
    direction: DirectionName
    suffix: str


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
    plans: list[Part] = []
    unnamed: Counter[str] = Counter()
    conferences = 0
    for i, flow in enumerate(scenario.traffic):
        path: FieldPath = ("traffic", i)
        found = len(errors.found)
        copies = list(_copies(flow, terminals))
        errors.call(_check_terminals, flow, terminals, path)
        starts = errors.call(_starts, flow, copies, stop_ns, path)
        workload = errors.call(workload_of, flow, conferences, hosts.servers.get(i, []), path)
        errors.call(hosts.check, "world", flow.world_host, path)
        errors.call(hosts.check, "island", flow.island_host, path)
        if starts is None or workload is None or len(errors.found) > found:
            continue
        written = "priority" in flow.model_fields_set
        paths = () if written else scenario.link.terminal_paths
        priorities = {each.terminal: each.priority for each in paths if each.priority is not None}
        jitter_ns, origins = _start_jitter_ns(flow, copies), origins_of(flow, path)
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
                "priority": priorities.get(1 + copy.terminal, flow.priority),
                # A PEP passes datagrams unchanged anyway.
                "splittable": flow.splittable if isinstance(flow, TcpEnds) else True,
                "workload": workload(stop_ns - start_ns),
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
            message = f"each needs its own terminal, and link.terminals is {terminals}"
            raise wrong((*path, "participants"), flow.participants, message)
    elif flow.terminal != "all" and flow.terminal > terminals:
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
