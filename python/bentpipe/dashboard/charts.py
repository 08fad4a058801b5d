"""The charts of a run as data for the page: lines and bands over time, thinned to what it draws."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from bentpipe.results import series
from bentpipe.results.entries import MAX_SINGLE_FLOWS
from bentpipe.results.outages import outages
from bentpipe.results.series import Series

if TYPE_CHECKING:
    from bentpipe.results.result import Result

# Each interval has two points, so a line has at most some 2,000: more than a screen has columns.
INTERVALS: Final = 1_000
# Of rates; a part of a run is drawn with as many.
_BINS: Final = 300
_BINS_MAX: Final = 100_000
_DIGITS: Final = 7
_TIME_DECIMALS: Final = 9


@dataclass(frozen=True)
class Chart:
    """One quantity over time: its title, unit and explanation, and where its lines come from.

    ``lines`` takes the number of values that a rate has over the whole run. The values of ``held``
    lines hold until the next one.
    """

    title: str
    unit: str
    caption: str
    lines: Callable[[Result, int], list[Series]]
    held: bool = False


CHARTS: Final[Mapping[str, Chart]] = {
    "goodput": Chart(
        "Goodput",
        "Mbit/s",
        "Application data delivered in order, by TCP flow.",
        series.goodputs,
        True,
    ),
    "throughput": Chart(
        "Throughput", "Mbit/s", "IP packets delivered by each direction.", series.throughputs, True
    ),
    "queue": Chart(
        "Queue",
        "kB",
        "IP bytes in the queue of each transmitter.",
        lambda run, _: series.queues(run),
    ),
    "cwnd": Chart(
        "Congestion window",
        "kB",
        "Congestion window of the sender.",
        lambda run, _: series.congestion_windows(run),
    ),
    "in-flight": Chart(
        "Data in flight",
        "kB",
        "Application bytes sent and not yet acknowledged.",
        lambda run, _: series.in_flight(run),
    ),
    "rtt": Chart(
        "Round-trip time",
        "ms",
        "Smoothed round-trip time (RFC 6298) at the sender.",
        lambda run, _: series.smoothed_rtts(run),
    ),
    "drops": Chart(
        "Dropped packets",
        "packets",
        "Packets dropped since the start, by direction and cause.",
        lambda run, _: series.drops(run),
        held=True,
    ),
}
_OF_TCP: Final = ("goodput", "cwnd", "in-flight", "rtt")


def chart_names(result: Result) -> list[str]:
    """Return the charts that a run has lines for."""
    if not series.has_time_series(result):
        return []
    without = set() if series.has_tcp_flows(result) else set(_OF_TCP)
    if not series.drop_causes(result):
        without.add("drops")
    return [name for name in CHARTS if name not in without]


def chart_data(
    result: Result, name: str, from_s: float | None = None, to_s: float | None = None
) -> dict[str, Any]:
    """Return a chart of ``CHARTS`` from ``from_s`` to ``to_s`` (None: the whole run) for JSON.

    More than twelve lines are bands: the median and the range from the 5th to the 95th percentile.

    Raises:
        UsageError: the run was not sampled.
    """
    chart = CHARTS[name]
    end_s = max(float(result.manifest["end_ns"]) / 1e9, 1e-9)
    start = 0.0 if from_s is None else from_s
    stop = end_s if to_s is None else to_s
    part = max(stop - start, 1e-9) / end_s
    lines = chart.lines(result, int(min(_BINS_MAX, max(_BINS, _BINS / part))))
    lines = [each for each in lines if each.time_s.size > 0]
    data: dict[str, Any] = {
        "name": name,
        "title": chart.title,
        "unit": chart.unit,
        "held": chart.held,
        "end_s": end_s,
        "lines": [],
        "bands": [],
        "outages": [
            {"name": each.name, "intervals": shown.round(_TIME_DECIMALS).tolist()}
            for each in outages(result)
            if (shown := each.visible(start, stop, INTERVALS)).size
        ],
    }
    if len(lines) <= MAX_SINGLE_FLOWS:
        data["lines"] = [_line(each, start, stop) for each in lines]
        return data
    for band in series.bands(lines):
        members = {"low": band.low, "middle": band.middle, "high": band.high}
        parts = {
            which: _line(Series(band.name, band.time_s, values, ""), start, stop)
            for which, values in members.items()
        }
        data["bands"].append({"name": band.name, **parts})
    return data


def _line(line: Series, from_s: float, to_s: float) -> dict[str, Any]:
    """Return the points of a line in an interval, and the next one on either side."""
    first = max(int(np.searchsorted(line.time_s, from_s, side="left")) - 1, 0)
    last = int(np.searchsorted(line.time_s, to_s, side="right")) + 1
    cut = replace(line, time_s=line.time_s[first:last], values=line.values[first:last])
    time_s, values = series.thinned(cut.time_s, cut.values, INTERVALS)
    return {
        "name": line.name,
        "x": [round(float(each), _TIME_DECIMALS) for each in time_s],
        "y": [_number(float(each)) for each in values],
    }


def _number(value: float) -> float | None:
    """Return a number for JSON, which has neither NaN nor infinity."""
    return float(f"{value:.{_DIGITS}g}") if np.isfinite(value) else None
