"""How a link fares at this moment, in words, from two reports of a lab."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

Report = Mapping[str, Any]

# A shorter time than this says little about a rate.
_LEAST_NS: Final = 50_000_000


class Figures:
    """Queue, rate, losses by cause, lateness: rates since the report before, all else in total."""

    def __init__(self) -> None:
        self._at_ns = 0
        self._delivered_bytes: dict[str, int] = {}
        self._rates_bps: dict[str, float] = {}

    def lines(self, report: Report) -> list[str]:
        """Return a line for each direction, and one for the lateness of packets."""
        self._take(report)
        lines = []
        for name, direction in report["directions"].items():
            causes = [f"{n:,} {cause}" for cause, n in direction["dropped_packets"].items()]
            lines.append(
                f"{name}: {self._rates_bps[name] / 1e6:,.2f} Mbit/s of IP delivered; queue "
                f"{direction['queue_packets']:,} packets, {_kilobytes(direction)}; "
                + (f"lost {', '.join(causes)}" if causes else "none lost")
            )
        late = report["lateness"]
        verdict = "" if report["invalid"] is None else "; INVALID"
        lines.append(
            f"{report['at_ns'] / 1e9:,.0f} s; late by {micros(late['p50_ns'])} (median), "
            f"{micros(late['p99_ns'])} (p99), {micros(late['max_ns'])} (most){verdict}"
        )
        return lines

    def brief(self, report: Report) -> str:
        """Return the same in one line, with losses of all causes together."""
        self._take(report)
        parts = []
        for name, direction in report["directions"].items():
            lost = sum(direction["dropped_packets"].values())
            parts.append(
                f"{name} {self._rates_bps[name] / 1e6:,.2f} Mbit/s, queue {_kilobytes(direction)}"
                + (f", {lost:,} lost" if lost else "")
            )
        verdict = "" if report["invalid"] is None else ", INVALID"
        parts.append(f"late {micros(report['lateness']['p99_ns'])} (p99){verdict}")
        return "; ".join(parts)

    def _take(self, report: Report) -> None:
        directions = report["directions"]
        delivered_bytes = {name: d["delivered_bytes"] for name, d in directions.items()}
        for name in directions:
            self._rates_bps.setdefault(name, 0.0)
        elapsed_ns = report["at_ns"] - self._at_ns
        if elapsed_ns < _LEAST_NS:
            return
        for name, count in delivered_bytes.items():
            bits = 8 * (count - self._delivered_bytes.get(name, 0))
            self._rates_bps[name] = bits / elapsed_ns * 1e9
        self._at_ns, self._delivered_bytes = report["at_ns"], delivered_bytes


def _kilobytes(direction: Mapping[str, Any]) -> str:
    return f"{direction['queue_bytes'] / 1e3:,.1f} kB"


def micros(nanos: int) -> str:
    """Return a time in whole microseconds, as people read it."""
    return f"{nanos / 1e3:,.0f} µs"
