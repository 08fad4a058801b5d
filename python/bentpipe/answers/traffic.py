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
from bentpipe.answers.question import Assumption, LinkQuestion
from bentpipe.answers.runs import PACKET_BITS
from bentpipe.errors import UsageError
from bentpipe.plan.hosts import windows_bytes
from bentpipe.plan.link import codel_fields
from bentpipe.plan.presets import values_over_time
from bentpipe.results.measures import finished_times_ns
from bentpipe.results.result import Result
from bentpipe.scenario.framings import frame_bits
from bentpipe.scenario.link import DirectionName
from bentpipe.scenario.tables import CODECS, CodecName
from bentpipe.scenario.tcp import CongestionControl
from bentpipe.units import NS_PER_S, TCP_IP_BYTES, TIMESTAMPS_BYTES, format_size

CODEC: Final = CODECS["g711"]
MEDIAN_PAGE_BYTES: Final = 300_000
THINK_S: Final = 15
# Runs with users are as long as the link carries this number of full packets, within bounds.
_RUN_PACKETS: Final = 500_000
_RUN_S: Final = (60, 300)


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
        delays = [each["delay_ns"] for each in self.directions]
        parts = values_over_time(self.base.data["stop_ns"], self.wire["rate_bps"], *delays)
        return [(share, rate_bps, max(sum(ways), 1)) for share, (rate_bps, *ways) in parts]

    def bounds_bps(self) -> dict[str, float]:
        """Return bounds of the goodput, on paper: headers, and window over round trip."""
        mss_bytes, path = self.sender["mss_bytes"], self.path_over_time
        payload = mss_bytes - (TIMESTAMPS_BYTES if self.sender["timestamps"] else 0)
        bits = frame_bits(self.wire["framing"], mss_bytes + TCP_IP_BYTES)
        window = min(windows_bytes(self.sender).values())
        return {
            "headers": sum(share * rate for share, rate, _ in path) * 8 * payload / bits,
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
    return [] if varies else [bit_errors(direction, each, now) for each in rates]


def fq_codel(rtt_ns: int) -> str:
    """Return the setting of a queue with FQ-CoDel for a round trip of ``rtt_ns`` of propagation."""
    return f"{{discipline: fq_codel, {codel_fields(rtt_ns)}}}"


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


def times_ns(table: pl.DataFrame, end_ns: int, limit_ns: int = 0) -> npt.NDArray[np.float64]:
    """Return the times of exchanges or pages from start to finish.

    One that the end of the run cut off counts with its age if that is above ``limit_ns``;
    otherwise it is not known whether it is slow, and it is left out.
    """
    took_ns = pl.col("finished_ns").fill_null(end_ns) - pl.col("start_ns")
    known = table.filter(pl.col("finished_ns").is_not_null() | (took_ns > limit_ns))
    return known.select(took_ns).to_series().to_numpy().astype(np.float64)


def median_and_p95(times_ns: npt.NDArray[Any], missing: float = math.nan) -> tuple[float, float]:
    """Return two quantiles of times, ``missing`` without any."""
    if not times_ns.size:
        return missing, missing
    median, high = np.quantile(times_ns, (0.5, 0.95))
    return float(median), float(high)


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


def page_times(result: Result) -> dict[str, float]:
    """Return two quantiles of the times of the pages of `page_reader`, and their number."""
    pages_ns = finished_times_ns(result, "exchanges")
    median_ns, slow_ns = median_and_p95(pages_ns)
    return {"page_p50_ns": median_ns, "page_p95_ns": slow_ns, "pages": float(pages_ns.size)}


def run_length(rate_bps: int) -> str:
    """Return the duration of runs with users: some pages of each, and many of few users."""
    return f"{round(np.clip(_RUN_PACKETS * PACKET_BITS / rate_bps, *_RUN_S))} s"


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
