"""The gateways at the ends of the link, and their functions.

A function is one class here, with its settings, and one field of `Gateway`. `plan.gateways`
makes its part of the plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from bentpipe import units
from bentpipe.scenario.record import (
    Duration,
    GatewayFunction,
    Packets,
    PositiveSize,
    QueueClass,
    Record,
    refusal,
)
from bentpipe.scenario.tcp import ProfileName, Tcp
from bentpipe.scenario.tunnel import Tunnel

ProcessorMode = Literal["bridge", "pass-thru", "route"]
FunctionName = Literal["aggregator", "pep", "processor", "tunnel"]

# SnIP technical note: routing manages about 6,000 packets a second, both directions together;
# bridging and pass-thru 5,400.
PROCESSOR_PPS: Final[Mapping[ProcessorMode, int]] = {
    "bridge": 5_400,
    "pass-thru": 5_400,
    "route": 6_000,
}
# Two addresses and the EtherType (IEEE 802.3); the frame check sequence ends at the bridge.
BRIDGED_HEADER_BYTES: Final = 14


class Aggregator(GatewayFunction):
    """Packet aggregation: small packets in the same direction share a frame over the link."""

    needs_peer = True

    frame_size: PositiveSize = units.size("1500 B")
    """The maximum size of a frame, its own IP header included."""
    packet_size: PositiveSize = units.size("700 B")
    """The maximum size of a packet that is aggregated; larger ones pass unchanged. By default two
    of them share a frame of 1500 bytes."""
    hold_time: Duration = units.duration("5 ms")
    """The maximum time that a packet waits for others."""
    classes: Annotated[tuple[QueueClass, ...], Field(strict=False, min_length=1)] | None = None
    """The priorities of the flows whose packets are aggregated; by default all. Packets of
    different priorities never share a frame."""


class Pep(GatewayFunction):
    """A split-TCP performance-enhancing proxy (PEP, RFC 3135).

    It relays between two connections: one to the hosts behind the gateway, one over the link.
    """

    profile: ProfileName = "linux"
    """The TCP of both legs, before ``lan_tcp`` and ``link_tcp``."""
    lan_tcp: Tcp = Field(default_factory=Tcp)
    """Settings of the legs to the hosts behind the gateway, which override those of the profile."""
    link_tcp: Tcp = Field(default_factory=Tcp)
    """Settings of the legs over the link, which override those of the profile."""
    buffer: PositiveSize = units.size("64 KiB")
    """The data that it holds for each direction of a connection beside the buffers of both legs; by
    default a pipe of Linux (pipe(7))."""
    notsent_lowat: PositiveSize | None = None
    """The most unsent data that it writes into the send buffer of a leg (``TCP_NOTSENT_LOWAT``); by
    default as much as the buffer holds."""
    connections: Annotated[int, Field(ge=1, le=10**6)] = 10_000
    """The most connections that it splits at the same time; others pass unchanged."""
    early_accept: bool = False
    """Whether it accepts a connection before the destination does. A client then sends data one
    round trip earlier, and a closed port resets the connection instead of refusing it."""


class Processor(GatewayFunction):
    """The packet processor of a gateway, a single server for both directions."""

    mode: ProcessorMode = "route"
    """``route``, ``pass-thru`` or ``bridge``. It sets the default rate; with ``bridge`` the link
    also carries the 14 bytes of the Ethernet header."""
    packets_per_second: Annotated[int, Field(ge=1, le=10**9)] | None = None
    """The packets per second that it processes, both directions together; by default 6000 for
    ``route`` and 5400 for the other modes."""
    per_byte: Duration = units.duration("0 ns")
    """The additional processing time for each byte of an IP packet."""
    buffer: Packets = units.packets("50 packets")
    """The queue of each direction, in packets."""


# Each function with its settings, in the default order from the hosts to the link.
FUNCTIONS: Final[Mapping[FunctionName, type[GatewayFunction]]] = {
    "pep": Pep,
    "tunnel": Tunnel,
    "aggregator": Aggregator,
    "processor": Processor,
}
# What two functions of a kind send each other, instead of packets.
_WHAT_PEERS_EXCHANGE: Final[Mapping[str, str]] = {"aggregator": "frames", "tunnel": "symbols"}


class Gateway(Record):
    """The gateway between a local network and the link."""

    functions: Annotated[tuple[FunctionName, ...], Field(strict=False)] | None = None
    """Its functions, in order from the hosts to the link; by default those that have settings. A
    listed function without settings has its defaults."""
    aggregator: Aggregator | None = None
    """Its packet aggregator; both ends of the link need one."""
    pep: Pep | None = None
    """Its PEP, which splits TCP connections; in ``functions`` before ``aggregator`` and
    ``tunnel``."""
    processor: Processor | None = None
    """Its packet processor; without one, processing takes no time and drops no packet."""
    tunnel: Tunnel | None = None
    """Its end of a coded tunnel; both ends of the link need one."""

    @model_validator(mode="after")
    def _check_functions(self) -> Self:
        if self.functions is None:
            return self
        for name in FUNCTIONS:
            if self.functions.count(name) > 1:
                raise refusal(f"read {name} twice in functions; each is allowed once")
            if getattr(self, name) is not None and name not in self.functions:
                raise refusal(f"read settings of {name}, which is not in functions")
        before = self.functions[: self.functions.index("pep")] if "pep" in self.functions else ()
        for name in before:
            if name in _WHAT_PEERS_EXCHANGE:
                read = f"read {name} before pep in functions"
                packets = _WHAT_PEERS_EXCHANGE[name]
                raise refusal(f"{read}; a pep splits single packets, not {packets}: put pep first")
        return self

    def in_order(self) -> list[tuple[FunctionName, GatewayFunction]]:
        """Return the functions with their settings, from the hosts to the link."""
        if self.functions is None:
            written = ((name, getattr(self, name)) for name in FUNCTIONS)
            return [(name, settings) for name, settings in written if settings is not None]
        return [(name, getattr(self, name) or FUNCTIONS[name]()) for name in self.functions]

    def mode(self) -> ProcessorMode | None:
        """Return the mode of its processor, if it has one."""
        processor = dict(self.in_order()).get("processor")
        return processor.mode if isinstance(processor, Processor) else None


class Gateways(Record):
    """The gateways at the ends of the link."""

    hub: Gateway = Field(default_factory=Gateway)
    """The gateway of the hub."""
    terminal: Gateway = Field(default_factory=Gateway)
    """The gateway of each user terminal."""

    @model_validator(mode="after")
    def _check_peers(self) -> Self:
        hub, terminal = (
            [name for name, settings in gateway.in_order() if settings.needs_peer]
            for gateway in (self.hub, self.terminal)
        )
        for end, here, there in (("hub", hub, terminal), ("terminal", terminal, hub)):
            for name in here:
                if name not in there:
                    other = "terminal" if end == "hub" else "hub"
                    message = f"read {name} at the {end} and none at the {other}"
                    raise refusal(f"{message}; both ends of the link need one")
        if hub != terminal:
            read = f"read {', '.join(hub)} at the hub and {', '.join(terminal)} at the terminal"
            raise refusal(f"{read}; functions that both ends need must be in the same order")
        return self
