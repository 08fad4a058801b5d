"""Confidence intervals of means: quantiles of Student's t compared with published tables."""

from __future__ import annotations

import math
import statistics
from typing import Final

import pytest

from bentpipe.results.confidence import mean_half_width, t_quantile

# NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.2: critical values of Student's t.
PROBABILITIES: Final = (0.90, 0.95, 0.975, 0.99, 0.995, 0.999)
PUBLISHED: Final = {
    2: (1.886, 2.920, 4.303, 6.965, 9.925, 22.327),
    3: (1.638, 2.353, 3.182, 4.541, 5.841, 10.215),
    4: (1.533, 2.132, 2.776, 3.747, 4.604, 7.173),
    5: (1.476, 2.015, 2.571, 3.365, 4.032, 5.893),
    10: (1.372, 1.812, 2.228, 2.764, 3.169, 4.144),
    19: (1.328, 1.729, 2.093, 2.539, 2.861, 3.579),
    20: (1.325, 1.725, 2.086, 2.528, 2.845, 3.552),
    29: (1.311, 1.699, 2.045, 2.462, 2.756, 3.396),
    30: (1.310, 1.697, 2.042, 2.457, 2.750, 3.385),
    100: (1.290, 1.660, 1.984, 2.364, 2.626, 3.174),
}
# The table has three decimals, some of them rounded down.
TABLE_ERROR: Final = 0.0006


@pytest.mark.parametrize("degrees", PUBLISHED)
def test_quantiles_are_those_of_the_published_table(degrees: int) -> None:
    found = [t_quantile(probability, degrees) for probability in PROBABILITIES]
    assert found == pytest.approx(PUBLISHED[degrees], abs=TABLE_ERROR, rel=0)


@pytest.mark.parametrize("probability", [0.001, 0.025, 0.4, 0.5, 0.75, 0.975, 0.9995])
def test_quantiles_with_a_closed_form_are_exact(probability: float) -> None:
    """One degree of freedom is the Cauchy distribution; two have an algebraic quantile."""
    cauchy = math.tan(math.pi * (probability - 0.5))
    algebraic = (2 * probability - 1) / math.sqrt(2 * probability * (1 - probability))
    assert t_quantile(probability, 1) == pytest.approx(cauchy, rel=1e-11, abs=1e-14)
    assert t_quantile(probability, 2) == pytest.approx(algebraic, rel=1e-11, abs=1e-14)


def test_many_degrees_approach_the_normal_distribution() -> None:
    """Expect the first term of the expansion in 1 / degrees (Abramowitz and Stegun 26.7.5)."""
    normal = statistics.NormalDist().inv_cdf(0.975)
    for degrees in (1000, 1001):
        expanded = normal + (normal**3 + normal) / (4 * degrees)
        assert t_quantile(0.975, degrees) == pytest.approx(expanded, abs=5 / degrees**2)


def test_the_half_width_of_a_mean() -> None:
    """Given 1, 2 and 6 (standard deviation sqrt(7)), expect 4.303 sqrt(7 / 3)."""
    assert mean_half_width([1, 2, 6]) == pytest.approx(4.303 * math.sqrt(7 / 3), rel=1e-4)
    assert mean_half_width([3, 3]) == 0
    assert mean_half_width([3]) is None
    assert mean_half_width([]) is None


def test_the_half_width_of_one_of_many_comparisons() -> None:
    """Given ten comparisons, expect the quantile at 1 - 0.05 / 20: sqrt(2 p q) for 2 degrees."""
    p = 1 - 0.05 / 20
    quantile = (2 * p - 1) / math.sqrt(2 * p * (1 - p))
    assert mean_half_width([1, 2, 6], 10) == pytest.approx(quantile * math.sqrt(7 / 3), rel=1e-9)


@pytest.mark.parametrize(("probability", "degrees"), [(0.0, 3), (1.0, 3), (math.nan, 3), (0.5, 0)])
def test_a_quantile_that_does_not_exist_is_an_error(probability: float, degrees: int) -> None:
    with pytest.raises(ValueError, match="no quantile"):
        t_quantile(probability, degrees)
