"""Figures of a result, as matplotlib figures; every axis names its quantity and unit.

Each function takes a `Result` with time series and returns a figure that belongs to nobody: save it
with ``figure.savefig(...)``. Long series are thinned to the extremes of each stretch of time, so
that peaks stay. More than eight flows or directions are drawn as their median and range.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from bentpipe.errors import UsageError
from bentpipe.results.metrics import exchange_times_ns
from bentpipe.results.tables import DROP_CAUSES

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from bentpipe.results.result import Result

INK: Final = "#1d242c"
MUTED: Final = "#5d6873"
GRID: Final = "#dde2e7"
# Told apart by eyes of every kind when at most four are used; dark enough on white.
PALETTE: Final = (
    "#1769aa",
    "#c2620a",
    "#1c8558",
    "#bf3540",
    "#6f4bb8",
    "#8a6a12",
    "#0f7f88",
    "#a83b7d",
)
# Any: matplotlib's type for settings spells out every key.
STYLE: Final[Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9.0,
    "text.color": INK,
    # A flow's name may have dollars in it; it is no formula.
    "text.parse_math": False,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.titlesize": 10.0,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "lines.linewidth": 1.4,
    "lines.solid_joinstyle": "round",
    # Text stays text: smaller, searchable, and it follows the page's colour.
    "svg.fonttype": "none",
    "savefig.dpi": 150,
}

_MAX_LINES: Final = 8
# Two points each; about as many as a wide figure has pixels.
_STRETCHES: Final = 400
_GOODPUT_BINS: Final = 160
_NS_PER_S: Final = 1e9
# As long as one exchange takes twenty times as long as another, a linear scale shows only the long.
_WIDE_SPREAD: Final = 20
_WIDTH_IN: Final = 8.6
_HEIGHT_IN: Final = 2.7

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class _Series:
    """A named line: times in s and values; NaN where there is none."""

    name: str
    time_s: Array
    values: Array


def has_time_series(result: Result) -> bool:
    """Whether the run was sampled, so that there is something to draw."""
    return result.tables["flow_samples"].height > 0 or result.tables["direction_samples"].height > 0


def has_tcp_flows(result: Result) -> bool:
    """Whether a flow has a congestion window to draw."""
    return result.tables["flow_samples"].height > 0


def has_exchanges(result: Result) -> bool:
    """Whether an exchange was finished."""
    return exchange_times_ns(result).size > 0


def has_drops(result: Result) -> bool:
    """Whether a direction dropped a packet."""
    return bool(drop_causes(result))


def drop_causes(result: Result) -> list[str]:
    """Return the causes of drops that happened in some direction, by their names in columns."""
    table = result.tables["directions"]
    return [cause for cause in DROP_CAUSES if table[f"dropped_packets_{cause}"].sum() > 0]


def windows(result: Result) -> Figure:
    """Draw congestion window and data in flight of the TCP flows, in kB, over time in s.

    Raises:
        UsageError: the run was not sampled.
    """
    return _by_flow(
        result,
        (
            ("Congestion window [kB]", lambda rows: rows["cwnd_bytes"] / 1e3),
            ("In flight [kB]", lambda rows: rows["in_flight_bytes"] / 1e3),
        ),
    )


def round_trip_times(result: Result) -> Figure:
    """Draw the smoothed round-trip time of the TCP flows, in ms, over time in s.

    Raises:
        UsageError: the run was not sampled.
    """
    return _by_flow(result, (("Smoothed RTT [ms]", lambda rows: rows["srtt_ns"] / 1e6),))


def goodput(result: Result) -> Figure:
    """Draw the goodput of each TCP flow, application bytes delivered in order, in Mbit/s.

    Raises:
        UsageError: the run was not sampled.
    """
    flows = _tcp_flows(result)
    last_ns = float(max((rows["time_ns"][-1] for _name, rows in flows), default=0))
    series = [_rates(result, name, rows, last_ns) for name, rows in flows]
    figure, (axes,) = _figure(1)
    _draw(axes, [each for each in series if each.time_s.size > 0], noun="flows", steps=True)
    axes.set_ylabel("Goodput [Mbit/s]")
    return figure


def queues(result: Result) -> Figure:
    """Draw the bytes that wait in the queue of each direction, in kB of IP packets, over time in s.

    Raises:
        UsageError: the run was not sampled.
    """
    figure, (axes,) = _figure(1)
    _draw(
        axes,
        [
            _Series(name, rows["time_ns"] / _NS_PER_S, rows["queue_bytes"] / 1e3)
            for name, rows in _directions(result)
        ],
        noun="directions",
    )
    axes.set_ylabel("Queue [kB]")
    return figure


def drops(result: Result) -> Figure:
    """Draw the packets dropped so far, by direction and cause, over time in s.

    A cause that dropped nothing is left out.

    Raises:
        UsageError: the run was not sampled.
    """
    figure, (axes,) = _figure(1)
    series = [
        _Series(f"{name}: {cause.replace('_', ' ')}", rows["time_ns"] / _NS_PER_S, rows[column])
        for name, rows in _directions(result)
        for cause in drop_causes(result)
        if rows[column := f"dropped_packets_{cause}"][-1] > 0
    ]
    _draw(axes, series, noun="directions and causes", steps=True)
    axes.set_ylabel("Dropped [packets]")
    return figure


def exchange_times(result: Result) -> Figure:
    """Draw which share of each flow's exchanges took at most so long, over the time in s.

    More flows than can be told apart are drawn as one line of all their exchanges. The scale is
    logarithmic where times are far apart.

    Raises:
        UsageError: no exchange was finished.
    """
    if not has_exchanges(result):
        raise UsageError("the result has no finished exchanges to draw")
    table = result.exchanges.drop_nulls("time_ns")
    flows = sorted(set(table["flow"].to_list()))
    if len(flows) > _MAX_LINES:
        times = {f"{len(flows)} flows together": exchange_times_ns(result)}
    else:
        names = _flow_names(result)
        times = {names[flow]: exchange_times_ns(result, [flow]) for flow in flows}
    figure, (axes,) = new_figure(1, 1, height_in=_HEIGHT_IN)
    for i, (name, time_ns) in enumerate(times.items()):
        time_s = np.sort(time_ns) / _NS_PER_S
        share = np.arange(1, time_s.size + 1) / time_s.size
        # From the first exchange up: a step at each.
        time_s, share = np.repeat(time_s, 2), np.append(0, np.repeat(share, 2)[:-1])
        axes.plot(*thinned(time_s, share), color=PALETTE[i], label=f"{name}, {time_ns.size}")
    every_s = exchange_times_ns(result) / _NS_PER_S
    if 0 < every_s.min() * _WIDE_SPREAD < every_s.max():
        axes.set_xscale("log")
    else:
        axes.set_xlim(left=0)
    axes.set_ylim(0, 1.02)
    axes.set_xlabel("Exchange time [s]")
    axes.set_ylabel("Share of exchanges")
    add_legend(axes)
    return figure


def thinned(time: Array, values: Array, stretches: int = _STRETCHES) -> tuple[Array, Array]:
    """Keep the least and the largest value of each of so many stretches, in the order of time.

    First and last point stay. NaN is kept only where a whole stretch has nothing else.
    """
    if time.size <= 2 * stretches + 2:
        return time, values
    kept = [0, time.size - 1]
    for part in np.array_split(np.arange(time.size), stretches):
        known = part[~np.isnan(values[part])]
        if known.size == 0:
            kept.append(int(part[0]))
        else:
            kept += [int(known[values[known].argmin()]), int(known[values[known].argmax()])]
    rows = np.unique(kept)
    return time[rows], values[rows]


def new_figure(rows: int, columns: int, *, height_in: float) -> tuple[Figure, list[Axes]]:
    """Return a figure in the package's style, its axes row by row, all on common scales."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(_WIDTH_IN, height_in), layout="constrained")
        axes = figure.subplots(rows, columns, sharex=True, sharey=columns > 1, squeeze=False)
    return figure, list(axes.flat)


