"""References to metrics of a run, and thresholds.

A reference is ``TABLE[.NAME][.HEADING].COLUMN[.STATISTIC]``. NAME is that of a flow, an entry of
``traffic``, a direction or a processor; HEADING is ``forward`` or ``return``. Without them the
reference covers all rows of the table: ``flows.goodput_bps.p5`` is the 5th percentile over all
flows, ``flows.download.goodput_bps.min`` the minimum over the entry or flow ``download``, and
``flows.call.return.jitter_ns`` a single value. A threshold compares a reference with a limit:
``flows.goodput_bps.p5 >= 2 Mbit/s``. A program in a lab (``bentpipe exec``) has the tables
``program`` (short form: ``time``) and ``directions``.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final

from pydantic import AfterValidator, WithJsonSchema

from bentpipe.errors import UnitError, UsageError
from bentpipe.metrics import KEYS, Metric, metrics_of
from bentpipe.quantities import quantity, title
from bentpipe.scenario.document import Document, SourceLocation
from bentpipe.scenario.record import refusal
from bentpipe.text import choice, did_you_mean, shown

# One part: in double quotes it is always a name and may have dots, else it has none.
_PART: Final = re.compile(r'"([^"]+)"|([^".]+)')
_REFERENCE: Final = re.compile(rf"(?:{_PART.pattern})(?:\.(?:{_PART.pattern}))*")
# p999 is 99.9 %.
_PERCENTILE: Final = re.compile(r"p(0|[1-9]\d?|100|999)", re.ASCII)
# What messages suggest; all percentiles are allowed.
_SUGGESTED: Final = ("min", "max", "mean", "sum", "jain", "p5", "p50", "p95", "p99", "p999")
# The direction of a flow's data. The returns of several terminals are all "return".
HEADINGS: Final = ("forward", "return")
# The tables that metrics are read from.
TABLES: Final = tuple(KEYS)
# The tables of `bentpipe exec`, which runs a program behind a link.
PROGRAM_TABLES: Final = ("program", "directions")


@dataclass(frozen=True)
class MetricRef:
    """A metric of all rows of its table, or those with a name or a heading, and a statistic.

    A name is that of a flow, an entry of ``traffic``, a direction or a processor. A heading is
    forward or return: the direction of a flow's data, or the returns of all terminals. Without a
    statistic, a run must have at most one such row with a value. The statistics are ``min``,
    ``max``, ``mean``, ``sum``, percentiles from ``p0`` to ``p100`` and ``p999`` (99.9 %), and
    ``jain``, Jain's fairness index (Jain, Chiu and Hawe, DEC-TR-301, 1984).
    """

    table: str
    column: str
    statistic: str | None = None
    name: str | None = None
    heading: str | None = None

    def __str__(self) -> str:
        name = self.name
        # Without quotes "forward" would be read as a heading.
        if name is not None and ("." in name or name in HEADINGS):
            name = f'"{name}"'
        parts = (self.table, name, self.heading, self.column, self.statistic)
        return ".".join(part for part in parts if part)

    @property
    def quantile(self) -> float | None:
        """The quantile of a percentile, 0 to 1; None for other statistics."""
        match = _PERCENTILE.fullmatch(self.statistic or "")
        if match is None:
            return None
        return 0.999 if match[1] == "999" else int(match[1]) / 100

    @property
    def unit_column(self) -> str:
        """The column whose suffix has the unit of the metric; "jain" has none: it is a number."""
        return "jain" if self.statistic == "jain" else self.column

    @property
    def better(self) -> str:
        """Which values are better: "higher", "lower", or "" if that is not clear."""
        return "higher" if self.statistic == "jain" else self.metric.better

    @property
    def metric(self) -> Metric:
        """The entry of the registry."""
        return metrics_of(self.table)[self.column]

    @property
    def title(self) -> str:
        """The metric for a person: "download: goodput p5"."""
        where = " ".join(part for part in (self.name, self.heading) if part)
        where = where or ("" if self.table == "flows" else self.table)
        what = self.metric.title
        if self.statistic == "jain":
            what = f"fairness of {what}"
        statistic = "" if self.statistic in {None, "jain", "mean"} else f" {self.statistic}"
        return (f"{where}: " if where else "") + what + statistic


def read_metric(text: str, tables: Sequence[str] = TABLES) -> MetricRef:
    """Read a reference to a metric of one of these tables.

    With the table ``program`` its metrics may be written without table and unit: ``time``.

    Raises:
        UsageError: it is not one; the message has the nearest name.
    """

    def error(reason: str) -> UsageError:
        return UsageError(f"metric {shown(text)}: {reason}")

    of_program = metrics_of("program") if "program" in tables else ()
    short_names = {title(name): f"program.{name}" for name in of_program}
    text = short_names.get(text, text)
    if not _REFERENCE.fullmatch(text):
        raise error("expected names with dots between them, such as flows.goodput_bps.p5")
    # The parts, and whether each is in quotes.
    parts = [(match[1] or match[2], match[1] is not None) for match in _PART.finditer(text)]
    table, rest = parts[0][0], parts[1:]
    if table not in tables:
        raise error(f"table: {choice(table, (*short_names, *tables))}")
    columns = tuple(metrics_of(table))
    statistic = heading = None
    # The last part is a statistic if it is not a column.
    if len(rest) > 1 and not rest[-1][1] and rest[-1][0] not in columns:
        last = rest[-1][0]
        if last in _SUGGESTED or _PERCENTILE.fullmatch(last):
            statistic = rest.pop()[0]
        elif rest[-2][0] in columns:
            raise error(f"statistic: {choice(last, _SUGGESTED)}")
    column = rest.pop()[0] if rest else None
    if column is not None and column not in columns:
        # The nearest name says more than a list, which for flows has some seventy.
        hint = did_you_mean(column, columns) or f"; {', '.join(columns)}"
        raise error(f'the table {table} has no column "{column}"{hint}')
    if rest and not rest[-1][1] and rest[-1][0] in HEADINGS:
        heading = rest.pop()[0]
    if column is None or len(rest) > 1:
        expected = "expected TABLE.COLUMN.STATISTIC, such as flows.goodput_bps.p5, or"
        advice = "a name with dots goes in double quotes"
        raise error(f"{expected} TABLE.NAME.COLUMN.STATISTIC; {advice}")
    return MetricRef(table, column, statistic, rest[0][0] if rest else None, heading)


# --- thresholds -----------------------------------------------------------------------------------


OPERATORS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    ">": operator.gt,
    "<": operator.lt,
}
_EXAMPLE: Final = "flows.goodput_bps.p5 >= 2 Mbit/s"
_THRESHOLD: Final = re.compile(
    r'\s*(?P<metric>(?:"[^"]*"|[^"<>=!])+?)\s*(?P<operator>>=|<=|==|>|<)\s*(?P<limit>[^<>=!]+?)\s*',
    re.ASCII,
)


@dataclass(frozen=True)
class Threshold:
    """A threshold: a metric, an operator, and the limit in the base unit of the metric."""

    text: str
    metric: MetricRef
    operator: str
    limit: float

    def holds(self, value: float | None) -> bool:
        """Return whether a value meets the threshold; None and NaN do not."""
        return value is not None and OPERATORS[self.operator](value, self.limit)


def read_threshold(text: str, tables: Sequence[str] = TABLES) -> Threshold:
    """Read a threshold of a metric of one of these tables.

    Raises:
        UsageError: it is none: no such metric, operator or unit.
    """
    match = _THRESHOLD.fullmatch(text)
    if match is None:
        raise UsageError(
            f'read {shown(text)}; expected METRIC, >=, <=, >, < or ==, and a value: "{_EXAMPLE}"'
        )
    metric = read_metric(match["metric"], tables)
    try:
        limit = quantity(metric.unit_column).read(match["limit"])
    except UnitError as error:
        raise UnitError(f"{metric}: {error}") from None
    return Threshold(text, metric, match["operator"], float(limit))


def with_thresholds(document: Document, thresholds: Sequence[str]) -> Document:
    """Return a document with thresholds of the command line after its own.

    They are no changed settings: the document before it has them, too.
    """
    existing = document.data.get("thresholds")
    # Validation refuses thresholds that are not a list.
    if not thresholds or not isinstance(existing, list | None):
        return document
    locations = dict(document.locations)
    for i, text in enumerate(thresholds, start=len(existing or ())):
        locations["thresholds", i] = SourceLocation(f"--threshold {shown(text)}")
    data = {**document.data, "thresholds": [*(existing or ()), *thresholds]}
    before = document.before and with_thresholds(document.before, thresholds)
    return replace(document, data=data, locations=locations, before=before)


def _check_threshold(text: str) -> str:
    try:
        read_threshold(text)
    except UsageError as error:
        raise refusal(str(error)) from None
    return text


# An element of ``thresholds``: checked, and kept as text, so that a scenario is saved unchanged.
ThresholdText = Annotated[
    str,
    AfterValidator(_check_threshold),
    WithJsonSchema({"type": "string", "examples": [_EXAMPLE]}),
]
