"""The base of every part of a scenario: a frozen record, and fields that hold quantities.

A quantity is parsed once, by the validator of its field. It keeps the text that was written.
"""

from __future__ import annotations

import ast
import inspect
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Final, Generic, Self, TypeVar, get_args, get_origin

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ModelWrapValidatorHandler,
    PlainValidator,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError, core_schema
from pydantic_core.core_schema import CoreSchema, ErrorType

from bentpipe import units
from bentpipe.errors import Problem, ScenarioError, UnitError
from bentpipe.refusals import refused_kind
from bentpipe.scenario.document import Document, FieldPath
from bentpipe.text import choice, counted, did_you_mean, nearest, shown
from bentpipe.units import Kind

# The fields that say which record a mapping is.
TAGS: Final = ("kind", "discipline", "model")

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
    problems = [_problem(detail, document) for detail in details]
    problems.sort(key=lambda problem: problem.line or 0)
    if len(problems) <= _MAX_PROBLEMS:
        return problems
    more = f"and {counted(len(problems) - _MAX_PROBLEMS, 'more problem')}"
    return [*problems[:_MAX_PROBLEMS], Problem(source=document.source, field="", message=more)]


def _problem(detail: ErrorDetails, document: Document) -> Problem:
    context = dict(detail.get("ctx", {}))
    path = _path(detail["loc"], document.data, missing=detail["type"] == "missing")
    explain = _EXPLANATIONS.get(detail["type"])
    message = explain(detail["input"], context) if explain else detail["msg"]
    return document.problem((*path, *context.get("field", ())), message)


def _path(location: tuple[int | str, ...], data: Any, *, missing: bool) -> FieldPath:
    """Return the path as it was written: without the names that pydantic adds for unions."""
    path: list[int | str] = []
    for position, part in enumerate(location):
        is_kind = isinstance(data, Mapping) and data.get("kind") == part
        if is_kind and position and isinstance(location[position - 1], int):
            # Entries of kind "channels" also have a field of that name.
            continue
        try:
            data = data[part]
        except (KeyError, IndexError, TypeError):
            # Only the name of a missing field is not there; others are alternatives of a union.
            if not missing or position < len(location) - 1:
                continue
        # "return" is a keyword in Python, so that the field is "return_" there.
        path.append(part.removesuffix("_") if isinstance(part, str) else part)
    return tuple(path)


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
    "too_long": lambda value, context: (
        f"has {len(value)} entries; at most {context['max_length']} are allowed"
    ),
    "string_too_short": lambda _value, _context: "is empty; expected text",
    "string_too_long": lambda value, context: (
        f"read {len(value)} characters; at most {context['max_length']} are allowed"
    ),
    "greater_than": _bound("above", "gt"),
    "greater_than_equal": _bound("at least", "ge"),
    "less_than_equal": _bound("at most", "le"),
}


def refusal(reason: str, *field: str) -> PydanticCustomError:
    """Return the error of a wrong value, or of a field in it."""
    return PydanticCustomError("reason", "{reason}", {"reason": reason, "field": field})


@dataclass(frozen=True)
class Unit:
    """The unit of a field, by which the name of the plan's field ends."""

    suffix: str


def _quantity(
    kind: Kind, *words: str, above_zero: bool = False, example: str = ""
) -> tuple[Unit, PlainValidator, WithJsonSchema]:
    """Return the unit, the validator and the schema of a quantity, or of one of these words."""

    def read(text: object) -> object:
        if text in words:
            return units.queue_limit(text) if text == "unlimited" else text
        others = "".join(f', or "{word}"' for word in words if word != "unlimited")
        try:
            quantity = kind.read(text)
        except UnitError as error:
            raise refusal(f"{error}{others}") from None
        if above_zero and quantity.value == 0:
            raise refusal(f'read "{text}"{";" if others else ":"} must be above zero{others}')
        return quantity

    suffix = f"_{kind.bases[0].removeprefix('time_')}" if len(kind.bases) == 1 else ""
    pattern = "|".join([kind.pattern, *(f"^{word}$" for word in words)])
    schema = {"type": "string", "pattern": pattern, "examples": [example or kind.example]}
    return Unit(suffix), PlainValidator(read), WithJsonSchema(schema)


# A record is made from text and holds a `Quantity`. Defaults are quantities, since pydantic does
# not validate them.
Rate = Annotated[str, *_quantity(units.RATE, above_zero=True)]
RateOrOutage = Annotated[str, *_quantity(units.RATE)]
Duration = Annotated[str, *_quantity(units.DURATION)]
PositiveDuration = Annotated[str, *_quantity(units.DURATION, above_zero=True)]
DurationOrNone = Annotated[
    str, *_quantity(units.DURATION, "none", above_zero=True, example="100 ms")
]
Size = Annotated[str, *_quantity(units.SIZE)]
PositiveSize = Annotated[str, *_quantity(units.SIZE, above_zero=True)]
Limit = Annotated[str, *_quantity(units.QUEUE_LIMIT, "unlimited", example="50 packets")]
Threshold = Annotated[str, *_quantity(units.THRESHOLD)]
Packets = Annotated[str, *_quantity(units.PACKETS, above_zero=True)]
Number = Annotated[int, Field(ge=0, le=2**32 - 1)]
Segments = Annotated[Number, Unit("_segments")]
Count = Annotated[int, Field(ge=1, le=units.LARGEST)]
Probability = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
PositiveShare = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
QueueClass = Annotated[int, Field(ge=0, le=255)]

