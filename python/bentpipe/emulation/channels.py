"""Channels in real time: threads of the lab with kernel sockets (`crates/live/src/channels`)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from bentpipe.emulation.iperf3 import End, Flow, ProgramReport
from bentpipe.gateway.kernel_tcp import congestion_control, socket_options

if TYPE_CHECKING:
    from bentpipe import _core
    from bentpipe.lab.local import LocalLab

# Why a connection failed, as `Failures` of `crates/live/src/channels/client.rs` counts it.
_FAILURES: Final = {
    "reset": "reset",
    "timed_out": "timed out",
    "truncated": "closed before the end",
    "other": "failed otherwise",
}


@dataclass(kw_only=True)
class ChannelFlow(Flow):
    """One channel. It has no programs; `Channels` runs all channels of a lab."""

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
