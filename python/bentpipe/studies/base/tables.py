"""Tables and lines of compared rows, and numbers as texts."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any, Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bentpipe.report import INK, STYLE
from bentpipe.results import Column, Interval, View
from bentpipe.studies.base.comparison import (
    Agreement,
    Estimate,
    Row,
    Samples,
    errors_of,
    mean_error,
)
from bentpipe.studies.base.inputs import read_rows

# --- texts --------------------------------------------------------------------------------------


def number(value: float | Samples | None, digits: int | None = 2, *, sign: bool = False) -> str:
    """Return a value or a mean with decimals, or four significant digits; a dash for None."""
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
    half = None if mean is None or interval is None else interval.high - mean
    return number(mean, digits) + ("" if half is None else f" \u00b1{number(half, digits)}")


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
    return f"{text}{_brackets(values.interval, digits, sign=sign)}"


def estimate_text(estimate: Estimate | None, digits: int = 2, *, sign: bool = False) -> str:
    """Return an estimate, with its 95 % interval in brackets if it has one."""
    if estimate is None:
        return "-"
    brackets = _brackets(estimate.interval, digits, sign=sign)
    return f"{number(estimate.value, digits, sign=sign)}{brackets}"


def _brackets(interval: Interval | None, digits: int, *, sign: bool = False) -> str:
    return "" if interval is None else f" [{interval_text(interval, digits, sign=sign)}]"


def errors_text(rows: Sequence[Row]) -> str:
    """Return mean error, largest error and agreement of rows as a sentence."""
    summary = errors_of(rows)
    if not summary["simulated"]:
        return f"none of {summary['rows']} was simulated."
    unit, mean = summary["error_unit"], mean_error(rows)
    agreement = ", ".join(
        f"{summary[degree]} {degree.words}" for degree in Agreement if summary.get(degree)
    )
    texts = [f"{summary['simulated']} rows"]
    if mean is not None:
        largest = number(summary["max_absolute_error"])
        texts = [
            f"mean absolute error {estimate_text(mean)} {unit} over "
            f"{summary['simulated'] - summary['bounds']} rows, largest {largest} {unit}",
            *([f"bounds: {summary['bounds']}"] if summary["bounds"] else []),
        ]
    return "; ".join([*texts, *filter(None, [agreement])]) + "."


def row_text(row: Row, digits: int = 2) -> str:
    """Return published and simulated value, interval and error of a row as text."""
    bound = "" if row.bound == "equal" else f"{row.bound.replace('_', ' ')} "
    simulated = f"{number(row.simulated, digits)}{_brackets(row.simulated.interval, digits)}"
    error = f"{number(row.error, digits, sign=True)} {row.tolerance.unit}"
    return f"published {bound}{row.published:g} {row.unit}, simulated {simulated}, error {error}"


# --- tables -------------------------------------------------------------------------------------

# How tables.csv says that values are written, the first ones with a number of decimals.
_NUMBERS: Final[Mapping[str, Callable[..., str]]] = {
    "number": number,
    "signed": partial(number, sign=True),
    "margin": margin_text,
    "mean": mean_text,
    "spread": spread_text,
    "estimate": estimate_text,
    "estimate_signed": partial(estimate_text, sign=True),
}
_TEXTS: Final[Mapping[str, Callable[..., str]]] = {
    "text": str,
    "short": "{:g}".format,
    "change": lambda samples: change_text(samples, "%", 1),
    "words": lambda agreement: agreement.words,
    "runs": lambda samples: str(len(samples.values)),
}


def columns(study: str, table: str) -> tuple[Column, ...]:
    """Return the columns of a table in tables.csv of a study."""
    return tuple(
        Column(row["name"], row["heading"], row["note"], _text(row["text"]), row["text"] == "once")
        for row in read_rows(study, "tables.csv")
        if table in row["tables"].split()
    )


def _text(kind: str) -> Callable[..., str] | None:
    name, _, digits = kind.partition(" ")
    if name in _NUMBERS:
        return partial(_NUMBERS[name], digits=int(digits) if digits else None)
    return _TEXTS.get(name)


def view(
    study: str,
    table: str,
    rows: Sequence[Row | Mapping[str, Any] | Sequence[Any]],
    *,
    shown: Sequence[Column] | None = None,
    strong: Collection[str] = ("error",),
    **values: Any,
) -> View:
    """Return a table of a study, as titles.csv and tables.csv describe it.

    ``rows`` are compared rows, or values by name or in the order of the columns; ``shown`` are
    other columns than those of tables.csv, ``values`` those in the title. Of compared rows the
    columns ``strong`` are emphasized where they are outside.
    """
    (about,) = (row for row in read_rows(study, "titles.csv") if row["table"] == table)
    shown_columns = columns(study, about["columns"]) if shown is None else shown
    names = [column.name for column in shown_columns]
    cells = [
        [row[name] for name in names] if isinstance(row, Row | Mapping) else row for row in rows
    ]
    emphasized = {
        (i, j)
        for (i, row), (j, name) in product(enumerate(rows), enumerate(names))
        if isinstance(row, Row) and name in strong
        if row[f"{name.rpartition('error')[0]}is_outside"]
    }
    key, group, title = int(about["key"]), int(about["group"] or 0), about["title"].format(**values)
    return View(title, shown_columns, cells, key, group, strong=emphasized)


# The style of marks without lines.
HOLLOW: Final[Mapping[str, Any]] = {
    "linestyle": "none",
    "markersize": 5,
    "markerfacecolor": "none",
    "markeredgewidth": 1.3,
}


def plot_samples(
    axes: Axes, x: Sequence[float], samples: Sequence[Samples], *, color: str, **style: Any
) -> None:
    """Draw means as a line, and their 95 % intervals as a band."""
    means = [math.nan if point.mean is None else point.mean for point in samples]
    pairs = [(mean, point.interval) for mean, point in zip(means, samples, strict=True)]
    axes.fill_between(
        x,
        [mean if interval is None else interval.low for mean, interval in pairs],
        [mean if interval is None else interval.high for mean, interval in pairs],
        color=color,
        alpha=0.2,
        linewidth=0,
    )
    axes.plot(x, means, color=color, **style)


def plot_published(
    axes: Axes, x: Sequence[float], rows: Sequence[Row], color: str, label: str | None = None
) -> None:
    """Draw the published values of rows as circles."""
    values = [math.nan if row.published is None else row.published for row in rows]
    # In CSV a line has the band of its colour, which is that of the simulated values.
    axes.plot(x, values, marker="o", markeredgecolor=color, label=label, **HOLLOW)


def add_figure_legend(figure: Figure, axes: Axes, *, columns: int) -> None:
    """Add the legend of one panel above all panels: above its own, it would narrow that panel."""
    with mpl.rc_context(STYLE):
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper left", ncols=columns, labelcolor=INK)
