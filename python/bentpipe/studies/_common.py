"""What every study does the same way: read the published rows, write numbers, write a folder."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bentpipe.results.folder import REPORT, csv_text, json_text, write_folder


def read_rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file by its header; lines that begin with ``#`` are comments."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


def number(value: float | None, digits: int = 2, *, sign: bool = False) -> str:
    """Write a figure with so many digits after the point; a dash where there is none."""
    if value is None:
        return "-"
    # The z takes the sign from what rounds to zero.
    return f"{value:{'+' if sign else ''}z,.{digits}f}"


def write_study(
    out_dir: Path,
    *,
    result: dict[str, Any],
    report: str,
    csv_columns: Sequence[str],
    csv_rows: Iterable[Sequence[Any]],
    more: Mapping[str, str] | None = None,
) -> Path:
    """Write report.html, cells.csv, result.json and manifest.json; return the folder.

    ``result`` is the study as plain data (`StudyOutcome.to_json`), ``more`` are texts of further
    files by name. A study that is there is
    replaced.

    Raises:
        UsageError: the folder has other things in it, or cannot be written.
    """
    configuration = result["configuration"]
    return write_folder(
        out_dir,
        kind="study",
        manifest={
            "bentpipe_version": configuration["bentpipe_version"],
            "study": result["study"],
            "interrupted": result["interrupted"],
            "configuration": configuration,
        },
        texts={
            REPORT: report,
            "cells.csv": csv_text(csv_columns, csv_rows),
            "result.json": json_text(result),
            **(more or {}),
        },
    )
