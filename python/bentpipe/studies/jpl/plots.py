"""Utilization over delay, published and simulated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bentpipe.report.style import INK, PALETTE, add_legend, new_figure
from bentpipe.studies.base.comparison import Comparison
from bentpipe.studies.base.plots import plot_means, plot_published
from bentpipe.studies.jpl.cells import BIT_ERROR_RATES, either_window

if TYPE_CHECKING:
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
            delays_ms = [float(row.labels["one_way_delay_ms"]) for row in rows]
            plot_means(axes, delays_ms, rows, name, colour)
            plot_published(axes, delays_ms, rows, colour)
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
