"""TCP_INFO of the flows' connections while they run, read by inet_diag.

Both ends are in namespaces of the lab, so one sample has the sender's window and the bytes that the
receiver has. If the kernel has no inet_diag, only the reports of iperf3 are used.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from bentpipe.emulation.iperf3 import Flow
from bentpipe.lab.local import LocalLab

# linux/tcp.h, TCP_INFINITE_SSTHRESH: no congestion so far.
UNKNOWN_SSTHRESH: Final = 0x7FFF_FFFF
# An iperf3 client begins each stream with the cookie of the test (COOKIE_SIZE of iperf.h).
_COOKIE_BYTES: Final = 37
# The kernel counts the SYN as an acknowledged byte.
_SYN_BYTES: Final = 1
_NS_PER_US: Final = 1_000

Connection = dict[str, Any]


@dataclass
class Watched:
    """Samples of one flow: rows of ``flow_samples``, and the last TCP_INFO of the sender."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    sender: Connection | None = None
    # Whether the sender's connection was open when the link stopped.
    to_the_end: bool = False
    # Data that the sender's kernel had not sent when the sending program was stopped.
    unsent_bytes: int = 0


def watch(
    lab: LocalLab,
    flows: list[Flow],
    report: dict[str, Any],
    origin_ns: int,
    watched: dict[int, Watched],
) -> None:
    """Sample each bulk flow; ``origin_ns`` is the start of the run on the clock of the lab."""
    bulk = [flow for flow in flows if flow.workload["kind"] == "bulk" and flow.state != "waiting"]
    if not bulk:
        return
    hosts = {host for flow in bulk for host in flow.hosts.values()}
    ends = {host: lab.connections(host) for host in sorted(hosts)}
    at_ns = lab.now_ns() - origin_ns
    for flow in bulk:
        control_port = report["control_ports"][flow.port]
        sender, receiver = (
            _end(
                ends[flow.hosts[side]],
                flow,
                is_client=side == flow.client,
                control_port=control_port,
            )
            for side in (flow.sender, flow.receiver)
        )
        seen = watched.setdefault(flow.index, Watched())
        seen.to_the_end = sender is not None
        if sender is not None:
            seen.sender = sender
            seen.rows.append(_row(flow, at_ns, sender, receiver))


def note_unsent(
    lab: LocalLab, flow: Flow, report: dict[str, Any], watched: dict[int, Watched]
) -> None:
    """Record the unsent data of a flow when its sending program has just been stopped.

    The kernel still sends it, whereas the simulator never does, so it does not count as data of the
    flow.
    """
    sender = _end(
        lab.connections(flow.hosts[flow.sender]),
        flow,
        is_client=flow.sender == flow.client,
        control_port=report["control_ports"][flow.port],
    )
    if sender is not None:
        watched.setdefault(flow.index, Watched()).unsent_bytes = sender["notsent_bytes"]


def acked_bytes(flow: Flow, sender: Connection) -> int:
    """Return the bytes of data that were acknowledged."""
    extra = _SYN_BYTES + (_COOKIE_BYTES if flow.client == flow.sender else 0)
    return max(0, int(sender["bytes_acked"]) - extra)


def moment_of(rows: list[dict[str, Any]], column: str, amount: int) -> int | None:
    """Return when a counter reached an amount, interpolated; None if it never did."""
    before = {"time_ns": 0, column: 0}
    for row in rows:
        if row.get(column) is None:
            continue
        if row[column] >= amount:
            grown = row[column] - before[column]
            share = (amount - before[column]) / grown if grown else 1.0
            return int(before["time_ns"] + share * (row["time_ns"] - before["time_ns"]))
        before = row
    return None


def up_to(row: dict[str, Any], max_bytes: int | None) -> dict[str, Any]:
    """Return a row of samples without bytes beyond ``max_bytes``, which the flow does not count."""
    if max_bytes is None:
        return row
    counts = {name: row[name] for name in ("acked_bytes", "delivered_bytes") if name in row}
    return row | {name: min(count, max_bytes) for name, count in counts.items()}


def _end(
    ends: list[Connection], flow: Flow, *, is_client: bool, control_port: int | None
) -> Connection | None:
    """Return one end of the flow's second connection; the first one bypasses the link."""
    own, other = ("remote_port", "local_port") if is_client else ("local_port", "remote_port")
    found = (end for end in ends if end[own] == flow.port and end[other] != control_port)
    return next(found, None)


def _row(flow: Flow, at_ns: int, sender: Connection, receiver: Connection | None) -> dict[str, Any]:
    mss, ssthresh = sender["snd_mss"], sender["snd_ssthresh"]
    out = sender["unacked"] - sender["sacked"] - sender["lost"] + sender["retrans"]
    row = {
        "time_ns": at_ns,
        "flow": flow.index,
        "cwnd_bytes": sender["snd_cwnd"] * mss,
        "ssthresh_bytes": None if ssthresh >= UNKNOWN_SSTHRESH else ssthresh * mss,
        "srtt_ns": sender["rtt_us"] * _NS_PER_US or None,
        "in_flight_bytes": max(0, out) * mss,
        "acked_bytes": acked_bytes(flow, sender),
    }
    if receiver is not None:
        cookie_bytes = _COOKIE_BYTES if flow.client == flow.sender else 0
        row["delivered_bytes"] = max(0, receiver["bytes_received"] - cookie_bytes)
    return row
