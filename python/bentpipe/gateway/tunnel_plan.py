"""The daemon's plan of a tunnel."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, TypedDict

from bentpipe.gateway.fields import split_port
from bentpipe.gateway.tunnel_config import DaemonTunnel
from bentpipe.plan.tunnels import Uplink, tunnel_plan
from bentpipe.units import value_of

# Without titration nothing depends on them.
_UNKNOWN_RATE_BPS: Final = 10**9
_UNKNOWN_QUEUE_BYTES: Final = 10**6


class TunnelPeerPlan(TypedDict):
    """A gateway at the other end."""

    name: str
    public_key: str
    endpoint: str | None
    keepalive_ns: int | None
    networks: list[str]


class DaemonTunnelPlan(TypedDict):
    """What the daemon reads of a tunnel: `daemon/tunnel_plan.rs` describes each field."""

    device: str
    addresses: list[str]
    listen_address: str | None
    listen_port: int
    private_key: str
    outer_mtu_bytes: int | None
    control_file: str
    peers: list[TunnelPeerPlan]
    settings: dict[str, Any]


def daemon_tunnel_plan(tunnel: DaemonTunnel, folder: Path, control_file: Path) -> DaemonTunnelPlan:
    """Return the plan of a tunnel; ``folder`` is that of the configuration.

    Raises:
        PlanningError: settings do not fit together.
    """
    address, port = None, tunnel.listen
    if isinstance(port, str):
        found = split_port(port)
        assert found is not None, "it was validated"
        address, port = found
    return {
        "device": tunnel.device,
        "addresses": list(tunnel.addresses),
        "listen_address": address,
        "listen_port": port,
        "private_key": str(folder.absolute() / tunnel.private_key),
        "outer_mtu_bytes": tunnel.outer_mtu,
        "control_file": str(control_file),
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
        "settings": _settings(tunnel),
    }


def _settings(tunnel: DaemonTunnel) -> dict[str, Any]:
    """Return the coding part, as a scenario has it; both ends are taken to have the same."""
    uplink = Uplink(
        rate_bps=_UNKNOWN_RATE_BPS,
        capacity_bytes=_UNKNOWN_QUEUE_BYTES,
        packet_overhead_bytes=value_of(tunnel.packet_overhead),
        round_trip_ns=value_of(tunnel.round_trip),
    )
    settings = tunnel_plan(tunnel, tunnel, uplink, ("tunnel",))
    del settings["kind"]
    return settings
