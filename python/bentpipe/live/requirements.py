"""What a plan requires of a lab, and what no lab can do.

A plan requires hosts, settings of their kernels, and time before the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bentpipe._core import Stream
from bentpipe.errors import Problem, ScenarioError
from bentpipe.live.gateways import SESSION_TIMEOUT_NS, hosts_behind
from bentpipe.live.kernel_tcp import host_sysctls, initial_window, require_congestion_controls
from bentpipe.live.refused_tcp import refused_tcp
from bentpipe.plan.hosts import windows_bytes
from bentpipe.plan.plan import Plan
from bentpipe.plan.presets import classes_of, series_values
from bentpipe.scenario.tcp import Side
from bentpipe.units import NS_PER_S, TCP_IP_BYTES, UDP_IP_BYTES

# The largest precedence: the three highest bits of the traffic class (RFC 2474, section 4.2.2).
_PRECEDENCE_MAX: Final = 7
_PRECEDENCE_SHIFT: Final = 5
CLASSES_MAX: Final = 8
# Several times the set-up time of a lab, and of the programs of a flow.
_LAB_NS: Final = 1_500_000_000
_FLOW_NS: Final = 250_000_000
_BROWSER_NS: Final = 6_000_000_000
# The parts of a direction that may have steps.
_CHANGING: Final = ("rate_bps", "delay_ns", "channel")
# Each flow is a client, a server and the two processes that end them; channels are sockets.
MAX_FLOWS: Final = 64
MAX_CHANNELS: Final = 1_000
# iperf3 writes a serial number and a time into each datagram.
MIN_PAYLOAD_BYTES: Final = 16
# Chromium's ClientSocketPoolManager, for each server.
BROWSER_CONNECTIONS: Final = 6


# --- hosts, starts and classes of flows ---------------------------------------------------------


def hosts_of(plan: Mapping[str, Any], flow: Mapping[str, Any], seed: int) -> dict[Side, str]:
    """Return the hosts of the two ends of a flow of the plan.

    A random choice is the same as in a simulation with the same seed.
    """

    def host(side: Side, gateway: int) -> str:
        *distant, near = hosts_behind(plan, gateway)
        choice = flow[f"{side}_host"]
        if choice is None:
            return near
        if choice["kind"] == "named":
            return str(plan["hosts"][choice["host"]]["name"])
        return distant[Stream(seed, f"flow.{flow['name']}.{side}_host").below(len(distant))]

    return {"world": host("world", 0), "island": host("island", 1 + flow["terminal"])}


def start_of(flow: Mapping[str, Any], seed: int) -> int:
    """Return when a flow of the plan starts, in ns: as in a simulation with the same seed."""
    start_ns, range_ns = int(flow["start_ns"]), int(flow["start_jitter_ns"])
    return start_ns + (
        Stream(seed, f"flow.{flow['name']}.start").below(range_ns) if range_ns else 0
    )


def classes(plan: Mapping[str, Any]) -> int:
    """Return how many classes of packets the queues and functions of a plan distinguish."""
    of_queues = (classes_of(direction["queue"]) for direction in plan["directions"])
    functions = (function for gateway in plan["gateways"] for function in gateway["functions"])
    of_functions = (1 + max(function.get("classes") or [0]) for function in functions)
    return int(max(1, *of_queues, *of_functions))


def traffic_class(plan: Mapping[str, Any], flow: Mapping[str, Any]) -> int:
    """Return the traffic class (DSCP, ECN) that marks the class of the flow's packets in a lab."""
    count, priority = classes(plan), int(flow["priority"])
    if count == 1:
        return 0
    last = min(count, CLASSES_MAX) - 1
    precedence = (_PRECEDENCE_MAX * (last - min(priority, last)) + last // 2) // last
    return precedence << _PRECEDENCE_SHIFT


# --- the kernels of the hosts ------------------------------------------------------------------


@dataclass(frozen=True)
class Kernel:
    """Kernel settings of both hosts, and the initial window of their route.

    ``initial_window_segments`` is None for the kernel's default.
    """

    settings: dict[str, str]
    initial_window_segments: int | None


def kernel_of(plan: Mapping[str, Any]) -> Kernel:
    """Return the kernel settings for the TCP of the plan.

    Raises:
        MachineError: the kernel lacks a congestion control.
    """
    settings = {}
    if Path("/proc/sys/net/ipv6").exists():
        # Neighbour discovery would put packets on the link that no flow sent.
        settings["net.ipv6.conf.default.disable_ipv6"] = "1"
    tcps = [tcp for flow in plan["flows"] if (tcp := tcp_of(flow)) is not None]
    if not tcps:
        return Kernel(settings, None)
    require_congestion_controls(tcps)
    return Kernel(settings | host_sysctls(tcps[0]), initial_window(tcps[0]))


def tcp_of(flow: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the TCP settings of the sending end of a flow; None for datagrams."""
    workload = flow["workload"]
    tcp: dict[str, Any] | None = workload.get("sender") or workload.get("server")
    return tcp


def mtu_bytes(plan: Mapping[str, Any]) -> int:
    """Return the size of the largest IP packet of the flows, at least 1,500 bytes."""
    sizes: list[int] = [
        flow["workload"]["payload_bytes"] + UDP_IP_BYTES
        if (tcp := tcp_of(flow)) is None
        else tcp["mss_bytes"] + TCP_IP_BYTES
        for flow in plan["flows"]
    ]
    return max(1_500, *sizes)


# --- the link -----------------------------------------------------------------------------------


def highest(plan: Mapping[str, Any], quantity: str) -> dict[str, int]:
    """Return the largest value over time of a direction's ``rate_bps`` or ``delay_ns``."""
    # The return directions of all terminals are equal.
    ends = zip(("forward", "return"), plan["directions"][:2], strict=True)
    return {name: max(series_values(direction[quantity])) for name, direction in ends}


def longest_round_trip_ns(plan: Mapping[str, Any]) -> int:
    """Return the longest round trip between two hosts, without queueing and serialization."""
    over_link: int = sum(highest(plan, "delay_ns").values())
    forward, *returns = plan["directions"]
    branches = (forward["to"], [branch for direction in returns for branch in direction["to"]])
    beyond: int = sum(max(branch["delay_ns"] for branch in ways) for ways in branches)
    to_hosts: list[int] = [0, 0]
    for host in plan["hosts"]:
        side = min(host["gateway"], 1)
        to_hosts[side] = max(to_hosts[side], host["delay_ns"] + host["jitter_ns"])
    return over_link + beyond + 2 * sum(to_hosts)


def lead_time_ns(plan: Mapping[str, Any]) -> int:
    """Return how long the link runs before the run starts, in ns.

    It is 0 for a link that does not change.
    """
    changing = (direction[name] for direction in plan["directions"] for name in _CHANGING)
    if not any("steps" in part for part in changing):
        return 0
    functions = (function for gateway in plan["gateways"] for function in gateway["functions"])
    has_tunnel = any(function["kind"] == "tunnel" for function in functions)
    workloads = (flow["workload"]["kind"] for flow in plan["flows"])
    flows_ns = sum(_BROWSER_NS if kind == "web_page" else _FLOW_NS for kind in workloads)
    return _LAB_NS + SESSION_TIMEOUT_NS * has_tunnel + flows_ns


def delayed_plan(plan: Mapping[str, Any], lead_ns: int) -> dict[str, Any]:
    """Return the plan with the steps of its link later by ``lead_ns``; the first lasts longer."""
    directions = [
        {**direction, **{name: _delayed(direction[name], lead_ns) for name in _CHANGING}}
        for direction in plan["directions"]
    ]
    return {**plan, "directions": directions}


def _delayed(part: Mapping[str, Any], lead_ns: int) -> Mapping[str, Any]:
    if "steps" not in part:
        return part
    first, *rest = part["steps"]
    if part["kind"] == "error_series":
        later = [{**step, "at_ns": step["at_ns"] + lead_ns} for step in rest]
        return {**part, "steps": [first, *later]}
    return {**part, "steps": [first, *([at_ns + lead_ns, value] for at_ns, value in rest)]}


# --- what is refused -----------------------------------------------------------------------------


def refuse(plan: Plan) -> None:
    """Check that the kernel's TCP supports the scenario.

    Raises:
        ScenarioError: it does not; the error names every unsupported field.
    """
    refused = _refused(plan)
    problems = [Problem(source="emulate", field=field, message=text) for field, text in refused]
    if problems:
        raise ScenarioError(*problems)


def _refused(plan: Plan) -> Iterator[tuple[str, str]]:
    data = plan.data
    if data["packet_events"]:
        yield "packet_events", "are not recorded in real time; leave them out"
    channels = sum(flow["workload"]["kind"] == "channel" for flow in data["flows"])
    flows = len(data["flows"]) - channels
    if flows > MAX_FLOWS:
        yield "traffic", f"has {flows} flows; in real time at most {MAX_FLOWS}"
    if channels > MAX_CHANNELS:
        yield "traffic", f"has {channels} channels; in real time at most {MAX_CHANNELS}"
    unsplittable = {
        entry
        for entry, flow in zip(plan.entry_of_flow, data["flows"], strict=True)
        if not flow["splittable"]
    }
    for entry in sorted(unsplittable):
        text = "read false; real programs send TCP, which a PEP splits: leave it out"
        yield f"traffic.{entry}.splittable", text
    yield from _refused_flows(plan)


def _refused_flows(plan: Plan) -> Iterator[tuple[str, str]]:
    of_plan = plan.data["flows"]
    # The flows of an entry are alike.
    workloads = dict(zip(reversed(plan.entry_of_flow), reversed(of_plan), strict=True))
    tcps = [tcp for flow in of_plan if (tcp := tcp_of(flow)) is not None]
    for entry in sorted(workloads):
        workload, path = workloads[entry]["workload"], f"traffic.{entry}"
        if (tcp := tcp_of(workloads[entry])) is not None:
            for field, text in refused_tcp("flow", tcp, tcps[0]):
                yield f"{path}.tcp.{field}", text
            if workload["kind"] == "web_page":
                for field, text in _refused_page(workload, classes(plan.data)):
                    yield f"{path}.{field}", text
        elif workload["kind"] == "voice":
            if workload["talk_spurts"] is not None:
                text = "read true; iperf3 sends without pauses: leave it out"
                yield f"{path}.silence_suppression", text
        elif workload["kind"] != "constant_rate":
            kind = plan.scenario.traffic[entry].kind
            yield f"{path}.kind", f'read "{kind}", which is not run in real time'
        elif workload["payload_bytes"] < MIN_PAYLOAD_BYTES:
            read = workload["payload_bytes"]
            text = f"read {read} B; iperf3 sends datagrams of at least {MIN_PAYLOAD_BYTES} B"
            yield f"{path}.payload", text


def _refused_page(workload: Mapping[str, Any], class_count: int) -> Iterator[tuple[str, str]]:
    """Yield what Chromium does not do as a scenario says, by field."""
    connections = workload["connections"]
    if workload["http"] == "1.1" and connections != BROWSER_CONNECTIONS:
        text = f"is {connections}; Chromium opens {BROWSER_CONNECTIONS} connections to a server"
        yield "connections", f"{text}: leave it out"
    if workload["http"] == "2" and workload["tls"] is None:
        yield "tls", 'read none; Chromium has HTTP/2 over TLS only: write "1.3"'
    if class_count > 1:
        yield "kind", 'read "web_page"; Chromium does not mark classes of packets for the queue'


def window_warnings(plan: Plan) -> list[str]:
    """Return a warning for each entry of ``traffic`` with windows too small to fill the link."""
    rates, round_trip_ns = highest(plan.data, "rate_bps"), longest_round_trip_ns(plan.data)
    lines = {}
    for entry, flow in zip(plan.entry_of_flow, plan.data["flows"], strict=True):
        tcp = tcp_of(flow)
        if tcp is None:
            continue
        field, window = min(windows_bytes(tcp).items(), key=lambda item: item[1])
        product = rates[flow["direction"]] * round_trip_ns // (8 * NS_PER_S)
        if window < product:
            lines[entry] = (
                f"traffic.{entry}: the largest window is {window:,} B ({field}), below rate x RTT, "
                f"{product:,} B: one flow cannot fill the link"
            )
    return list(lines.values())
