"""Runs in real time are repeated while the machine is late, not for ever, and then named so."""

from __future__ import annotations

import pytest
from late import MAX_TRIES, until_on_time

pytest_plugins = ["pytester"]


def test_a_late_run_is_repeated_until_one_is_on_time() -> None:
    tries = iter(["late", "late", "on time", "late"])
    result = until_on_time(
        lambda: next(tries), lambda each: each if each == "late" else None, pause_s=0
    )
    assert result == "on time"
    assert next(tries) == "late", "no more than needed"


def test_a_machine_that_stays_late_is_the_reason_to_skip() -> None:
    """Expect a bounded number of tries, and a reason that says so."""
    tries: list[int] = []
    with pytest.raises(pytest.skip.Exception) as skipped:
        until_on_time(lambda: tries.append(1), lambda _: "packets were late", pause_s=0)
    assert len(tries) == MAX_TRIES
    why = str(skipped.value)
    assert why == f"late machine: in each of {MAX_TRIES} tries, packets were late"


# The clock moves 700 s each time it is read; tests are repeated for 2,400 s, without a pause.
_HOOKS = """
import functools, itertools
from late import REPEATER, Repeater, add_option as pytest_addoption, pytest_runtest_makereport

def pytest_configure(config):
    clock_s = functools.partial(next, itertools.count(0, 700))
    config.stash[REPEATER] = Repeater(clock_s=clock_s, pause_s=0)
"""
_SUITE = """
import pytest
from late import until_on_time

ran = []

def test_late_once():
    ran.append("late")
    until_on_time(lambda: None, lambda _: "packets were late" if len(ran) == 1 else None, pause_s=0)
    assert ran == ["late", "other", "late"]

def test_other():
    ran.append("other")

def test_always_late():
    until_on_time(lambda: None, lambda _: "packets were late", pause_s=0)

@pytest.mark.parametrize("what", ["root, for routers", "an address"])
def test_that_lacks_something(what):
    pytest.skip(f"needs {what}")
"""


def suite(pytester: pytest.Pytester, *options: str) -> pytest.RunResult:
    """Run tests with the hooks of this project's."""
    pytester.makeconftest(_HOOKS)
    pytester.makepyfile(_SUITE)
    return pytester.runpytest_inprocess(*options)


@pytest.fixture(autouse=True)
def without_xdist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)


def test_a_test_that_must_be_on_time_is_repeated_after_all_others(
    pytester: pytest.Pytester,
) -> None:
    """Given repeats after 700, 1,400 and 2,100 s, expect the one always late to fail then.

    Expect one that lacks something to fail at once, but not one that needs root.
    """
    result = suite(pytester, "--require-labs")
    result.assert_outcomes(passed=2, skipped=4, failed=2)
    result.stdout.fnmatch_lines(["*--require-labs, but late machine: *packets were late*"])
    result.stdout.fnmatch_lines(["*--require-labs, but needs an address*"])


def test_without_the_option_a_late_test_is_skipped_at_once(pytester: pytest.Pytester) -> None:
    suite(pytester).assert_outcomes(passed=1, skipped=4)
