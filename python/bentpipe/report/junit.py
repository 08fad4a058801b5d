"""Thresholds as a JUnit XML file, which pipelines show: a test case for each threshold.

There is no standard; the elements are those that GitLab, Jenkins and GitHub actions read
(https://github.com/testmoapp/junitxml).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from xml.etree import ElementTree as ET

from bentpipe.results.folder import write_text
from bentpipe.results.result import Result
from bentpipe.results.thresholds import ThresholdCheck

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
    write_text(Path(path), junit_text(result, checks, error=error))


def junit_text(
    result: Result, checks: Sequence[ThresholdCheck], *, error: str | None = None
) -> str:
    """Return the checks of a run as JUnit XML."""
    name = _clean(result.manifest["scenario"].get("name") or "Scenario")
    failures = 0 if error else sum(not check.passed for check in checks)
    counts = {
        "tests": str(len(checks)),
        "failures": str(failures),
        "errors": str(len(checks) if error else 0),
    }
    suites = ET.Element("testsuites", counts)
    suite = ET.SubElement(suites, "testsuite", {"name": name, **counts})
    properties = ET.SubElement(suite, "properties")
    for key in ("bentpipe_version", "seed", "state"):
        value = str(result.manifest[key])
        ET.SubElement(properties, "property", {"name": key, "value": value})
    for check in checks:
        text = _clean(check.threshold.text)
        case = ET.SubElement(suite, "testcase", {"classname": name, "name": text})
        message = _clean(check.message)
        if error:
            ET.SubElement(case, "error", {"message": _clean(error)})
        elif check.passed:
            ET.SubElement(case, "system-out").text = message
        else:
            ET.SubElement(case, "failure", {"message": message}).text = message
    ET.indent(suites)
    return ET.tostring(suites, encoding="unicode", xml_declaration=True) + "\n"


def _clean(text: str) -> str:
    return _NOT_XML.sub(_REPLACEMENT, text)
