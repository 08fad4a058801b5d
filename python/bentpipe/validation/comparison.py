"""The simulator compared with Linux TCP: the same points in both engines, and how far apart.

A point is a link, a congestion control and traffic. The kernel runs it in real time, the simulator
with many seeds. What is compared is a *measure*: goodput, completion times, and so on. Each has a
value or two of each of its points, a relative difference for each value, and the bars that the
median and the 90th percentile of the differences have to pass.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

import numpy as np

from bentpipe.validation.figures import Figures, figures_of, simulated
from bentpipe.validation.points import (
    CONTROLS,
    FLOWS,
    MIN_QUEUE_BYTES,
    OUTAGE_S,
    SIZES_BYTES,
    Kind,
    Point,
    grid,
    size_text,
)

__all__ = [
    "CONTROLS",
    "FLOWS",
    "MEASURES",
    "MIN_QUEUE_BYTES",
    "SEEDS",
    "Bar",
    "Comparison",
    "Figures",
    "Measure",
    "Point",
    "Summary",
    "Value",
    "figures_of",
    "grid",
    "simulated",
    "summary",
]

SEEDS: Final = 20
# Goodput of so much of what the link could carry is limited by its rate.
LIMITED_SHARE: Final = 0.95

Group = Literal["all", "not limited by the link rate"]
Statistic = Literal["median", "p90"]
_ALL: Final = "all"
_UNLIMITED: Final = "not limited by the link rate"


@dataclass(frozen=True, kw_only=True)
class Bar:
    """The largest median or 90th percentile that a measure may have over a group of points."""

    over: Group
    statistic: Statistic
    limit: float


@dataclass(frozen=True, kw_only=True)
class Measure:
    """What is compared: values of the points of a kind.

    A value below ``min`` in both engines is left out: of it, one more or less is a large
    difference.
    """

    name: str
    title: str
    kind: Kind
    values: tuple[str, ...]
    bars: tuple[Bar, ...] = ()
    size_bytes: int | None = None
    min: float = 0.0

    def has(self, point: Point) -> bool:
        """Whether the point is one of this measure."""
        return point.kind == self.kind and self.size_bytes in (None, point.size_bytes)


def _median(limit: float) -> tuple[Bar, ...]:
    return (Bar(over=_ALL, statistic="median", limit=limit),)


_GOODPUT_BARS: Final = (
    Bar(over=_ALL, statistic="median", limit=0.01),
    Bar(over=_ALL, statistic="p90", limit=0.05),
    Bar(over=_UNLIMITED, statistic="median", limit=0.03),
    Bar(over=_UNLIMITED, statistic="p90", limit=0.08),
)
MEASURES: Final = (
    Measure(
        name="goodput",
        title="goodput",
        kind="goodput",
        values=("goodput_bps",),
        bars=_GOODPUT_BARS,
    ),
    Measure(name="queue", title="mean queue", kind="goodput", values=("queue_ms",), min=1.0),
    Measure(
        name="retransmissions",
        title="retransmitted segments",
        kind="goodput",
        values=("retransmitted_segments",),
        bars=_median(0.15),
        min=10.0,
    ),
    *(
        Measure(
            name=f"completion-{size_text(size_bytes).replace(' ', '')}",
            title=f"completion time of {size_text(size_bytes)}",
            kind="completion",
            values=("completion_s",),
            bars=_median(0.05),
            size_bytes=size_bytes,
        )
        for size_bytes in SIZES_BYTES
    ),
    Measure(
        name="two-way",
        title="two-way transfers",
        kind="two-way",
        values=("forward_bps", "return_bps"),
        bars=_median(0.08),
    ),
    Measure(
        name="rate-step",
        title="rate step",
        kind="rate-step",
        values=("before_bps", "after_bps"),
        bars=_median(0.08),
    ),
    Measure(
        name="outage",
        title=f"outage of {OUTAGE_S:g} s",
        kind="outage",
        values=("after_bps", "recovery_s"),
        bars=_median(0.08),
    ),
)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A point in both engines: runs in real time, and simulations with at least their seeds.

    ``invalid`` says why the last attempt did not count, if none did.
    """

    point: Point
    kernel: tuple[Figures, ...]
    model: tuple[Figures, ...]
    invalid: str | None = None

    def values(self) -> Iterator[Value]:
        """Return the values of all measures that the point has."""
        for measure in MEASURES:
            if measure.has(self.point):
                for name in measure.values:
                    yield self._value(measure, name)

    def _value(self, measure: Measure, name: str) -> Value:
        seeds = {each.seed for each in self.kernel}
        return Value(
            measure=measure,
            name=name,
            point=self.point,
            kernel=mean_of(self.kernel, name),
            model=mean_of([each for each in self.model if each.seed in seeds], name),
            mean=mean_of(self.model, name),
            spread=_spread(self.model, name),
            is_limited=self._is_limited(name),
        )

    def _is_limited(self, name: str) -> bool | None:
        """Whether the link's rate limits it in both engines; None if there is no rate."""
        if self.point.kind == "goodput":
            name = "goodput_bps"
        if not name.endswith("_bps"):
            return None
        seeds = {each.seed for each in self.kernel}
        paired = [each for each in self.model if each.seed in seeds]
        possible_bps = self.point.possible_bps
        if self.point.kind == "rate-step" and name == "after_bps":
            possible_bps /= 2
        found = [mean_of(runs, name) for runs in (self.kernel, paired)]
        return all(each is not None and each >= LIMITED_SHARE * possible_bps for each in found)

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "point": {**asdict(self.point), "queue_bytes": self.point.queue_bytes},
            "kernel": [{"seed": each.seed, **each.values} for each in self.kernel],
            "model": [{"seed": each.seed, **each.values} for each in self.model],
            "values": [each.to_json() for each in self.values()],
            "invalid": self.invalid,
        }


