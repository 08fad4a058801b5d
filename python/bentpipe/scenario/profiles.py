"""Host profiles: named sets of TCP settings (`profiles.toml`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, get_args

from bentpipe.scenario.tables import read_table
from bentpipe.scenario.tcp import ProfileName, Tcp

_SETTINGS: Final = read_table("profiles")
PROFILES: Final[Mapping[ProfileName, Tcp]] = {
    name: Tcp(**_SETTINGS[name]) for name in get_args(ProfileName)
}
