"""Labs of this process: hosts with programs, and the link between them in real time.

A lab belongs to the process that creates it: when the process ends, for whatever reason, the
kernel removes the lab's namespaces, interfaces and routes, and ends its programs. The machine's own
network is never changed.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from bentpipe import _core
from bentpipe.errors import InvalidRunError, MachineError, UsageError
from bentpipe.live import uplink
from bentpipe.live.capacity import errors_of_core, refuse_beyond_capacity
from bentpipe.live.gateways import RunningDaemons, pep_settings, refuse_functions
from bentpipe.live.programs import start_error
from bentpipe.results.verdict import judged, late_windows, over_time, verdict
from bentpipe.text import choice

if TYPE_CHECKING:
    from bentpipe.live.link_state import LinkChange
    from bentpipe.scenario.tcp import Side

SIDES: Final[tuple[Side, ...]] = ("world", "island")

IPERF3_PORT: Final = 5201
_LISTEN_TIMEOUT_S: Final = 5.0
_LISTEN_POLL_S: Final = 0.002


@dataclass(kw_only=True)
class LocalLab:
    """A running lab of this process, as a context: inside it the link moves packets.

    - ``plans``: the links in series, the world's first.
    - ``settings``: sysctls of the hosts.
    - ``control_ports``: the first and the last port of measuring servers; the first TCP connection
      to each bypasses the link.
    - ``capture``: the file that packets are captured into, complete once the link has stopped; the
      report counts the packets that are missing in it.
    - ``super_packets``: the kernels of both sides pass segments of up to 64 KiB, which are split
      before the link and coalesced behind it (TSO and GRO). Always so with a PEP: nothing slows a
      server's burst down on its way to it, and packets written one by one would be late.
    - ``gateways``: gateways are hosts of their own between their hosts and the link; those with a
      PEP or a tunnel are in any case, and `bentpipe.live.gateways` runs these there.
    - ``internet``: the world has an uplink to the Internet, which the island reaches over the link.

    ``core`` is the lab of the extension, once it is set up.
    """

    plans: Sequence[Mapping[str, Any]]
    seed: int = 1
    mtu_bytes: int = 1_500
    settings: Mapping[str, str] = field(default_factory=dict)
    control_ports: tuple[int, int] | None = None
    capture: Path | None = None
    super_packets: bool = False
    gateways: bool = False
    internet: bool = False
    core: _core.Lab = field(init=False)
    _thread: threading.Thread = field(init=False)
    _failure: list[BaseException] = field(init=False, default_factory=list)
    _uplink: uplink.Uplink | None = field(init=False, default=None)
    _daemons: RunningDaemons = field(init=False)

    @property
    def has_super_packets(self) -> bool:
        """Whether the kernels of both sides pass super-packets: always with a PEP."""
        return self.super_packets or bool(pep_settings(self.plans))

    def check(self) -> None:
        """Check that this machine carries the link, and has what its parts need.

        It resolves TCP settings of PEPs; the process that keeps the lab does not.

        Raises:
            MachineError: it does not.
            ScenarioError: a PEP or a tunnel cannot be run in real time.
        """
        refuse_beyond_capacity(self.plans, super_packets=self.has_super_packets)
        refuse_functions(self.plans, self.mtu_bytes)
        if self.internet:
            uplink.find_program()

    def __enter__(self) -> Self:
        """Set the lab up and start the link.

        Raises:
            MachineError: the machine lacks something, or does not allow it.
            UsageError: the link cannot be run in real time.
            OSError: the capture cannot be written.
        """
        settings = list(self.settings.items())
        with errors_of_core():
            self.core = _core.Lab(
                [json.dumps(plan) for plan in self.plans],
                self.seed,
                mtu=self.mtu_bytes,
                settings=(settings, settings),
                control_ports=self.control_ports,
                capture=self.capture,
                super_packets=self.has_super_packets,
                gateways=self.gateways,
                host_settings=pep_settings(self.plans),
            )
            self._daemons = RunningDaemons.start(self.core, self.plans)
            if self.internet:
                self._uplink = uplink.open_uplink(self.core.enable_internet())
        self._thread = threading.Thread(target=self._run, name="bentpipe-link", daemon=True)
        self._thread.start()
        self._daemons.wait_for_sessions(self._thread.is_alive)
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the link. Programs that still run end when the object is deleted."""
        self.stop()
        if self._uplink is not None:
            self._uplink.close()
        self._daemons.close()

    def stop(self) -> None:
        """Stop the link. No packet moves after this, and the report is the final one."""
        self.core.stop()
        self._thread.join()
        self._daemons.finish()

    def hosts(self) -> list[str]:
        """Return the names of the hosts: the world, the terminals, and the distant hosts.

        Several terminals are ``island-1``, ``island-2`` ...; ``island`` is a name of the first.
        """
        return self.core.hosts()

    def _run(self) -> None:
        try:
            self.core.run()
        except BaseException as error:  # noqa: BLE001 - `failure` reports it
            self._failure.append(error)

    def spawn(self, host: str, arguments: Sequence[str], *, output: int | None = None) -> int:
        """Start a program on a host; return its process id. ``output`` is a file descriptor.

        Raises:
            ProgramStartError: the program cannot be started.
            UsageError: there is no such host.
        """
        self.require_host(host)
        environment: list[tuple[str, str]] = [("BENTPIPE_HOST", host)]
        try:
            return self.core.spawn(host, list(arguments), environment=environment, output=output)
        except _core.ProgramError as error:
            raise start_error(arguments, error) from None

    def require_host(self, host: str) -> None:
        """Refuse the name of a host that does not exist.

        Raises:
            UsageError: naming the hosts.
        """
        names = self.hosts()
        if host not in names and host != "island":
            raise UsageError(f"host: {choice(host, tuple(names))}")

    def start_servers(self) -> None:
        """Start HTTP on the world and its distant hosts, and iperf3 on it if it is installed."""
        distant = (host for plan in self.plans for host in plan["hosts"] if host["gateway"] == 0)
        for name in {"world", *(host["name"] for host in distant)} & {*self.hosts()}:
            self.core.serve(name)
        iperf3 = shutil.which("iperf3")
        if iperf3 is not None:
            # Its `init` process is forked after the packet rings were mapped and so shares them:
            # the kernel releases them after the lab has ended, which takes some 20 ms each
            # (`packet_release` of Linux's `net/packet/af_packet.c`: RCU grace periods).
            with Path(os.devnull).open("wb") as devnull:
                self.spawn("world", [iperf3, "--server"], output=devnull.fileno())
            self.wait_for_server("world", IPERF3_PORT)

    def wait_for_server(self, host: str, port: int) -> None:
        """Wait until a server listens on a TCP port.

        Raises:
            MachineError: no server is listening after 5 s.
        """
        deadline = time.monotonic() + _LISTEN_TIMEOUT_S
        while not self.core.is_listening(host, port):
            if time.monotonic() > deadline:
                raise MachineError(f"no server is listening on port {port} of {host}")
            time.sleep(_LISTEN_POLL_S)

    def apply(self, changes: Sequence[LinkChange]) -> int:
        """Change the running link, all directions at one moment; return the moment, as `now_ns`.

        Raises:
            UsageError: a change is not possible; none is applied.
            MachineError: the link does not run.
        """
        with errors_of_core():
            return self.core.apply_changes(json.dumps(changes))

    @property
    def failure(self) -> str | None:
        """Why the link has failed, for example because its device was deleted; else None."""
        return f"the link has failed: {self._failure[0]}" if self._failure else None

    def require_running(self) -> None:
        """Check that the link has not failed.

        Raises:
            InvalidRunError: it has failed; the message has the cause.
        """
        if self.failure is not None:
            raise InvalidRunError(self.failure)

    def report(self) -> dict[str, Any]:
        """Return the statistics of the link, at most 0.1 s old; complete from the start.

        - ``at_ns``: the time of the report; ``directions``: counters by name.
        - ``ports``: what the connections to each of ``control_ports`` carried, by the sending side;
          ``control_ports``: the client port of the connection that bypasses the link, by server
          port.
        - ``lateness`` and ``wait``: distributions in ns.
        - ``rejected_packets``: rejected by the receiving kernel; ``unsegmented_packets``:
          super-packets that could not be split; ``kernel_dropped_packets``: dropped before the link
          because they were not read in time (None if the kernel does not count);
          ``store_full_packets``: dropped for lack of memory; ``too_long_packets``: above the MTU.
        - ``future_stamped_packets`` and ``clock_steps``: the machine's clock was set.
        - ``windows``: the last 60 windows of 10 s, the last one incomplete, each with ``start_ns``,
          ``end_ns``, ``packets``, ``late_packets``, ``p50_ns``, ``p99_ns``, ``max_ns`` of lateness,
          ``slowdown_percent``, ``fault`` and ``invalid``; ``window_count`` and ``invalid_windows``
          count all windows.
        - ``slowdown_percent``: how much slower a connection over the link can be, at most, because
          packets were late (``docs/model/real-time.md``).
        - ``capture``: None, or ``packets`` in the file, ``missing_packets``, and the
          ``error_number`` of the error that ended the capture.
        - ``failure``: why the link has failed, or None; ``invalid``: why the run is invalid;
          ``fault``: by what, such as ``late``, or ``pep`` or ``tunnel`` for one that has
          ended; ``idle`` before the first packet has left the link.
        - ``verdict`` and ``late_windows``: see `bentpipe.results.verdict`.

        Raises:
            InvalidRunError: the link has failed.
        """
        self.require_running()
        return self.last_report()

    def last_report(self, since_ns: int = 0) -> dict[str, Any]:
        """Return the report; of a link that has failed, too, with the cause as ``invalid``.

        Its bounds are those of connections since ``since_ns``.
        """
        report = self.core.report()
        report = over_time(report, report["at_ns"] - since_ns)
        self._daemons.poll()
        report["functions"] |= self._daemons.functions()
        if (fault := self._daemons.fault) is not None:
            report |= dict(zip(("fault", "invalid"), fault, strict=True))
        report["failure"] = failure = self.failure
        if failure is not None:
            report["invalid"] = failure
        report = judged(report)
        return report | {"verdict": verdict(report), "late_windows": late_windows(report)}
