"""A table of texts, and numbers as texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bentpipe.units import format_duration


@dataclass(frozen=True)
class TextTable:
    """A table of texts: ``columns`` are names with units, the first ``text_columns`` are names.

    Other cells are numbers with units, which must not be shortened. A group of rows has equal cells
    in the first ``grouped`` columns. ``more`` says what is left out.
    """

    title: str
    columns: Sequence[tuple[str, str]]
    rows: Sequence[Sequence[str]]
    text_columns: int = 1
    grouped: int = 0
    more: str = ""

    def starts(self) -> list[int]:
        """Return the indices of the first rows of groups."""
        heads = [tuple(row[: self.grouped]) for row in self.rows]
        changed = [i for i, head in enumerate(heads) if i == 0 or head != heads[i - 1]]
        return changed if self.grouped else []

    def without_repeats(self) -> list[list[str]]:
        """Return the rows, with equal cells of a group only in its first row."""
        starts, blank = self.starts(), [""] * self.grouped
        return [
            [*row] if i in starts else [*blank, *row[self.grouped :]]
            for i, row in enumerate(self.rows)
        ]


def count(number: int | None) -> str:
    """Return a count with thousands separators; a dash for None."""
    return "-" if number is None else f"{number:,}"


def percent(share: float | None) -> str:
    """Return percent with three digits; a dash for None."""
    return "-" if share is None else f"{share:.3g} %"


def score(mos: float | None) -> str:
    """Return a mean opinion score; a dash for None."""
    return "-" if mos is None else f"{mos:.2f}"


def points(value: float | None) -> str:
    """Return a part of an R-factor; a dash for None."""
    return "-" if value is None else f"{value:.1f}"


def duration(duration_ns: float | None) -> str:
    """Return a duration in ns with its unit; a dash for None."""
    return "-" if duration_ns is None else format_duration(duration_ns)


def duration_pair(first_ns: float | None, second_ns: float | None) -> str:
    """Return two durations in ns, such as a minimum and a mean; a dash if one is None."""
    if first_ns is None or second_ns is None:
        return "-"
    return f"{format_duration(first_ns)} / {format_duration(second_ns)}"
