"""Named links, each with a public source of its parameters (`presets.toml`).

Delays are propagation times through the satellite and down again (bent pipe), both ground stations
at the same elevation. With the Earth's radius R = 6371 km, altitude h and elevation e, the slant
range is d = sqrt((R sin e)^2 + h^2 + 2 R h) - R sin e, and the one-way delay is 2 d / c with
c = 299,792.458 km/s. Rates and queues are our own round figures, unless the source states them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from bentpipe.scenario.tables import read_table


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A named link; ``link`` is plain data, as in a scenario file."""

    name: str
    title: str
    source: str
    link: Mapping[str, Any]


PRESETS: Final[Mapping[str, Preset]] = {
    name: Preset(name=name, **fields) for name, fields in read_table("presets").items()
}
