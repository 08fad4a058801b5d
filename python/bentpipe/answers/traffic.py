"""Traffic of several questions, calls and users of pages, and functions of gateways."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple

from bentpipe.errors import UsageError
from bentpipe.results.voice import Quality, quality
from bentpipe.scenario.codecs import CODECS, Codec
from bentpipe.units import NS_PER_S

CODEC: Final = CODECS["g711"]
NS_PER_MS: Final = 10**6
UDP_IP_BYTES: Final = 28
# Play-out waits for 99 of 100 packets; the others count as lost.
_LATE_PERCENT: Final = 1.0
MEDIAN_PAGE_BYTES: Final = 300_000
THINK_S: Final = 15


def call(direction: str, codec: Codec = CODEC) -> dict[str, Any]:
    """Return the entry ``call`` of traffic: datagrams of a codec, every 20 ms."""
    return {
        "name": "call",
        "kind": "constant_rate",
        "direction": direction,
        "rate": f"{codec.udp_rate_bps} bit/s",
        "payload": f"{codec.payload_bytes} B",
        "start_jitter": "20 ms",
    }


def call_quality(flow: Mapping[str, Any]) -> Quality | None:
    """Return the quality of one direction of the call, a row of `Result.flows`.

    Its play-out is adaptive and ideal: it waits for 99 of 100 packets. Traffic of kind ``voice``
    has a jitter buffer of a fixed delay instead, so delays that vary by more than this cost it
    more. None if no packet arrived.
    """
    late_ns = flow["one_way_delay_p99_ns"]
    if late_ns is None:
        return None
    lost = flow["loss_percent"] or 0.0
    return quality(
        late_ns / NS_PER_MS + CODEC.coding_delay_ms,
        CODEC,
        loss_percent=lost + _LATE_PERCENT * (1 - lost / 100),
    )


def reader(**page: Any) -> dict[str, Any]:
    """Return the entry ``reader`` of traffic: one user who takes a page, thinks, and repeats."""
    return {
        "name": "reader",
        "direction": "forward",
        **page,
        "think": {"exponential": f"{THINK_S} s"},
        "start_jitter": f"{THINK_S} s",
    }


class Users(NamedTuple):
    """The users of a plan: the mean page in bytes, and the mean time that they think."""

    page_bytes: float
    think_s: float

    def at(self, load: float, rate_bps: float, page_ns: float) -> float:
        """Return how many put this load (0 to 1) on a link if a page takes ``page_ns``.

        The interactive response time law (Lazowska et al., Quantitative System Performance, 1984,
        section 3.5): N users who think for Z and wait for R take N / (Z + R) pages per second.
        """
        return load * rate_bps * (self.think_s + page_ns / NS_PER_S) / (8 * self.page_bytes)


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


def with_functions(
    gateways: Mapping[str, Any],
    wanted: Mapping[str, Mapping[str, Mapping[str, Any]]],
    among: Collection[str],
) -> dict[str, Any]:
    """Return gateways with the functions that are ``wanted`` of those ``among``, and all others.

    ``wanted`` has the settings of each function by end and name, such as
    ``{"hub": {"pep": {}}}``. The functions come first, in this order.
    """
    found: dict[str, Any] = {}
    for end in (*gateways, *(end for end in wanted if end not in gateways)):
        before, functions = gateways.get(end) or {}, wanted.get(end, {})
        found[end] = {name: value for name, value in before.items() if name not in among}
        found[end] |= {name: dict(settings) for name, settings in functions.items()}
        if before.get("functions") is not None:
            others = [name for name in before["functions"] if name not in among]
            found[end]["functions"] = [*functions, *others]
    return found
