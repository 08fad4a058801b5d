"""Quantities of a run over time: lines of flows and directions, thinned, and bands of many."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from bentpipe.results.calls import call_quality
from bentpipe.results.entries import MAX_SINGLE_FLOWS, PERCENTILES, entry_flows, entry_names
from bentpipe.results.measures import rate_bps
from bentpipe.results.tables import DROP_CAUSES
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
_LOSSES: Final = ("lost_packets", "late_packets", "loss_bursts")

Array = npt.NDArray[np.float64]
# The columns of a table of samples: of a flow, or the differences between two of its samples.
Rows = Mapping[str, Array]


@dataclass(frozen=True)
class Series:
    """A named line: ``x`` and ``values`` are arrays of equal length; NaN is a missing value.

    Many lines are drawn as one band for each ``group``.
    """

    name: str
    x: Array
    values: Array
    group: str = ""


@dataclass(frozen=True)
class Band:
    """The 5th, 50th and 95th percentile of many lines at common times; NaN where no line is."""

    name: str
    x: Array
    low: Array
    middle: Array
    high: Array


def drop_causes(result: Result) -> list[str]:
    """Return the causes for which some direction dropped packets, by their names in columns."""
    table = result.tables["directions"]
    return [cause for cause in DROP_CAUSES if table[f"dropped_{cause}_packets"].sum() > 0]


# --- flows ---------------------------------------------------------------------------------------


def sampled(table: str, column: str, scale: float) -> Callable[[Result, int], list[Series]]:
    """Return a function of a result: a column of a table of samples for each flow, over ``scale``.

    A line begins and ends with its flow.
    """

    def lines(result: Result, _bins: int) -> list[Series]:
        return [
            Series(
                flow.name,
                flow.rows["time_ns"][flow.is_active] / NS_PER_S,
                flow.rows[column][flow.is_active] / scale,
                flow.group,
            )
            for flow in _sampled_flows(result, table)
        ]

    return lines


def goodputs(result: Result, bins: int) -> list[Series]:
    """Return the goodput of each flow, application data delivered in order, in Mbit/s.

    The run has about ``bins`` values, each held until the next one.
    """

    def mbps(change: Rows) -> Array:
        return rate_bps(change["delivered_bytes"], change["time_ns"]) / 1e6

    return _changes(result, bins, mbps, "flow_samples", "datagram_samples")


def losses(result: Result, bins: int) -> list[Series]:
    """Return the lost datagrams of each flow, in percent of those received or lost."""

    def percent(change: Rows) -> Array:
        return _ratio(100 * change["lost_packets"], _arrived_or_lost(change))

    return _changes(result, bins, percent, "datagram_samples")


def one_way_delays(result: Result, bins: int) -> list[Series]:
    """Return the mean one-way delay of the datagrams of each flow, in ms."""

    def delay_ms(change: Rows) -> Array:
        return _ratio(change["one_way_delay_sum_ns"] / 1e6, change["received_segments"])

    return _changes(result, bins, delay_ms, "datagram_samples")


def call_qualities(result: Result, _bins: int) -> list[Series]:
    """Return the mean opinion score of each call (`call_quality`) in windows of 5 s or more."""
    windows = max(1, round(float(result.manifest["end_ns"]) / _QUALITY_WINDOW_NS))
    play_out_ns = result.tables["flows"]["play_out_delay_ns"].to_list()
    workloads = [flow["workload"] for flow in result.plan["flows"]]
    calls = [
        flow
        for flow in _sampled_flows(result, "datagram_samples")
        if workloads[flow.number]["kind"] == "voice"
    ]

    def scores(call: _Flow, change: Rows) -> Array:
        counts = np.nan_to_num([_arrived_or_lost(change), *(change[name] for name in _LOSSES)])
        found = []
        for window in counts.T.tolist():
            row = dict(zip(("expected_segments", *_LOSSES), window, strict=True))
            row["play_out_delay_ns"] = play_out_ns[call.number]
            found.append(call_quality(workloads[call.number], row)["mos"])
        return np.array(found, dtype=float)

    return [_change(call, result, windows, partial(scores, call)) for call in calls]


def entries_by_name(result: Result) -> dict[str, list[int]]:
    """Return the flows of each entry of ``traffic`` and direction, by name."""
    names = entry_names(result)
    return {
        f"{names[own[0]]} ({heading})": own for (_, heading), own in entry_flows(result).items()
    }


def flow_names(result: Result) -> list[str]:
    """Return the name of each flow of the plan, with its direction."""
    pairs = zip(result.plan["flows"], result.flow_directions, strict=True)
    return [f"{flow['name']} ({direction})" for flow, direction in pairs]


@dataclass(frozen=True)
class _Flow:
    """A sampled flow: when it started and ended, its samples, and which of them are between."""

    number: int
    name: str
    group: str
    start_ns: float
    end_ns: float
    rows: Rows

    @property
    def is_active(self) -> npt.NDArray[np.bool_]:
        time_ns = self.rows["time_ns"]
        return (self.start_ns <= time_ns) & (time_ns <= self.end_ns)


def _sampled_flows(result: Result, *tables: str) -> list[_Flow]:
    """Return the flows that have samples in a table, in the order of the plan."""
    groups = {flow: name for name, flows in entries_by_name(result).items() for flow in flows}
    flows = result.tables["flows"].select("start_ns", "finished_ns", "last_delivery_ns").rows()
    names = flow_names(result)
    found = []
    for table in tables:
        for number, rows in _parts(result.tables[table], "flow"):
            start_ns, finished_ns, last_ns = flows[number]
            end_ns = result.manifest["end_ns"] if finished_ns is None else finished_ns
            if table == "datagram_samples" and finished_ns is not None:
                # The last datagram is sent before it arrives.
                end_ns = max(finished_ns, last_ns or 0)
            found.append(_Flow(number, names[number], groups[number], start_ns, end_ns, rows))
    return sorted(found, key=lambda flow: flow.number)


def _changes(
    result: Result, bins: int, quantity: Callable[[Rows], Array], *tables: str
) -> list[Series]:
    """Return a quantity of the changes between samples of each flow of some tables."""
    flows = _sampled_flows(result, *tables)
    if len(flows) > MAX_SINGLE_FLOWS:
        bins = min(bins, _BAND_BINS)
    return [_change(flow, result, bins, quantity) for flow in flows]


def _change(flow: _Flow, result: Result, bins: int, quantity: Callable[[Rows], Array]) -> Series:
    """Return a quantity of the changes between samples; ``bins`` of them fill the whole run.

    Each value is at the beginning of its change, and the last one is held to the end.
    """
    nothing = Series(flow.name, np.empty(0), np.empty(0), flow.group)
    # From the last sample before the start to the first one after the end.
    around = np.flatnonzero(flow.is_active)
    if around.size == 0:
        return nothing
    part = slice(max(around[0] - 1, 0), around[-1] + 2)
    rows = {name: values[part] for name, values in flow.rows.items()}
    rows["time_ns"] = np.clip(rows["time_ns"], flow.start_ns, flow.end_ns)
    at = _bin_edges(result, rows["time_ns"].size, bins)
    if at.size < 2:  # noqa: PLR2004 - a change needs two moments
        return nothing
    values = quantity({name: np.diff(values[at]) for name, values in rows.items()})
    time_s = rows["time_ns"][at] / NS_PER_S
    return Series(flow.name, time_s, np.append(values, values[-1]), flow.group)


def _bin_edges(result: Result, samples: int, bins: int) -> npt.NDArray[np.intp]:
    """Return the samples between which changes are taken, so that the run has some ``bins``."""
    interval_ns = float(result.plan["sample_interval_ns"] or 1)
    intervals = max(1, round(float(result.manifest["end_ns"]) / interval_ns / bins))
    return np.unique(np.append(np.arange(0, samples, intervals), samples - 1))


def _arrived_or_lost(change: Rows) -> Array:
    return change["received_segments"] + change["lost_packets"]


def _ratio(part: Array, whole: Array) -> Array:
    """Return part / whole, NaN where the whole is 0."""
    ratio: Array = np.divide(part, whole, out=np.full(part.size, np.nan), where=whole > 0)
    return ratio


# --- directions ----------------------------------------------------------------------------------


def throughputs(result: Result, bins: int) -> list[Series]:
    """Return the IP bytes that each direction delivered, in Mbit/s, as `goodputs`."""
    found = []
    for name, rows in _directions(result):
        at = _bin_edges(result, rows["time_ns"].size, bins)
        time_ns, size_bytes = rows["time_ns"][at], rows["delivered_bytes"][at]
        rates = rate_bps(np.diff(size_bytes), np.diff(time_ns)) / 1e6
        values = np.append(rates, rates[-1:] if rates.size else 0.0)
        found.append(Series(name, time_ns / NS_PER_S, values, _heading(name)))
    return found


def queues(result: Result, _bins: int) -> list[Series]:
    """Return the queue of each direction, in kB of IP packets."""
    return [
        Series(name, rows["time_ns"] / NS_PER_S, rows["queue_bytes"] / 1e3, _heading(name))
        for name, rows in _directions(result)
    ]


def drops(result: Result, _bins: int) -> list[Series]:
    """Return the packets dropped since the start, by direction and cause that dropped some."""
    found = []
    for name, rows in _directions(result):
        for cause in drop_causes(result):
            values = rows[f"dropped_{cause}_packets"]
            if values[-1] > 0:
                what = cause.replace("_", " ")
                names = f"{name}: {what}", f"{_heading(name)}: {what}"
                found.append(Series(names[0], rows["time_ns"] / NS_PER_S, values, names[1]))
    return found


def _heading(direction: str) -> str:
    """Return ``forward`` or ``return`` for the name of a direction, such as ``return-2``."""
    return direction.partition("-")[0]


def _directions(result: Result) -> list[tuple[str, Rows]]:
    names = result.manifest["names"]["directions"]
    parts = _parts(result.tables["direction_samples"], "direction")
    return [(names[number], rows) for number, rows in parts]


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


def bands(series: Sequence[Series], from_x: float = -np.inf, to_x: float = np.inf) -> list[Band]:
    """Return the range of the lines of each group, at common times of an interval."""
    groups: dict[str, list[Series]] = {}
    for line in series:
        groups.setdefault(line.group, []).append(line)
    if len(groups) > _GROUPS_MAX:
        groups = {"lines": list(series)}
    return [_band(name, members, from_x, to_x) for name, members in groups.items()]


def _band(name: str, members: Sequence[Series], from_x: float, to_x: float) -> Band:
    first = max(min(line.x[0] for line in members), from_x)
    last = min(max(line.x[-1] for line in members), to_x)
    x = np.linspace(first, max(first, last), INTERVALS)
    values = np.array([_held(line, x) for line in members])
    known = ~np.isnan(values).all(axis=0)
    # NaN where no line is, which leaves a gap.
    low, middle, high = (np.full(x.size, np.nan) for _ in PERCENTILES)
    low[known], middle[known], high[known] = np.nanpercentile(values[:, known], PERCENTILES, axis=0)
    label = f"{name}: median, p5 to p95 of {len(members)}" if members[1:] else name
    return Band(label, x, low, middle, high)


def _held(series: Series, x: Array) -> Array:
    """Return the last value of a line at each time; NaN before its start and after its end."""
    values = series.values[np.searchsorted(series.x, x, side="right") - 1]
    is_outside = (x < series.x[0]) | (x > series.x[-1])
    return np.where(is_outside, np.nan, values)
