"""The difference of two sets of runs in one metric, and how sure it is."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

import numpy as np
import numpy.typing as npt

from bentpipe.results.confidence import (
    CONFIDENCE,
    MIN_BOOTSTRAP_VALUES,
    Interval,
    bootstrap_difference,
    bootstrap_mean,
)

# The share of experiments that show a difference of the stated size with the stated seeds.
POWER: Final = 0.8
_NORMAL: Final = NormalDist()
# Guenther, Sample size formulas for normal theory t tests, The American Statistician 35 (1981): the
# normal approximation lacks half a squared quantile (paired), or a quarter of one (unpaired).
_GUENTHER: Final = {True: 2, False: 4}

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Summary:
    """Number, mean and standard deviation (None of a single value) of the values of runs."""

    runs: int
    mean: float
    deviation: float | None

    @classmethod
    def of(cls, values: Array) -> Summary:
        """Return the summary of values, at least one."""
        deviation = float(values.std(ddof=1)) if values.size > 1 else None
        return cls(values.size, float(values.mean()), deviation)


@dataclass(frozen=True)
class Estimate:
    """The difference of means, second minus first, with its 95 % interval and effect size.

    ``paired``: each value of the first set has a partner with the same seed in the second. The
    effect size is then Cohen's d_z, the mean of the differences over their standard deviation
    (Cohen, Statistical power analysis for the behavioral sciences, 1988, 2.3.5); otherwise Hedges'
    g, the difference over the pooled standard deviation, corrected for small samples (Hedges, J.
    Educ. Stat. 6 (1981) 107-128). It is None without a deviation.
    """

    paired: bool
    first: Summary
    second: Summary
    difference: float
    interval: Interval | None
    effect: float | None
    spread: float | None

    @property
    def shown(self) -> bool | None:
        """Whether the interval excludes zero; None without an interval."""
        return None if self.interval is None else not self.interval.contains(0.0)

    @property
    def exact(self) -> bool:
        """Whether the difference does not depend on the seed, so that more seeds change nothing."""
        return _is_exact(self.interval)

    def seeds_to_show(self, difference: float) -> int | None:
        """Return the seeds that show a difference of this size with a probability of 80 %.

        None if the spread is not known, or zero. The source of the formula is that of `_GUENTHER`.
        """
        if not self.spread or not difference:
            return None
        quantile = _NORMAL.inv_cdf((1 + CONFIDENCE) / 2)
        total = quantile + _NORMAL.inv_cdf(POWER)
        seeds = (total * self.spread / abs(difference)) ** 2
        seeds += quantile**2 / _GUENTHER[self.paired]
        return max(MIN_BOOTSTRAP_VALUES, math.ceil(seeds))


def paired_estimate(first: Array, second: Array) -> Estimate:
    """Return the difference of values in pairs, at least one."""
    differences = second - first
    summary = Summary.of(differences)
    interval = bootstrap_mean(differences)
    effect = None
    if summary.deviation and not _is_exact(interval):
        effect = summary.mean / summary.deviation
    return Estimate(
        True,
        Summary.of(first),
        Summary.of(second),
        summary.mean,
        interval,
        effect,
        summary.deviation,
    )


def unpaired_estimate(first: Array, second: Array) -> Estimate:
    """Return the difference of two independent sets of values, at least one each."""
    summaries = Summary.of(first), Summary.of(second)
    difference = summaries[1].mean - summaries[0].mean
    interval = bootstrap_difference(first, second)
    effect = spread = None
    degrees = first.size + second.size - 2
    if degrees > 0:
        squares = sum((each.runs - 1) * (each.deviation or 0.0) ** 2 for each in summaries)
        pooled = math.sqrt(squares / degrees)
        # The deviation of a difference of one value of each set.
        spread = math.sqrt(sum((each.deviation or 0.0) ** 2 for each in summaries))
        if pooled and not _is_exact(interval):
            # Hedges' approximation of the correction, J = 1 - 3 / (4 degrees - 1).
            effect = difference / pooled * (1 - 3 / (4 * degrees - 1))
    return Estimate(False, *summaries, difference, interval, effect, spread)


def _is_exact(interval: Interval | None) -> bool:
    return interval is not None and interval.low == interval.high
