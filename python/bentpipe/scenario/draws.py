"""Sizes, times and counts that are fixed, or drawn from a distribution for each exchange."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import ConfigDict, Discriminator, Field, Tag, model_validator

from bentpipe.scenario.record import (
    Count,
    Duration,
    PositiveDuration,
    PositiveSize,
    Record,
    refusal,
)

_Shape = Annotated[float, Field(ge=0.01, le=100, allow_inf_nan=False)]
_Sigma = Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)]


class Draw(Record):
    """A distribution that values are drawn from; exactly one of its fields is written."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1, "maxProperties": 1})

    @model_validator(mode="after")
    def _check_distribution(self) -> Self:
        written = self._written()
        if len(written) != 1:
            found = " and ".join(written) or "no distribution"
            names = ", ".join(type(self).model_fields)
            raise refusal(f"read {found}; expected exactly one of: {names}")
        return self

    @property
    def distribution(self) -> tuple[str, Any]:
        """The name of the distribution, and its mean or its parameters."""
        ((name, parameters),) = self._written().items()
        return name, parameters

    def _written(self) -> dict[str, Any]:
        names = type(self).model_fields
        return {name: value for name in names if (value := getattr(self, name)) is not None}


class ParetoSize(Record):
    """Sizes with a heavy tail, from ``min`` to ``max`` (bounded Pareto distribution)."""

    min: PositiveSize
    """The minimum."""
    shape: _Shape
    """The shape parameter: without the upper bound, P(X > x) = ``(min / x) ** shape``."""
    max: PositiveSize
    """The maximum."""


class LognormalSize(Record):
    """Sizes whose logarithm is normal, up to ``max``."""

    median: PositiveSize
    """The median."""
    sigma: _Sigma
    """The standard deviation of the natural logarithm."""
    max: PositiveSize
    """The maximum; a larger draw becomes this value."""


class SizeDraw(Draw):
    """A size that is drawn for each exchange."""

    exponential: PositiveSize | None = None
    """An exponential distribution with this mean."""
    pareto: ParetoSize | None = None
    """A bounded Pareto distribution."""
    lognormal: LognormalSize | None = None
    """A log-normal distribution with an upper bound."""


class ParetoTime(Record):
    """Times with a heavy tail, from ``min`` to ``max`` (bounded Pareto distribution)."""

    min: PositiveDuration
    """The minimum."""
    shape: _Shape
    """The shape parameter: without the upper bound, P(X > x) = ``(min / x) ** shape``."""
    max: PositiveDuration
    """The maximum."""


class LognormalTime(Record):
    """Times whose logarithm is normal, up to ``max``."""

    median: PositiveDuration
    """The median."""
    sigma: _Sigma
    """The standard deviation of the natural logarithm."""
    max: PositiveDuration
    """The maximum; a longer draw becomes this value."""


class TimeDraw(Draw):
    """A time that is drawn for each exchange."""

    exponential: PositiveDuration | None = None
    """An exponential distribution with this mean."""
    pareto: ParetoTime | None = None
    """A bounded Pareto distribution."""
    lognormal: LognormalTime | None = None
    """A log-normal distribution with an upper bound."""


class ParetoCount(Record):
    """Counts with a heavy tail, from ``min`` to ``max`` (bounded Pareto distribution)."""

    min: Count
    """The minimum."""
    shape: Annotated[float, Field(ge=0.01, le=100, allow_inf_nan=False)]
    """The shape parameter: without the upper bound, P(X > x) = ``(min / x) ** shape``."""
    max: Count
    """The maximum."""


class LognormalCount(Record):
    """Counts whose logarithm is normal, up to ``max``."""

    median: Count
    """The median."""
    sigma: Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)]
    """The standard deviation of the natural logarithm."""
    max: Count
    """The maximum; a larger draw becomes this value."""


class CountDraw(Draw):
    """A count that is drawn for each page, rounded to an integer."""

    exponential: Count | None = None
    """An exponential distribution with this mean."""
    pareto: ParetoCount | None = None
    """A bounded Pareto distribution."""
    lognormal: LognormalCount | None = None
    """A log-normal distribution with an upper bound."""


def _fixed_or_drawn(value: object) -> str:
    return "drawn" if isinstance(value, Mapping | Record) else "fixed"


SizeOrDraw = Annotated[
    Annotated[PositiveSize, Tag("fixed")] | Annotated[SizeDraw, Tag("drawn")],
    Discriminator(_fixed_or_drawn),
]
TimeOrDraw = Annotated[
    Annotated[Duration, Tag("fixed")] | Annotated[TimeDraw, Tag("drawn")],
    Discriminator(_fixed_or_drawn),
]
CountOrDraw = Annotated[
    Annotated[int, Field(ge=0), Tag("fixed")] | Annotated[CountDraw, Tag("drawn")],
    Discriminator(_fixed_or_drawn),
]
