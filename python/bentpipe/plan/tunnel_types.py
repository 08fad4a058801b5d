"""The types of a coded tunnel in a plan (`crates/core/src/tunnel/settings.rs`)."""

from __future__ import annotations

from typing import Literal, TypeAlias, TypedDict


class ClassifierPlan(TypedDict):
    """Which packets are coded; ``classes`` is None for all."""

    packet_size_bytes: int
    classes: list[int] | None
    young_bytes: int


class FixedRedundancyPlan(TypedDict):
    """Redundancy that is always the same."""

    kind: Literal["fixed"]
    redundancy_ppm: int
    window_symbols: int


class AdaptiveRedundancyPlan(TypedDict):
    """Redundancy that follows the reported loss."""

    kind: Literal["adaptive"]
    cap_ppm: int
    initial_loss_ppm: int
    margin: int
    averaging_symbols: int
    decay_time_ns: int
    window_min_symbols: int
    window_max_symbols: int
    report_delay_ns: int


RedundancyPlan: TypeAlias = FixedRedundancyPlan | AdaptiveRedundancyPlan


class UntimedPlan(TypedDict):
    """Repair that is never sent, or at once."""

    kind: Literal["none", "immediate"]


class DelayedPlan(TypedDict):
    """Repair that is sent after a fixed time."""

    kind: Literal["delayed"]
    delay_ns: int


class TitratedPlan(TypedDict):
    """Repair that is sent while the queue has room."""

    kind: Literal["titrated"]
    threshold_bytes: int
    hold_time_ns: int


TitrationPlan: TypeAlias = UntimedPlan | DelayedPlan | TitratedPlan


class ShadowQueuePlan(TypedDict):
    """The input queue of the link, as the tunnel estimates it."""

    rate_bps: int
    capacity_bytes: int
    packet_overhead_bytes: int


class UnorderedPlan(TypedDict):
    """Packets leave as they come or are decoded."""

    kind: Literal["unordered"]


class OrderedPlan(TypedDict):
    """Packets leave in the order of their flow."""

    kind: Literal["ordered"]
    hold_time_ns: int


class UnsharedSignalPlan(TypedDict):
    """Flows learn of no decoded loss, or by a mark of ECN."""

    kind: Literal["hidden", "ecn"]


class VisiblePlan(TypedDict):
    """A share of decoded packets is not delivered."""

    kind: Literal["visible"]
    share_ppm: int


class TunnelPlan(TypedDict):
    """One end of a coded tunnel."""

    kind: Literal["tunnel"]
    classifier: ClassifierPlan
    redundancy: RedundancyPlan
    titration: TitrationPlan
    hold_bytes: int
    queue: ShadowQueuePlan
    memory_symbols: int
    symbol_size_bytes: int
    density: int
    feedback_interval_ns: int | None
    delivery: UnorderedPlan | OrderedPlan
    congestion_signal: UnsharedSignalPlan | VisiblePlan
