"""The flows of a plan in real time, each with the programs of its workload."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from bentpipe.emulation.devtools import START_TIMEOUT_S, installed_browser
from bentpipe.emulation.iperf3 import MIN_INTERVAL_NS, End, Flow, ProgramReport, Role
from bentpipe.emulation.lab_setup import hosts_of, mtu_bytes, start_of, traffic_class
from bentpipe.errors import MachineError
from bentpipe.gateway.kernel_tcp import congestion_control, socket_options
from bentpipe.lab.local import LocalLab
from bentpipe.scenario.hosts import Side
from bentpipe.units import NS_PER_S

if TYPE_CHECKING:
    from bentpipe import _core

# The workloads of `bentpipe.emulation.exchanges`.
_EXCHANGES: Final = frozenset({"request_response", "video"})
_POLL_S: Final = 0.01
# Why a connection failed, as `Failures` of `crates/live/src/channels/client.rs` counts it.
_FAILURES: Final = {
    "reset": "reset",
    "timed_out": "timed out",
    "truncated": "closed before the end",
    "other": "failed otherwise",
}


@dataclass(kw_only=True)
class ExchangesFlow(Flow):
    """Requests and responses, or a video: the programs are `bentpipe.emulation.exchanges`."""

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
        program = ["-m", "bentpipe.emulation.exchanges", role]
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
    """Web pages: `bentpipe.emulation.page_server`, and Chromium driven by ``page_client``."""

    browser: str
    start_timeout_s: float = START_TIMEOUT_S

    def _command(self, role: Role, lab: LocalLab) -> list[str]:
        settings = {**self._settings(lab), "browser": self.browser}
        return [sys.executable, "-m", f"bentpipe.emulation.page_{role}", json.dumps(settings)]


@dataclass(kw_only=True)
class ChannelFlow(Flow):
    """One channel. It has no programs; `Channels` runs all channels of a lab, in its threads."""

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


class Channels:
    """All channels of a run."""

    def __init__(self, plan: Mapping[str, Any], flows: Sequence[Flow]) -> None:
        self._plan = plan
        self._flows = {flow.index: flow for flow in flows if isinstance(flow, ChannelFlow)}
        self._running: _core.Channels | None = None

    def listen(self, lab: LocalLab, seed: int) -> None:
        """Open the servers, and start the threads of the clients, which wait.

        Raises:
            MachineError: there are not enough file descriptors, or a port is in use.
        """
        if self._flows:
            settings = [flow.settings() for flow in self._flows.values()]
            self._running = lab.start_channels(self._plan, seed, settings)

    def begin(self, monotonic_ns: int) -> None:
        """Start the clients of a run that began at this time of the monotonic clock."""
        if self._running is not None:
            self._running.begin(monotonic_ns)

    def finish(self) -> None:
        """End all channels, and note what each did. The link must have stopped."""
        if self._running is not None:
            for report in json.loads(self._running.finish()):
                self._flows[report["flow"]].report = report


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
