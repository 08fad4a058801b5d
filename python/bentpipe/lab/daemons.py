"""The daemons of a lab: `bentpipe-gate` on each gateway with a PEP or a tunnel.

The lab makes such a gateway a host of its own, with an interface ``hosts`` to the hosts behind it
and an interface ``link``. The daemons and their files end with the lab. Packets between hosts
behind different gateways go through a tunnel; its own packets, and those between other addresses,
go over the link as they are.
"""

from __future__ import annotations

import json
import os
import resource
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bentpipe.errors import MachineError
from bentpipe.gateway import machine
from bentpipe.gateway.kernel_tcp import (
    DEFAULT_WINDOW_SEGMENTS,
    KERNEL_TCP,
    congestion_control,
    initial_window,
)
from bentpipe.gateway.network import MARK, ROUTE_TABLE
from bentpipe.lab.gateways import LEGS, GatewayHost, gateway_hosts, hosts_behind
from bentpipe.results.verdict import PEP_FAULT, TUNNEL_FAULT
from bentpipe.units import NS_PER_S

if TYPE_CHECKING:
    from bentpipe import _core
    from bentpipe.gateway.plan import GatePlan

# A daemon is ready within 0.1 s on an idle machine. Its first report is its sign.
_START_TIMEOUT_S: Final = 10.0
_NOT_READY: Final = (
    f"it is not ready after {_START_TIMEOUT_S:.0f} s; to fix it: try again when the machine is "
    "less busy"
)
# A handshake takes a round trip, and is repeated 1 to 1.25 s after one that was lost: five of them.
_SESSION_TIMEOUT_S: Final = 7.0
_POLL_S: Final = 0.01
# Files in a folder that the gateway has of its own: `PRIVATE_FOLDER` of bentpipe-sys.
_STATE: Final = "/dev/shm/bentpipe-gate.json"
_KEY_FILE: Final = "/dev/shm/bentpipe-gate.key"
_CONTROL_FILE: Final = "/dev/shm/bentpipe-gate.control"
_THREADS: Final = 1
# A client gives up after six retransmissions of its SYN (tcp_syn_retries of tcp(7)), as in the
# simulator.
_CONNECT_LIMIT_NS: Final = 127 * NS_PER_S
_DEVICE: Final = "bp0"
_PORT: Final = 51_871
# The network of the devices, which is none of hosts.
_DEVICES: Final = "10.84.1"
# Sessions begin before the traffic, and last while there is none.
_KEEPALIVE_NS: Final = 25 * NS_PER_S
# It reports once a second.
_REPORT_TIMEOUT_S: Final = 5.0
# What the daemon counts of the counters of a simulated PEP.
_PEP_STATISTICS: Final = (
    "split_connections",
    "unsplit_connections",
    "refused_connections",
    "reset_connections",
    "expired_connections",
    "max_open_connections",
)
_NAMES: Final = {"pep": "PEP", "tunnel": "tunnel"}


