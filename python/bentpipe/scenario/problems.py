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
from bentpipe.text import choice, nearest, shown

# A file of another format would give hundreds.
_MAX_PROBLEMS: Final = 10


def problems_of(error: ValidationError, document: Document) -> list[Problem]:
    """Return one problem for each thing that pydantic found, in the order of the fields."""
    # A list counts as too short when its only entry is wrong; the entry's own problem says more.
    details = [
        detail
        for detail in error.errors(include_url=False)
        if not (detail["type"] == "too_short" and detail["input"])
    ]
    problems = [_problem(detail, document) for detail in details[:_MAX_PROBLEMS]]
    if len(details) > _MAX_PROBLEMS:
        rest = f"and {len(details) - _MAX_PROBLEMS} more problems"
        problems.append(Problem(source=document.source, field="", message=rest))
    return problems


def _problem(detail: ErrorDetails, document: Document) -> Problem:
    path = _path(detail["loc"], document.data, missing=detail["type"] == "missing")
    context = dict(detail.get("ctx", {}))
    if detail["type"] == "unknown_field":
        allowed = tuple(context["allowed"])
        near = nearest(context["name"], allowed)
        hint = f'; did you mean "{near}"?' if near else ""
        message = f"unknown field{hint} (fields here: {', '.join(allowed)})"
        return document.problem((*path, context["name"]), message)
    if detail["type"] == "unknown_kind":
        return document.problem((*path, context["field"]), _kind_message(context))
    explain = _EXPLANATIONS.get(detail["type"])
    message = explain(detail["input"], context) if explain else detail["msg"]
    return document.problem(path, message)


def _kind_message(context: Mapping[str, Any]) -> str:
    """Describe a kind that is missing or unknown."""
    if context["read"] is None:
        return f"missing; allowed: {', '.join(context['allowed'])}"
    return choice(context["read"], context["allowed"])


def _path(location: tuple[int | str, ...], data: object, *, missing: bool) -> FieldPath:
    """Return the path as it was written: without the names that pydantic adds for unions."""
    path: list[int | str] = []
    for position, part in enumerate(location):
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
