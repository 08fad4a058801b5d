"""Confidence intervals of means, by Student's t distribution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

CONFIDENCE: Final = 0.95
# Each step halves the angle's range, pi; 60 steps reach the precision of a float.
_BISECTION_STEPS: Final = 60


def mean_half_width(values: Sequence[float]) -> float | None:
    """Return the half width of the 95 % confidence interval of the mean of independent values.

    None with less than two values, which have no spread.
    """
    count = len(values)
    if count < 2:  # noqa: PLR2004 - a standard deviation takes two
        return None
    quantile = t_quantile((1 + CONFIDENCE) / 2, count - 1)
    return quantile * float(np.std(values, ddof=1)) / math.sqrt(count)


def t_quantile(probability: float, degrees: int) -> float:
    """Return a quantile of Student's t distribution with an integer number of degrees of freedom.

    It inverts the distribution function by bisection of the angle atan(t / sqrt(degrees)).
    """
    if not 0 < probability < 1 or degrees < 1:
        raise ValueError(f"no quantile {probability} with {degrees} degrees of freedom")
    low, high = -math.pi / 2, math.pi / 2
    for _ in range(_BISECTION_STEPS):
        middle = (low + high) / 2
        if _t_distribution(middle, degrees) < probability:
            low = middle
        else:
            high = middle
    return math.sqrt(degrees) * math.tan((low + high) / 2)


def _t_distribution(angle: float, degrees: int) -> float:
    """Return the distribution function at t = sqrt(degrees) tan(angle).

    For integer degrees of freedom it is a finite sum: Abramowitz and Stegun, Handbook of
    Mathematical Functions, 26.7.3 (odd) and 26.7.4 (even).
    """
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = degrees % 2
    term = cosine if odd else 1.0
    total = 0.0
    for number in range(1 + odd, degrees, 2):
        total += term
        term *= cosine * cosine * number / (number + 1)
    central = 2 / math.pi * (angle + sine * total) if odd else sine * total
    return (1 + central) / 2
