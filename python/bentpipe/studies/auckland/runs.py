"""The figures of one run of the study.

`figures` are those of a simulated run, `real_figures` the few that a run in real time has, too,
and `halves` those of a run in which half of the channels has a coded tunnel. The scenario is the
study's: entries of traffic with these names, one terminal, and direction 0 forward.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Final

import numpy as np
import polars as pl

from bentpipe.results import Result, utc_now
from bentpipe.simulation import Outcome
from bentpipe.studies.base.comparison import Array
from bentpipe.studies.base.work import largest_goodput_bps, steady_bps
from bentpipe.units import NS_PER_S

# Of entries of `traffic`; the others are the uncoded half of the channels.
BACKGROUND, TRANSFER, PING, OTHERS = "channels", "iperf3", "ping", "others"
TOTAL, TRANSFER_GOODPUT = "total_goodput_mbps", "iperf3_goodput_mbps"
LEFT = "left_mbps"
BACKGROUND_BUSY = "background_busy_percent"
QUEUE_IDLE, QUEUE_FULL = "queue_idle_percent", "queue_full_percent"
PING_MEAN, PING_P95, PING_MAX = "ping_mean_ms", "ping_p95_ms", "ping_max_ms"
LOSS_BEFORE, LOSS_AFTER = "loss_before_percent", "loss_after_percent"
REPAIR_SHARE, ORDER_WAIT = "repair_share_percent", "order_wait_mean_ms"
# Edges of the sizes of downloads for their times, in bytes.
_SIZE_EDGES: Final = (1, 10**3, 10**4, 10**5, 10**6, 10**7, 2**62)
SIZE_CLASSES: Final = ("< 1 kB", "1-10 kB", "10-100 kB", "0.1-1 MB", "1-10 MB", ">= 10 MB")

# When the transfer runs. There is a sample at each of these times.
_TRANSFER_S: Final = (150, 450)
# When the link carries no transfer, from and to: after all channels have started, and after the
# transfer's last packets. There is a sample at each of these times, unless the run ends before.
_ALONE_S: Final = ((30, 150), (480, 600))
# The ends of the tunnel in results.
_HUB, _TERMINAL = "hub-tunnel", "terminal-1-tunnel"
CODED_HALF, UNCODED_HALF = "coded_half_mbps", "uncoded_half_mbps"
# The figures that both engines have, with their units.
UNITS: Final = {"total goodput": "Mbit/s", "transfer goodput": "Mbit/s", "median download": "s"}


def download_time(size_class: str) -> str:
    """Return the name of the figure with the median time of the downloads of a class."""
    return f"download_s {size_class}"


def figures(outcome: Outcome) -> dict[str, float]:
    """Return the figures of a run. Goodputs count application bytes that arrived in order."""
    plan = outcome.job.plan.data
    delivered = outcome.column("flows", "delivered_bytes").astype(np.float64)
    names = [flow["name"] for flow in plan["flows"]]
    channels = [n for n, name in enumerate(names) if name.startswith(BACKGROUND)]
    is_tcp = np.array([not name.startswith(PING) for name in names])
    empty_ns, full_ns = (
        float(outcome.column("directions", f"queue_{state}_ns")[0]) for state in ("empty", "full")
    )
    return {
        TOTAL: float(delivered[is_tcp].sum()) * 8 / (plan["stop_ns"] / NS_PER_S) / 1e6,
        LEFT: payload_rate_mbps(plan) - steady_bps(outcome, channels, *_TRANSFER_S) / 1e6,
        TRANSFER_GOODPUT: _transfer_mbps(outcome, names.index(TRANSFER)),
        BACKGROUND_BUSY: _background_busy_percent(outcome),
        QUEUE_IDLE: 100 * empty_ns / outcome.raw["end_ns"],
        QUEUE_FULL: 100 * full_ns / outcome.raw["end_ns"],
        **_ping(outcome, names),
        **_tunnel(outcome),
        **_download_times(outcome),
    }


def payload_rate_mbps(plan: Mapping[str, Any]) -> float:
    """Return the largest goodput of the link: full segments, with Ethernet, IP and TCP headers."""
    transfer = next(flow for flow in plan["flows"] if flow["name"] == TRANSFER)
    return largest_goodput_bps(plan, transfer) / 1e6


def _transfer_mbps(outcome: Outcome, transfer: int) -> float:
    """Return the goodput of the transfer until its end, without what a PEP still holds then."""
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
    bits = sum(
        8 * (by_second.get(end, total) - by_second.get(start, total)) for start, end in _ALONE_S
    )
    return float(100 * bits / rate_bps / sum(end - start for start, end in _ALONE_S))


def _ping(outcome: Outcome, names: list[str]) -> dict[str, float]:
    """Return the RTT of the datagrams: the delays of both directions added.

    The return direction carries acknowledgements alone, and its queue is nearly empty. So its delay
    hardly varies, and the mean stands for it in the percentile and in the maximum, too.
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
    by_name = {row["function"]: row for row in outcome.result(started=utc_now()).functions}
    if _HUB not in by_name:
        return {}
    hub, terminal = by_name[_HUB], by_name[_TERMINAL]
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


def halves(outcome: Outcome) -> dict[str, float]:
    """Return the goodput of each half of the channels in a run."""
    plan = outcome.job.plan.data
    delivered = outcome.column("flows", "delivered_bytes")
    goodputs = {}
    for figure, entry_name in ((CODED_HALF, BACKGROUND), (UNCODED_HALF, OTHERS)):
        is_half = [flow["name"].startswith(entry_name) for flow in plan["flows"]]
        goodputs[figure] = float(delivered[is_half].sum()) * 8 * NS_PER_S / plan["stop_ns"] / 1e6
    return goodputs


def real_figures(result: Result) -> dict[str, float | None]:
    """Return the figures that both engines have, as in `UNITS`; None without a value.

    What the transfer has delivered counts until its duration is over, interpolated between two
    samples: iperf3 ends then, while a simulated receiver waits for what a PEP still holds. In real
    time the transfer starts a little late.
    """
    flows = result.plan["flows"]
    is_channel = np.array([flow["name"].startswith(BACKGROUND) for flow in flows])
    channel_bytes = result.flows["delivered_bytes"].to_numpy()[is_channel].sum()
    number = next(n for n, flow in enumerate(flows) if flow["name"] == TRANSFER)
    duration_ns: int = flows[number]["workload"]["amount"]["value"]
    samples = result.tables["flow_samples"].drop_nulls("delivered_bytes").sort("time_ns")
    samples = samples.filter(samples["flow"] == number)
    total = transfer = None
    if not samples.is_empty():
        end_ns = result.flows.row(number, named=True)["start_ns"] + duration_ns
        transfer_bytes = float(np.interp(end_ns, samples["time_ns"], samples["delivered_bytes"]))
        transfer = transfer_bytes * 8 * NS_PER_S / duration_ns / 1e6
        total = float(channel_bytes + transfer_bytes) * 8 * NS_PER_S / result.plan["stop_ns"] / 1e6
    downloads = result.exchanges.filter(pl.col("name").str.starts_with(BACKGROUND))
    times_ns = downloads["time_ns"].drop_nulls().to_numpy()
    median_s = float(np.median(times_ns)) / NS_PER_S if times_ns.size else None
    return dict(zip(UNITS, (total, transfer, median_s), strict=True))