T = TypeVar("T")
# JSON and YAML have lists; the records hold tuples, so that they are immutable.
ListOf = Annotated[tuple[T, ...], Field(strict=False)]
NonEmptyListOf = Annotated[ListOf[T], Field(min_length=1)]


def share_of(text: str) -> float:
    """Return a share of 0 to 1 from a checked text such as ``"0.5 %"``."""
    return units.fraction(text, "share")


def _percent(example: str, *words: str) -> tuple[BeforeValidator, WithJsonSchema]:
    """Return the validator and the schema of a percentage, or one of these words."""

    def read(value: object) -> object:
        if value in words:
            return value
        if not isinstance(value, str) or units.PERCENTAGE.match(value) is None:
            others = "".join(f'"{word}", ' for word in words) + ("or " if words else "")
            raise refusal(
                f'read {shown(value)}; expected {others}a percentage, such as "{example}"'
            )
        if share_of(value) > 1:
            raise refusal(f'read "{value}"; must be at most 100 %')
        return value

    pattern = "|".join([units.PERCENTAGE.pattern, *(f"^{word}$" for word in words)])
    schema = {"type": "string", "pattern": pattern, "examples": [*words, example]}
    return BeforeValidator(read), WithJsonSchema(schema)


Percent = Annotated[str, *_percent("0.5 %")]
AdaptiveOrPercent = Annotated[str, *_percent("10 %", "adaptive")]
SignalOrPercent = Annotated[str, *_percent("10 %", "hidden", "ecn")]


def _again(detail: ErrorDetails) -> InitErrorDetails:
    """Return an error of pydantic, so that it can be raised again."""
    kind, context = detail["type"], detail.get("ctx", {})
    known = kind in get_args(ErrorType)
    error = kind if known else PydanticCustomError(kind, detail["msg"], context)
    return InitErrorDetails(type=error, loc=detail["loc"], input=detail["input"], ctx=context)


def known_kind(field: str, kinds: Iterable[str], *, optional: bool = False) -> BeforeValidator:
    """Refuse a mapping whose ``field`` is none of ``kinds``; pydantic's own error lacks them."""
    allowed = tuple(kinds)

    def check(value: object) -> object:
        if isinstance(value, Mapping):
            kind = value.get(field)
            if kind not in allowed and not (optional and kind is None):
                message = f"missing; allowed: {', '.join(allowed)}"
                if kind is not None:
                    reason = refused_kind(kind)
                    message = choice(kind, allowed) + (f"; {reason}" if reason else "")
                raise refusal(message, field)
        return value

    return BeforeValidator(check)


