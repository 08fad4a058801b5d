"""The charts of a run: ``charts.csv`` is the only list of them, and here is what is drawn of each.

Matplotlib (`bentpipe.report.plots`), the pages of `bentpipe serve` (`bentpipe.dashboard.charts`)
and CSV (`csv_of`) draw the same data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from bentpipe.errors import UsageError
from bentpipe.metrics import CAPACITY_PARTS
from bentpipe.results.files import csv_text
from bentpipe.results.measures import (
    MAX_SINGLE_FLOWS,
    PERCENTILES,
    entry_flows,
    finished_times_ns,
    rate_bps,
)
from bentpipe.results.tables import DROP_CAUSES, TABLES
from bentpipe.results.voice import COUNTED, call_quality
from bentpipe.text import CAUSE_TITLES, csv_rows
from bentpipe.units import NS_PER_S

if TYPE_CHECKING:
    import polars as pl

    from bentpipe.results.result import Result

# Two points each: about as many as a wide figure has pixels.
INTERVALS: Final = 400
RATE_BINS: Final = 160
# Of a band, which shows many flows: fewer, since each sends in bursts.
_BAND_BINS: Final = 40
# More groups of lines than colours are one band.
_GROUPS_MAX: Final = 8
# Of the quality of calls: 250 packets of 20 ms, so that one lost packet is 0.4 %.
_QUALITY_WINDOW_NS: Final = 5e9
_DIRECTIONS: Final = "direction_samples"
# As many digits as a page and a file need.
_DIGITS: Final = 7
_DECIMALS: Final = 9

Array = npt.NDArray[np.float64]
# The columns of a table of samples: of a flow, or the differences between two of its samples.
Rows = Mapping[str, Array]
# What is computed of changes between samples, for each value of a line.
Quantity = Callable[[Rows], Array]


@dataclass(frozen=True)
class Chart:
    """One quantity: ``title`` and ``unit`` of its values, and an explanation.

    ``charts.csv`` explains the other fields.
    """

    name: str
    kind: str
    title: str
    unit: str
    x_title: str
    x_unit: str
    tables: str
    column: str
    scale: str
    steps: str
    needs: str
    caption: str

    @property
    def label(self) -> str:
        """The title with the unit, for an axis."""
        return with_unit(self.title, self.unit)

    @property
    def x_label(self) -> str:
        """The title of the x axis with its unit."""
        return with_unit(self.x_title, self.x_unit)

    def is_shown(self, result: Result) -> bool:
        """Return whether a result has something to show."""
        if not any(result.tables[name].height for name in self.tables.split()):
            return False
        if self.kind == "stacks":
            return 0 < result.attribution.height <= MAX_SINGLE_FLOWS
        table, _, column = self.needs.partition(" ")
        needed = result.tables[table].select(f"^{column}$") if table else ()
        return not table or any(values.sum() for values in needed)

    def series(self, result: Result, bins: int) -> list[Series]:
        """Return the lines of a result; a rate has ``bins`` values over the whole run."""
        tables = self.tables.split()
        if self.column:
            return _sampled(result, tables, self.column, float(self.scale))
        if self.name in _CHANGES:
            return _changes(result, tables, _CHANGES[self.name], bins)
        return _COMPUTED[self.name](result, tables)


@dataclass(frozen=True)
class Series:
    """A named line: ``x`` and ``values`` are arrays of equal length; NaN is a missing value.

    Many lines are drawn as one band for each ``group``: their median, and its ``bounds``, the 5th
    and the 95th percentile.
    """

    name: str
    x: Array
    values: Array
    group: str = ""
    bounds: tuple[Array, Array] | tuple[()] = ()


@dataclass(frozen=True)
class Outages:
    """The times in s at which directions sent nothing: a row for each, start and end."""

    name: str
    intervals_s: Array

    def visible(self, from_s: float, to_s: float, columns: int) -> Array:
        """Return the intervals in a part of the run, those that share a column of a plot as one."""
        starts, ends = self.intervals_s.T
        rows = (starts < to_s) & (ends > from_s)
        starts, ends = np.clip(starts[rows], from_s, to_s), np.clip(ends[rows], from_s, to_s)
        if starts.size == 0:
            return np.empty((0, 2))
        apart = starts[1:] - ends[:-1] > (to_s - from_s) / columns
        return np.column_stack([starts[np.r_[True, apart]], ends[np.r_[apart, True]]])


@dataclass(frozen=True)
class ChartData:
    """What is drawn of a chart: lines, thinned, or bands of many; outages; names of bars."""

    chart: Chart
    lines: Sequence[Series]
    outages: Sequence[Outages]
    bars: Sequence[str]


def with_unit(title: str, unit: str) -> str:
    """Return a title with its unit, if it has one."""
    return f"{title} [{unit}]" if unit else title


# --- samples -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Samples:
    """The samples of a flow between its start and end, or those of a direction."""

    number: int
    name: str
    group: str
    rows: Rows
    start_ns: float = -np.inf
    end_ns: float = np.inf

    @property
    def is_active(self) -> npt.NDArray[np.bool_]:
        time_ns = self.rows["time_ns"]
        return (self.start_ns <= time_ns) & (time_ns <= self.end_ns)


def _sampled(result: Result, tables: Sequence[str], column: str, scale: float) -> list[Series]:
    """Return a column of tables of samples, over ``scale``.

    It has a line for each flow, which begins and ends with it, or for each direction.
    """
    return [
        Series(
            samples.name,
            samples.rows["time_ns"][samples.is_active] / NS_PER_S,
            samples.rows[column][samples.is_active] / scale,
            samples.group,
        )
        for samples in _samples(result, tables)
    ]


def _changes(result: Result, tables: Sequence[str], quantity: Quantity, bins: int) -> list[Series]:
    """Return a quantity of the changes between samples for each flow or direction of some tables.

    A line has about ``bins`` values over the whole run, each held until the next one.
    """
    samples = _samples(result, tables)
    if len(samples) > MAX_SINGLE_FLOWS and _DIRECTIONS not in tables:
        bins = min(bins, _BAND_BINS)
    return [_change(source, result, bins, quantity) for source in samples]


def _rate_mbps(change: Rows) -> Array:
    return rate_bps(change["delivered_bytes"], change["time_ns"]) / 1e6


def _loss_percent(change: Rows) -> Array:
    return _ratio(100 * change["lost_packets"], _arrived_or_lost(change))


def _one_way_delay_ms(change: Rows) -> Array:
    return _ratio(change["one_way_delay_sum_ns"] / 1e6, change["received_segments"])


def _call_qualities(result: Result, tables: Sequence[str]) -> list[Series]:
    """Return the mean opinion score of each call (`call_quality`) in windows of 5 s or more."""
    windows = max(1, round(float(result.manifest["end_ns"]) / _QUALITY_WINDOW_NS))
    play_out_ns = result.tables["flows"]["play_out_delay_ns"].to_list()
    workloads = [flow["workload"] for flow in result.plan["flows"]]

    def scores(call: _Samples, change: Rows) -> Array:
        counts = {**change, "expected_segments": _arrived_or_lost(change)}
        by_window = np.nan_to_num([counts[name] for name in COUNTED]).T.tolist()
        play_out = {"play_out_delay_ns": play_out_ns[call.number]}
        rows = (play_out | dict(zip(COUNTED, row, strict=True)) for row in by_window)
        return np.array([call_quality(workloads[call.number], row)["mos"] for row in rows], float)

    return [
        _change(call, result, windows, partial(scores, call))
        for call in _samples(result, tables)
        if workloads[call.number]["kind"] == "voice"
    ]


def _drops(result: Result, tables: Sequence[str]) -> list[Series]:
    """Return the packets dropped since the start, by direction and cause that dropped some."""
    return [
        Series(
            f"{direction.name}: {what}",
            direction.rows["time_ns"] / NS_PER_S,
            values,
            f"{direction.group}: {what}",
        )
        for direction in _samples(result, tables)
        for cause in DROP_CAUSES
        for what in [CAUSE_TITLES.get(cause, cause.replace("_", " "))]
        for values in [direction.rows[f"dropped_{cause}_packets"]]
        if values[-1] > 0
    ]


def _flow_names(result: Result) -> list[str]:
    """Return the name of each flow of the plan, with its direction."""
    pairs = zip(result.plan["flows"], result.flow_directions, strict=True)
    return [f"{flow['name']} ({direction})" for flow, direction in pairs]


def _samples(result: Result, tables: Sequence[str]) -> list[_Samples]:
    """Return the flows or directions that have samples in some tables, in the order of the plan."""
    if _DIRECTIONS in tables:
        names = result.manifest["names"]["directions"]
        parts = _parts(result.tables[_DIRECTIONS], "direction")
        # A direction such as return-2 is one of several returns.
        return [_Samples(i, names[i], names[i].partition("-")[0], rows) for i, rows in parts]
    groups = {
        flow: f"{name} ({heading})"
        for name, heading, members in entry_flows(result)
        for flow in members
    }
    flows = result.tables["flows"].select("start_ns", "finished_ns", "last_delivery_ns").rows()
    names = _flow_names(result)
    samples = []
    for table in tables:
        for number, rows in _parts(result.tables[table], "flow"):
            start_ns, finished_ns, last_ns = flows[number]
            end_ns = result.manifest["end_ns"] if finished_ns is None else finished_ns
            if table == "datagram_samples" and finished_ns is not None:
                # The last datagram is sent before it arrives.
                end_ns = max(finished_ns, last_ns or 0)
            samples.append(_Samples(number, names[number], groups[number], rows, start_ns, end_ns))
    return sorted(samples, key=lambda flow: flow.number)


def _change(samples: _Samples, result: Result, bins: int, quantity: Quantity) -> Series:
    """Return a quantity of the changes between samples; ``bins`` of them fill the whole run.

    Each value is at the beginning of its change, and the last one is held to the end.
    """
    nothing = Series(samples.name, np.empty(0), np.empty(0), samples.group)
    # From the last sample before the start to the first one after the end.
    around = np.flatnonzero(samples.is_active)
    if around.size == 0:
        return nothing
    part = slice(max(around[0] - 1, 0), around[-1] + 2)
    rows = {name: values[part] for name, values in samples.rows.items()}
    rows["time_ns"] = np.clip(rows["time_ns"], samples.start_ns, samples.end_ns)
    # The samples between which changes are taken.
    interval_ns = float(result.plan["sample_interval_ns"] or 1)
    intervals = max(1, round(float(result.manifest["end_ns"]) / interval_ns / bins))
    last = rows["time_ns"].size - 1
    at = np.unique(np.append(np.arange(0, last + 1, intervals), last))
    if at.size < 2:  # noqa: PLR2004 - a change needs two moments
        return nothing
    change = {name: np.diff(values[at]) for name, values in rows.items()}
    if "lost_packets" in change:
        # A packet that a decoder recovers later is taken off the lost ones then.
        change["lost_packets"] = np.maximum(change["lost_packets"], 0)
    values = quantity(change)
    time_s = rows["time_ns"][at] / NS_PER_S
    return Series(samples.name, time_s, np.append(values, values[-1]), samples.group)


def _arrived_or_lost(change: Rows) -> Array:
    return change["received_segments"] + change["lost_packets"]


def _ratio(part: Array, whole: Array) -> Array:
    """Return part / whole, NaN where the whole is 0."""
    ratio: Array = np.divide(part, whole, out=np.full(part.size, np.nan), where=whole > 0)
    return ratio


def _parts(table: pl.DataFrame, key: str) -> list[tuple[int, Rows]]:
    """Return the rows for each number in the column ``key``, as floats with NaN for null."""
    ordered = table.sort(key, maintain_order=True)
    numbers, starts = np.unique(ordered[key].to_numpy(), return_index=True)
    # Whole columns first: a table may have thousands of parts.
    columns = {
        name: ordered[name].cast(float).fill_null(np.nan).to_numpy() for name in table.columns
    }
    ends = [*starts, table.height][1:]
    return [
        (int(number), {name: values[start:end] for name, values in columns.items()})
        for number, start, end in zip(numbers, starts, ends, strict=True)
    ]


# --- what is drawn of lines ----------------------------------------------------------------------


def thinned(x: Array, values: Array, intervals: int = INTERVALS) -> tuple[Array, Array]:
    """Return the smallest and the largest value of each of ``intervals`` intervals, in order of x.

    ``x`` and ``values`` are arrays of equal length; short ones are returned as they are. The
    first and the last point are kept, and NaN only where an interval has no other value.
    """
    if x.size <= 2 * intervals + 2:
        return x, values
    kept = [0, x.size - 1]
    for part in np.array_split(np.arange(x.size), intervals):
        known = part[~np.isnan(values[part])]
        if known.size == 0:
            kept.append(int(part[0]))
        else:
            kept += [int(known[values[known].argmin()]), int(known[values[known].argmax()])]
    rows = np.unique(kept)
    return x[rows], values[rows]


def distribution(values: Array) -> tuple[Array, Array]:
    """Return the points of a distribution function: 0 at first, it steps up at each value."""
    share = np.arange(1, values.size + 1) / values.size
    return np.repeat(np.sort(values), 2), np.append(0, np.repeat(share, 2)[:-1])


def _bands(series: Sequence[Series], from_x: float = -np.inf, to_x: float = np.inf) -> list[Series]:
    """Return the band of the lines of each group, at common times of an interval."""
    groups: dict[str, list[Series]] = {}
    for line in series:
        groups.setdefault(line.group, []).append(line)
    if len(groups) > _GROUPS_MAX:
        groups = {"lines": list(series)}
    return [_band(name, members, from_x, to_x) for name, members in groups.items()]


def _band(name: str, members: Sequence[Series], from_x: float, to_x: float) -> Series:
    first = max(min(line.x[0] for line in members), from_x)
    last = min(max(line.x[-1] for line in members), to_x)
    x = np.linspace(first, max(first, last), INTERVALS)
    values = np.array([_held(line, x) for line in members])
    known = ~np.isnan(values).all(axis=0)
    # NaN where no line is, which leaves a gap.
    low, middle, high = (np.full(x.size, np.nan) for _ in PERCENTILES)
    if known.any():
        percentiles = np.nanpercentile(values[:, known], PERCENTILES, axis=0)
        low[known], middle[known], high[known] = percentiles
    label = f"{name}: median, p5 to p95 of {len(members)}" if members[1:] else name
    return Series(label, x, middle, bounds=(low, high))


def _held(series: Series, x: Array) -> Array:
    """Return the last value of a line at each time; NaN before its start and after its end."""
    values = series.values[np.searchsorted(series.x, x, side="right") - 1]
    is_outside = (x < series.x[0]) | (x > series.x[-1])
    return np.where(is_outside, np.nan, values)


# --- charts that are not over time ---------------------------------------------------------------


def _times(result: Result, tables: Sequence[str]) -> list[Series]:
    """Return the distribution functions of the times of finished exchanges or pages, in s.

    Many flows are one line for each entry of ``traffic``, or for all.
    """
    (table,) = tables
    flows = sorted(set(result.tables[table].drop_nulls("finished_ns")["flow"].to_list()))
    names = _flow_names(result)
    groups: dict[str, list[int]] = {names[flow]: [flow] for flow in flows}
    if len(groups) > MAX_SINGLE_FLOWS:
        groups = {
            f"{name} ({heading})": group
            for name, heading, members in entry_flows(result)
            if (group := sorted({*members} & {*flows}))
        }
    if len(groups) > MAX_SINGLE_FLOWS:
        groups = {f"{len(flows)} flows together": flows}
    lines = []
    for name, group in groups.items():
        time_s = finished_times_ns(result, table, group) / NS_PER_S
        lines.append(Series(f"{name}, {time_s.size}", *distribution(time_s)))
    return lines


def _attribution(result: Result, _tables: Sequence[str]) -> list[Series]:
    """Return the parts of the link's capacity in the time of each TCP flow, in percent."""
    rows = result.attribution
    parts = {label: rows[f"{part}_percent"].to_numpy() for part, label in CAPACITY_PARTS.items()}
    x = np.arange(rows.height, dtype=float)
    return [Series(label, x, values) for label, values in parts.items() if values.any()]


