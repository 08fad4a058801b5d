"""The link of a scenario: two directions, their framing, and what differs between terminals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal, Self

from pydantic import Discriminator, Field, Tag

from bentpipe import units
from bentpipe.scenario.framing import Framing
from bentpipe.scenario.queues import DropTail, Queue
from bentpipe.scenario.record import (
    Duration,
    PositiveDuration,
    Probability,
    Rate,
    RateOrOutage,
    Record,
)

# Each terminal is a direction with its own queue, channel and time series.
MAX_TERMINALS: Final = 10_000

DirectionName = Literal["forward", "return"]
PresetName = Literal["geo", "meo", "leo", "isdn-return"]


# A path may be 4,096 bytes long on Linux (PATH_MAX).
FileName = Annotated[str, Field(min_length=1, max_length=4_095)]


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


class _Whole(Record):
    """A record that replaces another as a whole."""

    def over(self, base: Self) -> Self:  # noqa: ARG002 - nothing of it is kept
        """Return this record: the options of one file or model are not those of another."""
        return self


class DeliveryTrace(_Whole):
    """The rate of a mahimahi trace: a line for each delivery of 1500 bytes."""

    trace: FileName
    """The file, from the folder of the scenario: the milliseconds at which 1500 bytes can be
    delivered, one a line. At its end it starts again."""
    bin: PositiveDuration = units.duration("100 ms")
    """The time over which deliveries are counted: each bin is a step of the rate."""


class TimeSeries(_Whole):
    """A column of a CSV file, a row for each step."""

    csv: FileName
    """The file, from the folder of the scenario: a header with ``time`` (or ``time_s``,
    ``time_ms``) and the columns, then rows whose times rise from 0. Each value holds until the
    next row's."""
    column: str | None = None
    """The column, if several may be meant. A header that ends with its unit (``_mbps``, ``_ms``)
    has plain numbers below it; else each cell has its unit."""


class ChannelState(Record):
    """One state of a channel."""

    bit_error_rate: Probability = 0.0
    """The chance, 0 to 1, that a bit sent in this state is wrong."""
    loss_rate: Probability = 0.0
    """The chance, 0 to 1, that a packet is lost whose first bit is sent in this state."""
    mean_duration: PositiveDuration
    """The mean of the times in this state, which are exponential."""


class GilbertElliott(_Whole):
    """A channel that is good and bad in turns (Gilbert 1960, Elliott 1963)."""

    model: Literal["gilbert_elliott"]
    """``gilbert_elliott``."""
    good: ChannelState
    """The state with few errors."""
    bad: ChannelState
    """The state with many."""


def _mapping_form(value: object) -> str | None:
    """Return which record reads a value that is a mapping or a record, None if it is neither."""
    if isinstance(value, TimeSeries) or (isinstance(value, Mapping) and "csv" in value):
        return "series_file"
    if isinstance(value, Mapping | Record):
        return "of_model"
    return None


def _rate_form(value: object) -> str:
    return "steps" if isinstance(value, list | tuple) else _mapping_form(value) or "constant"


def _delay_form(value: object) -> str:
    if isinstance(value, list | tuple):
        return "steps"
    return "constant" if _mapping_form(value) is None else "series_file"


def _errors_form(value: object) -> str:
    return _mapping_form(value) or "of_model"


# JSON and YAML have lists, not tuples; the records hold tuples so that they stay frozen.
_RateSteps = Annotated[tuple[RateStep, ...], Field(strict=False, min_length=1)]
_DelaySteps = Annotated[tuple[DelayStep, ...], Field(strict=False, min_length=1)]
RateOrSteps = Annotated[
    Annotated[Rate, Tag("constant")]
    | Annotated[_RateSteps, Tag("steps")]
    | Annotated[DeliveryTrace, Tag("of_model")]
    | Annotated[TimeSeries, Tag("series_file")],
    Discriminator(_rate_form),
]
DelayOrSteps = Annotated[
    Annotated[Duration, Tag("constant")]
    | Annotated[_DelaySteps, Tag("steps")]
    | Annotated[TimeSeries, Tag("series_file")],
    Discriminator(_delay_form),
]
Errors = Annotated[
    Annotated[GilbertElliott, Tag("of_model")] | Annotated[TimeSeries, Tag("series_file")],
    Discriminator(_errors_form),
]


class Direction(Record):
    """One direction of a link. ``rate`` and ``delay`` must come from here or from a preset."""

    rate: RateOrSteps | None = None
    """Link bits per second, framing included: ``16 Mbit/s``, a list of steps, or steps from a file:
    a mahimahi ``trace`` or a ``csv`` time series."""
    delay: DelayOrSteps | None = None
    """Propagation delay one way: ``275 ms``, a list of steps, or a ``csv`` time series."""
    framing: Framing | None = None
    """What the link adds to each IP packet: a size in bytes, the name of a framing
    (``bentpipe framings`` lists them), or a mapping of its ``kind`` and options."""
    queue: Queue | None = None
    """The queue in front of the transmitter."""
    bit_error_rate: Probability | None = None
    """The chance, 0 to 1, that a bit of a sent packet (framing included) is wrong; errors are
    independent, and a packet with one wrong bit is lost."""
    errors: Errors | None = None
    """Errors that change with time, in place of ``bit_error_rate``: the ``model``
    ``gilbert_elliott``, or a ``csv`` time series of ``loss``, ``loss_percent`` or
    ``bit_error_rate``."""


DEFAULT_DIRECTION: Final = Direction(
    framing="none",
    queue=DropTail(discipline="drop_tail"),
    bit_error_rate=0.0,
)


class TerminalPath(Record):
    """How the way from the hub to one terminal differs from that to the others."""

    terminal: Annotated[int, Field(ge=1, le=MAX_TERMINALS)]
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
    terminals: Annotated[int, Field(ge=1, le=MAX_TERMINALS)] = 1
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
