"""Quantities of a run over time: lines of flows and directions, thinned, and bands of many."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from bentpipe.errors import UsageError
from bentpipe.results.entries import MAX_SINGLE_FLOWS, PERCENTILES, entry_flows, entry_names
from bentpipe.results.measures import rate_bps
from bentpipe.results.tables import DROP_CAUSES
from bentpipe.units import NS_PER_S

if TYPE_CHECKING:
    import polars as pl

    from bentpipe.results.result import Result

# Two points each: about as many as a wide figure has pixels.
INTERVALS: Final = 400
GOODPUT_BINS: Final = 160
# Of a band, which shows many flows: fewer, since each sends in bursts.
_BAND_BINS: Final = 40
# More groups of lines than colours are one band.
_GROUPS_MAX: Final = 8

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Series:
    """A named line: times in s and values, two arrays of equal length; NaN is a missing value.

    Many lines are drawn as one band for each ``group``.
    """

    name: str
    time_s: Array
    values: Array
    group: str


@dataclass(frozen=True)
class Band:
    """The 5th, 50th and 95th percentile of many lines at common times; NaN where no line is."""

    name: str
    time_s: Array
    low: Array
    middle: Array
    high: Array
    lines: int


def has_time_series(result: Result) -> bool:
    """Return whether the run was sampled."""
    return result.tables["flow_samples"].height > 0 or result.tables["direction_samples"].height > 0


def has_tcp_flows(result: Result) -> bool:
    """Return whether a flow has a congestion window to draw."""
    return result.tables["flow_samples"].height > 0


def drop_causes(result: Result) -> list[str]:
    """Return the causes for which some direction dropped packets, by their names in columns."""
    table = result.tables["directions"]
    return [cause for cause in DROP_CAUSES if table[f"dropped_{cause}_packets"].sum() > 0]


def congestion_windows(result: Result) -> list[Series]:
    """Return the congestion window of each TCP flow, in kB.

    Raises:
        UsageError: the run was not sampled, as in the functions below.
    """
    return _by_flow(result, lambda rows: rows["cwnd_bytes"] / 1e3)


def in_flight(result: Result) -> list[Series]:
    """Return the data in flight of each TCP flow, in kB."""
    return _by_flow(result, lambda rows: rows["in_flight_bytes"] / 1e3)


def smoothed_rtts(result: Result) -> list[Series]:
    """Return the smoothed round-trip time (RFC 6298) of each TCP flow, in ms."""
    return _by_flow(result, lambda rows: rows["srtt_ns"] / 1e6)


def goodputs(result: Result, bins: int = GOODPUT_BINS) -> list[Series]:
    """Return the goodput of each TCP flow, application data delivered in order, in Mbit/s.

    The run has about ``bins`` values, each held until the next one.
    """
    flows = _tcp_flows(result)
    last_ns = float(max((flow.rows["time_ns"][-1] for flow in flows), default=0))
    if len(flows) > MAX_SINGLE_FLOWS:
        bins = min(bins, _BAND_BINS)
    return [_goodput(result, flow, last_ns, bins) for flow in flows]


def throughputs(result: Result, bins: int = GOODPUT_BINS) -> list[Series]:
    """Return the IP bytes that each direction delivered, in Mbit/s, as `goodputs`."""
    found = []
    for name, rows in _directions(result):
        time_ns = rows["time_ns"]
        at = _bin_edges(result, time_ns.size, float(time_ns[-1]), bins)
        values = _held_rates(rows["delivered_bytes"][at], time_ns[at])
        found.append(Series(name, time_ns[at] / NS_PER_S, values, _heading(name)))
    return found


def queues(result: Result) -> list[Series]:
    """Return the queue of each direction, in kB of IP packets."""
    return [
        Series(name, rows["time_ns"] / NS_PER_S, rows["queue_bytes"] / 1e3, _heading(name))
        for name, rows in _directions(result)
    ]


def drops(result: Result) -> list[Series]:
    """Return the packets dropped since the start, by direction and cause that dropped some."""
    return [
        Series(
            f"{name}: {cause.replace('_', ' ')}",
            rows["time_ns"] / NS_PER_S,
            rows[column],
            f"{_heading(name)}: {cause.replace('_', ' ')}",
        )
        for name, rows in _directions(result)
        for cause in drop_causes(result)
        if rows[column := f"dropped_{cause}_packets"][-1] > 0
    ]


def thinned(time: Array, values: Array, intervals: int = INTERVALS) -> tuple[Array, Array]:
    """Return the smallest and the largest value of each of ``intervals`` intervals, in time order.

    ``time`` and ``values`` are arrays of equal length; short ones are returned as they are. The
    first and the last point are kept, and NaN only where an interval has no other value.
    """
    if time.size <= 2 * intervals + 2:
        return time, values
    kept = [0, time.size - 1]
    for part in np.array_split(np.arange(time.size), intervals):
        known = part[~np.isnan(values[part])]
        if known.size == 0:
            kept.append(int(part[0]))
        else:
            kept += [int(known[values[known].argmin()]), int(known[values[known].argmax()])]
    rows = np.unique(kept)
    return time[rows], values[rows]


def bands(series: Sequence[Series]) -> list[Band]:
    """Return the range of the lines of each group, at common times."""
    groups: dict[str, list[Series]] = {}
    for each in series:
        groups.setdefault(each.group, []).append(each)
    if len(groups) > _GROUPS_MAX:
        groups = {"lines": list(series)}
    return [_band(name, members) for name, members in groups.items()]


def _band(name: str, members: Sequence[Series]) -> Band:
    first_s = min(each.time_s[0] for each in members)
    last_s = max(each.time_s[-1] for each in members)
    time_s = np.linspace(first_s, last_s, INTERVALS)
    values = np.array([_held(each, time_s) for each in members])
    known = ~np.isnan(values).all(axis=0)
    # NaN where no line is, which leaves a gap.
    low, middle, high = (np.full(time_s.size, np.nan) for _ in PERCENTILES)
    low[known], middle[known], high[known] = np.nanpercentile(values[:, known], PERCENTILES, axis=0)
    label = f"{name}: median, p5 to p95 of {len(members)}" if members[1:] else name
    return Band(label, time_s, low, middle, high, len(members))


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


def _by_flow(result: Result, quantity: Callable[[dict[str, Array]], Array]) -> list[Series]:
    """Return a quantity of each TCP flow."""
    return [
        Series(
            flow.name,
            flow.rows["time_ns"][flow.active] / NS_PER_S,
            quantity(flow.rows)[flow.active],
            flow.group,
        )
        for flow in _tcp_flows(result)
    ]


def _held(series: Series, time_s: Array) -> Array:
    """Return the last value of a line at each time; NaN before its start and after its end."""
    values = series.values[np.searchsorted(series.time_s, time_s, side="right") - 1]
    is_outside = (time_s < series.time_s[0]) | (time_s > series.time_s[-1])
    return np.where(is_outside, np.nan, values)


def _goodput(result: Result, flow: _Flow, last_ns: float, bins: int) -> Series:
    """Return a flow's goodput in Mbit/s, over ``bins`` intervals up to ``last_ns``."""
    nothing = Series(flow.name, np.empty(0), np.empty(0), flow.group)
    # From the last sample before the start to the first one after the end.
    around = np.flatnonzero(flow.active)
    if around.size == 0:
        return nothing
    rows = slice(max(around[0] - 1, 0), around[-1] + 2)
    time_ns = np.clip(flow.rows["time_ns"][rows], flow.start_ns, flow.end_ns)
    at = _bin_edges(result, time_ns.size, last_ns, bins)
    if at.size < 2:  # noqa: PLR2004 - a rate needs two moments
        return nothing
    values = _held_rates(flow.rows["delivered_bytes"][rows][at], time_ns[at])
    return Series(flow.name, time_ns[at] / NS_PER_S, values, flow.group)


