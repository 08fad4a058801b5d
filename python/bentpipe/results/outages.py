"""When a direction of a run sent nothing: the outages of its link."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from bentpipe.units import NS_PER_S

if TYPE_CHECKING:
    from bentpipe.results.result import Result

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Outages:
    """The times in s at which directions sent nothing: a row for each, start and end."""

    name: str
    intervals_s: Array

    def visible(self, from_s: float, to_s: float, columns: int) -> Array:
        """Return the intervals in a part of the run, those that share a column of a plot as one."""
        starts, ends = self.intervals_s.T
        rows = (starts < to_s) & (ends > from_s)
        starts, ends = np.clip(starts[rows], from_s, to_s), np.clip(ends[rows], from_s, to_s)
        if starts.size == 0:
            return np.empty((0, 2))
        apart = starts[1:] - ends[:-1] > (to_s - from_s) / columns
        return np.column_stack([starts[np.r_[True, apart]], ends[np.r_[apart, True]]])


def outages(result: Result) -> list[Outages]:
    """Return the outages of the link until the end of the run, once if both directions have them.

    An outage is a time at which the rate is 0. The gaps of a delivery trace are none.
    """
    found: dict[str, list[tuple[float, float]]] = {}
    names = result.manifest["names"]["directions"]
    for name, direction in zip(names, result.plan["directions"], strict=True):
        # The returns of all terminals are alike.
        heading = name.partition("-")[0]
        if heading not in found and not _is_traced(result, heading):
            found[heading] = _intervals(direction["rate_bps"], result.manifest["end_ns"])
    together = [*found.values()]
    if together[1:] and all(each == together[0] for each in together):
        found = {"": together[0]}
    return [
        Outages(f"outage of {heading}" if heading else "outage", np.array(intervals) / NS_PER_S)
        for heading, intervals in found.items()
        if intervals
    ]


def _is_traced(result: Result, heading: str) -> bool:
    written = result.manifest["scenario"].get("link") or {}
    rate = (written.get(heading) or {}).get("rate")
    return isinstance(rate, dict) and "trace" in rate


def _intervals(rate: Mapping[str, Any], end_ns: int) -> list[tuple[float, float]]:
    """Return the times until ``end_ns`` at which a rate is 0, start and end, in ns."""
    if rate["kind"] == "constant":
        return []
    found: list[tuple[float, float]] = []
    start_ns: int | None = None
    for at_ns, value in [*rate["steps"], (end_ns, 1)]:
        if start_ns is not None and value > 0:
            found.append((start_ns, min(at_ns, end_ns)))
            start_ns = None
        elif start_ns is None and value == 0 and at_ns < end_ns:
            start_ns = at_ns
    return found
