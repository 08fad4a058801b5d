"""Thresholds as a JUnit XML file, which pipelines show: a test case for each threshold.

There is no standard; the elements are those that GitLab, Jenkins and GitHub actions read
(https://github.com/testmoapp/junitxml).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from xml.etree import ElementTree as ET

from bentpipe import sweeps
from bentpipe.results.folder import write_file
from bentpipe.results.result import Result
from bentpipe.results.thresholds import ThresholdCheck

if TYPE_CHECKING:
    from bentpipe.sweeps.sweep import Sweep

# What XML 1.0 does not allow, even escaped (https://www.w3.org/TR/xml/#charsets).
_NOT_XML: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"


def write_junit(
    path: str | Path, result: Result, checks: Sequence[ThresholdCheck], *, error: str | None = None
) -> None:
    """Write the checks of a run as JUnit XML.

    ``error`` is why the values do not hold, for a run that is invalid or was interrupted.

    Raises:
        UsageError: the file cannot be written.
    """
    write_file(Path(path), junit_text(result, checks, error=error))


def write_sweep_junit(path: str | Path, sweep: Sweep, *, error: str | None = None) -> None:
    """Write the thresholds of the cells of a sweep as JUnit XML: a test case for each in each.

    Raises:
        UsageError: the file cannot be written.
    """
    cases = [
        _Case(
            f"{check['cell']}: {check['threshold']}" if check["cell"] else check["threshold"],
            sweeps.cell_message(check),
            check["passed"],
        )
        for check in sweep.thresholds
    ]
    write_file(Path(path), _text(sweep.manifest, ("bentpipe_version", "state"), cases, error))


def junit_text(
    result: Result, checks: Sequence[ThresholdCheck], *, error: str | None = None
) -> str:
    """Return the checks of a run as JUnit XML."""
    cases = [_Case(check.threshold.text, check.message, check.passed) for check in checks]
    return _text(result.manifest, ("bentpipe_version", "seed", "state"), cases, error)


class _Case(NamedTuple):
    name: str
    message: str
    passed: bool


def _text(
    manifest: Mapping[str, Any], keys: Sequence[str], cases: Sequence[_Case], error: str | None
) -> str:
    name = _clean(manifest["scenario"].get("name") or "Scenario")
    failures = 0 if error else sum(not case.passed for case in cases)
    counts = {
        "tests": str(len(cases)),
        "failures": str(failures),
        "errors": str(len(cases) if error else 0),
    }
    suites = ET.Element("testsuites", counts)
    suite = ET.SubElement(suites, "testsuite", {"name": name, **counts})
    properties = ET.SubElement(suite, "properties")
    for key in keys:
        ET.SubElement(properties, "property", {"name": key, "value": str(manifest[key])})
    for case in cases:
        found = ET.SubElement(suite, "testcase", {"classname": name, "name": _clean(case.name)})
        message = _clean(case.message)
        if error:
            ET.SubElement(found, "error", {"message": _clean(error)})
        elif case.passed:
            ET.SubElement(found, "system-out").text = message
        else:
            ET.SubElement(found, "failure", {"message": message}).text = message
    ET.indent(suites)
    return ET.tostring(suites, encoding="unicode", xml_declaration=True) + "\n"


def _clean(text: str) -> str:
    return _NOT_XML.sub(_REPLACEMENT, text)
