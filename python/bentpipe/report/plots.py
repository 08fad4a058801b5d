"""The charts of runs, and means of many runs, by matplotlib; every axis names quantity and unit.

Long series are thinned to the extremes of each interval, so that peaks remain visible. More than
twelve flows are drawn by entry of ``traffic``, and the returns of more than eleven terminals
together: their median and the range from the 5th to the 95th percentile. A line begins with its
flow and ends with it. Outages are shaded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any, Final
from weakref import WeakKeyDictionary

import matplotlib as mpl
import numpy as np
import polars as pl
from matplotlib.axes import Axes

from bentpipe.errors import UsageError
from bentpipe.metrics import label_of
from bentpipe.quantities import quantity
from bentpipe.report import style
from bentpipe.results.charts import INTERVALS, ChartData, Outages, with_unit
from bentpipe.results.confidence import mean_intervals
from bentpipe.results.measures import MAX_SINGLE_FLOWS

# Beyond this ratio of times, a linear scale hides the short ones.
_WIDE_SPREAD: Final = 20
_HEIGHT_IN: Final = 2.7
# Of outages of both directions or the first, and of the second.
_SHADES: Final = (style.MUTED, style.PALETTE[5])
_BAR_IN: Final = 0.35
_FRAME_IN: Final = 1.6
_BAR_HEIGHT: Final = 0.7
# The units of the bands on axes, by scale: x or y.
_units: Final[WeakKeyDictionary[Axes, dict[str, tuple[str, float]]]] = WeakKeyDictionary()
# In print without colour, lines differ by their markers.
_MARKERS: Final = "os^Dv<>P"


def draw(data: ChartData, *, ax: Axes | None = None) -> Axes:
    """Draw the data of a chart on ``ax``, or on new axes."""
    if ax is None:
        height_in = _FRAME_IN + _BAR_IN * len(data.bars) if data.bars else _HEIGHT_IN
        ax = style.new_figure(1, 1, height_in=height_in)[1][0]
    if data.chart.kind == "stacks":
        _draw_stacks(ax, data)
    else:
        draw_lines = _draw_over_time if data.chart.kind == "time" else _draw_distribution
        draw_lines(ax, data)
        ax.set_xlabel(data.chart.x_label)
        ax.set_ylabel(data.chart.label)
    if ax.get_legend_handles_labels()[0]:
        style.add_legend(ax)
    return ax


def _draw_over_time(axes: Axes, data: ChartData) -> None:
    steps = "steps-post" if data.chart.steps else "default"
    for i, line in enumerate(data.lines):
        look = _style(i)
        if line.bounds:
            axes.fill_between(line.x, *line.bounds, color=look["color"], alpha=0.2, linewidth=0)
        else:
            # Later lines are thinner, so that lines below them remain visible.
            look |= {"drawstyle": steps, "linewidth": 1.8 - 0.8 * i / MAX_SINGLE_FLOWS}
        axes.plot(line.x, line.values, label=line.name, **look)
    style.from_zero(axes)
    # All plots of a run begin at its start, so that they can be compared.
    axes.margins(x=0)
    axes.set_xlim(left=0)
    _shade(axes, data.outages)


def _draw_distribution(axes: Axes, data: ChartData) -> None:
    for i, line in enumerate(data.lines):
        axes.plot(line.x, line.values, label=line.name, **_style(i))
    low = min(line.x[0] for line in data.lines)
    high = max(line.x[-1] for line in data.lines)
    if 0 < low * _WIDE_SPREAD < high:
        style.log_axis(axes.xaxis)
    else:
        axes.set_xlim(left=0)
    axes.set_ylim(0, 1.02)


def _draw_stacks(axes: Axes, data: ChartData) -> None:
    """Draw a horizontal bar for each name, of the values of the lines one after the other."""
    left = [0.0] * len(data.bars)
    with mpl.rc_context(style.STYLE):
        for i, part in enumerate(data.lines):
            colour = style.PALETTE[i % len(style.PALETTE)]
            # The parts of a second palette are hatched.
            hatch = "///" if i >= len(style.PALETTE) else ""
            axes.barh(
                part.x,
                part.values,
                _BAR_HEIGHT,
                left=left,
                label=part.name,
                color="none" if hatch else colour,
                edgecolor=colour,
                hatch=hatch,
                linewidth=0.5,
            )
            left = [start + width for start, width in zip(left, part.values, strict=True)]
        axes.set_yticks(range(len(data.bars)), data.bars)
        axes.invert_yaxis()
        axes.set_xlim(0, 100)
        axes.grid(visible=False, axis="y")
        axes.set_xlabel(data.chart.label)


def _shade(axes: Axes, outages: Sequence[Outages]) -> None:
    """Shade the outages in the time that is drawn, below the lines."""
    first_s, last_s = axes.get_xlim()
    for outage, colour in zip(outages, _SHADES, strict=False):
        intervals = outage.visible(first_s, last_s, INTERVALS)
        if intervals.size:
            axes.broken_barh(
                [(start, end - start) for start, end in intervals],
                (0, 1),
                transform=axes.get_xaxis_transform(),
                label=outage.name,
                facecolor=colour,
                # An outage shorter than a pixel stays visible.
                edgecolor=colour,
                linewidth=1,
                alpha=0.3,
                zorder=0.5,
            )
    axes.set_xlim(first_s, last_s)


def _style(i: int) -> dict[str, Any]:
    """Return colour and style of the line with this number; lines of one colour differ in style."""
    return {
        "color": style.PALETTE[i % len(style.PALETTE)],
        "linestyle": "solid" if i < len(style.PALETTE) else "dashed",
    }


# --- many runs ------------------------------------------------------------------------------------


def band(
    frame: pl.DataFrame, x: str, y: str, *, by: str | None = None, ax: Axes | None = None
) -> Axes:
    """Draw the mean of column ``y`` over column ``x``, with its 95 % confidence interval as a band.

    ``frame`` has rows of many runs, such as `Sweep.flows`; each value of ``by`` has a line of its
    own. The interval is that of `bentpipe.results.mean_intervals`: the run is the sample, not the
    flow.
    A point of one run has no band. Units of the axes come from the names of the columns. Lines and
    legend on ``ax`` have the colours and sizes of its figure: the property cycle and ``rcParams``.

    Raises:
        UsageError: no such column, not a number, no rows, or runs that differ in further values.
    """
    if x in frame.columns and not frame.schema[x].is_numeric():
        number = next((name for name in frame.columns if name.startswith(f"{x}_")), None)
        hint = f"; take {number}" if number else ""
        raise UsageError(f"{x}: not a number, so it has no axis{hint}")
    axes = style.new_figure(1, 1, height_in=_HEIGHT_IN)[1][0] if ax is None else ax
    averages = means(frame, x, y, by, axes)
    if not any(line["x"] for line in averages.lines):
        raise UsageError(f"{y}: no row has a value to draw")
    _units[axes] = {"x": averages.x_unit, "y": averages.y_unit}
    draw_means(axes, averages.lines, markers=_MARKERS, styled=ax is None)
    style.from_zero(axes)
    axes.set_xlabel(_label(x, averages.x_unit[0]))
    axes.set_ylabel(_label(y, averages.y_unit[0]))
    if by is not None and ax is None:
        style.add_legend(axes, by)
    elif by is not None:
        axes.legend(title=by)
    return axes


@dataclass(frozen=True)
class Means:
    """Means over runs with their 95 % intervals, in the units of two axes, each with its size.

    A line has a ``name``, and lists of equal length: ``x``, ``y``, ``low``, ``high`` and ``runs``.
    """

    lines: Sequence[Mapping[str, Any]]
    x_unit: tuple[str, float]
    y_unit: tuple[str, float]


def means(
    frame: pl.DataFrame, x: str, y: str, by: str | None = None, axes: Axes | None = None
) -> Means:
    """Return the means of a column over another one, with a line for each value of ``by``.

    The units are those of bands on common scales with ``axes``, or those that fit.

    Raises:
        UsageError: as `mean_intervals`.
    """
    points = mean_intervals(frame, y, [x] if by is None else [by, x])
    x_unit, y_unit = _unit(axes, "x", x, points[x]), _unit(axes, "y", y, points["mean"])
    # In the order of the frame, which is that of the varied values.
    names = [None] if by is None else frame[by].unique(maintain_order=True).to_list()
    lines = []
    for name in names:
        rows = points if by is None else points.filter(pl.col(by) == name)
        columns = {
            "x": (x, x_unit),
            "y": ("mean", y_unit),
            "low": ("low", y_unit),
            "high": ("high", y_unit),
        }
        scaled = {
            key: [None if value is None else value / unit[1] for value in rows[column]]
            for key, (column, unit) in columns.items()
        }
        label = "mean" if by is None else str(name)
        lines.append({"name": label, **scaled, "runs": rows["runs"].to_list()})
    return Means(lines, x_unit, y_unit)


def draw_means(
    axes: Axes,
    lines: Sequence[Mapping[str, Any]],
    *,
    markers: str,
    has_names: bool = False,
    styled: bool = True,
) -> None:
    """Draw lines of `Means` with bands; with a bar at each point if x has names in no order.

    ``styled``: with the colours of reports, not those of the axes.
    """
    for line, colour, marker in zip(lines, cycle(style.PALETTE), cycle(markers), strict=False):
        x, y, low, high = (np.array(line[key], float) for key in ("x", "y", "low", "high"))
        own: dict[str, Any] = {"color": colour, "markersize": 4} if styled else {}
        (drawn,) = axes.plot(x, y, marker=marker, label=line["name"], **own)
        if has_names:
            axes.vlines(x, low, high, color=drawn.get_color(), alpha=0.5)
        else:
            axes.fill_between(x, low, high, color=drawn.get_color(), alpha=0.2, linewidth=0)


def _unit(axes: Axes | None, scale: str, column: str, values: pl.Series) -> tuple[str, float]:
    """Return the unit of values, and its size: that of bands on a common scale, if there are any.

    Otherwise two panels with one scale could be in Mbit/s and kbit/s.
    """
    largest = values.cast(float).abs().max()
    kind = quantity(column)
    unit = kind.scale(largest if isinstance(largest, float) else 0.0)
    if axes is None:
        return unit
    shared = axes.get_shared_x_axes() if scale == "x" else axes.get_shared_y_axes()
    known = (_units.get(sibling, {}).get(scale) for sibling in shared.get_siblings(axes))
    return next((sibling_unit for sibling_unit in known if sibling_unit in kind.units), unit)


def _label(column: str, unit: str) -> str:
    name = label_of(column)
    return with_unit(f"{name[:1].upper()}{name[1:]}", unit)
