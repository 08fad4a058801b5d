"""Results that were read, for the requests that follow: the latest ones, up to a size."""

from __future__ import annotations

import threading
from collections import OrderedDict
from pathlib import Path
from typing import Final

from bentpipe.dashboard.catalog import Catalog, NotFoundError
from bentpipe.errors import UsageError
from bentpipe.results.result import Result

_BYTES_MAX: Final = 500_000_000


class ResultStore:
    """Reads results of a catalog; keeps the latest in memory while they are unchanged."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._lock = threading.Lock()
        self._kept: OrderedDict[Path, tuple[object, Result, int]] = OrderedDict()

    def load(self, path: str) -> Result:
        """Return the run in a folder, without its packet events.

        Raises:
            NotFoundError: there is no run.
            UsageError: it is damaged.
        """
        entry = self._catalog.entry(path)
        if entry.problem is not None:
            raise UsageError(entry.problem)
        if entry.kind != "run":
            raise NotFoundError(path)
        folder = self._catalog.folder(path)
        with self._lock:
            kept = self._kept.get(folder)
            # The catalog makes a new entry for a result that was replaced.
            if kept is None or kept[0] is not entry:
                result = Result.load(folder, events=False)
                size = sum(int(table.estimated_size()) for table in result.tables.values())
                kept = (entry, result, size)
                self._kept[folder] = kept
                self._forget_oldest()
            self._kept.move_to_end(folder)
            return kept[1]

    def _forget_oldest(self) -> None:
        while len(self._kept) > 1 and sum(size for _, _, size in self._kept.values()) > _BYTES_MAX:
            self._kept.popitem(last=False)
