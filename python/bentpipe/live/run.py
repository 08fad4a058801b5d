"""One run of a scenario in real time: iperf3, the kernel's TCP, and the link of the simulator."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from bentpipe.errors import MachineError
from bentpipe.live.capacity import refuse_beyond_capacity
from bentpipe.live.child import Parent, Send
from bentpipe.live.flow_report import window_sample
from bentpipe.live.flows import (
    Flow,
    WebPageFlow,
    end_all,
    failure_warnings,
    failures_of,
    finish_channels,
    flows_of,
    start_channels,
)
from bentpipe.live.gateways import pep_settings, refuse_functions, set_initial_windows
from bentpipe.live.local_lab import IPERF3_PORT, SIDES, LocalLab
from bentpipe.live.requirements import (
    Kernel,
    delayed_plan,
    kernel_of,
    lead_time_ns,
    longest_round_trip_ns,
    mtu_bytes,
    refuse,
    window_warnings,
)
from bentpipe.live.tables import (
    Connection,
    Report,
    RunRecord,
    Watched,
    acked_bytes,
    cookie_bytes,
    flow_start_ns,
    result_of,
)
from bentpipe.plan.plan import Plan
from bentpipe.results.files import capture_file, execution, incomplete_message, utc_now
from bentpipe.results.result import Result
from bentpipe.results.verdict import over_time
from bentpipe.scenario.tcp import Side
from bentpipe.units import NS_PER_S

_POLL_S: Final = 0.02
# A report has the packets of each flow: those of many flows take milliseconds.
_MANY_FLOWS: Final = 64
_POLL_MANY_S: Final = 0.2
# After all flows have stopped sending, a run ends when no packet moved for this time: several
# retransmission timeouts of a sender that lost its last segment.
_MIN_QUIET_NS: Final = 1_000_000_000
_QUIET_ROUND_TRIPS: Final = 4
_REPORT_EVERY_NS: Final = 500_000_000
# A constant-rate sender that sent less was delayed by other programs: the user is warned.
_MIN_SENT_SHARE: Final = 0.99

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
    "slowdown_percent",
    "capture",
    "fault",
    "invalid",
)

Settings = dict[Side, dict[str, str]]


def check_plan(plan: Plan) -> None:
    """Refuse the plan of a scenario that cannot be run in real time on this machine.

    Raises:
        ScenarioError: the scenario cannot be run in real time.
        MachineError: the machine lacks something.
    """
    data = plan.data
    refuse(plan)
    flows_of(data, plan.scenario.seed)
    kernel_of(data)
    refuse_functions([data], mtu_bytes(data))
    # With a PEP a lab passes super-packets.
    refuse_beyond_capacity([data], super_packets=bool(pep_settings([data])))


def run_emulation(
    plan: Plan, seed: int, capture: Path | None, is_watched: bool, parent: Parent
) -> Result:
    """Run a plan in real time in this process, a child of ``parent``.

    After SIGINT it returns what was recorded, marked interrupted. ``capture`` names a file to
    capture packets into. The manifest has the verdict on the run. A parent that watches it gets
    messages: each warning as a ``note``, and twice a second ``progress``, the fraction that is
    done, and the ``report`` of the lab.

    Raises:
        UsageError: the scenario cannot be run in real time, or the capture cannot be written.
        MachineError: the machine lacks something.
    """
    check_plan(plan)
    flows = flows_of(plan.data, seed)
    kernel = kernel_of(plan.data)
    send: Send = parent.send if is_watched else lambda _kind, _value: None
    warnings = window_warnings(plan)
    for warning in warnings:
        send("note", warning)
    started = utc_now()
    run = _Run(plan.data, flows, kernel, send)
    try:
        with capture_file(capture) as file:
            settings = run.execute(seed, file)
    finally:
        for program in (program for flow in flows for program in flow.programs.values()):
            program.close()
    record, reports = run.record, [flow.report() for flow in flows]
    late_warnings = [*failure_warnings(reports), *post_run_warnings(flows, record)]
    if (missing := incomplete_message(capture, record.report)) is not None:
        late_warnings.append(missing)
    for warning in late_warnings:
        send("note", warning)
    browsers = (flow.program for flow in flows if isinstance(flow, WebPageFlow))
    manifest = {
        "scenario": plan.scenario.to_dict(),
        "entries": plan.entries,
        "plan": plan.data,
        "seed": seed,
        "warnings": [asdict(warning) for warning in plan.warnings],
        "engine": "emulate",
        "emulation": {
            "kernel": os.uname().release,
            "iperf3": _version(shutil.which("iperf3")),
            "browser": _version(next(browsers, None)),
            "settings": settings,
            "congestion_controls": {
                flow.name: report.congestion_control
                for flow, report in zip(flows, reports, strict=True)
                if flow.is_tcp
            },
            "initial_window_segments": kernel.initial_window_segments,
            "failed_connections": failures_of(reports),
            **verdict(record.report, record.started_ns, record.duration_ns),
            "warnings": warnings + late_warnings,
        },
    }
    about = execution(started=started, settings=plan.scenario.document.changes)
    return result_of(manifest, flows, reports, record, about)


def post_run_warnings(flows: list[Flow], record: RunRecord) -> Iterator[str]:
    """Return warnings about flows; the verdict of the run is about the link alone."""
    for flow in flows:
        name = flow.name
        if (message := flow.error_message()) is not None:
            yield f"{name}: its program failed: {message}"
        elif not flow.is_tcp and flow.state == "stopped" and flow.duration_ns is not None:
            rate_bps, payload_bytes = flow.workload["rate_bps"], flow.workload["payload_bytes"]
            due = flow.duration_ns * rate_bps // (8 * NS_PER_S * payload_bytes)
            sent = record.report["ports"][flow.port][flow.sender]["offered"]["segments"]
            if sent < due * _MIN_SENT_SHARE - 1:
                yield f"{name}: iperf3 sent {sent:,} of {due:,} datagrams; the machine is too slow"


@dataclass
class _Run:
    """One run: its plan, its programs, and the record that it makes."""

    plan: Mapping[str, Any]
    flows: list[Flow]
    kernel: Kernel
    send: Send
    record: RunRecord = field(default_factory=RunRecord)
    # When the next report is recorded, and the next one is sent, from the start.
    _sample_ns: int = 0
    _report_ns: int = 0

    def execute(self, seed: int, capture: Path | None) -> Settings:
        """Run all flows over a lab; return the kernel settings that were in effect."""
        record = self.record
        lead_ns = lead_time_ns(self.plan)
        with LocalLab(
            plans=[delayed_plan(self.plan, lead_ns)],
            seed=seed,
            mtu_bytes=mtu_bytes(self.plan),
            settings=self.kernel.settings,
            control_ports=(IPERF3_PORT, IPERF3_PORT + len(self.flows) - 1),
            capture=capture,
        ) as lab:
            settings: Settings = {
                side: {name: _setting(lab, side, name) for name in self.kernel.settings}
                for side in SIDES
            }
            channels = None
            try:
                if self.kernel.initial_window_segments is not None:
                    set_initial_windows(lab.core, lab.plans, self.kernel.initial_window_segments)
                for flow in self.flows:
                    flow.listen(lab)
                channels = start_channels(lab, self.plan, seed, self.flows)
                self._start_clock(lab, lead_ns)
                if channels is not None:
                    channels.begin(record.monotonic_ns)
                record.completed = self._run_flows(lab)
            except KeyboardInterrupt:
                record.interrupted = True
            if record.started_ns:
                self._watch(lab, lab.report())
            # The link is stopped before the programs: no packet moves after the end.
            lab.stop()
            record.report = lab.report()
            record.ended_ns = record.ended_ns or record.report["at_ns"]
            record.started_ns = record.started_ns or record.ended_ns
            if channels is not None:
                finish_channels(channels, self.flows)
            end_all(self.flows)
        return settings

    def _start_clock(self, lab: LocalLab, lead_ns: int) -> None:
        """Start the clock of the run: now, or ``lead_ns`` after that of the lab if that is not 0.

        Raises:
            MachineError: the set-up took longer than that.
        """
        left_ns = lead_ns - lab.core.now_ns()
        if lead_ns and left_ns < 0:
            raise MachineError(
                f"the set-up took {-left_ns / NS_PER_S:.1f} s longer than the time before the "
                "link's first step; run it again when the machine is idle"
            )
        time.sleep(max(0, left_ns) / NS_PER_S)
        self.record.monotonic_ns, now_ns = time.monotonic_ns(), lab.core.now_ns()
        self.record.started_ns = lead_ns or now_ns
        self.record.monotonic_ns -= now_ns - self.record.started_ns

    def _run_flows(self, lab: LocalLab) -> bool:
        """Start and stop flows at their times; return whether all ended before the scenario did."""
        record, stop_ns = self.record, int(self.plan["stop_ns"])
        round_trip_ns = longest_round_trip_ns(self.plan)
        quiet_ns = max(_MIN_QUIET_NS, _QUIET_ROUND_TRIPS * round_trip_ns)
        while (now_ns := lab.core.now_ns() - record.started_ns) < stop_ns:
            report = lab.report()
            if self._take_sample(report):
                self._watch(lab, report)
            next_ns = min([stop_ns, *(self._advance(lab, f, report, now_ns) for f in self.flows)])
            if all(flow.state == "over" for flow in self.flows):
                return True
            if all(flow.state in {"stopped", "over"} for flow in self.flows):
                last_ns = _last_packet_ns(report)
                if record.started_ns + now_ns - last_ns > quiet_ns:
                    record.ended_ns = last_ns
                    return True
            if now_ns >= self._report_ns:
                self._report_ns = now_ns + _REPORT_EVERY_NS
                self.send("progress", now_ns / stop_ns)
                self.send("report", report)
            left_s = (next_ns + record.started_ns - lab.core.now_ns()) / NS_PER_S
            poll_s = _POLL_S if len(self.flows) <= _MANY_FLOWS else _POLL_MANY_S
            time.sleep(max(0.0, min(poll_s, left_s)))
        return False

    def _watch(self, lab: LocalLab, report: Report) -> None:
        """Sample the TCP_INFO of each bulk flow, by inet_diag.

        Both ends are in namespaces of the lab, so one sample has the sender's window and the bytes
        that the receiver has. If the kernel has no inet_diag, only the reports of iperf3 are used.
        """
        bulk = [flow for flow in self.flows if flow.workload["kind"] == "bulk"]
        bulk = [flow for flow in bulk if flow.state != "waiting"]
        hosts = {host for flow in bulk for host in flow.hosts.values()}
        ends = {host: lab.core.connections(host) for host in sorted(hosts)}
        at_ns = lab.core.now_ns() - self.record.started_ns
        for flow in bulk:
            sender, receiver = (
                _end(ends[flow.hosts[side]], flow, side, report)
                for side in (flow.sender, flow.receiver)
            )
            seen = self.record.watched.setdefault(flow.index, Watched())
            seen.to_the_end = sender is not None
            if sender is not None:
                seen.sender = sender
                # Before the handshake the kernel has defaults, such as segments of 524 bytes.
                if sender["rtt_us"]:
                    seen.rows.append(_row(flow, at_ns, sender, receiver))

    def _take_sample(self, report: Report) -> bool:
        """Record a report if one is due; return whether it was."""
        interval_ns = self.plan["sample_interval_ns"]
        at_ns = report["at_ns"] - self.record.started_ns
        if interval_ns is None or at_ns < self._sample_ns:
            return False
        self.record.samples.append(report)
        # On a grid, so that delays do not add up. A tenth of an interval early is in time: reports
        # come every 100 ms at best.
        periods = (at_ns + interval_ns // 10) // interval_ns + 1
        self._sample_ns = periods * interval_ns - interval_ns // 10
        return True

    def _advance(self, lab: LocalLab, flow: Flow, report: Report, now_ns: int) -> int:
        """Start or stop a flow if it is due; return when it is due next, from the start."""
        origin_ns = self.record.started_ns
        if flow.state == "waiting":
            if now_ns < flow.start_ns:
                return flow.start_ns
            flow.start(lab)
        flow.check_client()
        start_ns = flow_start_ns(flow, report)
        if flow.state == "running" and flow.duration_ns is not None and start_ns is not None:
            stop_ns = start_ns - origin_ns + flow.duration_ns
            if now_ns < stop_ns:
                return stop_ns
            flow.stop_sending()
            if flow.workload["kind"] == "bulk":
                ends = lab.core.connections(flow.hosts[flow.sender])
                sender = _end(ends, flow, flow.sender, report)
                seen = self.record.watched.setdefault(flow.index, Watched())
                # The kernel still sends it, whereas the simulator never does, so it does not count
                # as data of the flow.
                seen.unsent_bytes = 0 if sender is None else sender["notsent_bytes"]
        return sys.maxsize


def _setting(lab: LocalLab, host: str, name: str) -> str:
    """Return the value of a kernel setting of a host, as sysctl(8) prints it."""
    try:
        return " ".join(lab.core.setting(host, name).split())
    except OSError as error:
        raise MachineError(f"reading {name} on {host}: {error}") from None


def _last_packet_ns(report: Report) -> int:
    times_ns: list[int | None] = [
        traffic[place]["last_ns"]
        for sides in report["ports"].values()
        for traffic in sides.values()
        for place in ("offered", "delivered")
    ]
    return max((last_ns for last_ns in times_ns if last_ns is not None), default=0)


def verdict(report: dict[str, Any], started_ns: int, duration_ns: int) -> dict[str, Any]:
    """Return the verdict on a run that started at ``started_ns`` on the clock of the lab.

    Windows are on the clock of the run: those of the set-up start before 0.
    """
    report = over_time(report, duration_ns)
    windows = [
        {**window, **{name: window[name] - started_ns for name in ("start_ns", "end_ns")}}
        for window in report["windows"]
    ]
    return {**{name: report[name] for name in _COUNTS}, "windows": windows}


def _version(program: str | None) -> str:
    """Return the first line of what a program prints about its version."""
    if program is None:
        return ""
    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    return done.stdout.partition("\n")[0].strip()


def _end(ends: list[Connection], flow: Flow, side: Side, report: Report) -> Connection | None:
    """Return one end of the flow's second connection; the first one bypasses the link."""
    is_client, control_port = side == flow.client, report["control_ports"][flow.port]
    server_key, client_key = (
        ("remote_port", "local_port") if is_client else ("local_port", "remote_port")
    )
    data_ends = (
        end for end in ends if end[server_key] == flow.port and end[client_key] != control_port
    )
    return next(data_ends, None)


def _row(flow: Flow, at_ns: int, sender: Connection, receiver: Connection | None) -> dict[str, Any]:
    row = {
        "time_ns": at_ns,
        "flow": flow.index,
        **window_sample(sender, sender["rtt_us"]),
        "acked_bytes": acked_bytes(flow, sender),
    }
    if receiver is not None:
        row["delivered_bytes"] = max(0, receiver["bytes_received"] - cookie_bytes(flow))
    return row
