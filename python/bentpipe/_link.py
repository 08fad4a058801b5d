"""The link of a scenario: two directions, their framing, and what differs between terminals."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Discriminator, Field, Tag

from bentpipe._framing import Framing
from bentpipe._queues import Queue
from bentpipe._record import (
    Duration,
    Probability,
    Rate,
    RateOrOutage,
    Record,
)

# Each terminal is a direction with its own queue, channel and time series.
MOST_TERMINALS: Final = 10_000

DirectionName = Literal["forward", "return"]
PresetName = Literal["geo", "meo", "leo", "isdn-return"]


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


class TerminalPath(Record):
    """How the way from the hub to one terminal differs from that to the others."""

    terminal: Annotated[int, Field(ge=1, le=MOST_TERMINALS)]
    """Which terminal."""
    delay: Duration | None = None
    """Its propagation delay one way, in place of that of ``link.forward``."""
    bit_error_rate: Probability | None = None
    """Its bit error rate, in place of that of ``link.forward``."""
    priority: Annotated[int, Field(ge=0, le=255)] | None = None
    """The class of its flows in ``strict_priority`` queues, unless they write their own."""


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
    terminal_paths: Annotated[tuple[TerminalPath, ...], Field(strict=False)] = ()
    """Terminals whose way from the hub is special; all share the transmitter and its queue."""
