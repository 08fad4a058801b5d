"""Flows as pairs of iperf3 programs: how they are started, ended, and what they say.

iperf3 ends a test over its control connection, which is not on the link: whatever is still on its
way is lost to the receiver's count. So no test ends by itself but one that the receiver ends: a
sender whose time is over is stopped as a process, and the kernel and the link carry on what it
wrote. A transfer of some size is asked for by its receiver (``--reverse``), which ends it when it
has got all of it.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final, Literal

from bentpipe.emulation.hosts import hosts_of, traffic_class
from bentpipe.emulation.kernel import TCP_IP_BYTES, congestion_control, mtu_bytes
from bentpipe.errors import MachineError
from bentpipe.lab.lab import IPERF3_PORT, Lab, Side

# The shortest interval that iperf3 reports on.
MIN_INTERVAL_NS: Final = 100_000_000
# Longer than any run: our clock ends the tests.
_ENDLESS_SECONDS: Final = 86_400
# Small, so that what is counted, block by block, follows the time.
_BLOCK_BYTES: Final = 8_192
_LARGEST_PACING_TIMER_US: Final = 1_000
_SMALLEST_PACING_TIMER_US: Final = 100
_PATIENCE_SECONDS: Final = 3.0
_STEP_SECONDS: Final = 0.01
_OTHER: Final[dict[Side, Side]] = {"world": "island", "island": "world"}

Role = Literal["client", "server"]
State = Literal["waiting", "running", "stopped", "over"]


@dataclass(kw_only=True)
class Flow:
    """One flow of the plan, and the two programs that it is."""

    index: int
    plan: dict[str, Any]
    iperf3: str
    interval_ns: int
    mtu_bytes: int
    hosts: dict[Side, str]
    traffic_class: int
    state: State = "waiting"
    _processes: dict[str, int] = field(default_factory=dict)
    _programs: dict[str, list[int]] = field(default_factory=dict)
    _codes: dict[str, int] = field(default_factory=dict)
    _outputs: dict[str, IO[bytes]] = field(default_factory=dict)

    @property
    def port(self) -> int:
        """The port of its server."""
        return IPERF3_PORT + self.index

    @property
    def workload(self) -> dict[str, Any]:
        """What it is to do, from the plan."""
        workload: dict[str, Any] = self.plan["workload"]
        return workload

    @property
    def is_tcp(self) -> bool:
        """Whether it is a TCP flow."""
        return bool(self.workload["kind"] != "constant_rate")

    @property
    def sender(self) -> Side:
        """The side that its data come from."""
        return "world" if self.plan["direction"] == "forward" else "island"

    @property
    def receiver(self) -> Side:
        """The side that its data go to."""
        return _OTHER[self.sender]

    @property
    def size_bytes(self) -> int | None:
        """How much it transfers, if it is a transfer of some size."""
        amount = self.workload.get("amount", {})
        return int(amount["value"]) if amount.get("unit") == "bytes" else None

    @property
    def duration_ns(self) -> int | None:
        """How long it sends, if it is not a transfer of some size.

        The datagram that would be due at the end is not one of them.
        """
        if not self.is_tcp:
            workload = self.workload
            gap_ns = int(workload["payload_bytes"] * 8 * 10**9 // workload["rate_bps"])
            return int(workload["duration_ns"]) - gap_ns // 2
        amount = self.workload.get("amount", {})
        return int(amount["value"]) if amount.get("unit") == "duration_ns" else None

    @property
    def client(self) -> Side:
        """The side that opens the connections."""
        return self.sender if self.size_bytes is None else self.receiver

    def listen(self, lab: Lab) -> None:
        """Start its server, and wait until it listens."""
        side = _OTHER[self.client]
        self._spawn(lab, "server", side, self._command("server", lab))
        lab.wait_for_server(self.hosts[side], self.port)

    def start(self, lab: Lab) -> None:
        """Start its client, and so the flow."""
        self._spawn(lab, "client", self.client, self._command("client", lab))
        self.state = "running"

    def _command(self, role: Role, lab: Lab) -> list[str]:
        """Return the program of one end, and its arguments."""
        seconds = f"{self.interval_ns / 1e9:g}"
        common = [self.iperf3, "--json", "--interval", seconds, "--port", str(self.port)]
        if role == "server":
            return [*common, "--server", "--one-off"]
        server = lab.address(self.hosts[_OTHER[self.client]])
        tos = ["--tos", str(self.traffic_class)] if self.traffic_class else []
        return [*common, "--client", server, *tos, *self._asked()]

    def _asked(self) -> list[str]:
        workload = self.workload
        if not self.is_tcp:
            payload_bytes, rate_bps = workload["payload_bytes"], workload["rate_bps"]
            gap_us = payload_bytes * 8 * 1_000_000 // (4 * rate_bps)
            timer_us = max(_SMALLEST_PACING_TIMER_US, min(gap_us, _LARGEST_PACING_TIMER_US))
            return [
                *("--udp", "--bitrate", str(rate_bps), "--length", str(payload_bytes)),
                *("--time", str(_ENDLESS_SECONDS), "--pacing-timer", str(timer_us)),
            ]
        tcp = workload["sender"]
        asked = ["--congestion", congestion_control(tcp)]
        if tcp["mss_bytes"] != self.mtu_bytes - TCP_IP_BYTES:
            asked += ["--set-mss", str(tcp["mss_bytes"])]
        if self.size_bytes is None:
            return [*asked, "--length", str(_BLOCK_BYTES), "--time", str(_ENDLESS_SECONDS)]
        # So many equal blocks that less than one byte each is too much.
        blocks = -(-self.size_bytes // _BLOCK_BYTES)
        block_bytes = -(-self.size_bytes // blocks)
        return [*asked, "--length", str(block_bytes), "--bytes", str(self.size_bytes), "--reverse"]

    def _spawn(self, lab: Lab, which: Role, side: Side, command: list[str]) -> None:
        # It is open as long as the flow is: not a context.
        output = tempfile.TemporaryFile()  # noqa: SIM115
        self._outputs[which] = output
        self._processes[which] = lab.spawn(self.hosts[side], command, output=output.fileno())
        self._programs[which] = _children(self._processes[which])

    def look(self) -> None:
        """Notice whether its client has ended by itself."""
        if self.state == "running" and self._has_ended("client"):
            self.state = "over"

    def stop_sending(self) -> None:
        """Stop the sending program; what it wrote goes on its way."""
        self.state = "stopped"
        self._signal_program("client" if self.client == self.sender else "server", signal.SIGSTOP)

    def end(self) -> None:
        """Ask both programs to end and to say what they saw."""
        for which in self._processes:
            if not self._has_ended(which):
                # While it is stopped the wish waits: it does nothing else when it goes on.
                _kill(self._processes[which], signal.SIGINT)
        if self.state == "stopped":
            # The first process of its namespace passes the wish on in its own time.
            time.sleep(_STEP_SECONDS)
            self._signal_program(
                "client" if self.client == self.sender else "server", signal.SIGCONT
            )

    def wait(self, until: float) -> None:
        """Wait until both have ended, on the monotonic clock; end them by force after that."""
        for which, process in self._processes.items():
            while not self._has_ended(which):
                if time.monotonic() > until:
                    _kill(process, signal.SIGKILL)
                time.sleep(_STEP_SECONDS)

    def said(self, which: Literal["sender", "receiver"]) -> dict[str, Any] | None:
        """Return what the program at one end of the data reported; None if it said nothing."""
        role = "client" if getattr(self, which) == self.client else "server"
        output = self._outputs.get(role)
        if output is None:
            return None
        output.seek(0)
        try:
            report = json.load(output)
        except ValueError:
            return None
        return report if isinstance(report, dict) and "end" in report else None

    def congestion_control(self) -> str | None:
        """Return the congestion control that the kernel says it used at the sender."""
        report = self.said("sender")
        name: str | None = None if report is None else report["end"].get("sender_tcp_congestion")
        return name

    def complaint(self) -> str | None:
        """Return why the client failed, if it did so by itself."""
        if "client" not in self._codes or self._codes["client"] == 0:
            return None
        output = self._outputs["client"]
        output.seek(0)
        text = output.read(1 << 20).decode("utf-8", "replace")
        try:
            error = str(json.loads(text).get("error", ""))
        except (ValueError, AttributeError):
            error = text.strip()
        return None if "client has terminated" in error else error or "it said nothing"

    def _has_ended(self, which: str) -> bool:
        if which in self._codes:
            return True
        process, status = os.waitpid(self._processes[which], os.WNOHANG)
        if process:
            self._codes[which] = os.waitstatus_to_exitcode(status)
        return bool(process)

    def _signal_program(self, which: str, number: signal.Signals) -> None:
        """Send a signal that the first process of the program's namespace cannot pass on."""
        if self._has_ended(which):
            return
        for program in self._programs[which]:
            _kill(program, number)


