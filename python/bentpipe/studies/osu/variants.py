"""The sensitivity analysis: changes to the configuration, one at a time."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A change to the configuration, in all cells alike."""

    name: str
    tcp: Mapping[str, Any] = field(default_factory=dict)
    queue: Mapping[str, Any] = field(default_factory=dict)
    start_within_ms: int = 1000
    duration_s: int = 100

    def apply(self, data: dict[str, Any]) -> dict[str, Any]:
        """Return a scenario's data with the change in it."""
        changed = copy.deepcopy(data)
        changed["link"]["forward"]["queue"] |= self.queue
        changed["duration"] = f"{self.duration_s} s"
        for source in changed["traffic"]:
            source["tcp"] |= self.tcp
            source["duration"] = changed["duration"]
        return changed


# A variant shows a direction: three runs of the cells with 1/2 and 1/8 round trip are enough.
MAX_VARIANT_RUNS: Final = 3
VARIANT_KS: Final = (1, 3)

BASE: Final = Variant(name="as described")

VARIANTS: Final = (
    Variant(name="growth by bytes, not by ACKs", tcp={"avoidance_counting": "bytes"}),
    Variant(name="an ACK for each segment", tcp={"delayed_ack_segments": 1}),
    Variant(name="no SACK (NewReno)", tcp={"sack": False}),
    Variant(name="timer ticks of 100 ms", tcp={"clock_granularity": "100 ms"}),
    Variant(name="initial window of 4 segments", tcp={"initial_window": 4}),
    Variant(name="selective drop with Z = 1", queue={"load_ratio": 1.0}),
    Variant(name="starts within 0.1 s", start_within_ms=100),
    Variant(name="300 s", duration_s=300),
)
