"""The link of a scenario: two directions with queues, and what differs between terminals."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Final, Literal, get_args

from pydantic import AfterValidator, Discriminator, Field, Tag, ValidationInfo

from bentpipe import units
from bentpipe.scenario.document import Document
from bentpipe.scenario.framings import Framing
from bentpipe.scenario.record import (
    ByForm,
    Duration,
    Limit,
    ListOf,
    NonEmptyListOf,
    Percent,
    PositiveDuration,
    PositiveShare,
    PositiveSize,
    Probability,
    QueueClass,
    Rate,
    RateOrOutage,
    Record,
    Threshold,
    known_kind,
)
from bentpipe.units import BaseUnit, Quantity

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
    values: NonEmptyListOf[RateOrOutage]
    """The rates, in order."""


class RepeatingDelays(Record):
    """Propagation delays that follow each other, and repeat until the end of the run."""

    is_indivisible = True

    every: PositiveDuration
    """How long each delay holds, such as ``15 s``."""
    values: NonEmptyListOf[Duration]
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
    the columns, then rows with increasing times, from 0 on or dates. A value applies until the next
    row that has one."""
    column: str | None = None
    """The column, if several are possible. A column whose name ends in a unit (``_mbps``, ``_ms``)
    holds plain numbers; in others each cell has a unit."""


class ScaledSeries(TimeSeries):
    """A column of rates or delays of a CSV file, one row per step."""

    scale: Annotated[float, Field(gt=0, le=1000, allow_inf_nan=False)] = 1.0
    """A factor of each value, above 0 and at most 1000, such as 0.5 for a direction's part of a
    measured round trip."""


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
    good: ChannelState
    """The state with few errors."""
    bad: ChannelState
    """The state with many errors."""


class LossBursts(Record):
    """Bursts of lost packets at equal intervals until the end of the run."""

    is_indivisible = True

    every: PositiveDuration
    """The time from the start of a burst to that of the next."""
    for_: PositiveDuration = Field(validation_alias="for", serialization_alias="for")
    """The duration of each (``for_`` in Python, where ``for`` is a keyword)."""
    first: Duration | None = None
    """The start of the first burst, from the start of the run; by default ``every``."""
    loss: Percent = "100 %"
    """The share of the packets sent in a burst that are lost; between bursts none is."""


RateOrSteps = Annotated[
    Rate | NonEmptyListOf[RateStep] | RepeatingRates | DeliveryTrace | ScaledSeries,
    ByForm("DeliveryTrace"),
]
DelayOrSteps = Annotated[
    Duration | NonEmptyListOf[DelayStep] | RepeatingDelays | ScaledSeries, ByForm("ScaledSeries")
]
Errors = Annotated[GilbertElliott | TimeSeries | LossBursts, ByForm()]
Outages = Annotated[Outage | ListOf[OutageAt], ByForm()]


# --- queues: a record for each discipline -------------------------------------------------------

# A queue without a discipline has that of its preset, or is `DropTail`. A queue without a limit has
# that of its preset, or the ``default_limit`` of its discipline.

_SPACE: Final[tuple[BaseUnit, ...]] = ("bytes", "link_bytes", "packets")


class _Queue(Record):
    """The fields of all disciplines."""

    # A common transmit queue of routers.
    default_limit: ClassVar[Quantity] = units.queue_limit("100 packets")
    # The kinds of limit that the discipline supports; a bdp is one in link bytes.
    limit_units: ClassVar[tuple[BaseUnit, ...]] = (*_SPACE, "time_ns", "unlimited")

    limit: Limit | None = None
    """The limit of the queue: a size (``120 kB`` of IP packets), ``50 packets``, ``2000 cells`` (of
    53 link bytes), a sojourn time (``50 ms``), a share of the bandwidth-delay product (``0.5 bdp``)
    or ``unlimited``. The packet in transmission does not count.

    The bandwidth-delay product is the highest rate of the direction times the sum of the highest
    delays of both directions, in link bytes (framing included), rounded down."""

    @property
    def named(self) -> str | None:
        """The discipline, or None if the queue names none."""
        name: str | None = getattr(self, "discipline", None)
        return name

    def over(self, base: _Queue) -> _Queue:
        """Return this queue with the discipline and limit of ``base`` where it has none."""
        limit = base.limit if self.limit is None else self.limit
        return (base if self.named is None else self).model_copy(update={"limit": limit})


class DropTail(_Queue):
    """First in, first out; a packet that does not fit is dropped."""

    discipline: Literal["drop_tail"] | None = None
    """``drop_tail``, unless the preset says otherwise."""


