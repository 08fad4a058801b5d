"""The parts of the link's capacity in the time of each TCP flow, as stacked bars."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import matplotlib as mpl

from bentpipe.errors import UsageError
from bentpipe.metrics import CAPACITY_PARTS
from bentpipe.report.style import PALETTE, STYLE, add_legend, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from bentpipe.results.result import Result

_BAR_IN: Final = 0.35
_FRAME_IN: Final = 1.6
_BAR_HEIGHT: Final = 0.7
# The parts of a second palette are hatched.
_HATCHES: Final = ("", "///")


def attribution(result: Result, *, ax: Axes | None = None) -> Axes:
    """Draw where the capacity of the link went, a bar in percent for each TCP flow.

    Raises:
        UsageError: the run has no such flow, or was in real time.
    """
    rows = result.attribution.to_dicts()
    if not rows:
        raise UsageError("the result has no use of the link's capacity by TCP flow")
    if ax is None:
        height_in = _FRAME_IN + _BAR_IN * len(rows)
        ax = new_figure(1, 1, height_in=height_in)[1][0]
    names = [f"{row['name']} ({row['direction']})" for row in rows]
    left = [0.0] * len(rows)
    with mpl.rc_context(STYLE):
        for number, (part, label) in enumerate(CAPACITY_PARTS.items()):
            widths = [row[f"{part}_percent"] for row in rows]
            if not any(widths):
                continue
            colour = PALETTE[number % len(PALETTE)]
            hatch = _HATCHES[number // len(PALETTE)]
            ax.barh(
                range(len(rows)),
                widths,
                _BAR_HEIGHT,
                left=left,
                label=label,
                color="none" if hatch else colour,
                edgecolor=colour,
                hatch=hatch,
                linewidth=0.5,
            )
            left = [start + width for start, width in zip(left, widths, strict=True)]
        ax.set_yticks(range(len(rows)), names)
        ax.invert_yaxis()
        ax.set_xlim(0, 100)
        ax.grid(visible=False, axis="y")
        ax.set_xlabel("Capacity of the link in the time of the flow [%]")
        add_legend(ax)
    return ax
