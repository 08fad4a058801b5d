"""The rate, delay and errors of a link, which can vary with time, resolved into the plan.

Values over time can come from files: delivery traces of mahimahi, and CSV time series. Both become
steps (nanosecond, value) in the plan, so that a result does not depend on the file. Errors name the
file and the line, what was read and what is allowed.
"""

from __future__ import annotations

import re
from bisect import bisect
from collections.abc import Iterator, Sequence
from itertools import cycle
from typing import Any, Final

from bentpipe.plan.csv_file import (
    DURATION,
    LONGEST_NS,
    MAX_STEPS,
    RATE,
    ColumnKind,
    SourceFile,
    Steps,
    Table,
)
from bentpipe.plan.lower import Part, PlanningError, lower, wrong
from bentpipe.plan.presets import series_values
from bentpipe.scenario.document import FieldPath
from bentpipe.scenario.link import (
    DelayOrSteps,
    DeliveryTrace,
    Direction,
    GilbertElliott,
    LossBursts,
    Outage,
    OutageAt,
    RateOrSteps,
    RepeatingDelays,
    RepeatingRates,
    ScaledSeries,
    TimeSeries,
)
from bentpipe.scenario.record import share_of
from bentpipe.units import NS_PER_MS, NS_PER_S, format_duration, value_of

# Each change takes two random draws; together some ten seconds.
_MAX_STATE_CHANGES: Final = 10**8
# Of all directions: each terminal's return has its own steps. So many make a plan of some 25 MB.
PLAN_STEPS_MAX: Final = 1_000_000
# mm-link(1): each line is an opportunity to deliver 1500 bytes, at a time in milliseconds.
_DELIVERY_BITS: Final = 8 * 1_500
_TIMESTAMP: Final = re.compile(r"\d{1,20}", re.ASCII)

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
    intervals = outages(direction.outage, (*path, "outage"), stop_ns)
    if not intervals:
        return plan
    steps = [[0, plan["value"]]] if plan["kind"] == "constant" else plan["steps"]
    return _steps(interrupted_steps([(at_ns, value) for at_ns, value in steps], intervals))


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
        if bin_ns < NS_PER_MS:
            raise wrong((*path, "bin"), written.bin, "must be at least 1 ms")
        trace = SourceFile(written.trace, (*path, "trace"))
        return _steps(_delivery_steps(trace, bin_ns, stop_ns))
    if isinstance(written, ScaledSeries):
        return _steps(_scaled_steps(written, kind, path))
    if isinstance(written, RepeatingRates | RepeatingDelays):
        starts = _starts(written.every, 0, stop_ns, path, (PLAN_STEPS_MAX, "steps"))
        return _steps(list(zip(starts, cycle(map(value_of, written.values)), strict=False)))
    return _steps([(value_of(step.at), value_of(step.value)) for step in written])


def _scaled_steps(written: ScaledSeries, kind: ColumnKind, path: FieldPath) -> Steps:
    table = Table(SourceFile(written.csv, (*path, "csv")))
    steps = table.values(kind, written.column)
    largest = max(value for _, value in steps) * written.scale
    if largest > kind.largest:
        message = f"makes {kind.noun} of more than {kind.largest_shown}, the most that is allowed"
        raise wrong((*path, "scale"), written.scale, message)
    return [(at_ns, round(value * written.scale)) for at_ns, value in steps]


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
    if isinstance(errors, LossBursts):
        bursts = _intervals(errors, "bursts", (*path, "errors"), stop_ns)
        losses = {0: 0.0}
        for start_ns, end_ns in bursts:
            losses |= {start_ns: share_of(errors.loss), end_ns: 0.0}
        steps = [{"at_ns": at, "loss_rate": loss} for at, loss in losses.items()]
        return _error_series(steps, path, "errors")
    if isinstance(errors, TimeSeries):
        table = Table(SourceFile(errors.csv, (*path, "errors", "csv")))
        rows, field = table.errors(errors.column)
        return _error_series([{"at_ns": at, field: value} for at, value in rows], path, "errors")
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
    steps = copies * sum(len(plan.get("steps", ())) for plan in series)
    if steps > PLAN_STEPS_MAX:
        raise PlanningError(
            path,
            f"has {steps} steps of rate, delay and errors in all terminals; at most "
            f"{PLAN_STEPS_MAX} are allowed",
        )


# --- outages and repeating steps ----------------------------------------------------------------


def _starts(
    every: str, first_ns: int, stop_ns: int, path: FieldPath, most: tuple[int, str]
) -> range:
    """Return times at equal intervals until the end of the run.

    ``most`` is how many there may be, and what they are called in the error.

    Raises:
        PlanningError: there are too many.
    """
    starts, (limit, what) = range(first_ns, stop_ns, value_of(every)), most
    if len(starts) > limit:
        message = f"makes {len(starts)} {what} until the end of the run; at most {limit}"
        raise wrong((*path, "every"), every, f"{message} are allowed")
    return starts


