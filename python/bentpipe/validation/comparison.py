"""The simulator compared with Linux TCP: the same points in both engines, and their differences.

A point is a link, a congestion control and traffic. Linux runs it in real time; the simulator runs
it with many seeds. Each value of a measure has a relative difference, and each measure thresholds
for the median and the 90th percentile of the differences over its points.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from bentpipe.results.confidence import mean_half_width
from bentpipe.validation.points import Point
from bentpipe.validation.runs import RunMetrics

Group = Literal["all", "not limited by the link rate"]
Statistic = Literal["median", "p90"]
STATISTICS: Final[tuple[Statistic, ...]] = ("median", "p90")
ALL: Final[Group] = "all"
NOT_LIMITED: Final[Group] = "not limited by the link rate"


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
    kind: str
    values: tuple[str, ...]
    thresholds: tuple[Threshold, ...] = ()
    size_bytes: int | None = None
    min_value: float = 0.0

    def applies_to(self, point: Point) -> bool:
        """Return whether the measure has values at the point."""
        return point.kind == self.kind and self.size_bytes in {None, point.size_bytes}


# By the names of their columns in measures.csv.
_GROUPS: Final[dict[str, Group]] = {"all": ALL, "not_limited": NOT_LIMITED}


def _measure(row: Mapping[str, str]) -> Measure:
    thresholds = (
        Threshold(over=group, statistic=statistic, limit=float(limit))
        for (prefix, group), statistic in product(_GROUPS.items(), STATISTICS)
        if (limit := row[f"{prefix}_{statistic}"])
    )
    return Measure(
        name=row["name"],
        title=row["title"],
        kind=row["kind"],
        values=tuple(row["values"].split()),
        thresholds=tuple(thresholds),
        size_bytes=int(row["size_bytes"]) if row["size_bytes"] else None,
        min_value=float(row["min_value"] or 0),
    )


def read_rows(file: str) -> list[dict[str, str]]:
    """Return the rows of a CSV file of this package; lines that begin with ``#`` are comments."""
    with (Path(__file__).parent / file).open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(line for line in lines if not line.startswith("#")))


MEASURES: Final = tuple(map(_measure, read_rows("measures.csv")))
SEEDS: Final = 20
# A goodput above this share of the largest possible one is limited by the rate of the link.
LIMITED_SHARE: Final = 0.95


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A point in real time and simulated; ``invalid`` is why the last attempt was, if all were."""

    point: Point
    kernel: tuple[RunMetrics, ...]
    model: tuple[RunMetrics, ...]
    invalid: str | None = None

    def values(self) -> Iterator[Value]:
        """Return the values of all measures at the point."""
        own = (measure for measure in MEASURES if measure.applies_to(self.point))
        return (self._value(measure, name) for measure in own for name in measure.values)

    def _value(self, measure: Measure, name: str) -> Value:
        seeds = known(self.model, name)
        return Value(
            measure=measure,
            name=name,
            point=self.point,
            kernel=mean_of(self.kernel, name),
            model=mean_of(self._paired(), name),
            mean=mean_of(self.model, name),
            mean_half_width=None if seeds is None else mean_half_width(seeds),
            rate_limited=self._is_rate_limited(name),
        )

    def _paired(self) -> list[RunMetrics]:
        """Return the simulations with the seeds of the runs in real time."""
        seeds = {each.seed for each in self.kernel}
        return [each for each in self.model if each.seed in seeds]

    def _is_rate_limited(self, name: str) -> bool | None:
        """Return whether the link rate limits a goodput in both engines; None for other values."""
        if self.point.kind == "goodput":
            name = "goodput_bps"
        if not name.endswith("_bps"):
            return None
        possible_bps = self.point.possible_bps
        if self.point.kind == "rate-step" and name == "after_bps":
            possible_bps /= 2
        found = (mean_of(runs, name) for runs in (self.kernel, self._paired()))
        return all(each is not None and each >= LIMITED_SHARE * possible_bps for each in found)

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as plain data."""
        return {
            "point": {**asdict(self.point), "queue_bytes": self.point.queue_bytes},
            "kernel": [{"seed": each.seed, **each.values} for each in self.kernel],
            "model": [{"seed": each.seed, **each.values} for each in self.model],
            "values": [each.to_json() for each in self.values()],
            "invalid": self.invalid,
        }


