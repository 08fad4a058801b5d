"""The verb ``report``: the HTML report of a result folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bentpipe import report as reports, results


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
    reports.write_run_report(results.Result.load(folder), path)
    print(path)
