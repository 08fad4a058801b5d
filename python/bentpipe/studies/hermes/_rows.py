"""A row of the source beside what was measured: error, verdict, miss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from bentpipe.studies._common import number

if TYPE_CHECKING:
    from rich.console import RenderableType

WITHIN_PERCENT: Final = 15.0

Value = float | tuple[float, float]
Kind = Literal["measured", "limit", "guess", "carried", "arithmetic", "input"]
# What a row can say, from the one that tests most to the one that tests nothing.
KINDS: Final[dict[Kind, str]] = {
    "measured": "a result of the simulation; those of HTTP hang on the length of segments too",
    "limit": "a result too; the published value is the most that it may be",
    "guess": "a result that hangs on a guess about what the source does not say",
    "carried": "traffic sent at the published rate; the row asks whether the path carries it",
    "arithmetic": "the source's own sum, done again with exact sizes",
    "input": "a parameter of the set-up, measured where it can be",
}


@dataclass(frozen=True)
class Published:
    """A row of the source: one value, or the two ends of a range."""

    quantity: str
    value: Value
    unit: str

    @classmethod
    def of(cls, row: dict[str, str]) -> Published:
        """Read a row of the file; a range is written ``80-100``."""
        low, _, high = row["value"].partition("-")
        value = (float(low), float(high)) if high else float(low)
        return cls(row["quantity"], value, row["unit"])


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What stands beside a published value, in its unit; None when a run is missing.

    ``how`` says how it was measured, ``reason`` why it is off: it is shown only if it is.
    """

    value: Value | None
    how: str
    kind: Kind = "measured"
    reason: str = ""
    stdev: float | None = None
    runs: int = 1


@dataclass(frozen=True)
class Cell:
    """One row: published beside measured."""

    published: Published
    measured: Measured

    @property
    def error_percent(self) -> float | None:
        """Measured less published in percent of published; of a range the end that is worse."""
        ours, theirs = self.measured.value, self.published.value
        if ours is None:
            return None
        pairs = zip(_ends(ours), _ends(theirs), strict=True)
        return max((100 * (one / other - 1) for one, other in pairs), key=abs)

    @property
    def within(self) -> bool | None:
        """Whether the error is small, or the limit kept; None when nothing was measured."""
        if self.error_percent is None:
            return None
        if self.measured.kind == "limit":
            return self.error_percent <= 0
        return abs(self.error_percent) <= WITHIN_PERCENT

    @property
    def verdict(self) -> str:
        """In a word, how the row came out."""
        if self.within is None:
            return "not run"
        if not self.within:
            return "MISS"
        words = {"measured": "within", "limit": "limit kept", "guess": "within, guess"}
        return words.get(self.measured.kind, self.measured.kind)

    def to_json(self) -> dict[str, Any]:
        """Return the row as plain data; values are in its unit."""
        miss = self.within is False
        return {
            "quantity": self.published.quantity,
            "published": _plain(self.published.value),
            "measured": None if self.measured.value is None else _plain(self.measured.value),
            "unit": self.published.unit,
            "error_percent": self.error_percent,
            "within": self.within,
            "miss": miss,
            "reason": self.measured.reason if miss else None,
            "kind": self.measured.kind,
            "input": self.measured.kind == "input",
            "stdev": self.measured.stdev,
            "runs": self.measured.runs,
            "how": self.measured.how,
        }


CSV_COLUMNS: Final = (
    "quantity",
    "published",
    "measured",
    "unit",
    "error_percent",
    "within",
    "miss",
    "reason",
    "kind",
    "input",
    "stdev",
    "runs",
    "how",
)


def shown(value: Value | None) -> str:
    """Write a value as people read it: a range by its ends, small figures with two digits."""
    if value is None:
        return "-"
    if isinstance(value, tuple):
        return " to ".join(shown(each) for each in value)
    if value == round(value):
        return f"{value:.0f}"
    return number(value, digits=2 if value < 10 else 1)  # noqa: PLR2004 - three digits or so


def misses(cells: Sequence[Cell]) -> list[str]:
    """Return the rows that are off, each with its reason."""
    return [
        f"{cell.published.quantity}: published {shown(cell.published.value)}, measured "
        f"{shown(cell.measured.value)} {cell.published.unit}. {cell.measured.reason}"
        for cell in cells
        if cell.within is False
    ]


def terminal_table(cells: Sequence[Cell]) -> RenderableType:
    """Return the rows, and below them the misses with their reasons."""
    from rich.console import Group
    from rich.table import Table

    table = Table(
        title=f"Published beside measured (within {WITHIN_PERCENT:g} %, or a limit that is kept)",
        title_justify="left",
        box=None,
        pad_edge=False,
        header_style="bold",
    )
    table.add_column("quantity")
    for heading in ("published", "measured"):
        table.add_column(heading, justify="right")
    table.add_column("unit")
    table.add_column("error", justify="right")
    table.add_column("verdict")
    for cell in cells:
        table.add_row(
            cell.published.quantity,
            shown(cell.published.value),
            shown(cell.measured.value),
            cell.published.unit,
            f"{number(cell.error_percent, digits=1, sign=True)} %",
            cell.verdict,
        )
    return Group(table, "", *(f"Miss: {text}" for text in misses(cells)))


def _ends(value: Value) -> tuple[float, ...]:
    return value if isinstance(value, tuple) else (value,)


def _plain(value: Value) -> float | list[float]:
    return list(value) if isinstance(value, tuple) else float(value)
