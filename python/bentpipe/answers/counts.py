"""The largest number of users or calls that meets goals, and the range that other seeds may give.

It is searched among counts, the figures of which are known with the intervals of few seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from bentpipe.answers.remedies import Goal, all_met
from bentpipe.answers.runs import Measurements
from bentpipe.errors import RunsInterrupted
from bentpipe.simulation.limits import Bracket


@dataclass(frozen=True)
class Fitting:
    """The largest count whose mean figures meet goals, 0 if none does.

    ``low`` is the largest count that is shown to meet them, since the limit is outside of the
    intervals; the next one above ``high`` that was run is shown not to, if there is one. ``at`` are
    the figures of the count and ``above`` those of one more, none if it was not run.
    """

    count: int
    low: int
    high: int
    at: Measurements
    above: Measurements

    @classmethod
    def of(
        cls,
        measurements: Mapping[int, Measurements],
        goals: Sequence[Goal],
        *,
        limit: int | None = None,
    ) -> Fitting:
        """Return what the counts that were run show.

        ``limit`` is the largest count there can be, for a search that was interrupted: it may have
        run none of the counts that miss the goals.
        """
        passing = (
            n for n, measured in measurements.items() if all(goal.holds(measured) for goal in goals)
        )
        count = max(passing, default=0)
        met = {n: all_met(goals, measured) for n, measured in measurements.items()}
        most = max(measurements, default=0) if limit is None else limit
        return cls(
            count,
            low=max((n for n in met if n <= count and met[n]), default=0),
            high=min((n - 1 for n in met if n > count and met[n] is False), default=most),
            at=measurements.get(count, Measurements()),
            above=measurements.get(count + 1, Measurements()),
        )

    @property
    def range(self) -> list[int]:
        """The counts that may be the largest with other seeds: the first and the last."""
        return [self.low, self.high]

    @property
    def text(self) -> str:
        """The range for a person, `` (16 to 23)``; nothing if there is one count in it."""
        return "" if self.low == self.high else f" ({self.low:,} to {self.high:,})"


def search(
    run: Callable[[int], Measurements],
    goals: Sequence[Goal],
    *,
    guess: int,
    limit: int,
    tolerance: float = 0.0,
) -> dict[int, Measurements]:
    """Run counts until the largest that meets goals is found as by `largest`, in order.

    Counts at the ends are shown to meet them and not to, unless they are 1 and ``limit``. After
    Ctrl-C it returns the counts that were run by then.

    Raises:
        RunsInterrupted: Ctrl-C before the first count was run.
    """
    measurements: dict[int, Measurements] = {}

    def passes(count: int) -> bool:
        measurements[count] = run(count)
        return all(goal.holds(measurements[count]) for goal in goals)

    def met(count: int) -> bool | None:
        return all_met(goals, measurements[count])

    try:
        largest(passes, guess=guess, limit=limit, tolerance=tolerance)
        while (least := min(measurements)) > 1 and not met(least):
            passes(3 * least // 4)
        while (most := max(measurements)) < limit and met(most) is not False:
            passes(min(4 * most // 3 + 1, limit))
    except RunsInterrupted:
        if not measurements:
            raise
    return dict(sorted(measurements.items()))


def largest(
    passes: Callable[[int], bool], *, guess: int, limit: int, tolerance: float = 0.0
) -> int:
    """Return the largest count from 1 to ``limit`` that passes, or 0 if 1 does not.

    It is exact if no count passes above one that fails. The search begins with ``guess`` and ends
    when it is no further from a count that fails than ``tolerance`` times the latter.
    """
    bracket = Bracket(min=1, max=limit, resolution=tolerance / (1 - tolerance))
    count: int | None = min(max(guess, 1), limit)
    while count is not None:
        bracket.record(count, passed=passes(count))
        count = bracket.next()
    return bracket.passes or 0
