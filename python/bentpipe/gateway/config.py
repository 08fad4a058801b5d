"""The configuration file of a gateway's daemon (TOML), with the names and units of a scenario.

`plan_of` resolves it into what the daemon reads.
"""

from __future__ import annotations

import os
import pwd
import re
import tomllib
from collections.abc import Iterable
from contextlib import suppress
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    collapse_addresses,
    ip_address,
    ip_network,
)
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self, TypeAlias, get_args

from pydantic import Field, model_validator

from bentpipe import units
from bentpipe.errors import ScenarioError
from bentpipe.gateway.daemon import GatewayFolder
from bentpipe.gateway.fields import (
    Endpoint,
    Interface,
    InterfaceAddress,
    Listen,
    Loopback,
    Name,
    Network,
    PeerName,
    Ports,
    PublicKey,
    User,
    placeholder_key,
    port_range,
    receive_buffer_bytes,
    refused_settings,
    split_port,
)
from bentpipe.gateway.kernel_tcp import congestion_control
from bentpipe.gateway.machine import DEVICE, MARK, PEERS_MAX, PORT, ROUTE_TABLE, mark_count
from bentpipe.plan.gateways import Uplink, tunnel_plan
from bentpipe.plan.lower import lower
from bentpipe.scenario.document import Document, file_error, file_text
from bentpipe.scenario.gateways import Pep, Tunnel
from bentpipe.scenario.record import (
    Duration,
    DurationOrNone,
    PositiveDuration,
    Record,
    Size,
    refusal,
)
from bentpipe.scenario.tcp import Tcp
from bentpipe.text import counted

_WORKERS_MAX: Final = 64
# The daemon has its plan in one message.
_ENTRIES_MAX: Final = 256
# The daemon hands over its sockets in one message.
_INTERFACES_MAX: Final = 25
# The smallest MTU of IPv4 (RFC 791), and the largest of a device.
_MTU_MIN: Final = 576
_MTU_MAX: Final = 65_535
_TOML_LINE: Final = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)$")

_THREADS_MAX: Final = 4
# Without titration nothing depends on them.
_UNKNOWN_RATE_BPS: Final = 10**9
_UNKNOWN_QUEUE_BYTES: Final = 10**6

# What the daemon reads, complete, as JSON.
GatePlan: TypeAlias = dict[str, Any]

FunctionName = Literal["pep", "tunnel"]
FailMode = Literal["closed", "open"]


class Side(Record):
    """One side of the gateway."""

    interfaces: Annotated[tuple[Interface, ...], Field(strict=False, min_length=1)]
    """The interfaces on this side. Connections that are opened on one of them are split."""


class Connections(Record):
    """TCP connections, by the networks of their ends and the ports of their servers."""

    networks: Annotated[tuple[Network, ...], Field(strict=False, max_length=_ENTRIES_MAX)] = ()
    """Networks; a connection belongs to them if its client or its server, or both, are in one."""
    ports: Annotated[tuple[Ports, ...], Field(strict=False, max_length=_ENTRIES_MAX)] = ()
    """Ports of servers: numbers, or ranges such as ``"8000-8099"``."""

    @model_validator(mode="after")
    def _check_that_it_says_something(self) -> Self:
        if not self.networks and not self.ports:
            raise refusal("read no networks and no ports; write one of them, or leave this out")
        return self

    @classmethod
    def plan(cls, written: Self | None) -> dict[str, Any]:
        """Return networks and ports for the daemon, without overlaps."""
        networks, ports = (written.networks, written.ports) if written else ((), ())
        parsed = [ip_network(network) for network in networks]
        v4 = collapse_addresses(each for each in parsed if isinstance(each, IPv4Network))
        v6 = collapse_addresses(each for each in parsed if isinstance(each, IPv6Network))
        return {
            "networks": [str(network) for network in (*v4, *v6)],
            "ports": _merged(port_range(port) for port in ports),
        }


