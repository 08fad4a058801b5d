"""The charts of a run: the only list of them, and what is drawn of each.

Matplotlib (`bentpipe.report.plots`), the pages of `bentpipe serve` (`bentpipe.dashboard.charts`)
and CSV (`csv_of`) draw the same data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
import numpy.typing as npt

from bentpipe.errors import UsageError
from bentpipe.metrics import CAPACITY_PARTS
from bentpipe.results import series
from bentpipe.results.entries import MAX_SINGLE_FLOWS
from bentpipe.results.folder import csv_text
from bentpipe.results.measures import exchange_times_ns, page_load_times_ns
from bentpipe.results.outages import Outages, outages
from bentpipe.results.series import INTERVALS, RATE_BINS, Array, Band, Series
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

    ``series`` returns the lines of a result, with the number of values that a rate has over the
    whole run. ``steps``: values hold until the next one. A chart has something to show if one of
    its ``tables`` has rows, and ``is_known``.

    A chart of kind ``time`` has times in s on its x axis, a ``distribution`` the share of values
    up to x, and ``stacks`` have the parts of bars: x is the number of a bar in ``bars``.
    """

    name: str
    title: str
    unit: str
    caption: str
    series: Callable[[Result, int], list[Series]]
    tables: tuple[str, ...]
    steps: bool = False
    kind: Literal["time", "distribution", "stacks"] = "time"
    x_title: str = "Time"
    x_unit: str = "s"
    is_known: Callable[[Result], bool] = lambda _: True
    bars: Callable[[Result], list[str]] = lambda _: []

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
        return any(result.tables[name].height for name in self.tables) and self.is_known(result)


@dataclass(frozen=True)
class ChartData:
    """What is drawn of a chart: lines, or bands of many lines, thinned; outages; names of bars."""

    chart: Chart
    lines: Sequence[Series]
    bands: Sequence[Band]
    outages: Sequence[Outages]
    bars: Sequence[str]


def label_of(title: str, unit: str) -> str:
    """Return a title with its unit, if it has one."""
    return f"{title} [{unit}]" if unit else title


# --- charts that are not over time ---------------------------------------------------------------


def _times(
    result: Result,
    _bins: int,
    *,
    table: str,
    times_ns: Callable[[Result, Sequence[int] | None], npt.NDArray[np.int64]],
) -> list[Series]:
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
        time_s = np.sort(times_ns(result, own)) / NS_PER_S
        share = np.arange(1, time_s.size + 1) / time_s.size
        # The function is 0 before the first time and steps up at each.
        x, values = np.repeat(time_s, 2), np.append(0, np.repeat(share, 2)[:-1])
        found.append(Series(f"{name}, {time_s.size}", x, values))
    return found


def _attribution(result: Result, _bins: int) -> list[Series]:
    """Return the parts of the link's capacity in the time of each TCP flow, in percent."""
    rows = result.attribution
    parts = {label: rows[f"{part}_percent"].to_numpy() for part, label in CAPACITY_PARTS.items()}
    x = np.arange(rows.height, dtype=float)
    return [Series(label, x, values) for label, values in parts.items() if values.any()]


def _attributed_flows(result: Result) -> list[str]:
    return [f"{row['name']} ({row['direction']})" for row in result.attribution.to_dicts()]


# --- the list ------------------------------------------------------------------------------------

_of_directions: Final = partial(Chart, tables=("direction_samples",))
_of_tcp: Final = partial(Chart, tables=("flow_samples",))
_of_datagrams: Final = partial(Chart, tables=("datagram_samples",))
_of_times: Final = partial(Chart, unit="", kind="distribution")

