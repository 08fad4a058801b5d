"""The users of web pages of several questions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from bentpipe.errors import UsageError
from bentpipe.units import NS_PER_S

MEDIAN_PAGE_BYTES: Final = 300_000
THINK_S: Final = 15
MAX_USERS: Final = 2_000


def reader() -> dict[str, Any]:
    """Return the entry ``reader`` of traffic: one user who takes a page, thinks, and repeats."""
    return {
        "name": "reader",
        "kind": "request_response",
        "direction": "forward",
        "request": "500 B",
        "response": {
            "lognormal": {"median": f"{MEDIAN_PAGE_BYTES} B", "sigma": 1.5, "max": "50 MB"}
        },
        "think": {"exponential": f"{THINK_S} s"},
        "start_jitter": f"{THINK_S} s",
    }


def page_reader() -> dict[str, Any]:
    """Return the entry ``reader`` of traffic: one user who loads web pages until the end."""
    return {
        "name": "reader",
        "kind": "web_page",
        "direction": "forward",
        "pages": None,
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
