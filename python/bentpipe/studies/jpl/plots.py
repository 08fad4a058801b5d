"""Utilization over delay, published and simulated."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from bentpipe.report.style import INK, PALETTE, add_legend, new_figure
from bentpipe.studies.base.comparison import Comparison, Row
from bentpipe.studies.jpl.cells import BIT_ERROR_RATES, either_window

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# "both" holds for either window.
_WINDOWS: Final = {"large windows": ("both", "yes"), "64 KB windows": ("both", "no")}


def curves(main: Comparison, small: Comparison | None = None) -> Figure:
    """Draw a panel for each bit error rate, with a line for each window.

    Where one published figure serves both windows, the line of the 64 KB windows has the rows of
    ``small``, if there are any.
    """
    with_small = main if small is None else either_window(main, small)
    figure, panels = new_figure(2, 2, height_in=5.4)
    for axes, rate in zip(panels, BIT_ERROR_RATES, strict=True):
        for colour, (name, windows) in zip(PALETTE, _WINDOWS.items(), strict=False):
            ours = main if "yes" in windows else with_small
            pairs = zip(main.rows, ours.rows, strict=True)
            rows = [
                drawn
                for row, drawn in pairs
                if row.labels["bit_error_rate"] == rate and row.labels["large_windows"] in windows
            ]
            _curve(axes, rows, name, colour)
        title = "no bit errors" if rate == "0" else f"bit error rate {rate}"
        axes.text(0.03, 0.06, title, transform=axes.transAxes, fontsize=10, color=INK)
        axes.set_ylim(0, 100)
        axes.label_outer()
    for axes in panels[::2]:
        axes.set_ylabel("Channel utilization [%]")
    for axes in panels[-2:]:
        axes.set_xlabel("One-way delay [ms]")
    add_legend(panels[0])
    return figure


def _curve(axes: Axes, rows: Sequence[Row], name: str, colour: str) -> None:
    delays_ms = [float(row.labels["one_way_delay_ms"]) for row in rows]
    means = [math.nan if row.simulated.mean is None else row.simulated.mean for row in rows]
    intervals = [row.simulated.interval for row in rows]
    axes.fill_between(
        delays_ms,
        [mean if each is None else each.low for mean, each in zip(means, intervals, strict=True)],
        [mean if each is None else each.high for mean, each in zip(means, intervals, strict=True)],
        color=colour,
        alpha=0.2,
        linewidth=0,
    )
    axes.plot(delays_ms, means, color=colour, label=name)
    axes.plot(
        delays_ms,
        [row.published for row in rows],
        linestyle="none",
        marker="o",
        markersize=5,
        markerfacecolor="none",
        markeredgecolor=colour,
        markeredgewidth=1.3,
    )
