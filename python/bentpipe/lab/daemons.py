"""The daemons of a lab: `bentpipe-gate` on each gateway with a PEP or a tunnel.

The lab makes such a gateway a host of its own, with an interface ``hosts`` to the hosts behind it
and an interface ``link``. The daemons and their files end with the lab.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bentpipe.errors import MachineError
from bentpipe.gateway import machine
from bentpipe.gateway.binary import find_binary
from bentpipe.lab.gate import lab_gate_plan, most_connections
from bentpipe.lab.gateways import GatewayHost, gateway_hosts
from bentpipe.lab.peps import SIDES
from bentpipe.lab.routes import DEFAULT_WINDOW_SEGMENTS, change_route, link_route
from bentpipe.lab.tunnels import DEVICE, new_key, tunnel_plan_of
from bentpipe.results.verdict import PEP_FAULT, TUNNEL_FAULT

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
# A folder that the gateway has of its own: `PRIVATE_FOLDER` of bentpipe-sys.
_STATE: Final = "/dev/shm/bentpipe-gate.json"
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
                each.host: new_key(core, each.host)
                for each in gateways
                if each.function("tunnel") is not None
            }
            for gateway in gateways:
                running._daemons.append(_spawn(core, gateway, public_keys))
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


def _spawn(core: _core.Lab, gateway: GatewayHost, public_keys: Mapping[str, str]) -> _Daemon:
    has_tunnel = gateway.function("tunnel") is not None
    plan = lab_gate_plan(
        gateway.function("pep"),
        tunnel_plan_of(core, gateway, public_keys) if has_tunnel else None,
        _STATE,
    )
    # It reads its plan from standard input.
    shell = ["/bin/sh", "-c", 'exec "$0" <<END\n$1\nEND\n']
    command = [*shell, str(find_binary()), json.dumps(plan)]
    log = os.memfd_create(f"{gateway.host}.log")
    environment = [("PATH", machine.search_path())]
    process = core.spawn(gateway.host, command, environment=environment, output=log)
    return _Daemon(gateway, plan, process, log)


def _set_initial_windows(core: _core.Lab, daemon: _Daemon) -> None:
    """Set the initial windows of both legs of a PEP: that of a leg is a property of its route."""
    gateway, tunnel = daemon.gateway, daemon.plan["tunnel"]
    pep = gateway.function("pep")
    if pep is None:
        return
    to_hosts = [[core.address(host), "dev", "hosts"] for host in gateway.near_hosts()]
    to_link = [link_route(core, gateway.host)]
    if tunnel is not None:
        networks = [network for peer in tunnel["peers"] for network in peer["networks"]]
        to_link = [[network, "dev", DEVICE] for network in networks]
    for side, routes in zip(SIDES, (to_hosts, to_link), strict=True):
        window = pep[side]["initial_window_segments"]
        if window != DEFAULT_WINDOW_SEGMENTS:
            for route in routes:
                change_route(core, gateway.host, [*route, "initcwnd", str(window)])
