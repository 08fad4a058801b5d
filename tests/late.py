"""Repeat what a busy machine can spoil: a run in real time whose packets were late.

A run is repeated at once. If the machine stays late, its test is repeated after all others.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator
from typing import Final, TypeVar

import pytest

# What `until_on_time` says of a machine that stays late.
LATE: Final = "late machine: "
MAX_TRIES: Final = 4
# Load that comes in bursts, such as a compiler's, may have passed after this time.
_PAUSE_S: Final = 1.0
# Load of another machine on the same host may last for many minutes. Tests are repeated until this
# time after the first. With the build and the other tests that is within 90 minutes.
_REPEAT_FOR_S: Final = 2_400.0
_REPEAT_PAUSE_S: Final = 20.0

T = TypeVar("T")


def until_on_time(
    attempt: Callable[[], T], why_late: Callable[[T], str | None], *, pause_s: float = _PAUSE_S
) -> T:
    """Return the first result of ``attempt`` for which ``why_late`` returns None.

    After `MAX_TRIES` late results the test is skipped, or fails if labs are required
    (``--require-labs``).
    """
    why: str | None = None
    for number in range(MAX_TRIES):
        time.sleep(pause_s * number)
        result = attempt()
        why = why_late(result)
        if why is None:
            return result
    pytest.skip(f"{LATE}in each of {MAX_TRIES} tries, {why}")


class Repeater:
    """Repeats tests after all others, while there is time."""

    def __init__(
        self, *, clock_s: Callable[[], float] = time.monotonic, pause_s: float = _REPEAT_PAUSE_S
    ) -> None:
        self._clock_s = clock_s
        self._pause_s = pause_s
        self._until_s = clock_s() + _REPEAT_FOR_S
        self._repeated: set[str] = set()

    def again(self, item: pytest.Item) -> bool:
        """Return whether a test will be repeated.

        Processes of pytest-xdist cannot: their tests are chosen elsewhere.
        """
        if self._clock_s() >= self._until_s or "PYTEST_XDIST_WORKER" in os.environ:
            return False
        self._repeated.add(item.nodeid)
        item.session.items.append(item)
        return True

    def wait(self, item: pytest.Item) -> None:
        """Pause before a test that was late."""
        if item.nodeid in self._repeated:
            time.sleep(self._pause_s)


REPEATER = pytest.StashKey[Repeater]()
# Why a test is skipped also if labs are required: whoever is not root cannot become it, and runs
# all other tests. Whatever else keeps a test from running can be installed, allowed or repeated.
_ALLOWED: Final = ("needs root, ", "the kernel has no ")


def add_option(parser: pytest.Parser) -> None:
    """Add the option of machines on which no test of labs may be skipped."""
    parser.addoption(
        "--require-labs",
        action="store_true",
        help="Fail a test that would be skipped, unless it needs root or another kernel.",
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail what is skipped for something that is required, or repeat it later."""
    report = yield
    skipped = None if call.excinfo is None else call.excinfo.value
    if report.skipped and isinstance(skipped, pytest.skip.Exception):
        why = str(skipped.msg)
        required = item.config.getoption("--require-labs") and not why.startswith(_ALLOWED)
        if required and not (why.startswith(LATE) and item.config.stash[REPEATER].again(item)):
            report.outcome, report.longrepr = "failed", f"--require-labs, but {why}"
    return report
