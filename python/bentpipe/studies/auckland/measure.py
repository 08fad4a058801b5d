"""The figures of a run and of a cell."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Final

import numpy as np

from bentpipe import _core
from bentpipe.results.derived import by_function
from bentpipe.scenario.framings import frame_bits
from bentpipe.simulation.many import Outcome
from bentpipe.studies.auckland.cells import PING, TRANSFER, Cell
from bentpipe.studies.base import samples
from bentpipe.studies.base.samples import Array
from bentpipe.units import NS_PER_S

TOTAL, TRANSFER_GOODPUT = "total_goodput_mbps", "iperf3_goodput_mbps"
BACKGROUND_BUSY = "background_busy_percent"
QUEUE_IDLE, QUEUE_FULL = "queue_idle_percent", "queue_full_percent"
PING_MEAN, PING_P95, PING_MAX = "ping_mean_ms", "ping_p95_ms", "ping_max_ms"
LOSS_BEFORE, LOSS_AFTER = "loss_before_percent", "loss_after_percent"
REPAIR_SHARE, ORDER_WAIT = "repair_share_percent", "order_wait_mean_ms"
# Edges of the sizes of downloads for their times, in bytes.
_SIZE_EDGES: Final = (1, 10**3, 10**4, 10**5, 10**6, 10**7, 2**62)
SIZE_CLASSES: Final = ("< 1 kB", "1-10 kB", "10-100 kB", "0.1-1 MB", "1-10 MB", ">= 10 MB")

# Samples of the link without the transfer: after all channels have started, and after the
# transfer's last packets. They are multiples of the sample interval.
_ALONE_S: Final = ((30, 150), (480, 600))
_TCP_IP_HEADER_BYTES: Final = 40
# The ends of the tunnel in results.
_HUB, _TERMINAL = "hub-tunnel", "terminal-1-tunnel"


Measurement = samples.Measurement[Cell]
Measured = Mapping[Cell, Measurement]


def download_time(size_class: str) -> str:
    """Return the name of the figure with the median time of the downloads of a class."""
    return f"download_s {size_class}"


def figures(outcome: Outcome) -> dict[str, float]:
    """Return the figures of a run. Goodputs count application bytes that arrived in order."""
    plan = outcome.job.plan.data
    delivered = outcome.column("flows", "delivered_bytes").astype(np.float64)
    names = [flow["name"] for flow in plan["flows"]]
    transfer = names.index(TRANSFER)
    is_tcp = np.array([not name.startswith(PING) for name in names])
    stop_s = plan["stop_ns"] / NS_PER_S
    empty_ns, full_ns = (
        float(outcome.column("directions", f"queue_{state}_ns")[0]) for state in ("empty", "full")
    )
    return {
        TOTAL: float(delivered[is_tcp].sum()) * 8 / stop_s / 1e6,
        TRANSFER_GOODPUT: _transfer_mbps(outcome, transfer),
        BACKGROUND_BUSY: _background_busy_percent(outcome),
        QUEUE_IDLE: 100 * empty_ns / outcome.raw["end_ns"],
        QUEUE_FULL: 100 * full_ns / outcome.raw["end_ns"],
        **_ping(outcome, names),
        **_tunnel(outcome),
        **_download_times(outcome),
    }


def payload_rate_mbps(plan: Mapping[str, Any]) -> float:
    """Return the largest goodput of the link: full segments, with Ethernet, IP and TCP headers."""
    forward = plan["directions"][0]
    transfer = next(flow for flow in plan["flows"] if flow["name"] == TRANSFER)
    tcp = transfer["workload"]["sender"]
    # The timestamps option and its padding (RFC 7323, appendix A).
    payload_bytes = tcp["mss_bytes"] - (12 if tcp["timestamps"] else 0)
    rate_bps = float(forward["rate_bps"]["value"])
    segment_bits = frame_bits(forward["framing"], tcp["mss_bytes"] + _TCP_IP_HEADER_BYTES)
    return float(rate_bps * 8 * payload_bytes / segment_bits / 1e6)


def _transfer_mbps(outcome: Outcome, transfer: int) -> float:
    """Return the goodput of the transfer until its end, as iperf3 counts it at the receiver.

    What a PEP still holds then arrives later, and does not count.
    """
    flow = outcome.job.plan.data["flows"][transfer]
    duration_ns: int = flow["workload"]["amount"]["value"]
    at_end = (outcome.column("flow_samples", "flow") == transfer) & (
        outcome.column("flow_samples", "time_ns") == flow["start_ns"] + duration_ns
    )
    (delivered_bytes,) = outcome.column("flow_samples", "delivered_bytes")[at_end]
    return float(delivered_bytes) * 8 * NS_PER_S / duration_ns / 1e6


def _background_busy_percent(outcome: Outcome) -> float:
    """Return how busy the link is while the transfer does not run, in percent of its rate."""
    forward = outcome.column("direction_samples", "direction") == 0
    at_ns = outcome.column("direction_samples", "time_ns")[forward]
    sent = outcome.column("direction_samples", "sent_bytes")[forward].astype(np.float64)
    by_second = dict(zip((at_ns // NS_PER_S).tolist(), sent.tolist(), strict=True))
    rate_bps = outcome.job.plan.data["directions"][0]["rate_bps"]["value"]
    # A run ends early if its traffic does, as without channels.
    total = float(outcome.column("directions", "sent_bytes")[0])
    bits = sum(8 * (by_second.get(end, total) - by_second[start]) for start, end in _ALONE_S)
    return float(100 * bits / rate_bps / sum(end - start for start, end in _ALONE_S))


def _ping(outcome: Outcome, names: list[str]) -> dict[str, float]:
    """Return the RTT of the datagrams: the delays of both directions added.

    The return direction carries acknowledgements alone, so that its mean stands for its delay in
    the percentile and in the maximum, too.
    """
    there, back = (names.index(f"{PING}-{way}") for way in ("forward", "return"))
    return_ns = outcome.column("flows", "one_way_delay_mean_ns")[back]
    delays = ((PING_MEAN, "mean"), (PING_P95, "p95"), (PING_MAX, "max"))
    return {
        name: float(outcome.column("flows", f"one_way_delay_{which}_ns")[there] + return_ns) / 1e6
        for name, which in delays
    }


def _tunnel(outcome: Outcome) -> dict[str, float]:
    """Return the losses and the repair of the forward direction; nothing without a tunnel."""
    names = {**_core.names(), **outcome.raw["names"]}
    columns = (
        outcome.column("function_statistics", each) for each in ("place", "statistic", "value")
    )
    rows = [
        {
            "place": names["places"][int(place)],
            "statistic": names["statistics"][int(statistic)],
            "value": int(value),
        }
        for place, statistic, value in zip(*columns, strict=True)
    ]
    offered_bytes = outcome.column("directions", "received_bytes").tolist()
    found = {each["function"]: each for each in by_function(rows, offered_bytes)}
    if _HUB not in found:
        return {}
    hub, terminal = found[_HUB], found[_TERMINAL]
    wait_ns = terminal["order_wait_mean_ns"]
    values = {
        LOSS_BEFORE: terminal["loss_before_percent"],
        LOSS_AFTER: terminal["loss_after_percent"],
        REPAIR_SHARE: hub["repair_share_percent"],
        ORDER_WAIT: None if wait_ns is None else wait_ns / 1e6,
    }
    return {name: float(value) for name, value in values.items() if value is not None}


def _download_times(outcome: Outcome) -> dict[str, float]:
    """Return the median time of the finished downloads of each class of sizes, in s."""
    sizes = outcome.column("exchanges", "response_bytes").astype(np.float64)
    started = outcome.column("exchanges", "start_ns").astype(np.float64)
    times_s = (outcome.column("exchanges", "finished_ns").astype(np.float64) - started) / NS_PER_S
    return {
        download_time(name): float(np.median(times))
        for name, (low, high) in zip(SIZE_CLASSES, pairwise(_SIZE_EDGES), strict=True)
        if (times := times_s[(sizes >= low) & (sizes < high) & np.isfinite(times_s)]).size
    }


def trace(outcome: Outcome) -> tuple[Array, Array]:
    """Return the times in s and the forward queue in kB at the samples of a run."""
    forward = outcome.column("direction_samples", "direction") == 0
    queue_kb = outcome.column("direction_samples", "queue_bytes")[forward] / 1e3
    return outcome.column("direction_samples", "time_ns")[forward] / NS_PER_S, queue_kb
