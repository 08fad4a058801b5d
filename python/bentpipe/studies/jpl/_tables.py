"""The study's figures for a terminal and as files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bentpipe.studies._common import number, write_study
from bentpipe.studies.jpl.study import BIT_ERROR_RATES, Comparison, JplOutcome

if TYPE_CHECKING:
    from rich.console import RenderableType

CSV_COLUMNS: Final = (
    "profile",
    "bit_error_rate",
    "one_way_delay_ms",
    "large_windows",
    "published_percent",
    "measured_percent",
    "error_points",
    "stdev_points",
    "standard_error_points",
    "runs",
)


def terminal_table(outcome: JplOutcome) -> RenderableType:
    """Return the table of the cells and, below it, the errors of both profiles."""
    from rich.console import Group
    from rich.table import Table

    table = Table(
        title="TCP channel utilization in percent, profile bsd-1997 (error: percentage points)",
        title_justify="left",
        box=None,
        pad_edge=False,
        header_style="bold",
    )
    for heading in ("bit error rate", "one-way delay", "large windows"):
        table.add_column(heading)
    for heading in ("published", "measured", "error", "stdev", "runs"):
        table.add_column(heading, justify="right")
    for each in outcome.bsd.measurements:
        table.add_row(
            each.cell.row,
            f"{each.cell.one_way_delay_ms} ms",
            each.cell.large_windows,
            number(each.published),
            number(each.measured),
            number(each.error, sign=True),
            number(each.stdev),
            str(each.runs),
        )
    return Group(
        table,
        "",
        *(
            f"{name}: mean absolute error {number(comparison.mean_absolute_error)} points "
            f"over {len(comparison.measurements)} cells; by bit error rate: {_by_row(comparison)}"
            for name, comparison in (
                ("bsd-1997", outcome.bsd),
                ("linux (the source never ran it)", outcome.linux),
            )
        ),
    )


def write_outcome(outcome: JplOutcome, out_dir: Path) -> Path:
    """Write report, data and manifest, replacing a study that is there.

    Raises:
        UsageError: the folder has other things in it, or cannot be written.
    """
    from bentpipe.studies.jpl._report import study_report

    return write_study(
        out_dir,
        result=outcome.to_json(),
        report=study_report(outcome),
        csv_columns=CSV_COLUMNS,
        csv_rows=_csv_rows(outcome),
    )


def _csv_rows(outcome: JplOutcome) -> Iterator[tuple[Any, ...]]:
    for profile, comparison in (("bsd-1997", outcome.bsd), ("linux", outcome.linux)):
        for each in comparison.measurements:
            yield (
                profile,
                each.cell.row,
                each.cell.one_way_delay_ms,
                each.cell.large_windows,
                each.published,
                each.measured,
                each.error,
                each.stdev,
                each.standard_error,
                each.runs,
            )


def _by_row(comparison: Comparison) -> str:
    errors = comparison.mean_absolute_error_by_row
    return ", ".join(f"{row}: {number(errors[row])}" for row in BIT_ERROR_RATES)
