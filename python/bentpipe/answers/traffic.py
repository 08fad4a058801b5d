"""Traffic of several questions, transfers, calls and users of pages, and its times."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from bentpipe.answers.catalog import Option
from bentpipe.answers.question import Assumption, LinkQuestion, initial, peak_bps
from bentpipe.answers.runs import PACKET_BITS, Estimate, Samples
from bentpipe.errors import UsageError
from bentpipe.plan.hosts import windows_bytes
from bentpipe.plan.presets import values_over_time
from bentpipe.results.result import Result
from bentpipe.scenario.framings import frame_bits
from bentpipe.scenario.link import DirectionName
from bentpipe.scenario.tables import CODECS, CodecName
from bentpipe.scenario.tcp import CongestionControl
from bentpipe.units import (
    NS_PER_S,
    TCP_IP_BYTES,
    TIMESTAMPS_BYTES,
    UDP_IP_BYTES,
    format_duration,
    format_size,
)

CODEC: Final = CODECS["g711"]
MEDIAN_PAGE_BYTES: Final = 300_000
THINK_S: Final = 15
# The media rate of a video beside users of web pages: one of standard definition, and a small part
# of a slow link.
_VIDEO_BPS: Final = 1_000_000
_VIDEO_SHARE: Final = 0.1
# Users start within `THINK_S`, so more of them load pages at first than later: what starts before
# that is over does not count, in runs of at least five times as long.
WARM_UP_NS: Final = 60 * NS_PER_S
_WARM_UP_SHARE: Final = 5
# Runs have the time for so many pages of their mean size at the link rate, and for a fifth of them
# that take as long as they may.
_PAGES: Final = 20
_PAGES_IN_TIME: Final = 5
# Runs with users are as long as the link carries this number of full packets, within bounds.
_RUN_PACKETS: Final = 1_000_000
_RUN_S: Final = (120, 300)


@dataclass(kw_only=True, eq=False)
class Transfer(LinkQuestion):
    """A question about TCP transfers in one direction."""

    direction: Annotated[DirectionName, Option("The direction of the data.")] = "forward"
    congestion_control: Annotated[
        CongestionControl, Option("The congestion control of the senders.")
    ] = "cubic"
    duration: str = "60 s"

    def transfer(self, **more: Any) -> dict[str, Any]:
        """Return the entry ``transfer`` of traffic."""
        return {
            "name": "transfer",
            "kind": "bulk",
            "direction": self.direction,
            "duration": self.duration,
            "tcp": {"congestion_control": self.congestion_control},
            **more,
        }

    @property
    def wire(self) -> Mapping[str, Any]:
        """The direction of the data, of the plan."""
        return self.directions[0 if self.direction == "forward" else 1]

    @property
    def sender(self) -> Mapping[str, Any]:
        """The TCP settings of the transfer in the plan, those of both ends."""
        sender: Mapping[str, Any] = self.base.data["flows"][0]["workload"]["sender"]
        return sender

    @cached_property
    def path_over_time(self) -> list[tuple[float, int, int]]:
        """The parts of the run with their rates and round trips: share of the time, bit/s, ns."""
        delays = [direction["delay_ns"] for direction in self.directions]
        parts = values_over_time(self.base.data["stop_ns"], self.wire["rate_bps"], *delays)
        return [(share, rate_bps, max(sum(ways), 1)) for share, (rate_bps, *ways) in parts]

    @property
    def payload_bytes(self) -> int:
        """The data of a full segment."""
        options = TIMESTAMPS_BYTES if self.sender["timestamps"] else 0
        return int(self.sender["mss_bytes"]) - options

    @property
    def window_bytes(self) -> int:
        """The most bytes in flight that the buffers allow."""
        return min(windows_bytes(self.sender).values())

    @property
    def window_text(self) -> str:
        """Of which buffer the window is a part, where it is one; else nothing."""
        sender, windows = self.sender, windows_bytes(self.sender)
        is_smallest = min(windows, key=windows.__getitem__) == "receive_buffer"
        if sender["receive_buffer_counts"] != "memory" or not is_smallest:
            return ""
        size = format_size(sender["receive_buffer_bytes"])
        return f", a part of {size} since Linux counts the memory of packets,"

    def bounds_bps(self) -> dict[str, float]:
        """Return bounds of the goodput, on paper: headers, and window over round trip."""
        path, window = self.path_over_time, self.window_bytes
        bits = frame_bits(self.wire["framing"], self.sender["mss_bytes"] + TCP_IP_BYTES)
        return {
            "headers": sum(share * rate for share, rate, _ in path) * 8 * self.payload_bytes / bits,
            f"window {format_size(window)} / round trip": sum(
                share * window * 8 * NS_PER_S / rtt_ns for share, _, rtt_ns in path
            ),
        }


def slow_start_rounds(server: Mapping[str, Any], size_bytes: int) -> int:
    """Return the rounds of slow start of a download: the window doubles in each.

    ``server`` has the TCP settings of the plan.
    """
    segments = math.ceil(size_bytes / (server["mss_bytes"] - TIMESTAMPS_BYTES))
    return math.ceil(math.log2(1 + segments / server["initial_window_segments"]))


def bit_errors(direction: str, rate: float, instead: str) -> Assumption:
    """Return that the link may have another bit error rate."""
    setting = f"link.{direction}.bit_error_rate={rate:e}"
    return Assumption(f"bit error rate {rate:.0e}", instead, (setting,))


def other_bit_errors(direction: str, channel: Mapping[str, Any]) -> list[Assumption]:
    """Return fewer and more bit errors than those of a channel, if its errors do not vary."""
    rates, now = (1e-8, 1e-7), "0"
    if channel["kind"] == "bit_errors":
        rate = channel["bit_error_rate"]
        rates, now = (rate / 10, rate * 10), f"{rate:.0e}"
    varies = channel["kind"] not in {"clear", "bit_errors"}
    return [] if varies else [bit_errors(direction, other, now) for other in rates]


def other_round_trips(directions: Sequence[Mapping[str, Any]]) -> list[Assumption]:
    """Return round trips of 80 and 120 % of the propagation of both directions, where constant."""
    delays = [direction["delay_ns"] for direction in directions]
    rtt_ns, assumptions = sum(map(initial, delays)), []
    for factor in (0.8, 1.2):
        changes = tuple(
            f"link.{name}.delay={round(initial(delay) * factor)}ns"
            for name, delay in zip(("forward", "return"), delays, strict=True)
            if delay["kind"] == "constant"
        )
        if changes:
            rtt, changed = (format_duration(rtt_ns * share) for share in (1, factor))
            assumptions.append(Assumption(f"round-trip propagation {changed}", rtt, changes))
    return assumptions


def call(direction: str, codec: CodecName = "g711") -> dict[str, Any]:
    """Return the entry ``call`` of traffic: a call whose quality is that of `Result.flows`."""
    return {
        "name": "call",
        "kind": "voice",
        "direction": direction,
        "codec": codec,
        # The interval of its packets.
        "start_jitter": "20 ms",
    }


def call_beside(result: Result, wire: Mapping[str, Any]) -> dict[str, float]:
    """Return the quality of the call of a run, and what 99 % of its packets waited at most.

    ``wire`` is the plan of its direction; what a packet takes on the link is no wait.
    """
    row = result.flows.row(by_predicate=pl.col("kind") == "voice", named=True)
    bits = frame_bits_of("g711", wire["framing"])
    on_link_ns = initial(wire["delay_ns"]) + bits * NS_PER_S / peak_bps(wire["rate_bps"])
    late_ns = row["one_way_delay_p99_ns"]
    return {
        "queue_delay_p99_ns": math.nan if late_ns is None else max(late_ns - on_link_ns, 0.0),
        **{f"call_{name}": row[name] for name in ("unplayed_percent", "r_factor", "mos")},
    }


def frame_bits_of(codec: CodecName, framing: Mapping[str, Any]) -> int:
    """Return the link bits of a packet of a call with this codec."""
    return frame_bits(framing, CODECS[codec].payload_bytes + UDP_IP_BYTES)


def warm_up_ns(stop_ns: int) -> int:
    """Return the time at the start of a run of ``stop_ns`` in which pages do not count."""
    return min(WARM_UP_NS, stop_ns // _WARM_UP_SHARE)


def times_ns(
    table: pl.DataFrame, end_ns: int, limit_ns: int = 0, start_ns: int = 0
) -> npt.NDArray[np.float64]:
    """Return the times of exchanges or pages from start to finish.

    They are those that start from ``start_ns`` to ``limit_ns`` before the end of the run. One that
    the end cut off counts with its age, which is at least ``limit_ns``, so it is known of each
    whether it takes longer than that.
    """
    rows = table.filter(pl.col("start_ns").is_between(start_ns, end_ns - limit_ns))
    took_ns = rows.select(pl.col("finished_ns").fill_null(end_ns) - pl.col("start_ns"))
    return took_ns.to_series().to_numpy().astype(np.float64)


def median_and_p95(times_ns: npt.NDArray[Any]) -> tuple[float, float]:
    """Return two quantiles of times, NaN without any."""
    if not times_ns.size:
        return math.nan, math.nan
    median, high = np.quantile(times_ns, (0.5, 0.95))
    return float(median), float(high)


def quantiles(name: str, times_ns: npt.NDArray[np.float64]) -> dict[str, Samples]:
    """Return the figures ``name_p50_ns`` and ``name_p95_ns`` of times."""
    return {f"{name}_p{round(100 * q)}_ns": Samples(times_ns, q) for q in (0.5, 0.95)}


def reader(**page: Any) -> dict[str, Any]:
    """Return the entry ``reader`` of traffic: one user who takes a page, thinks, and repeats.

    Several users are spread over the terminals of the link.
    """
    return {
        "name": "reader",
        "direction": "forward",
        "terminal": "spread",
        **page,
        "think": {"exponential": f"{THINK_S} s"},
        "start_jitter": f"{THINK_S} s",
    }


def page_reader() -> dict[str, Any]:
    """Return the entry ``reader`` with pages of one response over an open TCP connection."""
    size = {"median": f"{MEDIAN_PAGE_BYTES} B", "sigma": 1.5, "max": "50 MB"}
    return reader(kind="request_response", request="500 B", response={"lognormal": size})


def page_times(result: Result) -> dict[str, float | Samples]:
    """Return two quantiles of the times of the pages of `page_reader`, and their number.

    They are those that start after the warm-up and as long before the end.
    """
    readers = [i for i, entry in enumerate(result.flows["entry"]) if entry == "reader"]
    pages = result.tables["exchanges"].filter(pl.col("flow").is_in(readers))
    end_ns = result.manifest["end_ns"]
    edge_ns = warm_up_ns(end_ns)
    pages_ns = times_ns(pages, end_ns, limit_ns=edge_ns, start_ns=edge_ns)
    return {**quantiles("page", pages_ns), "pages": float(pages_ns.size)}


def web_reader(link_bps: int, start_ns: int) -> list[dict[str, Any]]:
    """Return users of web pages, the entry ``reader`` of traffic, beside a call and a video.

    ``link_bps`` is the rate of the link in bit/s; the call and the video start at ``start_ns``.
    """
    video_bps = round(min(_VIDEO_BPS, _VIDEO_SHARE * link_bps))
    video = {"kind": "video", "direction": "forward", "rate": f"{video_bps} bit/s"}
    start = {"start": f"{start_ns} ns"}
    return [
        reader(kind="web_page", pages=None),
        {"name": "call", "kind": "voice", "direction": "both", "codec": "g711", **start},
        {"name": "video", **video, **start},
    ]


def web_quality(result: Result, limit_ns: int) -> dict[str, float | Samples]:
    """Return the times of the pages of `web_reader`, and the quality of the call and the video.

    The share ``slow_share`` of the pages takes longer than ``limit_ns``. They start after the
    warm-up and ``limit_ns`` before the end; without one times are infinite.
    """
    end_ns = result.manifest["end_ns"]
    pages_ns = times_ns(result.tables["pages"], end_ns, limit_ns, warm_up_ns(end_ns))
    pages_ns = pages_ns if pages_ns.size else np.array([math.inf])
    calls = result.flows.select("mos", "unplayed_percent").drop_nulls()
    stalls = result.flows["stall_ratio_percent"].drop_nulls().to_numpy()
    return {
        "page_mean_ns": Samples(pages_ns),
        **quantiles("page", pages_ns),
        "slow_share": Samples((pages_ns > limit_ns).astype(np.float64)),
        "mos_p5": float(np.quantile(calls["mos"], 0.05)) if len(calls) else math.nan,
        "unplayed_percent": max(calls["unplayed_percent"], default=math.nan),
        "stall_ratio_percent": float(stalls.mean()) if stalls.size else math.nan,
        "utilization": float(result.directions["utilization"][0]),
    }


def run_length(rate_bps: int, page_bytes: float, page_time_ns: int = 0) -> str:
    """Return the duration of runs with users: a warm-up and then some pages of each.

    ``page_bytes`` is their mean size, and ``page_time_ns`` what a page may take. Runs are shorter
    on links of more than 40 Mbit/s, where many users take as many pages in less time.
    """
    duration_s = float(np.clip(_RUN_PACKETS * PACKET_BITS / rate_bps, *_RUN_S))
    pages_s = _PAGES * max(8 * page_bytes / rate_bps, page_time_ns / NS_PER_S / _PAGES_IN_TIME)
    return f"{math.ceil(max(duration_s, WARM_UP_NS / NS_PER_S + pages_s))} s"


def elapsed_h(bits: float, phases: Sequence[tuple[float, float]]) -> float:
    """Return the hours that a number of bits takes.

    ``phases`` are the parts of each day, from the start on: their hours, and the bit/s in them.
    Infinite if nothing is sent in any of them.
    """
    of_phases = [hours * 3600 * bps for hours, bps in phases]
    if not sum(of_phases):
        return math.inf
    days = math.ceil(bits / sum(of_phases)) - 1
    left, elapsed = bits - days * sum(of_phases), 24.0 * days
    for (hours, bps), most in zip(phases, of_phases, strict=True):
        if left <= most:
            return elapsed + left / bps / 3600
        left, elapsed = left - most, elapsed + hours
    return elapsed


def elapsed_range_h(
    bits: float, phases: Sequence[tuple[float, Estimate]], day_h: float
) -> tuple[float, list[float]]:
    """Return `elapsed_h` at the mean rates, and at the ends of their intervals, the shorter first.

    What ``phases`` leave of ``day_h`` hours is idle.
    """
    idle = (day_h - sum(hours for hours, _ in phases), 0.0)
    mean_h, low_h, high_h = (
        elapsed_h(bits, [*((hours, max(getattr(bps, end), 0.0)) for hours, bps in phases), idle])
        for end in ("mean", "high", "low")
    )
    return mean_h, [low_h, high_h]


class Users(NamedTuple):
    """The users of a plan: the mean page in bytes, and the mean time that they think."""

    page_bytes: float
    think_s: float

    def at(self, load: float, rate_bps: float, page_ns: float) -> float:
        """Return how many put this load (0 to 1) on a link if a page takes ``page_ns``.

        The interactive response time law (Lazowska et al., Quantitative System Performance, 1984,
        section 3.5): N users who think for Z and wait for R take N / (Z + R) pages per second.
        """
        return load * rate_bps / self.rate_bps(page_ns)

    def rate_bps(self, page_ns: float) -> float:
        """Return the mean rate of a user, who loads a page in ``page_ns`` and then thinks."""
        return 8 * self.page_bytes / (self.think_s + page_ns / NS_PER_S)


def users_of(plan: Mapping[str, Any]) -> Users:
    """Return the users of the first flow of a plan.

    Raises:
        UsageError: a setting has replaced the reader by something else.
    """
    workload = plan["flows"][0]["workload"]
    if workload["kind"] == "request_response":
        page_bytes = mean_of(workload["response_bytes"])
    elif workload["kind"] == "web_page":
        objects_bytes = mean_of(workload["objects"]) * mean_of(workload["object_bytes"])
        page_bytes = mean_of(workload["document_bytes"]) + objects_bytes
    else:
        raise UsageError("traffic.reader: its kind cannot be changed here")
    return Users(page_bytes, mean_of(workload["think_ns"]) / NS_PER_S)


def mean_of(draw: Mapping[str, Any]) -> float:
    """Return the mean of what is drawn, in its unit."""
    if draw["kind"] == "constant":
        return float(draw["value"])
    if draw["kind"] == "exponential":
        return float(draw["mean"])
    if draw["kind"] == "pareto":
        return _pareto_mean(draw["min"], draw["max"], draw["shape"])
    return _lognormal_mean(draw["median"], draw["sigma"], draw["max"])


def _pareto_mean(low: float, high: float, shape: float) -> float:
    """Return the mean of a bounded Pareto distribution: the integral of x f(x) from low to high."""
    if low == high:
        return low
    scale = shape * math.pow(low, shape) / (1 - math.pow(low / high, shape))
    if shape == 1:
        return scale * math.log(high / low)
    return scale * (math.pow(high, 1 - shape) - math.pow(low, 1 - shape)) / (1 - shape)


def _lognormal_mean(median: float, sigma: float, upper: float) -> float:
    """Return the mean of a log-normal distribution whose larger values become ``upper``."""
    if sigma == 0:
        return min(median, upper)
    bound = math.log(upper / median) / sigma
    below = median * math.exp(sigma**2 / 2) * _normal(bound - sigma)
    return below + upper * _normal(-bound)


def _normal(x: float) -> float:
    """Return the standard normal distribution function."""
    return math.erfc(-x / math.sqrt(2)) / 2
