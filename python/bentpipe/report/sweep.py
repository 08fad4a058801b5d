"""The cells of a sweep as a table for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from bentpipe.results.views import Cell, Column, View
from bentpipe.sweeps.frames import text_of
from bentpipe.sweeps.sweep import cell_metrics
from bentpipe.text import counted

if TYPE_CHECKING:
    from bentpipe.sweeps.sweep import Sweep

# More do not fit on a screen.
_MAX_CELLS: Final = 50
# Quantities have a column with their numbers, too.
_UNITS: Final = ("_bps", "_ns", "_bytes")
_WITH_INTERVAL: Final = "goodput_bps"


def sweep_tables(sweep: Sweep, more: str = "--json") -> list[View | str]:
    """Return a table with the means of the cells; ``more`` is where those left out are."""
    cells = sweep.cells
    name = sweep.manifest.get("scenario", {}).get("name") or "Sweep"
    failed = sweep.failures.height
    failures = f", {failed:,} failed" if failed else ""
    head = f"{name}: {counted(cells.height, 'cell')}, {counted(sweep.runs.height, 'run')}{failures}"
    if not cells.height:
        return [head]
    columns = set(cells.columns)
    keys = cells.columns[: cells.columns.index("runs")]
    paths = [key for key in keys if not _is_number_of(key, columns)]
    metrics = [
        Column(name, each.title, each.note if each.table == "flows" else "forward")
        for name, each in cell_metrics().items()
        if cells[name].count()
    ]
    names = [
        *(Column(path, heading) for path, heading in zip(paths, _headings(paths), strict=True)),
        Column("runs", "runs"),
    ]
    rows = [
        [
            *(text_of(row[path]) for path in paths),
            row["runs"],
            *(_mean(row, metric) for metric in metrics),
        ]
        for row in cells.head(_MAX_CELLS).to_dicts()
    ]
    left_out = cells.height - len(rows)
    view = View(
        "Means, and half the 95 % confidence interval (Student's t, over the runs)",
        [*names, *metrics],
        rows,
        key=len(paths),
        more=f"{left_out:,} more cells: {more}" if left_out else "",
    )
    varied = [f"Varied: {', '.join(paths)}"] if paths else []
    return [head, *varied, *_thresholds(sweep), view]


def _thresholds(sweep: Sweep) -> list[View | str]:
    """Return in how many cells the thresholds are met; nothing without thresholds."""
    cells = {check["point"] for check in sweep.thresholds}
    failed = {check["point"] for check in sweep.thresholds if not check["passed"]}
    met = f"Thresholds: met in {len(cells) - len(failed):,} of {counted(len(cells), 'cell')}"
    return [met] if cells else []


def _is_number_of(column: str, columns: set[str]) -> bool:
    return any(column.endswith(unit) and column.removesuffix(unit) in columns for unit in _UNITS)


def _headings(paths: Sequence[str]) -> list[str]:
    """Return the last parts of paths, as many as tell them apart."""
    found = []
    for path in paths:
        parts = path.split(".")
        endings = [".".join(parts[-count:]) for count in range(1, len(parts) + 1)]
        others = [f".{other}" for other in paths if other != path]
        found.append(
            next(each for each in endings if not any(o.endswith(f".{each}") for o in others))
        )
    return found


def _mean(row: Mapping[str, Any], column: Column) -> Cell:
    mean, half_width = row[column.name], row[f"{column.name}_half_width"]
    text = column.write(mean)
    if mean and half_width is not None and column.name == _WITH_INTERVAL:
        text += f" ± {100 * half_width / abs(mean):.2g} %"
    return Cell(mean, text)
