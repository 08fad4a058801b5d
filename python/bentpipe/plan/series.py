"""The rate, delay and errors of a link, which can vary with time, resolved into the plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle
from typing import Any, Final, TypeVar

from bentpipe.plan.errors import PlanningError
from bentpipe.plan.lower import Part, lower, part
from bentpipe.plan.series_files import (
    SeriesError,
    delay_steps,
    delivery_steps,
    error_steps,
    rate_steps,
)
from bentpipe.scenario.document import FieldPath
from bentpipe.scenario.link import (
    DelayStep,
    DeliveryTrace,
    Direction,
    GilbertElliott,
    Outage,
    OutageAt,
    RateStep,
    RepeatingDelays,
    RepeatingRates,
    TimeSeries,
)
from bentpipe.scenario.percent import share_of
from bentpipe.units import format_duration, value_of

# Each change takes two random draws; together some ten seconds.
_MAX_STATE_CHANGES: Final = 10**8

# A trace counts milliseconds.
_SHORTEST_BIN_NS: Final = 10**6

# Of all directions: each terminal's return has its own steps. So many make a plan of some 25 MB.
PLAN_STEPS_MAX: Final = 1_000_000

T = TypeVar("T")


@dataclass(frozen=True)
class Profile:
    """A value over time in the plan, and its largest value."""

    plan: dict[str, Any]
    highest: int


def rate_plan(direction: Direction, path: FieldPath, stop_ns: int) -> Profile:
    """Return the rate of a direction, 0 during outages.

    A delivery trace is repeated until the end of the run.

    Raises:
        PlanningError: it is missing, zero throughout, or its file is wrong.
    """
    profile = _uninterrupted(direction, (*path, "rate"), stop_ns)
    found = outages(direction.outage, (*path, "outage"), stop_ns)
    if not found:
        return profile
    plan = profile.plan
    steps = [[0, plan["value"]]] if plan["kind"] == "constant" else plan["steps"]
    return _profile(interrupted_steps([(at_ns, value) for at_ns, value in steps], found))


def _uninterrupted(direction: Direction, path: FieldPath, stop_ns: int) -> Profile:
    rate = direction.rate
    if rate is None:
        raise PlanningError(
            path, 'missing; write one ("16 Mbit/s") or name a preset in link.preset'
        )
    if isinstance(rate, str):
        return _constant(value_of(rate))
    if isinstance(rate, DeliveryTrace):
        bin_ns = value_of(rate.bin)
        if bin_ns < _SHORTEST_BIN_NS:
            raise PlanningError((*path, "bin"), f'read "{rate.bin}"; must be at least 1 ms')
        trace = rate.trace
        profile = _profile(
            _read(lambda: delivery_steps(trace, bin_ns, stop_ns), path, "trace"),
        )
    elif isinstance(rate, RepeatingRates):
        profile = _profile(repeated_steps(rate, path, stop_ns))
    elif isinstance(rate, TimeSeries):
        series = rate
        profile = _profile(_read(lambda: rate_steps(series.csv, series.column), path, "csv"))
    else:
        profile = _written(rate)
    if profile.highest == 0:
        raise PlanningError(path, "is 0 bit/s in every step; no packet could be sent")
    return profile


def delay_plan(direction: Direction, path: FieldPath, stop_ns: int) -> Profile:
    """Return the delay of a direction.

    Raises:
        PlanningError: it is missing, or its file is wrong.
    """
    delay, path = direction.delay, (*path, "delay")
    if delay is None:
        raise PlanningError(path, 'missing; write one ("275 ms") or name a preset in link.preset')
    if isinstance(delay, str):
        return _constant(value_of(delay))
    if isinstance(delay, RepeatingDelays):
        return _profile(repeated_steps(delay, path, stop_ns))
    if isinstance(delay, TimeSeries):
        series = delay
        return _profile(_read(lambda: delay_steps(series.csv, series.column), path, "csv"))
    return _written(delay)


def channel_plan(written: Direction, base: Direction, path: FieldPath, stop_ns: int) -> Part:
    """Return the channel of a direction, from ``bit_error_rate`` and ``loss``, or ``errors``.

    Raises:
        PlanningError: both are written, the file is wrong, or the state changes too often.
    """
    errors = written.errors
    if errors is not None and written.bit_error_rate is not None:
        raise PlanningError((*path, "errors"), "excludes bit_error_rate; write one of them")
    if errors is not None and written.loss is not None:
        raise PlanningError((*path, "errors"), "excludes loss; write one of them")
    if errors is None and written.bit_error_rate is None and written.loss is None:
        errors = base.errors
    path = (*path, "errors")
    if isinstance(errors, GilbertElliott):
        return _gilbert_elliott(errors, path, stop_ns)
    if isinstance(errors, TimeSeries):
        series = errors
        steps, field = _read(lambda: error_steps(series.csv, series.column), path, "csv")
        return _error_series([_error_step(*step, field) for step in steps], path)
    rate = base.bit_error_rate if written.bit_error_rate is None else written.bit_error_rate
    loss = base.loss if written.loss is None else written.loss
    if loss is None or share_of(loss) == 0:
        return bit_errors(rate, path[:-1])
    step = {"at_ns": 0, "bit_error_rate": rate or 0.0, "loss_rate": share_of(loss)}
    return _error_series([step], (*path[:-1], "loss"))


def bit_errors(rate: float | None, path: FieldPath) -> Part:
    """Return the channel of a constant bit error rate, which is a field of ``path``."""
    path = (*path, "bit_error_rate")
    return part(path, {"kind": "bit_errors", "bit_error_rate": rate} if rate else {"kind": "clear"})


def _error_series(steps: list[dict[str, Any]], path: FieldPath) -> Part:
    return part(path, {"kind": "error_series", "steps": steps})


def _gilbert_elliott(errors: GilbertElliott, path: FieldPath, stop_ns: int) -> Part:
    good, bad = (lower(getattr(errors, state), (*path, state)) for state in ("good", "bad"))
    cycle_ns = good["mean_duration_ns"] + bad["mean_duration_ns"]
    if 2 * stop_ns > _MAX_STATE_CHANGES * cycle_ns:
        raise PlanningError(
            path,
            f"changes its state more than {_MAX_STATE_CHANGES} times in the run; write longer "
            "mean durations",
        )
    return part(path, {"kind": errors.model, "good": good, "bad": bad})


def refuse_many_steps(direction: Part, copies: int, path: FieldPath) -> None:
    """Check that the steps of ``copies`` equal directions fit into a plan.

    Raises:
        PlanningError: there are too many.
    """
    rate, delay, channel = direction["rate_bps"], direction["delay_ns"], direction["channel"]
    steps = sum(len(each["steps"]) for each in (rate, delay) if each["kind"] == "steps")
    if channel["kind"] == "error_series":
        steps += len(channel["steps"])
    steps *= copies
    if steps > PLAN_STEPS_MAX:
        raise PlanningError(
            path,
            f"has {steps} steps of rate, delay and errors in all terminals; at most "
            f"{PLAN_STEPS_MAX} are allowed",
        )


def _error_step(at_ns: int, value: float, field: str) -> dict[str, Any]:
    """Return one step of a series whose values are of one ``field``."""
    if field == "bit_error_rate":
        return {"at_ns": at_ns, "bit_error_rate": value, "loss_rate": 0.0}
    return {"at_ns": at_ns, "bit_error_rate": 0.0, "loss_rate": value}


def _constant(value: int) -> Profile:
    return Profile({"kind": "constant", "value": value}, value)


def _written(steps: tuple[RateStep, ...] | tuple[DelayStep, ...]) -> Profile:
    return _profile([(value_of(step.at), value_of(step.value)) for step in steps])


def _profile(steps: list[tuple[int, int]]) -> Profile:
    listed = [list(step) for step in steps]
    return Profile({"kind": "steps", "steps": listed}, max(value for _, value in steps))


def _read(steps: Callable[[], T], path: FieldPath, field: str) -> T:
    try:
        return steps()
    except SeriesError as error:
        raise PlanningError((*path, error.field or field), error.message) from None


# --- outages and repeating steps ----------------------------------------------------------------


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
