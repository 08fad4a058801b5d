"""The runs of the study in batches, and the figures of a run and of a cell."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, product
from typing import Any, Final

import numpy as np

from bentpipe import _core
from bentpipe.results.result import Result
from bentpipe.simulation.run import Outcome
from bentpipe.studies.auckland.cells import (
    BACKGROUND,
    BASE,
    CODED,
    PING,
    QUEUES_KB,
    TRANSFER,
    UNCODED,
    Cell,
    Data,
    LinkPath,
    Loads,
    Variant,
    cells,
    entry,
    scenario_of,
)
from bentpipe.studies.base import comparison
from bentpipe.studies.base.comparison import Array, Samples
from bentpipe.studies.base.work import Work, jobs_of, largest_goodput_bps
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
# The ends of the tunnel in results.
_HUB, _TERMINAL = "hub-tunnel", "terminal-1-tunnel"


Measurement = comparison.Measurement[Cell]
Measured = Mapping[Cell, Measurement]
# The value of a figure by seed.
Curve = Mapping[int, float]


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
    functions = Result({"names": names}, outcome.tables()).functions
    found = {each["function"]: each for each in functions}
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


# --- changes between curves ---------------------------------------------------------------------


def area(channels: Sequence[int], values: Sequence[Sequence[float]]) -> list[float]:
    """Return the mean over the numbers of channels, for each seed: the area under a curve.

    ``values`` has the values over seeds of each number of channels. The area is that of trapezoids,
    over the range of channels; with one number it is the value itself.
    """
    if len(channels) == 1:
        return list(values[0])
    areas = np.asarray(np.trapezoid(values, channels, axis=0))
    return [float(each) for each in areas / (channels[-1] - channels[0])]


def gain_percent(before: Curve, after: Curve) -> Samples:
    """Return the change in percent of the mean before, by pairs of equal seeds, as `ratio`."""
    return Samples.of((100 * (each - 1) for each in ratio(before, after).values), exact=False)


def share_percent(largest: Curve, after: Curve) -> Samples:
    """Return values in percent of the largest ones."""
    return Samples.of((100 * each / largest[seed] for seed, each in after.items()), exact=False)


def ratio(before: Curve, after: Curve) -> Samples:
    """Return how many times the mean before the mean after is, by pairs of equal seeds.

    The values vary as the ratio of the means does in the first order (delta method), so their
    interval is that of the ratio.
    """
    seeds = [seed for seed in before if seed in after]
    mean = sum(before[seed] for seed in seeds) / len(seeds) if seeds else 0.0
    if mean == 0:
        return Samples()
    times = sum(after[seed] for seed in seeds) / len(seeds) / mean
    values = (times + (after[seed] - times * before[seed]) / mean for seed in seeds)
    return Samples.of(values, exact=False)


def trace(outcome: Outcome) -> tuple[Array, Array]:
    """Return the times in s and the forward queue in kB at the samples of a run."""
    forward = outcome.column("direction_samples", "direction") == 0
    queue_kb = outcome.column("direction_samples", "queue_bytes")[forward] / 1e3
    return outcome.column("direction_samples", "time_ns")[forward] / NS_PER_S, queue_kb


MAX_MIXED_RUNS: Final = 5
MIXED_PATHS: Final = (LinkPath.PLAIN, *CODED)
# Entries and classes of the halves; a drop-tail queue ignores the class.
_UNCODED: Final = "others"
_CODED_CLASS, _UNCODED_CLASS = 0, 1
CODED_HALF, UNCODED_HALF = "coded_half_mbps", "uncoded_half_mbps"


def _halve(data: Data) -> None:
    background = entry(data, BACKGROUND)
    channels = background["channels"]
    background["channels"] = channels - channels // 2
    others = copy.deepcopy(background)
    others |= {"name": _UNCODED, "channels": channels // 2, "priority": _UNCODED_CLASS}
    data["traffic"].append(others)
    for functions in data.get("gateways", {}).values():
        functions["tunnel"]["classes"] = [_CODED_CLASS]


HALVED: Final = Variant("half of the channels uncoded", paths=MIXED_PATHS, change=_halve)


def halves(outcome: Outcome) -> dict[str, float]:
    """Return the goodput of each half of the channels in a run."""
    plan = outcome.job.plan.data
    delivered = outcome.column("flows", "delivered_bytes")
    stop_ns = plan["stop_ns"]
    found = {}
    for figure, entry_name in ((CODED_HALF, BACKGROUND), (UNCODED_HALF, _UNCODED)):
        mine = [flow["name"].startswith(entry_name) for flow in plan["flows"]]
        found[figure] = float(delivered[mine].sum()) * 8e3 / stop_ns
    return found


def shares(measured: Measured) -> list[dict[str, Any]]:
    """Return the labels of each cell, its halves, and their changes from those of plain."""
    found = []
    for queue_kb, (cell, own) in product(QUEUES_KB, measured.items()):
        if cell.queue_kb == queue_kb:
            plain = measured[replace(cell, path=LinkPath.PLAIN)]
            values = {half: own[half] for half in (CODED_HALF, UNCODED_HALF)}
            for half in tuple(values):
                change = half.replace("mbps", "change_percent")
                values[change] = gain_percent(plain.by_seed(half), own.by_seed(half))
            found.append({**cell.labels, **values})
    return found


def variant_cells(variant: Variant, loads: Loads) -> list[Cell]:
    """Return the cells of a variant; uncoded ones are beside coded ones unless as described."""
    coded = tuple(path for path in variant.paths if path in CODED)
    found = list(cells(loads.sweep, coded))
    if not variant.of_code:
        found += cells(sorted({*loads.variants, *(loads.sweep if coded else ())}), UNCODED)
    return found


def measure(
    work: Work,
    base: Data,
    every: Sequence[Cell],
    runs: int,
    variant: Variant = BASE,
    of_run: Callable[[Outcome], Mapping[str, float]] = figures,
) -> dict[Cell, Measurement]:
    """Run cells with a variant, each so many times; return the figures of their runs."""
    measured: dict[Cell, Measurement] = {}
    # The outcomes of all cells at once would take gigabytes.
    for channels in dict.fromkeys(cell.channels for cell in every):
        group = [cell for cell in every if cell.channels == channels]
        seeds = work.seeds(runs)
        jobs = {cell: jobs_of(scenario_of(cell, base, variant), seeds) for cell in group}
        for cell, outcomes in work.run(jobs).items():
            found = {outcome.job.seed: of_run(outcome) for outcome in outcomes}
            measured[cell] = Measurement(cell, found)
    return measured
