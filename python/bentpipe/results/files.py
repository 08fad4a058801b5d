"""The files of results: readers of a result folder, the texts of files, and captures of packets.

A writer that was killed may have left a complete new result in the folder ``.part/commit`` of the
result folder; then its files count instead of those with the same names beside it (see
`bentpipe.results.output`).
"""

from __future__ import annotations

import csv
import json
import os
import platform
import re
import secrets
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from io import BytesIO, StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from bentpipe.errors import UsageError
from bentpipe.text import no_such
from bentpipe.units import format_duration, format_size

if TYPE_CHECKING:
    import polars as pl

RESULT_FORMAT_VERSION: Final = 8
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


def utc_now() -> str:
    """Return the current date and time in UTC (ISO 8601)."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def execution(**more: Any) -> dict[str, Any]:
    """Return the time now, facts about this machine, and those of ``more`` that are not empty."""
    host = {"python": platform.python_version(), "platform": platform.platform()}
    return {"ended": utc_now(), "host": host, **{name: fact for name, fact in more.items() if fact}}


def shown_time(ended: object) -> str | None:
    """Return the time of an execution for a message; None if it is unknown."""
    try:
        return datetime.fromisoformat(str(ended)).astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (OverflowError, ValueError):
        return None


def stop_message(end_ns: int, limit_bytes: int) -> str:
    """Return when and why the simulator ended a run early."""
    return (
        f"stopped at {format_duration(end_ns)} because the memory limit of "
        f"{format_size(limit_bytes)} was reached"
    )


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
        try:
            content = read()
        except UsageError:
            if _identity(folder) == before:
                raise
        else:
            if _identity(folder) == before:
                return content
    raise UsageError(f"{folder}: is being replaced all the time; read it when the runs have ended")


def _identity(folder: Path) -> tuple[int, int] | None:
    """Return the identity of the manifest's file: a new result has a new one."""
    try:
        status = read_file(folder, MANIFEST, os.stat)
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


