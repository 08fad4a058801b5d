"""A link as a script of tc(8): a delay line (tc-netem(8)) before a shaper with a queue (tc-tbf(8)).

The queue of a direction is before its propagation delay, here behind it. Hosts see no difference,
since a constant delay moves all packets alike; netem cannot hold back its own queue otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final

from bentpipe.export.common import MTU_BYTES, directions, first_value, gaps, lost_share, render
from bentpipe.plan import Plan
from bentpipe.plan.presets import series_values
from bentpipe.scenario import frame_bits
from bentpipe.units import BITS_PER_BYTE, NS_PER_S, format_duration, format_rate

# What Linux counts beside the IP packet on an interface of Ethernet.
_ETHERNET_BYTES: Final = 14
# tc-stab(8) knows the cells of ATM alone (ITU-T I.361).
_ATM_CELLS: Final = {"payload_bytes": 48, "cell_bytes": 53}
# A slot for each byte: tables with fewer slots round sizes up. The last one is that of the MTU + 1.
_TABLE_BYTES: Final = 2_048
# The time of a bucket has 32 bits of 64 ns: at lower rates it has no room for a packet.
_SLOWEST_BPS: Final = 100
# Tokens of so long are lost by no timer that fires late.
_BURST_NS: Final = 1_000_000
# More than any link has in flight; memory is taken as packets arrive.
_DELAY_LINE_PACKETS: Final = 1_000_000
_UNLIMITED_BYTES: Final = 1_000_000_000
# Packets follow each other in order only if netem has a rate; this one takes no time.
_KEEP_ORDER: Final = "rate 100gbit"
# TCQ_PRIO_BANDS of linux/pkt_sched.h.
_BANDS_MAX: Final = 16
_LOG_WEIGHTS: Final = range(1, 32)


@dataclass(frozen=True)
class _Shaper:
    """The rate of a direction, and the size of a packet, as tbf with a size table counts them."""

    rate_bps: int
    overhead_bytes: int
    min_bytes: int
    is_atm: bool
    link_bits: int
    """The bits of the largest packet on the link."""

    def size(self, ip_bytes: int) -> int:
        """Return the bytes that a packet takes of the rate."""
        size = max(ip_bytes + self.overhead_bytes, self.min_bytes)
        if self.is_atm:
            size = -(-size // _ATM_CELLS["payload_bytes"]) * _ATM_CELLS["cell_bytes"]
        return size

    @property
    def largest_bytes(self) -> int:
        """The bytes that the largest packet takes."""
        return self.size(MTU_BYTES)

    @property
    def table(self) -> str:
        """The size table (tc-stab(8))."""
        words = [f"overhead {self.overhead_bytes - _ETHERNET_BYTES}"]
        if self.min_bytes:
            words.append(f"mpu {self.min_bytes}")
        if self.is_atm:
            words.append("linklayer atm")
        if len(words) > 1:
            words = [f"mtu {_TABLE_BYTES - 1} tsize {_TABLE_BYTES}", *words]
        return f"stab {' '.join(words)}"

    @property
    def burst_bytes(self) -> int:
        """The bucket: a packet, and what is sent while a timer may be late."""
        late = self.rate_bps * _BURST_NS // (BITS_PER_BYTE * NS_PER_S)
        return max(self.largest_bytes, MTU_BYTES + _ETHERNET_BYTES) + late

    @property
    def burst_ns(self) -> int:
        """How long the link takes for what the bucket holds."""
        return self.burst_bytes * BITS_PER_BYTE * NS_PER_S // self.rate_bps


def tc_script(plan: Plan) -> str:
    """Return a script for sh(1) that makes a router between two interfaces the link of a plan.

    The hosts of the hub are behind the first one (world), those of a terminal behind the second
    (island). What tc cannot express is in comments, each with its consequence.
    """
    shown, further = [], []
    for data, device in zip(directions(plan), ("$island", "$world"), strict=True):
        missing: list[str] = []
        shown.append(
            {
                "name": data["name"],
                "rate": format_rate(first_value(data["rate_bps"])),
                "delay": format_duration(series_values(data["delay_ns"])[0]),
                "lines": list(_direction_lines(data, device, missing)),
            }
        )
        further += [f"link.{data['name']}.{text}" for text in missing]
    return render("tc.sh.j2", plan, directions=shown, gaps=[*gaps(plan, "tc"), *further])


def _direction_lines(data: Mapping[str, Any], device: str, missing: list[str]) -> Iterator[str]:
    """Yield the commands of a direction; what they lack is appended to ``missing``."""
    shaper = _shaper(data, missing)
    # Only the root may have a size table; the sizes hold for the qdiscs inside it, too.
    inner = f"root handle 2: {shaper.table}"
    if delay := _netem(data, missing):
        yield f'tc qdisc add dev "{device}" root handle 1: {shaper.table} netem {delay}'
        inner = "parent 1:1 handle 2:"
    missing.append(
        "rate: tbf sends what its bucket holds at once: after a pause, packets are "
        f"up to {format_duration(shaper.burst_ns)} earlier than on the link"
    )
    limit, children = _queue(data["queue"], shaper, missing)
    yield (
        f'tc qdisc add dev "{device}" {inner} tbf '
        f"rate {shaper.rate_bps}bit burst {shaper.burst_bytes} limit {limit}"
    )
    for child in children:
        yield f'tc qdisc add dev "{device}" {child}'


def _shaper(data: Mapping[str, Any], missing: list[str]) -> _Shaper:
    rate_bps, framing = max(first_value(data["rate_bps"]), _SLOWEST_BPS), data["framing"]
    if rate_bps > first_value(data["rate_bps"]):
        missing.append(f"rate: tbf has {format_rate(rate_bps)} at least: the link is slower")
    _note_steps(data["rate_bps"], "rate", format_rate, missing)
    cells, (numerator, denominator) = framing["cells"], framing["expansion"]
    factor = Fraction(numerator, denominator)
    # On the link the gap between frames is not expanded, as the rest is.
    gap_bytes = round(Fraction(framing["inter_frame_bytes"]) / factor)
    shaper = _Shaper(
        rate_bps=math.floor(rate_bps / factor),
        overhead_bytes=framing["header_bytes"] + gap_bytes,
        min_bytes=framing["min_bytes"] and framing["min_bytes"] + gap_bytes,
        is_atm=cells == _ATM_CELLS,
        link_bits=frame_bits(framing, MTU_BYTES),
    )
    if cells is not None and cells != _ATM_CELLS:
        # Exact for packets of the largest size.
        share = Fraction(BITS_PER_BYTE * shaper.largest_bytes, shaper.link_bits)
        missing.append(
            f"framing: tc has no cells of {cells['cell_bytes']} B: the rate is that of packets of "
            f"{MTU_BYTES} B, and smaller ones take less of it than in the scenario"
        )
        return replace(shaper, rate_bps=math.floor(rate_bps * share))
    return shaper


def _note_steps(series: Mapping[str, Any], field: str, text: Any, missing: list[str]) -> None:
    values = series_values(series)
    if len(values) == 1:
        return
    low, high = min(values), max(values)
    missing.append(
        f"{field}: has {len(values)} steps from {text(low)} to {text(high)}; these lines keep the "
        "first: no handover, no outage and no change of the queueing delay that it would make"
    )


# --- delay and losses ---------------------------------------------------------------------------


def _netem(data: Mapping[str, Any], missing: list[str]) -> str:
    """Return the options of netem; empty if a direction neither delays nor loses packets."""
    words = []
    delay_ns, jitter_ns = series_values(data["delay_ns"])[0], data["jitter_ns"]
    _note_steps(data["delay_ns"], "delay", format_duration, missing)
    if jitter_ns:
        half = Fraction(jitter_ns, 2)
        words.append(f"delay {_ms(delay_ns + half)} {_ms(half)} {_KEEP_ORDER}")
    elif delay_ns:
        words.append(f"delay {_ms(delay_ns)}")
    if loss := _loss(data, missing):
        words.append(loss)
        missing.append(
            "loss: a packet is lost before the queue, not on the channel: it takes no transmission "
            "time, so the others get its share of the rate"
        )
    return " ".join([f"limit {_DELAY_LINE_PACKETS}", *words]) if words else ""


def _ms(time_ns: int | Fraction) -> str:
    return f"{(Decimal(int(time_ns)) / 10**6).normalize():f}ms"


def _loss(data: Mapping[str, Any], missing: list[str]) -> str:
    """Return the losses of a channel as an option of netem; empty if it loses no packet."""
    channel, bits = data["channel"], frame_bits(data["framing"], MTU_BYTES)
    if channel["kind"] == "gilbert_elliott":
        packet_ns = bits * NS_PER_S / first_value(data["rate_bps"])
        states = [channel[name] for name in ("good", "bad")]
        leave_good, leave_bad = (
            min(1.0, packet_ns / state["mean_duration_ns"]) for state in states
        )
        lost_good, lost_bad = (lost_share(state, bits) for state in states)
        missing.append(
            "errors: netem changes its state by packets, here as often as in the scenario at full "
            "load: while less is sent, both states last longer"
        )
        shares = (leave_good, leave_bad, lost_bad, lost_good)
        return f"loss gemodel {' '.join(map(_percent, shares))}"
    steps = channel.get("steps", [channel])
    if len(steps) > 1:
        missing.append(
            f"errors: have {len(steps)} steps; these lines keep the first, also where the scenario "
            "has more or fewer losses"
        )
    if any(step.get("bit_error_rate") for step in steps):
        missing.append(
            f"bit_error_rate: netem loses packets of all sizes alike: the loss is that of "
            f"{MTU_BYTES} B, and small packets such as ACKs are lost more often than on the link"
        )
    share = lost_share(steps[0], bits)
    return f"loss random {_percent(share)}" if share else ""


def _percent(share: float) -> str:
    # netem has steps of 2^-32.
    return f"{100 * share:.10f}".rstrip("0").rstrip(".") + "%"


# --- queues -------------------------------------------------------------------------------------


# Disciplines of which a drop-tail queue is left, and what that lacks.
_PLAIN: Final = {
    "per_flow_drop_tail": (
        "queue.per_flow_limit: this queue has one limit for all: a flow can fill it alone"
    ),
    "selective_drop": (
        "queue.discipline: tc has no selective_drop: a drop-tail queue with the same limit, in "
        "which flows with a large share are not dropped first"
    ),
    "shared_rate": (
        "queue.classes: these lines have one drop-tail queue for all classes, without reserved "
        "rates; tc-htb(8) has classes"
    ),
}


def _queue(queue: Mapping[str, Any], shaper: _Shaper, missing: list[str]) -> tuple[int, list[str]]:
    """Return the limit of tbf in bytes, and the qdiscs inside it."""
    limit_bytes = _limit_bytes(queue["limit"], shaper)
    if queue["limit"]["unit"] == "bytes" and shaper.overhead_bytes:
        missing.append(
            f"queue.limit: counts IP bytes, and tc link bytes: exact for packets of {MTU_BYTES} B,"
            " and smaller ones fill the queue sooner"
        )
    if queue["limit"]["unit"] == "unlimited":
        missing.append(f"queue.limit: tc has no unlimited queue: {_UNLIMITED_BYTES:,} B")
    packets = queue["limit"]["value"] if queue["limit"]["unit"] == "packets" else None
    inside = "parent 2:1 handle 3:"
    match queue["discipline"]:
        case "codel" | "fq_codel":
            limit = packets or -(-limit_bytes // shaper.largest_bytes)
            if packets is None and queue["limit"]["unit"] != "unlimited":
                missing.append(f"queue.limit: counts packets: {limit} of {MTU_BYTES} B")
            return limit_bytes, [f"{inside} {_codel(queue, limit)}"]
        case "red":
            return limit_bytes, [f"{inside} {_red(queue, limit_bytes, shaper, missing)}"]
        # That of one class is a drop-tail queue, and the kernel has no prio of one band.
        case "strict_priority" if queue["classes"] > 1:
            return limit_bytes, list(_bands(queue, packets, limit_bytes, missing))
        case "early_packet_discard":
            # It drops whole packets that arrive above the threshold.
            limit_bytes = math.ceil(limit_bytes * queue["threshold"])
            packets = packets and math.ceil(packets * queue["threshold"])
        case name if name in _PLAIN:
            missing.append(_PLAIN[name])
    return limit_bytes, [f"{inside} pfifo limit {packets}"] if packets else []


def _limit_bytes(limit: Mapping[str, Any], shaper: _Shaper) -> int:
    """Return the limit of a queue in the bytes of the shaper."""
    value = limit.get("value", 0)
    return math.ceil(
        {
            "bytes": Fraction(value * shaper.largest_bytes, MTU_BYTES),
            # As many packets of the largest size as on the link.
            "link_bytes": Fraction(value * BITS_PER_BYTE * shaper.largest_bytes, shaper.link_bits),
            "packets": Fraction(value * shaper.largest_bytes),
            "time_ns": Fraction(value * shaper.rate_bps, BITS_PER_BYTE * NS_PER_S),
            "unlimited": Fraction(_UNLIMITED_BYTES),
        }[limit["unit"]]
    )


def _codel(queue: Mapping[str, Any], packets: int) -> str:
    target, interval = _ms(queue["target_ns"]), _ms(queue["interval_ns"])
    words = [f"{queue['discipline']} limit {packets} target {target} interval {interval}"]
    if queue["discipline"] == "fq_codel":
        words.append(f"flows {queue['queues']} quantum {queue['quantum_bytes']}")
    return " ".join([*words, "ecn" if queue["ecn"] else "noecn"])


def _red(queue: Mapping[str, Any], limit_bytes: int, shaper: _Shaper, missing: list[str]) -> str:
    """Return RED in bytes of the shaper, exact for packets of the largest size.

    tc computes the weight from a burst.
    """
    is_packets = queue["unit"] == "packets"
    unit_bytes = Fraction(shaper.largest_bytes, 1 if is_packets else MTU_BYTES)
    low, high = (round(queue[f"{end}_threshold"] * unit_bytes) for end in ("min", "max"))
    if unit_bytes != 1:
        missing.append(
            f"queue.min_threshold: tc counts link bytes: exact for packets of {MTU_BYTES} B, and "
            "smaller ones count by their size on the link"
        )
    probability = queue["max_probability"]
    if not is_packets:
        probability = min(1.0, probability * MTU_BYTES / queue["mean_packet_bytes"])
        missing.append(
            "queue.max_probability: in the scenario it is in proportion to the size of a packet; "
            f"tc drops all sizes as those of {MTU_BYTES} B"
        )
    mean_bytes = shaper.size(queue["mean_packet_bytes"])
    burst, weight = _red_burst(queue["weight"], low / mean_bytes)
    missing.append(f"queue.weight: tc has powers of two: {weight:g}, not {queue['weight']:g}")
    if queue["gentle"]:
        missing.append(
            "queue.gentle: tc drops every packet while the average is above max_threshold"
        )
    ecn = " ecn" if queue["ecn"] else ""
    return (
        f"red limit {limit_bytes} min {low} max {high} avpkt {mean_bytes} burst {burst} "
        f"probability {probability:g} bandwidth {shaper.rate_bps}bit{ecn}"
    )


def _red_burst(weight: float, min_packets: float) -> tuple[int, float]:
    """Return the burst from which tc computes the nearest weight, and that weight.

    tc takes the largest weight W of 1/2, 1/4, ... with burst + 1 - min <= (1 - (1 - W)^burst) / W,
    where min is in packets and at most the burst (tc_red_eval_ewma of iproute2).
    """
    wanted = max(1, round(-math.log2(weight)))
    burst = best = max(math.ceil(min_packets), 1)
    log = 1
    while log < wanted and (next_log := _log_weight(burst, min_packets)) is not None:
        best, log = burst, next_log
        burst += 1 + burst // 64
    return best, 2.0**-log


def _log_weight(burst: int, min_packets: float) -> int | None:
    for log in _LOG_WEIGHTS:
        weight = 2.0**-log
        if burst + 1 - min_packets <= -math.expm1(burst * math.log1p(-weight)) / weight:
            return log
    return None


def _bands(
    queue: Mapping[str, Any], packets: int | None, limit_bytes: int, missing: list[str]
) -> Iterator[str]:
    bands = min(queue["classes"], _BANDS_MAX)
    # Without a filter, prio takes the band from this map: the last one for all.
    yield f"parent 2:1 handle 3: prio bands {bands} priomap {' '.join([str(bands - 1)] * 16)}"
    limit = f"pfifo limit {packets}" if packets else f"bfifo limit {limit_bytes}"
    for band in range(1, bands + 1):
        yield f"parent 3:{band:x} {limit}"
    if bands < queue["classes"]:
        missing.append(f"queue.classes: tc has {bands} at most: the later ones are the last")
    missing.append(
        "queue.discipline: tc sees packets, not flows: all are in the last class until filters "
        "select others, such as: tc filter add dev DEVICE parent 3: protocol ip u32 match ip "
        "dsfield 0xb8 0xfc flowid 3:1"
    )
