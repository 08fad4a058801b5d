"""Videos of a run as texts."""

from __future__ import annotations

from typing import Any, Final

from bentpipe.results.entries import ENTRY_PERCENTILES
from bentpipe.results.text_table import TextTable, count, duration, percent

_VIDEO_TITLE: Final = "Videos (a stall: the buffer is empty before the end of the media)"
_VIDEO_COLUMNS: Final = (
    ("flow", ""),
    ("direction", "of the media"),
    ("start-up", "to the first frame"),
    ("stalls", "events"),
    ("stalled", "time"),
    ("stall ratio", "of stalled and played"),
    ("played", "media"),
    ("fetched", "segments"),
)


def video_table(flows: list[dict[str, Any]]) -> TextTable:
    """Return what the viewer of each video has seen."""
    rows = [
        [
            flow["name"],
            flow["direction"],
            duration(flow["start_up_time_ns"]),
            count(flow["stalls"]),
            duration(flow["stalled_ns"]),
            percent(flow["stall_ratio_percent"]),
            duration(flow["played_ns"]),
            count(flow["exchanges"]),
        ]
        for flow in flows
    ]
    return TextTable(_VIDEO_TITLE, _VIDEO_COLUMNS, rows, text_columns=2)


def video_entries(entries: list[dict[str, Any]]) -> TextTable:
    """Return the videos of each entry: percentiles over its videos."""
    columns = (
        ("entry", ""),
        ("direction", ""),
        ("videos", ""),
        ("of videos", ""),
        *_VIDEO_COLUMNS[2:6],
    )
    rows = [
        [
            entry["entry"],
            entry["direction"],
            count(entry["flows"]),
            f"p{p}",
            duration(_of(entry["start_up_time_ns"], p)),
            f"{_of(entry['stalls'], p) or 0:.3g}",
            duration(_of(entry["stalled_ns"], p)),
            percent(_of(entry["stall_ratio_percent"], p)),
        ]
        for entry in entries
        for p in ENTRY_PERCENTILES
    ]
    return TextTable("Videos by entry of traffic", columns, rows, 2, 3)


def _of(quantity: dict[str, float] | None, p: int) -> float | None:
    return None if quantity is None else quantity[f"p{p}"]
