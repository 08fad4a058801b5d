"""Shares that are written in percent."""

from __future__ import annotations

import re
from typing import Annotated, Final

from pydantic import BeforeValidator, WithJsonSchema

from bentpipe.scenario.record import refusal
from bentpipe.text import shown

_PATTERN: Final = r"^\s*(\d+(\.\d*)?|\.\d+)\s*%\s*$"
_PERCENT: Final = re.compile(_PATTERN, re.ASCII)


def share_of(text: str) -> float:
    """Return a share of 0 to 1 from a checked text such as ``"0.5 %"``."""
    found = _PERCENT.match(text)
    assert found is not None, f"{text} was not checked"
    return float(found[1]) / 100


def _reader(example: str, words: tuple[str, ...] = ()) -> BeforeValidator:
    """Return the validator of a percentage, or one of these words."""

    def read(value: object) -> object:
        if value in words:
            return value
        if not isinstance(value, str) or _PERCENT.match(value) is None:
            others = "".join(f'"{word}", ' for word in words) + ("or " if words else "")
            raise refusal(
                f'read {shown(value)}; expected {others}a percentage, such as "{example}"'
            )
        if share_of(value) > 1:
            raise refusal(f'read "{value}"; must be at most 100 %')
        return value

    return BeforeValidator(read)


def _text(example: str, words: tuple[str, ...] = ()) -> WithJsonSchema:
    pattern = "|".join([_PATTERN, *(f"^{word}$" for word in words)])
    return WithJsonSchema({"type": "string", "pattern": pattern, "examples": [*words, example]})


_ADAPTIVE: Final = ("10 %", ("adaptive",))
_SIGNAL: Final = ("10 %", ("hidden", "ecn"))

Percent = Annotated[str, _reader("0.5 %"), _text("0.5 %")]
AdaptiveOrPercent = Annotated[str, _reader(*_ADAPTIVE), _text(*_ADAPTIVE)]
SignalOrPercent = Annotated[str, _reader(*_SIGNAL), _text(*_SIGNAL)]
