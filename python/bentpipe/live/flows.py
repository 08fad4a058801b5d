"""The flows of a plan in real time, each with the programs of its workload.

iperf3 ends a test over its control connection, which bypasses the link, so the receiver would not
count the data in flight. Therefore no sender ends a test: at the end of a duration it is stopped
(SIGSTOP), while the kernel and the link still deliver what it wrote; a transfer of a given size is
requested by the receiver (``--reverse``), which ends the test once it has received everything.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, Literal

from bentpipe.errors import MachineError
from bentpipe.gateway import machine
from bentpipe.gateway.kernel_tcp import congestion_control, socket_options
from bentpipe.live.devtools import START_TIMEOUT_S, installed_browser
from bentpipe.live.lab_setup import hosts_of, mtu_bytes, start_of, traffic_class
from bentpipe.live.local_lab import IPERF3_PORT, LocalLab
from bentpipe.scenario.tcp import Side
from bentpipe.units import NS_PER_S

if TYPE_CHECKING:
    from bentpipe import _core

# The workloads of `bentpipe.live.exchanges`.
_EXCHANGES: Final = frozenset({"request_response", "video"})
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
_NS_PER_US: Final = 1_000
_OTHER: Final[dict[Side, Side]] = {"world": "island", "island": "world"}


Role = Literal["client", "server"]
End = Literal["sender", "receiver"]
ProgramReport = dict[str, Any]
State = Literal["waiting", "running", "stopped", "over"]


@dataclass(kw_only=True)
class Flow:
    """One flow of the plan: two programs, the client and the server."""

    index: int
    plan: Mapping[str, Any]
    iperf3: str
    interval_ns: int
    mtu_bytes: int
    hosts: dict[Side, str]
    start_ns: int
    traffic_class: int
    state: State = "waiting"
    _processes: dict[str, int] = field(default_factory=dict)
    _programs: dict[str, list[int]] = field(default_factory=dict)
    _codes: dict[str, int] = field(default_factory=dict)
    _outputs: dict[str, IO[bytes]] = field(default_factory=dict)

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
        """Return whether it is a TCP flow."""
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
        side = _OTHER[self.client]
        self._spawn(lab, "server", side, self._command("server", lab))
        lab.wait_for_server(self.hosts[side], self.port)

    def start(self, lab: LocalLab) -> None:
        """Start the client."""
        self._spawn(lab, "client", self.client, self._command("client", lab))
        self.state = "running"

    def _command(self, role: Role, lab: LocalLab) -> list[str]:
        """Return the command of the client or the server."""
        seconds = f"{self.interval_ns / NS_PER_S:g}"
        common = [self.iperf3, "--json", "--interval", seconds, "--port", str(self.port)]
        if role == "server":
            return [*common, "--server", "--one-off"]
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

    def _spawn(self, lab: LocalLab, which: Role, side: Side, command: list[str]) -> None:
        # It stays open as long as the flow exists.
        output = tempfile.TemporaryFile()  # noqa: SIM115
        self._outputs[which] = output
        self._processes[which] = lab.spawn(self.hosts[side], command, output=output.fileno())
        self._programs[which] = _children(self._processes[which])

    def check_client(self) -> None:
        """Note whether the client has ended by itself."""
        if self.state == "running" and self._has_ended("client"):
            self.state = "over"

    def stop_sending(self) -> None:
        """Stop the sending program (SIGSTOP); the kernel still delivers what it wrote."""
        self.state = "stopped"
        self._signal_program(self._role("sender"), signal.SIGSTOP)

    def end(self) -> None:
        """Ask both programs to end and to print their reports."""
        for which in self._processes:
            if not self._has_ended(which):
                # A stopped program handles the signal when it is continued.
                _kill(self._processes[which], signal.SIGINT)
        if self.state == "stopped":
            # The init process of the namespace forwards the signal asynchronously.
            time.sleep(_POLL_S)
            self._signal_program(self._role("sender"), signal.SIGCONT)

    def wait(self, until_s: float) -> None:
        """Wait until both have ended; kill them at ``until_s`` on the monotonic clock."""
        for which, process in self._processes.items():
            while not self._has_ended(which):
                if time.monotonic() > until_s:
                    _kill(process, signal.SIGKILL)
                time.sleep(_POLL_S)

    def program_report(self, which: End) -> ProgramReport | None:
        """Return what the sending or the receiving program did; None without a report of it.

        Both have ``bytes``, of the application. A sender has ``congestion_control``,
        ``retransmitted_segments``, ``rtt_us`` (the least and the mean one, or None) and
        ``samples``: columns of ``flow_samples`` with ``at_ns``. A receiver has ``progress``, pairs
        of ``at_ns`` and bytes, and ``exchanges`` or ``pages``; one of iperf3 has ``end_s``.
        """
        try:
            report = json.loads(self._printed(self._role(which)))
        except ValueError:
            return None
        return self._read_report(which, report) if isinstance(report, dict) else None

    def _role(self, which: End) -> Role:
        return "client" if getattr(self, which) == self.client else "server"

    def _printed(self, role: Role) -> str:
        """Return what a program has printed; nothing of one that was not started."""
        if role not in self._outputs:
            return ""
        output = self._outputs[role]
        output.seek(0)
        return output.read().decode("utf-8", "replace")

    def _read_report(self, which: End, report: dict[str, Any]) -> ProgramReport | None:
        """Read a report of iperf3; its times are from the start of the data."""
        if (end := report.get("end")) is None:
            return None
        total = end.get("sum_sent" if which == "sender" else "sum_received", {})
        (stream,) = end.get("streams", [])[:1] or [{}]
        tcp = stream.get("sender", {})
        samples, progress = [], [(0, 0)]
        for interval in report["intervals"]:
            at_ns = round(interval["sum"]["end"] * NS_PER_S)
            progress.append((at_ns, progress[-1][1] + interval["sum"]["bytes"]))
            for of_stream in interval["streams"][:1]:
                rtt_ns = of_stream.get("rtt", 0) * _NS_PER_US or None
                cwnd_bytes = of_stream.get("snd_cwnd")
                samples.append({"at_ns": at_ns, "cwnd_bytes": cwnd_bytes, "srtt_ns": rtt_ns})
        return {
            "bytes": int(total.get("bytes", 0)),
            "end_s": total.get("end"),
            "congestion_control": end.get("sender_tcp_congestion"),
            "retransmitted_segments": tcp.get("retransmits"),
            "rtt_us": (tcp["min_rtt"], tcp["mean_rtt"]) if tcp.get("max_rtt") else None,
            "samples": samples,
            "progress": progress,
        }

    def congestion_control(self) -> str | None:
        """Return the congestion control that the sender's kernel used."""
        return (self.program_report("sender") or {}).get("congestion_control")

    def error_message(self) -> str | None:
        """Return why the client failed, unless it was ended."""
        if "client" not in self._codes or self._codes["client"] == 0:
            return None
        text = self._printed("client")
        try:
            error = str(json.loads(text).get("error", ""))
        except (ValueError, AttributeError):
            error = text.strip()
        return None if "client has terminated" in error else error or "it printed nothing"

    def _has_ended(self, which: str) -> bool:
        if which in self._codes:
            return True
        process, status = os.waitpid(self._processes[which], os.WNOHANG)
        if process:
            self._codes[which] = os.waitstatus_to_exitcode(status)
        return bool(process)

    def _signal_program(self, which: str, number: signal.Signals) -> None:
        """Send a signal that the init process of the program's namespace does not forward."""
        if self._has_ended(which):
            return
        for program in self._programs[which]:
            _kill(program, number)


