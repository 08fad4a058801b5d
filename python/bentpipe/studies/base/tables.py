"""Columns of compared rows, the same for terminals and reports."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.table import Table

from bentpipe.studies.base.comparison import Row
from bentpipe.studies.base.samples import Estimate, Interval, Samples


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column: heading, unit (or layer), and the text of a row."""

    heading: str
    unit: str = ""
    text: Callable[[Row], str]
    is_text: bool = False
    bold: Callable[[Row], bool] = lambda _: False


def number(value: float | None, digits: int = 2, *, sign: bool = False) -> str:
    """Return a figure with so many digits after the point; a dash where there is none."""
    if value is None:
        return "-"
    # The z takes the sign from what rounds to zero.
    return f"{value:{'+' if sign else ''}z,.{digits}f}"


def interval_text(interval: Interval | None, digits: int = 2, *, sign: bool = False) -> str:
    """Return an interval as ``low to high``; a dash where there is none."""
    if interval is None:
        return "-"
    ends = (number(end, digits, sign=sign) for end in (interval.low, interval.high))
    return " to ".join(ends)


def spread_text(samples: Samples, digits: int = 2) -> str:
    """Return the 95 % interval of a mean, ``exact`` for a deterministic cell."""
    if samples.exact and samples.values:
        return "exact"
    return interval_text(samples.interval, digits)


def estimate_text(estimate: Estimate | None, digits: int = 2, *, sign: bool = False) -> str:
    """Return an estimate with its 95 % interval in brackets, if it has one."""
    if estimate is None:
        return "-"
    text = number(estimate.value, digits, sign=sign)
    if estimate.interval is None:
        return text
    return f"{text} [{interval_text(estimate.interval, digits, sign=sign)}]"


def label(name: str, heading: str, unit: str = "") -> Column:
    """Return the column of a label."""
    return Column(heading=heading, unit=unit, text=lambda row: str(row.labels[name]), is_text=True)


def figures(digits: int = 2, *, unit: str = "", error_unit: str = "") -> tuple[Column, ...]:
    """Return published, simulated with its interval, and error."""
    return (
        Column(heading="published", unit=unit, text=lambda row: number(row.published, digits)),
        Column(heading="simulated", unit=unit, text=lambda row: number(row.simulated.mean, digits)),
        Column(
            heading="95 % interval", unit=unit, text=lambda row: spread_text(row.simulated, digits)
        ),
        Column(
            heading="error",
            unit=error_unit,
            text=lambda row: number(row.error, digits, sign=True),
            bold=lambda row: row.is_outside,
        ),
    )


AGREEMENT = Column(
    heading="agreement",
    text=lambda row: "-" if row.agreement is None else row.agreement.words,
    is_text=True,
)
PROVENANCE = Column(heading="provenance", text=lambda row: row.provenance.value, is_text=True)
RUNS = Column(heading="runs", text=lambda row: str(len(row.simulated.values)))


def terminal_table(title: str, columns: Sequence[Column], rows: Sequence[Row]) -> Table:
    """Return compared rows as a table for a terminal."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for column in columns:
        heading = f"{column.heading} [{column.unit}]" if column.unit else column.heading
        table.add_column(heading, justify="left" if column.is_text else "right")
    for row in rows:
        table.add_row(*(column.text(row) for column in columns))
    return table
