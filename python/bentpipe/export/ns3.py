"""A scenario as a script of ns-3 (C++): its link with queues and errors, and its simple flows.

A direction is a point-to-point channel of its own, since both ends of one have the same delay. Its
device holds one packet, and the queue disc before it the others. Written for ns-3.37 and newer.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, Final

from bentpipe.export.common import (
    MTU_BYTES,
    comment,
    directions,
    first_value,
    gaps,
    lost_share,
    render,
)
from bentpipe.plan import Plan
from bentpipe.plan.presets import series_values
from bentpipe.plan.traffic import datagram_interval_ns
from bentpipe.scenario import frame_bits
from bentpipe.units import BITS_PER_BYTE, NS_PER_S, TCP_IP_BYTES, TIMESTAMPS_BYTES

# PointToPointNetDevice: a header of PPP.
_PPP_BYTES: Final = 2
# What a device sends of a packet of the largest size, and what its error model sees.
_DEVICE_BITS: Final = BITS_PER_BYTE * (MTU_BYTES + _PPP_BYTES)
# UdpClient: a sequence number and a time.
_DATAGRAM_BYTES_MIN: Final = 12
_UNLIMITED_PACKETS: Final = 1_000_000
# Names of earlier versions follow: the script takes the first that ns-3 has.
_CONGESTION_CONTROLS: Final[Mapping[str, tuple[str, ...]]] = {
    "reno": ("ns3::TcpLinuxReno",),
    "newreno": ("ns3::TcpNewReno",),
    "cubic": ("ns3::TcpCubic",),
    "bbr": ("ns3::TcpBbr",),
    "hybla": ("ns3::TcpHybla",),
    "vegas": ("ns3::TcpVegas",),
    "westwood": ("ns3::TcpWestwoodPlus", "ns3::TcpWestwood"),
}
# Settings of all sockets of ns-3: the name in a plan, the attribute, and how it is written.
_SOCKETS: Final = (
    ("initial_window_segments", "ns3::TcpSocket::InitialCwnd", "{}"),
    ("send_buffer_bytes", "ns3::TcpSocket::SndBufSize", "{}"),
    ("delayed_ack_segments", "ns3::TcpSocket::DelAckCount", "{}"),
    ("delayed_ack_timeout_ns", "ns3::TcpSocket::DelAckTimeout", "{}ns"),
    ("rto_min_ns", "ns3::TcpSocketBase::MinRto", "{}ns"),
    ("sack", "ns3::TcpSocketBase::Sack", "{}"),
    ("timestamps", "ns3::TcpSocketBase::Timestamp", "{}"),
    ("window_scaling", "ns3::TcpSocketBase::WindowScaling", "{}"),
    ("limited_transmit", "ns3::TcpSocketBase::LimitedTransmit", "{}"),
    ("hystart", "ns3::TcpCubic::HyStart", "{}"),
)
# A window is so much of the memory that counts: see `receive_buffer_counts`.
_WINDOW_SHARE: Final = {"window": Fraction(1), "memory": Fraction(1448, 2304)}


def ns3_script(plan: Plan) -> str:
    """Return a program in C++ for ns-3, which prints the goodput of each flow.

    What ns-3 cannot express is in comments, each with its consequence.
    """
    missing: list[str] = []
    shown = [_direction(direction, missing) for direction in directions(plan)]
    hosts: dict[tuple[Any, ...], int] = {}
    flows = list(_flows(plan, hosts, missing))
    tcps = [
        tcp for flow in plan.data["flows"] if (tcp := flow["workload"].get("sender")) is not None
    ]
    return render(
        "ns-3.cc.j2",
        plan,
        directions=shown,
        hosts=[
            {
                "types": [_text(name) for name in _CONGESTION_CONTROLS.get(control, ())],
                "world_ns": world_ns,
                "island_ns": island_ns,
            }
            for control, world_ns, island_ns in hosts
        ],
        flows=flows,
        sockets=_socket_defaults(tcps, missing),
        stop_s=plan.data["stop_ns"] / NS_PER_S,
        seed=plan.scenario.seed,
        gaps=[*gaps(plan, "ns-3"), *dict.fromkeys(missing)],
    )


def _text(text: str) -> str:
    """Return a literal of C++, which has the escapes of JSON for ASCII."""
    return json.dumps("".join(c if c.isascii() else "?" for c in comment(text)))


# --- link ----------------------------------------------------------------------------------------


def _direction(data: Mapping[str, Any], missing: list[str]) -> dict[str, Any]:
    field, framing = f"link.{data['name']}", data["framing"]
    bits = frame_bits(framing, MTU_BYTES)
    # So that a packet of the largest size takes as long as on the link.
    factor = Fraction(_DEVICE_BITS, bits)
    if frame_bits(framing, 0) or framing["cells"] or framing["expansion"][0] != 1:
        missing.append(
            f"{field}.framing: ns-3 adds {_PPP_BYTES} B to each packet: the rate is exact for "
            f"packets of {MTU_BYTES} B, and smaller ones take less of it than on the link"
        )
    if data["jitter_ns"]:
        missing.append(f"{field}.jitter: the delay of a channel of ns-3 is constant")
    rates = [
        (at, value and max(1, math.floor(value * factor))) for at, value in _steps(data["rate_bps"])
    ]
    if any(rate == 0 for _, rate in rates):
        missing.append(f"{field}.outage: a device of ns-3 never stops: it sends during outages")
    return {
        "rates": [(at / NS_PER_S, f"{rate}bps") for at, rate in rates if rate],
        "delays": [(at / NS_PER_S, f"{value}ns") for at, value in _steps(data["delay_ns"])],
        "queue": _queue(data, bits, field, missing),
        "errors": _errors(data["channel"], bits, field, missing),
    }


def _steps(series: Mapping[str, Any]) -> Sequence[tuple[int, int]]:
    steps: Sequence[tuple[int, int]] = series.get("steps") or [(0, series["value"])]
    return steps


def _errors(
    channel: Mapping[str, Any], bits: int, field: str, missing: list[str]
) -> dict[str, Any] | None:
    """Return the error model of a channel; None if it loses no packet."""
    if channel["kind"] == "gilbert_elliott":
        good, bad = channel["good"], channel["bad"]
        times = [state["mean_duration_ns"] for state in (good, bad)]
        share = sum(
            state["mean_duration_ns"] / sum(times) * lost_share(state, bits)
            for state in (good, bad)
        )
        missing.append(
            f"{field}.errors: losses are independent, at the mean of both states: bursts are "
            "shorter and come more often than on the link"
        )
        return {"rate": f"{share:.9g}", "unit": "PACKET"}
    steps = channel.get("steps", [channel])
    if len(steps) > 1:
        missing.append(f"{field}.errors: have {len(steps)} steps: the script keeps the first")
    first = steps[0]
    errors, loss = first.get("bit_error_rate", 0.0), first.get("loss_rate", 0.0)
    if errors and loss:
        missing.append(
            f"{field}.bit_error_rate: a device of ns-3 has one error model: packets of all sizes "
            f"are lost as those of {MTU_BYTES} B"
        )
    if loss:
        return {"rate": f"{lost_share(first, bits):.9g}", "unit": "PACKET"}
    if not errors:
        return None
    missing.append(
        f"{field}.bit_error_rate: exact for packets of {MTU_BYTES} B: ns-3 counts the bits of a "
        f"packet and {_PPP_BYTES} B, not those of the framing"
    )
    # Of a bit of ns-3, which stands for so many on the link.
    return {"rate": f"{lost_share(first, bits / _DEVICE_BITS):.9g}", "unit": "BIT"}


def _queue(data: Mapping[str, Any], bits: int, field: str, missing: list[str]) -> dict[str, Any]:
    """Return the queue disc of a direction: its type and attributes."""
    queue, rate_bps, share = data["queue"], first_value(data["rate_bps"]), 1.0
    value, unit = _size(queue["limit"], rate_bps, bits)
    if queue["limit"]["unit"] in {"link_bytes", "time_ns"}:
        missing.append(
            f"{field}.queue.limit: counts link bytes, and ns-3 IP bytes: exact for packets of "
            f"{MTU_BYTES} B"
        )
    attributes: dict[str, str] = {}
    kind = "Fifo"
    match queue["discipline"]:
        case "codel" | "fq_codel":
            kind = "CoDel" if queue["discipline"] == "codel" else "FqCoDel"
            attributes = {
                "Target": f"{queue['target_ns']}ns",
                "Interval": f"{queue['interval_ns']}ns",
                "UseEcn": json.dumps(queue["ecn"]),
            }
            if kind == "FqCoDel":
                attributes["Flows"] = str(queue["queues"])
                # It counts packets only.
                value, unit = _packets(value, unit)
        case "red":
            kind, attributes = "Red", _red(queue, data, rate_bps)
            if queue["unit"] == "packets":
                value, unit = _packets(value, unit)
            elif unit == "p":
                value, unit = value * MTU_BYTES, "B"
        case "early_packet_discard":
            # It drops whole packets that arrive above the threshold.
            share = queue["threshold"]
        case "drop_tail":
            pass
        case discipline:
            missing.append(
                f"{field}.queue.discipline: ns-3 has no {discipline}: a drop-tail queue with the "
                "same limit serves all flows alike, whatever their classes"
            )
    return {
        "type": f"ns3::{kind}QueueDisc",
        "attributes": {"MaxSize": f"{max(1, math.ceil(value * share))}{unit}", **attributes},
    }


def _size(limit: Mapping[str, Any], rate_bps: int, bits: int) -> tuple[int, str]:
    """Return a limit with ns-3's unit: IP bytes, or packets less the one that the device holds."""
    value = limit.get("value", 0)
    if limit["unit"] == "packets":
        return max(1, value - 1), "p"
    if limit["unit"] == "unlimited":
        return _UNLIMITED_PACKETS, "p"
    link_bits = {
        "bytes": Fraction(value * bits, MTU_BYTES),
        "link_bytes": Fraction(value * BITS_PER_BYTE),
        "time_ns": Fraction(value * rate_bps, NS_PER_S),
    }[limit["unit"]]
    # The device holds one packet of it.
    return max(MTU_BYTES, math.ceil(link_bits * MTU_BYTES / bits) - MTU_BYTES), "B"


