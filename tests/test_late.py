"""Runs in real time are repeated while the machine is late, not for ever, and then named so."""

from __future__ import annotations

import pytest
from conftest import _LACKING
from late import MAX_TRIES, until_on_time


def test_a_late_run_is_repeated_until_one_is_on_time() -> None:
    tries = iter(["late", "late", "on time", "late"])
    result = until_on_time(
        lambda: next(tries), lambda each: each if each == "late" else None, pause_s=0
    )
    assert result == "on time"
    assert next(tries) == "late", "no more than needed"


def test_a_machine_that_stays_late_is_the_reason_to_skip() -> None:
    """Expect a bounded number of tries, and a reason that --require-labs turns into a failure."""
    tries: list[int] = []
    with pytest.raises(pytest.skip.Exception) as skipped:
        until_on_time(lambda: tries.append(1), lambda _: "packets were late", pause_s=0)
    assert len(tries) == MAX_TRIES
    why = str(skipped.value)
    assert why == f"late machine: in each of {MAX_TRIES} tries, packets were late"
    assert _LACKING.match(why)