def end_all(flows: list[Flow]) -> None:
    """End the programs of all flows, and wait for their reports."""
    until_s = time.monotonic() + _TIMEOUT_S
    for flow in flows:
        flow.end()
    for flow in flows:
        flow.wait(until_s)


def _children(process: int) -> list[int]:
    found = (int(folder.name) for folder in Path("/proc").glob("[0-9]*"))
    return [each for each in found if machine.parent(each) == process]


def _kill(process: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(process, number)


# --- other workloads ----------------------------------------------------------------------------


@dataclass(kw_only=True)
class ExchangesFlow(Flow):
    """Requests and responses, or a video: the programs are `bentpipe.live.exchanges`."""

    seed: int
    start_timeout_s: float = 3.0

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
        self._spawn(lab, "client", self.client, self._command("client", lab))
        deadline = time.monotonic() + self.start_timeout_s
        output = self._outputs["client"].fileno()
        # Its first line is empty. The position in the file is the program's.
        while (first := os.pread(output, 1, 0)) != b"\n":
            if self._has_ended("client") or time.monotonic() > deadline:
                why = self.error_message() if first else "the client does not start"
                raise MachineError(f"{self.plan['name']}: {why}")
            time.sleep(_POLL_S)

    def start(self, lab: LocalLab) -> None:
        """Tell the client to start."""
        del lab
        self._signal_program("client", signal.SIGUSR1)
        self.state = "running"

    def _read_report(self, which: End, report: dict[str, Any]) -> ProgramReport | None:
        """Return a report: `SenderReport` of a sender, ``exchanges`` or ``pages`` of a receiver."""
        del which
        return report

    def _command(self, role: Role, lab: LocalLab) -> list[str]:
        program = ["-m", "bentpipe.live.exchanges", role]
        return [sys.executable, *program, json.dumps(self._settings(lab))]

    def _settings(self, lab: LocalLab) -> dict[str, Any]:
        """Return what both programs are told."""
        return {
            "name": self.plan["name"],
            "seed": self.seed,
            "workload": self.workload,
            "address": lab.core.address(self.hosts[self.sender]),
            "traffic_class": self.traffic_class,
            "port": self.port,
            **socket_options(self.workload["server"], self.mtu_bytes),
            "interval_s": self.interval_ns / NS_PER_S,
        }


@dataclass(kw_only=True)
class WebPageFlow(ExchangesFlow):
    """Web pages: `bentpipe.live.page_server`, and Chromium driven by ``page_client``."""

    browser: str
    start_timeout_s: float = START_TIMEOUT_S

    def _command(self, role: Role, lab: LocalLab) -> list[str]:
        settings = {**self._settings(lab), "browser": self.browser}
        return [sys.executable, "-m", f"bentpipe.live.page_{role}", json.dumps(settings)]


@dataclass(kw_only=True)
class ChannelFlow(Flow):
    """One channel. It has no programs; `start_channels` runs all channels of a lab, in threads."""

    servers: Sequence[str]
    report: Mapping[str, Any] | None = None

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

    def program_report(self, which: End) -> ProgramReport | None:
        """Return what one end did, as other flows do; None before the end of the run."""
        if self.report is None:
            return None
        if which == "receiver":
            exchanges = [
                {**each, "request_bytes": 0, "response_bytes": each["bytes"]}
                for each in self.report["connections"]
            ]
            return {"bytes": self.report["received_bytes"], "exchanges": exchanges}
        sent, name = self.report["sent"], self.workload["server"]["congestion_control"]
        mean_us = sent["rtt_sum_us"] / max(1, sent["connections"])
        return {
            **sent,
            "bytes": sent["sent_bytes"],
            "congestion_control": congestion_control(name),
            "rtt_us": None if sent["rtt_min_us"] is None else (sent["rtt_min_us"], mean_us),
            "samples": [],
        }


def start_channels(
    lab: LocalLab, plan: Mapping[str, Any], seed: int, flows: Sequence[Flow]
) -> _core.Channels | None:
    """Open the servers of all channels, and start the threads of the clients, which wait.

    Raises:
        MachineError: there are not enough file descriptors, or a port is in use.
    """
    settings = [flow.settings() for flow in flows if isinstance(flow, ChannelFlow)]
    return lab.start_channels(plan, seed, settings) if settings else None


def finish_channels(running: _core.Channels, flows: Sequence[Flow]) -> None:
    """End all channels, and note what each did. The link must have stopped."""
    reports = {report["flow"]: report for report in json.loads(running.finish())}
    for flow in flows:
        if isinstance(flow, ChannelFlow):
            flow.report = reports[flow.index]


def failures_of(flows: Sequence[Flow]) -> dict[str, int]:
    """Return how many connections of all channels failed, by cause."""
    reports = [flow.report for flow in flows if isinstance(flow, ChannelFlow) and flow.report]
    return {name: sum(report["failures"][name] for report in reports) for name in _FAILURES}


def failure_warnings(flows: Sequence[Flow]) -> Iterator[str]:
    """Yield a warning if connections of channels failed."""
    failed = {_FAILURES[name]: count for name, count in failures_of(flows).items() if count}
    if failed:
        causes = ", ".join(f"{count:,} {cause}" for cause, count in failed.items())
        yield f"connections of channels failed: {causes}"


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


def programs(plan: Mapping[str, Any], seed: int) -> list[Flow]:
    """Return the flows of a plan; their programs are not started.

    Raises:
        MachineError: a program is not installed.
    """
    iperf3, browser = shutil.which("iperf3") or "", installed_browser() or ""
    kinds = {flow["workload"]["kind"] for flow in plan["flows"]}
    if not iperf3 and kinds - _EXCHANGES - {"web_page", "channel"}:
        raise MachineError("iperf3 is not installed; to fix it: apt install iperf3")
    if "web_page" in kinds:
        _require_browser(browser, plan)
    interval_ns = max(plan["sample_interval_ns"] or NS_PER_S, MIN_INTERVAL_NS)
    mtu = mtu_bytes(plan)
    flows: list[Flow] = []
    for i, flow in enumerate(plan["flows"]):
        common = {"index": i, "plan": flow, "iperf3": iperf3}
        common |= {"interval_ns": interval_ns, "mtu_bytes": mtu}
        common |= {"hosts": hosts_of(plan, flow, seed), "start_ns": start_of(flow, seed)}
        common |= {"traffic_class": traffic_class(plan, flow)}
        kind = flow["workload"]["kind"]
        if kind in _EXCHANGES:
            flows.append(ExchangesFlow(**common, seed=seed))
        elif kind == "channel":
            servers = [plan["hosts"][host]["name"] for host in flow["workload"]["servers"]]
            flows.append(ChannelFlow(**common, servers=servers))
        elif kind == "web_page":
            flows.append(WebPageFlow(**common, seed=seed, browser=browser))
        else:
            flows.append(Flow(**common))
    return flows
