"""Options that the questions of ``ask`` share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bentpipe.cli.options import complete_links
from bentpipe.plan.presets import preset_names

LinkName = Annotated[
    str,
    typer.Option(
        "--link",
        metavar="|".join([*preset_names(), "FILE"]),
        help="A preset, or a scenario file, of which the link is taken.",
        autocompletion=complete_links,
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PATH=VALUE",
        help="Override a value of the link or the traffic, such as link.forward.rate=4Mbit/s; "
        "repeatable.",
        show_default=False,
    ),
]
Seeds = Annotated[
    int | None,
    typer.Option(
        "--seeds",
        metavar="N",
        min=1,
        help="Runs of each case; by default up to 10, as the time allows.",
        show_default=False,
    ),
]
Report = Annotated[
    Path | None,
    typer.Option(
        "--report",
        metavar="FILE",
        help="Write the answer as a page (HTML) with charts and tables.",
        show_default=False,
    ),
]