_ALL: Final = (
    Chart(
        "goodput",
        "Goodput",
        "Mbit/s",
        "Application data delivered, by flow; those of TCP in order.",
        series.goodputs,
        ("flow_samples", "datagram_samples"),
        steps=True,
    ),
    _of_directions(
        "throughput",
        "Throughput",
        "Mbit/s",
        "IP packets delivered by each direction.",
        series.throughputs,
        steps=True,
    ),
    _of_directions(
        "queues", "Queue", "kB", "IP bytes in the queue of each transmitter.", series.queues
    ),
    _of_tcp(
        "congestion_window",
        "Congestion window",
        "kB",
        "Congestion window of the sender.",
        series.sampled("flow_samples", "cwnd_bytes", 1e3),
    ),
    _of_tcp(
        "in_flight",
        "In flight",
        "kB",
        "Application bytes sent and not yet acknowledged.",
        series.sampled("flow_samples", "in_flight_bytes", 1e3),
    ),
    _of_tcp(
        "smoothed_rtt",
        "Smoothed RTT",
        "ms",
        "Smoothed round-trip time (RFC 6298) at the sender.",
        series.sampled("flow_samples", "srtt_ns", 1e6),
    ),
    _of_datagrams(
        "one_way_delay",
        "One-way delay",
        "ms",
        "Mean delay of the datagrams of each flow, from sender to receiver.",
        series.one_way_delays,
        steps=True,
    ),
    _of_datagrams(
        "jitter",
        "Jitter",
        "ms",
        "Interarrival jitter of datagrams (RFC 3550, section 6.4.1).",
        series.sampled("datagram_samples", "jitter_ns", 1e6),
    ),
    _of_datagrams(
        "loss",
        "Datagrams lost",
        "%",
        "Datagrams lost, of those received or lost.",
        series.losses,
        steps=True,
        is_known=lambda run: bool(run.tables["datagram_samples"]["lost_packets"].sum()),
    ),
    _of_datagrams(
        "call_quality",
        "Mean opinion score",
        "",
        "Quality of each call by the E-model (ITU-T G.107), 1 to 4.5, in windows of 5 s or more.",
        series.call_qualities,
        steps=True,
        is_known=lambda run: bool(run.tables["flows"]["play_out_delay_ns"].count()),
    ),
    _of_directions(
        "drops",
        "Dropped",
        "packets",
        "Packets dropped since the start, by direction and cause.",
        series.drops,
        steps=True,
        is_known=lambda run: bool(series.drop_causes(run)),
    ),
    _of_times(
        "page_load_times",
        "Share of pages",
        caption="Distribution function of each user's page load times, from the click to the last "
        "byte of the last object. The legend has the number of finished pages.",
        series=partial(_times, table="pages", times_ns=page_load_times_ns),
        tables=("pages",),
        x_title="Page load time",
        is_known=lambda run: bool(run.tables["pages"]["finished_ns"].count()),
    ),
    _of_times(
        "exchange_times",
        "Share of exchanges",
        caption="Distribution function of each flow's exchange times, from the client's start to "
        "the last byte of the response. The legend has the number of finished exchanges.",
        series=partial(_times, table="exchanges", times_ns=exchange_times_ns),
        tables=("exchanges",),
        x_title="Exchange time",
        is_known=lambda run: bool(run.tables["exchanges"]["finished_ns"].count()),
    ),
    Chart(
        "attribution",
        "Capacity of the link in the time of the flow",
        "%",
        "Where the capacity of the link went in the time of each TCP flow, from its start to its "
        "last delivery.",
        _attribution,
        ("capacity",),
        kind="stacks",
        x_title="Flow",
        x_unit="",
        is_known=lambda run: 0 < run.attribution.height <= MAX_SINGLE_FLOWS,
        bars=_attributed_flows,
    ),
)
CHARTS: Final[Mapping[str, Chart]] = {chart.name: chart for chart in _ALL}


def charts_of(result: Result) -> list[Chart]:
    """Return the charts that have something to show of a result, in the order of the list."""
    return [chart for chart in _ALL if chart.is_shown(result)]


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
    is_many = chart.kind == "time" and len(lines) > MAX_SINGLE_FLOWS
    return ChartData(
        chart,
        [] if is_many else [_cut(line, start, stop, intervals) for line in lines],
        series.bands(lines, start, stop) if is_many else [],
        outages(result) if chart.kind == "time" else [],
        chart.bars(result),
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
        rows += [(line.name, *point) for point in zip(x, rounded(line.values), strict=True)]
    if data.bands:
        header += [label_of(name, chart.unit) for name in ("p5", "p95")]
    for band in data.bands:
        columns = [rounded(each) for each in (band.middle, band.low, band.high)]
        points = zip(rounded_x(band.x), *columns, strict=True)
        rows += [(band.name, *point) for point in points]
    return csv_text(header, rows)
