"""Columns of compared rows, the same for terminals and reports."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from rich.table import Table

from bentpipe.results.confidence import Interval
from bentpipe.studies.base.comparison import Agreement, Comparison, Row, errors_of, mean_error
from bentpipe.studies.base.samples import Estimate, Samples


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column: heading, unit (or layer), and the text of a row."""

    heading: str
    unit: str = ""
    text: Callable[[Row], str]
    is_text: bool = False
    bold: Callable[[Row], bool] = lambda _: False


def number(value: float | None, digits: int | None = 2, *, sign: bool = False) -> str:
    """Return a value with a number of decimals, or a dash for None.

    Without a number of decimals it has four significant digits, for rows of different units.
    """
    if value is None:
        return "-"
    plus = "+" if sign else ""
    if digits is None:
        return f"{float(f'{value:.4g}'):{plus},g}"
    # The z removes the sign of a value that rounds to zero.
    return f"{value:{plus}z,.{digits}f}"


def interval_text(interval: Interval | None, digits: int | None = 2, *, sign: bool = False) -> str:
    """Return an interval as ``low to high``, or a dash for None."""
    if interval is None:
        return "-"
    ends = (number(end, digits, sign=sign) for end in (interval.low, interval.high))
    return " to ".join(ends)


def margin_text(samples: Samples, digits: int = 2) -> str:
    """Return a mean, followed by half of its 95 % interval if it has one."""
    mean, interval = samples.mean, samples.interval
    text = number(mean, digits)
    if mean is None or interval is None:
        return text
    return f"{text} \u00b1{number(interval.high - mean, digits)}"


def spread_text(samples: Samples, digits: int | None = 2) -> str:
    """Return the 95 % interval of a mean, ``exact`` for a deterministic cell."""
    if samples.exact and samples.values:
        return "exact"
    return interval_text(samples.interval, digits)


def estimate_text(estimate: Estimate | None, digits: int = 2, *, sign: bool = False) -> str:
    """Return an estimate, with its 95 % interval in brackets if it has one."""
    if estimate is None:
        return "-"
    text = number(estimate.value, digits, sign=sign)
    if estimate.interval is None:
        return text
    return f"{text} [{interval_text(estimate.interval, digits, sign=sign)}]"


def label(name: str, heading: str, unit: str = "") -> Column:
    """Return the column of a label."""
    return Column(heading=heading, unit=unit, text=lambda row: str(row.labels[name]), is_text=True)


def more(name: str, heading: str, unit: str = "", digits: int = 2, *, sign: bool = False) -> Column:
    """Return the column of a further figure of the rows."""

    def text(row: Row) -> str:
        value = row.more[name]
        value = value.mean if isinstance(value, Samples) else value
        return value if isinstance(value, str) else number(value, digits, sign=sign)

    return Column(heading=heading, unit=unit, text=text)


def more_spread(name: str, digits: int = 2) -> Column:
    """Return the column of the 95 % interval of a further figure of the rows."""

    def text(row: Row) -> str:
        value = row.more[name]
        return spread_text(value, digits) if isinstance(value, Samples) else "-"

    return Column(heading="95 % interval", text=text)


def of_comparison(column: Column, comparison: Comparison) -> Column:
    """Return a column that shows the row with the same labels of another comparison."""
    rows = {row.name: row for row in comparison.rows}
    return replace(
        column,
        text=lambda row: column.text(rows[row.name]),
        bold=lambda row: column.bold(rows[row.name]),
    )


def mean_text(samples: Samples, digits: int = 2) -> str:
    """Return the mean of runs, with its 95 % interval in brackets if the digits show one."""
    text = number(samples.mean, digits)
    interval = interval_text(samples.interval, digits)
    return text if interval in {"-", f"{text} to {text}"} else f"{text} [{interval}]"


def figures(
    digits: int | None = 2,
    *,
    unit: str = "",
    error_unit: str = "",
    error_digits: int | None = None,
    interval: bool = True,
) -> tuple[Column, ...]:
    """Return the columns published, simulated (with its interval, if ``interval``) and error."""
    error_digits = digits if error_digits is None else error_digits
    intervals = Column(
        heading="95 % interval", unit=unit, text=lambda row: spread_text(row.simulated, digits)
    )
    return (
        Column(heading="published", unit=unit, text=lambda row: number(row.published, digits)),
        Column(heading="simulated", unit=unit, text=lambda row: number(row.simulated.mean, digits)),
        *((intervals,) if interval else ()),
        Column(
            heading="error",
            unit=error_unit,
            text=lambda row: number(row.error, error_digits, sign=True),
            bold=lambda row: row.is_outside,
        ),
    )


AGREEMENT = Column(
    heading="agreement",
    text=lambda row: "-" if row.agreement is None else row.agreement.words,
    is_text=True,
)
PROVENANCE = Column(heading="provenance", text=lambda row: row.provenance.value, is_text=True)
UNIT = Column(heading="unit", text=lambda row: row.unit, is_text=True)
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


def errors_text(rows: Sequence[Row]) -> str:
    """Return mean error, largest error and agreement of rows as a sentence."""
    found = errors_of(rows)
    if not found["simulated"]:
        return f"none of {found['rows']} was simulated."
    unit, mean = found["error_unit"], mean_error(rows)
    agreement = ", ".join(f"{found[each]} {each.words}" for each in Agreement if found.get(each))
    texts = [f"{found['simulated']} rows"]
    if mean is not None:
        largest = number(found["max_absolute_error"])
        texts = [
            f"mean absolute error {estimate_text(mean)} {unit} over "
            f"{found['simulated'] - found['bounds']} rows, largest {largest} {unit}",
            *([f"bounds: {found['bounds']}"] if found["bounds"] else []),
        ]
    return "; ".join([*texts, *filter(None, [agreement])]) + "."


def row_text(row: Row, digits: int = 2) -> str:
    """Return published and simulated value, interval and error of a row as text."""
    bound = "" if row.bound == "equal" else f"{row.bound.replace('_', ' ')} "
    simulated = number(row.simulated.mean, digits)
    text = f"published {bound}{row.published:g} {row.unit}, simulated {simulated}"
    if row.simulated.interval is not None:
        text += f" [{interval_text(row.simulated.interval, digits)}]"
    return f"{text}, error {number(row.error, digits, sign=True)} {row.tolerance.unit}"
