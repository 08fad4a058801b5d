"""The gateways at the ends of the link, and their functions.

A function is one class here, with its settings, and one field of `Gateway`. `plan.gateways`
makes its part of the plan, with the defaults that depend on the link. The policies of the coded
tunnel are those of `docs/model/tunnel-policies.md`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Final, Literal

from pydantic import Field

from bentpipe import units
from bentpipe.scenario.record import (
    AdaptiveOrPercent,
    Duration,
    DurationOrNone,
    ListOf,
    NonEmptyListOf,
    Packets,
    Percent,
    PositiveSize,
    QueueClass,
    Rate,
    Record,
    SignalOrPercent,
    Size,
)
from bentpipe.scenario.tcp import ProfileName, Tcp

Titration = Literal["titrated", "none", "immediate", "delayed"]

# The ESIs of a repair symbol's window, in RFC 8681, have 12 bits.
_WINDOW_MAX: Final = 4_095
# What the encoder keeps unless a window is longer.
_MEMORY: Final = 1_024

Window = Annotated[int, Field(ge=1, le=_WINDOW_MAX)]


class Tunnel(Record):
    """A tunnel to the gateway at the other end of the link, with an erasure code.

    It sends repair beside the packets, from which the other end recovers lost ones.
    """

    redundancy: AdaptiveOrPercent = "adaptive"
    """The repair symbols for each source symbol: a share such as ``10 %``, or ``adaptive`` to
    follow the loss that the other end reports."""
    redundancy_max: Percent = "20 %"
    """The most that ``adaptive`` makes."""
    window: Window = 128
    """The source symbols that each repair symbol covers; with ``adaptive`` while losses are single,
    and more if they come in bursts."""
    window_max: Window = _MEMORY
    """The longest window of ``adaptive``."""
    overflow_repairs: Annotated[float, Field(ge=0, le=10)] | None = None
    """The repair symbols for each source symbol that the queue of the link drops, as this end
    calculates it; all traffic of the queue must pass this end. By default none; a
    good value is 1."""
    overflow_window: Window = 128
    """The source symbols that each of these covers."""
    memory: Window | None = None
    """The source symbols that the sender keeps for repair; by default 1024, or its longest window
    if that is more."""
    density: Annotated[int, Field(ge=0, le=15)] = 15
    """The density threshold of the coefficients (DT in RFC 8681): 15 for no zeros."""
    symbol_size: PositiveSize = units.size("1432 B")
    """The largest symbol, from 64 bytes, equal at both ends. It holds a packet of 6 bytes less, to
    which the maximum segment size of TCP is lowered; larger packets are not coded."""
    packet_size: Size = units.size("100 B")
    """The size of the smallest packet that is coded, in IP bytes."""
    uncoded_first: Size = units.size("0 B")
    """The bytes at the beginning of each flow that are not coded."""
    classes: NonEmptyListOf[QueueClass] | None = None
    """The priorities of the flows whose packets are coded; by default all."""
    titration: Titration = "titrated"
    """When repair is sent: ``titrated`` while the queue of the link holds less than ``threshold``,
    ``immediate``, ``delayed`` by ``delay``, or ``none`` for never."""
    delay: Duration | None = None
    """How long ``delayed`` holds repair."""
    threshold: PositiveSize | None = None
    """The occupancy of the queue below which ``titrated`` sends repair; by default a tenth of
    ``queue``, or two thirds of it with ``overflow_repairs``."""
    hold_time: Duration | None = None
    """The longest time that ``titrated`` holds repair; by default the round-trip time of the
    link, plus the time in which a full queue drains with ``overflow_repairs``."""
    hold_buffer: PositiveSize | None = None
    """The most repair that is held, up to 1 GiB; by default that of a hold time at ``rate``, and at
    least 64 kB. With ``overflow_repairs`` all that the link sends in that time, and at least twice
    ``queue``."""
    rate: Rate | None = None
    """The rate at which the link's queue is thought to drain; by default that of the direction away
    from this gateway, or the highest if it varies."""
    queue: PositiveSize | None = None
    """The capacity of that queue; by default its limit, with 1500 bytes for each packet, or what
    the link sends in a second if it is unlimited."""
    order: bool = True
    """Whether packets from the other end leave in the order of their flow. One that follows a lost
    packet waits until that is recovered."""
    order_hold_time: Duration | None = None
    """The longest of these waits; by default a fifth of the round-trip time of the link."""
    order_pace: Rate | None = None
    """The highest rate at which each flow leaves this end, somewhat above that of the link, so that
    what has waited does not leave at once, and is answered with a burst; by default any."""
    feedback_interval: DurationOrNone = units.duration("100 ms")
    """The time between two reports of this end to the sender at the other end, at least 1 ms, or
    ``none`` for no reports."""
    congestion_signal: SignalOrPercent = "hidden"
    """How flows learn of recovered losses (RFC 9265): ``hidden`` for not at all, ``ecn`` to mark
    recovered packets of ECN-capable flows, or the share of them that is not delivered, such as
    ``10 %``."""

    def _contradictions(self) -> Iterator[str]:
        if self.titration == "delayed" and self.delay is None:
            yield "read titration delayed without delay; set one, such as 100 ms"
        if self.titration != "delayed" and self.delay is not None:
            read = f"read delay {self.delay} with titration {self.titration}"
            yield f"{read}; only delayed repair has one"
        for name in ("order_hold_time", "order_pace"):
            if not self.order and (value := getattr(self, name)) is not None:
                read = f"read {name} {value} with order false"
                yield f"{read}; packets wait only for the order of their flow"
        if self.is_adaptive and self.window > self.window_max:
            read = f"read window {self.window} and window_max {self.window_max}"
            yield f"{read}; window must be at most window_max"
        if self.memory is not None and self.longest_window > self.memory:
            read = f"read {self.longest_window_name} {self.longest_window} and memory {self.memory}"
            yield f"{read}; the sender must keep the symbols of its longest window"

    @property
    def is_adaptive(self) -> bool:
        """Whether the redundancy follows the loss."""
        return self.redundancy == "adaptive"

    @property
    def longest_window_name(self) -> str:
        """The setting of the longest window."""
        name = "window_max" if self.is_adaptive else "window"
        is_longer = self.overflow_repairs is not None and self.overflow_window > getattr(self, name)
        return "overflow_window" if is_longer else name

    @property
    def longest_window(self) -> int:
        """The longest window, in symbols."""
        symbols: int = getattr(self, self.longest_window_name)
        return symbols

    @property
    def memory_symbols(self) -> int:
        """The symbols that the sender keeps."""
        return max(_MEMORY, self.longest_window) if self.memory is None else self.memory


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


class Aggregator(Record):
    """Packet aggregation: small packets in the same direction share a frame over the link."""

    frame_size: PositiveSize = units.size("1500 B")
    """The maximum size of a frame, its own IP header included."""
    packet_size: PositiveSize = units.size("700 B")
    """The maximum size of a packet that is aggregated; larger ones pass unchanged. By default two
    of them share a frame of 1500 bytes."""
    hold_time: Duration = units.duration("5 ms")
    """The maximum time that a packet waits for others."""
    classes: NonEmptyListOf[QueueClass] | None = None
    """The priorities of the flows whose packets are aggregated; by default all. Packets of
    different priorities never share a frame."""


class Pep(Record):
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


class Processor(Record):
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


GatewayFunction = Aggregator | Pep | Processor | Tunnel
# Each function with its settings, in the default order from the hosts to the link.
FUNCTIONS: Final[Mapping[FunctionName, type[GatewayFunction]]] = {
    "pep": Pep,
    "tunnel": Tunnel,
    "aggregator": Aggregator,
    "processor": Processor,
}
# What two functions of a kind send each other, instead of packets: both ends need one.
_WHAT_PEERS_EXCHANGE: Final[Mapping[str, str]] = {"aggregator": "frames", "tunnel": "symbols"}


class Gateway(Record):
    """The gateway between a local network and the link."""

    functions: ListOf[FunctionName] | None = None
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

    def _contradictions(self) -> Iterator[str]:
        if self.functions is None:
            return
        for name in FUNCTIONS:
            if self.functions.count(name) > 1:
                yield f"read {name} twice in functions; each is allowed once"
            if getattr(self, name) is not None and name not in self.functions:
                yield f"read settings of {name}, which is not in functions"
        before = self.functions[: self.functions.index("pep")] if "pep" in self.functions else ()
        for name in before:
            if name in _WHAT_PEERS_EXCHANGE:
                read = f"read {name} before pep in functions"
                packets = _WHAT_PEERS_EXCHANGE[name]
                yield f"{read}; a pep splits single packets, not {packets}: put pep first"

    def in_order(self) -> list[tuple[FunctionName, GatewayFunction]]:
        """Return the functions with their settings, from the hosts to the link."""
        if self.functions is None:
            written = ((name, getattr(self, name)) for name in FUNCTIONS)
            return [(name, settings) for name, settings in written if settings is not None]
        return [(name, getattr(self, name) or FUNCTIONS[name]()) for name in self.functions]


class Gateways(Record):
    """The gateways at the ends of the link."""

    hub: Gateway = Field(default_factory=Gateway)
    """The gateway of the hub."""
    terminal: Gateway = Field(default_factory=Gateway)
    """The gateway of each user terminal."""

    def _contradictions(self) -> Iterator[str]:
        hub, terminal = (
            [name for name, _ in gateway.in_order() if name in _WHAT_PEERS_EXCHANGE]
            for gateway in (self.hub, self.terminal)
        )
        for end, here, there in (("hub", hub, terminal), ("terminal", terminal, hub)):
            for name in here:
                if name not in there:
                    other = "terminal" if end == "hub" else "hub"
                    message = f"read {name} at the {end} and none at the {other}"
                    yield f"{message}; both ends of the link need one"
        if hub != terminal:
            read = f"read {', '.join(hub)} at the hub and {', '.join(terminal)} at the terminal"
            yield f"{read}; functions that both ends need must be in the same order"
