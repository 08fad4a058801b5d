"""Plots of a result; every axis names its quantity and unit.

Each function draws one quantity on ``ax``, or on the axes of a new figure, and returns the axes:
``plots.queues(result).figure.savefig("queues.svg")``. Long series are thinned to the extremes of
each interval, so that peaks remain visible. More than twelve flows are drawn by entry of
``traffic``, and the returns of more than eleven terminals together: their median and the range from
the 5th to the 95th percentile. A line begins with its flow and ends with it. Outages are shaded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from bentpipe.errors import UsageError
from bentpipe.report.style import MUTED, PALETTE, add_legend, from_zero, log_axis, new_figure
from bentpipe.results import series
from bentpipe.results.entries import MAX_SINGLE_FLOWS
from bentpipe.results.measures import exchange_times_ns, page_load_times_ns
from bentpipe.results.outages import outages
from bentpipe.results.series import Series, drop_causes, entries_by_name, flow_names, thinned
from bentpipe.units import NS_PER_S

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from bentpipe.results.result import Result

# Beyond this ratio of exchange times, a linear scale hides the short ones.
_WIDE_SPREAD: Final = 20
_HEIGHT_IN: Final = 2.7
# Of outages of both directions or the first, and of the second.
_SHADES: Final = (MUTED, PALETTE[5])


def has_exchanges(result: Result) -> bool:
    """Return whether an exchange was finished."""
    return exchange_times_ns(result).size > 0


def has_pages(result: Result) -> bool:
    """Return whether a web page was finished."""
    return page_load_times_ns(result).size > 0


def has_drops(result: Result) -> bool:
    """Return whether a direction dropped a packet."""
    return bool(drop_causes(result))


def congestion_window(result: Result, *, ax: Axes | None = None) -> Axes:
    """Draw the congestion window of each TCP flow, in kB, over time in s.

    Raises:
        UsageError: the run was not sampled.
    """
    return _draw(ax, result, series.congestion_windows(result), "Congestion window [kB]")


def in_flight(result: Result, *, ax: Axes | None = None) -> Axes:
    """Draw the data in flight of each TCP flow, in kB, over time in s.

    Raises:
        UsageError: the run was not sampled.
    """
    return _draw(ax, result, series.in_flight(result), "In flight [kB]")


def smoothed_rtt(result: Result, *, ax: Axes | None = None) -> Axes:
    """Draw the smoothed round-trip time (RFC 6298) of each TCP flow, in ms, over time in s.

    Raises:
        UsageError: the run was not sampled.
    """
    return _draw(ax, result, series.smoothed_rtts(result), "Smoothed RTT [ms]")


def goodput(result: Result, *, ax: Axes | None = None) -> Axes:
    """Draw the goodput of each TCP flow, application bytes delivered in order, in Mbit/s.

    Raises:
        UsageError: the run was not sampled.
    """
    return _draw(ax, result, series.goodputs(result), "Goodput [Mbit/s]", steps=True)


def queues(result: Result, *, ax: Axes | None = None) -> Axes:
    """Draw the queue of each direction, in kB of IP packets, over time in s.

    Raises:
        UsageError: the run was not sampled.
    """
    return _draw(ax, result, series.queues(result), "Queue [kB]")


def drops(result: Result, *, ax: Axes | None = None) -> Axes:
    """Draw the packets dropped since the start, by direction and cause, over time in s.

    A cause that dropped nothing is left out.

    Raises:
        UsageError: the run was not sampled.
    """
    return _draw(ax, result, series.drops(result), "Dropped [packets]", steps=True)


def exchange_times(result: Result, *, ax: Axes | None = None) -> Axes:
    """Draw the distribution function of each flow's exchange times, in s.

    More than twelve flows are drawn by entry of ``traffic``: a line of all exchanges of the entry.
    The scale is logarithmic where times are far apart.

    Raises:
        UsageError: no exchange was finished.
    """
    if not has_exchanges(result):
        raise UsageError("the result has no finished exchanges to draw")
    axes = _draw_times(result, "exchanges", exchange_times_ns, ax)
    axes.set_xlabel("Exchange time [s]")
    axes.set_ylabel("Share of exchanges")
    return axes


def page_load_times(result: Result, *, ax: Axes | None = None) -> Axes:
    """Draw the distribution function of each user's page load times, in s.

    More than twelve users are drawn by entry of ``traffic``. The scale is logarithmic where times
    are far apart.

    Raises:
        UsageError: no page was finished.
    """
    if not has_pages(result):
        raise UsageError("the result has no finished web pages to draw")
    axes = _draw_times(result, "pages", page_load_times_ns, ax)
    axes.set_xlabel("Page load time [s]")
    axes.set_ylabel("Share of pages")
    return axes


def _draw_times(
    result: Result,
    table: str,
    times_ns: Callable[[Result, Sequence[int] | None], npt.NDArray[np.int64]],
    ax: Axes | None,
) -> Axes:
    """Draw the distribution functions of the times of finished exchanges or pages."""
    finished = result.tables[table].drop_nulls("finished_ns")
    flows = sorted(set(finished["flow"].to_list()))
    names = flow_names(result)
    times = {names[flow]: times_ns(result, [flow]) for flow in flows}
    if len(flows) > MAX_SINGLE_FLOWS:
        groups = {name: sorted({*own} & {*flows}) for name, own in entries_by_name(result).items()}
        times = {name: times_ns(result, own) for name, own in groups.items() if own}
    if len(times) > MAX_SINGLE_FLOWS:
        times = {f"{len(flows)} flows together": times_ns(result, None)}
    axes = _new_axes() if ax is None else ax
    for i, (name, time_ns) in enumerate(times.items()):
        time_s = np.sort(time_ns) / NS_PER_S
        share = np.arange(1, time_s.size + 1) / time_s.size
        # The function is 0 before the first time and steps up at each.
        time_s, share = np.repeat(time_s, 2), np.append(0, np.repeat(share, 2)[:-1])
        axes.plot(*thinned(time_s, share), **_line(i), label=f"{name}, {time_ns.size}")
    every_s = times_ns(result, None) / NS_PER_S
    if 0 < every_s.min() * _WIDE_SPREAD < every_s.max():
        log_axis(axes.xaxis)
    else:
        axes.set_xlim(left=0)
    axes.set_ylim(0, 1.02)
    add_legend(axes)
    return axes


def _new_axes() -> Axes:
    _figure, (axes,) = new_figure(1, 1, height_in=_HEIGHT_IN)
    return axes


def _draw(
    ax: Axes | None, result: Result, lines: Sequence[Series], label: str, *, steps: bool = False
) -> Axes:
    """Draw lines over time on ``ax``, or on new axes; ``label`` names the quantity and unit."""
    axes = _new_axes() if ax is None else ax
    # A flow may be shorter than the interval of the samples.
    lines = [each for each in lines if each.time_s.size > 0]
    if len(lines) > MAX_SINGLE_FLOWS:
        _draw_bands(axes, lines)
    else:
        for i, each in enumerate(lines):
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
    _shade_outages(axes, result)
    axes.set_xlabel("Time [s]")
    axes.set_ylabel(label)
    if lines:
        add_legend(axes)
    return axes


def _shade_outages(axes: Axes, result: Result) -> None:
    """Shade the outages in the time that is drawn, below the lines."""
    first_s, last_s = axes.get_xlim()
    for each, colour in zip(outages(result), _SHADES, strict=False):
        intervals = each.visible(first_s, last_s, series.INTERVALS)
        if intervals.size:
            axes.broken_barh(
                [(start, end - start) for start, end in intervals],
                (0, 1),
                transform=axes.get_xaxis_transform(),
                label=each.name,
                facecolor=colour,
                # An outage shorter than a pixel stays visible.
                edgecolor=colour,
                linewidth=1,
                alpha=0.3,
                zorder=0.5,
            )
    axes.set_xlim(first_s, last_s)


def _line(i: int) -> dict[str, Any]:
    """Return colour and style of the line with this number; lines of one colour differ in style."""
    return {
        "color": PALETTE[i % len(PALETTE)],
        "linestyle": "solid" if i < len(PALETTE) else "dashed",
    }


def _draw_bands(axes: Axes, lines: Sequence[Series]) -> None:
    """Draw the median and the range p5 to p95 of each group of lines, at common times."""
    for band, colour in zip(series.bands(lines), PALETTE, strict=False):
        axes.fill_between(band.time_s, band.low, band.high, color=colour, alpha=0.2, linewidth=0)
        axes.plot(band.time_s, band.middle, color=colour, label=band.name)