@dataclass(kw_only=True)
class ExchangesFlow(Flow):
    """A flow of requests and responses, by our own programs: see `bentpipe.emulation.exchanges`."""

    seed: int

    @property
    def client(self) -> Side:
        """The side that asks; the data are the responses."""
        return self.receiver

    def listen(self, lab: Lab) -> None:
        """Start both programs: an interpreter that starts takes time that the run has not."""
        super().listen(lab)
        self._spawn(lab, "client", self.client, self._command("client", lab))
        patience = time.monotonic() + _PATIENCE_SECONDS
        while os.fstat(self._outputs["client"].fileno()).st_size == 0:
            if time.monotonic() > patience or self._has_ended("client"):
                raise MachineError(f"{self.plan['name']}: its client does not start")
            time.sleep(_STEP_SECONDS)

    def start(self, lab: Lab) -> None:
        """Tell its client to begin."""
        del lab
        self._signal_program("client", signal.SIGUSR1)
        self.state = "running"

    def _command(self, role: Role, lab: Lab) -> list[str]:
        tcp = self.workload["server"]
        is_largest = tcp["mss_bytes"] == self.mtu_bytes - TCP_IP_BYTES
        asked = {
            "name": self.plan["name"],
            "seed": self.seed,
            "workload": self.workload,
            "address": lab.address(self.hosts[self.sender]),
            "traffic_class": self.traffic_class,
            "port": self.port,
            "mss_bytes": None if is_largest else tcp["mss_bytes"],
            "congestion_control": congestion_control(tcp),
            "interval_s": self.interval_ns / 1e9,
        }
        return [sys.executable, "-m", "bentpipe.emulation.exchanges", role, json.dumps(asked)]


