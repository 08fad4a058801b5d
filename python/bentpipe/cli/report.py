"""The verb ``report``: the HTML report of a result folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from bentpipe import report as reports, results
from bentpipe.cli.options import JUnit, Thresholds, argument, optional
from bentpipe.cli.thresholds import require_folder, require_thresholds, write_thresholds
from bentpipe.errors import InvalidRunError


def report(
    folder: Annotated[Path, argument("FOLDER", "A result folder.")],
    out: Annotated[
        Path | None,
        optional("FILE", "The HTML file; report.html in the folder by default."),
    ] = None,
    threshold: Thresholds = None,
    junit: JUnit = None,
) -> None:
    """Write the HTML report of a result folder. Prints its path.

    With --threshold or --junit, it also checks the thresholds of the scenario and the given ones.
    """
    require_folder(junit)
    path = folder / results.REPORT if out is None else out
    result = results.Result.load(folder)
    wanted = bool(threshold or junit)
    checks = write_thresholds(result, junit, threshold or ()) if wanted else []
    reports.write_run_report(result, path)
    print(path)
    if wanted and result.state != "completed":
        reason = result.invalid or result.ending
        raise InvalidRunError(f"{folder}: the thresholds cannot be checked: {reason}")
    require_thresholds(checks)