class Red(_Queue):
    """Random early detection (Floyd and Jacobson, 1993).

    Sources of the defaults: that paper for ``weight`` and ``min_threshold``; Floyd, "RED:
    Discussions of Setting Parameters", 1997, for ``max_threshold`` and ``max_probability``; Floyd,
    2000, for ``gentle``.
    """

    discipline: Literal["red"] = "red"
    min_threshold: Threshold = units.threshold("5 packets")
    """The average queue below which no packet is dropped: packets, or a size in IP bytes."""
    max_threshold: Threshold | None = None
    """The average queue at which the drop probability is ``max_probability``, in the unit of
    ``min_threshold``; by default three times that."""
    max_probability: PositiveShare = 0.1
    """The drop probability when the average queue is at ``max_threshold``."""
    weight: PositiveShare = 0.002
    """The weight of each new queue length in the average."""
    gentle: bool = True
    """Raise the drop probability from ``max_probability`` to 1 between ``max_threshold`` and twice
    that; otherwise every packet above ``max_threshold`` is dropped."""
    mean_packet_size: PositiveSize = units.size("1000 B")  # what tc-red(8) recommends for avpkt
    """The mean packet size, in IP bytes, 1 to 65535 (``avpkt`` in tc-red(8), ``mean_pktsize_`` in
    ns-2). While the queue is empty, the average falls by one step for each such packet that could
    have been sent. With thresholds in bytes, the drop probability of a packet is scaled by its size
    over this one."""
    ecn: bool = False  # as tc-red(8)
    """Mark packets of ECN-capable flows (RFC 3168) instead of dropping them, as long as the drop
    probability is below 1."""


class CoDel(_Queue):
    """Controlled delay (RFC 8289): drop at the head while the sojourn time stays above a target."""

    # The default of tc-codel(8).
    default_limit: ClassVar[Quantity] = units.queue_limit("1000 packets")
    limit_units: ClassVar[tuple[BaseUnit, ...]] = (*_SPACE, "unlimited")

    discipline: Literal["codel"] = "codel"
    target: PositiveDuration = units.duration("5 ms")  # RFC 8289, 4.4
    """The acceptable sojourn time."""
    interval: PositiveDuration = units.duration("100 ms")  # RFC 8289, 4.3
    """The time for which the sojourn time must stay above ``target`` before packets are dropped.
    Set it to the largest common round-trip time, including the satellite hop."""
    ecn: bool = False  # as tc-codel(8)
    """Mark packets of ECN-capable flows (RFC 3168) instead of dropping them."""


class FqCoDel(_Queue):
    """Flow queueing with CoDel (RFC 8290): deficit round robin over flows, CoDel in each."""

    # RFC 8290, 5.2.3.
    default_limit: ClassVar[Quantity] = units.queue_limit("10240 packets")
    limit_units: ClassVar[tuple[BaseUnit, ...]] = (*_SPACE, "unlimited")

    discipline: Literal["fq_codel"] = "fq_codel"
    target: PositiveDuration = units.duration("5 ms")  # RFC 8290, 5.2.2, which takes it from CoDel
    """The acceptable sojourn time in each queue."""
    interval: PositiveDuration = units.duration("100 ms")  # RFC 8290, 5.2.1
    """The time for which the sojourn time must stay above ``target`` before packets are dropped.
    Set it to the largest common round-trip time."""
    quantum: PositiveSize = units.size("1514 B")  # RFC 8290, 5.2.4: an Ethernet frame
    """The IP bytes that a flow may send per round."""
    queues: Annotated[int, Field(ge=1, le=65_536)] = 1024  # RFC 8290, 5.2.5
    """The number of queues that flows are hashed into."""
    ecn: bool = True  # as tc-fq_codel(8)
    """Mark packets of ECN-capable flows (RFC 3168) instead of dropping them."""


class PerFlowDropTail(_Queue):
    """One queue with a limit for each flow."""

    # Both limits: the defaults of tc-fq(8).
    default_limit: ClassVar[Quantity] = units.queue_limit("10000 packets")
    # The sojourn time depends on all flows, so it cannot limit one.
    share_units: ClassVar[tuple[BaseUnit, ...]] = (*_SPACE, "unlimited")

    discipline: Literal["per_flow_drop_tail"] = "per_flow_drop_tail"
    per_flow_limit: Limit = units.queue_limit("100 packets")
    """The limit of each flow, written like ``limit``, but not as a time."""


class EarlyPacketDiscard(_Queue):
    """Early packet discard (Romanow and Floyd, 1995): drop new packets above a threshold.

    In ATM the rest of the buffer is for the remaining cells of packets that have begun.
    """

    limit_units: ClassVar[tuple[BaseUnit, ...]] = _SPACE

    discipline: Literal["early_packet_discard"] = "early_packet_discard"
    threshold: PositiveShare = 0.9  # as the R of selective drop, so that the two can be compared
    """The share of the limit above which packets are dropped, 0 to 1."""


class SelectiveDrop(_Queue):
    """Selective drop (Goyal and others, "UBR+", 1997): above a threshold, drop from heavy flows.

    A packet is dropped when more than ``threshold`` of the limit is used and its flow has more than
    ``load_ratio`` times its fair share of the queue.
    """

    limit_units: ClassVar[tuple[BaseUnit, ...]] = _SPACE

    discipline: Literal["selective_drop"] = "selective_drop"
    threshold: PositiveShare = 0.9  # R of Goyal and others
    """The share of the limit above which packets may be dropped, 0 to 1; R in the source."""
    load_ratio: Annotated[float, Field(gt=0, le=100, allow_inf_nan=False)] = (
        0.8  # Z of Goyal and others
    )
    """The multiple of its fair share that a flow may have in the queue; Z in the source."""