@cache
def _docstrings(module: str) -> dict[tuple[str, str], str]:
    """Return the strings below the fields of the classes of a module, by class and field."""
    return {
        (cls.name, field.target.id): inspect.cleandoc(below.value.value)
        for cls in ast.parse(inspect.getsource(sys.modules[module])).body
        if isinstance(cls, ast.ClassDef)
        for field, below in pairwise(cls.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
        if isinstance(below.value.value, str)
    }


class Record(BaseModel):
    """A part of a scenario: frozen, strict about types, with no unknown fields.

    Raises:
        ScenarioError: naming the field, what was read and what is allowed.
    """

    model_config = ConfigDict(
        frozen=True,
        strict=True,
        extra="forbid",
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,
    )

    def __init__(self, **data: Any) -> None:
        try:
            super().__init__(**data)
        except ValidationError as error:
            document = Document(data=data, source=type(self).__name__)
            raise ScenarioError(*problems_of(error, document)) from None

    @classmethod
    def of_document(cls, document: Document) -> Self:
        """Return the record of a document.

        Raises:
            ScenarioError: naming file, line, field, what was read and what is allowed.
        """
        try:
            # By the names that files have: `for`, not `for_`.
            return cls.model_validate(document.data, context=document, by_alias=True, by_name=False)
        except ValidationError as error:
            raise ScenarioError(*problems_of(error, document)) from None

    # `use_attribute_docstrings` would parse the source of all records at each start (0.1 s).
    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler, /
    ) -> dict[str, Any]:
        """Describe each field by its docstring, and one that names a kind by that name."""
        json_schema = handler(schema)
        properties = handler.resolve_ref_schema(json_schema).get("properties", {})
        for name, field in cls.model_fields.items():
            for base in (base for base in cls.__mro__ if issubclass(base, Record)):
                text = _docstrings(base.__module__).get((base.__name__, name))
                if text is None and name in TAGS and get_args(field.annotation):
                    text = f"``{get_args(field.annotation)[0]}``."
                if text is not None:
                    properties[field.serialization_alias or name]["description"] = text
                    break
        return json_schema

    # Without this mark, pydantic would call `__init__` for each record inside another.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    @model_validator(mode="wrap")
    @classmethod
    def _refuse_unknown_fields(
        cls, data: Any, validate: ModelWrapValidatorHandler[Self], info: ValidationInfo
    ) -> Self:
        """Refuse unknown fields by an error that has the allowed ones, beside the other errors.

        In a document, which is the context, fields have the names of files alone: ``for``, not
        ``for_``. Errors that follow from a misspelt field are left out: it is missing, too.
        """
        fields = cls.model_fields
        if not isinstance(data, Mapping) or cls.model_config["extra"] == "allow":
            return validate(data)
        allowed = tuple(field.serialization_alias or name for name, field in fields.items())
        names = {*allowed, *(fields if info.context is None else ())}
        unknown = tuple(str(name) for name in data if name not in names)
        if not unknown:
            return validate(data)
        here = f"(fields here: {', '.join(allowed)})"
        errors = [
            InitErrorDetails(
                type=refusal(f"unknown field{did_you_mean(name, allowed)} {here}", name), input=data
            )
            for name in unknown
        ]
        try:
            validate({name: value for name, value in data.items() if str(name) not in unknown})
        except ValidationError as error:
            errors += [
                _again(detail)
                for detail in error.errors(include_url=False)
                if not (
                    detail["type"] == "reason" and not detail["loc"] and not detail["ctx"]["field"]
                )
                and not (
                    detail["type"] == "missing"
                    and len(detail["loc"]) == 1
                    and nearest(str(detail["loc"][0]), unknown)
                )
            ]
        raise ValidationError.from_exception_data(cls.__name__, errors)

    def _contradictions(self) -> Iterator[str]:
        """Yield what is wrong with fields that do not fit together."""
        yield from ()

    @model_validator(mode="after")
    def _check_fields(self) -> Self:
        for reason in self._contradictions():
            raise refusal(reason)
        # A file needs the name of its kind, so a record made in Python writes it, too.
        self.model_fields_set.update(tag for tag in TAGS if self.__dict__.get(tag) is not None)
        return self

    is_indivisible: ClassVar[bool] = False
    """Whether it replaces another record as a whole, since the fields of both do not mix."""

    def over(self, base: Self) -> Self:
        """Return ``base`` with its fields overridden by those of this record."""
        if self.is_indivisible:
            return self
        merged: dict[str, Any] = {}
        for name in type(self).model_fields:
            mine, theirs = getattr(self, name), getattr(base, name)
            if isinstance(mine, Record) and isinstance(theirs, Record):
                mine = mine.over(theirs)
            merged[name] = theirs if mine is None else mine
        return type(self).model_construct(**merged)


@dataclass(frozen=True)
class ByForm:
    """Chooses the type of a union by the form of a value: a list, a mapping or a scalar.

    Of several records it is the one whose first field a mapping has. Only the errors of that type
    are given. ``otherwise`` is the form that values of no other form are read as: "list" or the
    name of a record, by default that of the first type.
    """

    otherwise: str = ""

    def __get_pydantic_core_schema__(self, union: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return the schema of the union."""
        choices: dict[str, CoreSchema] = {}
        first_fields: dict[str, str] = {}
        for member in get_args(union):
            bare = get_args(member)[0] if get_origin(member) is Annotated else member
            form = "list" if get_origin(bare) is tuple else "scalar"
            if isinstance(bare, type) and issubclass(bare, Record):
                form = bare.__name__
                first_fields[form] = next(iter(bare.model_fields))
            choices[form] = handler.generate_schema(member)
        otherwise = self.otherwise or next(iter(choices))

        def form_of(value: object) -> str:
            form = "list" if isinstance(value, list | tuple) else "scalar"
            if isinstance(value, Record):
                form = type(value).__name__
            elif isinstance(value, Mapping):
                only = next(iter(first_fields)) if len(first_fields) == 1 else otherwise
                form = next((name for name, field in first_fields.items() if field in value), only)
            return form if form in choices else otherwise

        return core_schema.tagged_union_schema(choices, form_of)


P = TypeVar("P")
L = TypeVar("L")


class Draw(Record, Generic[T, P, L]):
    """A distribution that values are drawn from; exactly one of its fields is written."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1, "maxProperties": 1})

    exponential: T | None = None
    """An exponential distribution with this mean."""
    pareto: P | None = None
    """A bounded Pareto distribution."""
    lognormal: L | None = None
    """A log-normal distribution with an upper bound."""

    def _contradictions(self) -> Iterator[str]:
        written = self._written()
        if len(written) != 1:
            given = " and ".join(written) or "no distribution"
            names = ", ".join(type(self).model_fields)
            yield f"read {given}; expected exactly one of: {names}"

    @property
    def distribution(self) -> tuple[str, Any]:
        """The name of the distribution, and its mean or its parameters."""
        ((name, parameters),) = self._written().items()
        return name, parameters

    def _written(self) -> dict[str, Any]:
        names = type(self).model_fields
        return {name: value for name in names if (value := getattr(self, name)) is not None}
