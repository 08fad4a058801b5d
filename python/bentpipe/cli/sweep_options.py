"""The options of the verb ``sweep``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bentpipe.cli.options import Engine, complete_scenarios

ScenarioOrSweep = Annotated[
    Path | None,
    typer.Argument(
        metavar="SCENARIO",
        help="A scenario file (YAML), or a sweep file, which names one.",
        show_default=False,
        autocompletion=complete_scenarios,
    ),
]
Vary = Annotated[
    list[str] | None,
    typer.Option(
        "--vary",
        metavar="PATH=V1,V2,...",
        help="Values of a field; repeat for all combinations. A range is lin(FROM, TO, POINTS) "
        "or log(FROM, TO, POINTS). A comma in quotes or brackets belongs to the value.",
        show_default=False,
    ),
]
Seeds = Annotated[
    int | None,
    typer.Option(
        "--seeds",
        metavar="N",
        min=1,
        help="Seeds of each combination, from the scenario's on; by default 1, or 5 with "
        "--until-ci.",
        show_default=False,
    ),
]
UntilCi = Annotated[
    str | None,
    typer.Option(
        "--until-ci",
        metavar="PERCENT",
        help="Add seeds to each combination until the 95 % confidence interval of the mean is "
        "this narrow: ± PERCENT of the mean.",
        show_default=False,
    ),
]
Metric = Annotated[
    str,
    typer.Option("--metric", metavar="NAME", help="The metric of --until-ci, a column of flows."),
]
MaxSeeds = Annotated[
    int,
    typer.Option("--max-seeds", metavar="N", min=2, help="The most seeds that --until-ci gives."),
]
SweepOut = Annotated[
    str | None,
    typer.Option(
        "--out",
        metavar="FOLDER",
        help="Write the data set to this folder; replaces an earlier sweep. A URL such as "
        "s3://BUCKET/NAME is shared storage, to which workers write the runs of --keep-runs.",
        show_default=False,
    ),
]
Resume = Annotated[
    str | None,
    typer.Option(
        "--resume",
        metavar="FOLDER",
        help="Continue the unfinished sweep of this folder.",
        show_default=False,
    ),
]
KeepRuns = Annotated[
    bool, typer.Option("--keep-runs", help="Keep the result folder of each run, too.")
]
SweepEngine = Annotated[
    Engine,
    typer.Option(
        "--engine", help="emulate: in real time, with the kernel's TCP; late runs are repeated."
    ),
]
