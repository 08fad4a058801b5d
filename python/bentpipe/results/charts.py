"""The charts of a run: ``charts.csv`` is the only list of them, and here is what is drawn of each.

Matplotlib (`bentpipe.report.plots`), the pages of `bentpipe serve` (`bentpipe.dashboard.charts`)
and CSV (`csv_of`) draw the same data.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from bentpipe.errors import UsageError
from bentpipe.metrics import CAPACITY_PARTS
from bentpipe.results import series
from bentpipe.results.files import csv_text
from bentpipe.results.measures import MAX_SINGLE_FLOWS, finished_times_ns
from bentpipe.results.series import INTERVALS, RATE_BINS, Array, Outages, Series, outages
from bentpipe.results.tables import TABLES
from bentpipe.units import NS_PER_S

if TYPE_CHECKING:
    from bentpipe.results.result import Result

# As many digits as a page and a file need.
_DIGITS: Final = 7
_DECIMALS: Final = 9
_NOT_SAMPLED: Final = "the result has no time series; set sample_interval and run again"


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
        return label_of(self.title, self.unit)

    @property
    def x_label(self) -> str:
        """The title of the x axis with its unit."""
        return label_of(self.x_title, self.x_unit)

    def is_shown(self, result: Result) -> bool:
        """Return whether a result has something to show."""
        if not any(result.tables[name].height for name in self.tables.split()):
            return False
        if self.kind == "stacks":
            return 0 < result.attribution.height <= MAX_SINGLE_FLOWS
        table, _, column = self.needs.partition(" ")
        needed = result.tables[table].select(f"^{column}$") if table else ()
        return not table or any(each.sum() for each in needed)

    def series(self, result: Result, bins: int) -> list[Series]:
        """Return the lines of a result; a rate has ``bins`` values over the whole run."""
        if self.column:
            return series.sampled(result, self.tables, self.column, float(self.scale))
        return _COMPUTED[self.name](result, bins)


@dataclass(frozen=True)
class ChartData:
    """What is drawn of a chart: lines, thinned, or bands of many; outages; names of bars."""

    chart: Chart
    lines: Sequence[Series]
    outages: Sequence[Outages]
    bars: Sequence[str]


def label_of(title: str, unit: str) -> str:
    """Return a title with its unit, if it has one."""
    return f"{title} [{unit}]" if unit else title


# --- charts that are not over time ---------------------------------------------------------------


def _times(table: Literal["exchanges", "pages"], result: Result, _bins: int) -> list[Series]:
    """Return the distribution functions of the times of finished exchanges or pages, in s.

    Many flows are one line for each entry of ``traffic``, or for all.
    """
    flows = sorted(set(result.tables[table].drop_nulls("finished_ns")["flow"].to_list()))
    names = series.flow_names(result)
    groups: dict[str, list[int]] = {names[flow]: [flow] for flow in flows}
    if len(groups) > MAX_SINGLE_FLOWS:
        known = series.entries_by_name(result).items()
        groups = {name: own for name, members in known if (own := sorted({*members} & {*flows}))}
    if len(groups) > MAX_SINGLE_FLOWS:
        groups = {f"{len(flows)} flows together": flows}
    found = []
    for name, own in groups.items():
        time_s = finished_times_ns(result, table, own) / NS_PER_S
        found.append(Series(f"{name}, {time_s.size}", *series.distribution(time_s)))
    return found


def _attribution(result: Result, _bins: int) -> list[Series]:
    """Return the parts of the link's capacity in the time of each TCP flow, in percent."""
    rows = result.attribution
    parts = {label: rows[f"{part}_percent"].to_numpy() for part, label in CAPACITY_PARTS.items()}
    x = np.arange(rows.height, dtype=float)
    return [Series(label, x, values) for label, values in parts.items() if values.any()]


_COMPUTED: Final[Mapping[str, Callable[[Result, int], list[Series]]]] = {
    "goodput": partial(series.changes, series.rate_mbps, ("flow_samples", "datagram_samples")),
    "throughput": partial(series.changes, series.rate_mbps, ("direction_samples",)),
    "one_way_delay": partial(series.changes, series.one_way_delay_ms, ("datagram_samples",)),
    "loss": partial(series.changes, series.loss_percent, ("datagram_samples",)),
    "call_quality": series.call_qualities,
    "drops": series.drops,
    "page_load_times": partial(_times, "pages"),
    "exchange_times": partial(_times, "exchanges"),
    "attribution": _attribution,
}


def _charts() -> Iterator[Chart]:
    with (Path(__file__).parent / "charts.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(line for line in file if not line.startswith("#")):
            yield Chart(**row)


CHARTS: Final[Mapping[str, Chart]] = {chart.name: chart for chart in _charts()}


def charts_of(result: Result) -> list[Chart]:
    """Return the charts that have something to show of a result, in their order."""
    return [chart for chart in CHARTS.values() if chart.is_shown(result)]


def is_sampled(result: Result) -> bool:
    """Return whether a result has time series."""
    return any(result.tables[name].height for name in TABLES if name.endswith("_samples"))


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
            raise UsageError(_NOT_SAMPLED)
        raise UsageError(f"the result has nothing to draw as {chart.name}")
    start, stop = span_s or (-np.inf, np.inf)
    # A flow may be shorter than the interval of the samples, and its values unknown.
    lines = [each for each in chart.series(result, bins) if not np.isnan(each.values).all()]
    rows = result.attribution.to_dicts() if chart.kind == "stacks" else []
    bars = [f"{row['name']} ({row['direction']})" for row in rows]
    is_many = chart.kind == "time" and len(lines) > MAX_SINGLE_FLOWS
    return ChartData(
        chart,
        series.bands(lines, start, stop)
        if is_many
        else [_cut(line, start, stop, intervals) for line in lines],
        outages(result) if chart.kind == "time" else [],
        bars,
    )


def _cut(line: Series, from_x: float, to_x: float, intervals: int) -> Series:
    first = max(int(np.searchsorted(line.x, from_x, side="left")) - 1, 0)
    last = int(np.searchsorted(line.x, to_x, side="right")) + 1
    x, values = series.thinned(line.x[first:last], line.values[first:last], intervals)
    return replace(line, x=x, values=values)


def rounded_x(values: Array) -> list[float]:
    """Return places on the x axis as numbers for a page or a file."""
    return [round(each, _DECIMALS) for each in values.tolist()]


def rounded(values: Array) -> list[float | None]:
    """Return values with seven digits; None for a missing one."""
    known = np.isfinite(values).tolist()
    return [
        float(f"{value:.{_DIGITS}g}") if is_known else None
        for value, is_known in zip(values.tolist(), known, strict=True)
    ]


def csv_of(data: ChartData) -> str:
    """Return what is drawn as CSV: a row for each point of each line or band."""
    chart = data.chart
    header = ["part" if data.bars else "line", chart.x_label, chart.label]
    rows: list[tuple[object, ...]] = []
    for line in data.lines:
        x = [data.bars[int(each)] for each in line.x] if data.bars else rounded_x(line.x)
        points = zip(x, *map(rounded, (line.values, *line.bounds)), strict=True)
        rows += [(line.name, *point) for point in points]
    if any(line.bounds for line in data.lines):
        header += [label_of(name, chart.unit) for name in ("p5", "p95")]
    return csv_text(header, rows)
