"""The folder of a sweep: the journal while it runs, the data set at its end.

``.part/work`` has ``sweep.json``, which says what is to be run, and ``journal``, to which each run
is appended when it ends. It stays until all runs have ended, so that a sweep can be resumed after
Ctrl-C or SIGKILL.

Results may be at a URL that fsspec opens, such as ``s3://bucket/name``. Workers write the result
folders of their runs there. Everything else is made in a folder of this machine, which has the
journal of an unfinished sweep, and uploaded at the end, the manifest last.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Self

from bentpipe import _core
from bentpipe.errors import (
    BentpipeError,
    InternalError,
    InvalidRunError,
    MachineError,
    MemoryLimitError,
    RunSizeError,
    UsageError,
)
from bentpipe.results.files import (
    EXECUTION,
    MANIFEST,
    PART,
    execution,
    has_manifest,
    kind_of,
    read_manifest,
    utc_now,
    writing,
)
from bentpipe.results.output import Origin, OutputFolder, sync
from bentpipe.results.result import Result
from bentpipe.results.tables import TABLES
from bentpipe.sweeps.definition import Definition
from bentpipe.sweeps.journal import DEFINITION, FAILURE, JOURNAL, RESULT, Journal, Run
from bentpipe.sweeps.tables import write_dataset
from bentpipe.text import no_such

KIND: Final = "sweep"
_KEPT: Final = "runs"
# The errors of runs as they are kept; of those that an error belongs to, the first one counts.
_ERRORS: Final[Mapping[str, type[BentpipeError]]] = {
    "memory": MemoryLimitError,
    "size": RunSizeError,
    "scenario": UsageError,
    "lost": MachineError,
    "invalid": InvalidRunError,
    "internal": InternalError,
}
# Another attempt may succeed: these depend on the machine.
_RETRIED: Final = frozenset({"lost", "memory", "size", "invalid"})


class SweepFolder:
    """The folder of a sweep, locked while this context is open.

    ``path`` may be the URL of shared storage. The folder is then one of this machine, until the
    sweep is complete. ``temporary``: it is removed at the end, so that no message says how to
    continue.

    Raises:
        UsageError: the folder cannot be used, another program writes to it, or it has an unfinished
            sweep; with ``resume``, it has none, or that of another version.
    """

    def __init__(self, path: Path | str, *, resume: bool = False, temporary: bool = False) -> None:
        self.storage = Storage(str(path)) if "://" in str(path) else None
        self.path = Path(path) if self.storage is None else self.storage.local_folder
        self._temporary = temporary
        self.output = OutputFolder(self.path, kind=KIND)
        self._work = self.output.work
        self._origin = Origin("")
        self._resume = resume
        self._stack = ExitStack()
        self._journal: Journal | None = None
        self._started = ""

    def __enter__(self) -> Self:
        if self._resume and not self.path.is_dir():
            raise UsageError(f"{self.path}: {no_such('folder', self.path)}")
        with ExitStack() as stack:
            if self.storage is not None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                if not self._resume:
                    self.storage.check()
            stack.enter_context(self.output)
            if self.storage is not None:
                # Called before the lock is released.
                stack.callback(self._remove_local)
            if self.is_unfinished and not self._resume:
                raise UsageError(
                    f"{self.path}: has an unfinished sweep; continue it with --resume "
                    f"{self.path}, or remove the folder"
                )
            if self._resume and not self.is_unfinished and not self.is_complete:
                raise UsageError(f"{self.path}: has no sweep to resume")
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def claim(self, origin: Origin, *, replace: bool = False) -> None:
        """Say what the sweep is of; one of something else stays unless ``replace``.

        Raises:
            UsageError: the folder, or the shared storage, has one.
        """
        self._origin = origin
        self.output.claim(origin, replace=replace)
        if not replace and self.storage is not None and self.storage.manifest:
            origin.require(self.storage.url, self.storage.manifest, self.storage.execution)

    def _remove_local(self) -> None:
        """Remove the folder of this machine when the results are in the shared storage."""
        if not self.is_unfinished:
            shutil.rmtree(self.path, ignore_errors=True)

    @property
    def is_unfinished(self) -> bool:
        """Return whether the folder has a sweep that `resume` can continue."""
        return (self._work / DEFINITION).is_file()

    @property
    def is_complete(self) -> bool:
        """Return whether the folder has a sweep of which all runs have ended."""
        if self.is_unfinished or not has_manifest(self.path):
            return False
        manifest = read_manifest(self.path)
        return kind_of(manifest) == KIND and manifest["state"] == "completed"

    @property
    def advice(self) -> str:
        """Return what an error says about the runs that have ended."""
        if self._temporary:
            return ""
        ended = 0 if self._journal is None else len(self._journal)
        return (
            f"; the {ended:,} runs that have ended are kept, continue with "
            f"bentpipe sweep --resume {self.path}"
        )

    @property
    def has_result(self) -> bool:
        """Return whether the folder has the data set of this sweep: a run must have ended."""
        is_written = self._journal is None or len(self._journal) > 0
        return is_written and has_manifest(self.path)

    @property
    def journal(self) -> Journal:
        """Return the open journal."""
        assert self._journal is not None, "begin or resume comes first"
        return self._journal

    def begin(self, definition: Definition) -> None:
        """Note what the sweep runs, and open its journal."""
        self._started = utc_now()
        about = {
            "definition": definition.to_json(),
            "sources": list(definition.sources),
            "tables_sha256": _tables_hash(),
            "started": self._started,
            "origin": vars(self._origin),
        }
        with self._writing():
            self._work.mkdir(parents=True, exist_ok=True)
            # Of an earlier sweep that was killed while they were removed.
            shutil.rmtree(self._work / _KEPT, ignore_errors=True)
            (self._work / JOURNAL).unlink(missing_ok=True)
            # Complete or absent, also if the process is killed or the power fails.
            part = self._work / f"{DEFINITION}.part"
            part.write_text(json.dumps(about), encoding="utf-8")
            sync(part)
            part.replace(self._work / DEFINITION)
            self._journal = self._stack.enter_context(Journal(self._work / JOURNAL))

    def resume(self) -> Definition:
        """Open the journal of an unfinished sweep, and return what it runs.

        Failed runs whose cause may be the machine are forgotten, so that they run again.

        Raises:
            UsageError: another version of bentpipe began it, or a file of its scenario has changed.
        """
        file = self._work / DEFINITION
        try:
            about: dict[str, Any] = json.loads(file.read_bytes())
        except (OSError, ValueError) as error:
            raise UsageError(f"{file}: cannot be read: {error}") from None
        self._started, data = about["started"], about["definition"]
        self.output.claim(Origin(**about["origin"]), replace=True)
        version = _core.version()
        if data["bentpipe_version"] != version or about["tables_sha256"] != _tables_hash():
            raise UsageError(
                f"{self.path}: bentpipe {data['bentpipe_version']} began this sweep, and this is "
                f"{version}, whose results may differ; continue with that version, or start "
                "again in a new folder"
            )
        for source, before in about["sources"]:
            if Path(source).is_file() and file_hash(Path(source)) != before:
                raise UsageError(
                    f"{source}: has changed since the sweep in {self.path} began; restore it, or "
                    "start again in a new folder"
                )
        with self._writing():
            self._journal = self._stack.enter_context(Journal(self._work / JOURNAL))
        for run in self.journal.runs(FAILURE):
            if json.loads(self.journal.read(run))["kind"] in _RETRIED:
                self.journal.forget(run)
        definition = Definition.from_json(data, str(self.path))
        if definition.plan_sha256 != data["plan_sha256"]:
            raise UsageError(
                f"{self.path}: the scenario is not resolved into the same plans as when the sweep "
                "began; a file that it names (trace or csv) has changed. Restore it, or start "
                "again in a new folder"
            )
        return definition

    def _writing(self) -> AbstractContextManager[None]:
        return writing(self.path, lambda: self.advice)

    def add(self, run: Run, ended: bytes | BentpipeError, result: Result | None = None) -> None:
        """Keep the record of a complete run, and its result, or the error of a failed one.

        Raises:
            UsageError: it cannot be written.
        """
        kind, record = RESULT, ended
        if isinstance(record, BentpipeError):
            kinds = (name for name, error in _ERRORS.items() if isinstance(record, error))
            failure = {"kind": next(kinds, "internal"), "message": str(record)}
            kind, record = FAILURE, json.dumps(failure).encode()
        with self._writing():
            if result is not None:
                result.save(self._work / _KEPT / run_name(run))
            self.journal.append(run, kind, record)

    def write(self, definition: Definition, runs: Sequence[Run], *, complete: bool) -> None:
        """Replace the result by the data set of the runs that have ended.

        The journal is removed if the sweep is complete and no failed run may succeed later.

        Raises:
            UsageError: the folder cannot be written; the journal stays.
        """
        ended = [run for run in runs if run in self.journal]
        failed = [run for run in ended if self.journal.kind(run) == FAILURE]
        kinds = {json.loads(self.journal.read(run))["kind"] for run in failed}
        manifest = {
            **definition.to_json(),
            "state": "completed" if complete else "interrupted",
            "runs": len(ended) - len(failed),
            "failed_runs": len(failed),
        }

        def fill(stage: Path) -> None:
            manifest.update(write_dataset(stage, definition, ended, self.journal))
            kept = self._work / _KEPT
            if self.storage is not None and definition.keep_runs:
                # Workers have written the runs to the storage.
                (stage / _KEPT).mkdir()
            elif definition.keep_runs and kept.is_dir():
                # The runs stay where they are until the sweep is complete.
                shutil.copytree(kept, stage / _KEPT, copy_function=os.link)

        self.output.write(manifest, fill, execution=execution(started=self._started))
        if self.storage is not None:
            kept = ended if definition.keep_runs else ()
            self.storage.upload(self.path, {run_name(run) for run in kept})
        if complete and not kinds & _RETRIED:
            with suppress(OSError):
                shutil.rmtree(self._work)


def error_of(kind: str, message: str) -> BentpipeError:
    """Return the error of a failed run from what is kept of it."""
    return _ERRORS[kind](message)


def run_name(run: Run) -> str:
    """Return the name of the folder of a run."""
    return f"{run.point:06}-{run.seed:020}"


def file_hash(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _tables_hash() -> str:
    """Return a hash of the tables of a run: records of other tables cannot be read."""
    columns = [(name, table.columns) for name, table in TABLES.items()]
    return hashlib.sha256(repr(columns).encode()).hexdigest()


# --- shared storage -------------------------------------------------------------------------------


class Storage:
    """The folder at a URL; ``manifest`` and ``execution`` are those of a sweep that `check` found.

    Raises:
        UsageError: fsspec or the package for this kind of URL is not installed, or the storage does
            not answer.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self.manifest: dict[str, Any] = {}
        self.execution: dict[str, Any] = {}
        try:
            self._files, self._root = import_module("fsspec").core.url_to_fs(self.url)
        except ImportError as error:
            raise UsageError(
                f"{self.url}: {error}; pip install 'bentpipe[cluster]', and s3fs for s3://"
            ) from None
        except ValueError as error:
            raise UsageError(f"{self.url}: {error}") from None

    @property
    def local_folder(self) -> Path:
        """The folder of this machine for a sweep whose results are here."""
        state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
        name = hashlib.sha256(self.url.encode()).hexdigest()[:16]
        return Path(state) / "bentpipe" / "sweeps" / name

    def check(self) -> None:
        """Check that there is nothing but a sweep, which may be replaced.

        Raises:
            UsageError: there are other files, or the storage cannot be read.
        """
        with self._naming_errors("read"):
            names = {Path(path).name for path in self._names("")}
            self.manifest, self.execution = (
                json.loads(self._files.cat_file(self._path(name))) if name in names else {}
                for name in (MANIFEST, EXECUTION)
            )
        if names and self.manifest.get("kind") != KIND:
            raise UsageError(f"{self.url}: has other files; name a new folder")

    def save(self, result: Result, name: str) -> None:
        """Write the folder of a run.

        Raises:
            UsageError: it cannot be written.
        """
        with TemporaryDirectory(prefix="bentpipe-") as temporary:
            folder = result.save(Path(temporary) / name)
            self._put(folder, f"{_KEPT}/{name}")

    def upload(self, folder: Path, runs: Container[str]) -> None:
        """Replace the data set by that of a folder, and keep the folders of ``runs``, by name.

        Raises:
            UsageError: it cannot be written.
        """
        with self._naming_errors("written"):
            # Without a manifest there is no result.
            old = sorted(self._names(""), key=lambda name: Path(name).name != MANIFEST)
            old = [name for name in old if Path(name).name != _KEPT]
            old += [name for name in self._names(_KEPT) if Path(name).name not in runs]
            for name in old:
                self._files.rm(name, recursive=True)
        self._put(folder, "")

    def _put(self, folder: Path, name: str) -> None:
        files = [file for file in folder.rglob("*") if file.is_file() and PART not in file.parts]
        files.sort(key=lambda file: (file.name == MANIFEST, file))
        with self._naming_errors("written"):
            for file in files:
                parts = [*filter(None, [name]), *file.relative_to(folder).parts]
                # Where a file needs no folder, `makedirs` may make a bucket.
                if "file" in self._files.protocol:
                    self._files.makedirs(self._path("/".join(parts[:-1])), exist_ok=True)
                self._files.put_file(str(file), self._path("/".join(parts)))

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}".rstrip("/")

    def _names(self, name: str) -> list[str]:
        self._files.invalidate_cache()
        try:
            names: list[Any] = self._files.ls(self._path(name), detail=False)
        except FileNotFoundError:
            return []
        return [str(path) for path in names]

    @contextmanager
    def _naming_errors(self, done: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 - each kind of storage has errors of its own
            raise UsageError(f"{self.url}: cannot be {done}: {error}") from None
