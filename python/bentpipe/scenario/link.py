"""The link of a scenario: two directions, their framing, and what differs between terminals."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field, ValidationInfo

from bentpipe import units
from bentpipe.scenario.document import Document
from bentpipe.scenario.framings import Framing
from bentpipe.scenario.queues import DropTail, Queue
from bentpipe.scenario.record import (
    ByForm,
    Duration,
    Percent,
    PositiveDuration,
    Probability,
    QueueClass,
    Rate,
    RateOrOutage,
    Record,
)

# Each terminal is a direction with its own queue, channel and time series.
MAX_TERMINALS: Final = 10_000

DirectionName = Literal["forward", "return"]
PresetName = Literal["geo", "meo", "leo", "leo-handover", "isdn-return"]


def _from_folder(name: str, info: ValidationInfo) -> str:
    """Return a file name relative to the folder of the document that has it."""
    document = info.context
    folder = Path(document.source).parent if isinstance(document, Document) else Path()
    return name if folder == Path() else str(folder / name)


# A path may be 4,096 bytes long on Linux (PATH_MAX).
FileName = Annotated[str, Field(min_length=1, max_length=4_095), AfterValidator(_from_folder)]


class RateStep(Record):
    """A rate from a time on."""

    at: Duration
    """The time of the step, from the start of the run; the first is at ``0 s``."""
    value: RateOrOutage
    """The rate from then on; ``0 bit/s`` is an outage: packets wait in the queue."""


class DelayStep(Record):
    """A propagation delay from a time on."""

    at: Duration
    """The time of the step, from the start of the run; the first is at ``0 s``."""
    value: Duration
    """The delay of packets that are sent from then on."""


class RepeatingRates(Record):
    """Rates that follow each other, and repeat until the end of the run."""

    is_indivisible = True

    every: PositiveDuration
    """How long each rate holds, such as ``15 s``."""
    values: Annotated[tuple[RateOrOutage, ...], Field(strict=False, min_length=1)]
    """The rates, in order."""


class RepeatingDelays(Record):
    """Propagation delays that follow each other, and repeat until the end of the run."""

    is_indivisible = True

    every: PositiveDuration
    """How long each delay holds, such as ``15 s``."""
    values: Annotated[tuple[Duration, ...], Field(strict=False, min_length=1)]
    """The delays, in order, of packets that are sent from then on."""


class Outage(Record):
    """Outages at equal intervals until the end of the run."""

    every: PositiveDuration
    """The time from the start of an outage to that of the next."""
    for_: PositiveDuration = Field(validation_alias="for", serialization_alias="for")
    """The duration of each (``for_`` in Python, where ``for`` is a keyword)."""
    first: Duration | None = None
    """The start of the first outage, from the start of the run; by default ``every``."""


class OutageAt(Record):
    """One outage."""

    at: Duration
    """Its start, from the start of the run."""
    for_: PositiveDuration = Field(validation_alias="for", serialization_alias="for")
    """Its duration (``for_`` in Python, where ``for`` is a keyword)."""


class DeliveryTrace(Record):
    """The rate of a mahimahi trace: one line per delivery of 1500 bytes."""

    is_indivisible = True

    trace: FileName
    """The file, relative to the scenario: the times in milliseconds at which 1500 bytes can be
    delivered, one per line. It repeats."""
    bin: PositiveDuration = units.duration("100 ms")
    """The interval over which deliveries are counted; each bin is one step of the rate."""


class TimeSeries(Record):
    """A column of a CSV file, one row per step."""

    is_indivisible = True

    csv: FileName
    """The file, relative to the scenario: a header with ``time`` (or ``time_s``, ``time_ms``) and
    the columns, then rows with increasing times from 0 on. A value applies until the next
    row."""
    column: str | None = None
    """The column, if several are possible. A column whose name ends in a unit (``_mbps``, ``_ms``)
    holds plain numbers; in others each cell has a unit."""


class ChannelState(Record):
    """One state of a channel."""

    bit_error_rate: Probability = 0.0
    """The probability, 0 to 1, of an error in a bit that is sent in this state."""
    loss_rate: Probability = 0.0
    """The probability, 0 to 1, of losing a packet that starts in this state."""
    mean_duration: PositiveDuration
    """The mean time in this state; times are exponentially distributed."""


class GilbertElliott(Record):
    """A channel that alternates between a good and a bad state (Gilbert 1960, Elliott 1963)."""

    is_indivisible = True

    model: Literal["gilbert_elliott"]
    """``gilbert_elliott``."""
    good: ChannelState
    """The state with few errors."""
    bad: ChannelState
    """The state with many errors."""


# JSON and YAML have lists; the records hold tuples, so that they are immutable.
RateOrSteps = Annotated[
    Rate
    | Annotated[tuple[RateStep, ...], Field(strict=False, min_length=1)]
    | RepeatingRates
    | DeliveryTrace
    | TimeSeries,
    ByForm("DeliveryTrace"),
]
DelayOrSteps = Annotated[
    Duration
    | Annotated[tuple[DelayStep, ...], Field(strict=False, min_length=1)]
    | RepeatingDelays
    | TimeSeries,
    ByForm("TimeSeries"),
]
Errors = Annotated[GilbertElliott | TimeSeries, ByForm()]
Outages = Annotated[Outage | Annotated[tuple[OutageAt, ...], Field(strict=False)], ByForm()]


class Direction(Record):
    """One direction of a link; it or its preset must give ``rate`` and ``delay``."""

    rate: RateOrSteps | None = None
    """Link bits per second, framing included: ``16 Mbit/s``, a list of steps, ``values`` that
    repeat, or the steps of a file (a mahimahi ``trace`` or a ``csv`` time series)."""
    delay: DelayOrSteps | None = None
    """One-way propagation delay: ``275 ms``, a list of steps, ``values`` that repeat, or a ``csv``
    time series."""
    jitter: Duration | None = None
    """The largest random addition to the delay of each packet, drawn uniformly from zero. Packets
    are not reordered: one that would overtake arrives with its predecessor."""
    outage: Outages | None = None
    """When nothing is sent and packets wait: ``{every: 15 s, for: 500 ms}``, or a list such as
    ``[{at: 20 s, for: 2 s}]``. An empty list removes the outages of a preset or of the link."""
    framing: Framing | None = None
    """The framing of IP packets on the link: the size of a header, the name of a framing
    (``bentpipe show framings`` lists them), or a mapping of its ``kind`` and options."""
    queue: Queue | None = None
    """The queue in front of the transmitter."""
    bit_error_rate: Probability | None = None
    """The probability, 0 to 1, of an error in each bit (framing included). Errors are independent,
    and a packet with an error is lost."""
    loss: Percent | None = None
    """The share of packets that are lost, each independently, such as ``1 %``; in addition to
    ``bit_error_rate``."""
    errors: Errors | None = None
    """Errors that vary with time, instead of ``bit_error_rate`` and ``loss``: the ``model``
    ``gilbert_elliott``, or a ``csv`` time series of ``loss``, ``loss_percent`` or
    ``bit_error_rate``."""


DEFAULT_DIRECTION: Final = Direction(
    framing="none",
    queue=DropTail(discipline="drop_tail"),
    bit_error_rate=0.0,
    jitter="0 s",
)


class TerminalPath(Record):
    """The properties of the path from the hub to one terminal, where they differ."""

    terminal: Annotated[int, Field(ge=1, le=MAX_TERMINALS)]
    """The number of the terminal."""
    delay: Duration | None = None
    """Its one-way propagation delay, instead of that of ``link.forward``."""
    bit_error_rate: Probability | None = None
    """Its bit error rate, instead of that of ``link.forward``."""
    priority: QueueClass | None = None
    """The class of its flows in ``strict_priority`` queues, unless a flow has its own."""


class Link(Record):
    """One satellite hop: ``forward`` is hub to user, ``return`` is user to hub."""

    preset: PresetName | None = None
    """A named link, whose values apply to the fields that are not written here."""
    terminals: Annotated[int, Field(ge=1, le=MAX_TERMINALS)] = 1
    """The number of user terminals. All share the forward direction; each has its own return
    direction, all with the same properties."""
    forward: Direction = Field(default_factory=Direction)
    """Hub to user."""
    return_: Direction = Field(
        default_factory=Direction, validation_alias="return", serialization_alias="return"
    )
    """User to hub (``return_`` in Python, where ``return`` is a keyword)."""
    outage: Outages | None = None
    """Outages of both directions, unless a direction has its own."""
    terminal_paths: Annotated[tuple[TerminalPath, ...], Field(strict=False)] = ()
    """Terminals with a different path from the hub; all share the transmitter and its queue."""

    def directions(self) -> dict[DirectionName, Direction]:
        """Return the directions by name."""
        return {"forward": self.forward, "return": self.return_}