_CHANGES: Final[Mapping[str, Quantity]] = {
    "goodput": _rate_mbps,
    "throughput": _rate_mbps,
    "one_way_delay": _one_way_delay_ms,
    "loss": _loss_percent,
}
_COMPUTED: Final[Mapping[str, Callable[[Result, Sequence[str]], list[Series]]]] = {
    "call_quality": _call_qualities,
    "drops": _drops,
    "page_load_times": _times,
    "exchange_times": _times,
    "attribution": _attribution,
}


CHARTS: Final[Mapping[str, Chart]] = {
    row["name"]: Chart(**row) for row in csv_rows(Path(__file__).parent / "charts.csv")
}


def charts_of(result: Result) -> list[Chart]:
    """Return the charts that have something to show of a result, in their order."""
    return [chart for chart in CHARTS.values() if chart.is_shown(result)]


def is_sampled(result: Result) -> bool:
    """Return whether a result has time series."""
    return any(result.tables[name].height for name in TABLES if name.endswith("_samples"))


# --- when a direction sent nothing ----------------------------------------------------------------


def outages(result: Result) -> list[Outages]:
    """Return the outages of the link until the end of the run, once if both directions have them.

    An outage is a time at which the rate is 0. The gaps of a delivery trace are none.
    """
    outage_times: dict[str, list[tuple[float, float]]] = {}
    names = result.manifest["names"]["directions"]
    for name, direction in zip(names, result.plan["directions"], strict=True):
        # The returns of all terminals are alike.
        heading = name.partition("-")[0]
        link = result.manifest["scenario"].get("link") or {}
        rate = (link.get(heading) or {}).get("rate")
        is_traced = isinstance(rate, dict) and "trace" in rate
        if heading not in outage_times and not is_traced:
            outage_times[heading] = _intervals(direction["rate_bps"], result.manifest["end_ns"])
    together = [*outage_times.values()]
    if together[1:] and all(intervals == together[0] for intervals in together):
        outage_times = {"": together[0]}
    return [
        Outages(f"outage of {heading}" if heading else "outage", np.array(intervals) / NS_PER_S)
        for heading, intervals in outage_times.items()
        if intervals
    ]