def from_zero(axes: Axes) -> None:
    """Let the vertical scale begin at zero, with room above lines that hardly vary."""
    highest = float(axes.dataLim.ymax)
    if np.isfinite(highest) and highest > 0:
        axes.set_ylim(0, 1.05 * highest)
    else:
        axes.set_ylim(bottom=0)


def add_legend(axes: Axes) -> None:
    """Add a legend above the axes, where it hides nothing."""
    import matplotlib as mpl

    entries = len(axes.get_legend_handles_labels()[0])
    with mpl.rc_context(STYLE):
        axes.legend(
            loc="lower left",
            bbox_to_anchor=(0, 1),
            ncols=min(4, entries),
            borderaxespad=0.2,
            labelcolor=INK,
        )


def _figure(panels: int) -> tuple[Figure, list[Axes]]:
    figure, axes = new_figure(panels, 1, height_in=_HEIGHT_IN * (0.3 + 0.7 * panels))
    axes[-1].set_xlabel("Time [s]")
    return figure, axes


def _by_flow(
    result: Result, panels: Iterable[tuple[str, Callable[[dict[str, Array]], Array]]]
) -> Figure:
    """Draw quantities of the TCP flows, one panel each."""
    panels = tuple(panels)
    figure, all_axes = _figure(len(panels))
    samples = _tcp_flows(result)
    for axes, (label, quantity) in zip(all_axes, panels, strict=True):
        series = [
            _Series(name, rows["time_ns"] / _NS_PER_S, quantity(rows)) for name, rows in samples
        ]
        _draw(axes, series, noun="flows", legend=axes is all_axes[0])
        axes.set_ylabel(label)
    return figure


