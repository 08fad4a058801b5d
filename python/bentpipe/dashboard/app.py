"""The application: its routes and their pages, from ``templates/`` in the style of reports.

The replies to errors show no traceback. What changes while a page is open are server-sent events
(HTML Living Standard, section 9.2). Each browser asks by one request that stays open. Its events
end when the browser leaves, what it follows has ended, or the server stops.
"""

from __future__ import annotations

import asyncio
import csv
import hashlib
import json
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from string import ascii_uppercase
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
from bentpipe.dashboard import charts
from bentpipe.dashboard.catalog import Catalog, Entry, NotFoundError
from bentpipe.errors import BentpipeError
from bentpipe.live import sockets
from bentpipe.live.link_state import DeliveredRates
from bentpipe.report.comparison import comparison_notes, difference_views, setting_views
from bentpipe.report.html import CHARTS as CHARTS_FOLDER, environment
from bentpipe.report.run import run_context
from bentpipe.report.sweep import (
    ROWS_MAX as _ROWS_MAX,
    failures_view,
    sweep_chart,
    sweep_threshold_view,
)
from bentpipe.results.charts import CHARTS, Chart, charts_of
from bentpipe.results.files import REPORT, has_manifest, read_file, read_manifest
from bentpipe.results.verdict import invalid_message
from bentpipe.results.views import Cell, Column, View
from bentpipe.sweeps.journal import Progress, ProgressReader
from bentpipe.sweeps.tables import text_of
from bentpipe.text import CAUSE_TITLES

_FOLDER: Final = Path(__file__).parent
_PAIR: Final = 2
_COMPARED_MAX: Final = 8
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
# Of a file: a cell of a table of a study has some 100 bytes.
_CSV_BYTES_MAX: Final = 10_000_000


def create_app(root: Path, stopping: Callable[[], bool] = lambda: False) -> Starlette:
    """Return the application that shows the results below a folder.

    Streams of events end when ``stopping`` returns true.
    """
    return _Dashboard(root, stopping).app


def _quoted(path: str) -> str:
    return "" if path == "." else quote(path)


