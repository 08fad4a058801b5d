"""Tables for people, as data: what a table says, apart from how it is shown.

A `View` holds raw values. Renderers write it for a terminal, HTML, Markdown, CSV and JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bentpipe.quantities import quantity


@dataclass(frozen=True)
class Column:
    """A column: its name in CSV and JSON, which ends in the unit, and its heading.

    ``note`` is what stands below the heading: the unit's layer, or of what a share is. ``text``
    writes a value for a person; by default the unit in the name decides.
    """

    name: str
    title: str
    note: str = ""
    text: Callable[[Any], str] | None = None

    def write(self, value: Any) -> str:
        """Return a value for a person: a dash for None, text as it is."""
        if value is None:
            return "-"
        if self.text is not None:
            return self.text(value)
        if isinstance(value, str):
            return value
        if isinstance(value, int) and quantity(self.name).is_plain:
            return f"{value:,}"
        return quantity(self.name).text(value)


@dataclass(frozen=True)
class View:
    """A table: one value a column in each row.

    ``key`` is the number of leading columns that name a row; where a table is too wide, each part
    repeats them. Rows of a group have equal values in the first ``group`` columns. ``more`` says
    what is left out.
    """

    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Any]]
    key: int = 1
    group: int = 0
    more: str = ""
