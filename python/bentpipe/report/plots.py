"""Plots of a result; every axis names its quantity and unit.

Each function draws one quantity on ``ax``, or on the axes of a new figure, and returns the axes:
``plots.queues(result).figure.savefig("queues.svg")``. Long series are thinned to the extremes of
each interval, so that peaks remain visible. More than twelve flows are drawn by entry of
``traffic``, and the returns of more than eleven terminals together: their median and the range from
the 5th to the 95th percentile. A line begins with its flow and ends with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from bentpipe.errors import UsageError
from bentpipe.report.style import PALETTE, add_legend, from_zero, log_axis, new_figure
from bentpipe.results.entries import MAX_SINGLE_FLOWS, PERCENTILES, entry_flows, entry_names
from bentpipe.results.metrics import exchange_times_ns
from bentpipe.results.tables import DROP_CAUSES
from bentpipe.units import NS_PER_S

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.axes import Axes

    from bentpipe.results.result import Result

# Two points each: about as many as a wide figure has pixels.
_INTERVALS: Final = 400
_GOODPUT_BINS: Final = 160
# Of a band, which shows many flows: fewer, since each sends in bursts.
_BAND_BINS: Final = 40
# Beyond this ratio of exchange times, a linear scale hides the short ones.
_WIDE_SPREAD: Final = 20
_HEIGHT_IN: Final = 2.7

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class _Series:
    """A named line: times in s and values, two arrays of equal length; NaN is a missing value.

    Many lines are drawn as one band for each ``group``.
    """

    name: str
    time_s: Array
    values: Array
    group: str


def has_time_series(result: Result) -> bool:
    """Return whether the run was sampled."""
    return result.tables["flow_samples"].height > 0 or result.tables["direction_samples"].height > 0


def has_tcp_flows(result: Result) -> bool:
    """Return whether a flow has a congestion window to draw."""
    return result.tables["flow_samples"].height > 0


def has_exchanges(result: Result) -> bool:
    """Return whether an exchange was finished."""
    return exchange_times_ns(result).size > 0


def has_drops(result: Result) -> bool:
    """Return whether a direction dropped a packet."""
    return bool(drop_causes(result))


def drop_causes(result: Result) -> list[str]:
    """Return the causes for which some direction dropped packets, by their names in columns."""
    table = result.tables["directions"]
    return [cause for cause in DROP_CAUSES if table[f"dropped_{cause}_packets"].sum() > 0]


def congestion_window(result: Result, *, ax: Axes | None = None) -> Axes:
    """Draw the congestion window of each TCP flow, in kB, over time in s.

    Raises:
        UsageError: the run was not sampled.
    """
    return _by_flow(result, "Congestion window [kB]", lambda rows: rows["cwnd_bytes"] / 1e3, ax)


def in_flight(result: Result, *, ax: Axes | None = None) -> Axes:
    """Draw the data in flight of each TCP flow, in kB, over time in s.

    Raises:
        UsageError: the run was not sampled.
    """
    return _by_flow(result, "In flight [kB]", lambda rows: rows["in_flight_bytes"] / 1e3, ax)


def smoothed_rtt(result: Result, *, ax: Axes | None = None) -> Axes:
    """Draw the smoothed round-trip time (RFC 6298) of each TCP flow, in ms, over time in s.

    Raises:
        UsageError: the run was not sampled.
    """
    return _by_flow(result, "Smoothed RTT [ms]", lambda rows: rows["srtt_ns"] / 1e6, ax)


def goodput(result: Result, *, ax: Axes | None = None) -> Axes:
    """Draw the goodput of each TCP flow, application bytes delivered in order, in Mbit/s.

    Raises:
        UsageError: the run was not sampled.
    """
    flows = _tcp_flows(result)
    last_ns = float(max((flow.rows["time_ns"][-1] for flow in flows), default=0))
    bins = _GOODPUT_BINS if len(flows) <= MAX_SINGLE_FLOWS else _BAND_BINS
    series = [_rates(result, flow, last_ns, bins) for flow in flows]
    return _draw(ax, series, "Goodput [Mbit/s]", steps=True)


def queues(result: Result, *, ax: Axes | None = None) -> Axes:
    """Draw the queue of each direction, in kB of IP packets, over time in s.

    Raises:
        UsageError: the run was not sampled.
    """
    series = [
        _Series(name, rows["time_ns"] / NS_PER_S, rows["queue_bytes"] / 1e3, name.split("-")[0])
        for name, rows in _directions(result)
    ]
    return _draw(ax, series, "Queue [kB]")


def drops(result: Result, *, ax: Axes | None = None) -> Axes:
    """Draw the packets dropped since the start, by direction and cause, over time in s.

    A cause that dropped nothing is left out.

    Raises:
        UsageError: the run was not sampled.
    """
    series = [
        _Series(
            f"{name}: {cause.replace('_', ' ')}",
            rows["time_ns"] / NS_PER_S,
            rows[column],
            f"{name.split('-')[0]}: {cause.replace('_', ' ')}",
        )
        for name, rows in _directions(result)
        for cause in drop_causes(result)
        if rows[column := f"dropped_{cause}_packets"][-1] > 0
    ]
    return _draw(ax, series, "Dropped [packets]", steps=True)


def exchange_times(result: Result, *, ax: Axes | None = None) -> Axes:
    """Draw the distribution function of each flow's exchange times, in s.

    More than twelve flows are drawn by entry of ``traffic``: a line of all exchanges of the entry.
    The scale is logarithmic where times are far apart.

    Raises:
        UsageError: no exchange was finished.
    """
    if not has_exchanges(result):
        raise UsageError("the result has no finished exchanges to draw")
    table = result.tables["exchanges"].drop_nulls("finished_ns")
    flows = sorted(set(table["flow"].to_list()))
    names = _flow_names(result)
    times = {names[flow]: exchange_times_ns(result, [flow]) for flow in flows}
    if len(flows) > MAX_SINGLE_FLOWS:
        groups = {name: sorted({*own} & {*flows}) for name, own in _entries(result).items()}
        times = {name: exchange_times_ns(result, own) for name, own in groups.items() if own}
    if len(times) > MAX_SINGLE_FLOWS:
        times = {f"{len(flows)} flows together": exchange_times_ns(result)}
    axes = _new_axes() if ax is None else ax
    for i, (name, time_ns) in enumerate(times.items()):
        time_s = np.sort(time_ns) / NS_PER_S
        share = np.arange(1, time_s.size + 1) / time_s.size
        # The function is 0 before the first exchange and steps up at each.
        time_s, share = np.repeat(time_s, 2), np.append(0, np.repeat(share, 2)[:-1])
        axes.plot(*thinned(time_s, share), **_line(i), label=f"{name}, {time_ns.size}")
    every_s = exchange_times_ns(result) / NS_PER_S
    if 0 < every_s.min() * _WIDE_SPREAD < every_s.max():
        log_axis(axes.xaxis)
    else:
        axes.set_xlim(left=0)
    axes.set_ylim(0, 1.02)
    axes.set_xlabel("Exchange time [s]")
    axes.set_ylabel("Share of exchanges")
    add_legend(axes)
    return axes


def thinned(time: Array, values: Array, intervals: int = _INTERVALS) -> tuple[Array, Array]:
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


def _new_axes() -> Axes:
    _figure, (axes,) = new_figure(1, 1, height_in=_HEIGHT_IN)
    return axes


def _by_flow(
    result: Result, label: str, quantity: Callable[[dict[str, Array]], Array], ax: Axes | None
) -> Axes:
    """Draw a quantity of each TCP flow."""
    series = [
        _Series(
            flow.name,
            flow.rows["time_ns"][flow.active] / NS_PER_S,
            quantity(flow.rows)[flow.active],
            flow.group,
        )
        for flow in _tcp_flows(result)
    ]
    return _draw(ax, series, label)


def _draw(ax: Axes | None, series: list[_Series], label: str, *, steps: bool = False) -> Axes:
    """Draw series over time on ``ax``, or on new axes; ``label`` names the quantity and unit."""
    axes = _new_axes() if ax is None else ax
    # A flow may be shorter than the interval of the samples.
    series = [each for each in series if each.time_s.size > 0]
    if len(series) > MAX_SINGLE_FLOWS:
        _draw_bands(axes, series)
    else:
        for i, each in enumerate(series):
            time_s, values = thinned(each.time_s, each.values)
            axes.plot(
                time_s,
                values,
                **_line(i),
                label=each.name,
                drawstyle="steps-post" if steps else "default",
                # Later lines are thinner, so that lines below them remain visible.
                linewidth=1.8 - 0.8 * i / MAX_SINGLE_FLOWS,
            )
    from_zero(axes)
    # All plots of a run begin at its start, so that they can be compared.
    axes.margins(x=0)
    axes.set_xlim(left=0)
    axes.set_xlabel("Time [s]")
    axes.set_ylabel(label)
    if series:
        add_legend(axes)
    return axes


def _line(i: int) -> dict[str, Any]:
    """Return colour and style of the line with this number; lines of one colour differ in style."""
    return {
        "color": PALETTE[i % len(PALETTE)],
        "linestyle": "solid" if i < len(PALETTE) else "dashed",
    }


def _draw_bands(axes: Axes, series: list[_Series]) -> None:
    """Draw the median and the range p5 to p95 of each group of lines, at common times."""
    groups: dict[str, list[_Series]] = {}
    for each in series:
        groups.setdefault(each.group, []).append(each)
    if len(groups) > len(PALETTE):
        groups = {"lines": series}
    for i, (name, members) in enumerate(groups.items()):
        first_s = min(each.time_s[0] for each in members)
        last_s = max(each.time_s[-1] for each in members)
        time_s = np.linspace(first_s, last_s, _INTERVALS)
        values = np.array([_held(each, time_s) for each in members])
        known = ~np.isnan(values).all(axis=0)
        # NaN where no line is, which leaves a gap.
        low, middle, high = (np.full(time_s.size, np.nan) for _ in PERCENTILES)
        low[known], middle[known], high[known] = np.nanpercentile(
            values[:, known], PERCENTILES, axis=0
        )
        colour = PALETTE[i]
        axes.fill_between(time_s, low, high, color=colour, alpha=0.2, linewidth=0)
        label = f"{name}: median, p5 to p95 of {len(members)}" if members[1:] else name
        axes.plot(time_s, middle, color=colour, label=label)


def _held(series: _Series, time_s: Array) -> Array:
    """Return the last value of a line at each time; NaN before its start and after its end."""
    values = series.values[np.searchsorted(series.time_s, time_s, side="right") - 1]
    is_outside = (time_s < series.time_s[0]) | (time_s > series.time_s[-1])
    return np.where(is_outside, np.nan, values)


def _rates(result: Result, flow: _Flow, last_ns: float, bins: int) -> _Series:
    """Return a flow's goodput in Mbit/s, over ``bins`` intervals up to ``last_ns``."""
    nothing = _Series(flow.name, np.empty(0), np.empty(0), flow.group)
    # From the last sample before the start to the first one after the end.
    around = np.flatnonzero(flow.active)
    if around.size == 0:
        return nothing
    rows = slice(max(around[0] - 1, 0), around[-1] + 2)
    time_ns = np.clip(flow.rows["time_ns"][rows], flow.start_ns, flow.end_ns)
    delivered_bytes = flow.rows["delivered_bytes"][rows]
    interval_ns = float(result.plan["sample_interval_ns"] or 1)
    intervals = max(1, round(last_ns / interval_ns / bins))
    at = np.unique(np.append(np.arange(0, time_ns.size, intervals), time_ns.size - 1))
    if at.size < 2:  # noqa: PLR2004 - a rate needs two moments
        return nothing
    elapsed_s = np.diff(time_ns[at]) / NS_PER_S
    bits = np.diff(delivered_bytes[at]) * 8
    rate = np.divide(bits, elapsed_s, out=np.zeros_like(bits), where=elapsed_s > 0) / 1e6
    # Drawn as steps from the start of each interval; the last value is held to the end.
    time_s = time_ns[at] / NS_PER_S
    return _Series(flow.name, time_s, np.append(rate, rate[-1]), flow.group)


def _entries(result: Result) -> dict[str, list[int]]:
    """Return the flows of each entry of ``traffic`` and direction, by name."""
    names = entry_names(result)
    return {
        f"{names[own[0]]} ({heading})": own for (_, heading), own in entry_flows(result).items()
    }


def _flow_names(result: Result) -> list[str]:
    """Return the name of each flow of the plan, with its direction."""
    pairs = zip(result.plan["flows"], result.flow_directions, strict=True)
    return [f"{flow['name']} ({direction})" for flow, direction in pairs]


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
    groups = {flow: name for name, flows in _entries(result).items() for flow in flows}
    flows = result.tables["flows"].select("start_ns", "finished_ns").rows()
    names = _flow_names(result)
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
