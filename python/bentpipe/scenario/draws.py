"""Sizes, times and counts that are fixed, or drawn from a distribution for each exchange."""

from __future__ import annotations

from typing import Annotated, Generic, TypeVar

from pydantic import Field

from bentpipe.scenario.record import (
    ByForm,
    Count,
    Draw,
    Duration,
    PositiveDuration,
    PositiveSize,
    Record,
)

T = TypeVar("T")


class _Pareto(Record, Generic[T]):
    min: T
    """The minimum."""
    shape: Annotated[float, Field(ge=0.01, le=100, allow_inf_nan=False)]
    """The shape parameter: without the upper bound, P(X > x) = ``(min / x) ** shape``."""
    max: T
    """The maximum."""


class _Lognormal(Record, Generic[T]):
    median: T
    """The median."""
    sigma: Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)]
    """The standard deviation of the natural logarithm."""
    max: T
    """The maximum; a larger draw becomes this value."""


class ParetoSize(_Pareto[PositiveSize]):
    """Sizes with a heavy tail, from ``min`` to ``max`` (bounded Pareto distribution)."""


class ParetoTime(_Pareto[PositiveDuration]):
    """Times with a heavy tail, from ``min`` to ``max`` (bounded Pareto distribution)."""


class ParetoCount(_Pareto[Count]):
    """Counts with a heavy tail, from ``min`` to ``max`` (bounded Pareto distribution)."""


class LognormalSize(_Lognormal[PositiveSize]):
    """Sizes whose logarithm is normal, up to ``max``."""


class LognormalTime(_Lognormal[PositiveDuration]):
    """Times whose logarithm is normal, up to ``max``."""


class LognormalCount(_Lognormal[Count]):
    """Counts whose logarithm is normal, up to ``max``."""


class SizeDraw(Draw[PositiveSize, ParetoSize, LognormalSize]):
    """A size that is drawn for each exchange."""


class TimeDraw(Draw[PositiveDuration, ParetoTime, LognormalTime]):
    """A time that is drawn for each exchange."""


class CountDraw(Draw[Count, ParetoCount, LognormalCount]):
    """A count that is drawn for each page, rounded to an integer."""


SizeOrDraw = Annotated[PositiveSize | SizeDraw, ByForm()]
TimeOrDraw = Annotated[Duration | TimeDraw, ByForm()]
CountOrDraw = Annotated[Annotated[int, Field(ge=0)] | CountDraw, ByForm()]
