"""The link of a scenario: two directions, their framing, and the gateways at their ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal

from pydantic import Discriminator, Field, Tag

from bentpipe._framing import Framing
from bentpipe._queues import Queue
from bentpipe._record import (
    Duration,
    Packets,
    Probability,
    Rate,
    RateOrOutage,
    Record,
)

# Each terminal is a direction with its own queue, channel and time series.
MOST_TERMINALS: Final = 10_000

DirectionName = Literal["forward", "return"]
PresetName = Literal["geo", "meo", "leo", "isdn-return"]
ProcessorMode = Literal["bridge", "pass-thru", "route"]


def _constant_or_steps(value: object) -> str:
    return "steps" if isinstance(value, list | tuple) else "constant"


class RateStep(Record):
    """The rate from a moment on."""

    at: Duration
    """When the step happens, from the start of the run; the first is at ``0 s``."""
    value: RateOrOutage
    """The rate from then on; ``0 bit/s`` is an outage: packets wait in the queue."""


class DelayStep(Record):
    """The propagation delay from a moment on."""

    at: Duration
    """When the step happens, from the start of the run; the first is at ``0 s``."""
    value: Duration
    """The delay of packets sent from then on."""


# JSON and YAML have lists, not tuples; the records hold tuples so that they stay frozen.
_RateSteps = Annotated[tuple[RateStep, ...], Field(strict=False, min_length=1)]
_DelaySteps = Annotated[tuple[DelayStep, ...], Field(strict=False, min_length=1)]
RateOrSteps = Annotated[
    Annotated[Rate, Tag("constant")] | Annotated[_RateSteps, Tag("steps")],
    Discriminator(_constant_or_steps),
]
DelayOrSteps = Annotated[
    Annotated[Duration, Tag("constant")] | Annotated[_DelaySteps, Tag("steps")],
    Discriminator(_constant_or_steps),
]


class Direction(Record):
    """One direction of a link. ``rate`` and ``delay`` must come from here or from a preset."""

    rate: RateOrSteps | None = None
    """Link bits per second, framing included: ``16 Mbit/s``, or a list of steps."""
    delay: DelayOrSteps | None = None
    """Propagation delay one way: ``275 ms``, or a list of steps."""
    framing: Framing | None = None
    """What the link adds to each IP packet: a size in bytes, the name of a framing
    (``bentpipe framings`` lists them), or a mapping of its ``kind`` and options."""
    queue: Queue | None = None
    """The queue in front of the transmitter."""
    bit_error_rate: Probability | None = None
    """The chance, 0 to 1, that a bit of a sent packet (framing included) is wrong; errors are
    independent, and a packet with one wrong bit is lost."""


class Link(Record):
    """One satellite hop: ``forward`` is hub to user, ``return`` is user to hub."""

    preset: PresetName | None = None
    """A named link whose values hold for all that is not written here."""
    terminals: Annotated[int, Field(ge=1, le=MOST_TERMINALS)] = 1
    """How many user terminals there are. All share the forward direction; each has a return
    direction of its own, and all of these are alike."""
    forward: Direction = Field(default_factory=Direction)
    """Hub to user."""
    return_: Direction = Field(
        default_factory=Direction, validation_alias="return", serialization_alias="return"
    )
    """User to hub (``return_`` in Python, where ``return`` is a keyword)."""


class Processor(Record):
    """The packet processor of a gateway: one that serves both directions, a packet at a time."""

    mode: ProcessorMode = "route"
    """``route``, ``pass-thru`` or ``bridge``: it sets the rate, and with ``bridge`` the 14 bytes of
    the Ethernet header cross the link as well."""
    packets_per_second: Annotated[int, Field(ge=1, le=10**9)] | None = None
    """How many packets it handles a second, both directions together; by default what the mode
    manages: 6000 when it routes, else 5400."""
    per_byte: Duration = "0 ns"
    """What each byte of an IP packet costs on top."""
    buffer: Packets = "50 packets"
    """How many packets of each direction may wait for it."""


class Gateway(Record):
    """What stands between a local network and the link."""

    processor: Processor | None = None
    """Its packet processor; without one it takes no time and loses nothing."""


class Gateways(Record):
    """The equipment at the ends of the link."""

    hub: Gateway = Field(default_factory=Gateway)
    """The one at the hub."""
    terminal: Gateway = Field(default_factory=Gateway)
    """The one at each user terminal."""


# SnIP technical note: routing manages about 6,000 packets a second, both directions together;
# bridging and pass-thru 5,400.
PROCESSOR_RATES: Final[Mapping[ProcessorMode, int]] = {
    "bridge": 5_400,
    "pass-thru": 5_400,
    "route": 6_000,
}
# Two addresses and the EtherType (IEEE 802.3); the frame check sequence ends at the bridge.
BRIDGED_HEADER_BYTES: Final = 14
