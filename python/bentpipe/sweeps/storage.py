"""Shared storage: the results of a sweep at a URL that fsspec opens, such as ``s3://bucket/name``.

Workers write the result folders of their runs there. Everything else is made in a folder of this
machine, which has the journal of an unfinished sweep, and uploaded at the end, the manifest last.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Container, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from bentpipe.errors import UsageError
from bentpipe.results.files import MANIFEST, PART
from bentpipe.results.result import Result

_RUNS: Final = "runs"


def is_url(text: str) -> bool:
    """Return whether an output is a URL, and not a folder."""
    return "://" in text


def local_folder(url: str) -> Path:
    """Return the folder of this machine for a sweep whose results are at a URL."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    name = hashlib.sha256(url.rstrip("/").encode()).hexdigest()[:16]
    return Path(state) / "bentpipe" / "sweeps" / name


class Storage:
    """The folder at a URL.

    Raises:
        UsageError: fsspec or the package for this kind of URL is not installed, or the storage does
            not answer.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        try:
            self._files, self._root = import_module("fsspec").core.url_to_fs(self.url)
        except ImportError as error:
            raise UsageError(
                f"{self.url}: {error}; pip install 'bentpipe[cluster]', and s3fs for s3://"
            ) from None
        except ValueError as error:
            raise UsageError(f"{self.url}: {error}") from None

    def check(self) -> None:
        """Check that there is nothing but a sweep, which may be replaced.

        Raises:
            UsageError: there are other files, or the storage cannot be read.
        """
        with self._naming_errors("read"):
            names = {Path(each).name for each in self._names("")}
            about = (
                json.loads(self._files.cat_file(self._path(MANIFEST))) if MANIFEST in names else {}
            )
        if names and about.get("kind") != "sweep":
            raise UsageError(f"{self.url}: has other files; name a new folder")

    def save(self, result: Result, name: str) -> None:
        """Write the folder of a run.

        Raises:
            UsageError: it cannot be written.
        """
        with TemporaryDirectory(prefix="bentpipe-") as temporary:
            folder = result.save(Path(temporary) / name)
            self._put(folder, f"{_RUNS}/{name}")

    def upload(self, folder: Path, runs: Container[str]) -> None:
        """Replace the data set by that of a folder, and keep the folders of ``runs``, by name.

        Raises:
            UsageError: it cannot be written.
        """
        with self._naming_errors("written"):
            # Without a manifest there is no result.
            old = sorted(self._names(""), key=lambda name: Path(name).name != MANIFEST)
            old = [name for name in old if Path(name).name != _RUNS]
            old += [name for name in self._names(_RUNS) if Path(name).name not in runs]
            for name in old:
                self._files.rm(name, recursive=True)
        self._put(folder, "")

    def _put(self, folder: Path, name: str) -> None:
        files = [each for each in folder.rglob("*") if each.is_file() and PART not in each.parts]
        files.sort(key=lambda each: (each.name == MANIFEST, each))
        with self._naming_errors("written"):
            for each in files:
                parts = [*filter(None, [name]), *each.relative_to(folder).parts]
                # Where a file needs no folder, `makedirs` may make a bucket.
                if "file" in self._files.protocol:
                    self._files.makedirs(self._path("/".join(parts[:-1])), exist_ok=True)
                self._files.put_file(str(each), self._path("/".join(parts)))

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}".rstrip("/")

    def _names(self, name: str) -> list[str]:
        self._files.invalidate_cache()
        try:
            names: list[Any] = self._files.ls(self._path(name), detail=False)
        except FileNotFoundError:
            return []
        return [str(each) for each in names]

    @contextmanager
    def _naming_errors(self, done: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 - each kind of storage has errors of its own
            raise UsageError(f"{self.url}: cannot be {done}: {error}") from None
