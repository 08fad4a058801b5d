"""References to metrics of a run, and thresholds.

A reference is ``TABLE.COLUMN.STATISTIC``, of all rows of a table or of some:
``flows.goodput_bps.p5`` is the 5th percentile over all flows, ``flows.download.goodput_bps.min``
the smallest of the entry of ``traffic`` or the flow with that name, ``flows.call.return.jitter_ns``
that of its flow in the return direction, and ``directions.forward.utilization`` a value of one row,
which needs no statistic. A threshold is ``flows.goodput_bps.p5 >= 2 Mbit/s``. Programs in a lab
have ``time`` and the metrics of directions.
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

# A part in double quotes is always a name, as in settings.
_PART: Final = re.compile(r'"([^"]+)"|([^".]+)')
_NAME: Final = re.compile(rf"(?:{_PART.pattern})(?:\.(?:{_PART.pattern}))*\.?")
_PERCENTILE: Final = re.compile(r"p(\d{1,2}|100|999)")
_STATISTICS: Final = ("min", "max", "mean", "sum", "jain", "p5", "p50", "p95", "p99", "p999")
HEADINGS: Final = ("forward", "return")
# The tables that metrics are read from.
TABLES: Final = tuple(KEYS)
# Those of a program in a lab.
PROGRAM_TABLES: Final = ("program", "directions")


@dataclass(frozen=True)
class MetricRef:
    """A metric of all rows of its table, or those with a name or a heading, and a statistic.

    A name is that of a flow, an entry of ``traffic``, a direction or a processor. A heading is
    forward or return: the direction of a flow's data, or the directions of all terminals. Without a
    statistic, the table must have one such row. The statistics are ``min``, ``max``,
    ``mean``, ``sum``, percentiles from ``p0`` to ``p100`` and ``p999`` (99.9 %), and ``jain``, the
    fairness index of the values.
    """

    table: str
    column: str
    statistic: str | None = None
    name: str | None = None
    heading: str | None = None

    def __str__(self) -> str:
        name = self.name
        if name is not None and ("." in name or name in HEADINGS):
            name = f'"{name}"'
        parts = (self.table, name, self.heading, self.column, self.statistic)
        return ".".join(part for part in parts if part)

    @property
    def share(self) -> float | None:
        """The share of a percentile, 0 to 1; None for other statistics."""
        match = _PERCENTILE.fullmatch(self.statistic or "")
        if match is None:
            return None
        return 0.999 if match[1] == "999" else int(match[1]) / 100

    @property
    def unit_column(self) -> str:
        """The column whose name has the unit of the metric; that of a fairness index has none."""
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
        what = "fairness" if self.statistic == "jain" else self.metric.title
        statistic = "" if self.statistic in {None, "jain", "mean"} else f" {self.statistic}"
        return (f"{where}: " if where else "") + what + statistic


def read_metric(text: str, tables: Sequence[str] = TABLES) -> MetricRef:
    """Read a reference to a metric of one of these tables.

    The metrics of a program need no table and no unit: ``time``.

    Raises:
        UsageError: it is not one; the message has the nearest name.
    """

    def error(reason: str) -> UsageError:
        return UsageError(f"metric {shown(text)}: {reason}")

    of_program = metrics_of("program") if "program" in tables else ()
    short_names = {title(name): f"program.{name}" for name in of_program}
    text = short_names.get(text, text)
    if not _NAME.fullmatch(text):
        raise error("expected names with dots between them, such as flows.goodput_bps.p5")
    # The parts, and whether each is in quotes.
    parts = [(match[1] or match[2], match[1] is not None) for match in _PART.finditer(text)]
    table, rest = parts[0][0], parts[1:]
    if table not in tables:
        raise error(f"table: {choice(table, (*short_names, *tables))}")
    columns = tuple(metrics_of(table))
    statistic = heading = None
    if len(rest) > 1 and not rest[-1][1] and rest[-1][0] not in columns:
        last = rest[-1][0]
        if last in _STATISTICS or _PERCENTILE.fullmatch(last):
            statistic = rest.pop()[0]
        elif rest[-2][0] in columns:
            raise error(f"statistic: {choice(last, _STATISTICS)}")
    column = rest.pop()[0] if rest else None
    if column is not None and column not in columns:
        # The nearest name says more than the list of some forty.
        hint = did_you_mean(column, columns) or f"; {', '.join(columns)}"
        raise error(f'the table {table} has no column "{column}"{hint}')
    if rest and rest[-1] in ((name, False) for name in HEADINGS):
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
    r"\s*(?P<metric>[^<>=!]+?)\s*(?P<operator>>=|<=|==|>|<)\s*(?P<limit>[^<>=!]+?)\s*", re.ASCII
)


@dataclass(frozen=True)
class Threshold:
    """A threshold: a metric, an operator, and the limit in the base unit of the metric."""

    text: str
    metric: MetricRef
    operator: str
    limit: float

    def holds(self, value: float | None) -> bool:
        """Return whether a value meets the threshold; a missing one does not."""
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
    """Return a document with thresholds of the command line after its own."""
    existing = document.data.get("thresholds")
    if not thresholds or not isinstance(existing, list | None):
        return document
    locations = dict(document.locations)
    for i, text in enumerate(thresholds, start=len(existing or ())):
        locations["thresholds", i] = SourceLocation(f"--threshold {shown(text)}")
    data = {**document.data, "thresholds": [*(existing or ()), *thresholds]}
    return replace(document, data=data, locations=locations)


def _check(text: str) -> str:
    try:
        read_threshold(text)
    except UsageError as error:
        raise refusal(str(error)) from None
    return text


# A record keeps the text.
ThresholdText = Annotated[
    str,
    AfterValidator(_check),
    WithJsonSchema({"type": "string", "examples": [_EXAMPLE]}),
]
