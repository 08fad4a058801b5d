"""The figures of the source redrawn with bands, and those of the queue, the ping and downloads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import numpy as np

from bentpipe.report.style import INK, PALETTE, add_legend, from_zero, log_axis, new_figure
from bentpipe.studies.auckland.cells import LARGE_KB, QUEUES_KB, SMALL_KB, Cell
from bentpipe.studies.auckland.claims import Measured
from bentpipe.studies.auckland.measure import (
    PING_MEAN,
    PING_P95,
    QUEUE_FULL,
    QUEUE_IDLE,
    SIZE_CLASSES,
    TOTAL,
    TRANSFER_GOODPUT,
    Trace,
    download_time,
)
from bentpipe.studies.base.plots import plot_samples

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS: Final = {False: PALETTE[0], True: PALETTE[1]}
_PUBLISHED: Final = (
    (1, SMALL_KB, TOTAL, "Total goodput [Mbit/s]"),
    (2, SMALL_KB, TRANSFER_GOODPUT, "Goodput of the transfer [Mbit/s]"),
    (3, LARGE_KB, TOTAL, "Total goodput [Mbit/s]"),
    (4, LARGE_KB, TRANSFER_GOODPUT, "Goodput of the transfer [Mbit/s]"),
)
_LINES: Final = ("solid", "dashed", "dotted")


def published_figures(measured: Measured) -> Figure:
    """Draw figures 1 to 4 of the source: goodput over channels."""
    figure, panels = new_figure(2, 2, height_in=5.6)
    for axes, (number, queue_kb, name, label) in zip(panels, _PUBLISHED, strict=True):
        _curves(axes, measured, queue_kb, name)
        _title(axes, f"Figure {number}: queue of {queue_kb:,} kB")
        axes.set_ylabel(label)
        from_zero(axes)
    _finish(panels, columns=2)
    return figure


def queue_figure(measured: Measured) -> Figure:
    """Draw for how long the queue was empty and full."""
    figure, panels = new_figure(2, 1, height_in=5.2)
    shown = (
        (QUEUE_IDLE, "Queue empty [% of the time]"),
        (QUEUE_FULL, "Queue full [% of the time]"),
    )
    for axes, (name, label) in zip(panels, shown, strict=True):
        for queue_kb, line in zip(QUEUES_KB, _LINES, strict=False):
            _curves(axes, measured, queue_kb, name, line=line, suffix=f", {queue_kb:,} kB")
        axes.set_ylabel(label)
        from_zero(axes)
    _finish(panels, columns=1)
    return figure


def ping_figure(measured: Measured) -> Figure:
    """Draw mean and 95th percentile of the ping's RTT."""
    figure, panels = new_figure(1, 2, height_in=2.9)
    for axes, queue_kb in zip(panels, QUEUES_KB, strict=True):
        _curves(axes, measured, queue_kb, PING_MEAN, suffix=", mean")
        _curves(axes, measured, queue_kb, PING_P95, line="dashed", suffix=", 95 %")
        _title(axes, f"queue of {queue_kb:,} kB")
        axes.set_ylabel("RTT of the ping [ms]")
    _finish(panels, columns=2)
    return figure


def download_figure(measured: Measured) -> Figure:
    """Draw the median time of downloads over their size, for a few numbers of channels."""
    every = sorted({cell.channels for cell in measured} - {0})
    chosen = [every[i] for i in sorted({0, len(every) // 2, len(every) - 1})] if every else []
    figure, panels = new_figure(2, 1, height_in=6.0)
    x = list(range(len(SIZE_CLASSES)))
    for axes, queue_kb in zip(panels, QUEUES_KB, strict=True):
        for channels, line in zip(chosen, _LINES, strict=False):
            for pep, colour in _COLOURS.items():
                cell = Cell(channels, queue_kb, pep)
                samples = [measured[cell][download_time(name)] for name in SIZE_CLASSES]
                label = f"{cell.path}, {channels} channels"
                style = {"linestyle": line, "marker": "o", "markersize": 3}
                plot_samples(axes, x, samples, color=colour, label=label, **style)
        # Without a download there is nothing that a logarithmic scale could begin at.
        if any(np.isfinite(np.asarray(line.get_ydata(), dtype=float)).any() for line in axes.lines):
            log_axis(axes.yaxis)
        axes.set_ylabel(f"Median time [s], {queue_kb:,} kB")
    panels[-1].set_xticks(x, SIZE_CLASSES)
    panels[-1].set_xlabel("Size of the download")
    add_legend(panels[0])
    return figure


def trace_figure(traces: Mapping[Cell, Trace]) -> Figure | None:
    """Draw the queue over time in one run of each cell; None without a run."""
    numbers = sorted({cell.channels for cell in traces})
    if not numbers:
        return None
    figure, panels = new_figure(len(numbers), 2, height_in=0.8 + 1.7 * len(numbers))
    places = [(channels, queue_kb) for channels in numbers for queue_kb in QUEUES_KB]
    for axes, (channels, queue_kb) in zip(panels, places, strict=True):
        for pep, colour in _COLOURS.items():
            found = traces.get(Cell(channels, queue_kb, pep))
            if found is not None:
                share = 100 * found.queue_kb / queue_kb
                name = Cell(channels, queue_kb, pep).path
                axes.plot(found.time_s, share, color=colour, linewidth=0.7, alpha=0.8, label=name)
        _title(axes, f"{queue_kb:,} kB, {channels} channels")
        axes.set_ylabel("Queue [% of its limit]")
        axes.set_ylim(0, 105)
        axes.label_outer()
    for axes in panels[-2:]:
        axes.set_xlabel("Time [s]")
    add_legend(panels[0])
    return figure


def _curves(
    axes: Axes,
    measured: Measured,
    queue_kb: int,
    figure: str,
    *,
    line: str = "solid",
    suffix: str = "",
) -> None:
    channels = sorted({cell.channels for cell in measured})
    for pep, colour in _COLOURS.items():
        found = [measured[Cell(number, queue_kb, pep)] for number in channels]
        label = found[0].cell.path + suffix
        samples = [each[figure] for each in found]
        style = {"linestyle": line, "marker": "o", "markersize": 3}
        plot_samples(axes, channels, samples, color=colour, label=label, **style)


def _title(axes: Axes, text: str) -> None:
    axes.set_title(text, loc="right", fontsize=9, color=INK)


def _finish(panels: list[Axes], *, columns: int) -> None:
    for axes in panels[-columns:]:
        axes.set_xlabel("Channels")
    add_legend(panels[0])
