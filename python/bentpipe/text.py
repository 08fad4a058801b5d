"""Wording shared by all messages: values that were read, and spelling suggestions."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Final

_SHOWN_CHARACTERS_MAX: Final = 60


def nearest(word: str, allowed: tuple[str, ...]) -> str | None:
    """Return the allowed spelling nearest to ``word``, or None if none is near.

    The comparison ignores case; the result is the exact spelling. A name without its unit is near.
    """
    by_lower = {candidate.lower(): candidate for candidate in allowed}
    lower = word.lower()
    matches = difflib.get_close_matches(lower, list(by_lower), n=1, cutoff=0.6)
    matches = matches or [each for each in by_lower if each.startswith(f"{lower}_")]
    return by_lower[matches[0]] if matches else None


def shown(value: object) -> str:
    """Return a value as it was written, shortened."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    text = str(value)
    text = text if len(text) <= _SHOWN_CHARACTERS_MAX else f"{text[:_SHOWN_CHARACTERS_MAX]}..."
    return f'"{text}"' if isinstance(value, str) else text


def choice(value: object, allowed: tuple[str, ...]) -> str:
    """Return what was read, what is allowed, and the nearest allowed spelling."""
    return f"read {shown(value)}; allowed: {', '.join(allowed)}{did_you_mean(value, allowed)}"


def did_you_mean(value: object, allowed: tuple[str, ...]) -> str:
    """Return the end of a message that asks for the nearest allowed spelling, if one is near."""
    near = nearest(value, allowed) if isinstance(value, str) else None
    return f'; did you mean "{near}"?' if near else ""


def counted(number: int, what: str) -> str:
    """Return a number of things: ``1 run``, ``1,200 runs``."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"