@dataclass
class _Daemon:
    """A running daemon: the process id of its init, and what it has counted.

    Its counters are in a file of the gateway's own folder, which ends with the lab.
    """

    gateway: GatewayHost
    plan: GatePlan
    process: int
    # What it prints; None once the lab has ended.
    log: int | None
    # How much it had printed when it was ready.
    printed: int = 0
    counted: dict[str, Any] = field(default_factory=dict)
    counted_ns: int = 0
    ended: str | None = None
    _state: Path | None = None

    @property
    def name(self) -> str:
        """What it does, and where."""
        kinds = " and the ".join(_NAMES[kind] for kind in self.gateway.programs())
        return f"the {kinds} of {self.gateway.host}"

    def poll(self) -> None:
        """Read its counters, and note whether it has ended."""
        if self._state is not None:
            with suppress(OSError, ValueError):
                self.counted_ns = self._state.stat().st_mtime_ns
                self.counted = json.loads(self._state.read_bytes())
        if self.ended is not None or self.log is None:
            return
        if os.waitpid(self.process, os.WNOHANG)[0]:
            lines = (
                os.pread(self.log, 4_096, self.printed)
                .decode(errors="replace")
                .strip()
                .splitlines()
            )
            self.ended = lines[-1].removeprefix("bentpipe-gate: ") if lines else "it was killed"
        elif self._state is None:
            # The init has one child: the daemon.
            children = Path(f"/proc/{self.process}/task/{self.process}/children").read_text()
            if children:
                self._state = Path(f"/proc/{children.split()[0]}/root{_STATE}")

    def mark_ready(self) -> None:
        """Note how much it has printed; what comes later is why it ended."""
        assert self.log is not None
        self.printed = os.fstat(self.log).st_size

    def close(self) -> None:
        """Close what it has printed."""
        if self.log is not None:
            os.close(self.log)
            self.log = None

    def has_sessions(self) -> bool:
        """Return whether its tunnel, if it has one, has a session with each peer."""
        tunnel = self.counted.get("tunnel") or {"peers": ()}
        return all(peer["session_age_ns"] is not None for peer in tunnel["peers"])

    def functions(self) -> dict[str, dict[str, Any]]:
        """Return what each of its functions has counted, by its name in results."""
        pep, tunnel = (self.counted.get(kind) or {} for kind in ("pep", "tunnel"))
        statistics = {
            "pep": {name: pep.get(name, 0) for name in _PEP_STATISTICS},
            "tunnel": tunnel.get("statistics", {}),
        }
        return {
            self.gateway.place(kind): {
                "gateway": self.gateway.number,
                "processor": None,
                "statistics": statistics[kind],
            }
            for kind in self.gateway.programs()
        }

    def fault(self) -> tuple[str, str] | None:
        """Return by what a run is invalid, if it is, and why."""
        pep = self.gateway.function("pep")
        kind = TUNNEL_FAULT if pep is None else PEP_FAULT
        if self.ended is not None:
            effect = {
                TUNNEL_FAULT: "so packets between the gateways were lost, and later ones not coded",
                PEP_FAULT: "so connections were reset, and later ones not split",
            }[kind]
            text = f"{self.name} has ended ({self.ended}), {effect}; to fix it: run it again"
            return kind, text
        if pep is None:
            return None
        unsplit = (self.counted.get("pep") or {}).get("unsplit_connections", 0)
        most = most_connections(pep)
        if unsplit and most < pep["connections"]:
            return kind, (
                f"the PEP of {self.gateway.host} did not split {unsplit:,} connections: within the "
                f"limit of open files it splits at most {most:,} at the same time; to fix it: "
                "start fewer at a time, or raise the limit (ulimit -Hn)"
            )
        return None


@dataclass
class RunningDaemons:
    """The daemons of a lab, which end with it."""

    _daemons: list[_Daemon] = field(default_factory=list)

    @classmethod
    def start(cls, core: _core.Lab, plans: Sequence[Mapping[str, Any]]) -> RunningDaemons:
        """Start the daemons of a lab that is set up, and wait until they carry traffic.

        Raises:
            MachineError: a daemon does not start; the message has the last line that it printed.
        """
        running, gateways = cls(), gateway_hosts(plans)
        try:
            public_keys = {
                each.host: _new_key(core, each.host)
                for each in gateways
                if each.function("tunnel") is not None
            }
            for each in gateways:
                running._daemons.append(_spawn(core, each, public_keys))
            running._wait_until_ready()
            # The device of a tunnel and its routes are the daemon's.
            for daemon in running._daemons:
                _set_initial_windows(core, daemon)
        except BaseException:
            running.close()
            raise
        return running

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_S
        for daemon in self._daemons:
            while not daemon.counted:
                daemon.poll()
                if daemon.ended is not None or time.monotonic() > deadline:
                    reason = daemon.ended or _NOT_READY
                    raise MachineError(f"{daemon.name} does not start: {reason}")
                time.sleep(_POLL_S)
            daemon.mark_ready()

    def wait_for_sessions(self, is_running: Callable[[], bool]) -> None:
        """Wait until the ends of tunnels have sessions, over a link that runs.

        A link may lose every handshake: after a while the sessions are left to the traffic.
        """
        deadline = time.monotonic() + _SESSION_TIMEOUT_S
        while is_running() and time.monotonic() < deadline:
            self.poll()
            if all(daemon.has_sessions() for daemon in self._daemons):
                return
            time.sleep(_POLL_S)

    @property
    def fault(self) -> tuple[str, str] | None:
        """By what a run is invalid, and why: a daemon has ended, or had too many connections.

        It is that of the last `poll`, as `functions` are.
        """
        return next((found for each in self._daemons if (found := each.fault()) is not None), None)

    def poll(self) -> None:
        """Read what the daemons have counted, and note which have ended."""
        for daemon in self._daemons:
            daemon.poll()

    def functions(self) -> dict[str, dict[str, Any]]:
        """Return what each function has counted, by its name in results; up to 1 s old."""
        return {name: each for daemon in self._daemons for name, each in daemon.functions().items()}

    def finish(self) -> None:
        """Wait for the counters of the time until now; the link must have stopped."""
        stopped_ns, deadline = time.time_ns(), time.monotonic() + _REPORT_TIMEOUT_S
        for daemon in self._daemons:
            daemon.poll()
            while daemon.ended is None and daemon.counted_ns < stopped_ns:
                if time.monotonic() > deadline:
                    break
                time.sleep(_POLL_S)
                daemon.poll()

    def close(self) -> None:
        """Close what they have printed; the daemons end with the lab."""
        for daemon in self._daemons:
            daemon.close()


