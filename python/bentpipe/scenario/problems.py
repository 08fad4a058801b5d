"""pydantic's validation errors as problems of a scenario: place, what was read, what is allowed."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from bentpipe.errors import Problem
from bentpipe.scenario.document import Document, FieldPath
from bentpipe.scenario.queues import QUEUES
from bentpipe.scenario.traffic import FLOWS
from bentpipe.text import choice, nearest, shown

# A file that is no scenario at all should not fill the screen.
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
    path = _path(detail["loc"], document.data)
    context = dict(detail.get("ctx", {}))
    if detail["type"] == "unknown_field":
        allowed = tuple(context["allowed"])
        near = nearest(context["name"], allowed)
        hint = f'; did you mean "{near}"?' if near else ""
        message = f"unknown field{hint} (fields here: {', '.join(allowed)})"
        return document.problem((*path, context["name"]), message)
    if detail["type"] in ("union_tag_invalid", "union_tag_not_found"):
        return _kind_problem(detail, path, document)
    explain = _EXPLANATIONS.get(detail["type"])
    message = explain(detail["input"], context) if explain else detail["msg"]
    return document.problem(path, message)


def _kind_problem(detail: ErrorDetails, path: FieldPath, document: Document) -> Problem:
    """Explain a part that comes in kinds when its kind is missing or unknown, or it has none."""
    entry = detail["input"]
    if not isinstance(entry, Mapping):
        return document.problem(path, _needs("a mapping (name: value)")(entry, {}))
    field, kinds = ("discipline", QUEUES) if path[-1] == "queue" else ("kind", FLOWS)
    if field not in entry:
        return document.problem((*path, field), f"missing; allowed: {', '.join(kinds)}")
    return document.problem((*path, field), choice(entry[field], tuple(kinds)))


def _path(location: tuple[int | str, ...], data: object) -> FieldPath:
    """Return the path as the file has it: without the names that pydantic adds for unions."""
    path: list[int | str] = []
    for position, part in enumerate(location):
        last = position == len(location) - 1
        inside = _member(data, part)
        if inside is _ABSENT and (not last or part in _UNION_NAMES):
            continue
        data = inside
        path.append(part)
    return tuple(path)


def _member(data: object, part: int | str) -> object:
    if isinstance(data, Mapping):
        return data.get(part, _ABSENT)
    if isinstance(data, list | tuple) and isinstance(part, int) and part < len(data):
        return data[part]
    return _ABSENT


_ABSENT: Final = object()
# The names that the records give to the alternatives of a field, none of them a field's name.
_UNION_NAMES: Final = (
    *FLOWS,
    *QUEUES,
    *("constant", "steps", "of_model", "series_file", "fixed", "drawn", "written", "mapping"),
)

_Explanation = Callable[[Any, Mapping[str, Any]], str]


def _needs(what: str) -> _Explanation:
    return lambda value, _: f"read {shown(value)}; {what} belongs here"


def _bound(word: str, key: str) -> _Explanation:
    return lambda value, context: f"read {shown(value)}; must be {word} {context[key]}"


def _integer(value: object, _: Mapping[str, Any]) -> str:
    beyond = isinstance(value, int) and abs(value) >= 2**63
    return f"read {shown(value)}; " + (
        "beyond 64 bits" if beyond else "a whole number belongs here"
    )


def _number(value: object, _: Mapping[str, Any]) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return f"read {shown(value)}; must be a finite number"
    return f"read {shown(value)}; a number belongs here, such as 0.9 or 1e-7"


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
    "too_short": lambda _value, _context: "is empty; at least one entry belongs here",
    "string_too_short": lambda _value, _context: "is empty; text belongs here",
    "string_too_long": lambda value, context: (
        f"read {len(value)} characters; at most {context['max_length']} are allowed"
    ),
    "greater_than": _bound("above", "gt"),
    "greater_than_equal": _bound("at least", "ge"),
    "less_than_equal": _bound("at most", "le"),
}
