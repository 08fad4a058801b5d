"""Tables of compared rows as views, and numbers as texts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Final

from bentpipe.results.confidence import Interval
from bentpipe.results.views import Column, View, from_mappings
from bentpipe.studies.base.comparison import Agreement, Row, errors_of, mean_error
from bentpipe.studies.base.files import read_rows
from bentpipe.studies.base.provenance import Input
from bentpipe.studies.base.samples import Estimate, Samples

# --- texts --------------------------------------------------------------------------------------


def number(value: float | Samples | None, digits: int | None = 2, *, sign: bool = False) -> str:
    """Return a value, or a mean, with a number of decimals; a dash for None.

    Without a number of decimals it has four significant digits, for rows of different units.
    """
    if isinstance(value, Samples):
        value = value.mean
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


def mean_text(samples: Samples, digits: int = 2) -> str:
    """Return the mean of runs, with its 95 % interval in brackets if the digits show one."""
    text = number(samples, digits)
    interval = interval_text(samples.interval, digits)
    return text if interval in {"-", f"{text} to {text}"} else f"{text} [{interval}]"


def spread_text(samples: Samples, digits: int | None = 2) -> str:
    """Return the 95 % interval of a mean, ``exact`` for a deterministic cell."""
    if samples.exact and samples.values:
        return "exact"
    return interval_text(samples.interval, digits)


def change_text(values: Samples, unit: str, digits: int, *, sign: bool = True) -> str:
    """Return a change in its unit, with its 95 % interval in brackets if it has one."""
    if values.mean is None:
        return "no such cells"
    text = f"{number(values.mean, digits, sign=sign)} {unit}"
    if values.interval is None:
        return text
    return f"{text} [{interval_text(values.interval, digits, sign=sign)}]"


def estimate_text(estimate: Estimate | None, digits: int = 2, *, sign: bool = False) -> str:
    """Return an estimate, with its 95 % interval in brackets if it has one."""
    if estimate is None:
        return "-"
    text = number(estimate.value, digits, sign=sign)
    if estimate.interval is None:
        return text
    return f"{text} [{interval_text(estimate.interval, digits, sign=sign)}]"


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
    simulated = number(row.simulated, digits)
    text = f"published {bound}{row.published:g} {row.unit}, simulated {simulated}"
    if row.simulated.interval is not None:
        text += f" [{interval_text(row.simulated.interval, digits)}]"
    return f"{text}, error {number(row.error, digits, sign=True)} {row.tolerance.unit}"


# --- tables -------------------------------------------------------------------------------------

# How tables.csv says that values are written; some with a number of decimals.
_TEXTS: Final[Mapping[str, Callable[..., str]]] = {
    "text": str,
    "short": "{:g}".format,
    "number": number,
    "signed": partial(number, sign=True),
    "margin": margin_text,
    "mean": mean_text,
    "spread": spread_text,
    "change": lambda samples: change_text(samples, "%", 1),
    "words": lambda agreement: agreement.words,
    "runs": lambda samples: str(len(samples.values)),
}


def columns(study: str, table: str) -> tuple[Column, ...]:
    """Return the columns of a table in tables.csv of a study."""
    found = []
    for row in read_rows(study, "tables.csv"):
        if table in row["tables"].split():
            kind, _, digits = row["text"].partition(" ")
            text = _TEXTS.get(kind)
            if text is not None and kind in {"number", "signed", "margin", "mean", "spread"}:
                text = partial(text, digits=int(digits) if digits else None)
            once = kind == "once"
            found.append(Column(row["name"], row["heading"], row["note"], text, once=once))
    return tuple(found)


def view(
    title: str,
    columns: Sequence[Column],
    rows: Sequence[Row],
    *,
    key: int = 1,
    group: int = 0,
    strong: Collection[str] = ("error",),
) -> View:
    """Return compared rows as a table; the columns ``strong`` are emphasized where outside."""
    emphasized = set()
    for i, row in enumerate(rows):
        for j, name in enumerate(column.name for column in columns):
            if name in strong and row[f"{name.rpartition('error')[0]}is_outside"]:
                emphasized.add((i, j))
    cells = [[row[column.name] for column in columns] for row in rows]
    return View(title, columns, cells, key=key, group=group, strong=emphasized)


def inputs_view(inputs: Sequence[Input]) -> View:
    """Return every input with its provenance."""
    title = "Each value of the scenario that is not a default, and what the study sets."
    rows = [each.to_json() for each in inputs]
    return from_mappings(title, columns("base", "inputs"), rows)