@dataclass(frozen=True, kw_only=True)
class Value:
    """One value of a point: the kernel's, and the model's with the same seeds.

    ``mean`` is the model's over all seeds and ``mean_half_width`` the half width of its 95 %
    confidence interval (None for a single seed).
    """

    measure: Measure
    name: str
    point: Point
    kernel: float | None
    model: float | None
    mean: float | None = None
    mean_half_width: float | None = None
    rate_limited: bool | None = None

    @property
    def difference(self) -> float | None:
        """The model's value over the kernel's, less one, with the same seeds.

        With the same seed both engines lose the same packets by number, so that random losses add
        no difference. None without a valid run in real time, or where there is no ratio.
        """
        return _relative(self.model, self.kernel)

    @property
    def mean_difference(self) -> float | None:
        """The model's mean over all seeds over the kernel's value, less one."""
        return _relative(self.mean, self.kernel)

    @property
    def mean_difference_half_width(self) -> float | None:
        """The half width of the 95 % confidence interval of `mean_difference`."""
        if self.mean_half_width is None or not self.kernel:
            return None
        return self.mean_half_width / self.kernel

    @property
    def excluded(self) -> bool:
        """Return whether it is too small in both engines for a relative difference."""
        both = (self.kernel, self.model)
        return all(each is not None and each < self.measure.min_value for each in both)

    @property
    def abs_difference(self) -> float:
        """The absolute difference; infinite if there is none, since the point failed."""
        return math.inf if self.difference is None else abs(self.difference)

    def to_json(self) -> dict[str, Any]:
        """Return the value as plain data."""
        names = ("kernel", "model", "difference", "mean_difference", "mean_difference_half_width")
        own = {each: getattr(self, each) for each in (*names, "rate_limited", "excluded")}
        return {"measure": self.measure.name, "value": self.name, **own}


def _relative(model: float | None, kernel: float | None) -> float | None:
    if model is None or kernel is None:
        return None
    if kernel == model:
        return 0.0
    return model / kernel - 1 if kernel else None


def known(runs: Sequence[RunMetrics], name: str) -> list[float] | None:
    """Return a value of all runs; None without runs, or if a run does not have it."""
    values = [value for run in runs if (value := run.values[name]) is not None]
    return values if values and len(values) == len(runs) else None


def mean_of(runs: Sequence[RunMetrics], name: str) -> float | None:
    """Return the mean of a value over runs; None without runs, or if a run does not have it."""
    values = known(runs, name)
    return None if values is None else float(np.mean(values))


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The absolute differences of a measure over its points.

    ``over`` has the median and the 90th percentile of each group; a percentile is infinite if it
    depends on a failed point.
    """

    measure: Measure
    counted: int
    failed: int
    excluded: int
    over: dict[Group, dict[Statistic, float]]

    def meets(self, threshold: Threshold) -> bool:
        """Return whether a threshold is met; one over no points is."""
        found = self.over.get(threshold.over)
        return found is None or found[threshold.statistic] <= threshold.limit

    @property
    def passed(self) -> bool:
        """Return whether all thresholds are met."""
        return all(self.meets(threshold) for threshold in self.measure.thresholds)

    def to_json(self) -> dict[str, Any]:
        """Return the summary as plain data; null is a percentile that depends on a failed point."""
        over = {
            group: {name: value if math.isfinite(value) else None for name, value in found.items()}
            for group, found in self.over.items()
        }
        return {
            "title": self.measure.title,
            "counted": self.counted,
            "failed": self.failed,
            "excluded": self.excluded,
            "difference": over,
            "thresholds": [
                {
                    **asdict(threshold),
                    "found": over.get(threshold.over, {}).get(threshold.statistic),
                    "passed": self.meets(threshold),
                }
                for threshold in self.measure.thresholds
            ],
            "passed": self.passed,
        }


def summarize(measure: Measure, values: Iterable[Value]) -> Summary | None:
    """Return the summary of a measure; None if it has no values.

    A value without a difference, because every run in real time was late, counts as infinite, so
    that it meets no threshold. It is in both groups.
    """
    own = [value for value in values if value.measure == measure]
    if not own:
        return None
    counted = [value for value in own if not value.excluded]
    groups: dict[Group, list[float]] = {
        ALL: [value.abs_difference for value in counted],
        NOT_LIMITED: [value.abs_difference for value in counted if value.rate_limited is False],
    }
    return Summary(
        measure=measure,
        counted=len(counted),
        failed=sum(value.difference is None for value in counted),
        excluded=len(own) - len(counted),
        over={
            group: {"median": quantile(found, 0.5), "p90": quantile(found, 0.9)}
            for group, found in groups.items()
            if found
        },
    )


def quantile(values: Iterable[float], share: float) -> float:
    """Return a quantile, interpolated linearly; infinite if one of its two values is."""
    ordered = sorted(values)
    rest, low = math.modf(share * (len(ordered) - 1))
    below, above = ordered[int(low)], ordered[math.ceil(low + rest)]
    # Of two infinite ones the difference is not a number.
    return above if math.isinf(above) else below + rest * (above - below)