def programs(plan: dict[str, Any], seed: int) -> list[Flow]:
    """Return the flows of a plan as programs that are not started yet.

    Raises:
        MachineError: iperf3 is not installed.
    """
    iperf3 = shutil.which("iperf3") or ""
    kinds = {flow["workload"]["kind"] for flow in plan["flows"]}
    if not iperf3 and kinds - {"request_response"}:
        raise MachineError("iperf3 is not installed; install it, such as by: apt install iperf3")
    interval_ns = max(plan["sample_interval_ns"] or 10**9, MIN_INTERVAL_NS)
    mtu = mtu_bytes(plan)
    flows: list[Flow] = []
    for i, flow in enumerate(plan["flows"]):
        common = {"index": i, "plan": flow, "iperf3": iperf3}
        common |= {"interval_ns": interval_ns, "mtu_bytes": mtu}
        common |= {"hosts": hosts_of(plan, flow, seed)}
        common |= {"traffic_class": traffic_class(plan, flow)}
        if flow["workload"]["kind"] == "request_response":
            flows.append(ExchangesFlow(**common, seed=seed))
        else:
            flows.append(Flow(**common))
    return flows


def end_all(flows: list[Flow]) -> None:
    """End the programs of all flows, and wait for what they say."""
    until = time.monotonic() + _PATIENCE_SECONDS
    for flow in flows:
        flow.end()
    for flow in flows:
        flow.wait(until)


def _children(process: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The name, in parentheses, may hold anything; after it come the state and the parent.
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError, ValueError):
            continue
        if parent == process:
            found.append(int(stat.parent.name))
    return found


def _kill(process: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(process, number)
