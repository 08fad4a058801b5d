"""Texts of table cells that reports and the terminal share."""

from __future__ import annotations

from bentpipe.units import format_duration


def duration_or_dash(duration_ns: float | None) -> str:
    """Return a duration in ns with its unit; a dash for None."""
    return "-" if duration_ns is None else format_duration(duration_ns)


def duration_pair(first_ns: float | None, second_ns: float | None) -> str:
    """Return two durations in ns, such as a minimum and a mean; a dash if one is None."""
    if first_ns is None or second_ns is None:
        return "-"
    return f"{format_duration(first_ns)} / {format_duration(second_ns)}"
