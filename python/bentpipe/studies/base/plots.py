"""Published and simulated values of rows in a plot."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bentpipe.report.style import INK, STYLE
from bentpipe.studies.base.comparison import Row, Samples


def plot_samples(
    axes: Axes, x: Sequence[float], samples: Sequence[Samples], *, color: str, **style: Any
) -> None:
    """Draw means as a line, and their 95 % intervals as a band."""
    means = [math.nan if each.mean is None else each.mean for each in samples]
    pairs = [(mean, each.interval) for mean, each in zip(means, samples, strict=True)]
    axes.fill_between(
        x,
        [mean if each is None else each.low for mean, each in pairs],
        [mean if each is None else each.high for mean, each in pairs],
        color=color,
        alpha=0.2,
        linewidth=0,
    )
    axes.plot(x, means, color=color, **style)


def plot_published(
    axes: Axes, x: Sequence[float], rows: Sequence[Row], color: str, label: str | None = None
) -> None:
    """Draw the published values of rows as circles."""
    axes.plot(
        x,
        [math.nan if row.published is None else row.published for row in rows],
        linestyle="none",
        marker="o",
        markersize=5,
        markerfacecolor="none",
        markeredgecolor=color,
        markeredgewidth=1.3,
        label=label,
    )


def add_figure_legend(figure: Figure, axes: Axes, *, columns: int) -> None:
    """Add the legend of one panel above all of them: above its own it would narrow it."""
    with mpl.rc_context(STYLE):
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper left", ncols=columns, labelcolor=INK)
