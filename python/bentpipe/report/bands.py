"""Plots of many runs: means over a varied value, with confidence bands."""

from __future__ import annotations

from itertools import cycle
from typing import Final
from weakref import WeakKeyDictionary

import numpy as np
import polars as pl
from matplotlib.axes import Axes

from bentpipe.errors import UsageError
from bentpipe.metrics import label_of
from bentpipe.quantities import quantity
from bentpipe.report.style import PALETTE, add_legend, from_zero, new_figure
from bentpipe.results.means import mean_intervals

_HEIGHT_IN: Final = 2.7
# The units of the bands on axes, by scale: x or y.
_units: Final[WeakKeyDictionary[Axes, dict[str, tuple[str, float]]]] = WeakKeyDictionary()
# In print without colour, lines differ by their markers.
_MARKERS: Final = "os^Dv<>P"


def band(
    frame: pl.DataFrame, x: str, y: str, *, by: str | None = None, ax: Axes | None = None
) -> Axes:
    """Draw the mean of column ``y`` over column ``x``, with its 95 % confidence interval as a band.

    ``frame`` has rows of many runs, such as `Sweep.flows`; each value of ``by`` has a line of its
    own. The interval is that of `bentpipe.mean_intervals`: the run is the sample, not the flow.
    A point of one run has no band. Units of the axes come from the names of the columns.

    Raises:
        UsageError: no such column, not a number, no rows, or runs that differ in further values.
    """
    if x in frame.columns and not frame.schema[x].is_numeric():
        number = next((name for name in frame.columns if name.startswith(f"{x}_")), None)
        hint = f"; take {number}" if number else ""
        raise UsageError(f"{x}: not a number, so it has no axis{hint}")
    groups = [x] if by is None else [by, x]
    points = mean_intervals(frame, y, groups)
    if points.height == 0:
        raise UsageError(f"{y}: no row has a value to draw")
    axes = new_figure(1, 1, height_in=_HEIGHT_IN)[1][0] if ax is None else ax
    x_unit, x_size = _unit(axes, "x", x, points[x])
    y_unit, y_size = _unit(axes, "y", y, points["mean"])
    # In the order of the frame, which is that of the varied values.
    names = [None] if by is None else frame[by].unique(maintain_order=True).to_list()
    for name, colour, marker in zip(names, cycle(PALETTE), cycle(_MARKERS), strict=False):
        own = points if by is None else points.filter(pl.col(by) == name)
        at = own[x].cast(float).to_numpy() / x_size
        mean, low, high = (
            own[column].to_numpy().astype(np.float64) / y_size for column in ("mean", "low", "high")
        )
        axes.fill_between(at, low, high, color=colour, alpha=0.2, linewidth=0)
        axes.plot(at, mean, color=colour, marker=marker, markersize=4, label=str(name))
    from_zero(axes)
    axes.set_xlabel(_label(x, x_unit))
    axes.set_ylabel(_label(y, y_unit))
    if by is not None:
        add_legend(axes)
    return axes


def _unit(axes: Axes, scale: str, column: str, values: pl.Series) -> tuple[str, float]:
    """Return the unit of values, and its size: that of bands on a common scale, if there are any.

    Otherwise two panels with one scale could be in Mbit/s and kbit/s.
    """
    shared = axes.get_shared_x_axes() if scale == "x" else axes.get_shared_y_axes()
    known = (_units.get(each, {}).get(scale) for each in shared.get_siblings(axes))
    kind = quantity(column)
    largest = values.cast(float).abs().max()
    fitting = kind.scale(float(largest) if isinstance(largest, float) else 0.0)
    unit = next((each for each in known if each in kind.units), fitting)
    _units.setdefault(axes, {})[scale] = unit
    return unit


def _label(column: str, unit: str) -> str:
    name = label_of(column)
    return f"{name[:1].upper()}{name[1:]}" + (f" [{unit}]" if unit else "")