class _Dashboard:
    def __init__(self, root: Path, stopping: Callable[[], bool]) -> None:
        self._catalog = Catalog(root)
        self._streams = Streams(stopping)
        self._templates = environment(_FOLDER / "templates")
        self._templates.globals["result_url"] = lambda path: f"/result/{_quoted(path)}"
        self._templates.globals["quoted"] = _quoted
        css = str(self._templates.globals["css"])
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
            "/static/report.css": lambda _: Response(css, media_type=_MEDIA_TYPES["css"]),
        }
        files = Mount("/static", StaticFiles(directory=_FOLDER / "static"))
        self.app = Starlette(
            routes=[*(Route(path, endpoint) for path, endpoint in routes.items()), files],
            exception_handlers=dict.fromkeys(
                (NotFoundError, BentpipeError, HTTPException, Exception), self._error
            ),
        )

    # --- pages -----------------------------------------------------------------------------------

    def _page(self, template: str, status: int = 200, **context: Any) -> Response:
        page = self._templates.get_template(f"{template}.html.j2").render(**context)
        return HTMLResponse(page, status)

    def _list(self, template: str) -> Response:
        """Return the page ``index`` of the results and labs, or its part that changes, ``list``."""
        entries = self._catalog.entries()
        return self._page(
            template,
            title=self._catalog.root.name or "/",
            entries=entries,
            kinds=sorted({entry.kind for entry in entries if entry.kind}),
            labs=lab_names(),
            complete=self._catalog.complete,
            version=self._list_version(),
        )

    def _list_version(self) -> str:
        """Return a text that changes with the list."""
        shown = repr([*self._catalog.entries(), *lab_names()])
        return hashlib.sha256(shown.encode(errors="surrogateescape")).hexdigest()[:16]

    def _result(self, request: Request) -> Response:
        entry = self._catalog.entry(request.path_params["path"])
        context: dict[str, Any] = {"entry": entry, "title": entry.title or entry.path}
        if entry.problem is not None or not entry.kind:
            return self._page("damaged" if entry.problem is not None else "running", **context)
        if entry.kind == "run":
            result = self._catalog.run(entry.path)
            end_s = result.manifest["end_ns"] / 1e9
            context |= run_context(result) | {"charts": charts_of(result), "end_s": end_s}
            context["changed"] = _changed_view(result.execution.get("settings", {}))
            return self._page("run", **context)
        if entry.kind == "sweep":
            return self._page("sweep", **context, **self._sweep_context(entry))
        folder = self._catalog.folder(entry.path)
        manifest = read_manifest(folder)
        names = [str(name) for name in manifest["files"] if str(name).endswith(".csv")]
        return self._page(
            "files",
            **context,
            facts=f"bentpipe {manifest['bentpipe_version']}, {entry.kind}, {entry.state}",
            lines=manifest.get("answer", ()),
            views=[_csv_view(folder, name) for name in names],
        )

    def _sweep_context(self, entry: Entry) -> dict[str, Any]:
        """Return what the page of a sweep shows; without a data set, its progress."""
        folder, facts = self._catalog.folder(entry.path), f"sweep, {entry.state}"
        choices: dict[str, Any] | None = None
        tables: list[View] = []
        if has_manifest(folder) and read_manifest(folder)["runs"] > 0:
            sweep = self._catalog.sweep(entry.path)
            failed = sweep.failures.height
            facts += f", {sweep.runs.height:,} runs" + (f", {failed:,} failed" if failed else "")
            facts += f", bentpipe {sweep.manifest['bentpipe_version']}"
            choices = charts.choices_of(sweep)
            tables = [view for view in (sweep_threshold_view(sweep), failures_view(sweep)) if view]
        runs = folder / "runs"
        kept = sorted(run.name for run in runs.iterdir()) if runs.is_dir() else []
        return {
            "facts": facts,
            "choices": choices,
            "tables": tables,
            "kept": kept[:_ROWS_MAX],
            "kept_more": max(len(kept) - _ROWS_MAX, 0),
        }

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
        """Show what `bentpipe compare` finds of results; two runs with their charts."""
        paths = request.query_params.getlist("result")
        if not _PAIR <= len(paths) <= _COMPARED_MAX:
            text = f"choose two to {_COMPARED_MAX} results to compare; {len(paths)} are chosen"
            raise HTTPException(400, text)
        entries = [self._catalog.entry(path) for path in paths]
        for entry in entries:
            if entry.kind not in _KINDS or entry.problem is not None:
                raise HTTPException(400, f"{entry.path}: only whole runs and sweeps are compared")
        if len({entry.path for entry in entries}) < len(entries):
            raise HTTPException(400, "choose different results to compare")
        views: Sequence[View] = ()
        try:
            comparison = compare(*(self._catalog.folder(entry.path) for entry in entries))
            views = [*setting_views(comparison), *difference_views(comparison)]
            notes = comparison_notes(comparison)
        except BentpipeError as error:
            # Such as a run that was interrupted; its charts are shown all the same.
            notes = [f"{self._catalog.message(error)}."]
        runs = [self._catalog.run(entry.path) for entry in entries if entry.kind == "run"]
        return self._page(
            "compare",
            title="Comparison",
            entries=dict(zip(ascii_uppercase, entries, strict=False)),
            views=[_first_rows(view) for view in views],
            notes=notes,
            charts=[
                chart
                for chart in CHARTS.values()
                # The bars of two runs are those of different flows.
                if chart.kind != "stacks"
                and len(runs) == len(entries) == _PAIR
                and any(chart.is_shown(result) for result in runs)
            ],
            end_s=max((result.manifest["end_ns"] for result in runs), default=0) / 1e9,
        )

    def _lab(self, request: Request) -> Response:
        status = sockets.request(request.path_params["name"], "status")
        return self._page(
            "lab",
            title=f"Lab {status['name']}",
            name=status["name"],
            links=" ".join(status["links"]),
            sample=lab_sample(status, DeliveredRates()),
        )

    # --- data ------------------------------------------------------------------------------------

    def _chart(self, request: Request) -> Response:
        chart = _chart(request.path_params["name"])
        result = self._catalog.run(request.path_params["path"])
        from_s, to_s = _seconds(request, "from"), _seconds(request, "to")
        return JSONResponse(charts.page_data(chart, result, from_s, to_s))

    def _export(self, request: Request) -> Response:
        file = request.path_params["file"]
        name, _, kind = file.rpartition(".")
        if kind not in _MEDIA_TYPES:
            raise HTTPException(404, "no such kind of file")
        path = request.path_params["path"]
        if name == "sweep":
            data = sweep_chart(self._catalog.sweep(path), request.query_params)
            content = charts.export_sweep(data, kind)
        else:
            content = charts.export_chart(_chart(name), self._catalog.run(path), kind)
        headers = {"Content-Disposition": f'attachment; filename="{file}"'}
        return Response(content, media_type=_MEDIA_TYPES[kind], headers=headers)

    def _sweep_chart(self, request: Request) -> Response:
        sweep = self._catalog.sweep(request.path_params["path"])
        return JSONResponse(sweep_chart(sweep, request.query_params))

    # --- what changes while a page is open -------------------------------------------------------

    def _list_events(self, _request: Request) -> Response:
        return self._streams.reply(lambda: ("list", {"version": self._list_version()}))

    def _lab_events(self, request: Request) -> Response:
        name, rates = request.path_params["name"], DeliveredRates()

        def sample() -> Event:
            try:
                return "sample", lab_sample(sockets.request(name, "status"), rates)
            except BentpipeError:
                return "ended", {}

        return self._streams.reply(sample)

    def _sweep_events(self, request: Request) -> Response:
        reader = ProgressReader(self._catalog.folder(request.path_params["path"]))
        # Moments with the runs that had ended then.
        history: deque[tuple[float, int]] = deque()

        def progress() -> Event:
            current = reader.read()
            if current is None or not current.running:
                return "ended", {}
            now_s = time.monotonic()
            history.append((now_s, current.ended))
            while now_s - history[0][0] > _RATE_WINDOW_S:
                history.popleft()
            return "progress", progress_data(current, history)

        return self._streams.reply(progress)

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
        return self._page("error", status, title="Not shown", message=message)


