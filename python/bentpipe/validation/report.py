"""The report of a validation: plain data, and tables for the terminal and for Markdown."""

from __future__ import annotations

import itertools
import math
import os
import platform
from collections.abc import Iterable, Sequence
from typing import Any, Final

from bentpipe.quantities import quantity
from bentpipe.results.views import Cell, Column, View, markdown_table
from bentpipe.validation.comparison import (
    ALL,
    MEASURES,
    Comparison,
    Summary,
    Value,
    read_rows,
    summarize,
)

# The unit of differences of a measure without a threshold.
_DEFAULT_THRESHOLD: Final = 0.15
_LARGEST: Final = 10


def values_of(compared: Iterable[Comparison]) -> list[Value]:
    """Return the values of all points."""
    return [value for each in compared for value in each.values()]


def summaries(compared: Iterable[Comparison]) -> list[Summary]:
    """Return the summaries of all measures that have values."""
    values = values_of(compared)
    found = (summarize(measure, values) for measure in MEASURES)
    return [each for each in found if each is not None]


def missed_thresholds(found: Iterable[Summary]) -> list[str]:
    """Return the thresholds that are not met, as text."""
    return [
        f"{each.measure.title}, {threshold.over}: {_STATISTICS[threshold.statistic]} "
        f"{_percent(each.over[threshold.over][threshold.statistic])}, "
        f"at most {threshold.limit:.0%}"
        for each in found
        for threshold in each.measure.thresholds
        if not each.meets(threshold)
    ]


def largest(values: Iterable[Value]) -> list[Value]:
    """Return the largest differences, in units of the first threshold of their measure."""

    def weight(value: Value) -> float:
        thresholds = value.measure.thresholds
        limit = thresholds[0].limit if thresholds else _DEFAULT_THRESHOLD
        return value.abs_difference / limit

    counted = [value for value in values if not value.excluded]
    return sorted(counted, key=weight, reverse=True)[:_LARGEST]


def report_of(compared: Sequence[Comparison], *, grid: str, seconds: float) -> dict[str, Any]:
    """Return the report as plain data."""
    found = summaries(compared)
    return {
        "grid": grid,
        "seconds": seconds,
        "machine": {"cores": os.cpu_count(), "kernel": platform.release()},
        "passed": all(each.passed for each in found),
        "measures": {each.measure.name: each.to_json() for each in found},
        "largest": [
            {"point": value.point.number, "configuration": str(value.point), **value.to_json()}
            for value in largest(values_of(compared))
        ],
        "points": [each.to_json() for each in compared],
    }


# --- tables -------------------------------------------------------------------------------------


def summary_view(found: Iterable[Summary]) -> View:
    """Return the measures, one a row for each group of points."""
    rows: list[list[Any]] = []
    for summary in found:
        for group, statistics in summary.over.items():
            thresholds = [each for each in summary.measure.thresholds if each.over == group]
            verdicts = (
                f"{_STATISTICS[each.statistic]} {each.limit:.0%}: "
                f"{'passed' if summary.meets(each) else 'MISSED'}"
                for each in thresholds
            )
            counts = (summary.counted, summary.failed, summary.excluded)
            if group == ALL or thresholds:
                rows.append([summary.measure.title, group, *counts, *statistics.values()])
                rows[-1].append(", ".join(verdicts) or None)
    return View("Absolute relative differences", _columns("summary"), rows, group=1)


def largest_lines(compared: Iterable[Comparison]) -> list[str]:
    """Return the largest differences, one a line."""
    return [
        f"  {value.measure.title} ({_name(value)}) {_signed(value.difference)}: kernel "
        f"{_number(value, value.kernel)}, simulator {_number(value, value.model)}; "
        f"point {value.point.number}: {value.point}"
        for value in largest(values_of(compared))
    ]


def views_of(compared: Sequence[Comparison]) -> list[View]:
    """Return the points, a table for each kind; those limited by the link's rate are separate."""
    found = []
    for kind in dict.fromkeys(each.point.kind for each in compared):
        own = [each for each in compared if each.point.kind == kind]
        # The values of a goodput point are one row.
        lines = [tuple(each.values()) for each in own]
        if kind != "goodput":
            lines = [(value,) for values in lines for value in values]
        for rate_limited, suffix in _GROUPS.items():
            rows = [_row(line) for line in lines if line[0].rate_limited is rate_limited]
            if rows:
                columns = _columns("link", "goodput" if kind == "goodput" else "value")
                found.append(View(f"{kind}{suffix}", columns, rows, key=2))
    return found


def markdown(compared: Sequence[Comparison]) -> str:
    """Return summary, largest differences and tables as Markdown."""
    lines = "\n".join(f"-{line[1:]}" for line in largest_lines(compared))
    tables = [markdown_table(view) for view in views_of(compared)]
    head = markdown_table(summary_view(summaries(compared)))
    return "\n".join([head, "**Largest differences**\n", lines, "", *tables])


_GROUPS: Final = {
    False: ", not limited by the link rate",
    True: ", limited by the link rate",
    None: "",
}
_STATISTICS: Final = {"median": "median", "p90": "90th percentile"}


def _columns(*tables: str) -> tuple[Column, ...]:
    texts = {"percent": _percent, "short": "{:g}".format}
    return tuple(
        Column(row["name"], row["title"], row["note"], texts.get(row["text"]), bool(row["once"]))
        for row in read_rows("tables.csv")
        if row["table"] in tables
    )


def _row(values: Sequence[Value]) -> list[Any]:
    """Return a row of the values of a goodput point, or of one value of another point."""
    first, point = values[0], values[0].point
    link = (point.rate_mbps, point.rtt_ms, point.queue_bdp, point.loss * 100, point.flows)
    name = [_name(first)] if len(values) == 1 else []
    cells = [
        [Cell(number, _number(value, number)) for number in (value.kernel, value.model)]
        for value in values
    ]
    cells.insert(
        1,
        [
            Cell(first.difference, _signed(first.difference, "+.1f", 100)),
            Cell(first.mean_difference, _mean_text(first)),
        ],
    )
    return [point.number, point.label, *link, *name, *itertools.chain(*cells)]


def _percent(size: float) -> str:
    return f"{size:.1%}" if math.isfinite(size) else "failed"


def _signed(difference: float | None, form: str = "+.1%", factor: int = 1) -> str:
    return "FAILED" if difference is None else format(difference * factor, form)


def _mean_text(value: Value) -> str:
    if value.mean_difference is None:
        return "-"
    half = value.mean_difference_half_width
    margin = "" if half is None else f" \u00b1 {half * 100:.1f}"
    return f"{value.mean_difference * 100:+.1f}{margin}"


def _name(value: Value) -> str:
    """Return the name of a value with its unit."""
    size_bytes = value.point.size_bytes
    if size_bytes is not None:
        return f"{quantity('size_bytes').text(size_bytes)}, s"
    name, _, unit = value.name.rpartition("_")
    return f"{name}, {'Mbit/s' if unit == 'bps' else unit}"


def _number(value: Value, number: float | None) -> str:
    factor, form = {"bps": (1e6, ",.3f"), "segments": (1, ",.0f"), "ms": (1, ",.1f")}.get(
        value.name.rpartition("_")[2], (1, ",.3f")
    )
    return "-" if number is None else format(number / factor, form)
