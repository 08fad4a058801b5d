"""What the columns of tables hold, by the unit that their names end in: for labels and texts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from bentpipe.units import format_duration, format_rate, format_size

# The largest unit that a value reaches is that of an axis.
_Units = tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Quantity:
    """A kind of quantity: its units, the largest first, and how a value is written."""

    units: _Units
    text: Callable[[float], str]

    def scale(self, largest: float) -> tuple[str, float]:
        """Return the unit for values up to ``largest``, and its size in base units."""
        reached = (unit for unit in self.units if abs(largest) >= unit[1])
        return next(reached, self.units[-1])


def _number(value: float) -> str:
    return f"{value:,.4g}" if abs(value) < 10_000 else f"{value:,.0f}"  # noqa: PLR2004 - four digits


def _count(unit: str) -> Quantity:
    return Quantity(((unit, 1.0),), lambda value: f"{_number(value)} {unit}".rstrip())


_PERCENT: Final = _count("%")
_PLAIN: Final = _count("")
_BY_SUFFIX: Final = {
    "bps": Quantity(
        (("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3), ("bit/s", 1.0)), format_rate
    ),
    "ns": Quantity((("s", 1e9), ("ms", 1e6), ("us", 1e3), ("ns", 1.0)), format_duration),
    "bytes": Quantity((("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1.0)), format_size),
    "percent": _PERCENT,
    "packets": _count("packets"),
    "segments": _count("segments"),
}


def quantity(column: str) -> Quantity:
    """Return the kind of quantity of a column; a number without a unit if the name has none."""
    return _BY_SUFFIX.get(column.rpartition("_")[2], _PLAIN)


def title(column: str) -> str:
    """Return a column's name without its unit, for a person: ``goodput_bps`` gives "goodput"."""
    name, _, suffix = column.rpartition("_")
    return (name if name and suffix in _BY_SUFFIX else column).replace("_", " ")