def _merged(ranges: Iterable[list[int]]) -> list[list[int]]:
    """Return ranges in order, those that touch as one: nftables refuses sets with overlaps."""
    merged: list[list[int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1][1] = max(merged[-1][1], last)
        else:
            merged.append([first, last])
    return merged


class DaemonPep(Pep):
    """The PEP of a scenario, with what only a real one needs."""

    except_: Connections | None = Field(
        default=None, validation_alias="except", serialization_alias="except"
    )
    """Connections that pass unsplit: those of these networks, and those to these ports."""
    only: Connections | None = None
    """Without it all others are split. With it those alone that belong to its networks and to its
    ports; a list that is not written has all of them."""

    connect_limit: PositiveDuration = units.duration("30 s")
    """How long a server may take to answer. After it, the next SYN of the client starts again."""
    idle_limit: Duration = units.duration("124 min")
    """The longest time without data in either direction, after which a connection is reset; ``0 s``
    for no limit. By default what RFC 5382 (REQ-5) requires of a NAT at least."""
    keep_alive: Duration = units.duration("10 min")
    """The time without data after which a peer is probed (keep-alive), and a connection whose peer
    is gone is reset; ``0 s`` for never."""
    threads: Annotated[int, Field(ge=1, le=256)] | None = None
    """The threads of each worker; by default one for each core, at most 4."""
    workers: Annotated[int, Field(ge=1, le=_WORKERS_MAX)] = 1
    """The processes that relay. Each may have as many open files as one process may."""


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

    @property
    def address(self) -> IPv4Address | IPv6Address | None:
        """The address of its endpoint; None without one, and if it is a name."""
        with suppress(ValueError):
            return ip_address(split_port(self.endpoint or "")[0])
        return None

    @property
    def has_placeholder(self) -> bool:
        """Whether its key is one that an export writes, also if it has another name since."""
        names = (self.name, "hub", *(f"terminal-{number}" for number in range(1, PEERS_MAX + 1)))
        return self.public_key in {placeholder_key(name) for name in (*names, "terminal")}

    @model_validator(mode="after")
    def _check_keepalive(self) -> Self:
        if self.keepalive is not None and units.value_of(self.keepalive) < units.NS_PER_S:
            raise refusal(f"read keepalive {self.keepalive}; at least 1 s, such as 25 s")
        return self


class DaemonTunnel(Tunnel):
    """The tunnel of a scenario, with what only a real one needs."""

    device: Interface = DEVICE
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
        tuple[TunnelPeer, ...], Field(strict=False, min_length=1, max_length=PEERS_MAX)
    ]
    """The gateways at the other ends."""
    fail: FailMode = "closed"
    """What becomes of packets for the networks of the peers when the gateway was killed: they are
    refused until it is up again (``closed``), or take the router's other routes in clear text
    (``open``)."""
    outer_mtu: Annotated[int, Field(ge=_MTU_MIN, le=_MTU_MAX)] | None = None
    """The largest IP packet that the path to the peers carries, in bytes; by default the MTU of the
    routes to them. The MTU of the device is 74 B less, 94 B over IPv6."""
    round_trip: PositiveDuration = units.duration("600 ms")
    """The round-trip time of the link, from which hold times are computed that are not written; by
    default that of a geostationary satellite."""
    packet_overhead: Size = units.size("0 B")
    """What the link adds to each packet outside the tunnel."""
    peer_feedback_interval: DurationOrNone | None = None
    """The ``feedback_interval`` of the peers, whose reports ``adaptive`` follows; by default that
    of this end."""

    @property
    def own_address(self) -> str | None:
        """The address to listen on, if not all."""
        return split_port(self.listen)[0] if isinstance(self.listen, str) else None

    @property
    def port(self) -> int:
        """The UDP port."""
        return split_port(self.listen)[1] if isinstance(self.listen, str) else self.listen

    @model_validator(mode="after")
    def _check_daemon(self) -> Self:
        needs_queue = self.titration in {"titrated", "delayed"}
        for name in ("rate", "queue") if needs_queue else ():
            if getattr(self, name) is None:
                raise refusal(
                    f"read titration {self.titration} without {name}; a gateway cannot see the "
                    f"link: write its {name}, or titration immediate"
                )
        names = [peer.name for peer in self.peers]
        keys, networks = dict[str, str](), dict[str, str]()
        for name, peer in zip(names, self.peers, strict=True):
            if names.count(name) > 1:
                raise refusal(f"read two peers named {name}; each has a name of its own")
            if (other := keys.setdefault(peer.public_key, name)) != name:
                raise refusal(
                    f"read the same public_key at {other} and {name}; each gateway has the key "
                    "that bentpipe gateway keygen printed there"
                )
            for network in peer.networks:
                if network in networks:
                    where = f"{networks[network]} and {name}"
                    raise refusal(f"read the network {network} at {where}; it is behind one peer")
                networks[network] = name
        return self


