"""Wording shared by all messages: values that were read, and suggestions of names and files."""

from __future__ import annotations

import csv
import difflib
import os
from collections.abc import Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Final

_SHOWN_CHARACTERS_MAX: Final = 60
NO_VALUE: Final = "has no value; write one (an unset variable is empty), or leave it out"
# Causes of drops whose name says too little: `bit_error` is any loss on the channel.
CAUSE_TITLES: Final[Mapping[str, str]] = {"bit_error": "on the channel"}
# Of a folder; more take seconds to compare.
_FILES_MAX: Final = 10_000


def csv_rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file by its header; lines that begin with ``#`` are comments."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


def nearest(word: str, allowed: tuple[str, ...]) -> str | None:
    """Return the allowed spelling nearest to ``word``, or None if none is near.

    The comparison ignores case; the result is the exact spelling. A name without its unit is near.
    """
    by_lower = {candidate.lower(): candidate for candidate in allowed}
    lower = word.lower()
    matches = difflib.get_close_matches(lower, list(by_lower), n=1, cutoff=0.6)
    matches = matches or [spelling for spelling in by_lower if spelling.startswith(f"{lower}_")]
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


def no_such(what: str, path: Path) -> str:
    """Return that a file or a folder does not exist, and the nearest path that does."""
    near = nearest_path(path)
    return f"no such {what}" + (f'; did you mean "{near}"?' if near else "")


def nearest_path(path: Path) -> Path | None:
    """Return the existing path whose parts are spelt most like those of a missing one, if any.

    Names are compared without their suffix: most files of a folder have the same one.
    """
    existing = Path(path.anchor)
    for part in path.parts[len(existing.parts) :]:
        if os.path.lexists(existing / part):
            existing /= part
            continue
        suffix = Path(part).suffix
        with suppress(OSError, ValueError):
            # Of two files with one stem, the one with the suffix is the last.
            files = sorted(
                islice(existing.iterdir(), _FILES_MAX), key=lambda file: file.suffix == suffix
            )
            stems = {file.stem: file for file in files if not file.name.startswith(".")}
            near = nearest(Path(part).stem, tuple(stems))
            if near is not None:
                existing = stems[near]
                continue
        return None
    return existing if existing.exists() else None


def counted(number: int, what: str) -> str:
    """Return a number of things: ``1 run``, ``1,200 runs``."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"
