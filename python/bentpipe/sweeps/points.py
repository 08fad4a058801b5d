"""The points of a sweep: which fields are varied, and the combinations of their values."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Self

from bentpipe.errors import Problem, ScenarioError, UsageError
from bentpipe.scenario.document import SourceLocation, read_value
from bentpipe.scenario.settings import Setting, split_setting
from bentpipe.sweeps.ranges import Range
from bentpipe.text import shown

AxisKind = Literal["grid", "zip", "latin_hypercube"]

_EXAMPLE: Final = "PATH=V1,V2,..., such as link.forward.delay=10ms,250ms"
_RANGE: Final = re.compile(r"\s*(lin|log)\s*\((.*)\)\s*", re.DOTALL)
_PAIRS: Final = {"(": ")", "[": "]", "{": "}"}
# Fields that have another place in a sweep, and columns of their own.
_NOT_VARIED: Final = {
    "seed": "seeds are not varied; give their number with --seeds (seeds in Python)",
    "name": "the name of a scenario changes nothing",
}


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
                raise problem(location, path, _NOT_VARIED[path])
        if not self.rows:
            raise problem(self.locations[0], self.paths[0], "has no values; give at least one")
        known = set()
        for row in self.rows:
            if identity(row) in known:
                values = " and ".join(shown(value) for value in row)
                raise problem(self.locations[0], ", ".join(self.paths), f"has {values} twice")
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
                    raise problem(location, path, "is varied twice")
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
        return [Setting(*each) for each in zip(self.paths, self[number], locations, strict=True)]

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
                paths=tuple(axis["paths"]),
                rows=tuple(tuple(row) for row in axis["rows"]),
                locations=tuple(SourceLocation(source) for _ in axis["paths"]),
                kind=axis["kind"],
            )
            for axis in data
        )


def problem(location: SourceLocation, field: str, message: str) -> ScenarioError:
    """Return the error of a varied field."""
    return ScenarioError(
        Problem(source=location.source, line=location.line, field=field, message=message)
    )


def grid_axis(path: str, values: Iterable[Any], location: SourceLocation) -> Axis:
    """Return the axis of one field."""
    return Axis(paths=(path,), rows=tuple((value,) for value in values), locations=(location,))


def zip_axis(group: Mapping[str, Sequence[Any]], locations: Sequence[SourceLocation]) -> Axis:
    """Return the axis of fields that are varied together.

    Raises:
        ScenarioError: they have different numbers of values.
    """
    lengths = {path: len(values) for path, values in group.items()}
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{path} has {length}" for path, length in lengths.items())
        message = f"needs fields with equal numbers of values; {counts}"
        raise problem(locations[0], "zip", message)
    return Axis(
        paths=tuple(group),
        rows=tuple(zip(*group.values(), strict=True)),
        locations=tuple(locations),
        kind="zip",
    )


def vary_option(text: str) -> Axis:
    """Read ``PATH=V1,V2,...`` of the option ``--vary``.

    Raises:
        ScenarioError: it is not written so, or has no values.
    """
    path, rest = split_setting(text, "--vary", _EXAMPLE)
    location = SourceLocation(f"--vary {text}")
    try:
        return grid_axis(path, read_values(rest), location)
    except ScenarioError:
        raise
    except UsageError as error:
        raise problem(location, path, str(error)) from None


def read_values(text: str) -> list[Any]:
    """Read values with commas between them; each is YAML, or a range.

    A comma inside of quotes or brackets belongs to the value. A range is ``lin(FROM, TO, POINTS)``
    or ``log(FROM, TO, POINTS)``.

    Raises:
        UsageError: a value is missing, is not YAML, or is not a range.
    """
    values: list[Any] = []
    for part in split(text):
        found = read_range(part)
        if found is None:
            values.append(_read(part))
        elif isinstance(found, Range):
            raise UsageError(f'read "{part.strip()}"; expected the number of points at its end')
        else:
            values += found
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
