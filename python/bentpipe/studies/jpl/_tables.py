"""The study's figures for a terminal and as files."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bentpipe.errors import UsageError
from bentpipe.results import (
    MANIFEST,
    REPORT,
    RESULT_FORMAT_VERSION,
    prepare_output_folder,
)
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


def number(value: float | None, *, sign: bool = False) -> str:
    """Write a percentage or points with two digits; a dash where there is none."""
    if value is None:
        return "-"
    # The z takes the sign from what rounds to zero.
    return f"{value:+z.2f}" if sign else f"{value:z.2f}"


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


def write_folder(outcome: JplOutcome, out_dir: Path) -> Path:
    """Write report, data and manifest, replacing a result or a study that is there.

    The manifest is written last: a folder with one is complete.

    Raises:
        UsageError: the folder has other things in it, or cannot be written.
    """
    from bentpipe.studies.jpl._report import study_report

    prepare_output_folder(out_dir, kind="study")
    manifest = {
        "bentpipe_version": outcome.configuration["bentpipe_version"],
        "format_version": RESULT_FORMAT_VERSION,
        "kind": "study",
        "study": "jpl",
        "interrupted": outcome.interrupted,
        "configuration": outcome.configuration,
    }
    try:
        (out_dir / MANIFEST).unlink(missing_ok=True)
        report = study_report(outcome)
        (out_dir / REPORT).write_text(report, encoding="utf-8", newline="\n")
        with (out_dir / "cells.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(CSV_COLUMNS)
            writer.writerows(_csv_rows(outcome))
        _write_json(out_dir / "result.json", outcome.to_json())
        _write_json(out_dir / MANIFEST, manifest)
    except OSError as error:
        raise UsageError(f"{out_dir}: cannot be written: {error.strerror or error}") from None
    return out_dir


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


def _write_json(path: Path, data: dict[str, Any]) -> None:
    path.write_text(f"{json.dumps(data, indent=2)}\n", encoding="utf-8")
