"""The verdict on a run in real time, in words and as data: which figures hold, and which do not.

A record of a run is the report of a lab, or ``emulation`` of a manifest. Each of its ``windows``
has a ``fault`` that decides which figures of its time do not hold. A run of which the lateness is
known has bounds of what it can change (``docs/model/real-time.md`` has the proof).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from bentpipe.units import NS_PER_S, format_duration

Record = Mapping[str, Any]

PEP_FAULT: Final = "pep"
TUNNEL_FAULT: Final = "tunnel"
IDLE_FAULT: Final = "idle"
_LATE_FAULT: Final = "late"
# A run that cannot be judged has failed.
_IDLE: Final = "no packet has left the link, so nothing shows whether it is on time"
_FIX: Final = "; to fix it: "
_RANGES_MAX: Final = 3
_THROUGHPUT: Final = "throughput"
_OF_TCP: Final = "TCP throughput"
# Late packets, and packets without an arrival time, are carried and counted; TCP reacts to their
# delay. Lost packets are missing from throughput, too.
_OF_DELAY: Final = ("delays", "jitter", _OF_TCP)
_OF_LOSS: Final = ("losses", _THROUGHPUT)
_UNRELIABLE: Final = {
    _LATE_FAULT: _OF_DELAY,
    "clock": _OF_DELAY,
    "lost": _OF_LOSS,
    "unchecked": _OF_LOSS,
}
_RELIABLE: Final = ("packet counts", "losses")


def late_windows(record: Record) -> list[dict[str, Any]]:
    """Return the windows of time, of those that the record keeps, that are invalid."""
    names = ("start_ns", "end_ns", "fault", "packets", "late_packets", "p50_ns", "p99_ns", "max_ns")
    return [{name: window.get(name) for name in names} for window in _invalid(record)]


def judged(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return the report of a lab with the fault of one that has carried no packet."""
    if report["invalid"] is None and not report["lateness"]["packets"]:
        return {**report, "fault": IDLE_FAULT, "invalid": _IDLE}
    return dict(report)


def over_time(report: Mapping[str, Any], time_ns: int) -> dict[str, Any]:
    """Return a report of a lab with the bound of connections in a part of its time, of any length.

    All packets count that were late since the lab was set up.
    """
    slowdown = report["slowdown_percent"] * report["at_ns"] / max(time_ns, 1)
    return {**report, "slowdown_percent": slowdown}


def bounds(record: Record) -> dict[str, float] | None:
    """Return by how much figures can be off because packets were late; None if that is unknown.

    ``delay_ns``: delays are too long by at most this. ``transfer_percent``: a TCP transfer over all
    of this time takes longer by at most this share.
    """
    windows = _invalid(record)
    faults = {window.get("fault") for window in windows}
    faults |= set() if record["invalid"] is None else {record.get("fault")}
    if faults - {_LATE_FAULT} or record.get("failure") is not None:
        return None
    if (slowdown := record.get("slowdown_percent")) is None:
        # A result of an earlier version, which did not record it.
        return None
    return {"delay_ns": record["lateness"]["max_ns"], "transfer_percent": slowdown}


def bounds_text(record: Record) -> str | None:
    """Return the bounds in words; None if they are unknown."""
    if (limits := bounds(record)) is None:
        return None
    # Rounded up, as a bound is.
    percent = math.ceil(10 * limits["transfer_percent"]) / 10
    delay = format_duration(round(limits["delay_ns"]))
    return f"delays are too long by at most {delay}, a TCP transfer by at most {percent} %"


def verdict(record: Record) -> dict[str, Any]:
    """Return the verdict as data for JSON.

    ``unreliable`` and ``reliable`` are figures of the late windows; ``message`` says the same in
    words, and is None if the run is ``valid``. ``bounds`` are those of `bounds`.
    """
    windows = _explaining(record)
    return {
        "valid": record["invalid"] is None,
        "message": invalid_message(record),
        "unreliable": _unreliable(windows),
        "reliable": _reliable(windows),
        "bounds": bounds(record),
    }


def invalid_message(record: Record) -> str | None:
    """Return why a run is invalid, which of its figures hold, and the fix; None if it is valid."""
    reason: str | None = record["invalid"]
    if reason is None:
        return None
    windows = _explaining(record)
    if not windows:
        return f"{reason}; do not use the figures"
    causes, fixes = zip(*_causes(windows), strict=True)
    is_whole = record["window_count"] == 1 or not _invalid(record)
    parts = [" and ".join(causes) + ("" if is_whole else f" in {_share(record, windows)}")]
    reliable, unreliable = _listed(_reliable(windows)), _listed(_unreliable(windows))
    trust = f"trust {reliable}, not {unreliable}" if reliable else f"do not trust {unreliable}"
    parts.append(trust if is_whole else f"in these windows {trust}")
    if not is_whole:
        parts.append("trust the other windows; means over the whole run include the invalid ones")
    parts += [text] if (text := bounds_text(record)) is not None else []
    fix: str = fixes[0]
    return "; ".join(parts) + _FIX + fix


def _invalid(record: Record) -> list[Record]:
    return [window for window in record.get("windows", ()) if window["invalid"] is not None]


def _explaining(record: Record) -> list[Record]:
    """Return the windows that make the run invalid; the run itself if none of them is kept.

    Empty if something else makes the run invalid.
    """
    # A program that has ended is not of one window: from then on another path was measured.
    has_ended = record.get("fault") in (PEP_FAULT, TUNNEL_FAULT)
    is_of_windows = record.get("failure") is None and not has_ended
    if record["invalid"] is None or not is_of_windows:
        return []
    windows = _invalid(record) or [{**record, "max_ns": 0}]
    return [window for window in windows if window.get("fault") in _UNRELIABLE]


def _causes(windows: Sequence[Record]) -> list[tuple[str, str]]:
    """Return what happened, and its fix, for each fault: that of the latest packet counts."""
    worst: dict[str, Record] = {}
    for window in windows:
        latest = worst.setdefault(window["fault"], window)
        if window["max_ns"] > latest["max_ns"]:
            worst[window["fault"]] = window
    texts = [window["invalid"].partition(_FIX) for window in worst.values()]
    return [(cause, fix) for cause, _, fix in texts]


def _share(record: Record, windows: Sequence[Record]) -> str:
    """Return how many windows are invalid, and the first ones of those that are kept."""
    ranges: list[tuple[int, int]] = []
    for window in windows:
        if ranges and ranges[-1][1] == window["start_ns"]:
            ranges[-1] = (ranges[-1][0], window["end_ns"])
        else:
            ranges.append((window["start_ns"], window["end_ns"]))
    # A run in real time starts after its lab.
    shown = [
        f"{max(start, 0) / NS_PER_S:,.1f} to {end / NS_PER_S:,.1f} s"
        for start, end in ranges[:_RANGES_MAX]
    ]
    more = len(ranges) - len(shown)
    shown += [f"{more} more"] if more else []
    count, total = record["invalid_windows"], record["window_count"]
    return f"{count:,} of {total:,} windows of time ({', '.join(shown)})"


def _unreliable(windows: Iterable[Record]) -> list[str]:
    figures = dict.fromkeys(name for window in windows for name in _UNRELIABLE[window["fault"]])
    if _THROUGHPUT in figures:
        figures.pop(_OF_TCP, None)
    return list(figures)


def _reliable(windows: Iterable[Record]) -> list[str]:
    """Return what holds in all of the windows."""
    unreliable = [_UNRELIABLE[window["fault"]] for window in windows]
    holds = unreliable and all(figures == _OF_DELAY for figures in unreliable)
    return list(_RELIABLE) if holds else []


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))
