"""The flows of a plan in real time, each with the programs of its workload.

iperf3 ends a test over its control connection, which bypasses the link, so the receiver would not
count the data in flight. Therefore no sender ends a test: at the end of a duration it is stopped
(SIGSTOP), while the kernel and the link still deliver what it wrote; a transfer of a given size is
requested by the receiver (``--reverse``), which ends the test once it has received everything.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from bentpipe.errors import MachineError
from bentpipe.live.browser import START_TIMEOUT_S, installed_browser
from bentpipe.live.capacity import errors_of_core
from bentpipe.live.flow_report import FlowReport
from bentpipe.live.kernel_tcp import congestion_control, socket_options
from bentpipe.live.local_lab import IPERF3_PORT, LocalLab
from bentpipe.live.programs import Program
from bentpipe.live.requirements import hosts_of, mtu_bytes, start_of, traffic_class
from bentpipe.scenario.tcp import Side
from bentpipe.units import NS_PER_S

if TYPE_CHECKING:
    from bentpipe import _core

# Why a connection failed, as `Failures` of `crates/live/src/channels/client.rs` counts it.
_FAILURES: Final = {
    "reset": "reset",
    "timed_out": "timed out",
    "truncated": "closed before the end",
    "other": "failed otherwise",
}
# The shortest report interval of iperf3.
MIN_INTERVAL_NS: Final = 100_000_000
# Longer than any run, which ends the tests itself.
_ENDLESS_S: Final = 86_400
# Small, because iperf3 counts whole blocks.
_BLOCK_BYTES: Final = 8_192
_LARGEST_PACING_TIMER_US: Final = 1_000
_SMALLEST_PACING_TIMER_US: Final = 100
_TIMEOUT_S: Final = 3.0
_POLL_S: Final = 0.01
_OTHER: Final[dict[Side, Side]] = {"world": "island", "island": "world"}

Role = Literal["client", "server"]
State = Literal["waiting", "running", "stopped", "over"]

# In place of one that was not started.
_NO_PROGRAM: Final = Program(0, code=0)


@dataclass(kw_only=True)
class Flow:
    """One flow of the plan: two programs, the client and the server, or threads of the lab.

    ``program`` is the path of iperf3, or of a browser, for flows that need one. ``servers`` are the
    hosts of servers that a client chooses from.
    """

    index: int
    plan: Mapping[str, Any]
    program: str
    interval_ns: int
    mtu_bytes: int
    hosts: dict[Side, str]
    start_ns: int
    traffic_class: int
    seed: int
    servers: Sequence[str] = ()
    state: State = "waiting"
    programs: dict[Role, Program] = field(default_factory=dict)
    # Whether the times in its report are on the machine's monotonic clock.
    has_clock: ClassVar[bool] = False
    read_reports: ClassVar[Callable[..., FlowReport]] = FlowReport.read_iperf3

    @property
    def name(self) -> str:
        """The name of the flow in the plan."""
        return str(self.plan["name"])

    @property
    def port(self) -> int:
        """The port of the server."""
        return IPERF3_PORT + self.index

    @property
    def workload(self) -> dict[str, Any]:
        """The workload of the plan."""
        workload: dict[str, Any] = self.plan["workload"]
        return workload

    @property
    def is_tcp(self) -> bool:
        """Whether it is a TCP flow."""
        return self.workload["kind"] not in {"constant_rate", "voice"}

    @property
    def sender(self) -> Side:
        """The side that sends the data."""
        return "world" if self.plan["direction"] == "forward" else "island"

    @property
    def receiver(self) -> Side:
        """The side that receives the data."""
        return _OTHER[self.sender]

    @property
    def size_bytes(self) -> int | None:
        """The size of a transfer; None for a flow with a duration."""
        amount = self.workload.get("amount", {})
        return int(amount["value"]) if amount.get("unit") == "bytes" else None

    @property
    def duration_ns(self) -> int | None:
        """How long it sends; None for a transfer of a given size.

        The datagram that is due at the very end is not sent.
        """
        if not self.is_tcp:
            workload = self.workload
            gap_ns = int(workload["payload_bytes"] * 8 * NS_PER_S // workload["rate_bps"])
            return int(workload["duration_ns"]) - gap_ns // 2
        amount = self.workload.get("amount", {})
        return int(amount["value"]) if amount.get("unit") == "duration_ns" else None

    @property
    def client(self) -> Side:
        """The side that opens the connections."""
        return self.sender if self.size_bytes is None else self.receiver

    def listen(self, lab: LocalLab) -> None:
        """Start the server, and wait until it listens."""
        self._spawn(lab, "server")
        lab.wait_for_server(self.hosts[_OTHER[self.client]], self.port)

    def start(self, lab: LocalLab) -> None:
        """Start the client."""
        self._spawn(lab, "client")
        self.state = "running"

    def _spawn(self, lab: LocalLab, role: Role) -> None:
        side = self.client if role == "client" else _OTHER[self.client]
        command = self._command(role, lab)
        self.programs[role] = Program.start(partial(lab.spawn, self.hosts[side], command))
        # A signal must not wait for it.
        self.programs[role].find_children()

    def _command(self, role: Role, lab: LocalLab) -> list[str]:
        seconds = f"{self.interval_ns / NS_PER_S:g}"
        common = [self.program, "--json", "--interval", seconds, "--port", str(self.port)]
        if role == "server":
            # With a socket of IPv6 it would not mark the packets that it sends over IPv4.
            return [*common, "--server", "--version4", "--one-off"]
        server = lab.core.address(self.hosts[_OTHER[self.client]])
        tos = ["--tos", str(self.traffic_class)] if self.traffic_class else []
        return [*common, "--client", server, *tos, *self._client_options()]

    def _client_options(self) -> list[str]:
        workload = self.workload
        if not self.is_tcp:
            payload_bytes, rate_bps = workload["payload_bytes"], workload["rate_bps"]
            gap_us = payload_bytes * 8 * 1_000_000 // (4 * rate_bps)
            timer_us = max(_SMALLEST_PACING_TIMER_US, min(gap_us, _LARGEST_PACING_TIMER_US))
            return [
                *("--udp", "--bitrate", str(rate_bps), "--length", str(payload_bytes)),
                *("--time", str(_ENDLESS_S), "--pacing-timer", str(timer_us)),
            ]
        options = socket_options(workload["sender"], self.mtu_bytes)
        asked = ["--congestion", options["congestion_control"]]
        if options["mss_bytes"] is not None:
            asked += ["--set-mss", str(options["mss_bytes"])]
        if self.size_bytes is None:
            return [*asked, "--length", str(_BLOCK_BYTES), "--time", str(_ENDLESS_S)]
        # Equal blocks, so that the last one exceeds the size by less than one byte for each.
        blocks = -(-self.size_bytes // _BLOCK_BYTES)
        block_bytes = -(-self.size_bytes // blocks)
        return [*asked, "--length", str(block_bytes), "--bytes", str(self.size_bytes), "--reverse"]

    def check_client(self) -> None:
        """Note whether the client has ended by itself."""
        if self.state == "running" and self.programs["client"].has_ended():
            self.state = "over"

    def stop_sending(self) -> None:
        """Stop the sending program (SIGSTOP); the kernel still delivers what it wrote."""
        self.state = "stopped"
        self._program(self.sender).signal(signal.SIGSTOP, directly=True)

    def end(self) -> None:
        """Ask both programs to end and to print their reports."""
        for program in self.programs.values():
            # A stopped program handles the signal when it is continued.
            program.signal(signal.SIGINT)
        if self.state == "stopped":
            # The init process of the namespace forwards the signal asynchronously.
            time.sleep(_POLL_S)
            self._program(self.sender).signal(signal.SIGCONT, directly=True)

    def wait(self, until_s: float) -> None:
        """Wait until both have ended; kill them at ``until_s`` on the monotonic clock."""
        for program in self.programs.values():
            while not program.has_ended():
                if time.monotonic() > until_s:
                    program.signal(signal.SIGKILL)
                time.sleep(_POLL_S)

    def _program(self, side: Side) -> Program:
        role: Role = "client" if side == self.client else "server"
        return self.programs.get(role, _NO_PROGRAM)

    def report(self) -> FlowReport:
        """Return what its programs did, once they have ended."""
        ends = (self._program(side).report() for side in (self.sender, self.receiver))
        return self.read_reports(*ends)

    def error_message(self) -> str | None:
        """Return why the client failed, unless it was ended."""
        client = self.programs.get("client", _NO_PROGRAM)
        if not client.code:
            return None
        error = str(client.report().get("error", "")) if client.report() else client.text.strip()
        return None if "client has terminated" in error else error or "it printed nothing"


def end_all(flows: list[Flow]) -> None:
    """End the programs of all flows, and wait for their reports."""
    until_s = time.monotonic() + _TIMEOUT_S
    for flow in flows:
        flow.end()
    for flow in flows:
        flow.wait(until_s)


# --- other workloads ----------------------------------------------------------------------------


class ExchangesFlow(Flow):
    """Requests and responses, or a video: the programs are `bentpipe.live.exchanges`."""

    has_clock = True
    read_reports = FlowReport.read
    modules: ClassVar[dict[Role, str]] = {"client": "exchanges", "server": "exchanges"}
    start_timeout_s: ClassVar[float] = 3.0

    @property
    def client(self) -> Side:
        """The side that sends requests and receives the data."""
        return self.receiver

    def listen(self, lab: LocalLab) -> None:
        """Start both programs: the start of an interpreter would delay the flow.

        Raises:
            MachineError: one does not start.
        """
        super().listen(lab)
        self._spawn(lab, "client")
        client, deadline = self.programs["client"], time.monotonic() + self.start_timeout_s
        # Its first line is empty.
        while client.first_byte() != b"\n":
            if client.has_ended() or time.monotonic() > deadline:
                # It may have said why since.
                why = self.error_message() if client.first_byte() else None
                raise MachineError(f"{self.name}: {why or 'the client does not start'}")
            time.sleep(_POLL_S)

    def start(self, lab: LocalLab) -> None:
        """Tell the client to start."""
        del lab
        self.programs["client"].signal(signal.SIGUSR1, directly=True)
        self.state = "running"

    def _command(self, role: Role, lab: LocalLab) -> list[str]:
        settings = {
            "role": role,
            "name": self.name,
            "seed": self.seed,
            "workload": self.workload,
            "address": lab.core.address(self.hosts[self.sender]),
            "traffic_class": self.traffic_class,
            "port": self.port,
            **socket_options(self.workload["server"], self.mtu_bytes),
            "interval_s": self.interval_ns / NS_PER_S,
            "browser": self.program,
        }
        module = f"bentpipe.live.{self.modules[role]}"
        return [sys.executable, "-m", module, json.dumps(settings)]


class WebPageFlow(ExchangesFlow):
    """Web pages: the programs are `bentpipe.live.page_server` and `bentpipe.live.browser`."""

    modules: ClassVar[dict[Role, str]] = {"client": "browser", "server": "page_server"}
    start_timeout_s = START_TIMEOUT_S


@dataclass(kw_only=True)
class ChannelFlow(Flow):
    """One channel. It has no programs; `start_channels` runs all channels of a lab, in threads."""

    counted: Mapping[str, Any] | None = None
    has_clock = True

    def listen(self, lab: LocalLab) -> None:
        """Do nothing: the servers of all channels are opened together."""

    def start(self, lab: LocalLab) -> None:
        """Note that the client has started by itself."""
        del lab
        self.state = "running"

    def check_client(self) -> None:
        """Do nothing: a client runs until the end of the run."""

    def settings(self) -> dict[str, Any]:
        """Return what the threads are told about the channel."""
        return {
            "flow": self.index,
            "port": self.port,
            "start_ns": self.start_ns,
            "client": self.hosts["island"],
            "servers": self.servers or [self.hosts["world"]],
            "traffic_class": self.traffic_class,
            **socket_options(self.workload["server"], self.mtu_bytes),
        }

    def report(self) -> FlowReport:
        """Return what both ends did; nothing before the end of the run."""
        if self.counted is None:
            return FlowReport()
        sent = dict(self.counted["sent"])
        count, rtt_sum_us = sent.pop("connections"), sent.pop("rtt_sum_us")
        return FlowReport(
            **sent,
            congestion_control=congestion_control(self.workload["server"]["congestion_control"]),
            rtt_mean_us=None if sent["rtt_min_us"] is None else rtt_sum_us / max(1, count),
            received_bytes=self.counted["received_bytes"],
            exchanges=[
                {**connection, "request_bytes": 0, "response_bytes": connection["bytes"]}
                for connection in self.counted["connections"]
            ],
            failures=self.counted["failures"],
        )


def start_channels(
    lab: LocalLab, plan: Mapping[str, Any], seed: int, flows: Sequence[Flow]
) -> _core.Channels | None:
    """Open the servers of all channels, and start the threads of the clients, which wait.

    Raises:
        MachineError: there are not enough file descriptors, or a port is in use.
    """
    settings = [flow.settings() for flow in flows if isinstance(flow, ChannelFlow)]
    if not settings:
        return None
    with errors_of_core():
        return lab.core.start_channels(json.dumps(plan), seed, json.dumps(settings))


def finish_channels(running: _core.Channels, flows: Sequence[Flow]) -> None:
    """End all channels, and note what each did. The link must have stopped."""
    reports = {report["flow"]: report for report in json.loads(running.finish())}
    for flow in flows:
        if isinstance(flow, ChannelFlow):
            flow.counted = reports[flow.index]


# --- the flows of a plan ------------------------------------------------------------------------

_KINDS: Final = {
    "request_response": ExchangesFlow,
    "video": ExchangesFlow,
    "web_page": WebPageFlow,
    "channel": ChannelFlow,
}


def flows_of(plan: Mapping[str, Any], seed: int) -> list[Flow]:
    """Return the flows of a plan; their programs are not started.

    Raises:
        MachineError: a program is not installed.
    """
    kinds = {flow["workload"]["kind"] for flow in plan["flows"]}
    iperf3, browser = shutil.which("iperf3") or "", installed_browser() or ""
    if not iperf3 and kinds - set(_KINDS):
        raise MachineError("iperf3 is not installed; to fix it: apt install iperf3")
    if "web_page" in kinds:
        _require_browser(browser, plan)
    interval_ns = max(plan["sample_interval_ns"] or NS_PER_S, MIN_INTERVAL_NS)
    mtu = mtu_bytes(plan)
    return [
        _KINDS.get(flow["workload"]["kind"], Flow)(
            index=index,
            plan=flow,
            program=browser if flow["workload"]["kind"] == "web_page" else iperf3,
            interval_ns=interval_ns,
            mtu_bytes=mtu,
            hosts=hosts_of(plan, flow, seed),
            start_ns=start_of(flow, seed),
            traffic_class=traffic_class(plan, flow),
            seed=seed,
            servers=[plan["hosts"][host]["name"] for host in flow["workload"].get("servers", ())],
        )
        for index, flow in enumerate(plan["flows"])
    ]


def _require_browser(browser: str, plan: Mapping[str, Any]) -> None:
    if not browser:
        raise MachineError(
            "web pages in real time are loaded by Chromium, which is not installed; to fix it: "
            "apt install chromium"
        )
    with_tls = any(flow["workload"].get("tls") is not None for flow in plan["flows"])
    for package in ("cryptography", "h2"):
        if with_tls and importlib.util.find_spec(package) is None:
            raise MachineError(
                f"web pages by TLS: {package} is not installed; pip install 'bentpipe[web]'"
            )


# --- what their reports say -----------------------------------------------------------------------


def failures_of(reports: Iterable[FlowReport]) -> dict[str, int]:
    """Return how many connections of all channels failed, by cause."""
    failures = [report.failures for report in reports if report.failures]
    return {name: sum(counts[name] for counts in failures) for name in _FAILURES}


def failure_warnings(reports: Iterable[FlowReport]) -> Iterator[str]:
    """Yield a warning if connections of channels failed."""
    failed = {_FAILURES[name]: count for name, count in failures_of(reports).items() if count}
    if failed:
        causes = ", ".join(f"{count:,} {cause}" for cause, count in failed.items())
        yield f"connections of channels failed: {causes}"
