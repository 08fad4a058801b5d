"""Thresholds of runs: their JUnit file, their JSON, and the exit code of those that are missed.

There is no standard for JUnit XML; the elements are those that GitLab, Jenkins and GitHub actions
read (https://github.com/testmoapp/junitxml). A threshold is a test case.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final
from xml.etree import ElementTree as ET

from bentpipe import results, sweeps
from bentpipe.errors import ThresholdError
from bentpipe.results.files import write_file

if TYPE_CHECKING:
    from pathlib import Path

    from bentpipe.results.metric_values import ThresholdCheck
    from bentpipe.results.result import Result
    from bentpipe.sweeps.reader import Sweep

_MAX_LINES: Final = 20
# A threshold with the name of its cell, its value in a line, and whether it is met.
Case = tuple[str, str, bool]
# What XML 1.0 does not allow, even escaped (https://www.w3.org/TR/xml/#charsets).
_NOT_XML: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"


def write_thresholds(
    result: Result, junit: Path | None, further: Sequence[str] = ()
) -> list[ThresholdCheck]:
    """Return the thresholds of a run with their values, and write them as JUnit XML.

    Raises:
        UsageError: a further threshold is wrong, or the file cannot be written.
    """
    checks = results.check_thresholds(result, further)
    if junit is not None:
        error = None if result.state == "completed" else result.invalid or result.ending
        cases = [(check.threshold.text, check.message, check.passed) for check in checks]
        write_file(junit, junit_text(result, cases, error=error))
    return checks


def write_sweep_thresholds(sweep: Sweep, junit: Path | None) -> None:
    """Write the thresholds of the cells of a sweep as JUnit XML.

    Raises:
        UsageError: the file cannot be written.
    """
    if junit is None:
        return
    error = None
    if sweep.interrupted:
        error = "the sweep was interrupted"
    elif sweep.failures.height:
        error = f"{sweep.failures.height:,} runs failed"
    cases = [
        (
            f"{check['cell']}: {check['threshold']}" if check["cell"] else check["threshold"],
            sweeps.cell_message(check),
            check["passed"],
        )
        for check in sweep.thresholds
    ]
    write_file(junit, junit_text(sweep, cases, error=error))


def require_sweep_thresholds(sweep: Sweep, where: str) -> None:
    """Check that all runs of a sweep meet the thresholds; ``where`` are those left out here.

    Raises:
        ThresholdError: naming the cells that miss one, and by how much.
    """
    failed = [check for check in sweep.thresholds if not check["passed"]]
    if failed:
        cells = len({check["point"] for check in sweep.thresholds})
        of_cells = len({check["point"] for check in failed})
        lines = [f"thresholds failed in {of_cells:,} of {cells:,} cells"]
        lines += [sweeps.cell_message(check) for check in failed[:_MAX_LINES]]
        if len(failed) > _MAX_LINES:
            lines.append(f"and {len(failed) - _MAX_LINES:,} more: {where}")
        raise ThresholdError("\n".join(lines))


def thresholds_json(result: Result) -> dict[str, Any]:
    """Return the thresholds of a completed run for JSON; empty if there are none."""
    if result.state != "completed" or not result.manifest["scenario"].get("thresholds"):
        return {}
    return {"thresholds": [check.to_json() for check in results.check_thresholds(result)]}


def require_thresholds(checks: Sequence[ThresholdCheck]) -> None:
    """Check that thresholds are met.

    Raises:
        ThresholdError: naming those that are missed, and by how much.
    """
    failed = [check for check in checks if not check.passed]
    if failed:
        count = f"{len(failed)} of {len(checks)} thresholds failed"
        raise ThresholdError("\n".join([count, *(check.message for check in failed)]))


def junit_text(result: Result | Sweep, cases: Sequence[Case], *, error: str | None = None) -> str:
    """Return the thresholds of a run, or of the cells of a sweep, as JUnit XML.

    ``error`` is why the values do not hold, for runs that are invalid, failed or were interrupted.
    """
    name = _clean(result.manifest["scenario"].get("name") or "Scenario")
    counts = {
        "tests": str(len(cases)),
        "failures": str(0 if error else sum(not passed for _, _, passed in cases)),
        "errors": str(len(cases) if error else 0),
    }
    suites = ET.Element("testsuites", counts)
    suite = ET.SubElement(suites, "testsuite", {"name": name, **counts})
    properties = ET.SubElement(suite, "properties")
    for key in ("bentpipe_version", "seed", "state"):
        # A sweep has several seeds.
        if key in result.manifest:
            value = str(result.manifest[key])
            ET.SubElement(properties, "property", {"name": key, "value": value})
    for title, text, passed in cases:
        found = ET.SubElement(suite, "testcase", {"classname": name, "name": _clean(title)})
        message = _clean(text)
        if error:
            ET.SubElement(found, "error", {"message": _clean(error)})
        elif passed:
            ET.SubElement(found, "system-out").text = message
        else:
            ET.SubElement(found, "failure", {"message": message}).text = message
    ET.indent(suites)
    return ET.tostring(suites, encoding="unicode", xml_declaration=True) + "\n"


def _clean(text: str) -> str:
    return _NOT_XML.sub(_REPLACEMENT, text)
