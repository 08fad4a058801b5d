"""The journal of a sweep: a file to which each run is appended when it ends.

A record is a header, the length, the CRC-32 and the number of the run, and then its bytes. It is
written by one write(2). A process that is killed can leave one incomplete record at the end, which
is cut off when the journal is opened again. Another process reads how far a sweep is from its
folder alone, without its lock.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from bentpipe.results.files import PART
from bentpipe.results.output import WORK, is_being_written

# What a sweep runs, from its begin until all of its runs have ended.
DEFINITION: Final = "sweep.json"
JOURNAL: Final = "journal"
UNFINISHED: Final = Path(PART) / WORK / DEFINITION
# Length and CRC-32 of what follows, the point, the seed, and the kind of the record.
HEADER: Final = struct.Struct("<IIIQB")
_CHECKED: Final = struct.Struct("<IQB")

RESULT: Final = 0
FAILURE: Final = 1


class Run(NamedTuple):
    """One run of a sweep: the number of its point, and its seed."""

    point: int
    seed: int


class Journal:
    """The runs that have ended, in a file that is created if it does not exist.

    It is a context manager. A run that is appended again replaces its earlier record.

    Raises:
        OSError: the file cannot be opened, read or written.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        # The kind of each record, and where its bytes are: offset and length.
        self._locations: dict[Run, tuple[int, int, int]] = {}
        self._end = 0
        try:
            self._scan()
            os.ftruncate(self._descriptor, self._end)
        except BaseException:
            os.close(self._descriptor)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def __contains__(self, run: Run) -> bool:
        return run in self._locations

    def __len__(self) -> int:
        return len(self._locations)

    def runs(self, kind: int) -> list[Run]:
        """Return the runs with a record of a kind, by point and seed."""
        return sorted(run for run, location in self._locations.items() if location[0] == kind)

    def kind(self, run: Run) -> int | None:
        """Return the kind of a run's record; None if it has none."""
        return self._locations[run][0] if run in self._locations else None

    def append(self, run: Run, kind: int, data: bytes) -> None:
        """Append the record of a run.

        Raises:
            OSError: it cannot be written; the journal is as before.
        """
        checked = _CHECKED.pack(*run, kind)
        crc = zlib.crc32(data, zlib.crc32(checked))
        record = b"".join((HEADER.pack(len(data), crc, *run, kind), data))
        try:
            _write(self._descriptor, record, self._end)
        except BaseException:
            os.ftruncate(self._descriptor, self._end)
            raise
        location = (kind, self._end + HEADER.size, len(data))
        # In this order: after Ctrl-C between the two, the record is found when it is opened again.
        self._end += len(record)
        self._locations[run] = location

    def read(self, run: Run) -> bytes:
        """Return the bytes of a run's record."""
        _, offset, length = self._locations[run]
        return os.pread(self._descriptor, length, offset)

    def forget(self, run: Run) -> None:
        """Treat a run as one without a record."""
        del self._locations[run]

    def _scan(self) -> None:
        """Find the records, up to the first one that is incomplete or damaged."""
        for (length, crc, point, seed, kind), begin in _headers(self._descriptor, 0):
            data = os.pread(self._descriptor, length, begin)
            if zlib.crc32(data, zlib.crc32(_CHECKED.pack(point, seed, kind))) != crc:
                break
            self._locations[Run(point, seed)] = (kind, begin, length)
            self._end = begin + length


def _headers(descriptor: int, offset: int) -> Iterator[tuple[tuple[int, ...], int]]:
    """Yield the header of each complete record from an offset on, and where its bytes begin."""
    size = os.fstat(descriptor).st_size
    while len(head := os.pread(descriptor, HEADER.size, offset)) == HEADER.size:
        header, begin = HEADER.unpack(head), offset + HEADER.size
        offset = begin + header[0]
        if offset > size:
            return
        yield header, begin


def _write(descriptor: int, data: bytes, offset: int) -> None:
    """Write all bytes; pwrite(2) may write less where a disk becomes full."""
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, offset)
        offset += written
        view = view[written:]


@dataclass(frozen=True)
class Progress:
    """The runs of a sweep that have ended, failed ones included, and how many there will be.

    ``total`` is what is known: seeds may be added until intervals are narrow (``grows``). A sweep
    that is neither ``running`` nor complete can be resumed.
    """

    ended: int
    failed: int
    total: int
    grows: bool
    running: bool


class ProgressReader:
    """Reads the progress of the sweep in a folder, and of its journal only what is new."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._work = folder / PART / WORK
        self._start_again()

    def read(self) -> Progress | None:
        """Return the progress; None if there is no sweep that has not ended."""
        definition = read_definition(self._folder)
        if definition is None:
            return None
        self._read_journal()
        seeds = len(definition["seeds"])
        total = definition["points"] * seeds
        return Progress(
            ended=len(self._kinds),
            failed=sum(kind == FAILURE for kind in self._kinds.values()),
            total=max(total, len(self._kinds)),
            grows=definition["until_ci"] is not None,
            running=is_being_written(self._folder),
        )

    def _start_again(self) -> None:
        self._inode = 0
        self._offset = 0
        self._kinds: dict[Run, int] = {}

    def _read_journal(self) -> None:
        """Read the headers of the complete records that were appended."""
        try:
            descriptor = os.open(self._work / JOURNAL, os.O_RDONLY)
        except OSError:
            return
        try:
            about = os.fstat(descriptor)
            if about.st_ino != self._inode or about.st_size < self._offset:
                self._start_again()
                self._inode = about.st_ino
            for (length, _, point, seed, kind), begin in _headers(descriptor, self._offset):
                self._kinds[Run(point, seed)] = kind
                self._offset = begin + length
        finally:
            os.close(descriptor)


def read_definition(folder: Path) -> Mapping[str, Any] | None:
    """Return what an unfinished sweep runs (`Definition.to_json`); None if there is none."""
    try:
        about = json.loads((folder / UNFINISHED).read_bytes())
        definition: dict[str, Any] = about["definition"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return definition
