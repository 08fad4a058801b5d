"""The figures of the source redrawn with bands, and those of the queue, the ping and downloads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from bentpipe.report.style import INK, PALETTE, add_legend, from_zero, log_axis, new_figure
from bentpipe.studies.auckland import measure
from bentpipe.studies.auckland.cells import (
    CODED,
    LARGE_KB,
    QUEUES_KB,
    SMALL_KB,
    UNCODED,
    Cell,
    LinkPath,
)
from bentpipe.studies.auckland.measure import SIZE_CLASSES, Measured, download_time
from bentpipe.studies.base.plots import add_figure_legend, plot_samples

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from bentpipe.studies.base.samples import Array

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
    (1, SMALL_KB, measure.TOTAL, "Total goodput [Mbit/s]"),
    (2, SMALL_KB, measure.TRANSFER_GOODPUT, "Goodput of the transfer [Mbit/s]"),
    (3, LARGE_KB, measure.TOTAL, "Total goodput [Mbit/s]"),
    (4, LARGE_KB, measure.TRANSFER_GOODPUT, "Goodput of the transfer [Mbit/s]"),
)
# Those over both queues, by name: figures of cells with labels, the curves, whether y is from zero.
_GRIDS: Final[Mapping[str, tuple[tuple[tuple[str, str], ...], Iterable[LinkPath], bool]]] = {
    "idle_figure": (((measure.QUEUE_IDLE, "Queue empty [% of the time]"),), LinkPath, True),
    "full_figure": (((measure.QUEUE_FULL, "Queue full [% of the time]"),), LinkPath, True),
    "ping_figure": (
        (
            (measure.PING_MEAN, "RTT, mean [ms]"),
            (measure.PING_P95, "RTT, 95 % [ms]"),
            (measure.PING_MAX, "RTT, maximum [ms]"),
        ),
        LinkPath,
        False,
    ),
    "loss_figure": (
        (
            (measure.LOSS_BEFORE, "Loss [%]"),
            (measure.LOSS_AFTER, "Loss after decoding [%]"),
            (measure.REPAIR_SHARE, "Repair [% of bytes]"),
        ),
        CODED,
        True,
    ),
}
# Of direct labels, in parts of the height of the axes: the least distance between two.
_LABEL_STEP: Final = 0.09
# The part of the width that labels take on the right.
_LABEL_ROOM: Final = 0.38


def figures(
    measured: Measured, traces: Mapping[Cell, tuple[Array, Array]]
) -> dict[str, Figure | None]:
    """Return the figures by name; None for those without cells."""
    paths = {cell.path for cell in measured}
    found: dict[str, Figure | None] = {"figures": published_figures(measured)}
    for name, (shown, curves, from_0) in _GRIDS.items():
        some = paths.intersection(curves)
        found[name] = _grid(measured, shown, curves, from_0=from_0) if some else None
    found["download_figure"] = download_figure(measured)
    found["trace_figure"] = trace_figure(traces)
    return found


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
    _name_x(panels)
    return figure


def _grid(
    measured: Measured, shown: Sequence[tuple[str, str]], paths: Iterable[LinkPath], *, from_0: bool
) -> Figure:
    """Draw figures of cells over channels, a row for each and a panel for each queue."""
    figure, panels = new_figure(len(shown), 2, height_in=3.0 if len(shown) == 1 else 6.6)
    for axes, ((name, label), queue_kb) in zip(panels, product(shown, QUEUES_KB), strict=True):
        _curves(axes, measured, queue_kb, name, paths)
        _title(axes, f"queue of {queue_kb:,} kB")
        axes.set_ylabel(label)
        axes.label_outer()
        if from_0:
            from_zero(axes)
    add_figure_legend(figure, panels[0], columns=6)
    _name_x(panels)
    return figure


def download_figure(measured: Measured) -> Figure:
    """Draw the median time of downloads over their size, for two numbers of channels."""
    coded = {cell.channels for cell in measured if cell.path in CODED}
    every = sorted((coded or {cell.channels for cell in measured}) - {0})
    chosen = [every[len(every) // 2], every[-1]] if every else [0, 0]
    figure, panels = new_figure(2, 2, height_in=6.0)
    x = list(range(len(SIZE_CLASSES)))
    for axes, (queue_kb, channels) in zip(panels, product(QUEUES_KB, chosen), strict=True):
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
    add_figure_legend(figure, panels[0], columns=6)
    return figure


def trace_figure(traces: Mapping[Cell, tuple[Array, Array]]) -> Figure | None:
    """Draw the queue over time in one run of each cell; None without a run."""
    numbers = sorted({cell.channels for cell in traces})
    if not numbers:
        return None
    figure, panels = new_figure(len(numbers), 2, height_in=0.8 + 1.7 * len(numbers))
    for axes, (channels, queue_kb) in zip(panels, product(numbers, QUEUES_KB), strict=True):
        for path in UNCODED:
            found = traces.get(Cell(channels, queue_kb, path))
            if found is not None:
                time_s, waiting_kb = found
                style: dict[str, Any] = {"color": _STYLES[path][0], "linewidth": 0.7, "alpha": 0.8}
                axes.plot(time_s, 100 * waiting_kb / queue_kb, label=path.value, **style)
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
            fontsize=9,
            color=line.get_color(),
            arrowprops={"arrowstyle": "-", "color": line.get_color(), "linewidth": 0.5},
        )


def _title(axes: Axes, text: str) -> None:
    axes.set_title(text, loc="right", fontsize=9, color=INK)


def _name_x(panels: Sequence[Axes]) -> None:
    for axes in panels[-2:]:
        axes.set_xlabel("Channels")
