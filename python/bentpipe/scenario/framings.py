"""Link layers by name: how many bits an IP packet of a given size takes on the link.

All link layers share one formula with different parameters (`docs/model/framing.md` derives them)::

    bytes = max(ip + header_bytes, min_bytes), cut into cells if there are any
    bits  = 8 * bytes * expansion, rounded to the nearest + 8 * inter_frame_bytes

Only this module holds the parameters, and `framings.toml` titles, sources and options. A plan
contains them, and the core computes with them; `frame_bits` is the same formula in Python.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any, Final, Self, TypeAlias, TypedDict

from pydantic import (
    ConfigDict,
    Discriminator,
    ModelWrapValidatorHandler,
    PlainValidator,
    Tag,
    WithJsonSchema,
    model_validator,
)

from bentpipe.errors import UnitError
from bentpipe.scenario.record import Record, refusal
from bentpipe.scenario.tables import read_table
from bentpipe.text import choice, shown
from bentpipe.units import SIZE, size, value_of

_Choice: TypeAlias = bool | int | str


class CellPlan(TypedDict):
    """Cells of fixed size, the last one padded."""

    payload_bytes: int
    cell_bytes: int


class FramingPlan(TypedDict):
    """A framing in a plan; ``expansion`` is a fraction."""

    header_bytes: int
    min_bytes: int
    cells: CellPlan | None
    expansion: list[int]
    inter_frame_bytes: int


@dataclass(frozen=True, kw_only=True)
class FramingOption:
    """An option of a link layer."""

    meaning: str
    allowed: tuple[_Choice, ...]
    default: _Choice


@dataclass(frozen=True, kw_only=True)
class FramingPreset:
    """A named link layer."""

    name: str
    title: str
    source: str
    options: Mapping[str, FramingOption]


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
        if not any(type(value) is type(each) and value == each for each in option.allowed):
            listed = ", ".join(map(shown, option.allowed))
            raise ValueError(
                f'framing "{kind}", option "{name}": read {shown(value)}; allowed: {listed}'
            )
    defaults = {name: option.default for name, option in preset.options.items()}
    return _PLANS[kind](defaults | dict(options))


def frame_bits(framing: FramingPlan, ip_bytes: int) -> int:
    """Return the link bits of an IP packet with this framing."""
    link_bytes = max(ip_bytes + framing["header_bytes"], framing["min_bytes"])
    cells = framing["cells"]
    if cells is not None:
        link_bytes = -(-link_bytes // cells["payload_bytes"]) * cells["cell_bytes"]
    numerator, denominator = framing["expansion"]
    rounded = (2 * 8 * link_bytes * numerator + denominator) // (2 * denominator)
    return rounded + 8 * framing["inter_frame_bytes"]


def stuffing_expansion(payload: str) -> Fraction:
    """Return the expansion of a payload by HDLC bit stuffing (a zero after five ones).

    Random bits: the mean time to a run of five ones is 2 + 4 + 8 + 16 + 32 = 62 bits, and the run
    restarts at each stuffed zero, so 62 bits become 63. A repeated pattern is counted exactly.
    """
    if payload == "random":
        return Fraction(63, 62)
    data = _PATTERNS[payload]
    # The least significant bit of each byte goes first (HDLC, ISO/IEC 13239).
    bits = [byte >> place & 1 for byte in data for place in range(8)]
    run, stuffed_before = 0, {}
    stuffed = periods = 0
    # A period depends only on the run of ones before it, so the periods soon repeat.
    while run not in stuffed_before:
        stuffed_before[run] = (periods, stuffed)
        for bit in bits:
            run = run + 1 if bit else 0
            if run == _ONES_BEFORE_A_STUFFED_ZERO:
                run, stuffed = 0, stuffed + 1
        periods += 1
    first_period, first_stuffed = stuffed_before[run]
    return 1 + Fraction(stuffed - first_stuffed, (periods - first_period) * len(bits))


_ONES_BEFORE_A_STUFFED_ZERO: Final = 5
_PATTERNS: Final = {
    "zeros": b"\x00",
    "ones": b"\xff",
    # iperf 2 fills its buffer with the digits of the index modulo 10.
    "iperf": b"0123456789",
}

_CELL: Final[CellPlan] = {"payload_bytes": 48, "cell_bytes": 53}
_TS_PACKET: Final[CellPlan] = {"payload_bytes": 184, "cell_bytes": 188}
# The pointer field of a TS packet in which a section or SNDU starts.
_POINTER: Final = 1

_TABLE: Final = read_table("framings")
_KBCH: Final[Mapping[str, int]] = _TABLE["gse"]["options"]["code_rate"]["allowed"]
_BASE_BAND_HEADER_BITS: Final = 80


def _numbers(
    header_bytes: int,
    *,
    min_bytes: int = 0,
    cells: CellPlan | None = None,
    expansion: Fraction = Fraction(1),
    inter_frame_bytes: int = 0,
) -> FramingPlan:
    return {
        "header_bytes": header_bytes,
        "min_bytes": min_bytes,
        "cells": None if cells is None else cells.copy(),
        "expansion": [expansion.numerator, expansion.denominator],
        "inter_frame_bytes": inter_frame_bytes,
    }


def _ethernet(inter_frame_bytes: int) -> FramingPlan:
    addresses_and_type, fcs = 14, 4
    return _numbers(addresses_and_type + fcs, min_bytes=64, inter_frame_bytes=inter_frame_bytes)


def _ppp(options: Mapping[str, Any]) -> FramingPlan:
    address, control, protocol = 1, 1, 2
    return _numbers(
        address + control + protocol + options["fcs"] // 8,
        expansion=stuffing_expansion(options["payload"]),
        inter_frame_bytes=1,  # the flag that two frames share
    )


def _aal5(expansion: Fraction) -> FramingPlan:
    llc_snap, trailer = 8, 8
    return _numbers(llc_snap + trailer, cells=_CELL, expansion=expansion)


def _transport_stream(header_bytes: int, *, packing: bool) -> FramingPlan:
    if not packing:
        return _numbers(header_bytes + _POINTER, cells=_TS_PACKET)
    growth = Fraction(_TS_PACKET["cell_bytes"], _TS_PACKET["payload_bytes"])
    return _numbers(header_bytes + _POINTER, expansion=growth)


def _mpe(options: Mapping[str, Any]) -> FramingPlan:
    section_header, llc_snap, crc = 12, 8 if options["llc_snap"] else 0, 4
    return _transport_stream(section_header + llc_snap + crc, packing=options["packing"])


def _ule(options: Mapping[str, Any]) -> FramingPlan:
    base_header, address, crc = 4, 6 if options["address"] else 0, 4
    return _transport_stream(base_header + address + crc, packing=options["packing"])


def _gse(options: Mapping[str, Any]) -> FramingPlan:
    fixed_header, protocol = 2, 2
    frame = _KBCH[options["code_rate"]]
    return _numbers(
        fixed_header + protocol + options["label_bytes"],
        expansion=Fraction(frame, frame - _BASE_BAND_HEADER_BITS),
    )


_PLANS: Final[Mapping[str, Callable[[Mapping[str, Any]], FramingPlan]]] = {
    "none": lambda _: _numbers(0),
    "ethernet": lambda _: _ethernet(0),
    # Preamble and start delimiter, and the least gap.
    "ethernet-line": lambda _: _ethernet(8 + 12),
    "ppp": _ppp,
    "aal5": lambda _: _aal5(Fraction(1)),
    # Columns of a frame that carry cells.
    "aal5-sonet": lambda _: _aal5(Fraction(270, 260)),
    "mpe": _mpe,
    "ule": _ule,
    "gse": _gse,
}

FRAMINGS: Final[Mapping[str, FramingPreset]] = {
    name: FramingPreset(
        name=name,
        title=fields["title"],
        source=fields["source"],
        options={
            option: FramingOption(**{**values, "allowed": tuple(values["allowed"])})
            for option, values in fields.get("options", {}).items()
        },
    )
    for name, fields in _TABLE.items()
}


# --- what a scenario writes ---------------------------------------------------------------------


class FramingOptions(Record):
    """A framing by its name, with options; `framings.FRAMINGS` lists both."""

    is_indivisible = True
    model_config = ConfigDict(extra="allow")

    kind: str
    """The name of the framing."""

    @model_validator(mode="wrap")
    @classmethod
    def _refuse_unknown_fields(cls, data: Any, validate: ModelWrapValidatorHandler[Self]) -> Self:
        """Accept every field: `plan_framing` checks the options of the kind."""
        return validate(data)

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
