"""Videos in real time: segments as exchanges, and what their viewer has seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bentpipe import _core
from bentpipe.units import NS_PER_S

_BITS_PER_BYTE = 8


def exchanges_of(workload: Mapping[str, Any]) -> int | None:
    """Return the number of exchanges of a flow: those of the plan, or the segments of a video."""
    if "media" not in workload:
        count: int | None = workload["exchanges"]
        return count
    media = workload["media"]
    return -(-int(media["duration_ns"]) // int(media["segment_ns"]))


def segment_bytes(media: Mapping[str, int], number: int) -> int:
    """Return the size of a segment, rounded up; the last one may be shorter than the others."""
    left_ns = media["duration_ns"] - number * media["segment_ns"]
    bits_ns = min(media["segment_ns"], left_ns) * media["rate_bps"]
    return -(-bits_ns // (_BITS_PER_BYTE * NS_PER_S))


def playback(
    media: Mapping[str, int], exchanges: Sequence[Mapping[str, int | None]], end_ns: int
) -> dict[str, int | None]:
    """Return what the viewer has seen at ``end_ns``, on the clock of the exchanges.

    The moments in it, ``next_request_ns`` and ``last_frame_ns``, are on that clock, too.
    """
    start_ns = exchanges[0]["start_ns"] or 0
    arrived = [each["finished_ns"] for each in exchanges]
    columns = _core.video_playback(
        (media["duration_ns"], media["segment_ns"], media["buffer_ns"], media["start_up_ns"]),
        [at_ns - start_ns for at_ns in arrived if at_ns is not None],
        end_ns - start_ns,
    )
    seen = dict(columns)
    moments = ("next_request_ns", "last_frame_ns")
    due = {name: at_ns for name in moments if (at_ns := seen[name]) is not None}
    return seen | {name: start_ns + at_ns for name, at_ns in due.items()}