def _chart(name: str) -> Chart:
    if name not in CHARTS:
        raise HTTPException(404, "no such chart")
    return CHARTS[name]


def _seconds(request: Request, name: str) -> float | None:
    """Return a time of the query, None if it is not there."""
    if (text := request.query_params.get(name)) is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = float("nan")
    if not 0 <= seconds < float("inf"):
        raise HTTPException(400, f"{name}: expected a time in seconds")
    return seconds


def _csv_view(folder: Path, name: str) -> View:
    if read_file(folder, name, Path.stat).st_size > _CSV_BYTES_MAX:
        return View(f"{name} is larger than {_CSV_BYTES_MAX:,} bytes; open the file", (), ())

    def read(path: Path) -> list[list[str]]:
        with path.open(encoding="utf-8", newline="") as file:
            return list(csv.reader(file))

    header, *rows = read_file(folder, name, read) or [[]]
    columns = [Column(column, column.replace("_", " ")) for column in header]
    cells = [[_cell(text) for text in row] for row in rows[:_ROWS_MAX]]
    more = f"{len(rows) - _ROWS_MAX:,} more rows" if len(rows) > _ROWS_MAX else ""
    return View(name, columns, cells, more=more)


def _cell(text: str) -> Cell:
    """Return a number as it was written; another text is no number."""
    try:
        return Cell(float(text) if text else None, text)
    except ValueError:
        return Cell(text, text)


def _changed_view(settings: Mapping[str, Any]) -> View | None:
    """Return the values that settings have changed; None without any."""
    rows = [(path, None if value is None else text_of(value)) for path, value in settings.items()]
    columns = [Column("field", "field"), Column("value", "value")]
    return View("Changed settings (--set, --vary)", columns, rows) if rows else None


def _first_rows(view: View) -> View:
    """Return a table that is not longer than a page should be."""
    left_out = len(view.rows) - _ROWS_MAX
    if left_out <= 0:
        return view
    more = f"{left_out:,} more rows; bentpipe compare prints all"
    return replace(view, rows=view.rows[:_ROWS_MAX], more=more)


# --- events ---------------------------------------------------------------------------------------


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

    def reply(self, next_event: Callable[[], Event]) -> StreamingResponse:
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

    async def _events(self, next_event: Callable[[], Event]) -> AsyncIterator[str]:
        self._open += 1
        last: Event | None = None
        sent_s = time.monotonic()
        try:
            while not self._stopping():
                event = await run_in_threadpool(next_event)
                if event != last:
                    last, sent_s = event, time.monotonic()
                    yield f"event: {event[0]}\ndata: {json.dumps(event[1])}\n\n"
                    if event[0] == "ended":
                        return
                elif time.monotonic() - sent_s > _KEEP_ALIVE_INTERVAL_S:
                    sent_s = time.monotonic()
                    yield ": keep-alive\n\n"
                until_s = time.monotonic() + _POLL_INTERVAL_S
                while time.monotonic() < until_s and not self._stopping():
                    await asyncio.sleep(_STOP_CHECK_INTERVAL_S)
        finally:
            self._open -= 1


def lab_names() -> list[str]:
    """Return the labs of this user that are up; none where the machine allows no labs."""
    try:
        return sockets.names()
    except BentpipeError:
        return []


def progress_data(progress: Progress, history: Sequence[tuple[float, int]]) -> dict[str, Any]:
    """Return what the page of a sweep shows of its progress.

    ``history`` has moments in s, each with the runs that had ended: the rate is over all of it.
    """
    (first_s, before), (last_s, after) = history[0], history[-1]
    rate = (after - before) / (last_s - first_s) if last_s > first_s else 0.0
    left = progress.total - progress.ended
    return {
        "ended": progress.ended,
        "failed": progress.failed,
        "total": progress.total,
        "grows": progress.grows,
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
                "lost": {
                    CAUSE_TITLES.get(cause, cause): count
                    for cause, count in direction["dropped_packets"].items()
                },
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
