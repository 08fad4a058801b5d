"""The measures of a validation, and the thresholds for their differences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from bentpipe.validation.points import OUTAGE_S, SIZES_BYTES, Kind, Point, size_text

Group = Literal["all", "not limited by the link rate"]
Statistic = Literal["median", "p90"]
ALL: Final = "all"
NOT_LIMITED: Final = "not limited by the link rate"


@dataclass(frozen=True, kw_only=True)
class Threshold:
    """The largest allowed median or 90th percentile of the differences of a group of points."""

    over: Group
    statistic: Statistic
    limit: float


@dataclass(frozen=True, kw_only=True)
class Measure:
    """Values that are compared at all points of one kind.

    A value below ``min_value`` in both engines is excluded: its relative difference means little.
    """

    name: str
    title: str
    kind: Kind
    values: tuple[str, ...]
    thresholds: tuple[Threshold, ...] = ()
    size_bytes: int | None = None
    min_value: float = 0.0

    def applies_to(self, point: Point) -> bool:
        """Return whether the measure has values at the point."""
        return point.kind == self.kind and self.size_bytes in {None, point.size_bytes}


def _median(limit: float) -> tuple[Threshold, ...]:
    return (Threshold(over=ALL, statistic="median", limit=limit),)


_GOODPUT_THRESHOLDS: Final = (
    Threshold(over=ALL, statistic="median", limit=0.01),
    Threshold(over=ALL, statistic="p90", limit=0.05),
    Threshold(over=NOT_LIMITED, statistic="median", limit=0.03),
    Threshold(over=NOT_LIMITED, statistic="p90", limit=0.08),
)
MEASURES: Final = (
    Measure(
        name="goodput",
        title="goodput",
        kind="goodput",
        values=("goodput_bps",),
        thresholds=_GOODPUT_THRESHOLDS,
    ),
    Measure(name="queue", title="mean queue", kind="goodput", values=("queue_ms",), min_value=1.0),
    Measure(
        name="retransmissions",
        title="retransmitted segments",
        kind="goodput",
        values=("retransmitted_segments",),
        thresholds=_median(0.15),
        min_value=10.0,
    ),
    *(
        Measure(
            name=f"completion-{size_text(size_bytes).replace(' ', '')}",
            title=f"completion time of {size_text(size_bytes)}",
            kind="completion",
            values=("completion_s",),
            thresholds=_median(0.05),
            size_bytes=size_bytes,
        )
        for size_bytes in SIZES_BYTES
    ),
    Measure(
        name="two-way",
        title="two-way transfers",
        kind="two-way",
        values=("forward_bps", "return_bps"),
        thresholds=_median(0.08),
    ),
    Measure(
        name="rate-step",
        title="rate step",
        kind="rate-step",
        values=("before_bps", "after_bps"),
        thresholds=_median(0.08),
    ),
    Measure(
        name="outage",
        title=f"outage of {OUTAGE_S:g} s",
        kind="outage",
        values=("after_bps", "recovery_s"),
        thresholds=_median(0.08),
    ),
    Measure(
        name="pep-goodput",
        title="goodput with PEPs",
        kind="pep-goodput",
        values=("goodput_bps",),
        thresholds=_median(0.05),
    ),
    Measure(
        name="pep-completion",
        title="completion time with PEPs",
        kind="pep-completion",
        values=("completion_s",),
        thresholds=_median(0.05),
    ),
)