class Metrics(Record):
    """The server of metrics, for Prometheus."""

    listen: Loopback
    """The address and the port, on the loopback interface, such as ``127.0.0.1:9464``."""


class GatewayConfig(Record):
    """A gateway on a real router: its interfaces, and its functions in order."""

    name: Name
    """The name of the gateway."""
    functions: Annotated[tuple[FunctionName, ...], Field(strict=False, min_length=1)] = ("pep",)
    """Its functions: ``pep`` and ``tunnel``, in any order. What a packet passes first is decided by
    the routes and the interfaces."""
    lan: Side | None = None
    """The side of the hosts behind the gateway, for the PEP."""
    link: Side | None = None
    """The side of the link, for the PEP; it may be the device of the tunnel."""
    pep: DaemonPep = Field(default_factory=DaemonPep)
    """The PEP."""
    tunnel: DaemonTunnel | None = None
    """The tunnel."""
    metrics: Metrics | None = None
    """Its server of metrics; none by default."""
    user: User = "nobody"
    """The user as whom traffic is carried."""
    mark: Annotated[int, Field(ge=2, le=2**32 - 256)] = MARK
    """The first mark of packets for the relay: an even number, with 2 workers a multiple of 4, with
    4 of 8 and so on. The numbers up to the next multiple are used, too, and two more."""
    route_table: Annotated[int, Field(ge=256, le=2**32 - 1)] = ROUTE_TABLE
    """The number of the routing table for these packets."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        for function in get_args(FunctionName):
            if self.functions.count(function) > 1:
                raise refusal(f"read {function} twice in functions; each is allowed once")
            if function in self.model_fields_set and function not in self.functions:
                raise refusal(f"read settings of {function}, which is not in functions")
        has_pep = "pep" in self.functions
        if "tunnel" in self.functions and self.tunnel is None:
            raise refusal("read tunnel in functions and no [tunnel]; it has no defaults")
        for side in ("lan", "link"):
            if has_pep and getattr(self, side) is None:
                raise refusal(f"read pep in functions and no [{side}]; name its interfaces")
            if not has_pep and getattr(self, side) is not None:
                raise refusal(f"read [{side}] without pep in functions; only a PEP has sides")
        self._check_pep()
        return self

    def _check_pep(self) -> None:
        listed = self.interfaces
        for name in listed:
            if listed.count(name) > 1:
                raise refusal(f'read the interface "{name}" twice; each is on one side')
        if len(listed) > _INTERFACES_MAX:
            raise refusal(f"read {len(listed)} interfaces; at most {_INTERFACES_MAX} are allowed")
        multiple = mark_count(self.pep.workers)
        if self.mark % multiple:
            workers = counted(self.pep.workers, "worker")
            raise refusal(
                f"read mark {self.mark}; must be a multiple of {multiple} for {workers}, which "
                "use the marks up to the next one, and two more"
            )

    @property
    def interfaces(self) -> list[str]:
        """The interfaces of the PEP, on both sides."""
        sides = (self.lan, self.link)
        return [name for side in sides if side is not None for name in side.interfaces]

    def described(self) -> dict[str, Any]:
        """Return the description of the gateway for messages and the status."""
        description: dict[str, Any] = {"name": self.name, "functions": list(self.functions)}
        if self.lan is not None and self.link is not None:
            description["lan"], description["link"] = (
                list(self.lan.interfaces),
                list(self.link.interfaces),
            )
            description["connections"] = self.pep.connections
            for name, chosen in {"except": self.pep.except_, "only": self.pep.only}.items():
                if chosen is not None:
                    description[name] = {
                        "networks": list(chosen.networks),
                        "ports": list(chosen.ports),
                    }
        if self.tunnel is not None:
            description["device"] = self.tunnel.device
            description["peers"] = [peer.name for peer in self.tunnel.peers]
        return description


def read_config(path: Path) -> tuple[GatewayConfig, Document]:
    """Return the configuration in a TOML file, and the document for messages about its fields.

    Raises:
        ScenarioError: it cannot be read, is not TOML, or is no configuration, or its PEP has
            settings that the kernel does not have; the message names the file, the line or the
            field, what was read and what is allowed.
    """
    document = _document(path)
    config = GatewayConfig.of_document(document)
    if refused := list(refused_settings(config.pep)):
        raise ScenarioError(*(document.problem(("pep", *field), text) for field, text in refused))
    return config, document


def _document(path: Path) -> Document:
    source = str(path)
    try:
        data = tomllib.loads(file_text(path, "the configuration of a gateway (TOML)"))
    except tomllib.TOMLDecodeError as error:
        text = str(error)
        match = _TOML_LINE.search(text)
        line = int(match[1]) if match and match[1] else None
        raise file_error(source, f"TOML syntax: {_TOML_LINE.sub('', text)}", line) from None
    except RecursionError:
        raise file_error(source, "is nested too deeply") from None
    return Document(data=data, source=source)


# --- the plan of the daemon ----------------------------------------------------------------------

# The daemon has the TCP of its kernel. Settings that the kernel has for single connections are in
# the plan; `fields` has those that are refused. `daemon/plan.rs`, `pep_plan.rs` and
# `tunnel_plan.rs` describe each field.


def plan_of(config: GatewayConfig, path: Path) -> GatePlan:
    """Return the plan of the daemon; ``path`` is the file of the configuration.

    Raises:
        PlanningError: settings of the tunnel do not fit together.
    """
    user, tunnel = pwd.getpwnam(config.user), config.tunnel
    folder = GatewayFolder(config.name)
    return {
        "name": f"bentpipe-{config.name}",
        "state_file": str(folder.state_file),
        "control_file": str(folder.control_file),
        "files": [str(file) for file in (folder.log_file, folder.record_file)],
        "user": user.pw_uid,
        "group": user.pw_gid,
        "metrics_listen": None if config.metrics is None else config.metrics.listen,
        "pep": _pep_plan(config),
        "tunnel": None if tunnel is None else _tunnel_plan(tunnel, path),
    }


def _pep_plan(config: GatewayConfig) -> dict[str, Any] | None:
    """Return the plan of the PEP; an idle limit of None is no limit, and so on."""
    if config.lan is None or config.link is None:
        return None
    pep = config.pep
    left_out = ("profile", "lan_tcp", "link_tcp", "notsent_lowat", "except_", "only")
    values = lower(pep, (), leave_out=left_out)
    values.default("threads", min(len(os.sched_getaffinity(0)), _THREADS_MAX))
    for name in ("idle_limit_ns", "keep_alive_ns"):
        values[name] = values[name] or None
    sides = {"lan": (config.lan, pep.lan_tcp), "link": (config.link, pep.link_tcp)}
    return {
        "mark": config.mark,
        "route_table": config.route_table,
        **values,
        "except": Connections.plan(pep.except_),
        "only": Connections.plan(pep.only),
        **{
            name: {"interfaces": list(side.interfaces), "tcp": _leg(pep, tcp)}
            for name, (side, tcp) in sides.items()
        },
    }


def _leg(pep: DaemonPep, tcp: Tcp) -> dict[str, Any]:
    """Return the TCP of the legs on one side; None is what the machine has."""
    name = tcp.congestion_control
    return {
        "congestion_control": None if name is None else congestion_control(name),
        # The kernel doubles the size for its own overhead, as the model expects.
        "send_buffer_bytes": lower(tcp, ())["send_buffer_bytes"],
        "receive_buffer_bytes": receive_buffer_bytes(tcp),
        "not_sent_bytes": lower(pep, ())["notsent_lowat_bytes"],
    }


def _tunnel_plan(tunnel: DaemonTunnel, path: Path) -> dict[str, Any]:
    """Return the plan of a tunnel; both ends have the same coding, but for what is written."""
    uplink = Uplink(
        rate_bps=_UNKNOWN_RATE_BPS,
        capacity_bytes=_UNKNOWN_QUEUE_BYTES,
        packet_overhead_bytes=units.value_of(tunnel.packet_overhead),
        round_trip_ns=units.value_of(tunnel.round_trip),
    )
    reports = tunnel.peer_feedback_interval or tunnel.feedback_interval
    peer = tunnel.model_copy(update={"feedback_interval": reports})
    settings = tunnel_plan(tunnel, peer, uplink, ("tunnel",))
    del settings["kind"]
    return {
        "device": tunnel.device,
        "addresses": list(tunnel.addresses),
        "listen_address": tunnel.own_address,
        "listen_port": tunnel.port,
        "private_key": str(path.parent.absolute() / tunnel.private_key),
        "outer_mtu_bytes": tunnel.outer_mtu,
        "fail": tunnel.fail,
        "peers": [lower(peer, ()) for peer in tunnel.peers],
        "settings": settings,
    }
