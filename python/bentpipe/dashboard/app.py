"""The application: its routes, and the replies to errors, which show no traceback.

What changes while a page is open are server-sent events (HTML Living Standard, section 9.2). Each
browser asks by one request that stays open. Its events end when the browser leaves, what it follows
has ended, or the server stops.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from bentpipe.comparison import compare
from bentpipe.dashboard import charts, pages
from bentpipe.dashboard.catalog import Catalog, NotFoundError, ResultStore
from bentpipe.errors import BentpipeError
from bentpipe.lab import sockets
from bentpipe.lab.link_state import DeliveredRates
from bentpipe.report.comparison import comparison_notes, difference_views
from bentpipe.report.html import CHARTS as CHARTS_FOLDER, environment
from bentpipe.results.charts import CHARTS, Chart
from bentpipe.results.files import REPORT, has_manifest, read_manifest
from bentpipe.results.verdict import invalid_message
from bentpipe.results.views import View
from bentpipe.sweeps.journal import Progress, ProgressReader

_STATIC: Final = Path(__file__).parent / "static"
_COMPARED: Final = 2
_KINDS: Final = ("run", "sweep")
_MEDIA_TYPES: Final = {
    "css": "text/css",
    "csv": "text/csv",
    "js": "text/javascript",
    "png": "image/png",
    "svg": "image/svg+xml",
}
# A report has no script; its figures and styles are inline. Without scripts, its origin only lets
# the browser send the cookie for the files that are linked.
_REPORT_POLICY: Final = (
    "sandbox allow-same-origin allow-downloads; default-src 'none'; style-src 'unsafe-inline'; "
    "img-src data:; frame-ancestors 'none'"
)


def create_app(root: Path, stopping: Callable[[], bool] = lambda: False) -> Starlette:
    """Return the application that shows the results below a folder.

    Streams of events end when ``stopping`` returns true.
    """
    return _Dashboard(root, stopping).app


class _Dashboard:
    def __init__(self, root: Path, stopping: Callable[[], bool]) -> None:
        self._catalog = Catalog(root)
        self._store = ResultStore(self._catalog)
        self._streams = Streams(stopping)
        self._css = str(environment().globals["css"])
        routes: dict[str, Callable[[Request], Response]] = {
            "/": lambda _: self._list("index"),
            "/list": lambda _: self._list("list"),
            "/result/{path:path}": self._result,
            "/report/{path:path}": self._report,
            "/compare": self._compare,
            "/lab/{name}": self._lab,
            "/data/chart/{name}/{path:path}": self._chart,
            "/export/{file}/{path:path}": self._export,
            "/data/sweep/{path:path}": self._sweep_chart,
            "/events/list": self._list_events,
            "/events/sweep/{path:path}": self._sweep_events,
            "/events/lab/{name}": self._lab_events,
            # The style of reports, which pages extend.
            "/static/report.css": lambda _: Response(self._css, media_type=_MEDIA_TYPES["css"]),
        }
        files = Mount("/static", StaticFiles(directory=_STATIC))
        self.app = Starlette(
            routes=[*(Route(path, endpoint) for path, endpoint in routes.items()), files],
            exception_handlers=dict.fromkeys(
                (NotFoundError, BentpipeError, HTTPException, Exception), self._error
            ),
        )

    # --- pages -----------------------------------------------------------------------------------

    def _list(self, template: str) -> Response:
        return HTMLResponse(pages.list_page(template, self._catalog, lab_names()))

    def _result(self, request: Request) -> Response:
        entry = self._catalog.entry(request.path_params["path"])
        folder = self._catalog.folder(entry.path)
        if entry.problem is not None or not entry.kind:
            template = "damaged" if entry.problem is not None else "running"
            page = pages.render(template, entry=entry, title=entry.title or entry.path)
        elif entry.kind == "run":
            page = pages.run_page(entry, self._store.run(entry.path))
        elif entry.kind == "sweep":
            has_data = has_manifest(folder) and read_manifest(folder)["runs"] > 0
            sweep = self._store.sweep(entry.path) if has_data else None
            page = pages.sweep_page(entry, folder, sweep)
        else:
            page = pages.files_page(entry, folder)
        return HTMLResponse(page)

    def _report(self, request: Request) -> Response:
        path = request.path_params["path"]
        policy = {"Content-Security-Policy": _REPORT_POLICY}
        file = Path(path)
        if file.parent.name == CHARTS_FOLDER and (kind := file.suffix[1:]) in _MEDIA_TYPES:
            name = f"{CHARTS_FOLDER}/{file.name}"
            content = self._catalog.read(file.parent.parent.as_posix(), name)
            return Response(content, media_type=_MEDIA_TYPES[kind], headers=policy)
        if path and not path.endswith("/"):
            # The links of a report are those of a file in a folder.
            return RedirectResponse(f"/report/{quote(path)}/")
        return HTMLResponse(self._catalog.read(path, REPORT), headers=policy)

    def _compare(self, request: Request) -> Response:
        paths = request.query_params.getlist("result")
        if len(paths) != _COMPARED:
            raise HTTPException(400, f"choose two results to compare; {len(paths)} are chosen")
        entries = [self._catalog.entry(path) for path in paths]
        wrong = [each for each in entries if each.kind not in _KINDS or each.problem is not None]
        if wrong:
            raise HTTPException(400, f"{wrong[0].path}: only whole runs and sweeps are compared")
        if entries[0].path == entries[1].path:
            raise HTTPException(400, "choose two different results to compare")
        views: Sequence[View] = ()
        try:
            comparison = compare(*(self._catalog.folder(entry.path) for entry in entries))
            views, notes = difference_views(comparison), comparison_notes(comparison)
        except BentpipeError as error:
            # Such as a run that was interrupted; its charts are shown all the same.
            notes = [f"{self._catalog.message(error)}."]
        runs = [self._store.run(entry.path) for entry in entries if entry.kind == "run"]
        return HTMLResponse(pages.compare_page(entries, runs, views, notes))

    def _lab(self, request: Request) -> Response:
        status = sockets.request(request.path_params["name"], "status")
        page = pages.render(
            "lab",
            title=f"Lab {status['name']}",
            name=status["name"],
            links=" ".join(status["links"]),
            sample=lab_sample(status, DeliveredRates()),
        )
        return HTMLResponse(page)

    # --- data ------------------------------------------------------------------------------------

    def _chart(self, request: Request) -> Response:
        chart = _chart(request.path_params["name"])
        result = self._store.run(request.path_params["path"])
        from_s, to_s = _seconds(request, "from"), _seconds(request, "to")
        return JSONResponse(charts.page_data(chart, result, from_s, to_s))

    def _export(self, request: Request) -> Response:
        file = request.path_params["file"]
        name, _, kind = file.rpartition(".")
        if kind not in _MEDIA_TYPES:
            raise HTTPException(404, "no such kind of file")
        path = request.path_params["path"]
        if name == "sweep":
            data = charts.sweep_chart(self._store.sweep(path), request.query_params)
            content = charts.export_sweep(data, kind)
        else:
            content = charts.export_chart(_chart(name), self._store.run(path), kind)
        headers = {"Content-Disposition": f'attachment; filename="{file}"'}
        return Response(content, media_type=_MEDIA_TYPES[kind], headers=headers)

    def _sweep_chart(self, request: Request) -> Response:
        sweep = self._store.sweep(request.path_params["path"])
        return JSONResponse(charts.sweep_chart(sweep, request.query_params))

    def _list_events(self, _request: Request) -> Response:
        return self._streams.reply(
            lambda: ("list", {"version": pages.list_version(self._catalog, lab_names())})
        )

    def _lab_events(self, request: Request) -> Response:
        return self._streams.reply(LabEvents(request.path_params["name"]))

    def _sweep_events(self, request: Request) -> Response:
        return self._streams.reply(SweepEvents(self._catalog.folder(request.path_params["path"])))

    # --- errors ----------------------------------------------------------------------------------

    def _error(self, request: Request, error: Exception) -> Response:
        path, status = request.url.path, 500
        message = "internal error; the terminal of bentpipe serve shows the details"
        if isinstance(error, NotFoundError):
            status, message = 404, "there is no such result here; it may have been moved"
        elif isinstance(error, HTTPException):
            status, message = error.status_code, error.detail
        elif isinstance(error, BentpipeError):
            status = 404 if path.startswith(("/lab/", "/events/lab/")) else 422
            message = self._catalog.message(error)
        if path.startswith(("/data/", "/events/")):
            return JSONResponse({"error": message}, status)
        return HTMLResponse(pages.render("error", title="Not shown", message=message), status)


def _chart(name: str) -> Chart:
    if name not in CHARTS:
        raise HTTPException(404, "no such chart")
    return CHARTS[name]


def _seconds(request: Request, name: str) -> float | None:
    """Return a time of the query, None if it is not there."""
    text = request.query_params.get(name)
    if text is None:
        return None
    try:
        found = float(text)
    except ValueError:
        found = float("nan")
    if not 0 <= found < float("inf"):
        raise HTTPException(400, f"{name}: expected a time in seconds")
    return found


# --- what changes while a page is open ------------------------------------------------------------


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
