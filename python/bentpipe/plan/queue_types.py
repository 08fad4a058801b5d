"""The types of queues in a plan (`crates/sim/src/plan/queue.rs`)."""

from __future__ import annotations

from typing import Literal, NotRequired, TypeAlias, TypedDict

LimitUnit: TypeAlias = Literal["bytes", "link_bytes", "packets", "time_ns", "unlimited"]


class LimitPlan(TypedDict):
    """A queue limit; ``unlimited`` has no value."""

    unit: LimitUnit
    value: NotRequired[int]


class DropTailPlan(TypedDict):
    """First in, first out."""

    discipline: Literal["drop_tail"]
    limit: LimitPlan


class RedPlan(TypedDict):
    """Random early detection."""

    discipline: Literal["red"]
    limit: LimitPlan
    unit: Literal["bytes", "packets"]
    min_threshold: int
    max_threshold: int
    max_probability: float
    weight: float
    gentle: bool
    mean_packet_bytes: int
    ecn: bool


class CoDelPlan(TypedDict):
    """Controlled delay."""

    discipline: Literal["codel"]
    limit: LimitPlan
    target_ns: int
    interval_ns: int
    ecn: bool


class FqCoDelPlan(TypedDict):
    """Flow queueing with CoDel."""

    discipline: Literal["fq_codel"]
    limit: LimitPlan
    target_ns: int
    interval_ns: int
    ecn: bool
    quantum_bytes: int
    queues: int


class PerFlowDropTailPlan(TypedDict):
    """One queue with a limit for each flow."""

    discipline: Literal["per_flow_drop_tail"]
    limit: LimitPlan
    per_flow_limit: LimitPlan


class EarlyPacketDiscardPlan(TypedDict):
    """Early packet discard."""

    discipline: Literal["early_packet_discard"]
    limit: LimitPlan
    threshold: float


class SelectiveDropPlan(TypedDict):
    """Selective drop."""

    discipline: Literal["selective_drop"]
    limit: LimitPlan
    threshold: float
    load_ratio: float


class StrictPriorityPlan(TypedDict):
    """A queue for each class."""

    discipline: Literal["strict_priority"]
    limit: LimitPlan
    classes: int


QueuePlan: TypeAlias = (
    DropTailPlan
    | RedPlan
    | CoDelPlan
    | FqCoDelPlan
    | PerFlowDropTailPlan
    | EarlyPacketDiscardPlan
    | SelectiveDropPlan
    | StrictPriorityPlan
)
