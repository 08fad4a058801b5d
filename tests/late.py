"""Repeat what a busy machine can spoil: a run in real time whose packets were late."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

import pytest

MAX_TRIES: Final = 5
# Load that comes in bursts, such as a compiler's, may have passed after this time.
_PAUSE_S: Final = 1.0

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
    pytest.skip(f"late machine: in each of {MAX_TRIES} tries, {why}")
