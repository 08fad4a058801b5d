"""Link layers by name: how many bits an IP packet of a given size takes on the link.

All link layers share one formula with different parameters (`docs/model/framing.md` derives them)::

    bytes = max(ip + header_bytes, min_bytes), cut into cells if there are any
    bits  = 8 * bytes * expansion, rounded to the nearest + 8 * inter_frame_bytes

Only `framings.toml` holds the parameters, with titles, sources and options. A plan contains them,
and the core computes with them; `frame_bits` is the same formula in Python.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any, Final, TypeAlias

from pydantic import ConfigDict, PlainValidator, WithJsonSchema

from bentpipe.errors import UnitError
from bentpipe.scenario.record import ByForm, Record, refusal
from bentpipe.scenario.tables import read_table
from bentpipe.text import choice, shown
from bentpipe.units import SIZE, size, value_of

_Choice: TypeAlias = bool | int | str


# A framing in a plan; its ``expansion`` is a fraction.
FramingPlan: TypeAlias = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class FramingOption:
    """An option of a link layer; ``frames`` has what each allowed value changes in the frame."""

    meaning: str
    allowed: Sequence[_Choice]
    default: _Choice
    frames: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class FramingPreset:
    """A named link layer; ``frame`` has what differs from packets without framing."""

    name: str
    title: str
    source: str
    options: Mapping[str, FramingOption]
    frame: Mapping[str, Any]


def plan_framing(kind: str, options: Mapping[str, object]) -> FramingPlan:
    """Return the plan of a framing; options that are not given have their defaults.

    Raises:
        ValueError: no such framing, no such option of it, or a value that it does not allow.
    """
    preset = FRAMINGS.get(kind)
    if preset is None:
        raise ValueError(f"kind: {choice(kind, tuple(FRAMINGS))}")
    for name, value in options.items():
        option = preset.options.get(name)
        if option is None:
            allowed = ("kind", *preset.options)
            raise ValueError(f'option of framing "{kind}": {choice(name, allowed)}')
        # True == 1 in Python, but the plan of one is not that of the other.
        if not any(
            type(value) is type(candidate) and value == candidate for candidate in option.allowed
        ):
            listed = ", ".join(map(shown, option.allowed))
            raise ValueError(
                f'framing "{kind}", option "{name}": read {shown(value)}; allowed: {listed}'
            )
    plan: FramingPlan = {
        "header_bytes": 0,
        "min_bytes": 0,
        "cells": None,
        "expansion": [1, 1],
        "inter_frame_bytes": 0,
        **preset.frame,
    }
    for name, option in preset.options.items():
        chosen: Any = options.get(name, option.default)
        change = option.frames[option.allowed.index(chosen)]
        plan |= {**change, "header_bytes": plan["header_bytes"] + change.get("header_bytes", 0)}
    plan["expansion"] = list(Fraction(*plan["expansion"]).as_integer_ratio())
    return copy.deepcopy(plan)


def frame_bits(framing: Mapping[str, Any], ip_bytes: int) -> int:
    """Return the link bits of an IP packet with this framing."""
    link_bytes = max(ip_bytes + framing["header_bytes"], framing["min_bytes"])
    cells = framing["cells"]
    if cells is not None:
        link_bytes = -(-link_bytes // cells["payload_bytes"]) * cells["cell_bytes"]
    numerator, denominator = framing["expansion"]
    rounded = (2 * 8 * link_bytes * numerator + denominator) // (2 * denominator)
    return int(rounded + 8 * framing["inter_frame_bytes"])


def _options(fields: Mapping[str, Any]) -> dict[str, FramingOption]:
    return {name: FramingOption(**values) for name, values in fields.get("options", {}).items()}


FRAMINGS: Final[Mapping[str, FramingPreset]] = {
    name: FramingPreset(**{"frame": {}, **fields, "name": name, "options": _options(fields)})
    for name, fields in read_table("framings").items()
}


# --- what a scenario writes ---------------------------------------------------------------------


class FramingOptions(Record):
    """A framing by its name, with options; `framings.FRAMINGS` lists both."""

    is_indivisible = True
    # `plan_framing` checks the options of the kind.
    model_config = ConfigDict(extra="allow")

    kind: str
    """The name of the framing."""

    def _contradictions(self) -> Iterator[str]:
        try:
            plan_framing(self.kind, self.options)
        except ValueError as error:
            yield str(error)

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
    Annotated[str, PlainValidator(_check_written), _text] | Annotated[FramingOptions, _mapping],
    ByForm(),
]


def framing_plan(framing: Framing) -> FramingPlan:
    """Return the plan of a framing."""
    if isinstance(framing, FramingOptions):
        return plan_framing(framing.kind, framing.options)
    if framing in FRAMINGS:
        return plan_framing(framing, {})
    return plan_framing("none", {}) | {"header_bytes": value_of(framing)}
