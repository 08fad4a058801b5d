"""Videos resolved into the plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from bentpipe.plan.errors import PlanningError
from bentpipe.plan.tcp import tcp_plan
from bentpipe.plan.types import VideoPlan
from bentpipe.scenario.document import FieldPath
from bentpipe.scenario.traffic import Video
from bentpipe.units import format_duration, value_of

# A GET with the headers of a browser; the round figure is ours.
_REQUEST_BYTES: Final = 400


def video(flow: Video, path: FieldPath) -> Callable[[int], VideoPlan]:
    """Return the workload of a video that starts so many nanoseconds before the end of the run.

    Raises:
        PlanningError: the buffer cannot hold the media at which playing starts.
    """
    tcp = tcp_plan(flow, path)
    segment_ns, start_up_ns = value_of(flow.segment), value_of(flow.start_up)
    needed_ns = -(-start_up_ns // segment_ns) * segment_ns
    if value_of(flow.buffer) < needed_ns:
        message = f"must be at least {format_duration(needed_ns)}: start_up in whole segments"
        raise PlanningError((*path, "buffer"), f'read "{flow.buffer}"; {message}')
    written_ns = None if flow.duration is None else value_of(flow.duration)
    return lambda remaining_ns: {
        "kind": "video",
        "media": {
            "rate_bps": value_of(flow.rate),
            "duration_ns": remaining_ns if written_ns is None else written_ns,
            "segment_ns": segment_ns,
            "buffer_ns": value_of(flow.buffer),
            "start_up_ns": start_up_ns,
        },
        "request_bytes": _REQUEST_BYTES,
        "server": tcp.copy(),
        "client": tcp.copy(),
    }
