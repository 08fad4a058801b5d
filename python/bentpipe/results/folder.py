"""Result folders of runs, studies and searches: report, data and manifest."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any, Final

from bentpipe.errors import UsageError

RESULT_FORMAT_VERSION: Final = 3
MANIFEST: Final = "manifest.json"
REPORT: Final = "report.html"


def write_folder(
    out_dir: Path, *, kind: str, manifest: Mapping[str, Any], texts: Mapping[str, str]
) -> Path:
    """Write files (``texts`` by file name) and a manifest with their kind.

    An old result of the same kind is replaced. The manifest is written last: a folder with one is
    complete.

    Raises:
        UsageError: the folder contains other files, or cannot be written.
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


def prepare_output_folder(path: Path, *, kind: str = "run") -> None:
    """Create the folder if it is missing, and check that a result would replace no other files.

    Raises:
        UsageError: it is a file, contains something other than a result of this kind (``run``,
            ``study``, ``search`` or ``validation``), or cannot be written.
    """
    if path.exists() and not path.is_dir():
        raise UsageError(f"{path}: is a file; --out names a folder")
    try:
        path.mkdir(parents=True, exist_ok=True)
        others = any(path.iterdir()) and not (path / MANIFEST).is_file()
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror or error}") from None
    if not os.access(path, os.W_OK):
        raise UsageError(f"{path}: cannot be written: no permission")
    if others:
        raise UsageError(
            f"{path}: contains other files (no {MANIFEST}); name a new or an empty folder"
        )
    if (path / MANIFEST).is_file():
        found = kind_of(read_manifest(path))
        if found != kind:
            raise UsageError(f"{path}: holds the result of a {found}; name another folder")


def kind_of(manifest: Mapping[str, Any]) -> str:
    """Return the kind of a result: ``run``, ``study``, ``search`` or ``validation``."""
    return str(manifest.get("kind", "run"))


def read_manifest(path: Path) -> dict[str, Any]:
    """Read the manifest of a result folder.

    Raises:
        UsageError: the folder or the manifest does not exist, or is not one of bentpipe.
    """
    file = path / MANIFEST
    if not path.exists():
        raise UsageError(f"{path}: no such folder")
    if not file.is_file():
        raise UsageError(f"{path}: not a bentpipe result: it has no {MANIFEST}")
    try:
        manifest = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{file}: cannot be read: {error}") from None
    if not isinstance(manifest, dict) or "bentpipe_version" not in manifest:
        raise UsageError(f"{file}: not the manifest of a bentpipe result")
    return manifest
