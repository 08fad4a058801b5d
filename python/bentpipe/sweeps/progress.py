"""How far a sweep is, for who did not start it: from its folder alone, without its lock."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bentpipe.results.files import PART
from bentpipe.results.output import WORK, is_being_written
from bentpipe.sweeps.folder import DEFINITION, JOURNAL
from bentpipe.sweeps.journal import FAILURE, HEADER, Run

_ABOUT: Final = Path(PART) / WORK / DEFINITION


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
            while True:
                head = os.pread(descriptor, HEADER.size, self._offset)
                if len(head) < HEADER.size:
                    return
                length, _, point, seed, kind = HEADER.unpack(head)
                end = self._offset + HEADER.size + length
                if end > about.st_size:
                    return
                self._kinds[Run(point, seed)] = kind
                self._offset = end
        finally:
            os.close(descriptor)


def read_definition(folder: Path) -> Mapping[str, Any] | None:
    """Return what an unfinished sweep runs (`Definition.to_json`); None if there is none."""
    try:
        about = json.loads((folder / _ABOUT).read_bytes())
        definition: dict[str, Any] = about["definition"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return definition
