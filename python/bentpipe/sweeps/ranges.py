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
from bentpipe.quantities import QUANTITIES
from bentpipe.text import shown

Scale = Literal["lin", "log"]

MAX_VALUES: Final = 100_000
_DIGITS: Final = 12
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
        first, last, _ = _ends(self.start, self.stop)
        if self.scale == "log" and min(first, last) <= 0:
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
        first, last, write = _ends(self.start, self.stop)
        found = []
        for share in shares:
            if share in (0, 1):
                found.append(self.stop if share else self.start)
            elif self.scale == "lin":
                found.append(write(first + Fraction(share) * (last - first)))
            else:
                logarithm = (1 - share) * math.log(first) + share * math.log(last)
                found.append(write(Fraction(math.exp(logarithm))))
        return found


def _ends(start: Any, stop: Any) -> tuple[Fraction, Fraction, Callable[[Fraction], Any]]:
    """Return two exact values, and how a value between them is written.

    Those of quantities of one kind are in its base unit, others of the same unit in that.
    """
    pair = (start, stop)
    if all(isinstance(end, int | float) and not isinstance(end, bool) for end in pair):
        if not all(math.isfinite(end) for end in pair):
            raise UsageError(f"read {shown(start)} to {shown(stop)}; expected {_END}")
        whole = all(isinstance(end, int) for end in pair)
        return Fraction(start), Fraction(stop), round if whole else _number
    matches = []
    for end in pair:
        match = _NUMBER_AND_UNIT.fullmatch(end) if isinstance(end, str) else None
        if match is None:
            raise UsageError(f"read {shown(end)}; expected {_END}")
        matches.append(match)
    numbers, units = ([match[name] for match in matches] for name in ("number", "unit"))
    for _, parse, base in QUANTITIES:
        try:
            first, last = (Fraction(parse(end)) for end in pair)
            factor = parse(f"1 {units[0]}")
        except UnitError:
            continue
        return first, last, partial(_text, unit=units[0], factor=factor, base=base)
    if units[0] != units[1]:
        message = f"{shown(start)} and {shown(stop)} have different units"
        raise UsageError(f"{message}; write both in one unit")
    write = round if all(number.lstrip("+-").isdigit() for number in numbers) else _number
    first, last = map(Fraction, numbers)
    return first, last, lambda value: f"{write(value)} {units[0]}"


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