class StrictPriority(_Queue):
    """A queue for each class; class 0 is served before 1, 1 before 2, and so on."""

    limit_units: ClassVar[tuple[BaseUnit, ...]] = (*_SPACE, "unlimited")

    discipline: Literal["strict_priority"] = "strict_priority"
    """``strict_priority``. The limit is that of each class."""
    # As many as IP precedence and IEEE 802.1Q have.
    classes: Annotated[int, Field(ge=1, le=255)] = 8
    """The number of classes; the ``priority`` of a flow is from 0 to one less."""


def _discipline_of(value: object) -> str:
    """Return the tag of the record that reads ``value``; `DropTail` refuses other types."""
    if isinstance(value, Mapping):
        name = value.get("discipline")
        return "drop_tail" if name is None else str(name)
    return str(getattr(value, "discipline", None) or "drop_tail")


ClassQueue = Annotated[
    Annotated[DropTail, Tag("drop_tail")]
    | Annotated[CoDel, Tag("codel")]
    | Annotated[FqCoDel, Tag("fq_codel")],
    Discriminator(_discipline_of),
    known_kind("discipline", ("drop_tail", "codel", "fq_codel"), optional=True),
]


class SharingClass(Record):
    """A class of a ``shared_rate`` queue; rates count bits on the link, framing included."""

    reserved: Rate | None = None
    """What it can always send, such as ``512 kbit/s``; none by default."""
    weight: Annotated[int, Field(ge=1, le=1000)] = 1
    """Its part of what is left, in proportion to the weights of the other classes with packets."""
    ceiling: Rate | None = None
    """The most that it can send, even if nothing else is sent; by default the rate of the link."""
    queue: ClassQueue | None = None
    """Its queue: ``drop_tail``, ``codel`` or ``fq_codel`` with their options. By default it is
    ``drop_tail`` with the limit of the whole queue."""


class SharedRate(_Queue):
    """Classes with reserved rates that lend what they do not use.

    A class goes first while it has sent less than its reserved rate. All classes share the rest by
    weight, in deficit round robin (Shreedhar and Varghese, 1996).
    """

    limit_units: ClassVar[tuple[BaseUnit, ...]] = (*_SPACE, "unlimited")

    discipline: Literal["shared_rate"] = "shared_rate"
    """``shared_rate``. The limit is that of each class without a queue of its own."""
    classes: Annotated[tuple[SharingClass, ...], Field(strict=False, min_length=1, max_length=255)]
    """The classes; the ``priority`` of a flow is the number of its class, from 0 on."""


_Queues = (
    Annotated[DropTail, Tag("drop_tail")]
    | Annotated[Red, Tag("red")]
    | Annotated[CoDel, Tag("codel")]
    | Annotated[FqCoDel, Tag("fq_codel")]
    | Annotated[PerFlowDropTail, Tag("per_flow_drop_tail")]
    | Annotated[EarlyPacketDiscard, Tag("early_packet_discard")]
    | Annotated[SelectiveDrop, Tag("selective_drop")]
    | Annotated[StrictPriority, Tag("strict_priority")]
    | Annotated[SharedRate, Tag("shared_rate")]
)
QUEUES: Final[Mapping[str, type[_Queue]]] = {
    tag.tag: queue for queue, tag in map(get_args, get_args(_Queues))
}

Queue = Annotated[
    _Queues, Discriminator(_discipline_of), known_kind("discipline", QUEUES, optional=True)
]


# --- directions ---------------------------------------------------------------------------------


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
    ``gilbert_elliott``, a ``csv`` time series of ``loss``, ``loss_percent`` or
    ``bit_error_rate``, or bursts such as ``{every: 15 s, for: 60 ms}``."""


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
    """The class of its flows in ``strict_priority`` and ``shared_rate`` queues, unless a flow has
    its own."""


class Link(Record):
    """One satellite hop: ``forward`` is hub to user, ``return`` is user to hub."""

    preset: PresetName | None = None
    """A named link, whose values apply to the fields that are not written here."""
    terminals: Annotated[int, Field(ge=1, le=MAX_TERMINALS)] = 1
    """The number of user terminals. All share the forward direction; each has its own return
    direction, all with the same properties: N terminals have N times the rate of ``return``."""
    forward: Direction = Field(default_factory=Direction)
    """Hub to user."""
    return_: Direction = Field(
        default_factory=Direction, validation_alias="return", serialization_alias="return"
    )
    """User to hub (``return_`` in Python, where ``return`` is a keyword)."""
    outage: Outages | None = None
    """Outages of both directions, unless a direction has its own."""
    terminal_paths: ListOf[TerminalPath] = ()
    """Terminals with a different path from the hub; all share the transmitter and its queue."""

    def directions(self) -> dict[DirectionName, Direction]:
        """Return the directions by name."""
        return {"forward": self.forward, "return": self.return_}
