"""Plots of a result, and of many runs: ``bentpipe.plots``.

The charts of `bentpipe.results.charts` are functions here, by name. Each draws one quantity of a
result on ``ax``, or on the axes of a new figure, and returns the axes:
``plots.queues(result).figure.savefig("queues.svg")``. It raises `UsageError` if the result has
nothing to show; `names` returns the charts that have something. See also `bentpipe.plots.band`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from bentpipe.report.plots import band as band, draw  # noqa: PLC0414 - a public name
from bentpipe.results.charts import CHARTS, chart_data, charts_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from bentpipe.results.result import Result


class Plot(Protocol):
    """A function that draws a chart of a result."""

    def __call__(self, result: Result, *, ax: Axes | None = None) -> Axes:
        """Draw on ``ax``, or on new axes."""


def _plot(name: str) -> Plot:
    chart = CHARTS[name]

    def plot(result: Result, *, ax: Axes | None = None) -> Axes:
        return draw(chart_data(chart, result), ax=ax)

    over = f", over {chart.x_title.lower()} in s" if chart.x_unit else ""
    plot.__name__ = plot.__qualname__ = name
    plot.__doc__ = f"Draw a result: {chart.label}{over}. {chart.caption}"
    return plot


def names(result: Result) -> list[str]:
    """Return the names of the charts that have something to show of a result."""
    return [chart.name for chart in charts_of(result)]


goodput: Final = _plot("goodput")
throughput: Final = _plot("throughput")
queues: Final = _plot("queues")
congestion_window: Final = _plot("congestion_window")
in_flight: Final = _plot("in_flight")
smoothed_rtt: Final = _plot("smoothed_rtt")
one_way_delay: Final = _plot("one_way_delay")
jitter: Final = _plot("jitter")
loss: Final = _plot("loss")
call_quality: Final = _plot("call_quality")
drops: Final = _plot("drops")
page_load_times: Final = _plot("page_load_times")
exchange_times: Final = _plot("exchange_times")
attribution: Final = _plot("attribution")
