"""Thresholds as a JUnit XML file, which pipelines show: a test case for each threshold.

There is no standard; the elements are those that GitLab, Jenkins and GitHub actions read
(https://github.com/testmoapp/junitxml).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final
from xml.etree import ElementTree as ET

from bentpipe.results.folder import write_file

if TYPE_CHECKING:
    from bentpipe.results.result import Result
    from bentpipe.sweeps.sweep import Sweep

# A threshold with the name of its cell, its value in a line, and whether it is met.
Case = tuple[str, str, bool]
# What XML 1.0 does not allow, even escaped (https://www.w3.org/TR/xml/#charsets).
_NOT_XML: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"


def write_junit(
    path: str | Path, result: Result | Sweep, cases: Sequence[Case], *, error: str | None = None
) -> None:
    """Write the thresholds of a run, or of the cells of a sweep, as JUnit XML.

    ``error`` is why the values do not hold, for runs that are invalid, failed or were interrupted.

    Raises:
        UsageError: the file cannot be written.
    """
    write_file(Path(path), junit_text(result, cases, error=error))


def junit_text(result: Result | Sweep, cases: Sequence[Case], *, error: str | None = None) -> str:
    """Return the thresholds of a run or of a sweep as JUnit XML."""
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
