"""What the columns of tables hold, by the unit that their names end in: read, scaled and written.

`goodput_bps` is a rate in bit/s, `one_way_delay_p99_ns` a time in ns, `loss_percent` a percentage,
`utilization` a share of 1, which is written as a percentage.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from bentpipe.errors import UnitError
from bentpipe.text import shown
from bentpipe.units import DURATION, RATE, SIZE, Kind

_NUMBER: Final = re.compile(
    r"\s*(?P<number>[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,2})?)\s*(?P<unit>.*?)\s*", re.ASCII
)
# What a text such as "275 ms" may be: the unit that its value has in a column, how it is read, and
# the base unit as it is written.
QUANTITIES: Final[tuple[tuple[str, Callable[[object], int], str], ...]] = (
    ("bps", RATE.parse, "bit/s"),
    ("ns", DURATION.parse, "ns"),
    ("bytes", SIZE.parse, "B"),
)
# Larger numbers are written without decimals.
_DECIMALS_BELOW: Final = 10_000


@dataclass(frozen=True)
class Quantity:
    """A kind of quantity: its units, the largest first, and how a value is written and read.

    ``read`` raises a UnitError.
    """

    units: tuple[tuple[str, float], ...]
    text: Callable[[float], str]
    read: Callable[[object], float]

    @property
    def is_count(self) -> bool:
        """Whether values are numbers of things, whose unit may stand above them."""
        return self.units[-1][0] in {"", "packets", "segments"}

    def scale(self, largest: float) -> tuple[str, float]:
        """Return the unit for values up to ``largest``, and its size in base units."""
        reached = (unit for unit in self.units if abs(largest) >= unit[1])
        return next(reached, self.units[-1])

    def difference(self, value: float) -> str:
        """Return a difference of two values: that of percentages is in points."""
        return re.sub(r"%$", "points", self.text(value))


def _digits(value: float) -> str:
    return f"{value:.4g}" if abs(value) < _DECIMALS_BELOW else f"{value:,.0f}"


def _count(unit: str, *, optional: bool = True, size: float = 1.0) -> Quantity:
    """Return the quantity of numbers with a unit; ``size`` is that of the unit in base units."""
    example = f"5 {unit}".rstrip()

    def read(text: object) -> float:
        match = _NUMBER.fullmatch(str(text))
        allowed = {unit, ""} if optional else {unit}
        if match is None or match["unit"] not in allowed:
            raise UnitError(f'read {shown(text)}: expected a number, such as "{example}"')
        # A number without the unit is in base units.
        return float(match["number"]) * (size if match["unit"] else 1.0)

    return Quantity(((unit, size),), lambda value: f"{_digits(value / size)} {unit}".rstrip(), read)


def _scaled(kind: Kind) -> Quantity:
    return Quantity(kind.scales, kind.format, kind.parse)


_PLAIN: Final = _count("")
_SHARE: Final = _count("%", size=0.01)
_BY_SUFFIX: Final = {
    "bps": _scaled(RATE),
    "ns": _scaled(DURATION),
    "bytes": _scaled(SIZE),
    "percent": _count("%", optional=False),
    "share": _SHARE,
    "utilization": _SHARE,
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
