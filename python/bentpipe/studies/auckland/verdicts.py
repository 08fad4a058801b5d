"""How a claim is decided: a rule that was written down before any result, and three verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

from bentpipe.studies.base.samples import Samples


class Verdict(StrEnum):
    """What the runs say about a claim."""

    HOLDS = "holds"
    DOES_NOT_HOLD = "does not hold"
    NOT_DECIDED = "not decided"


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A bound in percent that the effect must keep; the 95 % interval of the effect decides.

    The claim holds if the whole interval is on the claimed side of the bound, does not hold if the
    whole interval is on the other side, and is not decided otherwise. ``effect`` says what is
    measured, ``reason`` why the bound has this value.
    """

    bound: Literal["below", "at_least"]
    percent: float
    effect: str
    reason: str

    def verdict(self, effect: Samples) -> Verdict:
        """Return the verdict on one effect; without an interval it is not decided."""
        interval = effect.interval
        if interval is None:
            return Verdict.NOT_DECIDED
        if interval.high < self.percent:
            return Verdict.HOLDS if self.bound == "below" else Verdict.DOES_NOT_HOLD
        if interval.low >= self.percent:
            return Verdict.DOES_NOT_HOLD if self.bound == "below" else Verdict.HOLDS
        return Verdict.NOT_DECIDED

    def to_json(self) -> dict[str, Any]:
        """Return the rule as plain data."""
        return {
            "effect_measured": self.effect,
            "bound": self.bound,
            "bound_percent": self.percent,
            "bound_reason": self.reason,
        }


@dataclass(frozen=True)
class Effect:
    """An effect in percent, one value a seed, of the cells ``of`` over numbers of ``channels``."""

    of: str
    percent: Samples
    channels: tuple[int, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the effect as plain data."""
        return {
            "of": self.of,
            "channels": list(self.channels),
            **self.percent.to_json("effect_percent"),
        }


@dataclass(frozen=True)
class Decision:
    """A verdict with its effects: all of them must keep the bound for the claim to hold."""

    rule: Rule
    effects: tuple[Effect, ...]

    @property
    def verdict(self) -> Verdict:
        """The verdict: one effect that breaks the bound is enough for a claim not to hold."""
        found = {self.rule.verdict(each.percent) for each in self.effects}
        for verdict in (Verdict.DOES_NOT_HOLD, Verdict.NOT_DECIDED):
            if verdict in found:
                return verdict
        return Verdict.HOLDS

    @property
    def decisive(self) -> Effect:
        """The effect that is farthest on the wrong side of the bound."""
        sign = 1 if self.rule.bound == "below" else -1
        return max(self.effects, key=lambda each: sign * (each.percent.mean or 0.0))

    def to_json(self) -> dict[str, Any]:
        """Return verdict, deciding effect and seeds as plain data."""
        percent = self.decisive.percent
        return {
            "verdict": self.verdict.value,
            "seeds": len(percent.values),
            **percent.to_json("effect_percent"),
        }


def area(channels: Sequence[int], values: Sequence[Sequence[float]]) -> list[float]:
    """Return the mean over the numbers of channels, for each seed: the area under a curve.

    ``values`` has the values over seeds of each number of channels. The area is that of trapezoids,
    over the range of channels; with one number it is the value itself.
    """
    runs = min(map(len, values))
    if len(channels) == 1:
        return list(values[0])
    span = channels[-1] - channels[0]
    found = []
    for seed in range(runs):
        pairs = zip(channels, channels[1:], values, values[1:], strict=False)
        parts = ((b - a) * (low[seed] + high[seed]) / 2 for a, b, low, high in pairs)
        found.append(sum(parts) / span)
    return found
