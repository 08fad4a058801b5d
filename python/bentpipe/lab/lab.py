"""Labs: a world and an island of real programs, and a link between them in real time.

A lab belongs to the process that makes it: when that ends, however it ends, its namespaces,
interfaces, routes and programs are gone. The machine's own network is never touched.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Self

from bentpipe import _core
from bentpipe.errors import InvalidRunError, MachineError, UsageError

if TYPE_CHECKING:
    from bentpipe._core import SharedPidNamespace
    from bentpipe.lab.uplink import Outside

Side = Literal["world", "island"]
SIDES: Final[tuple[Side, ...]] = ("world", "island")

IPERF3_PORT: Final = 5201
# A server that does not listen by then does not work.
_PATIENCE_SECONDS: Final = 5.0
# What namespaces and devices need: capabilities(7), numbered as in linux/capability.h.
_CAPABILITIES: Final = {"CAP_NET_ADMIN": 12, "CAP_SYS_ADMIN": 21}


@dataclass(kw_only=True)
class Lab:
    """A lab that is up, as a context: inside, the link moves packets.

    ``plans`` are the hops, the first next to the world. ``control_ports`` are the first and the
    last port of measuring servers: the first TCP conversation with each goes past the link.
    ``capture`` is the file that packets are captured to; it is whole once the link has stopped, and
    the report tells what is missing in it. With ``super_packets`` the kernels of both sides leave
    segments to be cut, and joined again, around the link. With ``gateways`` those are hosts too,
    between their hosts and the link, for programs that work there. With ``internet`` the world has
    a way to the outside, and the island over the link.
    """

    plans: Sequence[dict[str, Any]]
    seed: int = 1
    mtu_bytes: int = 1_500
    settings: tuple[dict[str, str], dict[str, str]] = ({}, {})
    control_ports: tuple[int, int] | None = None
    capture: Path | None = None
    super_packets: bool = False
    gateways: bool = False
    internet: bool = False
    _core: _core.Lab = field(init=False)
    _thread: threading.Thread = field(init=False)
    _failure: list[BaseException] = field(init=False, default_factory=list)
    _outside: Outside | None = field(init=False, default=None)

    def __enter__(self) -> Self:
        """Set it up.

        Raises:
            MachineError: the machine lacks something, or does not allow it.
            UsageError: the link cannot be run in real time.
            OSError: the capture cannot be written.
        """
        world, island = (list(side.items()) for side in self.settings)
        try:
            self._core = _core.Lab(
                [json.dumps(plan) for plan in self.plans],
                self.seed,
                mtu=self.mtu_bytes,
                settings=(world, island),
                control_ports=self.control_ports,
                capture=self.capture,
                super_packets=self.super_packets,
                gateways=self.gateways,
            )
            if self.internet:
                self._outside = self._open_outside()
        except _core.MachineError as error:
            raise MachineError(str(error)) from None
        except _core.PlanError as error:
            raise UsageError(str(error)) from None
        self._thread = threading.Thread(target=self._run, name="bentpipe-link", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the link. Programs that still run end with the object."""
        self.stop()
        if self._outside is not None:
            self._outside.close()

    def _open_outside(self) -> Outside:
        from bentpipe.lab.uplink import open_outside

        network = self._core.enable_internet()
        try:
            return open_outside(network)
        finally:
            os.close(network)

    def stop(self) -> None:
        """Stop the link: from here on no packet moves, and the report is that of the end."""
        self._core.stop()
        self._thread.join()

    def now_ns(self) -> int:
        """Return the time since the lab was set up, in ns, as `report` counts it."""
        return self._core.now_ns()

    def hosts(self) -> list[str]:
        """Return the names of the hosts: the world's, the terminals', and the distant ones.

        With several terminals theirs are ``island-1`` and so on; ``island`` is the first one's too.
        """
        return self._core.hosts()

    def address(self, host: str) -> str:
        """Return the IPv4 address of a host."""
        return self._core.address(host)

    def setting(self, host: str, name: str) -> str:
        """Return the value of a kernel setting of a host, as sysctl(8) would print it."""
        try:
            return " ".join(self._core.setting(host, name).split())
        except OSError as error:
            raise MachineError(f"reading {name} on {host}: {error}") from None

    def connections(self, host: str) -> list[dict[str, Any]]:
        """Return the TCP connections of a host as its kernel knows them, by the kernel's names.

        Empty where the kernel does not tell (it has no inet_diag).
        """
        return self._core.connections(host)

    def _run(self) -> None:
        try:
            self._core.run()
        except BaseException as error:  # noqa: BLE001 - it is raised again where it is seen
            self._failure.append(error)

    def spawn(self, host: str, arguments: Sequence[str], *, output: int | None = None) -> int:
        """Start a program on a host; return the process to wait for. ``output`` is a descriptor.

        Raises:
            UsageError: there is no such program, or no such host.
        """
        self.require_host(host)
        environment: list[tuple[str, str]] = [("BENTPIPE_HOST", host)]
        try:
            return self._core.spawn(host, list(arguments), environment=environment, output=output)
        except _core.ProgramError as error:
            raise UsageError(str(error)) from None

    def require_host(self, host: str) -> None:
        """Refuse a name that no host has.

        Raises:
            UsageError: naming those that there are.
        """
        names = self.hosts()
        if host not in names and host != "island":
            # It loads every class of a scenario.
            from bentpipe.text import choice

            raise UsageError(f"host: {choice(host, tuple(names))}")

    def serve_world(self) -> None:
        """Give the world what programs on the island expect: HTTP, and iperf3 if installed."""
        self._core.serve("world")
        iperf3 = shutil.which("iperf3")
        if iperf3 is not None:
            # Forked once the rings of packets are mapped, its `init` has them too, so that the end
            # of a lab does not wait for the kernel to take them down, some 20 ms each
            # (`packet_release` of Linux's `net/packet/af_packet.c`: RCU grace periods).
            with Path(os.devnull).open("wb") as nowhere:
                self.spawn("world", [iperf3, "--server"], output=nowhere.fileno())
            self.wait_for_server("world", IPERF3_PORT)

    def wait_for_server(self, host: str, port: int) -> None:
        """Wait until somebody listens on a TCP port.

        Raises:
            MachineError: nobody does.
        """
        patience = time.monotonic() + _PATIENCE_SECONDS
        while not self._core.is_listening(host, port):
            if time.monotonic() > patience:
                raise MachineError(f"no server is listening on port {port} of {host}")
            time.sleep(0.002)

    def order(self, orders: Sequence[dict[str, Any]]) -> int:
        """Change the link while it runs; return when it was, in ns, as `report` counts it.

        Raises:
            UsageError: an order cannot be followed; then none is.
            MachineError: the link does not run.
        """
        try:
            return self._core.apply_changes(list(orders))
        except _core.PlanError as error:
            raise UsageError(str(error)) from None
        except _core.MachineError as error:
            raise MachineError(str(error)) from None

    def entrance(self, host: str, pids: SharedPidNamespace) -> list[int]:
        """Return new descriptors by which another process can start programs on a host."""
        return self._core.namespace_fds(host, pids)

    @property
    def failure(self) -> str | None:
        """Why the link has ended without being stopped, such as by a deleted device; else None."""
        return f"the link has failed: {self._failure[0]}" if self._failure else None

    def require_running(self) -> None:
        """Check that the link has not failed.

        Raises:
            InvalidRunError: it has; with what happened.
        """
        if self.failure is not None:
            raise InvalidRunError(self.failure)

    def report(self) -> dict[str, Any]:
        """Return what was measured, a tenth of a second ago at most.

        Keys: ``at_ns``, ``directions`` (counters by name), ``ports`` (what conversations with
        the ``control_ports`` carried, by port and the side that sent it), ``control_ports`` (the
        client's port of what goes past the link, by the server's), ``lateness`` and ``wait``
        (distributions in ns), ``not_taken_packets`` (that the receiving kernel refused),
        ``not_split_packets`` (of super-packets), ``kernel_dropped_packets`` (before the link, not
        read in time; None if the kernel does not say), ``refused_packets`` (no memory),
        ``too_long_packets`` (beyond the MTU), ``future_stamped_packets`` and ``clock_steps`` (the
        machine's clock was set), ``windows`` (the last 60 windows of 10 s, the last one open, each
        with ``start_ns``, ``end_ns``, ``packets``, ``p50_ns``, ``p99_ns``, ``max_ns`` of lateness
        and ``invalid``), ``window_count`` and ``invalid_windows`` (of all windows), ``capture``
        (None, or how many ``packets`` are in the file, ``missing_packets``, and the
        ``error_number`` that ended the writing), ``invalid`` (why, or None).

        Raises:
            InvalidRunError: the link has failed.
        """
        self.require_running()
        return self._core.report()

    def last_report(self) -> dict[str, Any]:
        """Return what `report` does, of a link that has failed too, which is then ``invalid``."""
        report = self._core.report()
        if self.failure is not None:
            report["invalid"] = self.failure
        return report


