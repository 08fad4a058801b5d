"""Folders of figures: studies and searches write report, data and manifest in the same way."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

from bentpipe.errors import UsageError
from bentpipe.results.result import MANIFEST, RESULT_FORMAT_VERSION, prepare_output_folder


def write_folder(
    out_dir: Path, *, kind: str, manifest: Mapping[str, Any], texts: Mapping[str, str]
) -> Path:
    """Write files by name, and a manifest that says which kind of figures they are.

    A result of the same kind that is there is replaced. The manifest is written last: a folder with
    one is complete.

    Raises:
        UsageError: the folder has other things in it, or cannot be written.
    """
    prepare_output_folder(out_dir, kind=kind)
    about = {"format_version": RESULT_FORMAT_VERSION, "kind": kind, **manifest}
    try:
        (out_dir / MANIFEST).unlink(missing_ok=True)
        for name, text in {**texts, MANIFEST: json_text(about)}.items():
            (out_dir / name).write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise UsageError(f"{out_dir}: cannot be written: {error.strerror or error}") from None
    return out_dir


def json_text(data: Any) -> str:
    """Return data as the text of a JSON file."""
    return f"{json.dumps(data, indent=2)}\n"


def csv_text(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return rows as the text of a CSV file; None is an empty cell."""
    buffer = StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return buffer.getvalue()
