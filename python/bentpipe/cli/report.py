"""The verb ``report``: the HTML report of a result folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bentpipe import report as reports, results
from bentpipe.errors import UsageError

if TYPE_CHECKING:
    from bentpipe.results.result import Result


def report(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="A result folder.", show_default=False)
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The HTML file; report.html in the folder by default.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Write the HTML report of a result folder. Prints its path."""
    path = folder / results.REPORT if out is None else out
    write_report(results.Result.load(folder), path)
    print(path)


def write_report(result: Result, path: Path) -> None:
    """Write the HTML report of a run.

    Raises:
        UsageError: the file cannot be written.
    """
    try:
        reports.write_run_report(result, path)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror or error}") from None
