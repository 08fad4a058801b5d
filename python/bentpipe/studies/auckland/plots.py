"""The figures of the source redrawn with bands, and those of the queue, the ping and downloads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import matplotlib as mpl
import numpy as np

from bentpipe.report.style import INK, PALETTE, STYLE, add_legend, from_zero, log_axis, new_figure
from bentpipe.studies.auckland.cells import (
    CODED,
    LARGE_KB,
    QUEUES_KB,
    SMALL_KB,
    UNCODED,
    Cell,
    LinkPath,
)
from bentpipe.studies.auckland.effects import Measured
from bentpipe.studies.auckland.measure import (
    LOSS_AFTER,
    LOSS_BEFORE,
    PING_MAX,
    PING_MEAN,
    PING_P95,
    QUEUE_FULL,
    QUEUE_IDLE,
    REPAIR_SHARE,
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

_BLUE, _ORANGE, _GREEN, _RED = PALETTE[:4]
# A colour is what the gateways do; a dashed line has twice the redundancy.
_STYLES: Final = {
    LinkPath.PLAIN: (_BLUE, "solid", "o"),
    LinkPath.PEP: (_ORANGE, "solid", "s"),
    LinkPath.CODED_10: (_GREEN, "solid", "^"),
    LinkPath.CODED_20: (_GREEN, "dashed", "^"),
    LinkPath.TITRATED_10: (_RED, "solid", "v"),
    LinkPath.TITRATED_20: (_RED, "dashed", "v"),
}
_PUBLISHED: Final = (
    (1, SMALL_KB, TOTAL, "Total goodput [Mbit/s]"),
    (2, SMALL_KB, TRANSFER_GOODPUT, "Goodput of the transfer [Mbit/s]"),
    (3, LARGE_KB, TOTAL, "Total goodput [Mbit/s]"),
    (4, LARGE_KB, TRANSFER_GOODPUT, "Goodput of the transfer [Mbit/s]"),
)
# Of direct labels, in parts of the height of the axes: the least distance between two.
_LABEL_STEP: Final = 0.075
# The part of the width that labels take on the right.
_LABEL_ROOM: Final = 0.34


def published_figures(measured: Measured) -> Figure:
    """Draw figures 1 to 4 of the source: goodput over channels."""
    figure, panels = new_figure(2, 2, height_in=6.4)
    for axes, (number, queue_kb, name, label) in zip(panels, _PUBLISHED, strict=True):
        _curves(axes, measured, queue_kb, name, LinkPath)
        _title(axes, f"Figure {number}: queue of {queue_kb:,} kB")
        axes.set_ylabel(label)
        from_zero(axes)
    last = max(1, *(cell.channels for cell in measured))
    left = -0.03 * last
    ticks = [each for each in panels[0].get_xticks() if 0 <= each <= last]
    panels[0].set_xticks(ticks)
    panels[0].set_xlim(left, last + (last - left) * _LABEL_ROOM / (1 - _LABEL_ROOM))
    for axes in panels:
        _label_directly(axes)
    _name_x(panels, columns=2)
    return figure


def idle_figure(measured: Measured) -> Figure:
    """Draw for how long the queue was empty."""
    return _by_queue(measured, QUEUE_IDLE, "Queue empty [% of the time]")


def full_figure(measured: Measured) -> Figure:
    """Draw for how long the queue was full."""
    return _by_queue(measured, QUEUE_FULL, "Queue full [% of the time]")


def _by_queue(measured: Measured, name: str, label: str) -> Figure:
    figure, panels = new_figure(1, 2, height_in=3.0)
    for axes, queue_kb in zip(panels, QUEUES_KB, strict=True):
        _curves(axes, measured, queue_kb, name, LinkPath)
        _title(axes, f"queue of {queue_kb:,} kB")
        axes.set_ylabel(label)
        axes.label_outer()
        from_zero(axes)
    _add_legend(figure, panels[0])
    _name_x(panels, columns=2)
    return figure


def ping_figure(measured: Measured) -> Figure:
    """Draw mean, 95th percentile and maximum of the ping's RTT."""
    figure, panels = new_figure(3, 2, height_in=6.6)
    shown = ((PING_MEAN, "mean"), (PING_P95, "95 %"), (PING_MAX, "maximum"))
    places = [(name, label, queue_kb) for name, label in shown for queue_kb in QUEUES_KB]
    for axes, (name, label, queue_kb) in zip(panels, places, strict=True):
        _curves(axes, measured, queue_kb, name, LinkPath)
        _title(axes, f"queue of {queue_kb:,} kB")
        axes.set_ylabel(f"RTT, {label} [ms]")
        axes.label_outer()
    _add_legend(figure, panels[0])
    _name_x(panels, columns=2)
    return figure


def loss_figure(measured: Measured) -> Figure | None:
    """Draw what tunnels lost, before and after decoding, and their repair; None without tunnels."""
    if not any(cell.path in CODED for cell in measured):
        return None
    figure, panels = new_figure(3, 2, height_in=6.6)
    shown = (
        (LOSS_BEFORE, "Loss [%]"),
        (LOSS_AFTER, "Loss after decoding [%]"),
        (REPAIR_SHARE, "Repair [% of bytes]"),
    )
    places = [(name, label, queue_kb) for name, label in shown for queue_kb in QUEUES_KB]
    for axes, (name, label, queue_kb) in zip(panels, places, strict=True):
        _curves(axes, measured, queue_kb, name, CODED)
        _title(axes, f"queue of {queue_kb:,} kB")
        axes.set_ylabel(label)
        axes.label_outer()
        from_zero(axes)
    _add_legend(figure, panels[0])
    _name_x(panels, columns=2)
    return figure


