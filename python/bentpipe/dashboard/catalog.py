"""The results below a folder: what they are, and the tables of the latest that were read.

A folder with the manifest of a result, or with one that is being written, is an entry, and nothing
below it is listed. An entry whose files are missing, cut off, or links out of the served folder is
damaged, with the reason.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import polars as pl

from bentpipe.errors import UsageError
from bentpipe.results.files import (
    COMMIT,
    MANIFEST,
    PART,
    REPORT,
    has_manifest,
    kind_of,
    read_execution,
    read_file,
    read_manifest,
    require_format,
    shown_time,
    title_of,
)
from bentpipe.results.output import is_being_written
from bentpipe.results.result import Result
from bentpipe.sweeps import Sweep
from bentpipe.sweeps.journal import UNFINISHED, read_definition
from bentpipe.sweeps.tables import text_of

# Of a folder that was served by mistake, such as a home folder, this many folders are searched.
FOLDERS_MAX: Final = 20_000
ENTRIES_MAX: Final = 5_000
_DEPTH_MAX: Final = 16
# Of changed settings, in the list.
_CHANGED_MAX: Final = 4
# The manifest of a run with 10,000 terminals has some 20 MB.
_MANIFEST_BYTES_MAX: Final = 256_000_000
# Pages that are followed by many browsers share one search.
_SEARCH_INTERVAL_S: Final = 1.0
_PARQUET: Final = ".parquet"
# Of the results that are kept in memory.
_TABLES_BYTES_MAX: Final = 500_000_000


class NotFoundError(Exception):
    """There is no such result, or it is not below the served folder."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A result: ``path`` is relative to the served folder, "." for that folder itself.

    ``ended`` is shown, ``ended_at`` is ISO 8601. ``changed`` are the settings that were changed, or
    the fields that were varied. ``problem`` is why it is damaged.
    """

    path: str
    kind: str
    title: str
    state: str
    engine: str = ""
    seed: int | None = None
    ended: str = ""
    ended_at: str = ""
    changed: str = ""
    warnings: int = 0
    problem: str | None = None
    has_report: bool = False


class Catalog:
    """Finds and reads the results below a folder; keeps what it has read of unchanged ones."""

    def __init__(self, root: Path) -> None:
        self.root: Final = root.resolve()
        self._lock = threading.Lock()
        self._known: dict[Path, tuple[object, Entry | None]] = {}
        self._entries: list[Entry] = []
        self._searched_s: float | None = None
        self.complete = True
        self._loading = threading.Lock()
        self._kept: OrderedDict[Path, tuple[Entry, Result | Sweep]] = OrderedDict()

    def entries(self) -> list[Entry]:
        """Return all results, the newest first; at most a second old."""
        with self._lock:
            now_s = time.monotonic()
            if self._searched_s is None or now_s - self._searched_s > _SEARCH_INTERVAL_S:
                self._entries = self._search()
                self._searched_s = time.monotonic()
            return list(self._entries)

    def folder(self, path: str) -> Path:
        """Return the folder of a result.

        Raises:
            NotFoundError: it does not exist, or is not below the served folder.
        """
        try:
            folder = (self.root / path.strip("/")).resolve(strict=True)
        except (OSError, ValueError, RuntimeError):
            raise NotFoundError(path) from None
        hidden = any(part.startswith(".") for part in Path(path).parts if part != ".")
        if hidden or not folder.is_relative_to(self.root) or not folder.is_dir():
            raise NotFoundError(path)
        return folder

    def entry(self, path: str) -> Entry:
        """Return one result, as it is now.

        Raises:
            NotFoundError: there is none.
        """
        if (entry := self._entry(self.folder(path))) is None:
            raise NotFoundError(path)
        return entry

    def read(self, path: str, name: str) -> bytes:
        """Return a file of a result, such as its report.

        Raises:
            NotFoundError: there is none, or it is a link to a place outside the served folder.
        """

        def read(file: Path) -> bytes:
            if not file.resolve(strict=True).is_relative_to(self.root):
                raise NotFoundError(path)
            return file.read_bytes()

        entry = self.entry(path)
        if entry.problem is not None:
            raise NotFoundError(path)
        try:
            return read_file(self.folder(path), name, read)
        except OSError:
            raise NotFoundError(path) from None

    def message(self, error: Exception) -> str:
        """Return the text of an error, with paths relative to the served folder."""
        return str(error).replace(f"{self.root}/", "").replace(str(self.root), ".")

    def run(self, path: str) -> Result:
        """Return the run in a folder, without its packet events.

        Raises:
            NotFoundError: there is no run.
            UsageError: it is damaged.
        """
        result: Result = self._load(path, "run", partial(Result.load, events=False))
        return result

    def sweep(self, path: str) -> Sweep:
        """Return the data set of a sweep, without the runs of --keep-runs.

        Raises:
            NotFoundError: there is none.
            UsageError: it is damaged, or no run of it has ended.
        """
        sweep: Sweep = self._load(path, "sweep", partial(Sweep.load, results=False))
        return sweep

    def _load(self, path: str, kind: str, load: Callable[[Path], Any]) -> Any:
        """Return a result; the latest ones are kept in memory while they are unchanged."""
        entry = self.entry(path)
        if entry.problem is not None:
            raise UsageError(entry.problem)
        if entry.kind != kind:
            raise NotFoundError(path)
        folder = self.folder(path)
        with self._loading:
            kept = self._kept.get(folder)
            # There is a new entry for a result that was replaced.
            if kept is None or kept[0] is not entry:
                kept = (entry, load(folder))
                self._kept[folder] = kept
                while len(self._kept) > 1 and self._size_bytes() > _TABLES_BYTES_MAX:
                    self._kept.popitem(last=False)
            self._kept.move_to_end(folder)
            return kept[1]

    def _size_bytes(self) -> int:
        tables: list[pl.DataFrame] = []
        for _, result in self._kept.values():
            if isinstance(result, Result):
                tables += result.tables.values()
            else:
                tables += (result.flows, result.directions)
        return sum(int(table.estimated_size()) for table in tables)

    def _search(self) -> list[Entry]:
        entries: list[Entry] = []
        seen: set[Path] = set()
        self.complete = True
        for count, folder in enumerate(_folders(self.root)):
            if count >= FOLDERS_MAX or len(entries) >= ENTRIES_MAX:
                self.complete = False
                break
            seen.add(folder)
            if (entry := self._entry(folder)) is not None:
                entries.append(entry)
        self._known = {
            folder: known for folder, known in list(self._known.items()) if folder in seen
        }
        entries.sort(key=lambda entry: entry.path)
        return sorted(
            entries, key=lambda entry: (entry.state == "running", entry.ended_at), reverse=True
        )

    def _entry(self, folder: Path) -> Entry | None:
        """Return the result in a folder, None if there is none; read it only if it changed."""
        try:
            identity = _identity(folder)
        except OSError:
            return None
        known = self._known.get(folder)
        if known is None or known[0] != identity:
            known = (identity, self._read(folder))
            self._known[folder] = known
        return known[1]

    def _read(self, folder: Path) -> Entry | None:
        path = folder.relative_to(self.root).as_posix()
        running = _begun(path, folder)
        if not has_manifest(folder):
            return running
        entry = Entry(path=path, kind="", title="", state="damaged")
        try:
            self._refuse_links(folder)
            if read_file(folder, MANIFEST, os.stat).st_size > _MANIFEST_BYTES_MAX:
                raise UsageError(f"{MANIFEST}: is larger than {_MANIFEST_BYTES_MAX:,} bytes")
            manifest = read_manifest(folder)
            kind = kind_of(manifest)
            entry = replace(entry, kind=kind, title=title_of(manifest))
            _check_files(folder, manifest)
            about = read_execution(folder)
            interrupted = "interrupted" if manifest.get("interrupted") else "completed"
            state = str(manifest.get("state", interrupted))
            return replace(
                entry,
                title=entry.title or "unnamed",
                state=state if running is None else running.state,
                engine=str(manifest.get("engine", "simulate" if kind == "run" else "")),
                seed=manifest.get("seed"),
                ended=shown_time(about.get("ended")) or "",
                ended_at=str(about.get("ended", "")),
                changed=_changed(manifest, about),
                warnings=len(manifest.get("warnings", ())),
                has_report=REPORT in manifest["files"] or (folder / REPORT).is_file(),
            )
        except (UsageError, OSError, pl.exceptions.PolarsError) as error:
            if "not the manifest of a bentpipe result" in str(error):
                return None
            problem = self.message(Exception(str(error).replace(f"{folder}/", "")))
        except (AttributeError, KeyError, TypeError, ValueError):
            problem = f"{MANIFEST}: lacks fields or has wrong ones"
        return replace(entry, problem=problem)

    def _refuse_links(self, folder: Path) -> None:
        for name in ("", PART, f"{PART}/{COMMIT}"):
            inner = folder / name
            if not inner.is_dir():
                continue
            for path in inner.rglob("*"):
                if path.is_symlink() and not path.resolve().is_relative_to(self.root):
                    raise UsageError(f"{path}: is a link to a place outside the served folder")


def _changed(manifest: Mapping[str, Any], about: Mapping[str, Any]) -> str:
    """Return the settings that were changed for a result, or the fields that a sweep varies."""
    settings = [
        f"{path}={'none' if value is None else text_of(value)}"
        for path, value in about.get("settings", {}).items()
    ]
    varied = [f"{path} varied" for axis in manifest.get("axes", ()) for path in axis["paths"]]
    shown = [*settings, *varied]
    more = [f"and {len(shown) - _CHANGED_MAX} more"] if len(shown) > _CHANGED_MAX else []
    return ", ".join([*shown[:_CHANGED_MAX], *more])


def _folders(top: Path) -> Iterator[Path]:
    """Yield folders without hidden ones; what is below a result is a part of it."""
    for path, names, _ in os.walk(top):
        folder = Path(path)
        yield folder
        is_deepest = len(folder.parts) - len(top.parts) >= _DEPTH_MAX
        if is_deepest or has_manifest(folder) or (folder / PART).is_dir():
            names.clear()
        # Addresses are UTF-8; Linux allows names of other bytes.
        is_utf8 = (name for name in names if name.encode(errors="ignore").decode() == name)
        names[:] = sorted(name for name in is_utf8 if not name.startswith("."))


def _begun(path: str, folder: Path) -> Entry | None:
    """Return what is said of a folder whose result is being written, or a sweep that has begun."""
    if not (folder / PART).is_dir():
        return None
    running = is_being_written(folder)
    if (sweep := read_definition(folder)) is not None:
        state = "running" if running else "interrupted"
        title = str(sweep["scenario"].get("name") or "unnamed")
        return Entry(path=path, kind="sweep", title=title, state=state, engine=sweep["engine"])
    return Entry(path=path, kind="", title=folder.name, state="running") if running else None


def _identity(folder: Path) -> object:
    """Return what changes when a file of the folder is replaced."""
    files: list[tuple[object, ...]] = [(is_being_written(folder), (folder / UNFINISHED).is_file())]
    for name in ("", f"{PART}/{COMMIT}"):
        try:
            inside = list(os.scandir(folder / name))
        except (FileNotFoundError, NotADirectoryError):
            continue
        for child in inside:
            if name or not child.is_dir(follow_symlinks=False):
                about = child.stat(follow_symlinks=False)
                files.append((name, child.name, about.st_ino, about.st_size, about.st_mtime_ns))
    return tuple(sorted(files, key=repr))


def _check_files(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Read the end of each table: a file that is cut off has none."""
    require_format(folder, manifest)
    for name in manifest["files"]:
        if name == ".." or Path(str(name)).name != name:
            raise UsageError(f"{MANIFEST}: names a file of another folder")
        try:
            read = pl.read_parquet_schema if str(name).endswith(_PARQUET) else os.stat
            read_file(folder, str(name), read)
        except FileNotFoundError:
            raise UsageError(f"{name}: is missing") from None
        except pl.exceptions.PolarsError as error:
            raise UsageError(f"{name}: cannot be read: {error}") from None
