"""When and where a result was computed: ``execution.json``, the file in which equal runs differ."""

from __future__ import annotations

import platform
from datetime import UTC, datetime
from typing import Any

from bentpipe.units import format_duration, format_size

_SHOWN_TIME = "%Y-%m-%d %H:%M UTC"


def utc_now() -> str:
    """Return the current date and time in UTC (ISO 8601)."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def execution(**more: Any) -> dict[str, Any]:
    """Return the facts of an execution that ends now, on this machine, with further ones."""
    host = {"python": platform.python_version(), "platform": platform.platform()}
    return {"ended": utc_now(), "host": host, **more}


def shown_time(ended: object) -> str | None:
    """Return the time of an execution for a message; None if it is unknown."""
    try:
        return datetime.fromisoformat(str(ended)).astimezone(UTC).strftime(_SHOWN_TIME)
    except ValueError:
        return None


def stop_message(end_ns: int, limit_bytes: int) -> str:
    """Return when and why the simulator ended a run early."""
    return (
        f"stopped at {format_duration(end_ns)} because the memory limit of "
        f"{format_size(limit_bytes)} was reached"
    )
