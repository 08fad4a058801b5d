"""The PEPs of a lab: on each gateway that has one, the daemon `bentpipe-gate` splits connections.

The lab makes such a gateway a host of its own, with an interface ``hosts`` to the hosts behind it
and an interface ``link``. The daemon ends with the lab.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bentpipe import lab
from bentpipe.errors import MachineError, Problem, ScenarioError
from bentpipe.gateway import machine
from bentpipe.gateway.binary import find_binary
from bentpipe.lab.gate import lab_gate_plan, most_connections
from bentpipe.lab.routes import DEFAULT_WINDOW_SEGMENTS, change_route, link_route
from bentpipe.lab.tcp_settings import require_congestion_controls, tcp_settings

if TYPE_CHECKING:
    from bentpipe import _core

_SIDES: Final = ("lan_tcp", "link_tcp")
# A daemon is ready within 0.1 s on an idle machine. Its first report is its sign.
_START_TIMEOUT_S: Final = 10.0
_NOT_READY: Final = (
    f"it is not ready after {_START_TIMEOUT_S:.0f} s; to fix it: try again when the machine is "
    "less busy"
)
_POLL_S: Final = 0.01
# A folder that the gateway has of its own: `PRIVATE_FOLDER` of bentpipe-sys.
_STATE: Final = "/dev/shm/bentpipe-gate.json"
# It reports once a second.
_REPORT_TIMEOUT_S: Final = 5.0
# What the daemon counts of the counters of a simulated PEP.
_STATISTICS: Final = (
    "split_connections",
    "unsplit_connections",
    "refused_connections",
    "reset_connections",
    "expired_connections",
    "max_open_connections",
)


@dataclass(frozen=True)
class GatewayPep:
    """A gateway with a PEP.

    ``host`` is its name in the lab, ``function`` the name of the PEP in results, ``end`` that of
    the gateway in a scenario, and ``hosts`` are the names of the hosts behind it.
    """

    host: str
    function: str
    end: str
    gateway: int
    plan: Mapping[str, Any]


def peps_of(plans: Sequence[Mapping[str, Any]]) -> list[GatewayPep]:
    """Return the gateways with a PEP of links in series: at the first hub, the last terminals."""
    hub, *_ = plans[0]["gateways"]
    prefix = f"{len(plans)}." if len(plans) > 1 else ""
    places = [("", "hub", 0, hub)]
    places += [
        (prefix, "terminal", number, terminal)
        for number, terminal in enumerate(plans[-1]["gateways"][1:], start=1)
    ]
    return [
        GatewayPep(gateway["name"], f"{before}{gateway['name']}-pep", end, number, function)
        for before, end, number, gateway in places
        for function in gateway["functions"]
        if function["kind"] == "pep"
    ]


def refuse_peps(plans: Sequence[Mapping[str, Any]], mtu_bytes: int = 1_500) -> None:
    """Check that the daemon and this machine's kernel can do what the PEPs of plans say.

    Raises:
        ScenarioError: they cannot; the error names every unsupported field.
        MachineError: the machine lacks a program or a congestion control.
    """
    peps = peps_of(plans)
    if not peps:
        return
    # By way of the package: a lab without a PEP starts without the classes of scenarios.
    found = dict(
        text
        for pep in peps
        for text in lab.refused_settings(f"gateways.{pep.end}.pep", pep.plan, mtu_bytes)
    )
    if found:
        problems = (Problem(source="emulate", field=each, message=found[each]) for each in found)
        raise ScenarioError(*problems)
    find_binary()
    for program in machine.PACKAGES:
        machine.require_program(program)
    require_congestion_controls(pep.plan[side] for pep in peps for side in _SIDES)


def pep_settings(plans: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, str]]:
    """Return the sysctls of the gateways with a PEP, by host."""
    return {pep.host: tcp_settings(pep.plan["lan_tcp"]) for pep in peps_of(plans)}


@dataclass
class _Daemon:
    """A running daemon: the process id of its init, and what it has counted.

    Its counters are in a file of the gateway's own folder, which ends with the lab.
    """

    pep: GatewayPep
    process: int
    # What it prints; None once the lab has ended.
    log: int | None
    # How much it had printed when it was ready.
    printed: int = 0
    counted: dict[str, Any] = field(default_factory=dict)
    counted_ns: int = 0
    ended: str | None = None
    _state: Path | None = None

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

    def fault(self) -> str | None:
        """Return why a run is invalid, if it is."""
        if self.ended is not None:
            return (
                f"the PEP of {self.pep.host} has ended ({self.ended}), so connections were reset, "
                "and later ones not split; to fix it: run it again"
            )
        unsplit, most = self.counted.get("unsplit_connections", 0), most_connections(self.pep.plan)
        if unsplit and most < self.pep.plan["connections"]:
            return (
                f"the PEP of {self.pep.host} did not split {unsplit:,} connections: within the "
                f"limit of open files it splits at most {most:,} at the same time; to fix it: "
                "start fewer at a time, or raise the limit (ulimit -Hn)"
            )
        return None


@dataclass
class RunningPeps:
    """The daemons of a lab, which end with it."""

    _daemons: list[_Daemon] = field(default_factory=list)

    @classmethod
    def start(cls, core: _core.Lab, plans: Sequence[Mapping[str, Any]]) -> RunningPeps:
        """Start the daemons of a lab that is set up, and wait until they split connections.

        Raises:
            MachineError: a daemon does not start; the message has the last line that it printed.
        """
        running = cls()
        try:
            for pep in peps_of(plans):
                _set_initial_windows(core, pep, plans)
                running._daemons.append(_spawn(core, pep))
            running._wait_until_ready()
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
                    raise MachineError(f"the PEP of {daemon.pep.host} does not start: {reason}")
                time.sleep(_POLL_S)
            daemon.mark_ready()

    @property
    def fault(self) -> str | None:
        """Why a run is invalid: a daemon has ended, or had too many connections. Else None.

        It is that of the last `poll`, as `functions` are.
        """
        return next((text for each in self._daemons if (text := each.fault()) is not None), None)

    def poll(self) -> None:
        """Read what the daemons have counted, and note which have ended."""
        for daemon in self._daemons:
            daemon.poll()

    def functions(self) -> dict[str, dict[str, Any]]:
        """Return what each PEP has counted, by its name in results; up to 1 s old."""
        return {
            daemon.pep.function: {
                "gateway": daemon.pep.gateway,
                "processor": None,
                "statistics": {name: daemon.counted.get(name, 0) for name in _STATISTICS},
            }
            for daemon in self._daemons
        }

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


def _spawn(core: _core.Lab, pep: GatewayPep) -> _Daemon:
    plan = json.dumps(lab_gate_plan(pep.plan, _STATE))
    # It reads its plan from standard input.
    command = ["/bin/sh", "-c", 'exec "$0" <<END\n$1\nEND\n', str(find_binary()), plan]
    log = os.memfd_create(f"{pep.function}.log")
    environment = [("PATH", machine.search_path())]
    return _Daemon(pep, core.spawn(pep.host, command, environment=environment, output=log), log)


def _set_initial_windows(
    core: _core.Lab, pep: GatewayPep, plans: Sequence[Mapping[str, Any]]
) -> None:
    """Set the initial windows of both legs: that of a leg is a property of its route."""
    plan = plans[0] if pep.gateway == 0 else plans[-1]
    near = [host["name"] for host in plan["hosts"] if host["gateway"] == pep.gateway]
    near.append("world" if pep.gateway == 0 else _host_of_terminal(plan, pep.gateway))
    to_hosts = [[core.address(host), "dev", "hosts"] for host in near]
    to_link = [link_route(core, pep.host)]
    for side, routes in zip(_SIDES, (to_hosts, to_link), strict=True):
        window = pep.plan[side]["initial_window_segments"]
        if window != DEFAULT_WINDOW_SEGMENTS:
            for route in routes:
                change_route(core, pep.host, [*route, "initcwnd", str(window)])


def _host_of_terminal(plan: Mapping[str, Any], gateway: int) -> str:
    is_alone = len(plan["gateways"]) <= 1 + 1
    return "island" if is_alone else f"island-{gateway}"
