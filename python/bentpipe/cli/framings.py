"""What the verb ``framings`` prints."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from bentpipe.scenario.framings import FramingPreset, frame_bits, plan_framing

if TYPE_CHECKING:
    from rich.table import Table

# An acknowledgement, 20 ms of a telephone call over UDP (160 bytes), and the largest packets of
# X.25 or dial-up lines and of Ethernet.
_IP_BYTES: Final = (40, 188, 576, 1500)
_WIDTH: Final = 88


def framings_table(framings: Mapping[str, FramingPreset]) -> Table:
    """Return the framings, one a row, with the bytes that packets of usual sizes take."""
    from bentpipe.report.terminal import plain_table

    columns = ("framing", "link layer", *(f"{size} B" for size in _IP_BYTES))
    rows = [
        (preset.name, preset.title, *(f"{bits / 8:.1f}" for bits in _frames(preset).values()))
        for preset in framings.values()
    ]
    table = plain_table(columns, rows)
    table.title = "Link bytes that an IP packet of so many bytes takes, with the default options"
    for column in table.columns[2:]:
        column.justify = "right"
    return table


def framing_text(preset: FramingPreset) -> str:
    """Return a framing as it would stand in a scenario file, its options and its source."""
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


def framing_facts(preset: FramingPreset) -> dict[str, Any]:
    """Return a framing as plain data, ready for JSON."""
    return {
        "name": preset.name,
        "title": preset.title,
        "source": preset.source,
        "options": {name: asdict(option) for name, option in preset.options.items()},
        "plan": plan_framing(preset.name, {}),
        "frames": [
            {"ip_bytes": ip_bytes, "link_bits": bits} for ip_bytes, bits in _frames(preset).items()
        ],
    }


def _frames(preset: FramingPreset) -> dict[int, int]:
    """Return the link bits of packets of usual sizes, with the default options."""
    framing = plan_framing(preset.name, {})
    return {ip_bytes: frame_bits(framing, ip_bytes) for ip_bytes in _IP_BYTES}


def _yaml(value: bool | int | str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
