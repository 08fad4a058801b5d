"""The verb ``presets``: links by name."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bentpipe import report, scenario
from bentpipe.cli.options import AsJson, complete_presets, print_json
from bentpipe.errors import UsageError
from bentpipe.plan.presets import preset_names
from bentpipe.results.views import Column, View
from bentpipe.text import choice

if TYPE_CHECKING:
    from bentpipe.scenario.presets import Preset


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
        report.show(_view(known.values()))
    else:
        print(_text(known[name]))


def _view(presets: Iterable[Preset]) -> View:
    """Return the presets, one a row."""
    columns = [Column(name, name) for name in ("preset", "link", "forward", "return")]
    rows = []
    for preset in presets:
        ends = (preset.link["forward"], preset.link["return"])
        shown = (f"{_range(end['rate'])}, {_range(end['delay'])}" for end in ends)
        rows.append([preset.name, preset.title, *shown])
    return View("", columns, rows)


def _range(value: str | Mapping[str, Any]) -> str:
    """Return a value, or the smallest and the largest of those that repeat."""
    if isinstance(value, str):
        return value
    values = sorted(value["values"], key=lambda text: float(text.partition(" ")[0]))
    return f"{values[0]} to {values[-1]}"


def _text(preset: Preset) -> str:
    """Return a preset as YAML for a scenario file, and the source of its numbers."""
    lines = [f"{preset.name}: {preset.title}", "", "link:"]
    for name, values in preset.link.items():
        fields = [f"{field}: {_yaml(value)}" for field, value in values.items()]
        if all(isinstance(values[field], str) for field in ("rate", "delay")):
            lines.append(f"  {name}: {{{', '.join(fields)}}}")
        else:
            lines += [f"  {name}:", *(f"    {field}" for field in fields)]
    return "\n".join([*lines, "", *textwrap.wrap(f"Source: {preset.source}", width=88)])


def _yaml(value: object) -> str:
    """Return a value of a preset in the flow style of YAML."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {_yaml(each)}' for key, each in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_yaml, value))}]"
    return str(value)
