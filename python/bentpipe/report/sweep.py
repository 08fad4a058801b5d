"""The cells of a sweep as a table for the terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from bentpipe.report.terminal import Fitted
from bentpipe.results.text_table import TextTable, percent
from bentpipe.sweeps.frames import text_of
from bentpipe.text import counted
from bentpipe.units import format_duration, format_rate

if TYPE_CHECKING:
    from rich.console import RenderableType

    from bentpipe.sweeps.sweep import Sweep

# More do not fit on a screen.
_MAX_CELLS: Final = 50
# Quantities have a column with their numbers, too.
_UNITS: Final = ("_bps", "_ns", "_bytes")


# The metrics of the table, each with its heading; one without values is left out.
_SHOWN: Final[Mapping[str, tuple[str, str, Callable[[float], str]]]] = {
    "goodput_bps": ("goodput", "of a flow", format_rate),
    "forward_utilization": ("utilization", "forward", lambda share: percent(100 * share)),
    "loss_percent": ("loss", "of datagrams", percent),
    "retransmitted_percent": ("retransmitted", "of segments", percent),
    "completion_time_ns": ("completion", "of a flow", format_duration),
    "start_up_time_ns": ("start-up", "of a video", format_duration),
    "stall_ratio_percent": ("stall ratio", "of a video", percent),
}
_WITH_INTERVAL: Final = "goodput_bps"


def sweep_tables(sweep: Sweep, more: str = "--json") -> list[RenderableType]:
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
    metrics = [metric for metric in _SHOWN if cells[metric].count()]
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
        title="Means, and half the 95 % confidence interval (Student's t, over the runs)",
        columns=[
            *((name, "") for name in _headings(paths)),
            ("runs", ""),
            *(_SHOWN[metric][:2] for metric in metrics),
        ],
        rows=rows,
        text_columns=len(paths),
        more=f"{left_out:,} more cells: {more}" if left_out else "",
    )
    varied = [f"Varied: {', '.join(paths)}"] if paths else []
    return [head, *varied, *_thresholds(sweep), Fitted(table, optional=len(metrics) - 1)]


def _thresholds(sweep: Sweep) -> list[RenderableType]:
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


def _mean(row: Mapping[str, Any], metric: str) -> str:
    mean, half_width = row[metric], row[f"{metric}_half_width"]
    if mean is None:
        return "-"
    text = _SHOWN[metric][2](mean)
    if half_width is None or metric != _WITH_INTERVAL:
        return text
    return f"{text} ± {100 * half_width / abs(mean):.2g} %" if mean else text
