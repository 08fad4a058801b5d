"""What a unit test may not do: sleep, start a process, or compute for seconds.

Tests with a marker of another kind (see pyproject.toml) may.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final
from unittest import mock

import pytest

# Processor time. A test should take a second at most; beside other work on the same cores, which
# share their units, one took 1.6 times as long. That of imports is left out: whichever test is the
# first of its process to need a module would pay for it.
CPU_S_MAX: Final = 3.0
OTHER_KINDS: Final = ("system", "lab", "real_time", "thorough")
_EVENTS: Final = {
    "time.sleep": "sleeps",
    "subprocess.Popen": "starts a process",
    "os.posix_spawn": "starts a process",
    "os.fork": "starts a process",
    "os.exec": "replaces its process",
}


class _Watch:
    """Collects what the running unit test does, and fixtures of its own do for it."""

    def __init__(self) -> None:
        self.found: set[str] | None = None
        sys.addaudithook(self._on_event)

    def _on_event(self, event: str, _: tuple[Any, ...]) -> None:
        if self.found is not None and event in _EVENTS:
            self.found.add(_EVENTS[event])

    @contextmanager
    def watching(self) -> Iterator[set[str]]:
        self.found = set()
        try:
            yield self.found
        finally:
            self.found = None


# A hook stays for the life of the process, so there is one.
_WATCH: Final = _Watch()


class _ImportTime:
    """Adds up the processor time of imports while it is patched into the import system."""

    def __init__(self) -> None:
        self.total_s = 0.0
        self._is_importing = False
        # All imports of modules that are not loaded yet call it.
        bootstrap = sys.modules["_frozen_importlib"]
        self._find_and_load = vars(bootstrap)["_find_and_load"]
        self.patched = mock.patch.object(bootstrap, "_find_and_load", self._timed)

    def _timed(self, *arguments: Any) -> Any:
        if self._is_importing:
            return self._find_and_load(*arguments)
        started_s, self._is_importing = time.process_time(), True
        try:
            return self._find_and_load(*arguments)
        finally:
            self.total_s += time.process_time() - started_s
            self._is_importing = False


def is_unit(item: pytest.Item) -> bool:
    """Return whether a test is no check of files, and has no marker of another kind."""
    return item.path.parent.name != "check" and not any(
        item.get_closest_marker(kind) for kind in OTHER_KINDS
    )


@contextmanager
def refusing_what_is_not_unit(item: pytest.Item) -> Iterator[None]:
    """Fail a unit test that sleeps, starts a process or takes long."""
    if not is_unit(item):
        yield
        return
    imports, started_s = _ImportTime(), time.process_time()
    with imports.patched, _WATCH.watching() as found:
        yield
    used_s = time.process_time() - started_s - imports.total_s
    if used_s > CPU_S_MAX:
        found.add(f"takes {used_s:.1f} s of processor time")
    if found:
        pytest.fail(f"a unit test {' and '.join(sorted(found))}: mark it as system", pytrace=False)
