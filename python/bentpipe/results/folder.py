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
    files: Mapping[str, str | bytes],
    folders: Mapping[str, Path] | None = None,
) -> Path:
    """Write files (by path in the folder), copies of folders and a manifest with their kind.

    An old result of the same kind is replaced as a whole: see `OutputFolder`.

    Raises:
        UsageError: the folder contains other files, another program writes to it, or it cannot be
            written.
    """

    def fill(stage: Path) -> None:
        write_files(stage, files)
        for name, folder in (folders or {}).items():
            shutil.copytree(folder, stage / name)

    with opened(out, kind=kind) as output:
        output.write(manifest, fill)
    return output.path


def opened(out: Path | OutputFolder, *, kind: str) -> OutputFolder | nullcontext[OutputFolder]:
    """Return a context of an output folder: ``out`` itself if it is one, which stays open."""
    return nullcontext(out) if isinstance(out, OutputFolder) else OutputFolder(out, kind=kind)


def write_files(folder: Path, files: Mapping[str, str | bytes]) -> None:
    """Write new files into a folder, by path in it.

    Raises:
        OSError: a file cannot be written.
    """
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(_bytes(content))


def _bytes(content: str | bytes) -> bytes:
    return content.encode() if isinstance(content, str) else content


def write_file(path: Path, content: str | bytes) -> None:
    """Write a file completely, or leave an existing one as it is.

    Raises:
        UsageError: it cannot be written.
    """
    target = Path(os.path.realpath(path))
    try:
        if target.exists() and not target.is_file():
            target.write_bytes(_bytes(content))  # /dev/stdout
            return
        temporary = target.with_name(f"{target.name}.part")
        try:
            temporary.write_bytes(_bytes(content))
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
