"""Outages and repeating steps of a link, resolved into the steps of the plan."""

from __future__ import annotations

from itertools import cycle
from typing import Final

from bentpipe.plan.errors import PlanningError
from bentpipe.scenario.document import FieldPath
from bentpipe.scenario.link import (
    Outage,
    OutageAt,
    RepeatingDelays,
    RepeatingRates,
)
from bentpipe.units import format_duration, value_of

# Of all directions: each terminal's return has its own steps. So many make a plan of some 25 MB.
PLAN_STEPS_MAX: Final = 1_000_000


def repeated_steps(
    series: RepeatingRates | RepeatingDelays, path: FieldPath, stop_ns: int
) -> list[tuple[int, int]]:
    """Return the steps of values that repeat until the end of the run.

    Raises:
        PlanningError: there are too many.
    """
    every_ns = value_of(series.every)
    count = -(-stop_ns // every_ns)
    if count > PLAN_STEPS_MAX:
        raise PlanningError(
            (*path, "every"),
            f'read "{series.every}"; makes {count} steps until the end of the run; at most '
            f"{PLAN_STEPS_MAX} are allowed",
        )
    values = cycle(value_of(value) for value in series.values)
    return [(number * every_ns, next(values)) for number in range(count)]


def outages(
    written: Outage | tuple[OutageAt, ...] | None, path: FieldPath, stop_ns: int
) -> list[tuple[int, int]]:
    """Return the start and the end of each outage that starts before the end of the run, in ns.

    Raises:
        PlanningError: they overlap, or there are too many.
    """
    if written is None:
        return []
    if isinstance(written, Outage):
        return _periodic(written, path, stop_ns)
    found: list[tuple[int, int]] = []
    for i, outage in enumerate(written):
        start_ns = value_of(outage.at)
        if found and start_ns <= found[-1][1]:
            raise PlanningError(
                (*path, i, "at"),
                f'read "{outage.at}"; must be after the end of the outage before it, '
                f"{format_duration(found[-1][1])}",
            )
        found.append((start_ns, start_ns + value_of(outage.for_)))
    return [outage for outage in found if outage[0] < stop_ns]


def _periodic(outage: Outage, path: FieldPath, stop_ns: int) -> list[tuple[int, int]]:
    every_ns, length_ns = value_of(outage.every), value_of(outage.for_)
    if length_ns >= every_ns:
        raise PlanningError(
            (*path, "for"), f'read "{outage.for_}"; must be shorter than every, "{outage.every}"'
        )
    first_ns = every_ns if outage.first is None else value_of(outage.first)
    starts = range(first_ns, stop_ns, every_ns)
    if 2 * len(starts) > PLAN_STEPS_MAX:
        raise PlanningError(
            (*path, "every"),
            f'read "{outage.every}"; makes {len(starts)} outages until the end of the run; at '
            f"most {PLAN_STEPS_MAX // 2} are allowed",
        )
    return [(start_ns, start_ns + length_ns) for start_ns in starts]


def interrupted_steps(
    steps: list[tuple[int, int]], found: list[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Return the steps of a rate with 0 during outages; the rate continues after each."""
    changes: dict[int, int] = {}
    rest = iter([*steps, None])
    step = next(rest)
    rate = 0
    for start_ns, end_ns in found:
        while step is not None and step[0] <= start_ns:
            changes[step[0]] = rate = step[1]
            step = next(rest)
        changes[start_ns] = 0
        while step is not None and step[0] <= end_ns:
            rate = step[1]
            step = next(rest)
        changes[end_ns] = rate
    while step is not None:
        changes[step[0]] = step[1]
        step = next(rest)
    return sorted(changes.items())
