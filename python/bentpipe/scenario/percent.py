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


def _percent(value: object) -> object:
    if not isinstance(value, str) or _PERCENT.match(value) is None:
        raise refusal(f'read {shown(value)}; expected a percentage, such as "0.5 %"')
    if share_of(value) > 1:
        raise refusal(f'read "{value}"; must be at most 100 %')
    return value


_text = WithJsonSchema({"type": "string", "pattern": _PATTERN, "examples": ["0.5 %"]})
Percent = Annotated[str, BeforeValidator(_percent), _text]