def _packets(value: int, unit: str) -> tuple[int, str]:
    return (value if unit == "p" else max(1, value // MTU_BYTES)), "p"


def _red(queue: Mapping[str, Any], data: Mapping[str, Any], rate_bps: int) -> dict[str, str]:
    return {
        "MinTh": str(queue["min_threshold"]),
        "MaxTh": str(queue["max_threshold"]),
        "QW": f"{queue['weight']:g}",
        "LInterm": f"{1 / queue['max_probability']:g}",
        "Gentle": json.dumps(queue["gentle"]),
        "MeanPktSize": str(queue["mean_packet_bytes"]),
        "LinkBandwidth": f"{rate_bps}bps",
        "LinkDelay": f"{series_values(data['delay_ns'])[0]}ns",
        "UseEcn": json.dumps(queue["ecn"]),
        "UseHardDrop": "false",
    }


# --- traffic -------------------------------------------------------------------------------------


def _flows(
    plan: Plan, hosts: dict[tuple[Any, ...], int], missing: list[str]
) -> Iterator[dict[str, Any]]:
    """Yield the flows that ns-3 has applications for, and number the hosts that they run on."""
    for number, flow in zip(plan.entry_of_flow, plan.data["flows"], strict=True):
        workload, field = flow["workload"], f"traffic.{number}"
        kind, start_ns = workload["kind"], flow["start_ns"]
        if kind not in {"bulk", "constant_rate", "voice"}:
            missing.append(f"{field}: {kind}: left out, so the link is less loaded by it")
            continue
        if flow["start_jitter_ns"]:
            missing.append(f"{field}.start_jitter: ns-3 draws no starts: its flows are in phase")
        if workload.get("talk_spurts"):
            missing.append(f"{field}.silence_suppression: the flow sends in pauses, too")
        delays_ns = _host_delays(plan, flow, field, missing)
        remaining = {"unit": "duration_ns", "value": workload.get("duration_ns")}
        amount = workload.get("amount", remaining)
        is_timed = amount["unit"] == "duration_ns"
        end_ns = start_ns + amount["value"] if is_timed else plan.data["stop_ns"]
        control = workload["sender"]["congestion_control"] if kind == "bulk" else ""
        payload_bytes = workload.get("payload_bytes", 0)
        if kind != "bulk" and payload_bytes < _DATAGRAM_BYTES_MIN:
            missing.append(
                f"{field}.payload: datagrams of ns-3 have {_DATAGRAM_BYTES_MIN} B at least: the "
                "flow has more bytes, not more packets"
            )
            payload_bytes = _DATAGRAM_BYTES_MIN
        yield {
            "name": _text(flow["name"]),
            "is_forward": flow["direction"] == "forward",
            "start_s": start_ns / NS_PER_S,
            "stop_s": min(end_ns, plan.data["stop_ns"]) / NS_PER_S,
            "size_bytes": 0 if is_timed else amount["value"],
            "payload_bytes": payload_bytes,
            "interval_ns": datagram_interval_ns(workload),
            "hosts": hosts.setdefault((control, *delays_ns), len(hosts)),
        }


def _host_delays(
    plan: Plan, flow: Mapping[str, Any], field: str, missing: list[str]
) -> tuple[int, int]:
    """Return the delays of the lines of a flow's hosts, in ns: behind the hub and the terminal."""
    delays_ns = []
    for side in ("world_host", "island_host"):
        choice, delay_ns = flow[side], 0
        if choice is not None and choice["kind"] == "random":
            missing.append(f"{field}.{side}: ns-3 draws no host: it is one without delay")
        elif choice is not None:
            host = plan.data["hosts"][choice["host"]]
            delay_ns = host["delay_ns"]
            if host["rate_bps"] or host["jitter_ns"]:
                missing.append(f"{field}.{side}: its line has 10 Gbit/s, and no jitter")
        delays_ns.append(delay_ns)
    return delays_ns[0], delays_ns[1]


def _socket_defaults(tcps: list[Mapping[str, Any]], missing: list[str]) -> list[tuple[str, str]]:
    """Return the defaults of all TCP sockets, which are those of the first flow."""
    if not tcps:
        return []
    first = tcps[0]
    names = {name for name, _, _ in _SOCKETS} | {"mss_bytes", "receive_buffer_bytes", "ecn"}
    differing = sorted(name for name in names if any(tcp[name] != first[name] for tcp in tcps))
    if differing:
        missing.append(
            f"traffic.*.tcp: sockets of ns-3 share their settings: {', '.join(differing)} are "
            "those of the first flow"
        )
    if first["rack_tlp"]:
        missing.append(
            "traffic.*.tcp.rack_tlp: ns-3 has neither RACK nor tail loss probes: losses at the end "
            "of a transfer wait for a timeout"
        )
    missing.append(
        "traffic.*.tcp: TCP is that of ns-3, whose receive buffer is not tuned and whose pacing, "
        "HyStart and recovery differ from Linux"
    )
    # ns-3 does not count the option in its segments.
    options = TIMESTAMPS_BYTES if first["timestamps"] else 0
    segment = min(first["mss_bytes"], MTU_BYTES - TCP_IP_BYTES) - options
    window = first["receive_buffer_bytes"] * _WINDOW_SHARE[first["receive_buffer_counts"]]
    recovery = "TcpPrrRecovery" if first["prr"] else "TcpClassicRecovery"
    return [
        ("ns3::TcpSocket::SegmentSize", str(segment)),
        ("ns3::TcpSocket::RcvBufSize", str(math.floor(window))),
        ("ns3::TcpSocketBase::UseEcn", "On" if first["ecn"] else "Off"),
        ("ns3::TcpL4Protocol::RecoveryType", f"ns3::{recovery}"),
        *((attribute, form.format(str(first[name]).lower())) for name, attribute, form in _SOCKETS),
    ]
