"""The tables of a run: its flows, entries of ``traffic``, directions and functions of gateways.

Their columns are the metrics that are ``shown`` for a run or an entry (`bentpipe.metrics`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from bentpipe.metrics import ALL, EXCHANGES, TCP, UDP, Metric, metrics_shown
from bentpipe.quantities import quantity
from bentpipe.results.measures import ENTRY_PERCENTILES, MAX_SINGLE_FLOWS, entry_statistics
from bentpipe.results.views import Column, View, from_mappings, html_table
from bentpipe.text import csv_rows

if TYPE_CHECKING:
    from bentpipe.results.result import Result

_Rows = Sequence[Mapping[str, Any]]

# More rows of `Result.directions` are together in a notebook.
_NOTEBOOK_ROWS: Final = 20
# Such as `return-7` and `terminal-7-processor`.
_TERMINAL: Final = re.compile(r"-\d+")
_FLOW: Final = (Column("name", "flow"), Column("direction", "direction", "of the data"))
# Kinds that have one name in ``run_tables.csv``.
_GROUPS: Final = {"all": ALL, "tcp": TCP, "udp": UDP, "exchanges": EXCHANGES}


@dataclass(frozen=True)
class _Table:
    """A table of a run: ``run_tables.csv`` explains the fields."""

    place: str
    noun: str
    table: str
    metrics: str
    title: str
    count: str
    time: str

    @property
    def kinds(self) -> list[tuple[str, ...]]:
        """The kinds of flow or of gateway function of its metrics; the last ones have a row."""
        return [_GROUPS.get(name, (name,)) for name in self.metrics.split()]

    def rows_of(self, flows: _Rows) -> list[Mapping[str, Any]]:
        return [row for row in flows if row["kind"] in self.kinds[-1]]


_TABLES: Final = [_Table(**row) for row in csv_rows(Path(__file__).parent / "run_tables.csv")]


def flow_views(result: Result) -> list[View]:
    """Return the flows, a table for each kind; more than some 12 by entry of ``traffic``."""
    if result.tables["flows"].height > MAX_SINGLE_FLOWS:
        return _entry_views(entry_statistics(result))
    flows = result.flows.to_dicts()
    views = []
    for table in _TABLES:
        if table.place == "flow" and (rows := table.rows_of(flows)):
            shown = columns_of(metrics_shown("run", "flows", *table.kinds), rows)
            columns = [*_FLOW, *shown, *_further(table.count)]
            views.append(from_mappings(table.title, columns, rows, key=2))
    return views


def _further(text: str, *, once: bool = False) -> list[Column]:
    """Return the column of a text such as ``NAME|TITLE|NOTE``, if there is one."""
    if not text:
        return []
    name, title, note = text.split("|")
    return [Column(name, title, note, once=once)]


def _entry_views(entries: _Rows) -> list[View]:
    views = []
    for table in _TABLES:
        table_entries = table.rows_of(entries)
        if table.place != "entry" or not table_entries:
            continue
        shown = columns_of(metrics_shown("entry", "flows", *table.kinds), table_entries)
        shown += _further(table.time)
        columns = (
            Column("entry", "entry"),
            Column("direction", "direction"),
            Column("of", f"of {table.noun}"),
            Column("flows", table.noun, once=True),
            *_further(table.count, once=True),
            *(column for column in shown if any(entry.get(column.name) for entry in table_entries)),
        )
        rows = [
            {
                **entry,
                **{column.name: (entry.get(column.name) or {}).get(f"p{p}") for column in shown},
                "of": f"p{p}",
            }
            for entry in table_entries
            for p in ENTRY_PERCENTILES
        ]
        views.append(from_mappings(table.title, columns, rows, key=3, group=2))
    return views


def attribution_view(result: Result) -> View | None:
    """Return where the capacity went, by TCP flow; None without such flows, or with many."""
    rows = [
        {**row, "time_ns": row["until_ns"] - row["from_ns"]}
        for row in result.attribution.to_dicts()
    ]
    if not 0 < len(rows) <= MAX_SINGLE_FLOWS:
        return None
    columns = (*_FLOW, Column("time_ns", "time", "of the flow"))
    parts = columns_of(metrics_shown("run", "attribution"), rows)
    title = "Where the capacity of the link went, in the time of each TCP flow"
    return from_mappings(title, [*columns, *parts], rows, key=2)


def link_views(result: Result, most: int) -> list[View]:
    """Return the directions, and the functions of gateways and legs of flows if there are some.

    In a table of more than ``most`` rows the terminals are one group of rows: percentiles over
    them, and over the legs between the same ends.
    """
    legs = result.legs.to_dicts()
    ends = [{**row, "leg": f"{row['from']} - {row['to']}"} for row in legs]
    if len(legs) <= most:
        ends = [{**row, "leg": f"{row['name']}: {row['leg']}"} for row in ends]
    rows = {
        "direction": result.directions.to_dicts(),
        "class": result.classes.to_dicts(),
        "processor": result.processors.to_dicts(),
        "leg": ends,
    }
    for row in result.functions:
        kind = row["function"].rpartition("-")[2]
        rows.setdefault(kind, []).append({**row, kind: row["function"]})
    views = []
    for table in _TABLES:
        if table.place == "link" and (table_rows := rows.get(table.noun)):
            columns = columns_of(metrics_shown("run", table.table, *table.kinds), table_rows)
            views.append(_link_view(table.noun, table.title, columns, table_rows, most))
    return views


def _link_view(noun: str, title: str, columns: Sequence[Column], rows: _Rows, most: int) -> View:
    """Return a table of rows that are named by their field ``noun``."""
    name = Column(noun, noun)
    if len(rows) <= most:
        return from_mappings(title, [name, *columns], rows)
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(_TERMINAL.sub("", row[noun], count=1), []).append(row)
    names = (name, Column("of", f"of {noun}s"), Column("count", f"{noun}s", once=True))
    grouped = [row for group in groups.values() for row in _group(noun, columns, group)]
    return from_mappings(title, [*names, *columns], grouped, key=2, group=1)


def _group(noun: str, columns: Sequence[Column], rows: _Rows) -> list[Mapping[str, Any]]:
    """Return a row, or one for each percentile over several; counts stay integers."""
    first, last = rows[0][noun], rows[-1][noun]
    if len(rows) == 1:
        return [{**rows[0], "of": "", "count": 1}]
    percentiles: list[Mapping[str, Any]] = []
    for p in ENTRY_PERCENTILES:
        row = {noun: first if first == last else f"{first} to {last}", "of": f"p{p}"}
        for name in (column.name for column in columns):
            known = [row[name] for row in rows if row[name] is not None]
            value = float(np.percentile(known, p)) if known else None
            is_count = all(isinstance(number, int) for number in known) and quantity(name).is_count
            row[name] = round(value) if is_count and value is not None else value
        percentiles.append({**row, "count": len(rows)})
    return percentiles


def columns_of(shown: Iterable[Metric], rows: _Rows) -> list[Column]:
    """Return the columns of metrics, those of optional ones only if a row has some of it."""
    return [
        Column(
            metric.name,
            metric.title,
            metric.note,
            None if metric.decimals is None else f"{{:,.{metric.decimals}f}}".format,
            meaning=metric.meaning,
        )
        for metric in shown
        if not metric.optional or any(row.get(metric.name) for row in rows)
    ]


def notebook_html(result: Result) -> str:
    """Return the flows and the directions of the link as tables, for a notebook."""
    facts = f"seed {result.manifest['seed']}, {result.stop_reason or result.ending}"
    if result.invalid is not None:
        facts += f", INVALID: {result.invalid}"
    views = [*flow_views(result), link_views(result, _NOTEBOOK_ROWS)[0]]
    tables = "".join(map(html_table, views))
    return f"<h4>{escape(result.title)}</h4><p>{escape(facts)}</p>{tables}"
