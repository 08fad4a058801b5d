"""The style of all figures: colours, fonts, axes and legends."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import XAxis, YAxis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from matplotlib.transforms import ScaledTranslation

# The first four are distinguishable with every kind of colour vision. All are dark enough on white.
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
STYLE: Final[Any] = mpl.rc_params_from_file(
    Path(__file__).parent / "bentpipe.mplstyle", use_default_template=False
)
INK: Final = str(STYLE["text.color"])
MUTED: Final = str(STYLE["axes.edgecolor"])
GRID: Final = str(STYLE["grid.color"])

# The width of a report on A4, so that 9 pt are 9 pt in print.
_WIDTH_IN: Final = 7.3
# In characters: the width of a legend, and of a line in it with its gap.
_LEGEND_WIDTH: Final = 100
_LEGEND_LINE: Final = 8


def new_figure(rows: int, columns: int, *, height_in: float) -> tuple[Figure, list[Axes]]:
    """Return a figure in the package's style, its axes row by row, all on common scales."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(_WIDTH_IN, height_in), layout="constrained")
        axes = figure.subplots(rows, columns, sharex=True, sharey=columns > 1, squeeze=False)
    return figure, list(axes.flat)


def from_zero(axes: Axes) -> None:
    """Start the vertical scale at zero, with a margin above the largest value of all its axes."""
    sharing = axes.get_shared_y_axes().get_siblings(axes)
    highest = max(float(sibling.dataLim.ymax) for sibling in sharing)
    if np.isfinite(highest) and highest > 0:
        axes.set_ylim(0, 1.05 * highest)
    else:
        axes.set_ylim(bottom=0)


def log_axis(axis: XAxis | YAxis) -> None:
    """Make a scale logarithmic, with numbers at 1, 2 and 5 of each decade as labels.

    More than three decades have labels at powers of ten alone.
    """
    scale = axis.axes.set_xscale if isinstance(axis, XAxis) else axis.axes.set_yscale
    scale("log")
    low, high = axis.get_view_interval()
    subs = (1.0, 2.0, 5.0) if high < low * 1_000 else (1.0,)
    axis.set_major_locator(LogLocator(subs=subs, numticks=20))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axis.set_minor_formatter(NullFormatter())


def add_unit(axes: Axes, label: str, factor: float, *, below_in: float) -> None:
    """Add a second scale of x, ``below_in`` inches below the first: ``factor`` times its values."""
    transform = axes.transAxes + ScaledTranslation(0, -below_in, figure_of(axes).dpi_scale_trans)
    with mpl.rc_context(STYLE):
        scale = axes.secondary_xaxis(
            0,
            functions=(lambda x: np.multiply(x, factor), lambda x: np.divide(x, factor)),
            transform=transform,
        )
        scale.set_xlabel(label)
        if axes.get_xscale() == "log":
            low, high = axes.get_xlim()
            scale.set_xlim(factor * low, factor * high)
            log_axis(scale.xaxis)


def add_legend(axes: Axes, title: str | None = None) -> None:
    """Add a legend above the axes, where it hides nothing; the title says what differs."""
    labels = axes.get_legend_handles_labels()[1]
    columns = _LEGEND_WIDTH // (_LEGEND_LINE + max(map(len, labels), default=1))
    with mpl.rc_context(STYLE):
        axes.legend(
            loc="lower left",
            bbox_to_anchor=(0, 1),
            ncols=max(1, min(4, len(labels), columns)),
            borderaxespad=0.2,
            labelcolor=INK,
            title=title,
            alignment="left",
        )


def figure_of(axes: Axes) -> Figure:
    """Return the figure that axes belong to.

    Raises:
        TypeError: they belong to a part of a figure.
    """
    figure = axes.figure
    if not isinstance(figure, Figure):
        raise TypeError("the axes belong to a subfigure")
    return figure
