"""The application: its routes, and the replies to errors, which show no traceback."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from bentpipe.comparison import compare
from bentpipe.dashboard import charts, pages
from bentpipe.dashboard.catalog import Catalog, NotFoundError, ResultStore
from bentpipe.dashboard.live import LabEvents, Streams, SweepEvents, lab_names, lab_sample
from bentpipe.errors import BentpipeError
from bentpipe.lab import sockets
from bentpipe.lab.link_state import DeliveredRates
from bentpipe.report.comparison import comparison_notes, difference_views
from bentpipe.report.html import CHARTS as CHARTS_FOLDER, environment
from bentpipe.results.charts import CHARTS, Chart
from bentpipe.results.files import REPORT, has_manifest, read_manifest
from bentpipe.results.views import View

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
            sweep = self._store.sweep(path)
            data = charts.sweep_chart(sweep, charts.view_of(sweep, request.query_params))
            content = charts.export_sweep(data, kind)
        else:
            content = charts.export_chart(_chart(name), self._store.run(path), kind)
        headers = {"Content-Disposition": f'attachment; filename="{file}"'}
        return Response(content, media_type=_MEDIA_TYPES[kind], headers=headers)

    def _sweep_chart(self, request: Request) -> Response:
        sweep = self._store.sweep(request.path_params["path"])
        return JSONResponse(charts.sweep_chart(sweep, charts.view_of(sweep, request.query_params)))

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
