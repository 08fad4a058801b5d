"""Checks before a run in real time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from bentpipe.errors import Problem, ScenarioError
from bentpipe.gateway.tcp_refusals import refused_tcp
from bentpipe.live.capacity import refuse_beyond_capacity
from bentpipe.live.flows import programs
from bentpipe.live.gateways import refuse_functions
from bentpipe.live.lab_setup import (
    classes,
    highest,
    kernel_of,
    largest_window_bytes,
    longest_round_trip_ns,
    mtu_bytes,
    tcp_of,
)
from bentpipe.plan.plan import Plan
from bentpipe.units import NS_PER_S

# Each flow is a client, a server and the two processes that end them; channels are sockets.
MAX_FLOWS: Final = 64
MAX_CHANNELS: Final = 1_000
# iperf3 writes a serial number and a time into each datagram.
MIN_PAYLOAD_BYTES: Final = 16
# Chromium's ClientSocketPoolManager, for each server.
BROWSER_CONNECTIONS: Final = 6
_LARGEST_UNSCALED_WINDOW_BYTES: Final = 65_535


def check_plan(plan: Plan) -> None:
    """Refuse the plan of a scenario that cannot be run in real time on this machine.

    Raises:
        ScenarioError: the scenario cannot be run in real time.
        MachineError: the machine lacks something.
    """
    data = plan.data
    refuse(plan)
    programs(data, plan.scenario.seed)
    kernel_of(data)
    refuse_functions([data], mtu_bytes(data))
    refuse_beyond_capacity([data])


def refuse(plan: Plan) -> None:
    """Check that the kernel's TCP supports the scenario.

    Raises:
        ScenarioError: it does not; the error names every unsupported field.
    """
    found = list(_refused(plan))
    if found:
        raise ScenarioError(
            *(Problem(source="emulate", field=field, message=text) for field, text in found)
        )


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
        windows = {
            "receive_buffer": largest_window_bytes(tcp),
            "send_buffer": tcp["send_buffer_bytes"],
        }
        if not tcp["window_scaling"]:
            windows["window_scaling: false"] = _LARGEST_UNSCALED_WINDOW_BYTES
        field, window = min(windows.items(), key=lambda item: item[1])
        product = rates[flow["direction"]] * round_trip_ns // (8 * NS_PER_S)
        if window < product:
            lines[entry] = (
                f"traffic.{entry}: the largest window is {window:,} B ({field}), below rate x RTT, "
                f"{product:,} B: one flow cannot fill the link"
            )
    return list(lines.values())
