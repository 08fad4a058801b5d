"""The files of a result folder, for readers.

A writer that was killed may have left a complete new result in the folder ``.part/commit`` of the
result folder; then its files count instead of those with the same names beside it (see
`bentpipe.results.output`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from bentpipe.errors import UsageError
from bentpipe.results.execution import shown_time

RESULT_FORMAT_VERSION: Final = 7
MANIFEST: Final = "manifest.json"
EXECUTION: Final = "execution.json"
REPORT: Final = "report.html"
# What writers keep in the result folder while they write.
PART: Final = ".part"
COMMIT: Final = "commit"

# A file is moved only once, so that it is found at the second attempt.
_ATTEMPTS: Final = 2
# A result that is replaced again and again cannot be read; each attempt takes milliseconds or more.
_READS: Final = 20

Read = TypeVar("Read")


def read_file(folder: Path, name: str, read: Callable[[Path], Read]) -> Read:
    """Return what ``read`` returns for the current file of a result.

    Raises:
        OSError: it cannot be read.
    """
    for _ in range(_ATTEMPTS):
        for path in (folder / PART / COMMIT / name, folder / name):
            try:
                return read(path)
            except (FileNotFoundError, NotADirectoryError):
                continue
    return read(folder / name)


def read_unchanged(folder: Path, read: Callable[[], Read]) -> Read:
    """Return what ``read`` returns, repeated if the result is replaced meanwhile.

    Raises:
        UsageError: as ``read`` does, or the result is replaced all the time.
    """
    for _ in range(_READS):
        before = _identity(folder)
        failure: UsageError | None = None
        try:
            found = read()
        except UsageError as error:
            failure = error
        if _identity(folder) == before:
            if failure is not None:
                raise failure
            return found
    raise UsageError(f"{folder}: is being replaced all the time; read it when the runs have ended")


def _identity(folder: Path) -> tuple[int, int] | None:
    """Return the identity of the manifest's file: a new result has a new one."""
    try:
        found = read_file(folder, MANIFEST, os.stat)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def has_manifest(folder: Path) -> bool:
    """Return whether a folder has a manifest."""
    return _identity(folder) is not None


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read the manifest of a result folder.

    Raises:
        UsageError: the folder or the manifest does not exist, or is not one of bentpipe.
    """
    file = folder / MANIFEST
    if not folder.exists():
        raise UsageError(f"{folder}: no such folder")
    try:
        manifest = json.loads(read_file(folder, MANIFEST, Path.read_bytes))
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        raise UsageError(f"{folder}: not a bentpipe result: it has no {MANIFEST}") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"{file}: cannot be read: {error}") from None
    if not isinstance(manifest, dict) or "bentpipe_version" not in manifest:
        raise UsageError(f"{file}: not the manifest of a bentpipe result")
    return manifest


def require_format(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Refuse a result of another format.

    Raises:
        UsageError: naming the version of bentpipe that reads it.
    """
    version = manifest.get("format_version")
    if version != RESULT_FORMAT_VERSION:
        raise UsageError(
            f"{folder / MANIFEST}: format_version is {version!r}; this bentpipe reads "
            f"{RESULT_FORMAT_VERSION}: read it with the bentpipe that wrote it "
            f"({manifest['bentpipe_version']})"
        )


def read_execution(folder: Path) -> dict[str, Any]:
    """Return when and where a result was computed; empty if it is not known."""
    try:
        found = json.loads(read_file(folder, EXECUTION, Path.read_bytes))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def kind_of(manifest: Mapping[str, Any]) -> str:
    """Return the kind of a result: ``run``, ``study``, ``search`` or ``validation``."""
    return str(manifest.get("kind", "run"))


def describe(folder: Path) -> str:
    """Return what a folder holds, for a message: 'the result of "geo" (seed 1, DATE TIME UTC)'."""
    manifest = read_manifest(folder)
    kind, scenario = kind_of(manifest), manifest.get("scenario")
    name = scenario.get("name") if isinstance(scenario, dict) else scenario
    what = f'"{name}"' if name else f"a {kind}"
    if kind == "study" and "study" in manifest:
        what = f"the study {manifest['study']}"
    elif kind != "run" and name:
        what = f"a {kind} of {what}"
    seed = f"seed {manifest['seed']}" if "seed" in manifest else None
    ended = shown_time(read_execution(folder).get("ended"))
    facts = ", ".join(fact for fact in (seed, ended) if fact is not None)
    return f"the result of {what}" + (f" ({facts})" if facts else "")


def error_text(error: OSError) -> str:
    """Return the reason of an error without its number and file."""
    return error.strerror or str(error)
