"""The metrics of a run: the columns of its tables that are shown, and those that Python derives.

``metrics.csv`` is the only list of them. Thresholds, `Result.flows` and the like, entries of
``traffic``, means of sweeps, comparisons, tables and menus read it: a new metric is a line there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from bentpipe import _core
from bentpipe.quantities import quantity, title
from bentpipe.text import csv_rows

ShownIn: TypeAlias = Literal["run", "entry", "sweep", "compare", "dashboard"]

# Kinds of flow.
ALL: Final[tuple[str, ...]] = ()
TCP: Final = ("bulk", "request_response", "video", "web_page", "channel")
UDP: Final = ("constant_rate", "voice", "conference")
EXCHANGES: Final = ("request_response", "channel")
PAGES: Final = ("web_page",)
CALLS: Final = ("voice",)
# The tables with rows of flows of some kinds.
KINDS_OF_ROWS: Final[Mapping[str, tuple[str, ...]]] = {
    "exchanges": ("request_response", "video", "channel"),
    "pages": PAGES,
}


@dataclass(frozen=True)
class Metric:
    """A column of a table, with what a person reads about it.

    ``name`` ends in the unit. ``title`` and ``note`` are the two lines of a heading: the note is
    the layer of the unit, or of what a share is. ``shown`` has the places that show the metric:

    - ``run``: the tables of a run, and ``optional`` ones only if a row has a value other than 0;
    - ``entry``: percentiles over the flows of an entry of ``traffic``;
    - ``sweep``: the means of the cells of a sweep, of directions those of forward;
    - ``compare``: what `bentpipe.compare` compares by default;
    - ``dashboard``: the first ones of a menu that has all.

    ``better`` says which values are better, if that is clear. ``kinds`` are the kinds of flow, or
    of gateway function, in whose tables it is shown; `ALL` for any.

    A metric that is no column of the simulator is derived: by ``formula``, an SQL expression of
    columns of its row; or as a statistic ``of`` the rows that its flow has in another table, such
    as ``exchanges.time_ns.p95``; or in code (`bentpipe.results.tables`). A formula may use further
    columns: ``run_ns``, the time of the run; in ``flows`` also ``size_bytes``, the size of a
    transfer that has one; in ``functions`` ``offered_bytes``, the IP bytes that the direction away
    from the function received. ``decimals`` are those of a number without a unit, in tables.
    """

    table: str
    name: str
    title: str
    note: str = ""
    shown: str = ""
    better: Literal["", "higher", "lower"] = ""
    kinds: tuple[str, ...] = ALL
    formula: str = ""
    of: str = ""
    definition: str = ""
    optional: bool = False
    decimals: int | None = None

    @property
    def is_derived(self) -> bool:
        """Whether Python computes it."""
        columns = COLUMNS.get(self.table)
        return bool(self.formula) if columns is None else self.name not in columns

    @property
    def meaning(self) -> str:
        """Its definition: that of the simulator for its columns."""
        return self.definition or _MEANINGS.get((self.table, self.name), "")

    @property
    def label(self) -> str:
        """Title and note in a line, such as "goodput, application bits"."""
        unit = quantity(self.name).units[-1][0]
        return self.title if self.note in {"", unit} else f"{self.title}, {self.note}"


_SCHEMA: Final = _core.table_schema()
# The columns of the simulator's tables, and what they mean.
COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    table: tuple(column[0] for column in columns) for table, _, columns in _SCHEMA
}
_MEANINGS: Final = {
    (table, name): meaning for table, _, columns in _SCHEMA for name, _, _, meaning, _ in columns
}


def _sum(table: str, pattern: str) -> str:
    """Return the formula of the sum of the columns of a table whose whole names match."""
    return " + ".join(name for name in COLUMNS[table] if re.fullmatch(pattern, name))


# What formulas of the file refer to.
_SUMS: Final = {
    "lost": _sum("flows", "lost_.*_packets"),
    "limited": _sum("flows", ".*_limited_ns"),
    "dropped": _sum("directions", "dropped_.*_packets"),
}
_GROUPS: Final = {"": ALL, "tcp": TCP, "udp": UDP, "exchanges": EXCHANGES}


def _metrics() -> Iterator[Metric]:
    for row in csv_rows(Path(__file__).parent / "metrics.csv"):
        values: dict[str, Any] = {
            **row,
            "title": row["title"] or title(row["name"]),
            "kinds": _GROUPS.get(row["kinds"], (row["kinds"],)),
            "formula": row["formula"].format(**_SUMS, tcp=TCP),
            "optional": row["optional"] == "yes",
            "decimals": int(row["decimals"]) if row["decimals"] else None,
        }
        yield Metric(**values)


METRICS: tuple[Metric, ...] = tuple(_metrics())
# The parts of the time of a TCP flow with their titles, in the order of tables and bars.
CAPACITY_PARTS: Final[Mapping[str, str]] = {
    metric.name.removesuffix("_percent"): metric.title
    for metric in METRICS
    if metric.table == "attribution"
}

# The columns that name or number a row, in the tables that metrics of runs are read from.
KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "flows": ("flow", "terminal"),
    "exchanges": ("flow", "exchange", "host"),
    "pages": ("flow", "page"),
    "directions": ("direction",),
    "classes": ("direction", "class"),
    "processors": ("processor",),
}


def metrics_of(table: str) -> dict[str, Metric]:
    """Return the metrics of a table by name."""
    return {metric.name: metric for metric in METRICS if metric.table == table}


def metrics_named(text: str) -> list[Metric]:
    """Return the metrics with this name or title: ``flows.mos``, ``mos``, ``goodput``."""
    wanted = text.lower()
    return [
        metric
        for metric in METRICS
        if wanted in {metric.name, f"{metric.table}.{metric.name}", metric.title.lower()}
    ]


def label_of(column: str) -> str:
    """Return the label of a column of some table; its name in words if it is no metric."""
    return next((metric.label for metric in METRICS if metric.name == column), title(column))


def metrics_shown(place: ShownIn, table: str, *kinds: tuple[str, ...]) -> list[Metric]:
    """Return the metrics of a table that a place shows; with ``kinds`` those that have one of them.

    ``metrics_shown("run", "flows", ALL, TCP)`` are the columns of the table of TCP flows.
    """
    return [
        metric
        for metric in METRICS
        if metric.table == table
        and place in metric.shown.split()
        and (not kinds or metric.kinds in kinds)
    ]
