"""What changes while a page is open, as server-sent events (HTML Living Standard, section 9.2).

Each browser asks by one request that stays open. Its events end when the browser leaves, what it
follows has ended, or the server stops.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import StreamingResponse

from bentpipe.errors import BentpipeError
from bentpipe.lab import sockets
from bentpipe.lab.link_state import DeliveredRates
from bentpipe.results.verdict import invalid_message
from bentpipe.sweeps.journal import Progress, ProgressReader

Event = tuple[str, Mapping[str, Any]]

_POLL_INTERVAL_S: Final = 0.5
# The server must end within this time after Ctrl-C.
_STOP_CHECK_INTERVAL_S: Final = 0.1
# A proxy or a browser may close a connection that is silent for longer.
_KEEP_ALIVE_INTERVAL_S: Final = 15.0
STREAMS_MAX: Final = 64
_CHANGES_SHOWN: Final = 20
_RATE_WINDOW_S: Final = 10.0


class Streams:
    """Open streams of events; their number is limited."""

    def __init__(self, stopping: Callable[[], bool]) -> None:
        self._stopping = stopping
        self._open = 0

    def reply(self, next_event: Callable[[], Event | None]) -> StreamingResponse:
        """Return the reply that sends an event whenever ``next_event`` returns a new one.

        ``next_event`` is called in a thread. The stream ends after the event ``ended``.

        Raises:
            HTTPException: there are as many streams as allowed.
        """
        if self._open >= STREAMS_MAX:
            raise HTTPException(503, "too many pages follow this server; close some")
        headers = {"X-Accel-Buffering": "no"}
        return StreamingResponse(
            self._events(next_event), media_type="text/event-stream", headers=headers
        )

    async def _events(self, next_event: Callable[[], Event | None]) -> AsyncIterator[str]:
        self._open += 1
        last: Event | None = None
        sent_s = time.monotonic()
        try:
            while not self._stopping():
                event = await run_in_threadpool(next_event)
                if event is not None and event != last:
                    last, sent_s = event, time.monotonic()
                    yield f"event: {event[0]}\ndata: {json.dumps(event[1])}\n\n"
                    if event[0] == "ended":
                        return
                elif time.monotonic() - sent_s > _KEEP_ALIVE_INTERVAL_S:
                    sent_s = time.monotonic()
                    yield ": keep-alive\n\n"
                await self._wait()
        finally:
            self._open -= 1

    async def _wait(self) -> None:
        until_s = time.monotonic() + _POLL_INTERVAL_S
        while time.monotonic() < until_s and not self._stopping():
            await asyncio.sleep(_STOP_CHECK_INTERVAL_S)


def lab_names() -> list[str]:
    """Return the labs of this user that are up; none where the machine allows no labs."""
    try:
        return sockets.names()
    except BentpipeError:
        return []


class LabEvents:
    """The samples of a lab for a page."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._rates = DeliveredRates()

    def __call__(self) -> Event:
        """Return the event ``sample``, or ``ended``."""
        try:
            status = sockets.request(self._name, "status")
        except BentpipeError:
            return "ended", {}
        return "sample", lab_sample(status, self._rates)


class SweepEvents:
    """The progress of a sweep for its page."""

    def __init__(self, folder: Path) -> None:
        self._reader = ProgressReader(folder)
        # Moments with the runs that had ended then.
        self._history: deque[tuple[float, int]] = deque()

    def __call__(self) -> Event:
        """Return the event ``progress``, or ``ended`` if nothing runs it."""
        found = self._reader.read()
        if found is None or not found.running:
            return "ended", {}
        now_s = time.monotonic()
        self._history.append((now_s, found.ended))
        while now_s - self._history[0][0] > _RATE_WINDOW_S:
            self._history.popleft()
        return "progress", progress_data(found, self._history)


def progress_data(found: Progress, history: Sequence[tuple[float, int]]) -> dict[str, Any]:
    """Return what the page of a sweep shows of its progress.

    ``history`` has moments in s, each with the runs that had ended: the rate is over all of it.
    """
    (first_s, before), (last_s, after) = history[0], history[-1]
    rate = (after - before) / (last_s - first_s) if last_s > first_s else 0.0
    left = found.total - found.ended
    return {
        "ended": found.ended,
        "failed": found.failed,
        "total": found.total,
        "grows": found.grows,
        "runs_per_s": rate,
        "left_s": left / rate if rate > 0 else None,
    }


def lab_sample(status: Mapping[str, Any], rates: DeliveredRates) -> dict[str, Any]:
    """Return what the page of a lab shows of its status."""
    report = status["report"]
    rates_bps = rates.update(report)
    return {
        "at_s": report["at_ns"] / 1e9,
        "directions": [
            {
                "name": name,
                "rate_mbps": rates_bps[name] / 1e6,
                "queue_kb": direction["queue_bytes"] / 1e3,
                "queue_packets": direction["queue_packets"],
                "delivered_packets": direction["delivered_packets"],
                "lost": dict(direction["dropped_packets"]),
            }
            for name, direction in report["directions"].items()
        ],
        "late_us": {name: report["lateness"][f"{name}_ns"] / 1e3 for name in ("p50", "p99", "max")},
        "verdict": invalid_message(report),
        "failure": status["failure"],
        "changes": [
            {"at_s": change["at_ns"] / 1e9, "settings": " ".join(change["settings"])}
            for change in status["changes"][-_CHANGES_SHOWN:]
        ],
    }
