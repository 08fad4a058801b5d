"""Gateways that are hosts of a lab, and their daemons: `bentpipe-gate` for a PEP or a tunnel.

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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

# By way of the package: the process that keeps a lab has no classes of scenarios.
from bentpipe import gateway, live
from bentpipe.errors import MachineError, Problem, ScenarioError
from bentpipe.live import machine
from bentpipe.live.kernel_tcp import (
    DEFAULT_WINDOW_SEGMENTS,
    KERNEL_TCP,
    congestion_control,
    host_sysctls,
    initial_window,
    require_congestion_controls,
)
from bentpipe.live.programs import Program
from bentpipe.plan.presets import classes_of, queues_of
from bentpipe.results.verdict import PEP_FAULT, TUNNEL_FAULT
from bentpipe.units import NS_PER_S

if TYPE_CHECKING:
    from bentpipe import _core

LEGS: Final = ("lan_tcp", "link_tcp")
_NO_CONNECTIONS: Final[Mapping[str, Any]] = {"networks": (), "ports": (), "interfaces": ()}
# As `Function::is_program` of the simulator's plans: the kinds, and how messages name them.
PROGRAMS: Final = {"pep": "PEP", "tunnel": "tunnel"}
# A daemon is ready within 0.1 s on an idle machine. Its first report is its sign.
_START_TIMEOUT_S: Final = 10.0
# A handshake takes a round trip, and is repeated 1 to 1.25 s after one that was lost: five of them.
SESSION_TIMEOUT_NS: Final = 7 * NS_PER_S
_POLL_S: Final = 0.01
# Files in a folder that the gateway has of its own: `PRIVATE_FOLDER` of bentpipe-sys.
_STATE: Final = "/dev/shm/bentpipe-gate.json"
_KEY_FILE: Final = "/dev/shm/bentpipe-gate.key"
_CONTROL_FILE: Final = "/dev/shm/bentpipe-gate.control"
_THREADS: Final = 1
# A client gives up after six retransmissions of its SYN (tcp_syn_retries of tcp(7)), as in the
# simulator.
_CONNECT_LIMIT_NS: Final = 127 * NS_PER_S
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


@dataclass(frozen=True)
class GatewayHost:
    """A gateway with functions that are programs.

    ``host`` is its name in the lab, ``end`` that in a scenario, and ``number`` its index in
    ``plan``, the link next to it. ``prefix`` precedes the names of its functions in results.
    """

    host: str
    end: str
    number: int
    prefix: str
    plan: Mapping[str, Any]

    def function(self, kind: str) -> Mapping[str, Any] | None:
        """Return a function of the plan by its kind; None if the gateway has none."""
        functions = self.plan["gateways"][self.number]["functions"]
        return next((function for function in functions if function["kind"] == kind), None)

    def place(self, kind: str) -> str:
        """Return the name of a function in results."""
        return f"{self.prefix}{self.host}-{kind}"

    def programs(self) -> list[str]:
        """Return the kinds of its functions that are programs."""
        return [kind for kind in PROGRAMS if self.function(kind) is not None]


def gateway_hosts(plans: Sequence[Mapping[str, Any]]) -> list[GatewayHost]:
    """Return the gateways of links in series that are hosts: the first hub, the last terminals."""
    hub, *_ = plans[0]["gateways"]
    prefix = f"{len(plans)}." if len(plans) > 1 else ""
    places = [GatewayHost(hub["name"], "hub", 0, "", plans[0])]
    places += [
        GatewayHost(terminal["name"], "terminal", number, prefix, plans[-1])
        for number, terminal in enumerate(plans[-1]["gateways"][1:], start=1)
    ]
    return [place for place in places if place.programs()]


def hosts_behind(plan: Mapping[str, Any], number: int) -> list[str]:
    """Return the names of the hosts behind a gateway of a plan, the distant ones first."""
    names: list[str] = [host["name"] for host in plan["hosts"] if host["gateway"] == number]
    if number == 0:
        return [*names, "world"]
    is_alone = len(plan["gateways"]) <= 1 + 1
    return [*names, "island" if is_alone else f"island-{number}"]


def pep_settings(plans: Sequence[Mapping[str, Any]]) -> dict[str, list[tuple[str, str]]]:
    """Return the sysctls of the gateways with a PEP, by host."""
    return {
        host.host: list(host_sysctls(pep["lan_tcp"]).items())
        for host in gateway_hosts(plans)
        if (pep := host.function("pep"))
    }


def refuse_functions(plans: Sequence[Mapping[str, Any]], mtu_bytes: int = 1_500) -> None:
    """Check that daemons and this machine can do what the PEPs and tunnels of plans say.

    Raises:
        ScenarioError: they cannot; the error names every unsupported field.
        MachineError: the machine lacks a program or a congestion control.
    """
    hosts = gateway_hosts(plans)
    if not hosts:
        return
    tunnels = [host for host in hosts if host.function("tunnel") is not None]
    peps = {host.end: pep for host in hosts if (pep := host.function("pep"))}
    messages = dict(text for host in tunnels for text in _refused_tunnel(host))
    messages |= {
        f"gateways.{end}.pep.{leg}.{field}": text
        for end, pep in peps.items()
        for leg in LEGS
        for field, text in live.refused_tcp("leg", pep[leg], pep["lan_tcp"], mtu_bytes)
    }
    if messages:
        problems = (
            Problem(source="emulate", field=field, message=messages[field]) for field in messages
        )
        raise ScenarioError(*problems)
    gateway.find_binary()
    if any(initial_window(pep[leg]) is not None for pep in peps.values() for leg in LEGS):
        machine.require_ip()
    require_congestion_controls(pep[leg] for pep in peps.values() for leg in LEGS)


def _refused_tunnel(end: GatewayHost) -> Iterator[tuple[str, str]]:
    path = f"gateways.{end.end}"
    functions = end.plan["gateways"][end.number]["functions"]
    kinds = [function["kind"] for function in functions]
    before = [kind for kind in kinds[: kinds.index("tunnel")] if kind != "pep"]
    if before:
        text = f"read {before[0]} before tunnel; in real time the tunnel is next to the hosts"
        yield f"{path}.functions", f"{text}: put tunnel first, or behind pep only"
    for function in functions:
        given = function.get("classifier", function).get("classes")
        if given is not None:
            text = f"read {given}; classes are not supported in real time: leave it out"
            yield f"{path}.{function['kind']}.classes", text
    for direction in end.plan["directions"]:
        name, queue = direction["name"], direction["queue"]
        if classes_of(queue) > 1:
            text = f"read {queue['discipline']} with a tunnel; not supported in real time"
            yield f"link.{name}.queue.discipline", f"{text}: choose another discipline"
        if any(each.get("ecn") for each in queues_of(queue)):
            text = "read true with a tunnel; not supported in real time: leave it out"
            yield f"link.{name}.queue.ecn", text
    terminals, most = len(end.plan["gateways"]) - 1, gateway.PEERS_MAX
    if terminals > most:
        yield "link.terminals", f"read {terminals} with a tunnel; at most {most} in real time"


# --- daemons ------------------------------------------------------------------------------------


@dataclass
class _Daemon:
    """A running daemon, and what it has counted.

    Its counters are in a file of the gateway's own folder, which ends with the lab.
    """

    gateway: GatewayHost
    plan: dict[str, Any]
    program: Program
    # How much it had printed when it was ready.
    printed: int = 0
    counted: dict[str, Any] = field(default_factory=dict)
    counted_ns: int = 0
    _state: Path | None = None

    @property
    def name(self) -> str:
        """What it does, and where."""
        kinds = " and the ".join(PROGRAMS[kind] for kind in self.gateway.programs())
        return f"the {kinds} of {self.gateway.host}"

    @property
    def ended(self) -> str | None:
        """Why it has ended; None while it runs."""
        if not self.program.has_ended():
            return None
        return machine.why_ended(self.program.text[self.printed :].strip().splitlines())

    def poll(self) -> None:
        """Read its counters."""
        if self._state is not None:
            with suppress(OSError, ValueError):
                self.counted_ns = self._state.stat().st_mtime_ns
                self.counted = json.loads(self._state.read_bytes())
        elif self.ended is None and (children := self.program.find_children()):
            # The init has one child: the daemon.
            self._state = Path(f"/proc/{children[0]}/root{_STATE}")

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
        """Return the kind of fault that makes a run invalid, and its text; None without a fault."""
        pep = self.gateway.function("pep")
        kind = TUNNEL_FAULT if pep is None else PEP_FAULT
        if self.ended is not None:
            effect = "connections were reset, and later ones not split"
            if pep is None:
                effect = "packets between the gateways were lost, and later ones not coded"
            text = f"{self.name} has ended ({self.ended}), so {effect}; to fix it: run it again"
            return kind, text
        if (self.counted.get("tunnel_worker") or {}).get("failures"):
            return TUNNEL_FAULT, (
                f"the worker of the tunnel of {self.gateway.host} has ended or hung, so packets "
                "between the gateways were lost; to fix it: run it again"
            )
        if pep is None:
            return None
        if (self.counted.get("pep_workers") or {}).get("failures"):
            return kind, (
                f"the worker of the PEP of {self.gateway.host} has ended or hung, so connections "
                "were reset, and later ones not split for some time; to fix it: run it again"
            )
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
                host.host: _new_key(core, host.host)
                for host in gateways
                if host.function("tunnel") is not None
            }
            for host in gateways:
                running._daemons.append(_spawn(core, host, public_keys))
            running._wait_until_ready()
            # The device of a tunnel and its routes are the daemon's.
            for daemon in running._daemons:
                _set_initial_windows(core, daemon)
        except BaseException:
            running.close()
            raise
        return running

    def _wait_until_ready(self) -> None:
        self._wait(lambda daemon: bool(daemon.counted or daemon.ended), _START_TIMEOUT_S)
        for daemon in self._daemons:
            if daemon.ended is not None or not daemon.counted:
                reason = daemon.ended or (
                    f"it is not ready after {_START_TIMEOUT_S:.0f} s; to fix it: try again "
                    "when the machine is less busy"
                )
                raise MachineError(f"{daemon.name} does not start: {reason}")
            daemon.printed = daemon.program.printed_bytes()

    def wait_for_sessions(self, is_running: Callable[[], bool]) -> None:
        """Wait until the ends of tunnels have sessions, over a link that runs.

        A link may lose every handshake: after a while the sessions are left to the traffic.
        """

        def is_done(daemon: _Daemon) -> bool:
            tunnel = daemon.counted.get("tunnel") or {"peers": ()}
            have_sessions = all(peer["session_age_ns"] is not None for peer in tunnel["peers"])
            return have_sessions or not is_running()

        self._wait(is_done, SESSION_TIMEOUT_NS / NS_PER_S)

    def _wait(self, is_done: Callable[[_Daemon], bool], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        self.poll()
        while not all(map(is_done, self._daemons)) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
            self.poll()

    @property
    def fault(self) -> tuple[str, str] | None:
        """The kind and the text of a fault: a daemon has ended, or had too many connections.

        It makes the run invalid. Like `functions`, it is as of the last `poll`.
        """
        return next(filter(None, (daemon.fault() for daemon in self._daemons)), None)

    def poll(self) -> None:
        """Read what the daemons have counted."""
        for daemon in self._daemons:
            daemon.poll()

    def functions(self) -> dict[str, dict[str, Any]]:
        """Return what each function has counted, by its name in results; up to 1 s old."""
        return dict(item for daemon in self._daemons for item in daemon.functions().items())

    def finish(self) -> None:
        """Wait for the counters of the time until now; the link must have stopped."""
        stopped_ns = time.time_ns()
        self._wait(
            lambda daemon: bool(daemon.ended) or daemon.counted_ns >= stopped_ns, _REPORT_TIMEOUT_S
        )

    def close(self) -> None:
        """Close what they have printed; the daemons end with the lab."""
        for daemon in self._daemons:
            daemon.program.close()


def _spawn(core: _core.Lab, host: GatewayHost, public_keys: Mapping[str, str]) -> _Daemon:
    plan = _gate_plan(host.function("pep"), _tunnel_plan(core, host, public_keys))
    # It reads its plan from standard input.
    shell = ["/bin/sh", "-c", 'exec "$0" plan run <<END\n$1\nEND\n']
    command = [*shell, str(gateway.find_binary()), json.dumps(plan)]
    program = Program.start(partial(core.spawn, host.host, command))
    return _Daemon(host, plan, program)


# --- routes -------------------------------------------------------------------------------------


def set_initial_windows(core: _core.Lab, plans: Sequence[Mapping[str, Any]], segments: int) -> None:
    """Set the initial window over the link of all hosts but gateways with programs.

    Raises:
        MachineError: ip(8) is not installed, or fails.
    """
    for host in set(core.hosts()) - {end.host for end in gateway_hosts(plans)}:
        _set_initial_window(core, host, [_link_route(core, host)], segments)


def _set_initial_windows(core: _core.Lab, daemon: _Daemon) -> None:
    """Set the initial windows of both legs of a PEP."""
    host, tunnel = daemon.gateway, daemon.plan["tunnel"]
    pep = host.function("pep")
    if pep is None:
        return
    to_hosts = [
        [core.address(name), "dev", "hosts"] for name in hosts_behind(host.plan, host.number)
    ]
    to_link = [_link_route(core, host.host)]
    if tunnel is not None:
        networks = [network for peer in tunnel["peers"] for network in peer["networks"]]
        to_link = [[network, "dev", machine.DEVICE] for network in networks]
    for leg, routes in zip(LEGS, (to_hosts, to_link), strict=True):
        if (segments := initial_window(pep[leg])) is not None:
            _set_initial_window(core, host.host, routes, segments)


def _link_route(core: _core.Lab, host: str) -> list[str]:
    """Return the route of a host to the hosts beyond the link, as ip(8) names it."""
    address = core.address(host)
    network = f"{address.rpartition('.')[0]}.0/24"
    return [network, "dev", "link", "proto", "kernel", "scope", "link", "src", address]


def _set_initial_window(
    core: _core.Lab, host: str, routes: Iterable[Sequence[str]], segments: int
) -> None:
    attribute = KERNEL_TCP["initial_window_segments"].route
    for route in routes:
        change = ["route", "change", *route, attribute, str(segments)]
        program = Program.start(partial(core.spawn, host, [machine.require_ip(), *change]))
        if program.wait() != 0:
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


def _gate_plan(pep: Mapping[str, Any] | None, tunnel: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the daemon's plan of the PEP of a plan, and of a tunnel, whose connections it splits.

    In the user namespace of an ordinary user the worker is that user, the only one there.
    """
    is_root = os.geteuid() == 0
    return {
        "name": "bentpipe",
        "state_file": _STATE,
        "control_file": _CONTROL_FILE,
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
        "mark": machine.MARK,
        "route_table": machine.ROUTE_TABLE,
        "workers": 1,
        "threads": _THREADS,
        "connections": most_connections(pep),
        "buffer_bytes": pep["buffer_bytes"],
        "early_accept": pep["early_accept"],
        "connect_limit_ns": _CONNECT_LIMIT_NS,
        "idle_limit_ns": None,
        # As hosts of a lab, it probes no idle connection.
        "keep_alive_ns": None,
        "except": _NO_CONNECTIONS,
        "only": _NO_CONNECTIONS,
        "lan": side("hosts", pep["lan_tcp"]),
        "link": side(link_interface, pep["link_tcp"]),
    }