def _spawn(core: _core.Lab, host: GatewayHost, public_keys: Mapping[str, str]) -> _Daemon:
    has_tunnel = host.function("tunnel") is not None
    plan = _gate_plan(
        host.function("pep"), _tunnel_plan(core, host, public_keys) if has_tunnel else None
    )
    # It reads its plan from standard input.
    shell = ["/bin/sh", "-c", 'exec "$0" <<END\n$1\nEND\n']
    command = [*shell, str(machine.find_binary()), json.dumps(plan)]
    log = os.memfd_create(f"{host.host}.log")
    environment = [("PATH", machine.search_path())]
    process = core.spawn(host.host, command, environment=environment, output=log)
    return _Daemon(host, plan, process, log)


# --- routes -------------------------------------------------------------------------------------


def set_initial_windows(core: _core.Lab, hosts: Iterable[str], segments: int) -> None:
    """Set the initial window of the connections of hosts over the link.

    Raises:
        MachineError: ip(8) is not installed, or fails.
    """
    for host in hosts:
        _set_initial_window(core, host, [_link_route(core, host)], segments)


def _set_initial_windows(core: _core.Lab, daemon: _Daemon) -> None:
    """Set the initial windows of both legs of a PEP."""
    host, tunnel = daemon.gateway, daemon.plan["tunnel"]
    pep = host.function("pep")
    if pep is None:
        return
    to_hosts = [[core.address(each), "dev", "hosts"] for each in host.near_hosts()]
    to_link = [_link_route(core, host.host)]
    if tunnel is not None:
        networks = [network for peer in tunnel["peers"] for network in peer["networks"]]
        to_link = [[network, "dev", _DEVICE] for network in networks]
    for leg, routes in zip(LEGS, (to_hosts, to_link), strict=True):
        if (segments := initial_window(pep[leg])) is not None:
            _set_initial_window(core, host.host, routes, segments)


def _link_route(core: _core.Lab, host: str) -> list[str]:
    """Return the route of a host to the hosts beyond the link, as ip(8) names it."""
    own = core.address(host)
    network = f"{own.rpartition('.')[0]}.0/24"
    return [network, "dev", "link", "proto", "kernel", "scope", "link", "src", own]


def _set_initial_window(
    core: _core.Lab, host: str, routes: Iterable[Sequence[str]], segments: int
) -> None:
    attribute = KERNEL_TCP["initial_window_segments"].route
    for route in routes:
        change = ["route", "change", *route, attribute, str(segments)]
        process = core.spawn(host, [machine.require_program("ip"), *change])
        if os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) != 0:
            raise MachineError(
                f"ip {' '.join(change)} failed; to fix it: leave the initial window at "
                f"{DEFAULT_WINDOW_SEGMENTS} segments"
            )


# --- plans of the daemons -----------------------------------------------------------------------


def most_connections(pep: Mapping[str, Any]) -> int:
    """Return how many connections the daemon splits at a time, within the limit of open files.

    It is at least 1: within a limit for less the daemon does not start, and says why.
    """
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted: int = pep["connections"]
    if most_files == resource.RLIM_INFINITY:
        return wanted
    return max(min(wanted, machine.connections_within(most_files, threads=_THREADS)), 1)