def _intervals(rate: Mapping[str, Any], end_ns: int) -> list[tuple[float, float]]:
    """Return the times until ``end_ns`` at which a rate is 0, start and end, in ns."""
    if rate["kind"] == "constant":
        return []
    intervals: list[tuple[float, float]] = []
    start_ns: int | None = None
    for at_ns, value in [*rate["steps"], (end_ns, 1)]:
        if start_ns is not None and value > 0:
            intervals.append((start_ns, min(at_ns, end_ns)))
            start_ns = None
        elif start_ns is None and value == 0 and at_ns < end_ns:
            start_ns = at_ns
    return intervals


# --- what is drawn -------------------------------------------------------------------------------


def chart_data(
    chart: Chart,
    result: Result,
    *,
    span_s: tuple[float, float] | None = None,
    intervals: int = INTERVALS,
    bins: int = RATE_BINS,
) -> ChartData:
    """Return what is drawn of a chart, in the part ``span_s`` of the run (None: all of it).

    A line has the next point on either side of the part, and the extremes of ``intervals``
    intervals; a rate has about ``bins`` values over the whole run. More than twelve lines over time
    are bands.

    Raises:
        UsageError: the result has nothing to show.
    """
    if not chart.is_shown(result):
        if chart.kind == "time" and not is_sampled(result):
            raise UsageError("the result has no time series; set sample_interval and run again")
        raise UsageError(f"the result has nothing to draw as {chart.name}")
    start, stop = span_s or (-np.inf, np.inf)
    # A flow may be shorter than the interval of the samples, and its values unknown.
    lines = [line for line in chart.series(result, bins) if not np.isnan(line.values).all()]
    rows = result.attribution.to_dicts() if chart.kind == "stacks" else []
    bars = [f"{row['name']} ({row['direction']})" for row in rows]
    is_many = chart.kind == "time" and len(lines) > MAX_SINGLE_FLOWS
    return ChartData(
        chart,
        _bands(lines, start, stop)
        if is_many
        else [_cut(line, start, stop, intervals) for line in lines],
        outages(result) if chart.kind == "time" else [],
        bars,
    )


