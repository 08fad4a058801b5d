"""The verb ``framings``: link layers by name."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from bentpipe import report, scenario
from bentpipe.cli.options import AsJson, complete_framings, print_json
from bentpipe.errors import UsageError
from bentpipe.results.views import Column, View
from bentpipe.text import choice

if TYPE_CHECKING:
    from bentpipe.scenario.framings import FramingPreset

# A TCP ACK, 20 ms of a G.711 call over UDP (160 bytes), and the MTUs of X.25 and of Ethernet.
_IP_BYTES: Final = (40, 188, 576, 1500)
_WIDTH: Final = 88


def framings(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="|".join(scenario.FRAMINGS),
            help="Show this framing, its options and its source.",
            show_default=False,
            autocompletion=complete_framings,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the named framings, or show one with its options."""
    known = scenario.FRAMINGS
    if name is not None and name not in known:
        raise UsageError(f"framing: {choice(name, tuple(known))}")
    if as_json:
        chosen = known.values() if name is None else [known[name]]
        print_json([_framing_facts(preset) for preset in chosen])
    elif name is None:
        report.show(_view(known.values()))
    else:
        print(_framing_text(known[name]))


def _view(framings: Iterable[FramingPreset]) -> View:
    """Return the framings, one a row, with the frame sizes of common packets."""
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
    """Return a framing as a scenario file has it, its options and its source."""
    options = ", ".join(f"{name}: {_yaml(o.default)}" for name, o in preset.options.items())
    written = f"{{kind: {preset.name}, {options}}}" if options else preset.name
    lines = [f"{preset.name}: {preset.title}", "", f"framing: {written}", ""]
    for name, option in preset.options.items():
        allowed = ", ".join(_yaml(value) for value in option.allowed)
        lines += textwrap.wrap(
            f"{name}: {option.meaning}; {allowed}", width=_WIDTH, subsequent_indent="    "
        )
    sizes = ", ".join(f"{size} B takes {bits / 8:.1f} B" for size, bits in _frames(preset).items())
    return "\n".join(
        [
            *lines,
            *([""] if options else []),
            f"On the link {sizes}.",
            "",
            *textwrap.wrap(f"Source: {preset.source}", width=_WIDTH),
        ]
    )


def _framing_facts(preset: FramingPreset) -> dict[str, Any]:
    """Return a framing as plain data, ready for JSON."""
    return {
        "name": preset.name,
        "title": preset.title,
        "source": preset.source,
        "options": {name: asdict(option) for name, option in preset.options.items()},
        "plan": scenario.plan_framing(preset.name, {}),
        "frames": [
            {"ip_bytes": ip_bytes, "link_bits": bits} for ip_bytes, bits in _frames(preset).items()
        ],
    }


def _frames(preset: FramingPreset) -> dict[int, int]:
    """Return the link bits of packets of common sizes, with the default options."""
    framing = scenario.plan_framing(preset.name, {})
    return {ip_bytes: scenario.frame_bits(framing, ip_bytes) for ip_bytes in _IP_BYTES}


def _yaml(value: bool | int | str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
