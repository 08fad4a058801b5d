"""The record of a run in real time: reports of the link, and samples of the kernel's TCP.

TCP_INFO of the flows' connections is read by inet_diag while they run. Both ends are in namespaces
of the lab, so one sample has the sender's window and the bytes that the receiver has. If the kernel
has no inet_diag, only the reports of iperf3 are used.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from bentpipe.emulation.flows import Flow
from bentpipe.emulation.sender import window_sample
from bentpipe.lab.local import LocalLab
from bentpipe.scenario.hosts import Side

# An iperf3 client begins each stream with the cookie of the test (COOKIE_SIZE of iperf.h).
_COOKIE_BYTES: Final = 37
# The kernel counts the SYN as an acknowledged byte.
_SYN_BYTES: Final = 1
# What the manifest has of the last report.
_COUNTS: Final = (
    "lateness",
    "wait",
    "rejected_packets",
    "kernel_dropped_packets",
    "store_full_packets",
    "too_long_packets",
    "future_stamped_packets",
    "clock_steps",
    "window_count",
    "invalid_windows",
    "capture",
    "fault",
    "invalid",
)

Connection = dict[str, Any]
Report = dict[str, Any]


@dataclass
class Watched:
    """Samples of one flow: rows of ``flow_samples``, and the last TCP_INFO of the sender."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    sender: Connection | None = None
    # Whether the sender's connection was open when the link stopped.
    to_the_end: bool = False
    # Data that the sender's kernel had not sent when the sending program was stopped.
    unsent_bytes: int = 0


@dataclass
class RunRecord:
    """The record of a run; ``started_ns`` and ``ended_ns`` are on the clock of the lab.

    ``monotonic_ns`` is the start on the machine's monotonic clock, ``samples`` are the reports of
    the link at the sample interval, and ``watched`` the samples of TCP_INFO by flow.
    """

    started_ns: int = 0
    monotonic_ns: int = 0
    ended_ns: int = 0
    samples: list[Report] = field(default_factory=list)
    watched: dict[int, Watched] = field(default_factory=dict)
    report: Report = field(default_factory=dict)
    completed: bool = False
    interrupted: bool = False

    @property
    def duration_ns(self) -> int:
        """The time from the start of the run to its end."""
        return self.ended_ns - self.started_ns


def flow_start_ns(flow: Flow, report: Report) -> int | None:
    """Return when the flow's first packet arrived at the link, on the clock of the lab."""
    sides = report["ports"][flow.port]
    side = flow.client if flow.is_tcp else flow.sender
    first_ns: int | None = sides[side]["offered"]["first_ns"]
    return first_ns


def verdict(report: dict[str, Any], started_ns: int) -> dict[str, Any]:
    """Return the verdict on a run that started at ``started_ns`` on the clock of the lab.

    Windows are on the clock of the run: those of the set-up start before 0.
    """
    windows = [
        {**window, **{name: window[name] - started_ns for name in ("start_ns", "end_ns")}}
        for window in report["windows"]
    ]
    return {**{name: report[name] for name in _COUNTS}, "windows": windows}


def watch(
    lab: LocalLab,
    flows: list[Flow],
    report: Report,
    origin_ns: int,
    watched: dict[int, Watched],
) -> None:
    """Sample each bulk flow; ``origin_ns`` is the start of the run on the clock of the lab."""
    bulk = [flow for flow in flows if flow.workload["kind"] == "bulk" and flow.state != "waiting"]
    if not bulk:
        return
    hosts = {host for flow in bulk for host in flow.hosts.values()}
    ends = {host: lab.core.connections(host) for host in sorted(hosts)}
    at_ns = lab.core.now_ns() - origin_ns
    for flow in bulk:
        sender, receiver = (
            _end(ends[flow.hosts[side]], flow, side, report)
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
    ends = lab.core.connections(flow.hosts[flow.sender])
    sender = _end(ends, flow, flow.sender, report)
    if sender is not None:
        watched.setdefault(flow.index, Watched()).unsent_bytes = sender["notsent_bytes"]


def acked_bytes(flow: Flow, sender: Connection) -> int:
    """Return the bytes of data that were acknowledged."""
    return max(0, int(sender["bytes_acked"]) - _SYN_BYTES - _cookie_bytes(flow))


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


def _end(ends: list[Connection], flow: Flow, side: Side, report: Report) -> Connection | None:
    """Return one end of the flow's second connection; the first one bypasses the link."""
    is_client, control_port = side == flow.client, report["control_ports"][flow.port]
    own, other = ("remote_port", "local_port") if is_client else ("local_port", "remote_port")
    found = (end for end in ends if end[own] == flow.port and end[other] != control_port)
    return next(found, None)


def _row(flow: Flow, at_ns: int, sender: Connection, receiver: Connection | None) -> dict[str, Any]:
    row = {
        "time_ns": at_ns,
        "flow": flow.index,
        **window_sample(sender, sender["rtt_us"]),
        "acked_bytes": acked_bytes(flow, sender),
    }
    if receiver is not None:
        row["delivered_bytes"] = max(0, receiver["bytes_received"] - _cookie_bytes(flow))
    return row


def _cookie_bytes(flow: Flow) -> int:
    return _COOKIE_BYTES if flow.client == flow.sender else 0