def _cut(line: Series, from_x: float, to_x: float, intervals: int) -> Series:
    first = max(int(np.searchsorted(line.x, from_x, side="left")) - 1, 0)
    last = int(np.searchsorted(line.x, to_x, side="right")) + 1
    x, values = thinned(line.x[first:last], line.values[first:last], intervals)
    return replace(line, x=x, values=values)


def rounded_x(values: Array) -> list[float]:
    """Return places on the x axis as numbers for a page or a file."""
    return [round(place, _DECIMALS) for place in values.tolist()]


def rounded(values: Array) -> list[float | None]:
    """Return values with seven digits; None for a missing one."""
    numbers = values.tolist()
    return [float(f"{value:.{_DIGITS}g}") if isfinite(value) else None for value in numbers]


def csv_of(data: ChartData) -> str:
    """Return what is drawn as CSV: a row for each point of each line or band."""
    chart = data.chart
    header = ["part" if data.bars else "line", chart.x_label, chart.label]
    rows: list[tuple[object, ...]] = []
    for line in data.lines:
        x = [data.bars[int(number)] for number in line.x] if data.bars else rounded_x(line.x)
        points = zip(x, *map(rounded, (line.values, *line.bounds)), strict=True)
        rows += [(line.name, *point) for point in points]
    if any(line.bounds for line in data.lines):
        header += [with_unit(name, chart.unit) for name in ("p5", "p95")]
    return csv_text(header, rows)
