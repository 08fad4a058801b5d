"""The verdict on a run in real time: lateness and lost packets, for the manifest."""

from __future__ import annotations

from typing import Any, Final

_COUNTS: Final = (
    "lateness",
    "wait",
    "rejected_packets",
    "kernel_dropped_packets",
    "store_full_packets",
    "too_long_packets",
    "future_stamped_packets",
    "clock_steps",
    "window_count",
    "invalid_windows",
    "capture",
    "fault",
    "invalid",
)


def verdict(report: dict[str, Any], started_ns: int) -> dict[str, Any]:
    """Return the verdict on a run that started at ``started_ns`` on the clock of the lab.

    Windows are on the clock of the run: those of the set-up start before 0.
    """
    windows = [
        {**window, **{name: window[name] - started_ns for name in ("start_ns", "end_ns")}}
        for window in report["windows"]
    ]
    return {**{name: report[name] for name in _COUNTS}, "windows": windows}
