"""Results that were read, for the requests that follow: the latest ones, up to a size."""

from __future__ import annotations

import threading
from collections import OrderedDict
from pathlib import Path
from typing import Final

from bentpipe.dashboard.catalog import Catalog, NotFoundError
from bentpipe.errors import UsageError
from bentpipe.results.result import Result
from bentpipe.sweeps import Sweep

_BYTES_MAX: Final = 500_000_000


class ResultStore:
    """Reads results of a catalog; keeps the latest in memory while they are unchanged."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._lock = threading.Lock()
        self._kept: OrderedDict[Path, tuple[object, Result | Sweep, int]] = OrderedDict()

    def run(self, path: str) -> Result:
        """Return the run in a folder, without its packet events.

        Raises:
            NotFoundError: there is no run.
            UsageError: it is damaged.
        """
        found = self._load(path, "run")
        assert isinstance(found, Result)
        return found

    def sweep(self, path: str) -> Sweep:
        """Return the data set of a sweep.

        Raises:
            NotFoundError: there is none.
            UsageError: it is damaged, or no run of it has ended.
        """
        found = self._load(path, "sweep")
        assert isinstance(found, Sweep)
        return found

    def _load(self, path: str, kind: str) -> Result | Sweep:
        entry = self._catalog.entry(path)
        if entry.problem is not None:
            raise UsageError(entry.problem)
        if entry.kind != kind:
            raise NotFoundError(path)
        folder = self._catalog.folder(path)
        with self._lock:
            kept = self._kept.get(folder)
            # The catalog makes a new entry for a result that was replaced.
            if kept is None or kept[0] is not entry:
                result, size = _read(folder, kind)
                kept = (entry, result, size)
                self._kept[folder] = kept
                self._forget_oldest()
            self._kept.move_to_end(folder)
            return kept[1]

    def _forget_oldest(self) -> None:
        while len(self._kept) > 1 and sum(size for _, _, size in self._kept.values()) > _BYTES_MAX:
            self._kept.popitem(last=False)


def _read(folder: Path, kind: str) -> tuple[Result | Sweep, int]:
    """Return a result and the bytes of its tables."""
    if kind == "run":
        run = Result.load(folder, events=False)
        return run, sum(int(table.estimated_size()) for table in run.tables.values())
    # The runs of --keep-runs are results of their own.
    sweep = Sweep.load(folder, results=False)
    return sweep, int(sweep.flows.estimated_size() + sweep.directions.estimated_size())
