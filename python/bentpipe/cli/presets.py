"""The verb ``presets``: links by name."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from bentpipe import report, scenario
from bentpipe.cli.options import AsJson, complete_presets, print_json
from bentpipe.errors import UsageError
from bentpipe.plan.presets import preset_names
from bentpipe.text import choice


def presets(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="|".join(preset_names()),
            help="Show this preset and its source.",
            show_default=False,
            autocompletion=complete_presets,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the named links, or show one with its source."""
    known = scenario.PRESETS
    if name is not None and name not in known:
        raise UsageError(f"preset: {choice(name, tuple(known))}")
    if as_json:
        print_json([asdict(each) for each in (known.values() if name is None else [known[name]])])
    elif name is None:
        report.show(report.presets_table(known))
    else:
        print(report.preset_text(known[name]))
