"""For tests with pytest: programs behind a link in real time, and thresholds.

pytest loads this module by itself (entry point ``pytest11``), so that each test can have the
fixture ``bentpipe_link``. It loads no other module of bentpipe until a test uses it.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

import bentpipe

if TYPE_CHECKING:
    from bentpipe import Lab, Result, Scenario

__all__ = ["assert_threshold", "bentpipe_link"]

_REQUIRE: Final = "--bentpipe-require-labs"
# A report is at most 0.1 s old.
_NEXT_REPORT_S: Final = 0.2


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option for machines on which no test of a link may be skipped."""
    parser.getgroup("bentpipe").addoption(
        _REQUIRE,
        action="store_true",
        help="Fail, not skip, a test of bentpipe_link where there can be no lab.",
    )


@pytest.fixture
def bentpipe_link(request: pytest.FixtureRequest) -> Iterator[Callable[..., Lab]]:
    """Return a function that puts programs behind a link: ``bentpipe_link("geo")``.

    Its arguments are those of `bentpipe.Lab`, and it returns one: ``lab.run("island", [...])`` runs
    a program behind the link, ``lab.spawn`` starts one, ``lab.report()`` has the statistics. The
    labs end with the test. A lab that was late, or carried no packet, gives a warning or, with
    ``strict=True``, an error of the test, because its times do not hold. Where there can be no lab,
    the test is skipped.
    """
    started: list[tuple[Lab, bool]] = []

    def start(
        *links: Scenario | str | Path | Mapping[str, Any], strict: bool = False, **options: Any
    ) -> Lab:
        try:
            lab = bentpipe.Lab(*links, **options)
        except bentpipe.errors.MachineError as error:
            if request.config.getoption(_REQUIRE):
                raise
            pytest.skip(f"no labs here: {error}")
        started.append((lab, strict))
        return lab

    yield start
    late = [(_why_invalid(lab), strict) for lab, strict in started]
    for reason, strict in late:
        if reason is not None and strict:
            pytest.fail(f"bentpipe_link: the run is invalid: {reason}", pytrace=False)
        if reason is not None:
            warnings.warn(f"bentpipe_link: the run is invalid: {reason}", stacklevel=1)


def _why_invalid(lab: Lab) -> str | None:
    """End a lab; return why its run is invalid, None if it is valid or the test has ended it."""
    try:
        report = lab.report()
        if report.get("fault") == "idle":
            # The only packets may have left since.
            time.sleep(_NEXT_REPORT_S)
            report = lab.report()
        reason: str | None = report["invalid"]
    except bentpipe.errors.UsageError:
        return None
    finally:
        lab.close()
    return reason


def assert_threshold(result: Result | str | Path, *thresholds: str) -> None:
    """Fail unless a result, or the one in a folder, meets thresholds.

    They are written as in a scenario: ``"flows.goodput_bps.p5 >= 2 Mbit/s"``. Without any, they are
    those of the scenario. The message has the value, and by how much it misses the limit.

    Raises:
        AssertionError: a threshold is missed.
        bentpipe.errors.UsageError: a threshold is wrong, or there is none.
        bentpipe.errors.InvalidRunError: the run was not completed, so that its values do not hold.
    """
    __tracebackhide__ = True
    run = bentpipe.Result.load(result) if isinstance(result, str | Path) else result
    if run.state != "completed":
        raise bentpipe.errors.InvalidRunError(f"the run is {run.ending}", result=run)
    checks = bentpipe.check_thresholds(run, thresholds)
    if thresholds:
        checks = checks[-len(thresholds) :]
    if not checks:
        message = "no thresholds: name one, or write thresholds in the scenario"
        raise bentpipe.errors.UsageError(message)
    missed = [check.message for check in checks if not check.passed]
    if missed:
        raise AssertionError("\n".join(missed))
