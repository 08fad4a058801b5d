"""The verb ``compare``: settings compared with the first one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bentpipe import comparison as comparisons, report as reports
from bentpipe.cli.options import (
    AsJson,
    argument,
    complete_scenarios,
    fraction,
    note,
    optional,
    print_json,
)
from bentpipe.cli.progress import Progress
from bentpipe.cli.thresholds import require_folder


def compare(
    sources: Annotated[
        list[Path],
        argument("SOURCE", "Two or more settings; the first is the baseline.", complete_scenarios),
    ],
    metric: Annotated[
        list[str] | None,
        optional(
            "NAME",
            "A metric, such as flows.download.goodput_bps.p5; repeatable. By default those of "
            "each entry of traffic and each direction.",
        ),
    ] = None,
    by: Annotated[
        str | None,
        optional("PATH", "Compare the values of this field of one sweep."),
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
        optional("FILE", "Write a report with plots (HTML)."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare settings: differences with 95 % intervals.

    A setting is a result folder, the folder of a sweep, or a scenario file, which is simulated
    first. Runs are paired by seed. The sample is the run: two results of one run each have no
    interval.
    """
    require_folder(report)
    sought = fraction(difference, "--difference")
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
