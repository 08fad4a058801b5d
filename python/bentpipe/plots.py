"""Plots of a result, and of many runs: ``bentpipe.plots``.

Each function draws on ``ax``, or on the axes of a new figure, and returns the axes. See
`bentpipe.report.plots`, `bentpipe.report.bands` and `bentpipe.report.bars`.
"""

from bentpipe.report.bands import band
from bentpipe.report.bars import attribution
from bentpipe.report.plots import (
    congestion_window,
    drops,
    exchange_times,
    goodput,
    has_drops,
    has_exchanges,
    in_flight,
    page_load_times,
    queues,
    smoothed_rtt,
)
from bentpipe.results.series import drop_causes, has_tcp_flows, has_time_series

__all__ = [
    "attribution",
    "band",
    "congestion_window",
    "drop_causes",
    "drops",
    "exchange_times",
    "goodput",
    "has_drops",
    "has_exchanges",
    "has_tcp_flows",
    "has_time_series",
    "in_flight",
    "page_load_times",
    "queues",
    "smoothed_rtt",
]
