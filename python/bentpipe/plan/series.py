"""The rate, delay and errors of a link, which can vary with time, resolved into the plan."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence
from itertools import cycle
from typing import Any, Final

from bentpipe.plan.lower import Part, PlanningError, lower, wrong
from bentpipe.plan.presets import series_values
from bentpipe.plan.series_files import (
    DURATION,
    RATE,
    ColumnKind,
    delivery_steps,
    error_steps,
    file_errors,
    value_steps,
)
from bentpipe.scenario.document import FieldPath
from bentpipe.scenario.link import (
    DelayOrSteps,
    DeliveryTrace,
    Direction,
    GilbertElliott,
    Outage,
    OutageAt,
    RateOrSteps,
    RepeatingDelays,
    RepeatingRates,
    TimeSeries,
)
from bentpipe.scenario.record import share_of
from bentpipe.units import format_duration, value_of

# Each change takes two random draws; together some ten seconds.
_MAX_STATE_CHANGES: Final = 10**8

# A trace counts milliseconds.
_SHORTEST_BIN_NS: Final = 10**6

# Of all directions: each terminal's return has its own steps. So many make a plan of some 25 MB.
PLAN_STEPS_MAX: Final = 1_000_000

# The fields that exclude ``errors``.
_CONSTANT_ERRORS: Final = ("bit_error_rate", "loss")


Series = dict[str, Any]
"""A value over time in the plan: constant, or in steps."""


def rate_plan(direction: Direction, path: FieldPath, stop_ns: int) -> Series:
    """Return the rate of a direction, 0 during outages.

    A delivery trace is repeated until the end of the run.

    Raises:
        PlanningError: it is missing, zero throughout, or its file is wrong.
    """
    plan = _series(direction.rate, RATE, (*path, "rate"), stop_ns)
    if max(series_values(plan)) == 0:
        raise PlanningError((*path, "rate"), "is 0 bit/s in every step; no packet could be sent")
    found = outages(direction.outage, (*path, "outage"), stop_ns)
    if not found:
        return plan
    steps = [[0, plan["value"]]] if plan["kind"] == "constant" else plan["steps"]
    return _steps(interrupted_steps([(at_ns, value) for at_ns, value in steps], found))


def delay_plan(direction: Direction, path: FieldPath, stop_ns: int) -> Series:
    """Return the delay of a direction.

    Raises:
        PlanningError: it is missing, or its file is wrong.
    """
    return _series(direction.delay, DURATION, (*path, "delay"), stop_ns)


def _series(
    written: RateOrSteps | DelayOrSteps | None,
    kind: ColumnKind,
    path: FieldPath,
    stop_ns: int,
) -> Series:
    if written is None:
        example = "" if kind.kind is None else kind.kind.example
        message = f'missing; write one ("{example}") or name a preset in link.preset'
        raise PlanningError(path, message)
    if isinstance(written, str):
        return {"kind": "constant", "value": value_of(written)}
    if isinstance(written, DeliveryTrace):
        bin_ns = value_of(written.bin)
        if bin_ns < _SHORTEST_BIN_NS:
            raise wrong((*path, "bin"), written.bin, "must be at least 1 ms")
        with file_errors(path, "trace"):
            return _steps(delivery_steps(written.trace, bin_ns, stop_ns))
    if isinstance(written, TimeSeries):
        with file_errors(path, "csv"):
            return _steps(value_steps(written.csv, written.column, kind))
    if isinstance(written, RepeatingRates | RepeatingDelays):
        return _steps(_repeated(written, path, stop_ns))
    return _steps([(value_of(step.at), value_of(step.value)) for step in written])


def _steps(steps: Sequence[tuple[int, float]]) -> Series:
    return {"kind": "steps", "steps": [list(step) for step in steps]}


def channel_plan(written: Direction, base: Direction, path: FieldPath, stop_ns: int) -> Part:
    """Return the channel of a direction, from ``bit_error_rate`` and ``loss``, or ``errors``.

    Raises:
        PlanningError: both are written, the file is wrong, or the state changes too often.
    """
    errors = written.errors
    constant = [name for name in _CONSTANT_ERRORS if getattr(written, name) is not None]
    if errors is not None and constant:
        raise PlanningError((*path, "errors"), f"excludes {constant[0]}; write one of them")
    if errors is None and not constant:
        errors = base.errors
    if isinstance(errors, GilbertElliott):
        return _gilbert_elliott(errors, (*path, "errors"), stop_ns)
    if isinstance(errors, TimeSeries):
        with file_errors((*path, "errors"), "csv"):
            steps, field = error_steps(errors.csv, errors.column)
        return _error_series([{"at_ns": at, field: value} for at, value in steps], path, "errors")
    rate = base.bit_error_rate if written.bit_error_rate is None else written.bit_error_rate
    loss = base.loss if written.loss is None else written.loss
    if loss is None or share_of(loss) == 0:
        return bit_errors(rate, path)
    step = {"bit_error_rate": rate or 0.0, "loss_rate": share_of(loss)}
    return _error_series([step], path, "loss")


def bit_errors(rate: float | None, path: FieldPath) -> Part:
    """Return the channel of a constant bit error rate, which is a field of ``path``."""
    plan = {"kind": "bit_errors", "bit_error_rate": rate} if rate else {"kind": "clear"}
    return Part(plan, (*path, "bit_error_rate"))


def _error_series(steps: list[dict[str, Any]], path: FieldPath, field: str) -> Part:
    complete = [{"at_ns": 0, "bit_error_rate": 0.0, "loss_rate": 0.0} | step for step in steps]
    return Part({"kind": "error_series", "steps": complete}, (*path, field))


def _gilbert_elliott(errors: GilbertElliott, path: FieldPath, stop_ns: int) -> Part:
    good, bad = (lower(getattr(errors, state), (*path, state)) for state in ("good", "bad"))
    cycle_ns = good["mean_duration_ns"] + bad["mean_duration_ns"]
    if 2 * stop_ns > _MAX_STATE_CHANGES * cycle_ns:
        raise PlanningError(
            path,
            f"changes its state more than {_MAX_STATE_CHANGES} times in the run; write longer "
            "mean durations",
        )
    return Part({"kind": errors.model, "good": good, "bad": bad}, path)


def refuse_many_steps(direction: Part, copies: int, path: FieldPath) -> None:
    """Check that the steps of ``copies`` equal directions fit into a plan.

    Raises:
        PlanningError: there are too many.
    """
    series = (direction[name] for name in ("rate_bps", "delay_ns", "channel"))
    steps = copies * sum(len(each.get("steps", ())) for each in series)
    if steps > PLAN_STEPS_MAX:
        raise PlanningError(
            path,
            f"has {steps} steps of rate, delay and errors in all terminals; at most "
            f"{PLAN_STEPS_MAX} are allowed",
        )


# --- outages and repeating steps ----------------------------------------------------------------


def _repeated(
    series: RepeatingRates | RepeatingDelays, path: FieldPath, stop_ns: int
) -> list[tuple[int, int]]:
    every_ns = value_of(series.every)
    starts = range(0, stop_ns, every_ns)
    if len(starts) > PLAN_STEPS_MAX:
        message = f"makes {len(starts)} steps until the end of the run; at most {PLAN_STEPS_MAX}"
        raise wrong((*path, "every"), series.every, f"{message} are allowed")
    return list(zip(starts, cycle(map(value_of, series.values)), strict=False))


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
            end = f"the end of the outage before it, {format_duration(found[-1][1])}"
            raise wrong((*path, i, "at"), outage.at, f"must be after {end}")
        found.append((start_ns, start_ns + value_of(outage.for_)))
    return [outage for outage in found if outage[0] < stop_ns]


def _periodic(outage: Outage, path: FieldPath, stop_ns: int) -> list[tuple[int, int]]:
    every_ns, length_ns = value_of(outage.every), value_of(outage.for_)
    if length_ns >= every_ns:
        message = f'must be shorter than every, "{outage.every}"'
        raise wrong((*path, "for"), outage.for_, message)
    first_ns = every_ns if outage.first is None else value_of(outage.first)
    starts = range(first_ns, stop_ns, every_ns)
    if 2 * len(starts) > PLAN_STEPS_MAX:
        limit = f"at most {PLAN_STEPS_MAX // 2} are allowed"
        message = f"makes {len(starts)} outages until the end of the run; {limit}"
        raise wrong((*path, "every"), outage.every, message)
    return [(start_ns, start_ns + length_ns) for start_ns in starts]


def interrupted_steps(
    steps: list[tuple[int, int]], found: list[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Return the steps of a rate with 0 during outages; the rate continues after each."""
    times, changes = [at_ns for at_ns, _ in steps], dict(steps)
    for start_ns, end_ns in found:
        after = bisect(times, end_ns)
        for at_ns in times[bisect(times, start_ns) : after]:
            del changes[at_ns]
        changes[start_ns] = 0
        changes[end_ns] = steps[after - 1][1]
    return sorted(changes.items())
