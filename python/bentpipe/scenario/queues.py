"""The queue in front of a transmitter: one record a discipline.

A queue that names no discipline keeps that of its preset, or is `DropTail`; one without a limit has
that of its preset, and after that the ``default_limit`` of its discipline.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Final, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from bentpipe import units
from bentpipe.scenario.record import (
    Limit,
    PositiveDuration,
    PositiveShare,
    PositiveSize,
    Record,
    Threshold,
    known_kind,
)
from bentpipe.units import LimitUnit, Quantity, QueueLimit

_SPACE: Final[tuple[LimitUnit, ...]] = ("bytes", "link_bytes", "packets")

Classes = Annotated[int, Field(ge=1, le=255)]
Queues = Annotated[int, Field(ge=1, le=65_536)]


class _Queue(Record):
    """What all disciplines have."""

    # A hundred packets, the transmit queue of many a router for decades.
    default_limit: ClassVar[Quantity[QueueLimit]] = units.queue_limit("100 packets")
    # Which kinds of limit the discipline can keep; a bdp is one in link bytes.
    limit_units: ClassVar[tuple[LimitUnit, ...]] = (*_SPACE, "time_ns", "unlimited")

    limit: Limit | None = None
    """How much may wait: a size (``120 kB`` of IP packets), ``50 packets``, ``2000 cells`` (of 53
    link bytes), a time to wait (``50 ms``), a share of the bandwidth-delay product (``0.5 bdp``) or
    ``unlimited``. The packet being sent does not wait.

    The bandwidth-delay product is the highest rate of the direction times the sum of the highest
    delays of both directions, in link bytes (framing included), rounded down."""

    @property
    def named(self) -> str | None:
        """The discipline as it was named, None when it was not."""
        name: str | None = getattr(self, "discipline", None)
        return name

    @model_validator(mode="after")
    def _write_discipline(self) -> Self:
        # The discipline tells queues apart in a file, so it counts as written where Python implied
        # it.
        if self.named is not None:
            self.model_fields_set.add("discipline")
        return self

    def over(self, base: _Queue) -> _Queue:
        """Return this queue with what it leaves open taken from ``base``: discipline and limit."""
        limit = base.limit if self.limit is None else self.limit
        return (base if self.named is None else self).model_copy(update={"limit": limit})


class DropTail(_Queue):
    """First in, first out; a packet that does not fit is dropped."""

    discipline: Literal["drop_tail"] | None = None
    """``drop_tail``, unless the preset says otherwise."""


class Red(_Queue):
    """Random early detection (Floyd and Jacobson, 1993): drop the sooner the longer the queue.

    Weight and ``min_threshold`` are those of that paper, ``max_threshold`` and ``max_probability``
    Floyd's of 1997 ("RED: Discussions of Setting Parameters"), ``gentle`` his of 2000.
    """

    discipline: Literal["red"] = "red"
    """``red``."""
    min_threshold: Threshold = units.threshold("5 packets")
    """The average queue below which nothing is dropped: packets, or a size in IP bytes."""
    max_threshold: Threshold | None = None
    """The average queue from which the chance is ``max_probability``, in the unit of
    ``min_threshold``; three times that by default."""
    max_probability: PositiveShare = 0.1
    """The chance of a drop when the average queue is at ``max_threshold``."""
    weight: PositiveShare = 0.002
    """The weight of each new queue length in the average."""
    gentle: bool = True
    """Whether the chance rises from ``max_probability`` to 1 between ``max_threshold`` and twice
    that; without it every packet above ``max_threshold`` is dropped."""
    mean_packet_size: PositiveSize = units.size("1000 B")  # what tc-red(8) recommends for avpkt
    """The mean packet size, in IP bytes, 1 to 65535 (``avpkt`` in tc-red(8), ``mean_pktsize_`` in
    ns-2). While the queue is empty the average falls by one step for each such packet that could
    have been sent; with thresholds in bytes, a packet's chance is scaled by its size over this."""
    ecn: bool = False  # as tc-red(8)
    """Mark packets of ECN-capable flows (RFC 3168) instead of dropping them, as long as chance
    decides. Where every packet would be hit, all are dropped."""


class CoDel(_Queue):
    """Controlled delay (RFC 8289): drop at the head when packets have waited too long for long."""

    # What the queueing discipline of this name in Linux has.
    default_limit: ClassVar[Quantity[QueueLimit]] = units.queue_limit("1000 packets")
    limit_units: ClassVar[tuple[LimitUnit, ...]] = (*_SPACE, "unlimited")

    discipline: Literal["codel"] = "codel"
    """``codel``."""
    target: PositiveDuration = units.duration("5 ms")  # RFC 8289, 4.4
    """The wait that is acceptable to stay above only briefly."""
    interval: PositiveDuration = units.duration("100 ms")  # RFC 8289, 4.3
    """How long the wait must stay above ``target``: about the longest usual round trip. Over a
    satellite write that one's."""
    ecn: bool = False  # as tc-codel(8)
    """Mark packets of ECN-capable flows (RFC 3168) instead of dropping them."""


