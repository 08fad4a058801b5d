"""The validation errors of pydantic as problems of a scenario."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from bentpipe.errors import Problem
from bentpipe.scenario.document import Document, FieldPath
from bentpipe.text import choice, did_you_mean, shown

# A file of another format would give hundreds.
_MAX_PROBLEMS: Final = 100


def problems_of(error: ValidationError, document: Document) -> list[Problem]:
    """Return one problem for each thing that pydantic found, in the order of the lines."""
    # A list counts as too short when its only entry is wrong; the entry's own problem says more.
    details = [
        detail
        for detail in error.errors(include_url=False)
        if not (detail["type"] == "too_short" and detail["input"])
    ]
    problems = [each for detail in details for each in _problems(detail, document)]
    problems.sort(key=lambda problem: problem.line or 0)
    if len(problems) <= _MAX_PROBLEMS:
        return problems
    more = f"and {len(problems) - _MAX_PROBLEMS} more problems"
    return [*problems[:_MAX_PROBLEMS], Problem(source=document.source, field="", message=more)]


def _problems(detail: ErrorDetails, document: Document) -> list[Problem]:
    path = _path(detail["loc"], document.data, missing=detail["type"] == "missing")
    context = dict(detail.get("ctx", {}))
    if detail["type"] == "unknown_fields":
        allowed = context["allowed"]
        return [
            document.problem(
                (*path, name),
                f"unknown field{did_you_mean(name, allowed)} (fields here: {', '.join(allowed)})",
            )
            for name in context["names"]
        ]
    if detail["type"] == "unknown_kind":
        allowed = context["allowed"]
        message = f"missing; allowed: {', '.join(allowed)}"
        if context["read"] is not None:
            message = choice(context["read"], allowed)
        return [document.problem((*path, context["field"]), message)]
    explain = _EXPLANATIONS.get(detail["type"])
    message = explain(detail["input"], context) if explain else detail["msg"]
    return [document.problem(path, message)]


def _path(location: tuple[int | str, ...], data: object, *, missing: bool) -> FieldPath:
    """Return the path as it was written: without the names that pydantic adds for unions."""
    path: list[int | str] = []
    for position, part in enumerate(location):
        is_kind = isinstance(data, Mapping) and data.get("kind") == part
        if is_kind and position and isinstance(location[position - 1], int):
            # Entries of kind "channels" also have a field of that name.
            continue
        inside = _member(data, part)
        # Only the name of a missing field is not in the data; others are alternatives of a union.
        if inside is _ABSENT and not (missing and position == len(location) - 1):
            continue
        data = inside
        # "return" is a keyword in Python, so that the field is "return_" there.
        path.append(part.removesuffix("_") if isinstance(part, str) else part)
    return tuple(path)


def _member(data: object, part: int | str) -> object:
    if isinstance(data, Mapping):
        return data.get(part, _ABSENT)
    if isinstance(data, list | tuple) and isinstance(part, int) and part < len(data):
        return data[part]
    return _ABSENT


_ABSENT: Final = object()

_Explanation = Callable[[Any, Mapping[str, Any]], str]


def _needs(what: str) -> _Explanation:
    return lambda value, _: f"read {shown(value)}; expected {what}"


def _bound(word: str, key: str) -> _Explanation:
    return lambda value, context: f"read {shown(value)}; must be {word} {context[key]}"


def _integer(value: object, _: Mapping[str, Any]) -> str:
    beyond = isinstance(value, int) and abs(value) >= 2**63
    return f"read {shown(value)}; " + ("beyond 64 bits" if beyond else "expected an integer")


def _number(value: object, _: Mapping[str, Any]) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return f"read {shown(value)}; must be a finite number"
    return f"read {shown(value)}; expected a number, such as 0.9 or 1e-7"


def _literal(value: object, context: Mapping[str, Any]) -> str:
    return choice(value, tuple(re.findall(r"'([^']*)'", context["expected"])))


_EXPLANATIONS: Final[Mapping[str, _Explanation]] = {
    "missing": lambda _value, _context: "missing; it has no default",
    "literal_error": _literal,
    "model_type": _needs("a mapping (name: value)"),
    "model_attributes_type": _needs("a mapping (name: value)"),
    "tuple_type": _needs("a list"),
    "string_type": _needs("text"),
    "bool_type": _needs("true or false"),
    "int_type": _integer,
    "float_type": _number,
    "finite_number": _number,
    "too_short": lambda _value, _context: "is empty; expected at least one entry",
    "string_too_short": lambda _value, _context: "is empty; expected text",
    "string_too_long": lambda value, context: (
        f"read {len(value)} characters; at most {context['max_length']} are allowed"
    ),
    "greater_than": _bound("above", "gt"),
    "greater_than_equal": _bound("at least", "ge"),
    "less_than_equal": _bound("at most", "le"),
}
