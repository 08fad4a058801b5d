"""What bentpipe refuses to do, with the page that explains it: ``refusals.csv`` is the only list.

A row is for a kind of traffic, or for a program in a lab and one of its words: ``kind``,
``program`` and ``argument`` are regular expressions of a whole word.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True)
class Refusal:
    """A row of the list: the reason with the fix, and the page, a file with an anchor."""

    name: str
    kind: str
    program: str
    argument: str
    reason: str
    page: str

    def __str__(self) -> str:
        return f"{self.reason}; see {self.page}"


@cache
def refusals() -> tuple[Refusal, ...]:
    """Return the list."""
    with Path(__file__).with_suffix(".csv").open(encoding="utf-8", newline="") as file:
        return tuple(Refusal(**row) for row in csv.DictReader(file))


def refused_kind(kind: object) -> Refusal | None:
    """Return why there is no such kind of traffic; None if nothing else is known of it."""
    of_kinds = (each for each in refusals() if each.kind)
    return next((each for each in of_kinds if re.fullmatch(each.kind, str(kind))), None)


def refused_program(words: Sequence[str]) -> str | None:
    """Return a message on a program, with its arguments, that does not work in a lab; else None."""
    program = Path(words[0]).name if words else ""
    own = [each for each in refusals() if each.program and re.fullmatch(each.program, program)]
    for i, word in enumerate(words):
        for each in own:
            if re.fullmatch(each.argument, word):
                return f"{f'{program} {word}' if i else program}: {each}"
    return None