class FqCoDel(_Queue):
    """Flow queueing with CoDel (RFC 8290): flows by turns, each with a CoDel of its own."""

    # RFC 8290, 5.2.3.
    default_limit: ClassVar[Quantity[QueueLimit]] = units.queue_limit("10240 packets")
    limit_units: ClassVar[tuple[LimitUnit, ...]] = (*_SPACE, "unlimited")

    discipline: Literal["fq_codel"] = "fq_codel"
    """``fq_codel``."""
    target: PositiveDuration = units.duration("5 ms")  # RFC 8290, 5.2.2, which takes it from CoDel
    """The wait in each queue that is acceptable to stay above only briefly."""
    interval: PositiveDuration = units.duration("100 ms")  # RFC 8290, 5.2.1
    """How long the wait must stay above ``target``: about the longest usual round trip."""
    quantum: PositiveSize = units.size("1514 B")  # RFC 8290, 5.2.4: an Ethernet frame
    """How much each flow sends in its turn, in IP bytes."""
    queues: Queues = 1024  # RFC 8290, 5.2.5
    """The number of queues that flows are spread over."""
    ecn: bool = True  # as tc-fq_codel(8)
    """Mark packets of ECN-capable flows (RFC 3168) instead of dropping them."""


class PerFlowDropTail(_Queue):
    """One queue with an account for each flow: a flow that has its share waiting is dropped."""

    # Both limits: the defaults of the discipline "fq" of Linux, the usual one with a limit a flow.
    default_limit: ClassVar[Quantity[QueueLimit]] = units.queue_limit("10000 packets")
    # All flows wait for one transmitter, so a time is no share of it.
    share_units: ClassVar[tuple[LimitUnit, ...]] = (*_SPACE, "unlimited")

    discipline: Literal["per_flow_drop_tail"] = "per_flow_drop_tail"
    """``per_flow_drop_tail``."""
    per_flow_limit: Limit = units.queue_limit("100 packets")
    """How much of one flow may wait, written like ``limit``, but not as a time."""


class EarlyPacketDiscard(_Queue):
    """Early packet discard (Romanow and Floyd, 1995): above a threshold no new packet comes in.

    It comes from ATM, where the cells of a packet in the buffer keep the rest of the room.
    """

    limit_units: ClassVar[tuple[LimitUnit, ...]] = _SPACE

    discipline: Literal["early_packet_discard"] = "early_packet_discard"
    """``early_packet_discard``."""
    threshold: PositiveShare = 0.9  # as the R of selective drop, so that the two can be compared
    """The share of the limit above which packets are dropped, 0 to 1."""


class SelectiveDrop(_Queue):
    """Selective drop (Goyal and others, "UBR+", 1997): above a threshold the heavy flows lose.

    A packet is dropped when more than ``threshold`` of the limit is used and its flow has more than
    ``load_ratio`` times its fair share of what waits.
    """

    limit_units: ClassVar[tuple[LimitUnit, ...]] = _SPACE

    discipline: Literal["selective_drop"] = "selective_drop"
    """``selective_drop``."""
    threshold: PositiveShare = 0.9  # R of Goyal and others
    """The share of the limit above which flows are judged, 0 to 1; R in the source."""
    load_ratio: Annotated[float, Field(gt=0, le=100, allow_inf_nan=False)] = (
        0.8  # Z of Goyal and others
    )
    """How much of its fair share a flow may have waiting; Z in the source."""


class StrictPriority(_Queue):
    """A queue for each class; class 0 is served before 1, 1 before 2, and so on."""

    limit_units: ClassVar[tuple[LimitUnit, ...]] = (*_SPACE, "unlimited")

    discipline: Literal["strict_priority"] = "strict_priority"
    """``strict_priority``. The limit is that of each class."""
    classes: Classes = 8  # as many as IP precedence and IEEE 802.1Q have
    """How many classes there are; ``priority`` of a flow is from 0 to one less."""


def _discipline_of(value: object) -> str:
    """Return which record reads ``value``; what is no mapping is for the first one to refuse."""
    if isinstance(value, Mapping):
        name = value.get("discipline")
        return "drop_tail" if name is None else str(name)
    return str(getattr(value, "discipline", None) or "drop_tail")


QUEUES: Final[Mapping[str, type[_Queue]]] = {
    "drop_tail": DropTail,
    "red": Red,
    "codel": CoDel,
    "fq_codel": FqCoDel,
    "per_flow_drop_tail": PerFlowDropTail,
    "early_packet_discard": EarlyPacketDiscard,
    "selective_drop": SelectiveDrop,
    "strict_priority": StrictPriority,
}

Queue = Annotated[
    Annotated[DropTail, Tag("drop_tail")]
    | Annotated[Red, Tag("red")]
    | Annotated[CoDel, Tag("codel")]
    | Annotated[FqCoDel, Tag("fq_codel")]
    | Annotated[PerFlowDropTail, Tag("per_flow_drop_tail")]
    | Annotated[EarlyPacketDiscard, Tag("early_packet_discard")]
    | Annotated[SelectiveDrop, Tag("selective_drop")]
    | Annotated[StrictPriority, Tag("strict_priority")],
    Discriminator(_discipline_of),
    known_kind("discipline", QUEUES, optional=True),
]
