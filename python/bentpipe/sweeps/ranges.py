"""Values between two ends: ``lin(1 Mbit/s, 10 Mbit/s, 5)`` and ``log(1e-8, 1e-5, 4)``.

An end is a number or a quantity. Points are exact in the base unit of the quantity (ns, byte,
bit/s), as the plan has them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import Any, Final, Literal

from bentpipe.errors import UnitError, UsageError
from bentpipe.text import shown
from bentpipe.units import parse_duration, parse_rate, parse_size

Scale = Literal["lin", "log"]

MAX_VALUES: Final = 100_000
_DIGITS: Final = 12
# What a text such as "275 ms" may be: the unit that its value has in a column, how it is read, and
# the base unit as it is written.
QUANTITIES: Final[tuple[tuple[str, Callable[[object], int], str], ...]] = (
    ("bps", parse_rate, "bit/s"),
    ("ns", parse_duration, "ns"),
    ("bytes", parse_size, "B"),
)
_NUMBER_AND_UNIT: Final = re.compile(
    r"\s*(?P<number>[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)\s*(?P<unit>\D.*?)\s*", re.ASCII
)
_END: Final = "a number, or a quantity such as 10 ms"


@dataclass(frozen=True)
class Range:
    """The values from ``start`` to ``stop``, on a linear or logarithmic scale.

    Raises:
        UsageError: an end is no number or quantity, their units differ, or an end of a logarithmic
            range is not above zero.
    """

    start: Any
    stop: Any
    scale: Scale

    def __post_init__(self) -> None:
        ends = self._ends()
        if self.scale == "log" and min(ends.values) <= 0:
            raise UsageError("log(...): both ends must be above zero")

    def points(self, count: int) -> list[Any]:
        """Return ``count`` values, the ends among them.

        Raises:
            UsageError: less than two, too many, or two values are equal after rounding.
        """
        if not 2 <= count <= MAX_VALUES:  # noqa: PLR2004 - the ends
            raise UsageError(f"read {count} points; must be 2 to {MAX_VALUES:,}")
        values = self.at([step / (count - 1) for step in range(count)])
        if len(set(map(str, values))) < count:
            raise UsageError(
                f"{count} points from {shown(self.start)} to {shown(self.stop)} are not all "
                "different after rounding; write fewer, or 0.0 for 0 if they are fractions"
            )
        return values

    def at(self, shares: Sequence[float]) -> list[Any]:
        """Return the values at shares of the way from start to stop, each 0 to 1.

        Values between integers are rounded to integers. Quantities are rounded to their base unit.
        """
        ends = self._ends()
        first, last = ends.values
        found = []
        for share in shares:
            if share in (0, 1):
                found.append(self.stop if share else self.start)
            elif self.scale == "lin":
                found.append(ends.write(first + Fraction(share) * (last - first)))
            else:
                found.append(ends.write(Fraction(_geometric(first, last, share))))
        return found

    def _ends(self) -> _Ends:
        pair = (self.start, self.stop)
        if all(isinstance(end, int | float) and not isinstance(end, bool) for end in pair):
            if not all(math.isfinite(end) for end in pair):
                raise UsageError(f"read {shown(self.start)} to {shown(self.stop)}; expected {_END}")
            whole = all(isinstance(end, int) for end in pair)
            return _Ends((Fraction(self.start), Fraction(self.stop)), round if whole else _number)
        return _quantities(pair)


@dataclass(frozen=True)
class _Ends:
    """Two exact values, and how a value between them is written."""

    values: tuple[Fraction, Fraction]
    write: Callable[[Fraction], Any]


def _quantities(pair: tuple[Any, Any]) -> _Ends:
    """Return two quantities of one kind in its base unit, or two of the same unit."""
    matches = [_NUMBER_AND_UNIT.fullmatch(end) if isinstance(end, str) else None for end in pair]
    for end, match in zip(pair, matches, strict=True):
        if match is None:
            raise UsageError(f"read {shown(end)}; expected {_END}")
    numbers = [match["number"] for match in matches if match]
    units = [match["unit"] for match in matches if match]
    for _, parse, base in QUANTITIES:
        try:
            first, last = (Fraction(parse(end)) for end in pair)
            factor = parse(f"1 {units[0]}")
        except UnitError:
            continue
        return _Ends((first, last), partial(_text, unit=units[0], factor=factor, base=base))
    if units[0] != units[1]:
        message = f"{shown(pair[0])} and {shown(pair[1])} have different units"
        raise UsageError(f"{message}; write both in one unit")
    whole = all(number.lstrip("+-").isdigit() for number in numbers)
    values = (Fraction(numbers[0]), Fraction(numbers[1]))
    return _Ends(values, lambda value: f"{round(value) if whole else _number(value)} {units[0]}")


def _geometric(first: Fraction, last: Fraction, share: float) -> float:
    """Return first^(1-share) last^share."""
    return math.exp((1 - share) * math.log(first) + share * math.log(last))


def _number(value: Fraction) -> float:
    return float(f"{float(value):.{_DIGITS}g}")


def _text(number: Fraction, *, unit: str, factor: int, base: str) -> str:
    """Write a quantity in a unit of ``factor`` base units, or in the base unit if that is shorter.

    It is rounded to the base unit.
    """
    value = round(number)
    quotient = Fraction(value, factor)
    decimal = Decimal(quotient.numerator) / Decimal(quotient.denominator)
    plain = f"{decimal:f}"
    text = plain.rstrip("0").rstrip(".") if "." in plain else plain
    is_exact = Fraction(text) == quotient and len(text) <= _DIGITS
    return f"{text} {unit}" if is_exact else f"{value} {base}"
