"""The tables of this package: links, TCP hosts, codecs and link layers, with their sources."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any


def read_table(name: str) -> dict[str, dict[str, Any]]:
    """Return the entries of a table by name."""
    return tomllib.loads((Path(__file__).parent / f"{name}.toml").read_text(encoding="utf-8"))
