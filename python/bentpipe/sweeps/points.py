"""The points of a sweep: which fields are varied, and the combinations of their values.

Values may be ranges, ``lin(1 Mbit/s, 10 Mbit/s, 5)`` and ``log(1e-8, 1e-5, 4)``. An end is a number
or a quantity. Points are exact in the base unit of the quantity (ns, byte, bit/s), as the plan has
them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import Any, Final, Literal, Self

from bentpipe.errors import ScenarioError, UnitError, UsageError
from bentpipe.quantities import QUANTITIES
from bentpipe.scenario.document import SourceLocation, read_value
from bentpipe.scenario.settings import Setting, split_setting
from bentpipe.text import shown

AxisKind = Literal["grid", "zip", "latin_hypercube"]
Scale = Literal["lin", "log"]

_EXAMPLE: Final = "PATH=V1,V2,..., such as link.forward.delay=10ms,250ms"
_RANGE: Final = re.compile(r"\s*(lin|log)\s*\((.*)\)\s*", re.DOTALL)
_PAIRS: Final = {"(": ")", "[": "]", "{": "}"}
# Fields that have another place in a sweep, and columns of their own.
_NOT_VARIED: Final = {
    "seed": "seeds are not varied; give their number with --seeds (seeds in Python)",
    "name": "the name of a scenario changes nothing",
}

MAX_VALUES: Final = 100_000
_DIGITS: Final = 12
_NUMBER_AND_UNIT: Final = re.compile(
    r"\s*(?P<number>[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)\s*(?P<unit>\D.*?)\s*", re.ASCII
)
_END: Final = "a number, or a quantity such as 10 ms"


@dataclass(frozen=True)
class Axis:
    """Fields that are varied together; each of ``rows`` has a value for each path.

    A field that is varied by itself is an axis with one path.

    Raises:
        ScenarioError: it has no values or twice the same ones, or a field cannot be varied.
    """

    paths: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    locations: tuple[SourceLocation, ...]
    kind: AxisKind = "grid"

    def __post_init__(self) -> None:
        for path, location in zip(self.paths, self.locations, strict=True):
            if path in _NOT_VARIED:
                raise location.error(_NOT_VARIED[path], (path,))
        if not self.rows:
            raise self.locations[0].error("has no values; give at least one", self.paths[:1])
        known = set()
        for row in self.rows:
            if identity(row) in known:
                values = " and ".join(shown(value) for value in row)
                raise self.locations[0].error(f"has {values} twice", (", ".join(self.paths),))
            known.add(identity(row))


def identity(row: Iterable[Any]) -> str:
    """Return a text that is equal for equal values; 1 and 1.0 are one value of a column."""
    numbers = [
        float(value) if isinstance(value, int | float) and not isinstance(value, bool) else value
        for value in row
    ]
    return json.dumps(numbers, sort_keys=True)


class Points(Sequence[tuple[Any, ...]]):
    """The combinations of the values of axes; the last axis changes fastest.

    A point has a value for each of ``paths``.

    Raises:
        ScenarioError: a field is varied twice.
    """

    def __init__(self, axes: Iterable[Axis] = ()) -> None:
        self.axes = tuple(axes)
        self.paths: tuple[str, ...] = ()
        for axis in self.axes:
            for path, location in zip(axis.paths, axis.locations, strict=True):
                if path in self.paths:
                    raise location.error("is varied twice", (path,))
                self.paths += (path,)

    def __len__(self) -> int:
        return math.prod(len(axis.rows) for axis in self.axes)

    def __getitem__(self, number: Any) -> Any:
        if not 0 <= number < len(self):
            raise IndexError(number)
        values: tuple[Any, ...] = ()
        for axis in reversed(self.axes):
            number, row = divmod(number, len(axis.rows))
            values = (*axis.rows[row], *values)
        return values

    def settings(self, number: int) -> list[Setting]:
        """Return the values of a point, as settings of a scenario."""
        locations = [location for axis in self.axes for location in axis.locations]
        return list(map(Setting, self.paths, self[number], locations))

    def to_json(self) -> list[dict[str, Any]]:
        """Return the axes as plain data."""
        return [
            {"kind": axis.kind, "paths": list(axis.paths), "rows": [list(row) for row in axis.rows]}
            for axis in self.axes
        ]

    @classmethod
    def from_json(cls, data: Iterable[Mapping[str, Any]], source: str) -> Self:
        """Return the points that `to_json` describes; ``source`` names them in errors."""
        return cls(
            Axis(
                paths=tuple(axis_data["paths"]),
                rows=tuple(tuple(row) for row in axis_data["rows"]),
                locations=tuple(SourceLocation(source) for _ in axis_data["paths"]),
                kind=axis_data["kind"],
            )
            for axis_data in data
        )


def axis(
    group: Mapping[str, Sequence[Any]], locations: Sequence[SourceLocation], kind: AxisKind = "grid"
) -> Axis:
    """Return the axis of one field, or of fields that are varied together.

    Raises:
        ScenarioError: they have different numbers of values.
    """
    lengths = {path: len(values) for path, values in group.items()}
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{path} has {length}" for path, length in lengths.items())
        message = f"needs fields with equal numbers of values; {counts}"
        raise locations[0].error(message, ("zip",))
    rows = tuple(zip(*group.values(), strict=True))
    return Axis(tuple(group), rows, tuple(locations), kind)


def vary_option(text: str) -> Axis:
    """Read ``PATH=V1,V2,...`` of the option ``--vary``.

    Raises:
        ScenarioError: it is not written so, or has no values.
    """
    path, rest = split_setting(text, "--vary", _EXAMPLE)
    location = SourceLocation(f"--vary {text}")
    try:
        values = read_values(rest)
    except UsageError as error:
        raise location.error(str(error), (path,)) from None
    return axis({path: values}, [location])


def read_values(text: str) -> list[Any]:
    """Read values with commas between them; each is YAML, or a range.

    A comma inside of quotes or brackets belongs to the value. A range is ``lin(FROM, TO, POINTS)``
    or ``log(FROM, TO, POINTS)``.

    Raises:
        UsageError: a value is missing, is not YAML, or is not a range.
    """
    values: list[Any] = []
    for part in split(text):
        parsed = read_range(part)
        if parsed is None:
            values.append(_read(part))
        elif isinstance(parsed, Range):
            raise UsageError(f'read "{part.strip()}"; expected the number of points at its end')
        else:
            values += parsed
    return values


def read_range(text: str) -> Range | list[Any] | None:
    """Read a range, or the points of one; None if the text is something else.

    Raises:
        UsageError: it is not written as a range.
    """
    match = _RANGE.fullmatch(text)
    if match is None:
        return None
    ends = split(match[2])
    if len(ends) not in (2, 3):
        raise UsageError(f'read "{text.strip()}"; write {match[1]}(FROM, TO, POINTS)')
    whole = Range(_read(ends[0]), _read(ends[1]), "lin" if match[1] == "lin" else "log")
    if len(ends) == 2:  # noqa: PLR2004 - without the points
        return whole
    count = _read(ends[2])
    if not isinstance(count, int) or isinstance(count, bool):
        raise UsageError(f'read {shown(count)} points in "{text.strip()}"; expected an integer')
    return whole.points(count)


def _read(text: str) -> Any:
    """Read one value.

    Raises:
        UsageError: there is none, or it is not YAML.
    """
    if not text.strip():
        raise UsageError("a value is empty; give one before and after each comma")
    try:
        return read_value(text, "")
    except ScenarioError as error:
        raise UsageError(error.problems[0].message) from None


def split(text: str) -> list[str]:
    """Return the parts of a text between its commas outside of quotes and brackets."""
    parts, begin, quote = [], 0, ""
    closing: list[str] = []
    for position, character in enumerate(text):
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        elif character in _PAIRS:
            closing.append(_PAIRS[character])
        elif closing and character == closing[-1]:
            closing.pop()
        elif character == "," and not closing:
            parts.append(text[begin:position])
            begin = position + 1
    return [*parts, text[begin:]]


# --- ranges --------------------------------------------------------------------------------------


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
        values = []
        for share in shares:
            if share in (0, 1):
                values.append(self.stop if share else self.start)
            elif self.scale == "lin":
                values.append(write(first + Fraction(share) * (last - first)))
            else:
                logarithm = (1 - share) * math.log(first) + share * math.log(last)
                values.append(write(Fraction(math.exp(logarithm))))
        return values


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
    plain = f"{Decimal(value) / factor:f}"
    text = plain.rstrip("0").rstrip(".") if "." in plain else plain
    is_exact = Fraction(text) * factor == value and len(text) <= _DIGITS
    return f"{text} {unit}" if is_exact else f"{value} {base}"
