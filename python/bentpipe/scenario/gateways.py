"""The gateways at the ends of the link: what each does to packets, in order.

A function is one class here, with its settings, and one field of `Gateway`. `plan.gateways`
makes its part of the plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Final, Literal, Self

from pydantic import Field, model_validator

from bentpipe import units
from bentpipe.scenario.record import Duration, Packets, PositiveSize, Record, refusal

ProcessorMode = Literal["bridge", "pass-thru", "route"]
QueueClass = Annotated[int, Field(ge=0, le=255)]
FunctionName = Literal["aggregator", "processor"]

# SnIP technical note: routing manages about 6,000 packets a second, both directions together;
# bridging and pass-thru 5,400.
PROCESSOR_RATES: Final[Mapping[ProcessorMode, int]] = {
    "bridge": 5_400,
    "pass-thru": 5_400,
    "route": 6_000,
}
# Two addresses and the EtherType (IEEE 802.3); the frame check sequence ends at the bridge.
BRIDGED_HEADER_BYTES: Final = 14


class GatewayFunction(Record):
    """What every function of a gateway has."""

    needs_peer: ClassVar[bool] = False
    """Whether only the same function at the other end can undo what it does to packets."""


class Aggregator(GatewayFunction):
    """Packet aggregation: small packets that go the same way share a frame over the link."""

    needs_peer = True

    frame_size: PositiveSize = units.size("1500 B")
    """The largest frame, with its own IP header."""
    packet_size: PositiveSize = units.size("700 B")
    """The largest packet that joins a frame; larger ones leave as they are. By default two of them
    share a frame of 1500 bytes."""
    hold_time: Duration = units.duration("5 ms")
    """The longest time that a packet waits for others."""
    classes: Annotated[tuple[QueueClass, ...], Field(strict=False, min_length=1)] | None = None
    """The priorities of the flows whose packets join frames; by default all. Packets of different
    priorities never share a frame."""


class Processor(GatewayFunction):
    """The packet processor of a gateway: one that serves both directions, a packet at a time."""

    mode: ProcessorMode = "route"
    """``route``, ``pass-thru`` or ``bridge``: it sets the rate, and with ``bridge`` the 14 bytes of
    the Ethernet header cross the link as well."""
    packets_per_second: Annotated[int, Field(ge=1, le=10**9)] | None = None
    """How many packets it handles a second, both directions together; by default what the mode
    manages: 6000 when it routes, else 5400."""
    per_byte: Duration = units.duration("0 ns")
    """What each byte of an IP packet costs on top."""
    buffer: Packets = units.packets("50 packets")
    """How many packets of each direction may wait for it."""


# Each function with its settings, in the order from the hosts to the link that holds unless
# `functions` says otherwise.
FUNCTIONS: Final[Mapping[FunctionName, type[GatewayFunction]]] = {
    "aggregator": Aggregator,
    "processor": Processor,
}


class Gateway(Record):
    """What stands between a local network and the link."""

    functions: Annotated[tuple[FunctionName, ...], Field(strict=False)] | None = None
    """What it does to packets, in order from the hosts to the link. By default every function
    whose settings are written. A function that is listed without settings takes its defaults."""
    aggregator: Aggregator | None = None
    """Its packet aggregator; both ends of the link need one."""
    processor: Processor | None = None
    """Its packet processor; without one it takes no time and loses nothing."""

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.functions is None:
            return self
        for name in FUNCTIONS:
            if self.functions.count(name) > 1:
                raise refusal(f"read {name} twice in functions; each may be there once")
            if getattr(self, name) is not None and name not in self.functions:
                raise refusal(f"read settings of {name}, which functions does not list")
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
    """The equipment at the ends of the link."""

    hub: Gateway = Field(default_factory=Gateway)
    """The one at the hub."""
    terminal: Gateway = Field(default_factory=Gateway)
    """The one at each user terminal."""

    @model_validator(mode="after")
    def _have_peers(self) -> Self:
        hub, terminal = (
            [name for name, settings in gateway.in_order() if settings.needs_peer]
            for gateway in (self.hub, self.terminal)
        )
        for end, here, there in (("hub", hub, terminal), ("terminal", terminal, hub)):
            for name in here:
                if name not in there:
                    other = "terminal" if end == "hub" else "hub"
                    message = f"read {name} at the {end} and none at the {other}"
                    raise refusal(f"{message}; each needs its peer at the other end of the link")
        if hub != terminal:
            read = f"read {', '.join(hub)} at the hub and {', '.join(terminal)} at the terminal"
            raise refusal(f"{read}; functions that need their peer stand in the same order")
        return self
