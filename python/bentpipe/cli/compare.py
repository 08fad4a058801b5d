"""The verb ``compare``: settings compared with the first one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Final

import typer

from bentpipe import comparison as comparisons, report as reports
from bentpipe.cli.options import AsJson, complete_scenarios, note, print_json
from bentpipe.cli.progress import Progress
from bentpipe.errors import UsageError

_PERCENTAGE: Final = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*%\s*", re.ASCII)


def compare(
    sources: Annotated[
        list[Path],
        typer.Argument(
            metavar="A B...",
            help="Result folders, sweep folders or scenario files; A is the baseline.",
            show_default=False,
            autocompletion=complete_scenarios,
        ),
    ],
    metric: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A metric, such as flows.download.goodput_bps.p5; repeatable. By default those of "
            "each entry of traffic and each direction.",
            show_default=False,
        ),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="Compare the values of this field of one sweep.",
            show_default=False,
        ),
    ] = None,
    seeds: Annotated[
        int, typer.Option(metavar="N", min=1, help="The seeds of each scenario file.")
    ] = 30,
    difference: Annotated[
        str,
        typer.Option(
            metavar="PERCENT", help="State the seeds that would show a difference of this size."
        ),
    ] = "5%",
    report: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a report with plots (HTML).", show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare results, sweeps or scenarios: differences with 95 % intervals.

    Runs are paired by seed. Scenario files are simulated first. The sample is the run: two results
    of one run each have no interval.
    """
    if report is not None and not report.parent.is_dir():
        raise UsageError(f"{report}: cannot be written: there is no folder {report.parent}")
    sought = _share(difference)
    with Progress("simulating") as progress:
        found = comparisons.compare(
            *sources,
            metrics=metric,
            by=by,
            seeds=seeds,
            difference=sought,
            progress=progress.count,
        )
    if report is not None:
        reports.write_comparison(found, report)
        note(f"wrote {report}")
    if as_json:
        print_json(found.to_json())
    else:
        reports.show(*reports.comparison_tables(found))


def _share(text: str) -> float:
    match = _PERCENTAGE.fullmatch(text)
    if match is None or not float(match[1]):
        raise UsageError(f'--difference: read "{text}"; expected a percentage above zero: "5%"')
    return float(match[1]) / 100
