"""How a link fares at this moment, in words, from two reports of a lab."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

Report = Mapping[str, Any]

# A shorter time than this says little about a rate.
_MIN_NS: Final = 50_000_000
_WINDOWS_SHOWN: Final = 6


def windows(report: Report) -> list[str]:
    """Return lines on the last windows of time of a lab: how late each was, and its verdict."""
    lines = [
        f"{report['invalid_windows']:,} of {report['window_count']:,} windows of time are invalid; "
        "the last ones:"
    ]
    for window in report["windows"][-_WINDOWS_SHOWN:]:
        reason = window["invalid"]
        lines.append(
            f"{window['start_ns'] / 1e9:,.0f} to {window['end_ns'] / 1e9:,.0f} s: "
            f"{window['packets']:,} packets, late by {_late_by(window)}"
            + ("" if reason is None else f"; INVALID: {reason}")
        )
    return lines


def _late_by(late: Mapping[str, Any]) -> str:
    p50, p99, worst = (micros(late[name]) for name in ("p50_ns", "p99_ns", "max_ns"))
    return f"{p50} (median), {p99} (p99), {worst} (max)"


def _share(report: Report) -> str:
    """Return how much of a run is invalid, if a part of it is."""
    found, count = report["invalid_windows"], report["window_count"]
    return f" ({found:,} of {count:,} windows)" if count > 1 else ""


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
        verdict = "" if report["invalid"] is None else f"; INVALID{_share(report)}"
        late_by = _late_by(report["lateness"])
        lines.append(f"{report['at_ns'] / 1e9:,.0f} s; late by {late_by}{verdict}")
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
        if elapsed_ns < _MIN_NS:
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
