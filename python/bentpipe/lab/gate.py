"""The plan of the daemon of a gateway in a lab."""

from __future__ import annotations

import os
import resource
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

# By way of the package: a lab without a PEP starts without the classes of scenarios.
from bentpipe import gateway
from bentpipe.lab.tcp_settings import congestion_control
from bentpipe.units import NS_PER_S

if TYPE_CHECKING:
    from bentpipe.gateway.plan import GatePlan, PepPlan, SidePlan
    from bentpipe.gateway.tunnel_plan import DaemonTunnelPlan

_THREADS: Final = 1
# A client gives up after six retransmissions of its SYN (tcp_syn_retries of tcp(7)), as in the
# simulator.
_CONNECT_LIMIT_NS: Final = 127 * NS_PER_S


def most_connections(pep: Mapping[str, Any]) -> int:
    """Return how many connections the daemon splits at a time, within the limit of open files.

    It is at least 1: within a limit for less the daemon does not start, and says why.
    """
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted: int = pep["connections"]
    if most_files == resource.RLIM_INFINITY:
        return wanted
    return max(min(wanted, gateway.connections_within(most_files, threads=_THREADS)), 1)


def lab_gate_plan(
    pep: Mapping[str, Any] | None, tunnel: DaemonTunnelPlan | None, state_file: str
) -> GatePlan:
    """Return the daemon's plan of the PEP of a plan, and of a tunnel, whose connections it splits.

    In the user namespace of an ordinary user the worker is that user, the only one there.
    """
    is_root = os.geteuid() == 0
    return {
        "name": "bentpipe",
        "state_file": state_file,
        "files": [],
        "user": gateway.NOBODY if is_root else os.getuid(),
        "group": gateway.NOBODY if is_root else os.getgid(),
        "metrics_listen": None,
        "pep": None if pep is None else _pep_plan(pep, tunnel["device"] if tunnel else "link"),
        "tunnel": tunnel,
    }


def _pep_plan(pep: Mapping[str, Any], link_interface: str) -> PepPlan:
    """Return the daemon's plan of a PEP.

    The gateway has a kernel's network of its own, so buffers are its sysctls, as those of hosts:
    the kernel tunes them up to the maximum. Nobody else uses its marks and tables.
    """

    def side(interface: str, tcp: Mapping[str, Any]) -> SidePlan:
        return {
            "interfaces": [interface],
            "tcp": {
                "congestion_control": congestion_control(tcp),
                "send_buffer_bytes": None,
                "receive_buffer_bytes": None,
                "not_sent_bytes": pep["notsent_lowat_bytes"],
            },
        }

    return {
        "mark": gateway.MARK,
        "route_table": gateway.ROUTE_TABLE,
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
