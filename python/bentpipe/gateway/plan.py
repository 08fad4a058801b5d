"""The plan of the daemon `bentpipe-gate`: the functions of a gateway, and where they are installed.

The daemon has the TCP of its kernel. Settings that the kernel has for single connections are in
the plan; `tcp_refusals` has those that are refused. `daemon/plan.rs`, `pep_plan.rs` and
`tunnel_plan.rs` describe each field.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final, TypeAlias

from bentpipe.errors import Problem, ScenarioError
from bentpipe.gateway.config import DaemonPep, DaemonTunnel, GatewayConfig, split_port
from bentpipe.gateway.kernel_tcp import congestion_control
from bentpipe.gateway.state import GatewayFolder
from bentpipe.gateway.tcp_refusals import receive_buffer_bytes, refused_settings
from bentpipe.plan.tunnels import Uplink, tunnel_plan
from bentpipe.scenario.document import dotted
from bentpipe.scenario.tcp import Tcp
from bentpipe.units import value_of

_THREADS_MAX: Final = 4
# Without titration nothing depends on them.
_UNKNOWN_RATE_BPS: Final = 10**9
_UNKNOWN_QUEUE_BYTES: Final = 10**6

# What the daemon reads, complete, as JSON.
GatePlan: TypeAlias = dict[str, Any]


def plan_of(config: GatewayConfig, path: Path) -> GatePlan:
    """Return the plan of the daemon; ``path`` is the file of the configuration.

    Raises:
        ScenarioError: the PEP has settings that the kernel does not have.
        PlanningError: settings of the tunnel do not fit together.
    """
    user, group = config.user_and_group()
    folder, tunnel = GatewayFolder(config.name), config.tunnel
    control = str(folder.control_file)
    return {
        "name": f"bentpipe-{config.name}",
        "state_file": str(folder.state_file),
        "files": [str(file) for file in (folder.log_file, folder.record_file)],
        "user": user,
        "group": group,
        "metrics_listen": None if config.metrics is None else config.metrics.listen,
        "pep": _pep_plan(config),
        "tunnel": None if tunnel is None else _tunnel_plan(tunnel, path.parent, control),
    }


def _pep_plan(config: GatewayConfig) -> dict[str, Any] | None:
    """Return the plan of the PEP; an idle limit of None is no limit, and so on."""
    if config.lan is None or config.link is None:
        return None
    pep = config.pep
    if refused := list(refused_settings(pep)):
        raise ScenarioError(
            *(Problem(source="pep", field=dotted(path), message=text) for path, text in refused)
        )
    sides = {"lan": (config.lan, pep.lan_tcp), "link": (config.link, pep.link_tcp)}
    return {
        "mark": config.mark,
        "route_table": config.route_table,
        "workers": pep.workers,
        "threads": pep.threads or min(len(os.sched_getaffinity(0)), _THREADS_MAX),
        "connections": pep.connections,
        "buffer_bytes": value_of(pep.buffer),
        "early_accept": pep.early_accept,
        "connect_limit_ns": value_of(pep.connect_limit),
        "idle_limit_ns": value_of(pep.idle_limit) or None,
        "keep_alive_ns": value_of(pep.keep_alive) or None,
        **{
            name: {"interfaces": list(side.interfaces), "tcp": _leg(pep, tcp)}
            for name, (side, tcp) in sides.items()
        },
    }


def _leg(pep: DaemonPep, tcp: Tcp) -> dict[str, Any]:
    """Return the TCP of the legs on one side; None is what the machine has."""
    lowat, name = pep.notsent_lowat, tcp.congestion_control
    return {
        "congestion_control": None if name is None else congestion_control(name),
        # The kernel doubles the size for its own overhead, as the model expects.
        "send_buffer_bytes": None if tcp.send_buffer is None else value_of(tcp.send_buffer),
        "receive_buffer_bytes": receive_buffer_bytes(tcp),
        "not_sent_bytes": None if lowat is None else value_of(lowat),
    }


def _tunnel_plan(tunnel: DaemonTunnel, folder: Path, control_file: str) -> dict[str, Any]:
    """Return the plan of a tunnel; both ends are taken to have the same coding."""
    uplink = Uplink(
        rate_bps=_UNKNOWN_RATE_BPS,
        capacity_bytes=_UNKNOWN_QUEUE_BYTES,
        packet_overhead_bytes=value_of(tunnel.packet_overhead),
        round_trip_ns=value_of(tunnel.round_trip),
    )
    settings = tunnel_plan(tunnel, tunnel, uplink, ("tunnel",))
    del settings["kind"]
    listen = tunnel.listen
    address, port = split_port(listen) if isinstance(listen, str) else (None, listen)
    return {
        "device": tunnel.device,
        "addresses": list(tunnel.addresses),
        "listen_address": address,
        "listen_port": port,
        "private_key": str(folder.absolute() / tunnel.private_key),
        "outer_mtu_bytes": tunnel.outer_mtu,
        "control_file": control_file,
        "peers": [
            {
                "name": peer.name,
                "public_key": peer.public_key,
                "endpoint": peer.endpoint,
                "keepalive_ns": None if peer.keepalive is None else value_of(peer.keepalive),
                "networks": list(peer.networks),
            }
            for peer in tunnel.peers
        ],
        "settings": settings,
    }