def _gate_plan(pep: Mapping[str, Any] | None, tunnel: Mapping[str, Any] | None) -> GatePlan:
    """Return the daemon's plan of the PEP of a plan, and of a tunnel, whose connections it splits.

    In the user namespace of an ordinary user the worker is that user, the only one there.
    """
    is_root = os.geteuid() == 0
    return {
        "name": "bentpipe",
        "state_file": _STATE,
        "files": [],
        "user": machine.NOBODY if is_root else os.getuid(),
        "group": machine.NOBODY if is_root else os.getgid(),
        "metrics_listen": None,
        "pep": None if pep is None else _pep_plan(pep, tunnel["device"] if tunnel else "link"),
        "tunnel": tunnel,
    }


def _pep_plan(pep: Mapping[str, Any], link_interface: str) -> dict[str, Any]:
    """Return the daemon's plan of a PEP.

    The gateway has a kernel's network of its own, so buffers are its sysctls, as those of hosts:
    the kernel tunes them up to the maximum. Nobody else uses its marks and tables.
    """

    def side(interface: str, tcp: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "interfaces": [interface],
            "tcp": {
                "congestion_control": congestion_control(tcp["congestion_control"]),
                "send_buffer_bytes": None,
                "receive_buffer_bytes": None,
                "not_sent_bytes": pep["notsent_lowat_bytes"],
            },
        }

    return {
        "mark": MARK,
        "route_table": ROUTE_TABLE,
        "workers": 1,
        "threads": _THREADS,
        "connections": most_connections(pep),
        "buffer_bytes": pep["buffer_bytes"],
        "early_accept": pep["early_accept"],
        "connect_limit_ns": _CONNECT_LIMIT_NS,
        "idle_limit_ns": None,
        # As hosts of a lab, it probes no idle connection.
        "keep_alive_ns": None,
        "lan": side("hosts", pep["lan_tcp"]),
        "link": side(link_interface, pep["link_tcp"]),
    }


def _new_key(core: _core.Lab, host: str) -> str:
    """Make a private key in the own folder of a gateway, and return its public key.

    Raises:
        MachineError: the key could not be written.
    """
    output = os.memfd_create("public-key")
    try:
        command = [str(machine.find_binary()), "keygen", _KEY_FILE]
        _, status = os.waitpid(core.spawn(host, command, output=output), 0)
        printed = os.pread(output, 4_096, 0).decode(errors="replace").strip()
    finally:
        os.close(output)
    if os.waitstatus_to_exitcode(status) != 0:
        raise MachineError(f"the tunnel of {host} does not start: {printed}")
    return printed


def _tunnel_plan(
    core: _core.Lab, end: GatewayHost, public_keys: Mapping[str, str]
) -> dict[str, Any]:
    """Return the daemon's plan of an end of a tunnel.

    ``public_keys`` has those of all gateways by host.
    """
    function = end.function("tunnel")
    assert function is not None
    gateways, hub_is_here = end.plan["gateways"], end.number == 0
    others = range(1, len(gateways)) if hub_is_here else range(1)

    def networks(number: int) -> list[str]:
        hosts = hosts_behind(end.plan, number)
        return [*(f"{core.address(host)}/32" for host in hosts), _device_address(number)]

    def peer(number: int) -> dict[str, Any]:
        host = gateways[number]["name"]
        # Terminals reach each other by way of the hub.
        behind = [
            network
            for each in range(len(gateways))
            if each == number or (not hub_is_here and each != end.number)
            for network in networks(each)
        ]
        return {
            "name": host,
            "public_key": public_keys[host],
            "endpoint": f"{core.address(host)}:{_PORT}",
            "keepalive_ns": None if hub_is_here else _KEEPALIVE_NS,
            "networks": behind,
        }

    return {
        "device": _DEVICE,
        "addresses": [_device_address(end.number)],
        "listen_address": None,
        "listen_port": _PORT,
        "private_key": _KEY_FILE,
        "outer_mtu_bytes": None,
        "control_file": _CONTROL_FILE,
        "peers": [peer(number) for number in others],
        "settings": {name: value for name, value in function.items() if name != "kind"},
    }


def _device_address(number: int) -> str:
    return f"{_DEVICES}.{1 + number}/32"