def _draw(
    axes: Axes, series: list[_Series], *, noun: str, steps: bool = False, legend: bool = True
) -> None:
    style = "steps-post" if steps else "default"
    if len(series) > _MAX_LINES:
        _draw_crowd(axes, series, noun)
    else:
        for i, each in enumerate(series):
            time_s, values = thinned(each.time_s, each.values)
            # Later lines are thinner, so that one under another still shows.
            width = 1.8 - 0.8 * i / _MAX_LINES
            axes.plot(
                time_s,
                values,
                color=PALETTE[i],
                label=each.name,
                drawstyle=style,
                linewidth=width,
            )
    from_zero(axes)
    # Every figure of a run begins with the run, so that one can be read below the other.
    axes.margins(x=0)
    axes.set_xlim(left=0)
    if legend and series:
        add_legend(axes)


def _draw_crowd(axes: Axes, series: list[_Series], noun: str) -> None:
    """Draw median and range over lines that are too many to tell apart, at common times."""
    time_s = np.unique(np.concatenate([each.time_s for each in series]))
    values = np.full((len(series), time_s.size), np.nan)
    for i, each in enumerate(series):
        values[i, np.searchsorted(time_s, each.time_s)] = each.values
    known = ~np.isnan(values).all(axis=0)
    time_s, values = time_s[known], values[:, known]
    if time_s.size > _STRETCHES:
        rows = np.linspace(0, time_s.size - 1, _STRETCHES).astype(np.intp)
        time_s, values = time_s[rows], values[:, rows]
    low, middle, high = np.nanmin(values, 0), np.nanmedian(values, 0), np.nanmax(values, 0)
    axes.fill_between(
        time_s,
        low,
        high,
        color=PALETTE[0],
        alpha=0.2,
        linewidth=0,
        label=f"least to largest of {len(series)} {noun}",
    )
    axes.plot(time_s, middle, color=PALETTE[0], label="median")


def _rates(result: Result, name: str, rows: dict[str, Array], last_ns: float) -> _Series:
    """Return a flow's goodput in Mbit/s over stretches that suit every flow up to ``last_ns``."""
    time_ns, delivered_bytes = rows["time_ns"], rows["delivered_bytes"]
    interval_ns = float(result.plan["sample_interval_ns"] or 1)
    intervals = max(1, round(last_ns / interval_ns / _GOODPUT_BINS))
    at = np.unique(np.append(np.arange(0, time_ns.size, intervals), max(time_ns.size - 1, 0)))
    if time_ns.size < 2:  # noqa: PLR2004 - a rate needs two moments
        return _Series(name, np.empty(0), np.empty(0))
    elapsed_s = np.diff(time_ns[at]) / _NS_PER_S
    bits = np.diff(delivered_bytes[at]) * 8
    rate = np.divide(bits, elapsed_s, out=np.zeros_like(bits), where=elapsed_s > 0) / 1e6
    # Drawn as steps from the start of each stretch; the last value is held to the end.
    return _Series(name, time_ns[at] / _NS_PER_S, np.append(rate, rate[-1]))


def _flow_names(result: Result) -> list[str]:
    """Return what to call each flow of the plan."""
    ways = zip(result.plan["flows"], result.flow_directions, strict=True)
    return [f"{flow['name']} ({direction})" for flow, direction in ways]


def _tcp_flows(result: Result) -> list[tuple[str, dict[str, Array]]]:
    """Return name and samples of each flow that has some, in the order of the plan."""
    _require_samples(result)
    return _parts(result.tables["flow_samples"], "flow", _flow_names(result))


def _directions(result: Result) -> list[tuple[str, dict[str, Array]]]:
    _require_samples(result)
    names = result.manifest["names"]["directions"]
    return _parts(result.tables["direction_samples"], "direction", names)


def _parts(table: pl.DataFrame, key: str, names: list[str]) -> list[tuple[str, dict[str, Array]]]:
    """Return the rows for each number in the column ``key``, as floats with NaN for null."""
    ordered = table.sort(key, maintain_order=True)
    numbers, starts = np.unique(ordered[key].to_numpy(), return_index=True)
    # Whole columns first: a table may have thousands of parts.
    columns = {
        name: ordered[name].cast(float).fill_null(np.nan).to_numpy() for name in table.columns
    }
    ends = [*starts[1:], table.height]
    return [
        (names[number], {name: values[start:end] for name, values in columns.items()})
        for number, start, end in zip(numbers, starts, ends, strict=True)
    ]


def _require_samples(result: Result) -> None:
    if not has_time_series(result):
        raise UsageError("the result has no time series; set sample_interval and run again")