def has_manifest(folder: Path) -> bool:
    """Return whether a folder has a manifest."""
    return _identity(folder) is not None


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read the manifest of a result folder.

    Raises:
        UsageError: the folder or the manifest does not exist, or is not one of bentpipe.
    """
    file = folder / MANIFEST
    try:
        manifest = json.loads(read_file(folder, MANIFEST, Path.read_bytes))
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        # `Path.exists` raises an error for a folder that may not be read.
        if not os.path.exists(folder):  # noqa: PTH110
            raise UsageError(f"{folder}: {no_such('folder', folder)}") from None
        raise UsageError(f"{folder}: not a bentpipe result: it has no {MANIFEST}") from None
    except OSError as error:
        raise UsageError(f"{file}: cannot be read: {error_text(error)}") from None
    except ValueError as error:
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
    facts: Any = None
    with suppress(OSError, ValueError):
        facts = json.loads(read_file(folder, EXECUTION, Path.read_bytes))
    return facts if isinstance(facts, dict) else {}


def kind_of(manifest: Mapping[str, Any]) -> str:
    """Return the kind of a result: ``run``, ``study``, ``search``, ``sweep`` or ``question``."""
    return str(manifest.get("kind", "run"))


def title_of(manifest: Mapping[str, Any]) -> str:
    """Return the name of the study, the question or the scenario of a result; empty without one."""
    scenario = manifest.get("scenario")
    name = scenario.get("name") if isinstance(scenario, dict) else scenario
    return str(manifest.get("study") or manifest.get("question") or name or "")


def describe(folder: Path) -> str:
    """Return what a folder holds, for a message: 'the result of "geo" (seed 1, DATE TIME UTC)'."""
    return described(read_manifest(folder), read_execution(folder))


def described(manifest: Mapping[str, Any], execution: Mapping[str, Any]) -> str:
    """Return what a result is of, as `describe` does, from its manifest and its execution."""
    kind, title = kind_of(manifest), title_of(manifest)
    whole = {
        "run": f'"{title}"',
        "study": f"the study {title}",
        "question": f'the question "{title}"',
    }
    what = whole.get(kind, f'a {kind} of "{title}"') if title else f"a {kind}"
    seed = f"seed {manifest['seed']}" if "seed" in manifest else None
    ended = shown_time(execution.get("ended"))
    facts = ", ".join(fact for fact in (seed, ended) if fact is not None)
    return f"the result of {what}" + (f" ({facts})" if facts else "")


def error_text(error: OSError) -> str:
    """Return the reason of an error without its number and file."""
    return error.strerror or str(error)


# --- writers -------------------------------------------------------------------------------------


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
    with writing(path):
        if is_stream(path):
            number = _open_number(path)
            if number is not None:
                # What was printed is before it, and what is printed next is after it.
                sys.stdout.flush()
            with path.open("ab") if number is None else os.fdopen(os.dup(number), "wb") as stream:
                stream.write(_bytes(content))
            return
        file = Path(os.path.realpath(path))
        # Another process may write the same file at this time. A name has at most 255 bytes.
        name = os.fsdecode(os.fsencode(file.name)[:200])
        with _replaced(file, f"{name}.{secrets.token_hex(8)}.part") as temporary:
            temporary.write_bytes(_bytes(content))


def _open_number(path: Path) -> int | None:
    """Return the number of an open file of this process; None if the path names none."""
    named = os.path.abspath(path)  # noqa: PTH100
    standard = {"/dev/stdin": 0, "/dev/stdout": 1, "/dev/stderr": 2}
    match = re.fullmatch(r"/(?:dev|proc/self)/fd/(\d{1,6})", named)
    return int(match[1]) if match else standard.get(named)


def is_stream(path: Path) -> bool:
    """Return whether a path is a device, a pipe or an open file, as /dev/stdout, or a folder."""
    # Links are not followed: /dev/stdout may be one to a file.
    named = os.path.abspath(path)  # noqa: PTH100
    is_open_file = named.startswith(("/dev/std", "/dev/fd/", "/proc/"))
    return is_open_file or (path.exists() and not path.is_file())


@contextmanager
def writing(path: Path, more: Callable[[], str] = str) -> Iterator[None]:
    """Name a file or a folder in the error if it cannot be written, with ``more`` at its end.

    Raises:
        UsageError: an OSError in the block.
    """
    try:
        yield
    except OSError as error:
        message = f"{path}: cannot be written: {error_text(error)}{more()}"
        raise UsageError(message) from None


@contextmanager
def _replaced(path: Path, name: str) -> Iterator[Path]:
    """Yield a temporary file to write, of this name; if the block fails, it is removed.

    An existing file stays as it was until the block ends.
    """
    temporary = path.with_name(name)
    # A killed program may have left one of this name, and a symbolic link would lead elsewhere.
    temporary.unlink(missing_ok=True)
    try:
        yield temporary
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


@contextmanager
def capture_file(path: Path | None) -> Iterator[Path | None]:
    """Yield the temporary name to write to; None if nothing is to be captured.

    If the block fails, the temporary file is removed, and an existing file stays as it was.

    Raises:
        UsageError: the file cannot be written.
    """
    if path is None:
        yield None
        return
    with writing(path):
        if path.is_dir():
            raise UsageError(f"{path}: is a folder; name the file of the capture")
        if is_stream(path):
            raise UsageError(f"{path}: is no file, and cannot be replaced; name another one")
        with _replaced(path, f"{path.name}.part") as temporary:
            yield temporary


def json_text(data: Any, *, sort_keys: bool = False) -> str:
    """Return data as the text of a JSON file."""
    return f"{json.dumps(data, indent=2, sort_keys=sort_keys)}\n"


def write_parquet(frame: pl.DataFrame, path: Path) -> None:
    """Write a frame; polars does not tell why it cannot write a file."""
    buffer = BytesIO()
    frame.write_parquet(buffer)
    path.write_bytes(buffer.getbuffer())


def csv_text(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return rows as the text of a CSV file; None is an empty cell."""
    buffer = StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return buffer.getvalue()


def incomplete_message(path: Path | None, measured: Mapping[str, Any]) -> str | None:
    """Return a message about the packets missing in a lab's capture; None if it is complete.

    ``measured`` is the report of the lab.
    """
    captured = measured["capture"]
    if captured is None:
        return None
    missing, packets = captured["missing_packets"], captured["packets"]
    if captured["error_number"] is not None:
        reason = os.strerror(captured["error_number"])
        return (
            f"{path} is incomplete: {reason}; it has the first {packets:,} packets at points; "
            "the link was not delayed"
        )
    if missing == 0:
        return None
    return (
        f"{path} lacks {missing:,} of {missing + packets:,} packets at points: it could not be "
        "written fast enough; the link was not delayed"
    )
