"""The rate that each direction of a lab delivers, from one report to the next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

# A rate over a shorter time has a large error: reports are up to 0.1 s old.
_MIN_INTERVAL_NS: Final = 50_000_000


class DeliveredRates:
    """IP bit/s by direction since the report before; at first since the lab was set up."""

    def __init__(self) -> None:
        self._at_ns = 0
        self._delivered_bytes: dict[str, int] = {}
        self._rates_bps: dict[str, float] = {}

    def update(self, report: Mapping[str, Any]) -> Mapping[str, float]:
        """Return the rates at a report; those before it if it is not later by 50 ms."""
        directions = report["directions"]
        delivered_bytes = {name: d["delivered_bytes"] for name, d in directions.items()}
        for name in directions:
            self._rates_bps.setdefault(name, 0.0)
        elapsed_ns = report["at_ns"] - self._at_ns
        if elapsed_ns < _MIN_INTERVAL_NS:
            return self._rates_bps
        for name, count in delivered_bytes.items():
            bits = 8 * (count - self._delivered_bytes.get(name, 0))
            self._rates_bps[name] = bits / elapsed_ns * 1e9
        self._at_ns, self._delivered_bytes = report["at_ns"], delivered_bytes
        return self._rates_bps
