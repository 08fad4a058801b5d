"""Distributions of sizes, times and counts resolved into the plan."""

from __future__ import annotations

from bentpipe.plan.errors import PlanningError
from bentpipe.plan.types import DrawPlan
from bentpipe.scenario.document import FieldPath
from bentpipe.scenario.draws import CountDraw, SizeDraw, TimeDraw
from bentpipe.text import shown
from bentpipe.units import value_of


def draw_plan(value: str | int | SizeDraw | TimeDraw | CountDraw, path: FieldPath) -> DrawPlan:
    """Return what a field of the scenario draws, or its constant value.

    Raises:
        PlanningError: the maximum is smaller than the minimum or the median.
    """
    if isinstance(value, str | int):
        return {"kind": "constant", "value": _number(value)}
    if value.exponential is not None:
        return {"kind": "exponential", "mean": _number(value.exponential)}
    if value.pareto is not None:
        pareto = value.pareto
        low, high = _number(pareto.min), _number(pareto.max)
        if high < low:
            message = f"read {shown(pareto.max)}; must be at least {shown(pareto.min)}, the minimum"
            raise PlanningError((*path, "pareto", "max"), message)
        return {"kind": "pareto", "min": low, "shape": pareto.shape, "max": high}
    lognormal = value.lognormal
    assert lognormal is not None, "a draw has exactly one distribution"
    median, high = _number(lognormal.median), _number(lognormal.max)
    if high < median:
        message = (
            f"read {shown(lognormal.max)}; must be at least {shown(lognormal.median)}, the median"
        )
        raise PlanningError((*path, "lognormal", "max"), message)
    return {"kind": "lognormal", "median": median, "sigma": lognormal.sigma, "max": high}


def _number(value: str | int) -> int:
    return value if isinstance(value, int) else value_of(value)
