"""The figures of two runs beside each other, with their differences.

Two single runs have no interval: a difference may be chance. `bentpipe compare` takes many seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from bentpipe.quantities import quantity, title
from bentpipe.results.figures import TextTable

if TYPE_CHECKING:
    from bentpipe.results.result import Result

_ROWS_MAX: Final = 200
_OF_FLOWS: Final = (
    "goodput_bps",
    "completion_time_ns",
    "exchange_time_median_ns",
    "loss_percent",
    "retransmitted_percent",
    "one_way_delay_mean_ns",
    "jitter_mean_ns",
)
_OF_DIRECTIONS: Final = ("utilization", "loss_percent", "queue_max_bytes", "dropped_packets")
_HEADINGS: Final = (("metric", ""), ("A", ""), ("B", ""), ("difference", "B - A"), ("", "of A"))

Row = Mapping[str, Any]


def difference_tables(first: Result, second: Result) -> list[TextTable]:
    """Return the metrics of flows and directions that both runs have, by name."""
    flows = _pairs(first.flows.to_dicts(), second.flows.to_dicts(), ("name", "direction"))
    directions = _pairs(first.directions.to_dicts(), second.directions.to_dicts(), ("direction",))
    return [
        _table("Flows", "flow", flows, _OF_FLOWS),
        _table("Link", "direction", directions, _OF_DIRECTIONS),
    ]


def _pairs(
    first: Iterable[Row], second: Iterable[Row], key: tuple[str, ...]
) -> list[tuple[str, Row, Row]]:
    """Return the rows of both runs with the same name, in the order of the first one."""
    others = {tuple(row[each] for each in key): row for row in second}
    found = []
    for row in first:
        names = tuple(row[each] for each in key)
        if names in others:
            name = names[0] if names[1:] == () else f"{names[0]} ({names[1]})"
            found.append((name, row, others[names]))
    return found


def _table(
    heading: str, name: str, pairs: list[tuple[str, Row, Row]], metrics: tuple[str, ...]
) -> TextTable:
    rows = [
        [who, *_cells(metric, a[metric], b[metric])]
        for who, a, b in pairs
        for metric in metrics
        if a[metric] is not None and b[metric] is not None
    ]
    more = f"{len(rows) - _ROWS_MAX:,} more rows" if len(rows) > _ROWS_MAX else ""
    return TextTable(
        heading, [(name, ""), *_HEADINGS], rows[:_ROWS_MAX], text_columns=2, grouped=1, more=more
    )


def _cells(metric: str, a: float, b: float) -> list[str]:
    if metric == "utilization":
        metric, a, b = "utilization_percent", 100 * a, 100 * b
    text: Callable[[float], str] = quantity(metric).text
    size = text(abs(b - a))
    if metric.endswith("_percent"):
        # A difference in percent would be taken for the one relative to A.
        size = f"{abs(b - a):.3g} points"
    share = f"{100 * (b - a) / a:+.3g} %" if a else "-"
    difference = f"{'-' if b < a else '+'}{size}" if a != b else "0"
    return [title(metric), text(a), text(b), difference, share if a != b else "0"]