def _bin_edges(result: Result, samples: int, last_ns: float, bins: int) -> npt.NDArray[np.intp]:
    """Return the samples between which rates are taken, so that ``last_ns`` has some ``bins``."""
    interval_ns = float(result.plan["sample_interval_ns"] or 1)
    intervals = max(1, round(last_ns / interval_ns / bins))
    return np.unique(np.append(np.arange(0, samples, intervals), samples - 1))


def _held_rates(size_bytes: Array, time_ns: Array) -> Array:
    """Return the rate from each moment to the next in Mbit/s; the last one is held to the end."""
    rates = rate_bps(np.diff(size_bytes), np.diff(time_ns)) / 1e6
    return np.append(rates, rates[-1:] if rates.size else 0.0)


def _heading(direction: str) -> str:
    """Return ``forward`` or ``return`` for the name of a direction, such as ``return-2``."""
    return direction.partition("-")[0]


@dataclass(frozen=True)
class _Flow:
    """A sampled flow: when it started and ended, its samples, and which of them are between."""

    name: str
    group: str
    start_ns: float
    end_ns: float
    rows: dict[str, Array]

    @property
    def active(self) -> npt.NDArray[np.bool_]:
        time_ns = self.rows["time_ns"]
        return (self.start_ns <= time_ns) & (time_ns <= self.end_ns)


def _tcp_flows(result: Result) -> list[_Flow]:
    """Return the flows that have samples, in the order of the plan."""
    _require_samples(result)
    groups = {flow: name for name, flows in entries_by_name(result).items() for flow in flows}
    flows = result.tables["flows"].select("start_ns", "finished_ns").rows()
    names = flow_names(result)
    found = []
    for number, rows in _parts(result.tables["flow_samples"], "flow"):
        start_ns, finished_ns = flows[number]
        end_ns = result.manifest["end_ns"] if finished_ns is None else finished_ns
        found.append(_Flow(names[number], groups[number], start_ns, end_ns, rows))
    return found


def _directions(result: Result) -> list[tuple[str, dict[str, Array]]]:
    _require_samples(result)
    names = result.manifest["names"]["directions"]
    parts = _parts(result.tables["direction_samples"], "direction")
    return [(names[number], rows) for number, rows in parts]


def _parts(table: pl.DataFrame, key: str) -> list[tuple[int, dict[str, Array]]]:
    """Return the rows for each number in the column ``key``, as floats with NaN for null."""
    ordered = table.sort(key, maintain_order=True)
    numbers, starts = np.unique(ordered[key].to_numpy(), return_index=True)
    # Whole columns first: a table may have thousands of parts.
    columns = {
        name: ordered[name].cast(float).fill_null(np.nan).to_numpy() for name in table.columns
    }
    ends = [*starts[1:], table.height]
    return [
        (int(number), {name: values[start:end] for name, values in columns.items()})
        for number, start, end in zip(numbers, starts, ends, strict=True)
    ]


def _require_samples(result: Result) -> None:
    if not has_time_series(result):
        raise UsageError("the result has no time series; set sample_interval and run again")