@dataclass(frozen=True, kw_only=True)
class Value:
    """One value of a point: the kernel's and the model's with the same seeds, and the difference.

    ``mean`` is the model's over all seeds, ``spread`` its relative standard deviation.
    """

    measure: Measure
    name: str
    point: Point
    kernel: float | None
    model: float | None
    mean: float | None = None
    spread: float = 0.0
    is_limited: bool | None = None

    @property
    def difference(self) -> float | None:
        """The model's value over the kernel's, less one, with the same seeds.

        The same seed loses the same packets by their number in both engines, so the luck of the
        link is no difference. None without a valid run in real time, or where there is no ratio.
        """
        return _relative(self.model, self.kernel)

    @property
    def mean_difference(self) -> float | None:
        """The model's mean value of all seeds over the kernel's, less one."""
        return _relative(self.mean, self.kernel)

    @property
    def is_left_out(self) -> bool:
        """Whether it is too small in both engines for a relative difference to mean anything."""
        both = (self.kernel, self.model)
        return all(each is not None and each < self.measure.min for each in both)

    @property
    def size(self) -> float:
        """The size of the difference; infinite if there is none, since then the point failed."""
        return math.inf if self.difference is None else abs(self.difference)

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "measure": self.measure.name,
            "value": self.name,
            "kernel": self.kernel,
            "model": self.model,
            "difference": self.difference,
            "mean_difference": self.mean_difference,
            "spread": self.spread,
            "link_limited": self.is_limited,
            "left_out": self.is_left_out,
        }


def _relative(model: float | None, kernel: float | None) -> float | None:
    if model is None or kernel is None:
        return None
    if kernel == model:
        return 0.0
    return model / kernel - 1 if kernel else None


def mean_of(runs: Sequence[Figures], name: str) -> float | None:
    """Return the mean of a value over runs; None without any, or if one has not got it."""
    values = [each.values[name] for each in runs]
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if values and len(known) == len(values) else None


def _spread(runs: Sequence[Figures], name: str) -> float:
    mean = mean_of(runs, name)
    if not mean or len(runs) == 1:
        return 0.0
    known = [value for each in runs if (value := each.values[name]) is not None]
    return float(np.std(known, ddof=1)) / mean


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The differences of a measure over its points.

    ``over`` has the median and the 90th percentile of each group; a percentile is infinite where
    failed points reach it.
    """

    measure: Measure
    counted: int
    failed: int
    left_out: int
    over: dict[Group, dict[Statistic, float]]

    def passes(self, bar: Bar) -> bool:
        """Whether a bar is passed; one over no points is."""
        found = self.over.get(bar.over)
        return found is None or found[bar.statistic] <= bar.limit

    @property
    def passed(self) -> bool:
        """Whether all bars are."""
        return all(self.passes(bar) for bar in self.measure.bars)

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data; null is a percentile that failed points reach."""
        over = {
            group: {name: _finite(value) for name, value in found.items()}
            for group, found in self.over.items()
        }
        bars = [
            {
                **asdict(bar),
                "found": over.get(bar.over, {}).get(bar.statistic),
                "passed": self.passes(bar),
            }
            for bar in self.measure.bars
        ]
        return {
            "title": self.measure.title,
            "counted": self.counted,
            "failed": self.failed,
            "left_out": self.left_out,
            "difference": over,
            "bars": bars,
            "passed": self.passed,
        }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def summary(measure: Measure, values: Iterable[Value]) -> Summary | None:
    """Return the differences of a measure; None if it has no values.

    A value that has no difference, since each run in real time was late, counts as infinitely far
    away: it can pass no bar. It is in both groups.
    """
    own = [value for value in values if value.measure == measure]
    if not own:
        return None
    counted = [value for value in own if not value.is_left_out]
    groups: dict[Group, list[float]] = {_ALL: [value.size for value in counted]}
    groups[_UNLIMITED] = [value.size for value in counted if value.is_limited is False]
    return Summary(
        measure=measure,
        counted=len(counted),
        failed=sum(value.difference is None for value in counted),
        left_out=len(own) - len(counted),
        over={
            group: {"median": quantile(sizes, 0.5), "p90": quantile(sizes, 0.9)}
            for group, sizes in groups.items()
            if sizes
        },
    )


def quantile(sizes: Iterable[float], share: float) -> float:
    """Return a quantile, interpolated between two sizes; infinite if one of the two is."""
    ordered = sorted(sizes)
    place = share * (len(ordered) - 1)
    low, rest = int(place), place - int(place)
    if rest == 0:
        return ordered[low]
    if math.isinf(ordered[low + 1]):
        return math.inf
    return ordered[low] + rest * (ordered[low + 1] - ordered[low])
