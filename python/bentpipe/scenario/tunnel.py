"""The coded tunnel between the gateways.

`docs/model/tunnel-policies.md` describes its policies. `plan.tunnels` makes the defaults that
depend on the link.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from bentpipe import units
from bentpipe.scenario.record import (
    AdaptiveOrPercent,
    Duration,
    DurationOrNone,
    GatewayFunction,
    Percent,
    PositiveSize,
    QueueClass,
    Rate,
    SignalOrPercent,
    Size,
    refusal,
)

Titration = Literal["titrated", "none", "immediate", "delayed"]

# The ESIs of a repair symbol's window, in RFC 8681, have 12 bits.
_WINDOW_MAX: Final = 4_095
# What the encoder keeps unless a window is longer.
_MEMORY: Final = 1_024

Window = Annotated[int, Field(ge=1, le=_WINDOW_MAX)]


class Tunnel(GatewayFunction):
    """A tunnel to the gateway at the other end of the link, with an erasure code.

    It sends repair beside the packets, from which the other end recovers lost ones.
    """

    needs_peer = True

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
    classes: Annotated[tuple[QueueClass, ...], Field(strict=False, min_length=1)] | None = None
    """The priorities of the flows whose packets are coded; by default all."""
    titration: Titration = "titrated"
    """When repair is sent: ``titrated`` while the queue of the link holds less than ``threshold``,
    ``immediate``, ``delayed`` by ``delay``, or ``none`` for never."""
    delay: Duration | None = None
    """How long ``delayed`` holds repair."""
    threshold: PositiveSize | None = None
    """The occupancy of the queue below which ``titrated`` sends repair; by default a tenth of
    ``queue``."""
    hold_time: Duration | None = None
    """The longest time that ``titrated`` holds repair; by default the round-trip time of the
    link."""
    hold_buffer: PositiveSize | None = None
    """The most repair that is held, up to 1 GiB; by default that of a hold time at ``rate``, and at
    least 64 kB."""
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
    feedback_interval: DurationOrNone = units.duration("100 ms")
    """The time between two reports of this end to the sender at the other end, at least 1 ms, or
    ``none`` for no reports."""
    congestion_signal: SignalOrPercent = "hidden"
    """How flows learn of recovered losses (RFC 9265): ``hidden`` for not at all, ``ecn`` to mark
    recovered packets of ECN-capable flows, or the share of them that is not delivered, such as
    ``10 %``."""

    @model_validator(mode="after")
    def _check_titration(self) -> Self:
        if self.titration == "delayed" and self.delay is None:
            raise refusal("read titration delayed without delay; set one, such as 100 ms")
        if self.titration != "delayed" and self.delay is not None:
            read = f"read delay {self.delay} with titration {self.titration}"
            raise refusal(f"{read}; only delayed repair has one")
        if not self.order and self.order_hold_time is not None:
            read = f"read order_hold_time {self.order_hold_time} with order false"
            raise refusal(f"{read}; packets wait only for the order of their flow")
        return self

    @model_validator(mode="after")
    def _check_windows(self) -> Self:
        if self.is_adaptive and self.window > self.window_max:
            read = f"read window {self.window} and window_max {self.window_max}"
            raise refusal(f"{read}; window must be at most window_max")
        if self.memory is not None and self.longest_window > self.memory:
            name = "window_max" if self.is_adaptive else "window"
            read = f"read {name} {self.longest_window} and memory {self.memory}"
            raise refusal(f"{read}; the sender must keep the symbols of its longest window")
        return self

    @property
    def is_adaptive(self) -> bool:
        """Whether the redundancy follows the loss."""
        return self.redundancy == "adaptive"

    @property
    def longest_window(self) -> int:
        """The longest window, in symbols."""
        return self.window_max if self.is_adaptive else self.window

    @property
    def memory_symbols(self) -> int:
        """The symbols that the sender keeps."""
        return max(_MEMORY, self.longest_window) if self.memory is None else self.memory