def _intervals(
    written: Outage | LossBursts, what: str, path: FieldPath, stop_ns: int
) -> list[tuple[int, int]]:
    """Return the start and the end of each outage or burst until the end of the run, in ns."""
    length_ns = value_of(written.for_)
    if length_ns >= value_of(written.every):
        message = f'must be shorter than every, "{written.every}"'
        raise wrong((*path, "for"), written.for_, message)
    first_ns = value_of(written.first or written.every)
    starts = _starts(written.every, first_ns, stop_ns, path, (PLAN_STEPS_MAX // 2, what))
    return [(start_ns, start_ns + length_ns) for start_ns in starts]


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
        return _intervals(written, "outages", path, stop_ns)
    intervals: list[tuple[int, int]] = []
    for i, outage in enumerate(written):
        start_ns = value_of(outage.at)
        if intervals and start_ns <= intervals[-1][1]:
            end = f"the end of the outage before it, {format_duration(intervals[-1][1])}"
            raise wrong((*path, i, "at"), outage.at, f"must be after {end}")
        intervals.append((start_ns, start_ns + value_of(outage.for_)))
    return [outage for outage in intervals if outage[0] < stop_ns]


def interrupted_steps(
    steps: list[tuple[int, int]], intervals: list[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Return the steps of a rate with 0 during outages; the rate continues after each."""
    times, changes = [at_ns for at_ns, _ in steps], dict(steps)
    for start_ns, end_ns in intervals:
        after = bisect(times, end_ns)
        for at_ns in times[bisect(times, start_ns) : after]:
            del changes[at_ns]
        changes[start_ns] = 0
        changes[end_ns] = steps[after - 1][1]
    return sorted(changes.items())


# --- delivery traces ---------------------------------------------------------------------------


def _delivery_steps(trace: SourceFile, bin_ns: int, until_ns: int) -> Steps:
    """Return the rate steps of a mahimahi delivery trace, repeated until a time.

    The steps include the whole trace, and end with a bin that has deliveries, so that packets
    queued at the end of the run can leave.
    """
    counts, length_ms = _deliveries(trace, bin_ns)
    length_ns = length_ms * NS_PER_MS
    until_ns = max(until_ns, length_ns)
    steps: Steps = []
    for start_ns, rate_bps in _repeated_bins(counts, length_ns, bin_ns):
        if not steps or steps[-1][1] != rate_bps:
            steps.append((start_ns, rate_bps))
        if len(steps) > MAX_STEPS:
            reason = f"gives more than {MAX_STEPS} steps of the rate by {format_duration(until_ns)}"
            raise trace.error(f"{reason}; write a longer bin, or a shorter duration", "bin")
        if start_ns >= until_ns and rate_bps > 0:
            break
    return steps


def _repeated_bins(
    counts: dict[int, int], length_ns: int, bin_ns: int
) -> Iterator[tuple[int, int]]:
    """Yield the start and the rate of each bin with deliveries, and of each gap between them."""
    base_ns = 0
    while True:
        end_ns = 0
        for number, count in counts.items():
            start_ns = number * bin_ns
            if start_ns > end_ns:
                yield base_ns + end_ns, 0
            # The last bin ends with the trace.
            end_ns = min(start_ns + bin_ns, length_ns)
            yield base_ns + start_ns, count * _DELIVERY_BITS * NS_PER_S // (end_ns - start_ns)
        base_ns += length_ns


def _deliveries(trace: SourceFile, bin_ns: int) -> tuple[dict[int, int], int]:
    """Return the deliveries of each bin, by its number, and the length of the trace in ms."""
    counts: dict[int, int] = {}
    last_ms = 0
    for line, text in enumerate(trace.lines(), 1):
        if not _TIMESTAMP.fullmatch(text):
            raise trace.line_error(line, text, "expected an integer (milliseconds), such as 12")
        stamp_ms = int(text)
        if stamp_ms * NS_PER_MS > LONGEST_NS:
            raise trace.line_error(line, text, "must be at most 100 days")
        if stamp_ms < last_ms:
            raise trace.line_error(line, text, f"must not be before {last_ms}, the line above")
        last_ms = stamp_ms
        # A bin includes its end, as the trace does.
        number = max(stamp_ms * NS_PER_MS - 1, 0) // bin_ns
        counts[number] = counts.get(number, 0) + 1
    if not counts:
        raise trace.error("is empty; a trace has a line for each delivery")
    if last_ms == 0:
        raise trace.error("ends at 0 ms; a trace must last longer, to be repeated")
    return counts, last_ms
