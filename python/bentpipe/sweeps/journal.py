"""The journal of a sweep: a file to which each run is appended when it ends.

A record is a header, the length, the CRC-32 and the number of the run, and then its bytes. It is
written by one write(2). A process that is killed can leave one incomplete record at the end, which
is cut off when the journal is opened again.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self

# Length and CRC-32 of what follows, the point, the seed, and the kind of the record.
HEADER: Final = struct.Struct("<IIIQB")
_CHECKED: Final = struct.Struct("<IQB")
_READ_BYTES: Final = 1 << 20

RESULT: Final = 0
FAILURE: Final = 1


class Run(NamedTuple):
    """One run of a sweep: the number of its point, and its seed."""

    point: int
    seed: int


class _Location(NamedTuple):
    """Where the bytes of a record are in the file, and its kind."""

    kind: int
    offset: int
    length: int


class Journal:
    """The runs that have ended, in a file that is created if it does not exist.

    It is a context manager. A run that is appended again replaces its earlier record.

    Raises:
        OSError: the file cannot be opened, read or written.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        self._locations: dict[Run, _Location] = {}
        self._end = 0
        try:
            self._scan()
            os.ftruncate(self._descriptor, self._end)
        except BaseException:
            os.close(self._descriptor)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._descriptor)

    def __contains__(self, run: Run) -> bool:
        return run in self._locations

    def __len__(self) -> int:
        return len(self._locations)

    def runs(self, kind: int) -> list[Run]:
        """Return the runs with a record of a kind, by point and seed."""
        return sorted(run for run, location in self._locations.items() if location.kind == kind)

    def kind(self, run: Run) -> int | None:
        """Return the kind of a run's record; None if it has none."""
        location = self._locations.get(run)
        return None if location is None else location.kind

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
        location = _Location(kind, self._end + HEADER.size, len(data))
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
        for header, data in self._records():
            _, crc, point, seed, kind = header
            if zlib.crc32(data, zlib.crc32(_CHECKED.pack(point, seed, kind))) != crc:
                break
            location = _Location(kind, self._end + HEADER.size, len(data))
            self._locations[Run(point, seed)] = location
            self._end += HEADER.size + len(data)

    def _records(self) -> Iterator[tuple[tuple[int, ...], bytes]]:
        size = os.fstat(self._descriptor).st_size
        with open(self._descriptor, "rb", buffering=_READ_BYTES, closefd=False) as file:
            file.seek(0)
            while len(head := file.read(HEADER.size)) == HEADER.size:
                header = HEADER.unpack(head)
                # A damaged length could ask for more memory than there is.
                if header[0] > size:
                    return
                data = file.read(header[0])
                if len(data) < header[0]:
                    return
                yield header, data


def _write(descriptor: int, data: bytes, offset: int) -> None:
    """Write all bytes; pwrite(2) may write less where a disk becomes full."""
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, offset)
        offset += written
        view = view[written:]
