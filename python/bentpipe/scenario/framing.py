"""The framing of a direction: a header size, a name, or a mapping of kind and options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import (
    ConfigDict,
    Discriminator,
    PlainValidator,
    Tag,
    WithJsonSchema,
    model_validator,
)

from bentpipe.errors import UnitError
from bentpipe.scenario.framings import FRAMINGS, FramingPlan, FramingPreset, plan_framing
from bentpipe.scenario.record import Record, refusal
from bentpipe.text import choice
from bentpipe.units import SIZE, size, value_of


class FramingOptions(Record):
    """A framing by its name, with options; `framings.FRAMINGS` lists both."""

    is_indivisible = True
    model_config = ConfigDict(extra="allow")

    kind: str
    """The name of the framing."""

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_fields(cls, data: object) -> object:
        """Accept every field: `plan_framing` checks the options of the kind."""
        return data

    @model_validator(mode="after")
    def _check_options(self) -> Self:
        try:
            plan_framing(self.kind, self.options)
        except ValueError as error:
            raise refusal(str(error)) from None
        return self

    @property
    def options(self) -> dict[str, Any]:
        """The options that are written, by name."""
        return dict(self.__pydantic_extra__ or {})


def _check_written(value: object) -> str:
    """Return a framing's name, or the size of its header."""
    if isinstance(value, str) and value[:1].isalpha():
        if value not in FRAMINGS:
            raise refusal(f'{choice(value, tuple(FRAMINGS))}; or a size, such as "8 B"')
        return value
    try:
        return size(value)
    except UnitError as error:
        raise refusal(str(error)) from None


def _schema_of(preset: FramingPreset) -> dict[str, Any]:
    options = {
        name: {
            "enum": list(option.allowed),
            "default": option.default,
            "description": option.meaning,
        }
        for name, option in preset.options.items()
    }
    return {
        "type": "object",
        "title": preset.title,
        "properties": {"kind": {"const": preset.name}, **options},
        "required": ["kind"],
        "additionalProperties": False,
    }


_text = WithJsonSchema(
    {
        "anyOf": [
            {"type": "string", "enum": list(FRAMINGS)},
            {"type": "string", "pattern": SIZE.pattern, "examples": ["8 B"]},
        ]
    }
)
_mapping = WithJsonSchema({"anyOf": [_schema_of(preset) for preset in FRAMINGS.values()]})

Framing = Annotated[
    Annotated[str, PlainValidator(_check_written), _text, Tag("written")]
    | Annotated[FramingOptions, _mapping, Tag("mapping")],
    Discriminator(lambda value: "mapping" if isinstance(value, Mapping | Record) else "written"),
]


def framing_plan(framing: Framing) -> FramingPlan:
    """Return the plan of a framing."""
    if isinstance(framing, FramingOptions):
        return plan_framing(framing.kind, framing.options)
    if framing in FRAMINGS:
        return plan_framing(framing, {})
    return plan_framing("none", {}) | {"header_bytes": value_of(framing)}
