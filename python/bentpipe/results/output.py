"""The output folder of a result: one writer at a time, and a result is replaced as a whole.

While a program writes its result to the folder ``out``, the folder ``out/.part`` has:

- ``lock``, locked by flock(2): the lock ends with the process, also after SIGKILL;
- ``new-NUMBER``: the new result, incomplete;
- ``commit``: the new result, complete, while its files are moved into ``out``;
- ``work``: the runs of a sweep that has not ended (`bentpipe.sweeps.folder`).

The rename of ``new-NUMBER`` to ``commit`` replaces the result: from then on, readers take the files
of ``commit`` first (`bentpipe.results.files`). The files are then moved into ``out``, the manifest
last. If the program is killed meanwhile, the next one continues. Before the rename, the old result
is unchanged. All of this is within ``out``, which may therefore be a mount point or the target of a
symbolic link, or have a parent that cannot be written; programs whose working directory it is keep
it.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from bentpipe.errors import UsageError
from bentpipe.results.files import (
    COMMIT,
    EXECUTION,
    MANIFEST,
    PART,
    REPORT,
    RESULT_FORMAT_VERSION,
    describe,
    described,
    execution as execution_now,
    has_manifest,
    json_text,
    kind_of,
    read_execution,
    read_manifest,
    title_of,
    write_files,
    writing,
)

_LOCK: Final = "lock"
_NEW: Final = "new-"
WORK: Final = "work"
# Filesystems without locks, such as NFS mounted with nolock (flock(2), nfs(5)). There, the last of
# two writers wins as a whole, and leftovers of killed ones stay.
_NO_LOCKS: Final = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EBADF}
# The folder of the lock is removed by its last owner: then it is made again.
_ATTEMPTS: Final = 100
# Of execution.json: the path of the scenario file.
_FILE: Final = "scenario_file"
# In the root of an ext4 filesystem, made by mke2fs(8).
_IGNORED: Final = {PART, "lost+found"}


@dataclass(frozen=True)
class Origin:
    """What a result is of: the title of its scenario or study, and the path of the file, if any."""

    title: str
    file: str = ""

    def require(
        self, place: Path | str, manifest: Mapping[str, Any], execution: Mapping[str, Any]
    ) -> None:
        """Check that the result at a place is of this: of the file, or of its name and title.

        The same file may have another path, as in each checkout of a pipeline; without a title
        nothing shows that it is the same.

        Raises:
            UsageError: it is of something else.
        """
        file = execution.get(_FILE, "")
        is_of_file = file != "" and file == self.file
        has_name = not file or not self.file or Path(file).name == Path(self.file).name
        if is_of_file or (has_name and self.title != "" and title_of(manifest) == self.title):
            return
        raise UsageError(
            f"{place}: has {described(manifest, execution)}{f' from {file}' if file else ''}; "
            "name another folder, or replace it with --replace"
        )


class OutputFolder:
    """A context in which one result may be written to the folder ``path``.

    Entering creates the folder, locks it and checks that a result would replace no other files;
    ``kind`` is ``run``, ``study``, ``search``, ``sweep`` or ``question``. ``replaced`` is what
    `write` has replaced, for a message; ``work`` is a folder for unfinished work, which stays until
    it is removed. Files that are not of the old result stay.

    Raises:
        UsageError: the folder is a file, contains something other than a result of this kind,
            cannot be written, or another program writes to it.
    """

    def __init__(self, path: Path, *, kind: str) -> None:
        self.path = path
        self.replaced: str | None = None
        self._kind = kind
        self._origin = Origin("")
        # The target of a symbolic link, which may not exist yet.
        self._folder = Path(os.path.realpath(path))
        self._part = self._folder / PART
        self.work = self._part / WORK
        self._created = False
        self._descriptor: int | None = None
        self._locked = False

    def __enter__(self) -> Self:
        with writing(self.path, self._kept):
            if self._folder.exists() and not self._folder.is_dir():
                raise UsageError(f"{self.path}: is a file; --out names a folder")
            self._check()
            self._lock()
            try:
                # Finish or remove what a killed program has left.
                self._move()
                if self._locked:
                    for left in self._part.glob(f"{_NEW}*"):
                        shutil.rmtree(left)
                self._check()
            except BaseException:
                self.__exit__()
                raise
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the lock, and the folder if nothing was written to it; unlock."""
        if self._descriptor is None:
            return
        with suppress(OSError):
            (self._part / _LOCK).unlink(missing_ok=True)
            self._part.rmdir()
        self._remove_created()
        # A child process of the run may have a copy of the descriptor.
        with suppress(OSError):
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        os.close(self._descriptor)
        self._descriptor, self._locked = None, False

    def claim(self, origin: Origin, *, replace: bool = False) -> None:
        """Say what the result will be of; a result of something else stays unless ``replace``.

        Raises:
            UsageError: the folder has the result of something else.
        """
        self._origin = origin
        if not replace and has_manifest(self._folder):
            origin.require(self.path, read_manifest(self._folder), read_execution(self._folder))

    def write(
        self,
        manifest: Mapping[str, Any],
        fill: Callable[[Path], None],
        *,
        execution: Mapping[str, Any] | None = None,
    ) -> None:
        """Write a result: the files that ``fill`` writes to a folder, manifest and execution.

        Raises:
            UsageError: the folder cannot be written; an old result is then unchanged.
        """
        stage = self._part / f"{_NEW}{os.getpid()}-{secrets.token_hex(4)}"
        with writing(self.path, self._kept):
            stage.mkdir(parents=True)
            try:
                fill(stage)
                about_file = {_FILE: self._origin.file} if self._origin.file else {}
                facts = {**(execution or execution_now()), **about_file}
                write_files(stage, {EXECUTION: json_text(facts, sort_keys=True)})
                files = sorted([*(path.name for path in stage.iterdir()), MANIFEST])
                about = {"format_version": RESULT_FORMAT_VERSION, **manifest}
                about |= {"kind": self._kind, "files": files}
                write_files(stage, {MANIFEST: json_text(about, sort_keys=True)})
                # So that a power failure cannot leave files empty.
                for path in (*stage.rglob("*"), stage):
                    sync(path)
                replaced = describe(self._folder) if has_manifest(self._folder) else None
                self._move()
                stage.rename(self._part / COMMIT)
                sync(self._part)
                self._move()
            except BaseException:
                shutil.rmtree(stage, ignore_errors=True)
                raise
        self.replaced = replaced
        self._created = False

    def _check(self) -> None:
        if not self._folder.exists():
            return
        if not os.access(self._folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, "no permission")
        if has_manifest(self._folder):
            kind = kind_of(read_manifest(self._folder))
            if kind != self._kind:
                raise UsageError(f"{self.path}: holds the result of a {kind}; name another folder")
        elif any(path.name not in _IGNORED for path in self._folder.iterdir()):
            raise UsageError(
                f"{self.path}: contains other files (no {MANIFEST}); name a new or an empty folder"
            )

    def _lock(self) -> None:
        """Lock the folder; create it if it does not exist."""
        for _ in range(_ATTEMPTS):
            self._folder.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileExistsError):
                self._folder.mkdir()
                self._created = True
            try:
                self._part.mkdir(exist_ok=True)
                opened = os.open(self._part / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
            except FileNotFoundError:
                continue
            except OSError:
                self._remove_created()
                raise
            try:
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._locked = True
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    os.close(opened)
                    raise self._taken() if isinstance(error, BlockingIOError) else error from None
            # Another owner may have removed the file meanwhile.
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(opened), (self._part / _LOCK).stat()):
                    self._descriptor = opened
                    return
            os.close(opened)
            self._locked = False
        raise self._taken()

    def _taken(self) -> UsageError:
        return UsageError(
            f"{self.path}: another run writes its result to this folder; wait until it has ended, "
            "or name another folder"
        )

    def _kept(self) -> str:
        """Return what the folder still has, for the message that it cannot be written."""
        with suppress(OSError, UsageError):
            if has_manifest(self._folder):
                return f"; it still has {describe(self._folder)}"
        return ""

    def _move(self) -> None:
        """Move the files of a complete new result into the folder; may be repeated at any point."""
        commit = self._part / COMMIT
        if not commit.is_dir():
            return
        if (commit / MANIFEST).is_file():
            if (self._folder / MANIFEST).is_file():
                self._remove_old(json.loads((commit / MANIFEST).read_bytes())["files"])
            for path in commit.iterdir():
                if path.name != MANIFEST:
                    target = self._folder / path.name
                    # rename(2) does not replace a folder that has files.
                    if target.is_dir():
                        _remove(target)
                    path.rename(target)
            (commit / MANIFEST).rename(self._folder / MANIFEST)
            sync(self._folder)
        shutil.rmtree(commit)

    def _remove_old(self, new: list[str]) -> None:
        """Remove the files of the old result that are not in the new one, and the old manifest.

        Without the manifest the folder is not complete for readers that do not know `COMMIT`.
        """
        manifest = self._folder / MANIFEST
        known: list[str] = []
        with suppress(ValueError, AttributeError):
            known = json.loads(manifest.read_bytes()).get("files", [])
        # A report may have been written later.
        old = {*known, REPORT} - {*new, MANIFEST, PART}
        # A manifest may have been edited: nothing outside of the folder is removed.
        for path in [path for path in self._folder.iterdir() if path.name in old]:
            _remove(path)
        manifest.unlink()

    def _remove_created(self) -> None:
        if self._created:
            with suppress(OSError):
                self._part.rmdir()
            with suppress(OSError):
                self._folder.rmdir()


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


def is_being_written(folder: Path) -> bool:
    """Return whether a program has locked an output folder.

    The kernel's list of locks tells it (proc_locks(5)): a lock that is tried, even for a moment,
    would refuse a program that begins meanwhile.
    """
    try:
        inode = (folder / PART / _LOCK).stat().st_ino
        locks = Path("/proc/locks").read_text(encoding="ascii")
    except OSError:
        return False
    # NUMBER: FLOCK ADVISORY WRITE PROCESS MAJOR:MINOR:INODE 0 EOF
    return re.search(rf"^\d+: FLOCK .*:{inode} ", locks, re.MULTILINE) is not None


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Write a file or a folder to the disk, so that it outlasts a power failure."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Folders of some network filesystems cannot be synchronized (fsync(2)).
        if error.errno not in {errno.EINVAL, errno.ENOTSUP}:
            raise
    finally:
        os.close(descriptor)