def measure_ceiling(seconds: float = 3.0) -> dict[str, Any]:
    """Measure what labs can carry on this machine, and keep it for `refuse_beyond_ceiling`.

    Raises:
        MachineError: there can be no lab, or the figures cannot be kept.
    """
    gain_privileges()
    try:
        measured = _core.measure(seconds)
    except _core.MachineError as error:
        raise MachineError(str(error)) from None
    path = _ceiling_file()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(measured, indent=2) + "\n")
    except OSError as error:
        raise MachineError(f"{path}: {error.strerror}; set XDG_CACHE_HOME") from None
    return measured


def refuse_beyond_ceiling(plans: Sequence[dict[str, Any]], *, super_packets: bool = False) -> None:
    """Refuse links faster than this machine was measured to carry; say nothing if it never was.

    Raises:
        MachineError: naming the rate, the ceiling and what helps.
    """
    key = "tcp_super_packets_bits_per_second" if super_packets else "tcp_bits_per_second"
    try:
        ceiling_bps = float(json.loads(_ceiling_file().read_text())[key])
    except (OSError, ValueError, KeyError):
        return
    for plan in plans:
        for part in plan["directions"]:
            rate_bps = _largest(part["rate_bps"])
            if rate_bps > ceiling_bps:
                raise MachineError(
                    f"the link's rate of {rate_bps / 1e6:,.0f} Mbit/s is beyond what this machine "
                    f"was measured to carry, {ceiling_bps / 1e6:,.0f} Mbit/s; to fix it: choose a "
                    "lower rate, or measure again by bentpipe doctor --measure"
                )


def _largest(series: dict[str, Any]) -> int:
    """Return the largest value of a constant or stepwise series of a plan."""
    if series["kind"] == "constant":
        return int(series["value"])
    return max(int(step[1]) for step in series["steps"])


def _ceiling_file() -> Path:
    # expanduser(3) of a user without a home leaves the name as it is; such a file is not there.
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111
    return Path(cache) / "bentpipe" / "ceiling.json"


def gain_privileges() -> str:
    """Become root of a user namespace if this process may not make namespaces as it is.

    To be called while the process has one thread. Returns how labs can be made, in words.

    Raises:
        MachineError: the kernel does not allow it.
    """
    missing = _missing_capabilities()
    if not missing:
        return "as root"
    try:
        _core.become_root_of_user_namespace()
    except _core.MachineError as error:
        lack = " and ".join(missing)
        raise MachineError(f"a lab needs {lack}, or a user namespace; {error}") from None
    return "as root of a user namespace"


def _missing_capabilities() -> list[str]:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            held = int(line.split()[1], 16)
            return [name for name, bit in _CAPABILITIES.items() if not held >> bit & 1]
    return list(_CAPABILITIES)
