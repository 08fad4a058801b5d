"""The values of a figure over the runs of a cell, and the 95 % interval of their mean."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, Self, TypeVar

import numpy as np
import numpy.typing as npt

from bentpipe.results.confidence import (
    CONFIDENCE,
    MIN_BOOTSTRAP_VALUES,
    RESAMPLES,
    Interval,
    mean_half_width,
    resampled,
)

_TAILS: Final = ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2)

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Samples:
    """The values of one figure over the runs of a cell.

    ``exact``: the cell is deterministic. All runs give the same value, so one run is enough and the
    mean has no interval.
    """

    values: tuple[float, ...] = ()
    exact: bool = False

    @classmethod
    def of(cls, values: Iterable[float | None], *, exact: bool) -> Samples:
        """Return the samples of values; None is a run without a value."""
        return cls(tuple(float(each) for each in values if each is not None), exact)

    @property
    def mean(self) -> float | None:
        """The mean; None without a run."""
        return float(np.mean(self.values)) if self.values else None

    @property
    def interval(self) -> Interval | None:
        """The interval of the mean by Student's t; None if it is exact or there is one run."""
        mean, half = self.mean, mean_half_width(self.values)
        if mean is None or self.exact or half is None:
            return None
        return Interval(mean - half, mean + half)

    def scaled(self, by: float) -> Samples:
        """Return the values multiplied by a factor, to convert their unit."""
        return Samples(tuple(by * each for each in self.values), self.exact)

    def to_json(self, name: str) -> dict[str, Any]:
        """Return mean, interval and number of runs, as columns that begin with ``name``."""
        return {
            **with_interval(name, self.mean, self.interval),
            f"{name}_runs": len(self.values),
            f"{name}_exact": self.exact,
        }


def with_interval(name: str, value: float | None, interval: Interval | None) -> dict[str, Any]:
    """Return a value and the ends of its interval, as columns that begin with ``name``."""
    low, high = (None, None) if interval is None else (interval.low, interval.high)
    return {name: value, f"{name}_low": low, f"{name}_high": high}


Cell = TypeVar("Cell")


@dataclass(frozen=True)
class Measurement(Generic[Cell]):
    """The figures of the runs of one cell, by seed."""

    cell: Cell
    runs: Mapping[int, Mapping[str, float]]

    def __getitem__(self, figure: str) -> Samples:
        """Return the values of a figure; a run without a value has none."""
        found = (run.get(figure, np.nan) for run in self.runs.values())
        return Samples.of((each for each in found if not np.isnan(each)), exact=False)

    def by_seed(self, figure: str) -> dict[int, float]:
        """Return the values of a figure by seed."""
        return {seed: run[figure] for seed, run in self.runs.items()}

    def first(self, runs: int) -> Self:
        """Return the measurement with its first runs alone."""
        return replace(self, runs=dict(list(self.runs.items())[:runs]))


@dataclass(frozen=True)
class Estimate:
    """A statistic of several cells, and its interval where there is one."""

    value: float
    interval: Interval | None


def estimate(samples: Sequence[Samples], statistic: Callable[[Array], Array]) -> Estimate | None:
    """Return a statistic of the means of several cells, with its interval by bootstrap.

    ``statistic`` reduces the last axis, which has the cells. The bootstrap resamples the runs of
    each cell (Efron and Tibshirani 1993, percentile method); None without cells.
    """
    if not samples:
        return None
    means = np.array([each.mean for each in samples], dtype=np.float64)
    value = float(statistic(means))
    random = [each for each in samples if not each.exact]
    if not random or min(len(each.values) for each in random) < MIN_BOOTSTRAP_VALUES:
        return Estimate(value, None)
    rng = np.random.default_rng(0)
    drawn = np.empty((RESAMPLES, len(samples)))
    for column, each in zip(drawn.T, samples, strict=True):
        column[:] = resampled(np.array(each.values), rng).mean(axis=1)
    low, high = np.quantile(statistic(drawn), _TAILS)
    return Estimate(value, Interval(float(low), float(high)))
