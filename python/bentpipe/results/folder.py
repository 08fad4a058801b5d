"""Result folders of runs, studies and searches: report, data and manifest."""

from __future__ import annotations

import csv
import json
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from io import StringIO
from pathlib import Path
from typing import Any

from bentpipe.errors import UsageError
from bentpipe.results.files import error_text
from bentpipe.results.output import OutputFolder


def write_folder(
    out: Path | OutputFolder,
    *,
    kind: str,
    manifest: Mapping[str, Any],
    texts: Mapping[str, str],
    folders: Mapping[str, Path] | None = None,
) -> Path:
    """Write files (``texts`` by file name), copies of folders and a manifest with their kind.

    An old result of the same kind is replaced as a whole: see `OutputFolder`.

    Raises:
        UsageError: the folder contains other files, another program writes to it, or it cannot be
            written.
    """

    def fill(stage: Path) -> None:
        for name, text in texts.items():
            (stage / name).write_text(text, encoding="utf-8", newline="\n")
        for name, folder in (folders or {}).items():
            shutil.copytree(folder, stage / name)

    with opened(out, kind=kind) as output:
        output.write(manifest, fill)
    return output.path


def opened(out: Path | OutputFolder, *, kind: str) -> OutputFolder | nullcontext[OutputFolder]:
    """Return a context of an output folder: ``out`` itself if it is one, which stays open."""
    return nullcontext(out) if isinstance(out, OutputFolder) else OutputFolder(out, kind=kind)


def write_text(path: Path, text: str) -> None:
    """Write a file completely, or leave an existing one as it is.

    Raises:
        UsageError: it cannot be written.
    """
    target = Path(os.path.realpath(path))
    try:
        if target.exists() and not target.is_file():
            target.write_text(text, encoding="utf-8", newline="\n")  # /dev/stdout
            return
        temporary = target.with_name(f"{target.name}.part")
        try:
            temporary.write_text(text, encoding="utf-8", newline="\n")
            temporary.replace(target)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error_text(error)}") from None


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
