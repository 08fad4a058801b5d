"""Thresholds of runs and of the cells of sweeps: their JUnit file and their exit code.

There is no standard for JUnit XML; the elements are those that GitLab, Jenkins and GitHub actions
read (https://github.com/testmoapp/junitxml). A threshold is a test case.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final
from xml.etree import ElementTree as ET

from bentpipe import results
from bentpipe.errors import ThresholdError
from bentpipe.results.files import write_file
from bentpipe.text import counted

if TYPE_CHECKING:
    from pathlib import Path

    from bentpipe.results.result import Result
    from bentpipe.sweeps.reader import Sweep

# A check of a run (`ThresholdCheck.to_json`), or of a cell (an element of `Sweep.thresholds`).
Check = Mapping[str, Any]
_MAX_LINES: Final = 20
# What XML 1.0 does not allow, even escaped (https://www.w3.org/TR/xml/#charsets).
_NOT_XML: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def _named(check: Check, text: str) -> str:
    """Return a text about a check after the name of its cell, if it has one."""
    return f"{check['cell']}: {text}" if check.get("cell") else text


def _message(check: Check) -> str:
    """Return what a check says, in a line."""
    seed = ""
    if "seed" in check and not check["passed"]:
        runs = f"; {check['failed_runs']} of {check['runs']} runs" if check["runs"] > 1 else ""
        seed = f" (seed {check['seed']}{runs})"
    return f"{_named(check, check['message'])}{seed}"


def require_thresholds(checks: Sequence[Check]) -> None:
    """Check that the thresholds of a run are met.

    Raises:
        ThresholdError: naming those that are missed, and by how much.
    """
    failed = [_message(check) for check in checks if not check["passed"]]
    if failed:
        count = f"{len(failed)} of {len(checks)} thresholds failed"
        raise ThresholdError("\n".join([count, *failed]))


def require_cell_thresholds(checks: Sequence[Check], where: str) -> None:
    """Check that the thresholds of all cells are met; ``where`` are those left out here.

    Raises:
        ThresholdError: naming the cells that miss one, and by how much.
    """
    failed = [check for check in checks if not check["passed"]]
    if failed:
        cells, of_cells = (len({check["point"] for check in some}) for some in (checks, failed))
        lines = [f"thresholds failed in {of_cells:,} of {cells:,} cells"]
        lines += map(_message, failed[:_MAX_LINES])
        if len(failed) > _MAX_LINES:
            lines.append(f"and {len(failed) - _MAX_LINES:,} more: {where}")
        raise ThresholdError("\n".join(lines))


def write_junit(file: Path | None, result: Result | Sweep, checks: Sequence[Check]) -> None:
    """Write the checks of a run, or of the cells of a sweep, as JUnit XML if there is a file.

    Those of runs that are invalid, failed or were interrupted are errors.

    Raises:
        UsageError: the file cannot be written.
    """
    if file is None:
        return
    error = None
    if isinstance(result, results.Result):
        error = None if result.state == "completed" else result.invalid or result.ending
    elif result.interrupted:
        error = "the sweep was interrupted"
    elif result.failures.height:
        error = f"{counted(result.failures.height, 'run')} failed"
    name = result.manifest["scenario"].get("name") or "Scenario"
    write_file(file, junit_text(name, result.manifest, checks, error))


def junit_text(
    name: str, manifest: Mapping[str, Any], checks: Sequence[Check], error: str | None = None
) -> str:
    """Return the checked thresholds as JUnit XML, in a suite called ``name``.

    ``error`` is why no value is valid; then all thresholds are errors. The version, the seed and
    the state are those of the manifest.
    """
    name = _clean(name)
    counts = {
        "tests": str(len(checks)),
        "failures": str(0 if error else sum(not check["passed"] for check in checks)),
        "errors": str(len(checks) if error else 0),
    }
    suites = ET.Element("testsuites", counts)
    suite = ET.SubElement(suites, "testsuite", {"name": name, **counts})
    properties = ET.SubElement(suite, "properties")
    for key in ("bentpipe_version", "seed", "state"):
        # A sweep has several seeds.
        if key in manifest:
            ET.SubElement(properties, "property", {"name": key, "value": str(manifest[key])})
    for check in checks:
        title, message = _clean(_named(check, check["threshold"])), _clean(_message(check))
        case = ET.SubElement(suite, "testcase", {"classname": name, "name": title})
        if error:
            ET.SubElement(case, "error", {"message": _clean(error)})
        elif check["passed"]:
            ET.SubElement(case, "system-out").text = message
        else:
            ET.SubElement(case, "failure", {"message": message}).text = message
    ET.indent(suites)
    return ET.tostring(suites, encoding="unicode", xml_declaration=True) + "\n"


def _clean(text: str) -> str:
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)
