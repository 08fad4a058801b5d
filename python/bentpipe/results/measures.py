"""Performance metrics, as pure functions of arrays and results.

Goodput counts application bytes delivered in order to the receiver. An exchange time is that of one
request and its response, as the client sees it. Channel utilization is the JPL definition, fairness
is Jain's index; see each function.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from bentpipe.metrics import CAPACITY_PARTS, KINDS_OF_ROWS, metrics_shown
from bentpipe.plan.presets import series_values
from bentpipe.units import BITS_PER_BYTE, NS_PER_S

if TYPE_CHECKING:
    from bentpipe.results.result import Result

# More flows are shown by entry: they fill more than a screen.
MAX_SINGLE_FLOWS: Final = 12
# Of a band of many flows in a plot, and of the flows of an entry.
PERCENTILES: Final = (5, 50, 95)
ENTRY_PERCENTILES: Final = (*PERCENTILES, 99)
# Of time. One with this share of the link's capacity is full, with the rest of it empty.
WINDOW_NS: Final = 100_000_000
FULL_SHARE: Final = 0.95
EMPTY_SHARE: Final = 0.05


def goodput_of_rows(
    table: pl.DataFrame, plan: Mapping[str, Any], end_ns: npt.ArrayLike
) -> npt.NDArray[np.float64]:
    """Return the goodput of each row of a table of flows, of one or more runs of a plan, in bit/s.

    A bulk flow is measured from its start (the handshake included) to the last in-order delivery
    if all its data were acknowledged, and otherwise to the end of the run, ``end_ns``: one value,
    or one a row. A flow of exchanges is measured in the same way, think times included. Datagrams
    at a constant rate are measured at the receiver, from the first arrival until one interval after
    the last (`_arrival_spans`): without loss the goodput is the rate, whatever the delay. A flow of
    zero duration has goodput 0. Values have 12 significant digits, which is more than nanoseconds
    resolve: a rate is not missed by the error of a division.
    """
    start_ns, until_ns = _spans(table, plan, end_ns)
    goodputs_bps = rate_bps(table["delivered_bytes"].to_numpy(), until_ns - start_ns)
    scale = 10.0 ** (11 - np.floor(np.log10(np.where(goodputs_bps > 0, goodputs_bps, 1.0))))
    return np.round(goodputs_bps * scale) / scale


def aggregate_goodput_bps(result: Result, flows: Sequence[int]) -> float:
    """Return the aggregate goodput of flows in application bit/s.

    It is the bytes of all flows over the time from the first start to the last end, each as in
    `goodput_of_rows`. Unlike a sum of goodputs over different times, it never exceeds the rate of
    the link. ``flows`` are indices into the plan, at least one.
    """
    table = result.tables["flows"][list(flows)]
    start_ns, until_ns = _spans(table, result.plan, result.manifest["end_ns"])
    delivered_bytes = table["delivered_bytes"].to_numpy().sum()
    return float(rate_bps(delivered_bytes, until_ns.max() - start_ns.min()))


def competing_flows(result: Result) -> dict[str, list[int]]:
    """Return the bulk flows of each direction that has more than one, as indices into the plan."""
    bulk_flows: dict[str, list[int]] = {}
    for i, direction in enumerate(result.flow_directions):
        if result.plan["flows"][i]["workload"]["kind"] == "bulk":
            bulk_flows.setdefault(direction, []).append(i)
    return {direction: flows for direction, flows in bulk_flows.items() if len(flows) > 1}


def finished_times_ns(
    result: Result, table: str, flows: Sequence[int] | None = None
) -> npt.NDArray[np.int64]:
    """Return the times of finished rows of ``exchanges`` or ``pages``, in order of their starts.

    That of an exchange is from the client's start (it opens a connection, or writes to an open one)
    to the last byte of the response; that of a page from the click to the last byte of the last
    object. ``flows`` are indices into the plan; None takes all.
    """
    rows = result.tables[table].filter(pl.col("finished_ns").is_not_null())
    if flows is not None:
        rows = rows.filter(pl.col("flow").is_in(list(flows)))
    return (rows["finished_ns"] - rows["start_ns"]).to_numpy().astype(np.int64)


def _spans(
    table: pl.DataFrame, plan: Mapping[str, Any], end_ns: npt.ArrayLike
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return the start and the end of the interval over which each flow's goodput is measured."""
    columns = ("start_ns", "finished_ns", "last_delivery_ns")
    start_ns, finished_ns, last_ns = (table[name].cast(float).to_numpy() for name in columns)
    until_ns = np.where(np.isnan(finished_ns + last_ns), end_ns, last_ns)
    is_udp = np.array(["payload_bytes" in flow["workload"] for flow in plan["flows"]], dtype=bool)
    rows = is_udp[table["flow"].to_numpy()]
    if rows.any():
        ends_ns = np.broadcast_to(np.asarray(end_ns, dtype=np.float64), start_ns.shape)
        start_ns = start_ns.copy()
        start_ns[rows], until_ns[rows] = _arrival_spans(table.filter(rows), plan, ends_ns[rows])
    return start_ns, np.maximum(until_ns, start_ns)


