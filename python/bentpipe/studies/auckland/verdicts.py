"""How a claim is decided: changes between curves, a rule, and three verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Literal

import numpy as np

from bentpipe.studies.auckland.cells import LinkPath
from bentpipe.studies.base.comparison import Samples


class Verdict(StrEnum):
    """What the runs say about a claim."""

    HOLDS = "holds"
    DOES_NOT_HOLD = "does not hold"
    NOT_DECIDED = "not decided"


Unit = Literal["%", "Mbit/s", "times"]
# The value of a figure by seed.
Curve = Mapping[int, float]


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A bound that the effect must keep; the 95 % interval of the effect decides.

    The claim holds if the whole interval is on the claimed side of the bound, does not hold if the
    whole interval is on the other side, and is not decided otherwise. ``effect`` says what is
    measured, ``reason`` why the bound has this value. ``about_to`` is
    the largest value that a claim with "about" still means; it does not decide.
    """

    bound: Literal["below", "at_least"]
    value: float
    unit: Unit = "%"
    effect: str
    reason: str
    about_to: float | None = None

    def verdict(self, effect: Samples) -> Verdict:
        """Return the verdict on one effect; without an interval it is not decided."""
        interval = effect.interval
        if interval is None:
            return Verdict.NOT_DECIDED
        if interval.high < self.value:
            return Verdict.HOLDS if self.bound == "below" else Verdict.DOES_NOT_HOLD
        if interval.low >= self.value:
            return Verdict.DOES_NOT_HOLD if self.bound == "below" else Verdict.HOLDS
        return Verdict.NOT_DECIDED

    def is_about(self, effect: Samples) -> bool | None:
        """Return whether the whole interval is from the bound to ``about_to``, None without it."""
        interval = effect.interval
        if self.about_to is None or interval is None:
            return None
        return interval.low >= self.value and interval.high <= self.about_to

    def to_json(self) -> dict[str, Any]:
        """Return the rule as plain data."""
        return {
            "effect_measured": self.effect,
            "effect_unit": self.unit,
            "bound": self.bound,
            "bound_value": self.value,
            "bound_reason": self.reason,
            "about_to": self.about_to,
        }


@dataclass(frozen=True)
class Effect:
    """An effect, one value a seed, of the cells ``of`` over numbers of ``channels``.

    ``path`` is the curve that it is of, None for all of them. An effect that does not decide
    is reported only.
    """

    of: str
    values: Samples
    channels: tuple[int, ...]
    path: LinkPath | None = None
    decides: bool = True

    def to_json(self, rule: Rule) -> dict[str, Any]:
        """Return the effect as plain data, with the verdict if it decided alone."""
        return {
            "of": self.of,
            "path": None if self.path is None else self.path.value,
            "decides": self.decides,
            "verdict": rule.verdict(self.values).value,
            "about": rule.is_about(self.values),
            "channels": list(self.channels),
            **self.values.to_json("effect"),
        }


@dataclass(frozen=True)
class Decision:
    """A verdict with its effects: all that decide must keep the bound for the claim to hold."""

    rule: Rule
    effects: tuple[Effect, ...]

    @property
    def deciding(self) -> tuple[Effect, ...]:
        """The effects that decide."""
        return tuple(each for each in self.effects if each.decides)

    @property
    def verdict(self) -> Verdict:
        """The verdict: one effect that breaks the bound is enough for a claim not to hold."""
        found = {self.rule.verdict(each.values) for each in self.deciding}
        for verdict in (Verdict.DOES_NOT_HOLD, Verdict.NOT_DECIDED):
            if verdict in found:
                return verdict
        return Verdict.HOLDS if found else Verdict.NOT_DECIDED

    @property
    def decisive(self) -> Effect:
        """The effect that is farthest on the wrong side of the bound; without one, no effect."""
        sign = 1 if self.rule.bound == "below" else -1
        none = Effect("no such cells", Samples(), ())
        return max(self.deciding, key=lambda each: sign * (each.values.mean or 0.0), default=none)

    def by_path(self) -> dict[LinkPath, Decision]:
        """Return the decisions as if one path alone decided, of effects that are of one path."""
        found: dict[LinkPath, list[Effect]] = {}
        for each in self.effects:
            if each.path is not None:
                found.setdefault(each.path, []).append(replace(each, decides=True))
        return {path: Decision(self.rule, tuple(effects)) for path, effects in found.items()}

    def to_json(self) -> dict[str, Any]:
        """Return verdict, deciding effect and seeds as plain data."""
        effect = self.decisive
        return {
            "verdict": self.verdict.value,
            "seeds": len(effect.values.values),
            "effect_of": effect.of,
            **effect.values.to_json("effect"),
        }

    def with_paths(self, **more: Any) -> dict[str, Any]:
        """Return the same with more, and what each path alone decides."""
        paths = {path.value: each.to_json() for path, each in self.by_path().items()}
        return {**self.to_json(), **more, "paths": paths}


def area(channels: Sequence[int], values: Sequence[Sequence[float]]) -> list[float]:
    """Return the mean over the numbers of channels, for each seed: the area under a curve.

    ``values`` has the values over seeds of each number of channels. The area is that of trapezoids,
    over the range of channels; with one number it is the value itself.
    """
    if len(channels) == 1:
        return list(values[0])
    areas = np.asarray(np.trapezoid(values, channels, axis=0))
    return [float(each) for each in areas / (channels[-1] - channels[0])]


def gain_percent(before: Curve, after: Curve) -> Samples:
    """Return the change in percent of the mean before, by pairs of equal seeds, as `ratio`."""
    return Samples.of((100 * (each - 1) for each in ratio(before, after).values), exact=False)


def difference(before: Curve, after: Curve) -> Samples:
    """Return the change by pairs of equal seeds."""
    seeds, _ = _pairs(before, after)
    return Samples.of((after[seed] - before[seed] for seed in seeds), exact=False)


def share_percent(largest: Curve, after: Curve) -> Samples:
    """Return values in percent of the largest ones."""
    return Samples.of((100 * each / largest[seed] for seed, each in after.items()), exact=False)


def ratio(before: Curve, after: Curve) -> Samples:
    """Return how many times the mean before the mean after is, by pairs of equal seeds.

    The values vary as the ratio of the means does in the first order (delta method), so their
    interval is that of the ratio.
    """
    seeds, mean = _pairs(before, after)
    if mean == 0:
        return Samples()
    times = sum(after[seed] for seed in seeds) / len(seeds) / mean
    values = (times + (after[seed] - times * before[seed]) / mean for seed in seeds)
    return Samples.of(values, exact=False)


def _pairs(before: Curve, after: Curve) -> tuple[list[int], float]:
    """Return the seeds that both curves have, and the mean before."""
    seeds = [seed for seed in before if seed in after]
    return seeds, sum(before[seed] for seed in seeds) / len(seeds) if seeds else 0.0
