"""The pages as HTML, from ``templates/``, in the style of reports."""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Sequence
from dataclasses import astuple, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from bentpipe.dashboard.charts import axes_of, metrics_of, parts_of
from bentpipe.report.html import environment
from bentpipe.report.run import facts, headlines, notices, plan_text, scenario_text
from bentpipe.results.charts import CHARTS, charts_of, is_sampled
from bentpipe.results.files import read_file, read_manifest
from bentpipe.results.run_views import flow_views, link_views
from bentpipe.results.views import Cell, Column, View

if TYPE_CHECKING:
    from bentpipe.dashboard.catalog import Catalog, Entry
    from bentpipe.results.result import Result
    from bentpipe.sweeps import Sweep

_ROWS_MAX: Final = 200
# Of a file: a cell of a table of a study has some 100 bytes.
_CSV_BYTES_MAX: Final = 10_000_000


def _quoted(path: str) -> str:
    return "" if path == "." else quote(path)


def render(template: str, **context: Any) -> str:
    """Return the page of a template."""
    env = environment(Path(__file__).parent / "templates")
    env.globals["result_url"] = lambda path: f"/result/{_quoted(path)}"
    env.globals["quoted"] = _quoted
    return env.get_template(f"{template}.html.j2").render(**context)


# --- the list ------------------------------------------------------------------------------------


def list_page(template: str, catalog: Catalog, labs: Sequence[str]) -> str:
    """Return the page ``index`` of the results and labs, or its part that changes, ``list``."""
    entries = catalog.entries()
    return render(
        template,
        title=catalog.root.name or "/",
        entries=entries,
        kinds=sorted({entry.kind for entry in entries if entry.kind}),
        labs=labs,
        complete=catalog.complete,
        version=list_version(catalog, labs),
    )


def list_version(catalog: Catalog, labs: Sequence[str]) -> str:
    """Return a text that changes with the list."""
    shown = repr([*map(astuple, catalog.entries()), *labs])
    return hashlib.sha256(shown.encode(errors="surrogateescape")).hexdigest()[:16]


# --- results -------------------------------------------------------------------------------------


def run_page(entry: Entry, result: Result) -> str:
    """Return the page of a run."""
    return render(
        "run",
        entry=entry,
        title=result.title,
        facts=facts(result),
        notices=notices(result),
        headlines=headlines(result),
        charts=charts_of(result),
        is_sampled=is_sampled(result),
        end_s=result.manifest["end_ns"] / 1e9,
        views={"Flows": flow_views(result), "Link": link_views(result, _ROWS_MAX)},
        texts=[scenario_text(result), plan_text(result)],
    )


def sweep_page(entry: Entry, folder: Path, sweep: Sweep | None) -> str:
    """Return the page of a sweep; without a data set, that of its progress."""
    facts = f"sweep, {entry.state}"
    choices: dict[str, Any] | None = None
    failures: View | None = None
    if sweep is not None:
        failed = sweep.failures.height
        facts += f", {sweep.runs.height:,} runs" + (f", {failed:,} failed" if failed else "")
        facts += f", bentpipe {sweep.manifest['bentpipe_version']}"
        axes = axes_of(sweep)
        choices = {
            "axes": [{"paths": axis.paths, "labels": axis.labels} for axis in axes],
            # Pairs, because the keys of JSON in a template are sorted.
            "metrics": list(metrics_of(sweep).items()),
            "parts": parts_of(sweep),
        }
        if failed:
            columns = [Column(name, name, text=str) for name in sweep.failures.columns]
            title = "The first failed runs; the others were not affected."
            failures = View(title, columns, sweep.failures.head(_ROWS_MAX).rows(), len(columns))
    runs = folder / "runs"
    kept = sorted(each.name for each in runs.iterdir()) if runs.is_dir() else []
    return render(
        "sweep",
        entry=entry,
        title=entry.title,
        facts=facts,
        choices=choices,
        failures=failures,
        kept=kept[:_ROWS_MAX],
        kept_more=max(len(kept) - _ROWS_MAX, 0),
    )


def files_page(entry: Entry, folder: Path) -> str:
    """Return the page of a study or search: its CSV files as tables."""
    manifest = read_manifest(folder)
    names = [str(name) for name in manifest["files"] if str(name).endswith(".csv")]
    return render(
        "files",
        entry=entry,
        title=entry.title,
        facts=f"bentpipe {manifest['bentpipe_version']}, {entry.kind}, {entry.state}",
        views=[_csv_view(folder, name) for name in names],
    )


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


def compare_page(
    entries: Sequence[Entry], runs: Sequence[Result], views: Sequence[View], notes: Sequence[str]
) -> str:
    """Return the page that shows two results side by side; two runs with their charts.

    ``views`` and ``notes`` are what `bentpipe compare` finds.
    """
    both = runs if runs[1:] else []
    return render(
        "compare",
        title="Comparison",
        entries=dict(zip("AB", entries, strict=True)),
        views=[_first_rows(view) for view in views],
        notes=notes,
        charts=[
            chart
            for chart in CHARTS.values()
            # The bars of two runs are those of different flows.
            if chart.kind != "stacks" and any(chart.is_shown(result) for result in both)
        ],
        end_s=max((result.manifest["end_ns"] for result in runs), default=0) / 1e9,
    )


def _first_rows(view: View) -> View:
    """Return a table that is not longer than a page should be."""
    left_out = len(view.rows) - _ROWS_MAX
    if left_out <= 0:
        return view
    more = f"{left_out:,} more rows; bentpipe compare prints all"
    return replace(view, rows=view.rows[:_ROWS_MAX], more=more)