def _arrival_spans(
    table: pl.DataFrame, plan: Mapping[str, Any], end_ns: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return the interval over which datagrams at a constant rate are measured, at the receiver.

    It begins with the first arrival; of a flow without one, with its start. Its length is that for
    which the datagrams received or lost were sent, an interval each. It is longer if they are
    spread over a longer time on arrival, as by a rate below theirs; and if the link holds
    datagrams back, as in an outage: then it lasts until the end of the run, at most for as long as
    the flow sends. Speech with pauses is measured over the whole call in the same way.
    """
    workloads = [plan["flows"][flow]["workload"] for flow in table["flow"]]
    in_conference = Counter(flow["workload"].get("conference") for flow in plan["flows"])
    # A participant receives what all the others send.
    senders = [
        max(1, in_conference[w["conference"]] - 1 if "conference" in w else 1) for w in workloads
    ]
    bits_ns = [w["payload_bytes"] * 8 * NS_PER_S for w in workloads]
    rates_bps = [w["rate_bps"] for w in workloads]
    interval_ns = np.array([bits / rate for bits, rate in zip(bits_ns, rates_bps, strict=True)])
    # The datagram that is due at the very end is not sent.
    planned = [
        -(-w["duration_ns"] * rate // bits)
        for w, rate, bits in zip(workloads, rates_bps, bits_ns, strict=True)
    ]
    received = pl.col("received_segments").cast(float)
    # Null where a tunnel hides the losses of its datagrams.
    lost = pl.sum_horizontal(pl.col("^lost_.+_packets$").cast(float), ignore_nulls=False)
    known = table.select(
        counted=received + lost.fill_null(pl.col("expected_segments").cast(float) - received),
        first=pl.col("first_delivery_ns").fill_null(pl.col("start_ns")).cast(float),
        last=pl.col("last_delivery_ns").cast(float),
    )
    counted, first_ns, last_ns = (known[name].to_numpy() for name in known.columns)
    spread_ns = np.nan_to_num(last_ns - first_ns)
    sent_ns = counted * interval_ns / np.array(senders)
    held_ns = np.minimum(end_ns - first_ns, np.array(planned) * interval_ns)
    return first_ns, first_ns + np.maximum.reduce([spread_ns, sent_ns, held_ns])


def rate_bps(size_bytes: npt.ArrayLike, elapsed_ns: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Return bytes over nanoseconds as bit/s, element by element; 0 where no time passed."""
    bits = np.asarray(size_bytes, dtype=np.float64) * 8
    seconds = np.asarray(elapsed_ns, dtype=np.float64) / NS_PER_S
    return np.divide(
        bits, seconds, out=np.zeros(np.broadcast(bits, seconds).shape), where=seconds > 0
    )


def jain(goodputs: npt.ArrayLike) -> float:
    """Return Jain's fairness index of n goodputs, which may have any unit, 1/n to 1.

    It is (sum x)^2 / (n sum x^2) (Jain, Chiu and Hawe 1984, DEC-TR-301): 1 if all are equal, also
    if all are zero.

    Raises:
        ValueError: no goodputs.
    """
    x = np.asarray(goodputs, dtype=np.float64)
    if x.size == 0:
        raise ValueError("jain: no goodputs")
    squares = float(np.sum(x * x))
    return 1.0 if squares == 0 else float(np.sum(x)) ** 2 / (x.size * squares)


def channel_utilization(
    information_bytes: npt.ArrayLike, rate_bps: float, elapsed_ns: npt.ArrayLike
) -> npt.NDArray[np.float64]:
    """Return information bits delivered in T over R*T, in percent (the JPL definition).

    ``rate_bps`` is R, the link rate; ``elapsed_ns`` is T, of the shape of ``information_bytes`` or
    one value. Zero where no time passed. Source: K. Scott, JPL, tcp-over-satellite list, 1997.
    """
    bits = np.asarray(information_bytes, dtype=np.float64) * 8
    capacity_bits = np.asarray(elapsed_ns, dtype=np.float64) / NS_PER_S * rate_bps
    shape = np.broadcast(bits, capacity_bits).shape
    return 100 * np.divide(bits, capacity_bits, out=np.zeros(shape), where=capacity_bits > 0)


def longest_wait_ns(result: Result) -> float:
    """Return what 99 % of the packets of each flow wait at most, of the flow that waits longest.

    It is their delay beyond the propagation, which is constant, and the largest jitter of it; 0 if
    no packet arrived.
    """
    delays_ns = {
        name: series_values(wire["delay_ns"])[0] + wire["jitter_ns"]
        for name, wire in zip(("forward", "return"), result.plan["directions"], strict=False)
    }
    late = result.flows.select("one_way_delay_p99_ns", "direction").drop_nulls().iter_rows()
    return max(
        (float(ns - delays_ns[direction]) for ns, direction in late if ns > delays_ns[direction]),
        default=0.0,
    )


# --- windows of time -----------------------------------------------------------------------------


def sampled_bytes(result: Result) -> npt.NDArray[np.float64]:
    """Return the link bytes that the forward direction sent from each sample to the next."""
    samples = result.tables["direction_samples"].filter(pl.col("direction") == 0)
    return np.diff(samples["sent_bytes"].to_numpy().astype(np.float64))


def window_loads(sent_bytes: npt.ArrayLike, rate_bps: float) -> dict[str, float]:
    """Return the load of windows of `WINDOW_NS` from the link bytes sent in each.

    A window is full with 95 % of the link's capacity and empty with less than 5 %. The figures are
    the average, of the link rate, the shares of windows that are full and empty, and the longest
    time without a window that is not full.
    """
    load = np.asarray(sent_bytes, dtype=np.float64) * 8 * NS_PER_S / (rate_bps * WINDOW_NS)
    if not load.size:
        # A run in which nothing is sent has no samples.
        load = np.zeros(1)
    full = load >= FULL_SHARE
    # The ends of runs of full windows: a boundary before the first and after the last.
    edges = np.flatnonzero(np.diff(np.concatenate(([False], full, [False])).astype(np.int8)))
    return {
        "average": float(np.mean(load)),
        "full": float(np.mean(full)),
        "empty": float(np.mean(load < EMPTY_SHARE)),
        "longest_full_ns": int(np.max(edges[1::2] - edges[::2], initial=0)) * WINDOW_NS,
    }


# --- the flows of each entry of ``traffic`` together ---------------------------------------------


def names_of_entries(plan: Mapping[str, Any], entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the name of each flow's entry: its own, or those of its first and last flow."""
    names = [flow["name"] for flow in plan["flows"]]
    entry_names: list[str] = []
    for entry in entries:
        members = names[len(entry_names) : len(entry_names) + entry["flows"]]
        title = (
            members[0] if len(members) == 1 else entry["name"] or f"{members[0]} to {members[-1]}"
        )
        entry_names += [title] * len(members)
    return entry_names or names


def entry_flows(result: Result) -> list[tuple[str, str, list[int]]]:
    """Return name, heading (forward or return) and flows, as indices into the plan, of each entry.

    An entry with flows of both headings is there twice.
    """
    entries, flows = result.manifest.get("entries", []), result.plan["flows"]
    names = names_of_entries(result.plan, entries)
    numbers = [i for i, entry in enumerate(entries) for _ in range(entry["flows"])]
    groups: dict[tuple[int, str], list[int]] = {}
    for i, (number, flow) in enumerate(zip(numbers or range(len(flows)), flows, strict=True)):
        groups.setdefault((number, flow["direction"]), []).append(i)
    return [(names[members[0]], heading, members) for (_, heading), members in groups.items()]


def entry_bps(result: Result, entry: str) -> float:
    """Return what the flows of an entry delivered over the whole run, in application bit/s.

    It is 0 if there is no such entry.
    """
    delivered_bytes = result.flows.filter(pl.col("entry") == entry)["delivered_bytes"].to_numpy()
    return float(rate_bps(delivered_bytes.sum(), result.manifest["end_ns"]))


def entry_statistics(result: Result) -> list[dict[str, Any]]:
    """Return the figures of each entry and direction of its data, as plain data.

    Each quantity has p5, p50, p95 and p99 over the flows that have one (linear interpolation); None
    if none has. The completion times of requests and responses are those of all
    exchanges; page load times are those of all pages.
    """
    flows = result.flows.to_dicts()
    columns = [metric.name for metric in metrics_shown("entry", "flows")]
    statistics = []
    for name, heading, indices in entry_flows(result):
        members = [flows[i] for i in indices]
        times_ns: Iterable[float | None] = [flow["completion_time_ns"] for flow in members]
        if members[0]["kind"] in KINDS_OF_ROWS["exchanges"]:
            times_ns = finished_times_ns(result, "exchanges", indices)
        lost = [flow["lost_packets"] for flow in members if flow["lost_packets"] is not None]
        statistics.append(
            {
                "entry": name,
                "kind": members[0]["kind"],
                "direction": heading,
                "flows": len(members),
                "finished_flows": sum(flow["finished_ns"] is not None for flow in members),
                "exchanges": sum(flow["exchanges"] for flow in members),
                "lost_packets": sum(lost) if lost else None,
                **{column: _percentiles(flow[column] for flow in members) for column in columns},
                "completion_time_ns": _percentiles(times_ns),
                "page_load_time_ns": _percentiles(finished_times_ns(result, "pages", indices)),
            }
        )
    return statistics


def _percentiles(values: Iterable[float | None]) -> dict[str, float] | None:
    known = [value for value in values if value is not None]
    if not known:
        return None
    quantiles = np.percentile(known, ENTRY_PERCENTILES)
    return {f"p{p}": float(value) for p, value in zip(ENTRY_PERCENTILES, quantiles, strict=True)}


# --- where the capacity of the link went (docs/model/capacity.md) ---------------------------------


def capacity_attribution(result: Result) -> pl.DataFrame:
    """Return what the capacity of the link was used for in the time of each TCP flow, in percent.

    A row has ``flow``, ``name``, ``direction``, ``from_ns``, ``until_ns`` and ``PART_percent`` for
    each of `CAPACITY_PARTS`, which add up to 100. It is empty for a run in real time, and has no
    flow of a direction that carries the data of more than 12 TCP flows.
    """
    flows = result.tables["flows"].select("flow", "start_ns", "delivered_bytes")
    table = result.capacity.join(flows, on="flow", how="left", maintain_order="left")
    rows = []
    for row in table.to_dicts():
        elapsed_ns = row["until_ns"] - row["start_ns"]
        times_ns = part_times(row)
        rows.append([float(100 * times_ns[name] / elapsed_ns) for name in CAPACITY_PARTS])
    types = {f"{name}_percent": pl.Float64 for name in CAPACITY_PARTS}
    about = table.select(
        "flow", "name", "direction", pl.col("start_ns").alias("from_ns"), "until_ns"
    )
    return about.hstack(pl.DataFrame(rows, schema=types, orient="row"))


def part_times(row: Mapping[str, int]) -> dict[str, Fraction]:
    """Return the time of each part of the time of a flow in ns, exactly; they add up to it.

    The airtime of the flow's own packets is divided in proportion to their bits.
    ``row`` is a row of the table ``capacity`` with ``delivered_bytes`` of the flow.
    """
    wasted_bytes = row["dropped_bytes"] + row["discarded_bytes"]
    # Recovered data came as repair, the airtime of which is that of other traffic.
    direct_bytes = row["delivered_bytes"] - row["recovered_bytes"]
    airtime_ns = Fraction(row["sending_ns"])
    per_byte_ns = airtime_ns * BITS_PER_BYTE / max(row["sent_bits"], 1)
    return {
        "goodput": direct_bytes * per_byte_ns,
        "headers": airtime_ns - row["payload_bytes"] * per_byte_ns,
        "handshake": Fraction(row["idle_handshake_ns"]),
        "slow_start": Fraction(row["idle_slow_start_ns"]),
        "congestion_avoidance": Fraction(row["idle_congestion_avoidance_ns"]),
        "window_limit": Fraction(row["idle_receive_window_ns"] + row["idle_send_buffer_ns"]),
        "loss_recovery": row["idle_recovery_ns"] + wasted_bytes * per_byte_ns,
        "other_traffic": Fraction(row["other_traffic_ns"]),
        "application_idle": Fraction(row["idle_application_ns"]),
        "packet_processor": Fraction(row["idle_gateway_ns"]),
        "access_line": Fraction(row["idle_access_line_ns"]),
        "outage": Fraction(row["outage_ns"]),
        "in_flight": (row["payload_bytes"] - direct_bytes - wasted_bytes) * per_byte_ns,
        "last_delay": Fraction(row["last_delay_ns"]),
    }


# --- gateway functions ----------------------------------------------------------------------------


def tunnel_measures(result: Result) -> dict[str, float]:
    """Return what coded tunnels did to the forward direction, summed over all terminals.

    Losses are before and after decoding, in percent of the packets; the bytes of repair are in
    percent of those that the link received. A share of zero packets or bytes is NaN; without a
    tunnel the dict is empty.
    """
    tunnels = [tunnel for tunnel in result.functions if tunnel["function"].endswith("-tunnel")]
    if not tunnels:
        return {}
    at_terminals = [tunnel for tunnel in tunnels if tunnel["function"].startswith("terminal")]
    at_hub = [tunnel for tunnel in tunnels if tunnel not in at_terminals]

    def total(ends: Sequence[Mapping[str, Any]], *names: str) -> float:
        return float(sum(end[name] for end in ends for name in names))

    lost = total(at_terminals, "sources_lost_packets")
    due = lost + total(at_terminals, "sources_received_packets")
    repairs = total(at_hub, "repairs_sent_packets")
    reasons = ("expired", "obsolete", "overflowed", "outdated")
    unsent = total(at_hub, *(f"titrator_{reason}_packets" for reason in reasons))
    arrived = total(at_terminals, "repairs_received_packets")
    left = lost - total(at_terminals, "recovered_packets")
    link_bytes = result.directions["received_bytes"][0]
    return {
        "loss_before_percent": _ratio(100 * lost, due),
        "loss_after_percent": _ratio(100 * left, due),
        "repair_share_percent": _ratio(100 * total(at_hub, "repairs_sent_bytes"), link_bytes),
        "repairs_received_percent": _ratio(100 * arrived, repairs),
        "repairs_unsent_percent": _ratio(100 * unsent, repairs + unsent),
        # Of all packets, those that did not wait too.
        "order_wait_mean_ns": _ratio(total(at_terminals, "order_wait_sum_ns"), due),
        "order_wait_max_ns": float(max(tunnel["order_wait_max_ns"] for tunnel in at_terminals)),
    }


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else math.nan
