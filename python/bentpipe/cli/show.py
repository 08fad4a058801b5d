"""The verb ``show``: links, framings, metrics, studies, the schema, exports of scenarios."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeVar, get_args

import typer

from bentpipe import _core, cli, export, plan, scenario
from bentpipe.cli import options
from bentpipe.cli.lazy import LazyGroup, examples_text
from bentpipe.cli.options import argument, complete_links, note, option, print_json
from bentpipe.errors import UsageError
from bentpipe.metrics import METRICS, metrics_named
from bentpipe.plan.presets import link_document, preset_plans
from bentpipe.results.views import Column, View, records
from bentpipe.scenario.tables import read_table
from bentpipe.text import choice, did_you_mean

if TYPE_CHECKING:
    from bentpipe.scenario.framings import FramingPreset
    from bentpipe.scenario.tables import Preset

T = TypeVar("T")

# As CITATION.cff, which a test compares; the license as SPDX has it.
_AUTHORS: Final = "The bentpipe authors"
_TITLE: Final = "bentpipe: simulate and emulate traffic over a satellite link, packet by packet"
_LICENSE: Final = "Apache-2.0"
# The year of this version. `cite` gives no URL and no DOI, because no version has one.
_YEAR: Final = 2026

# A TCP ACK, 20 ms of a G.711 call (160 bytes) over RTP, and the MTUs of X.25 and of Ethernet.
_IP_BYTES: Final = (40, 200, 576, 1500)
# In characters.
_WIDTH: Final = 88

ExportFormat = Literal["tc", "sat.toml", "ns-3"]
End = Literal["hub", "terminal"]


class _ShowGroup(LazyGroup):
    """The sub-commands of ``show``; a scenario needs the name of one."""

    def resolve_command(self, context: Any, arguments: list[str]) -> Any:
        """Find a sub-command; for a scenario file, say which one it is for."""
        first = arguments[0]
        is_scenario = first in preset_plans() or Path(first).suffix or Path(first).is_file()
        is_exported = any(each.partition("=")[0] == "--as" for each in arguments)
        if is_exported and is_scenario and first not in self.list_commands(context):
            written = " ".join(arguments)
            raise UsageError(f'command: read "{first}"; write: bentpipe show scenario {written}')
        return super().resolve_command(context, arguments)


show_app = typer.Typer(cls=_ShowGroup, rich_markup_mode=None)


def _name(known: Iterable[str], text: str) -> Any:
    """Return the argument that is one of these names."""
    return argument("|".join(known), text, lambda: list(known))


def _list(
    kind: str,
    known: Mapping[str, T],
    name: str | None,
    json_of: Callable[[T], Any] | None,
    view: Callable[[Iterable[T]], View],
    text: Callable[[T], str],
) -> None:
    """Print all, or the one with a name: as JSON, in a table, or with its source."""
    if name is not None and name not in known:
        raise UsageError(f"{kind}: {choice(name, tuple(known))}")
    if json_of is not None:
        print_json(
            [json_of(entry) for entry in (known.values() if name is None else [known[name]])]
        )
    elif name is None:
        cli.print_views(view(known.values()))
    else:
        print(text(known[name]))


@show_app.command(epilog=examples_text("bentpipe show presets", "bentpipe show presets geo"))
def presets(
    name: Annotated[str | None, _name(preset_plans(), "Show this preset and its source.")] = None,
    as_json: options.AsJson = False,
) -> None:
    """List the named links, or show one with its source."""
    _list(
        "preset", scenario.PRESETS, name, asdict if as_json else None, _presets_view, _preset_text
    )


def _presets_view(presets: Iterable[Preset]) -> View:
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
    # They have one unit.
    values = sorted(value["values"], key=lambda text: float(text.partition(" ")[0]))
    return f"{values[0]} to {values[-1]}"


def _preset_text(preset: Preset) -> str:
    lines = [f"{preset.name}: {preset.title}", "", "link:"]
    for name, values in preset.link.items():
        fields = [f"{field}: {_flow_yaml(value)}" for field, value in values.items()]
        if all(isinstance(values[field], str) for field in ("rate", "delay")):
            lines.append(f"  {name}: {{{', '.join(fields)}}}")
        else:
            lines += [f"  {name}:", *(f"    {field}" for field in fields)]
    texts = {"Source": preset.source, "Compared": preset.compared}
    for name, text in texts.items():
        lines += ["", *textwrap.wrap(f"{name}: {text}", width=_WIDTH)] if text else []
    return "\n".join(lines)


def _flow_yaml(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {_flow_yaml(nested)}' for key, nested in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_flow_yaml, value))}]"
    return str(value)


@show_app.command(epilog=examples_text("bentpipe show framings", "bentpipe show framings ppp"))
def framings(
    name: Annotated[
        str | None,
        _name(read_table("framings"), "Show this framing, its options and its source."),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """List the named framings, or show one with its options."""
    json_of = _framing_facts if as_json else None
    _list("framing", scenario.FRAMINGS, name, json_of, _framings_view, _framing_text)


def _framings_view(framings: Iterable[FramingPreset]) -> View:
    columns = [
        Column("framing", "framing"),
        Column("title", "link layer"),
        *(Column(f"of_{size}_bytes", f"{size} B", text="{:.1f}".format) for size in _IP_BYTES),
    ]
    rows = [
        [preset.name, preset.title, *(bits / 8 for bits in _frames(preset).values())]
        for preset in framings
    ]
    title = "Link bytes of an IP packet of the given size, with the default options"
    return View(title, columns, rows)


def _framing_text(preset: FramingPreset) -> str:
    defaults = ", ".join(f"{name}: {_flow_yaml(o.default)}" for name, o in preset.options.items())
    written = f"{{kind: {preset.name}, {defaults}}}" if defaults else preset.name
    lines = [f"{preset.name}: {preset.title}", "", f"framing: {written}", ""]
    for name, setting in preset.options.items():
        allowed = ", ".join(map(_flow_yaml, setting.allowed))
        lines += textwrap.wrap(
            f"{name}: {setting.meaning}; {allowed}", width=_WIDTH, subsequent_indent="    "
        )
    sizes = ", ".join(f"{size} B takes {bits / 8:.1f} B" for size, bits in _frames(preset).items())
    lines += [*([""] if defaults else []), f"On the link {sizes}.", ""]
    return "\n".join([*lines, *textwrap.wrap(f"Source: {preset.source}", width=_WIDTH)])


def _framing_facts(preset: FramingPreset) -> dict[str, Any]:
    return {
        "name": preset.name,
        "title": preset.title,
        "source": preset.source,
        "options": {
            name: {"meaning": option.meaning, "allowed": option.allowed, "default": option.default}
            for name, option in preset.options.items()
        },
        "plan": scenario.plan_framing(preset.name, {}),
        "frames": [{"ip_bytes": size, "link_bits": bits} for size, bits in _frames(preset).items()],
    }


def _frames(preset: FramingPreset) -> dict[int, int]:
    """Return the link bits of packets of common sizes, with the default options."""
    framing = scenario.plan_framing(preset.name, {})
    return {ip_bytes: scenario.frame_bits(framing, ip_bytes) for ip_bytes in _IP_BYTES}


@show_app.command(epilog=examples_text("bentpipe show studies"))
def studies(as_json: options.AsJson = False) -> None:
    """List the studies and the publications that they reproduce."""
    columns = [Column("name", "study"), Column("title", "title"), Column("source", "source")]
    known = import_module("bentpipe.studies").STUDIES.values()
    view = View("", columns, [(study.name, study.title, study.source) for study in known])
    if as_json:
        print_json(records(view))
    else:
        cli.print_views(view)


@show_app.command(epilog=examples_text("bentpipe show metrics", "bentpipe show metrics mos"))
def metrics(
    name: Annotated[
        str | None,
        argument("NAME", "Show those of this name or title.", lambda: [m.name for m in METRICS]),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """List the metrics of results with their definitions."""
    shown = METRICS if name is None else metrics_named(name)
    if name is not None and not shown:
        known = tuple(dict.fromkeys(text for m in METRICS for text in (m.name, m.title)))
        near = did_you_mean(name, known)
        raise UsageError(f'metric: read "{name}"; bentpipe show metrics lists all{near}')
    columns = [Column(name, name) for name in ("metric", "title", "definition", "better")]
    rows = [
        (f"{metric.table}.{metric.name}", metric.label, metric.meaning, metric.better)
        for metric in shown
    ]
    view = View("", columns, rows)
    if as_json:
        print_json(records(view))
    else:
        cli.print_views(view)


@show_app.command(epilog=examples_text("bentpipe show schema > scenario.schema.json"))
def schema() -> None:
    """Print the JSON Schema of scenario files, for editors."""
    print_json(scenario.json_schema())


# --- scenarios for other tools --------------------------------------------------------------------


@show_app.command(
    "scenario",
    epilog=examples_text(
        "bentpipe show scenario geo --as tc > tc.sh",
        "bentpipe show scenario scenarios/geo-pep.yaml --as sat.toml > sat.toml",
        "bentpipe show scenario scenarios/geo-bulk.yaml --as ns-3 > link.cc",
    ),
)
def scenario_as(
    # No path, which would be normal: the file ./geo is no preset.
    scenario_file: Annotated[
        str,
        argument(
            "SCENARIO", "A scenario file (YAML), - for standard input, or a preset.", complete_links
        ),
    ],
    export_format: Annotated[
        ExportFormat,
        option(
            "|".join(get_args(ExportFormat)),
            "tc: a script for a Linux router. sat.toml: a configuration of bentpipe gateway. "
            "ns-3: a program in C++.",
            "--as",
        ),
    ],
    end: Annotated[
        End | None,
        option("|".join(get_args(End)), "The gateway of sat.toml; by default the only one."),
    ] = None,
    settings: options.Settings = None,
) -> None:
    """Print a scenario for tc(8), for bentpipe gateway or for ns-3.

    The link alone is enough for tc and the gateway; ns-3 needs traffic and duration, too. What a
    format cannot express is in comments of its header, each with its consequence.
    """
    if end is not None and export_format != "sat.toml":
        raise UsageError("--end: only for --as sat.toml, the configuration of one gateway")
    resolved = plan.Plan.resolve(_exported(scenario_file, export_format, settings or ()))
    for warning in resolved.warnings:
        note(f"warning: {warning}")
    if export_format == "tc":
        text = export.tc_script(resolved)
    elif export_format == "ns-3":
        text = export.ns3_script(resolved)
    else:
        text = export.sat_toml(resolved, end)
    print(text, end="")


def _exported(name: str, export_format: ExportFormat, settings: Sequence[str]) -> scenario.Scenario:
    """Return the scenario to export; what only ns-3 needs may be missing for others."""
    preset = scenario.PRESETS.get(name)
    if export_format == "ns-3":
        if preset is not None:
            message = "a preset has no traffic to simulate; write a scenario with it"
            raise UsageError(f"--as ns-3: {message} (link: {{preset: {name}}})")
        return scenario.Scenario.load(name, settings)
    document = link_document(name)
    if preset is not None:
        document.data["name"] = preset.title
    return scenario.Scenario.from_document(document, settings)


@show_app.command(epilog=examples_text("bentpipe show cite"))
def cite(as_json: options.AsJson = False) -> None:
    """Print how to cite bentpipe: BibTeX, and a text."""
    parts = {
        "authors": _AUTHORS,
        "title": _TITLE,
        "version": _core.version(),
        "year": _YEAR,
        "license": _LICENSE,
    }
    if as_json:
        print_json(parts)
        return
    version = f"Version {parts['version']}"
    print(
        f"@misc{{bentpipe,\n  author = {{{{{_AUTHORS}}}}},\n  title = {{{{{_TITLE}}}}},\n"
        f"  year = {{{_YEAR}}},\n  howpublished = {{Computer software}},\n"
        f"  note = {{{version}}}\n}}\n\n"
        f"{_AUTHORS} ({_YEAR}). {_TITLE}. {version}. Computer software, {_LICENSE}."
    )
