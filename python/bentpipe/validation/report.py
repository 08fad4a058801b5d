"""The report of a validation: plain data, and tables for the terminal and for Markdown."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bentpipe.validation.comparison import Comparison, Summary, Value, summarize
from bentpipe.validation.measures import MEASURES
from bentpipe.validation.points import Point, size_text

# The unit of differences of a measure without a threshold.
_DEFAULT_THRESHOLD: Final = 0.15
_LARGEST: Final = 10


@dataclass(frozen=True, kw_only=True)
class TextTable:
    """A table of text cells."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def markdown(self) -> str:
        """Return it as Markdown."""
        lines = [self.headings, ("---",) * len(self.headings), *self.rows]
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        return f"**{self.title}**\n\n{table}\n"


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
        f"{each.measure.title}, {threshold.over}: {_statistic(threshold.statistic)} "
        f"{_percent(each.over[threshold.over][threshold.statistic])}, "
        f"at most {threshold.limit:.0%}"
        for each in found
        for threshold in each.measure.thresholds
        if not each.meets(threshold)
    ]


def largest(values: Iterable[Value], count: int = _LARGEST) -> list[Value]:
    """Return the largest differences, in units of the first threshold of their measure."""

    def weight(value: Value) -> float:
        thresholds = value.measure.thresholds
        limit = thresholds[0].limit if thresholds else _DEFAULT_THRESHOLD
        return value.abs_difference / limit

    counted = [value for value in values if not value.excluded]
    return sorted(counted, key=weight, reverse=True)[:count]


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


def summary_table(found: Iterable[Summary]) -> TextTable:
    """Return the measures, one a row for each group of points."""
    rows = []
    for summary in found:
        for group, statistics in summary.over.items():
            thresholds = [each for each in summary.measure.thresholds if each.over == group]
            if group != "all" and not thresholds:
                continue
            verdicts = (
                f"{_statistic(each.statistic)} {each.limit:.0%}: "
                f"{'passed' if summary.meets(each) else 'MISSED'}"
                for each in thresholds
            )
            counts = (str(summary.counted), str(summary.failed), str(summary.excluded))
            rows.append(
                (
                    summary.measure.title,
                    group,
                    *(counts if group == "all" else ("", "", "")),
                    _percent(statistics["median"]),
                    _percent(statistics["p90"]),
                    ", ".join(verdicts) or "-",
                )
            )
    headings = ("measure", "values", "counted", "failed", "excluded", "median", "90 %", "at most")
    return TextTable(title="Absolute relative differences", headings=headings, rows=tuple(rows))


def largest_lines(compared: Iterable[Comparison]) -> list[str]:
    """Return the largest differences, one a line."""
    return [
        f"  {value.measure.title} ({_name(value)}) {_signed(value.difference)}: kernel "
        f"{_number(value, value.kernel)}, simulator {_number(value, value.model)}; "
        f"point {value.point.number}: {value.point}"
        for value in largest(values_of(compared))
    ]


def tables_of(compared: Sequence[Comparison]) -> list[TextTable]:
    """Return the points, a table for each kind; those limited by the link's rate are separate."""
    goodput = [each for each in compared if each.point.kind == "goodput"]
    found = [_goodput_table(goodput, rate_limited=rate_limited) for rate_limited in (False, True)]
    others = [value for value in values_of(compared) if value.point.kind != "goodput"]
    kinds = dict.fromkeys(value.point.kind for value in others)
    for kind in kinds:
        own = [value for value in others if value.point.kind == kind]
        for rate_limited, suffix in _GROUPS.items():
            rows = tuple(_row(value) for value in own if value.rate_limited is rate_limited)
            headings = (*_LINK, "value", "kernel", "simulator", *_DIFFERENCES)
            found.append(TextTable(title=f"{kind}{suffix}", headings=headings, rows=rows))
    return [table for table in found if table.rows]


def markdown(compared: Sequence[Comparison]) -> str:
    """Return summary, largest differences and tables as Markdown."""
    lines = "\n".join(f"-{line[1:]}" for line in largest_lines(compared))
    tables = [table.markdown() for table in tables_of(compared)]
    head = summary_table(summaries(compared)).markdown()
    return "\n".join([head, "**Largest differences**\n", lines, "", *tables])


_GROUPS: Final = {
    False: ", not limited by the link rate",
    True: ", limited by the link rate",
    None: "",
}
_LINK: Final = ("point", "control", "Mbit/s", "RTT ms", "queue BDP", "loss %", "flows")
_DIFFERENCES: Final = ("difference %", "mean of seeds %, 95 % CI")


def _goodput_table(compared: Iterable[Comparison], *, rate_limited: bool) -> TextTable:
    rows = []
    for each in compared:
        goodput, queue, retransmitted = each.values()
        if bool(goodput.rate_limited) is rate_limited:
            cells = [_number(one, which(one)) for one in (queue, retransmitted) for which in _BOTH]
            link = _link(each.point)
            rows.append(
                (
                    *link,
                    *(_number(goodput, which(goodput)) for which in _BOTH),
                    *_differences(goodput),
                    *cells,
                )
            )
    headings = (
        *_LINK,
        *("goodput kernel", "simulator", *_DIFFERENCES),
        *("queue kernel", "simulator", "retransmitted kernel", "simulator"),
    )
    return TextTable(title=f"goodput{_GROUPS[rate_limited]}", headings=headings, rows=tuple(rows))


_BOTH: Final[tuple[Callable[[Value], float | None], ...]] = (
    lambda value: value.kernel,
    lambda value: value.model,
)


def _row(value: Value) -> tuple[str, ...]:
    both = tuple(_number(value, which(value)) for which in _BOTH)
    return (*_link(value.point), _name(value), *both, *_differences(value))


def _link(point: Point) -> tuple[str, ...]:
    return (
        str(point.number),
        point.label,
        f"{point.rate_mbps:g}",
        f"{point.rtt_ms:g}",
        f"{point.queue_bdp:g}",
        f"{point.loss * 100:g}",
        str(point.flows),
    )


def _differences(value: Value) -> tuple[str, str]:
    if value.mean_difference is None:
        return ("FAILED", "-")
    mean = f"{value.mean_difference * 100:+.1f}"
    if value.mean_difference_half_width is not None:
        mean += f" ± {value.mean_difference_half_width * 100:.1f}"
    if value.difference is None:
        return ("FAILED", mean)
    return (f"{value.difference * 100:+.1f}", mean)


def _name(value: Value) -> str:
    """Return the name of a value with its unit."""
    size_bytes = value.point.size_bytes
    if size_bytes is not None:
        return f"{size_text(size_bytes)}, s"
    name, _, unit = value.name.rpartition("_")
    units = {"bps": "Mbit/s", "s": "s", "ms": "ms", "segments": "segments"}
    return f"{name}, {units[unit]}"


def _number(value: Value, number: float | None) -> str:
    if number is None:
        return "-"
    if value.name.endswith("_bps"):
        return f"{number / 1e6:,.3f}"
    if value.name.endswith("_segments"):
        return f"{number:,.0f}"
    return f"{number:,.1f}" if value.name.endswith("_ms") else f"{number:,.3f}"


def _percent(size: float) -> str:
    return f"{size:.1%}" if math.isfinite(size) else "failed"


def _signed(difference: float | None) -> str:
    return "FAILED" if difference is None else f"{difference:+.1%}"


def _statistic(name: str) -> str:
    return {"median": "median", "p90": "90th percentile"}[name]