def _new_key(core: _core.Lab, host: str) -> str:
    """Make a private key in the own folder of a gateway, and return its public key.

    Raises:
        MachineError: the key could not be written.
    """
    command = [str(gateway.find_binary()), "keygen", _KEY_FILE]
    program = Program.start(partial(core.spawn, host, command))
    if program.wait() != 0:
        raise MachineError(f"the tunnel of {host} does not start: {program.text.strip()}")
    return program.text.strip()


def _tunnel_plan(
    core: _core.Lab, end: GatewayHost, public_keys: Mapping[str, str]
) -> dict[str, Any] | None:
    """Return the daemon's plan of an end of a tunnel; None if the gateway has no tunnel.

    ``public_keys`` has those of all gateways by host.
    """
    function = end.function("tunnel")
    if function is None:
        return None
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
            for index in range(len(gateways))
            if index == number or (not hub_is_here and index != end.number)
            for network in networks(index)
        ]
        return {
            "name": host,
            "public_key": public_keys[host],
            "endpoint": f"{core.address(host)}:{gateway.PORT}",
            "keepalive_ns": None if hub_is_here else _KEEPALIVE_NS,
            "networks": behind,
        }

    return {
        "device": machine.DEVICE,
        "addresses": [_device_address(end.number)],
        "listen_address": None,
        "listen_port": gateway.PORT,
        "private_key": _KEY_FILE,
        "outer_mtu_bytes": None,
        # A run whose daemon ends is invalid.
        "fail": "open",
        "peers": [peer(number) for number in others],
        "settings": {name: value for name, value in function.items() if name != "kind"},
    }


def _device_address(number: int) -> str:
    return f"{_DEVICES}.{1 + number}/32"
