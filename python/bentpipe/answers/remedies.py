"""Remedies: settings that an answer suggests, since runs with them were better and not worse."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from bentpipe.answers.catalog import options_of
from bentpipe.answers.runs import WORTH_PERCENT, Estimate, Measurements

if TYPE_CHECKING:
    from bentpipe.answers.question import Assumption, LinkQuestion


class Goal(NamedTuple):
    """What a figure of an answer should be: little, or much, and no more, or less, than a limit."""

    figure: str
    limit: float | None = None
    more_is_better: bool = False

    def holds(self, measured: Measurements) -> bool:
        """Return whether the mean keeps to the limit, as it does without one."""
        mean = measured.mean(self.figure)
        if self.limit is None:
            return True
        return mean >= self.limit if self.more_is_better else mean <= self.limit

    def is_met(self, measured: Measurements, comparisons: int = 1) -> bool | None:
        """Return whether the mean keeps to the limit; None if its interval has the limit inside.

        The interval is one of ``comparisons`` that hold together.
        """
        mean = measured.of(self.figure, comparisons)
        if self.limit is None or mean.low < self.limit < mean.high:
            return None
        return self.holds(measured)

    def gain(self, before: Measurements, after: Measurements) -> Estimate:
        """Return what a change gains, by pairs of equal seeds, in percent of the limit.

        Without a limit it is in percent of the mean before, or after if that is 0. A time that was
        longer than a run, and is no longer, is a gain of 100 %, and the reverse a loss.
        """
        runs = before.by_run(self.figure), after.by_run(self.figure)
        finite = [values[np.isfinite(values)] for values in runs]
        means = [abs(float(values.mean())) if values.size else 0.0 for values in finite]
        scale = next((mean for mean in (abs(self.limit or 0), *means) if mean), 1.0)
        sign = 1 if self.more_is_better else -1
        both = np.isinf(runs[0]) & np.isinf(runs[1])
        changes = np.subtract(runs[1], runs[0], where=~both, out=np.zeros(len(both)))
        gains = np.nan_to_num(sign * changes / scale, nan=math.nan, posinf=1.0, neginf=-1.0)
        return Measurements(gain=100 * gains).of("gain")


def all_met(goals: Sequence[Goal], measured: Measurements, comparisons: int = 1) -> bool | None:
    """Return whether all goals are met; None if one is not decided, and no other one is missed."""
    met = [goal.is_met(measured, comparisons) for goal in goals]
    return False if False in met else None if None in met else True


def is_better(goals: Sequence[Goal], before: Measurements, after: Measurements) -> bool:
    """Return whether a change gains for a goal, beyond chance, and makes none worse.

    Gains and losses are of `WORTH_PERCENT` or more, and a limit that was met has to be met. A
    change whose figures are not all known is not better.
    """
    gains = [goal.gain(before, after) for goal in goals]
    if any(goal.is_met(before) and not goal.is_met(after) for goal in goals):
        return False
    if any(math.isnan(gain.mean) or gain.mean <= -WORTH_PERCENT for gain in gains):
        return False
    return any(gain.mean >= WORTH_PERCENT and gain.low > 0 for gain in gains)


def better_commands(
    question: LinkQuestion, before: Measurements, changed: Mapping[Assumption, Measurements]
) -> Iterator[str]:
    """Yield the commands that ask a question again with each remedy that is better."""
    for assumption, after in changed.items():
        if assumption.is_remedy and is_better(question.goals, before, after):
            yield command_with(question, assumption.settings)


def command_with(question: LinkQuestion, settings: Sequence[str]) -> str:
    """Return the command that asks a question again with further settings."""
    options = (f"{flag} {shlex.quote(value)}" for flag, value in options_of(question))
    return question.ask_command(question.name, *options, settings=settings)
