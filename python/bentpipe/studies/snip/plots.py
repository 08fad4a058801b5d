"""Rates, windows, directions and loads of the study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from bentpipe.report.style import INK, MUTED, PALETTE, add_legend, log_axis, new_figure
from bentpipe.studies.base.comparison import Comparison
from bentpipe.studies.base.plots import plot_means, plot_published
from bentpipe.studies.snip.aggregation import PUBLISHED_LOAD_PPS, LoadPoint
from bentpipe.studies.snip.measure import Duplex

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def table_figure(comparison: Comparison, label: str) -> Figure:
    """Draw published and simulated values over packet size."""
    figure, (axes,) = new_figure(1, 1, height_in=3.2)
    sizes = [float(row.labels["packet_bytes"]) for row in comparison.rows]
    plot_means(axes, sizes, comparison.rows, "simulated", PALETTE[0])
    plot_published(axes, sizes, comparison.rows, PALETTE[1], "published")
    return _finish(figure, axes, "UDP payload [bytes]", label)


def duplex_figure(duplex: Sequence[Duplex]) -> Figure:
    """Draw the delivered over the offered packets a second of both directions."""
    figure, (axes,) = new_figure(1, 1, height_in=3.2)
    offered = [each.offered_pps for each in duplex]
    axes.plot(offered, [each.forward_pps for each in duplex], color=PALETTE[0], label="forward")
    axes.plot(
        offered,
        [each.return_pps for each in duplex],
        color=PALETTE[1],
        linestyle="none",
        marker="x",
        label="return",
    )
    axes.plot(offered, offered, color=MUTED, linestyle=":", linewidth=1, label="offered")
    return _finish(figure, axes, "Offered in each direction [packets/s]", "Delivered [packets/s]")


def window_figure(
    tcp_bps: Mapping[int, float], facts: Comparison, windows: Mapping[str, int]
) -> Figure:
    """Draw the goodput over the receive window, with the note's three figures."""
    figure, (axes,) = new_figure(1, 1, height_in=3.2)
    axes.plot(
        [window / 1e3 for window in tcp_bps],
        [bps / 1e3 for bps in tcp_bps.values()],
        color=PALETTE[0],
        marker="o",
        markersize=4,
        label="simulated",
    )
    for row in facts.rows:
        if row.name in windows and row.published is not None:
            axes.axhline(row.published, color=PALETTE[1], linestyle="--", linewidth=1)
            text = f"published, {row.name.rpartition('; ')[2]}"
            axes.text(1, row.published, text, va="bottom", color=INK)
    return _finish(figure, axes, "Receive window [kB]", "Goodput [kbit/s]")


def load_figure(loads: Sequence[LoadPoint], hold_times_ms: Sequence[int]) -> Figure:
    """Draw packets a frame and added delay over the load, a line for each hold time."""
    figure, (packets, delay) = new_figure(2, 1, height_in=4.8)
    for color, hold_ms in zip(PALETTE, hold_times_ms, strict=False):
        ours = [each for each in loads if each.hold_ms == hold_ms]
        offered = [each.offered_pps for each in ours]
        for axes, values in (
            (packets, [each.packets_per_frame for each in ours]),
            (delay, [each.added_delay_ms for each in ours]),
        ):
            axes.plot(offered, values, color=color, marker="o", label=f"{hold_ms} ms")
    packets.axvline(PUBLISHED_LOAD_PPS, color=MUTED, linestyle=":", label="published")
    packets.set_ylabel("Packets a frame")
    delay.set_ylabel("Added delay [ms]")
    delay.set_xlabel("Offered [packets/s]")
    for axes in (packets, delay):
        log_axis(axes.xaxis)
        axes.set_ylim(bottom=0)
        add_legend(axes)
    return figure


def _finish(figure: Figure, axes: Axes, across: str, up: str) -> Figure:
    """Label the axes and start both at zero, after everything is drawn."""
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    add_legend(axes)
    return figure