def download_figure(measured: Measured) -> Figure:
    """Draw the median time of downloads over their size, for two numbers of channels."""
    coded = {cell.channels for cell in measured if cell.path in CODED}
    every = sorted((coded or {cell.channels for cell in measured}) - {0})
    chosen = [every[len(every) // 2], every[-1]] if every else [0, 0]
    figure, panels = new_figure(2, 2, height_in=6.0)
    x = list(range(len(SIZE_CLASSES)))
    places = [(queue_kb, channels) for queue_kb in QUEUES_KB for channels in chosen]
    for axes, (queue_kb, channels) in zip(panels, places, strict=True):
        for path in LinkPath:
            found = measured.get(Cell(channels, queue_kb, path))
            if found is not None:
                samples = [found[download_time(name)] for name in SIZE_CLASSES]
                plot_samples(axes, x, samples, label=path.value, **_style(path))
        _title(axes, f"queue of {queue_kb:,} kB, {channels} channels")
        axes.set_ylabel("Median time [s]")
        axes.label_outer()
    # Without a download there is nothing that a logarithmic scale could begin at.
    if any(_has_points(axes) for axes in panels):
        log_axis(panels[0].yaxis)
    for axes in panels[-2:]:
        axes.set_xticks(x, ["\n".join(name.rsplit(" ", 1)) for name in SIZE_CLASSES])
        axes.set_xlabel("Size of the download")
    _add_legend(figure, panels[0])
    return figure


def trace_figure(traces: Mapping[Cell, Trace]) -> Figure | None:
    """Draw the queue over time in one run of each cell; None without a run."""
    numbers = sorted({cell.channels for cell in traces})
    if not numbers:
        return None
    figure, panels = new_figure(len(numbers), 2, height_in=0.8 + 1.7 * len(numbers))
    places = [(channels, queue_kb) for channels in numbers for queue_kb in QUEUES_KB]
    for axes, (channels, queue_kb) in zip(panels, places, strict=True):
        for path in UNCODED:
            found = traces.get(Cell(channels, queue_kb, path))
            if found is not None:
                share = 100 * found.queue_kb / queue_kb
                colour = _style(path)["color"]
                axes.plot(
                    found.time_s, share, color=colour, linewidth=0.7, alpha=0.8, label=path.value
                )
        _title(axes, f"{queue_kb:,} kB, {channels} channels")
        axes.set_ylabel("Queue [% of its limit]")
        axes.set_ylim(0, 105)
        axes.label_outer()
    for axes in panels[-2:]:
        axes.set_xlabel("Time [s]")
    add_legend(panels[0])
    return figure


def _curves(
    axes: Axes, measured: Measured, queue_kb: int, figure: str, paths: Iterable[LinkPath]
) -> None:
    every = sorted({cell.channels for cell in measured})
    for path in paths:
        channels = [n for n in every if Cell(n, queue_kb, path) in measured]
        samples = [measured[Cell(n, queue_kb, path)][figure] for n in channels]
        if channels:
            plot_samples(axes, channels, samples, label=path.value, **_style(path))


def _style(path: LinkPath) -> dict[str, Any]:
    colour, line, marker = _STYLES[path]
    return {"color": colour, "linestyle": line, "marker": marker, "markersize": 3.5}


def _has_points(axes: Axes) -> bool:
    return any(np.isfinite(np.asarray(line.get_ydata(), dtype=float)).any() for line in axes.lines)


def _label_directly(axes: Axes) -> None:
    """Write the name of each curve at its right end, apart from the others."""
    ends = []
    low, high = axes.get_ylim()
    for line in axes.lines:
        x, y = (np.asarray(each, dtype=float) for each in (line.get_xdata(), line.get_ydata()))
        shown = np.flatnonzero(np.isfinite(y))
        if shown.size:
            ends.append(((y[shown[-1]] - low) / (high - low), x[shown[-1]], line))
    if not ends:
        return
    ends.sort(key=lambda end: end[0])
    # From below each label keeps its distance, then all go down if the highest is too high.
    places: list[float] = []
    for wanted, _, _ in ends:
        places.append(max(wanted, places[-1] + _LABEL_STEP) if places else wanted)
    top = 1.0
    for number in reversed(range(len(places))):
        places[number] = min(places[number], top)
        top = places[number] - _LABEL_STEP
    for place, (wanted, x, line) in zip(places, ends, strict=True):
        axes.annotate(
            str(line.get_label()),
            xy=(x, wanted),
            xytext=(1 - _LABEL_ROOM + 0.05, place),
            xycoords=("data", "axes fraction"),
            textcoords="axes fraction",
            va="center",
            fontsize=7.5,
            color=line.get_color(),
            arrowprops={"arrowstyle": "-", "color": line.get_color(), "linewidth": 0.5},
        )


def _add_legend(figure: Figure, axes: Axes) -> None:
    """Add a legend of all curves above the panels, each of which has the same."""
    with mpl.rc_context(STYLE):
        figure.legend(
            *axes.get_legend_handles_labels(), loc="outside upper left", ncols=6, labelcolor=INK
        )


def _title(axes: Axes, text: str) -> None:
    axes.set_title(text, loc="right", fontsize=9, color=INK)


def _name_x(panels: list[Axes], *, columns: int) -> None:
    for axes in panels[-columns:]:
        axes.set_xlabel("Channels")
