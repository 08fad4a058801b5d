"""The tunnel in a gateway's configuration: that of a scenario, with what only a real one needs."""

from __future__ import annotations

from typing import Annotated, Final, Self

from pydantic import Field, model_validator

from bentpipe import units
from bentpipe.gateway.fields import (
    Endpoint,
    Interface,
    InterfaceAddress,
    Listen,
    Network,
    PeerName,
    PublicKey,
)
from bentpipe.scenario.record import PositiveDuration, Record, Size, refusal
from bentpipe.scenario.tunnel import Tunnel

PORT: Final = 51_871
# The smallest MTU of IPv4 (RFC 791), and the largest of a device.
_MTU_MIN: Final = 576
_MTU_MAX: Final = 65_535
# As `daemon/tunnel_plan.rs`.
_PEERS_MAX: Final = 64


class TunnelPeer(Record):
    """A gateway at the other end of a tunnel."""

    name: PeerName
    """Its name in the status and in metrics: letters, digits, ``-``, ``_`` and ``.``."""
    public_key: PublicKey
    """Its public key: what ``bentpipe gateway keygen`` printed there."""
    endpoint: Endpoint | None = None
    """Its name or address with its port. Names are looked up once, at the start. Without one it is
    where its last packet came from, so it has to begin."""
    networks: Annotated[tuple[Network, ...], Field(strict=False, min_length=1)]
    """The networks behind it, which are routed into the tunnel. Packets from it with other sources
    are dropped."""
    keepalive: PositiveDuration | None = None
    """The interval after which something is sent to it at the latest, from 1 s; by default an idle
    tunnel sends nothing. For peers behind a NAT."""

    @model_validator(mode="after")
    def _check_keepalive(self) -> Self:
        if self.keepalive is not None and units.value_of(self.keepalive) < units.NS_PER_S:
            raise refusal(f"read keepalive {self.keepalive}; at least 1 s, such as 25 s")
        return self


class DaemonTunnel(Tunnel):
    """The tunnel of a scenario, with what only a real one needs."""

    device: Interface = "bp0"
    """The name of its TUN device, which exists while the gateway is up."""
    addresses: Annotated[tuple[InterfaceAddress, ...], Field(strict=False, min_length=1)]
    """The addresses of the device with the lengths of their prefixes, such as ``10.99.0.1/24``."""
    listen: Listen = PORT
    """The UDP port, or an address with it. A port alone is one of all addresses of the version of
    IP that the first endpoint has."""
    private_key: Annotated[str, Field(min_length=1)]
    """The file with the private key of this gateway, which only root may read. The path is relative
    to the folder of the configuration."""
    peers: Annotated[
        tuple[TunnelPeer, ...], Field(strict=False, min_length=1, max_length=_PEERS_MAX)
    ]
    """The gateways at the other ends."""
    outer_mtu: Annotated[int, Field(ge=_MTU_MIN, le=_MTU_MAX)] | None = None
    """The largest IP packet that the path to the peers carries, in bytes; by default the MTU of the
    routes to them. The MTU of the device is 74 B less, 94 B over IPv6."""
    round_trip: PositiveDuration = units.duration("600 ms")
    """The round-trip time of the link, from which hold times are computed that are not written; by
    default that of a geostationary satellite."""
    packet_overhead: Size = units.size("0 B")
    """What the link adds to each packet outside the tunnel."""

    @model_validator(mode="after")
    def _check_daemon(self) -> Self:
        needs_queue = self.titration in {"titrated", "delayed"}
        for name in ("rate", "queue") if needs_queue else ():
            if getattr(self, name) is None:
                raise refusal(
                    f"read titration {self.titration} without {name}; a gateway cannot see the "
                    f"link: write its {name}, or titration immediate"
                )
        seen = dict[str, str]()
        for peer in self.peers:
            if sum(other.name == peer.name for other in self.peers) > 1:
                raise refusal(f"read two peers named {peer.name}; each has a name of its own")
            same = [other.name for other in self.peers if other.public_key == peer.public_key]
            if len(same) > 1:
                raise refusal(
                    f"read the same public_key at {same[0]} and {same[1]}; each gateway has the "
                    "key that bentpipe gateway keygen printed there"
                )
            for network in peer.networks:
                if network in seen:
                    raise refusal(
                        f"read the network {network} at {seen[network]} and {peer.name}; it is "
                        "behind one peer"
                    )
                seen[network] = peer.name
        return self
