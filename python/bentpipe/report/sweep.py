"""The cells of a sweep as a table for the terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from bentpipe.report.terminal import Fitted
from bentpipe.results.figures import TextTable
from bentpipe.sweeps.frames import text_of
from bentpipe.units import format_duration, format_rate

if TYPE_CHECKING:
    from rich.console import RenderableType

    from bentpipe.sweeps.sweep import Sweep

# More do not fit on a screen.
_MAX_CELLS: Final = 50
# Quantities have a column with their numbers, too.
_UNITS: Final = ("_bps", "_ns", "_bytes")


def _percent(value: float) -> str:
    return f"{value:.3g} %"


# The metrics of the table, each with its heading; one without values is left out.
_SHOWN: Final[Mapping[str, tuple[str, str, Callable[[float], str]]]] = {
    "goodput_bps": ("goodput", "mean of flows", format_rate),
    "completion_time_ns": ("completion", "mean of flows", format_duration),
    "loss_percent": ("loss", "of datagrams", _percent),
    "retransmitted_percent": ("retransmitted", "of segments", _percent),
    "forward_utilization_percent": ("utilization", "forward", _percent),
}


def sweep_tables(sweep: Sweep, more: str = "--json") -> list[RenderableType]:
    """Return a table with the means of the cells; ``more`` is where those left out are."""
    cells = sweep.cells
    name = sweep.manifest.get("scenario", {}).get("name") or "Sweep"
    failed = sweep.failures.height
    failures = f", {failed:,} failed" if failed else ""
    head = f"{name}: {cells.height:,} cells, {sweep.runs.height:,} runs{failures}"
    if not cells.height:
        return [head]
    columns = set(cells.columns)
    keys = cells.columns[: cells.columns.index("runs")]
    paths = [key for key in keys if not _is_number_of(key, columns)]
    metrics = [metric for metric in _SHOWN if cells[metric].count()]
    headings = [_heading(path) for path in paths]
    rows = [
        [
            *(text_of(row[path]) for path in paths),
            f"{row['runs']:,}",
            *(_mean(row, metric) for metric in metrics),
        ]
        for row in cells.head(_MAX_CELLS).to_dicts()
    ]
    left_out = cells.height - len(rows)
    table = TextTable(
        title="Means of the cells ± half the 95 % confidence interval (Student's t, over runs)",
        columns=[*headings, ("runs", ""), *(_SHOWN[metric][:2] for metric in metrics)],
        rows=rows,
        text_columns=len(paths),
        more=f"{left_out:,} more cells: {more}" if left_out else "",
    )
    return [head, Fitted(table)]


def _is_number_of(column: str, columns: set[str]) -> bool:
    return any(column.endswith(unit) and column.removesuffix(unit) in columns for unit in _UNITS)


def _heading(path: str) -> tuple[str, str]:
    """Return the last part of a path, and the others below it."""
    before, _, last = path.rpartition(".")
    return last, before


def _mean(row: Mapping[str, Any], metric: str) -> str:
    mean, half_width = row[metric], row[f"{metric}_half_width"]
    if mean is None:
        return "-"
    text = _SHOWN[metric][2](mean)
    if half_width is None:
        return text
    if text.endswith(" %"):
        return f"{text} ± {half_width:.2g}"
    return f"{text} ± {100 * half_width / abs(mean):.2g} %" if mean else f"{text} ± 0 %"
