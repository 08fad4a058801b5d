"""The queue in front of a transmitter: one record per discipline.

A queue without a discipline has that of its preset, or is `DropTail`. A queue without a limit has
that of its preset, or the ``default_limit`` of its discipline.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Final, Literal, get_args

from pydantic import Discriminator, Field, Tag

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
from bentpipe.units import BaseUnit, Quantity

_SPACE: Final[tuple[BaseUnit, ...]] = ("bytes", "link_bytes", "packets")

Classes = Annotated[int, Field(ge=1, le=255)]
Queues = Annotated[int, Field(ge=1, le=65_536)]


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
    """``red``."""
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
    """``codel``."""
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
    """``fq_codel``."""
    target: PositiveDuration = units.duration("5 ms")  # RFC 8290, 5.2.2, which takes it from CoDel
    """The acceptable sojourn time in each queue."""
    interval: PositiveDuration = units.duration("100 ms")  # RFC 8290, 5.2.1
    """The time for which the sojourn time must stay above ``target`` before packets are dropped.
    Set it to the largest common round-trip time."""
    quantum: PositiveSize = units.size("1514 B")  # RFC 8290, 5.2.4: an Ethernet frame
    """The IP bytes that a flow may send per round."""
    queues: Queues = 1024  # RFC 8290, 5.2.5
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
    """``per_flow_drop_tail``."""
    per_flow_limit: Limit = units.queue_limit("100 packets")
    """The limit of each flow, written like ``limit``, but not as a time."""


class EarlyPacketDiscard(_Queue):
    """Early packet discard (Romanow and Floyd, 1995): drop new packets above a threshold.

    In ATM the rest of the buffer is for the remaining cells of packets that have begun.
    """

    limit_units: ClassVar[tuple[BaseUnit, ...]] = _SPACE

    discipline: Literal["early_packet_discard"] = "early_packet_discard"
    """``early_packet_discard``."""
    threshold: PositiveShare = 0.9  # as the R of selective drop, so that the two can be compared
    """The share of the limit above which packets are dropped, 0 to 1."""


class SelectiveDrop(_Queue):
    """Selective drop (Goyal and others, "UBR+", 1997): above a threshold, drop from heavy flows.

    A packet is dropped when more than ``threshold`` of the limit is used and its flow has more than
    ``load_ratio`` times its fair share of the queue.
    """

    limit_units: ClassVar[tuple[BaseUnit, ...]] = _SPACE

    discipline: Literal["selective_drop"] = "selective_drop"
    """``selective_drop``."""
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
    classes: Classes = 8  # as many as IP precedence and IEEE 802.1Q have
    """The number of classes; the ``priority`` of a flow is from 0 to one less."""


def _discipline_of(value: object) -> str:
    """Return the tag of the record that reads ``value``; `DropTail` refuses other types."""
    if isinstance(value, Mapping):
        name = value.get("discipline")
        return "drop_tail" if name is None else str(name)
    return str(getattr(value, "discipline", None) or "drop_tail")


_Queues = (
    Annotated[DropTail, Tag("drop_tail")]
    | Annotated[Red, Tag("red")]
    | Annotated[CoDel, Tag("codel")]
    | Annotated[FqCoDel, Tag("fq_codel")]
    | Annotated[PerFlowDropTail, Tag("per_flow_drop_tail")]
    | Annotated[EarlyPacketDiscard, Tag("early_packet_discard")]
    | Annotated[SelectiveDrop, Tag("selective_drop")]
    | Annotated[StrictPriority, Tag("strict_priority")]
)
QUEUES: Final[Mapping[str, type[_Queue]]] = {
    tag.tag: queue for queue, tag in map(get_args, get_args(_Queues))
}

Queue = Annotated[
    _Queues, Discriminator(_discipline_of), known_kind("discipline", QUEUES, optional=True)
]
