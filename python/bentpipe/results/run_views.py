"""The tables of a run: its flows, entries of ``traffic``, directions and functions of gateways.

Their columns are the metrics that are ``shown`` for a run or an entry (`bentpipe.metrics`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from html import escape
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from bentpipe.metrics import (
    ALL,
    CALLS,
    EXCHANGES,
    PAGES,
    TCP,
    UDP,
    VIDEO,
    Metric,
    metrics_shown,
)
from bentpipe.quantities import quantity
from bentpipe.results.measures import ENTRY_PERCENTILES, MAX_SINGLE_FLOWS, entry_statistics
from bentpipe.results.views import Column, View, from_mappings, html_table

if TYPE_CHECKING:
    from bentpipe.results.result import Result

_Rows = Sequence[Mapping[str, Any]]

# More rows of `Result.directions` are together in a notebook.
_NOTEBOOK_ROWS: Final = 20
# Such as `return-7` and `terminal-7-processor`.
_TERMINAL: Final = re.compile(r"-\d+")
_FLOW: Final = (Column("name", "flow"), Column("direction", "direction", "of the data"))
_FETCHED: Final = (Column("exchanges", "fetched", "segments"),)
_FINISHED: Final = (Column("exchanges", "finished", "pages"),)
# The tables of flows: the kinds of flow, those of the metrics, the title, and further columns.
_FLOW_TABLES: Final = (
    (
        TCP,
        (ALL, TCP),
        "TCP flows (goodput: application data in order, over the flow's duration)",
        (),
    ),
    (EXCHANGES, (EXCHANGES,), "Exchanges (request and response)", ()),
    (
        VIDEO,
        (VIDEO,),
        "Videos (a stall: the buffer is empty before the end of the media)",
        _FETCHED,
    ),
    (PAGES, (PAGES,), "Web pages (to the last byte of the last object)", _FINISHED),
    (
        UDP,
        (ALL, UDP),
        "UDP flows (expected: sent to the receiver, in a conference by the others)",
        (),
    ),
    (CALLS, (CALLS,), "Calls (R-factor and MOS: ITU-T G.107, without echo)", ()),
)
_TIMES: Final = (Column("completion_time_ns", "completion time", "of transfers, exchanges"),)
_LOADS: Final = (Column("page_load_time_ns", "load time", "from the click"),)
_LOST: Final = (Column("lost_packets", "lost", "packets", once=True),)
_LOADED: Final = (replace(_FINISHED[0], once=True),)
# The same by entry: also what is counted, counts of the entry, and times of what flows consist of.
_ENTRY_TABLES: Final = (
    (TCP, (ALL, TCP), "TCP flows by entry of traffic", "flows", _LOST, _TIMES),
    (UDP, (ALL, UDP), "UDP flows by entry of traffic", "flows", _LOST, ()),
    (PAGES, (PAGES,), "Web pages by entry of traffic", "users", _LOADED, _LOADS),
    (CALLS, (CALLS,), "Calls by entry of traffic (ITU-T G.107)", "calls", (), ()),
    (VIDEO, (VIDEO,), "Videos by entry of traffic", "videos", (), ()),
)
_LINK: Final = "Link (link bytes include framing; IP bytes do not)"
_PROCESSORS: Final = "Gateways (a processor handles the packets of both sides, one at a time)"
_LEGS: Final = "Legs of the flows that PEPs split"
# The functions of gateways that have statistics, each with the title of its table.
_FUNCTIONS: Final = (
    ("aggregator", "Aggregators (they pack the packets for the link into frames)"),
    (
        "tunnel",
        "Coded tunnels (they send repair over the link, from which the other end recovers losses)",
    ),
    ("pep", "PEPs (they split TCP connections)"),
)


def flow_views(result: Result) -> list[View]:
    """Return the flows, a table for each kind; more than some 12 by entry of ``traffic``."""
    if result.tables["flows"].height > MAX_SINGLE_FLOWS:
        return _entry_views(entry_statistics(result))
    flows = result.flows.to_dicts()
    views = []
    for kinds, of, title, further in _FLOW_TABLES:
        if rows := _of_kinds(flows, kinds):
            metrics = columns_of(metrics_shown("run", "flows", *of), rows)
            views.append(from_mappings(title, [*_FLOW, *metrics, *further], rows, key=2))
    return views


def _entry_views(entries: _Rows) -> list[View]:
    views = []
    for kinds, of, title, noun, counts, times in _ENTRY_TABLES:
        own = _of_kinds(entries, kinds)
        shown = [*columns_of(metrics_shown("entry", "flows", *of), own), *times]
        columns = (
            Column("entry", "entry"),
            Column("direction", "direction"),
            Column("of", f"of {noun}"),
            Column("flows", noun, once=True),
            *counts,
            *(each for each in shown if any(entry.get(each.name) for entry in own)),
        )
        rows = [
            {
                **entry,
                **{each.name: (entry.get(each.name) or {}).get(f"p{p}") for each in shown},
                "of": f"p{p}",
            }
            for entry in own
            for p in ENTRY_PERCENTILES
        ]
        if own:
            views.append(from_mappings(title, columns, rows, key=3, group=2))
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
    functions: dict[str, list[dict[str, Any]]] = {kind: [] for kind, _ in _FUNCTIONS}
    for row in result.functions:
        kind = row["function"].rpartition("-")[2]
        functions.setdefault(kind, []).append({**row, kind: row["function"]})
    tables = [
        ("direction", "directions", ALL, _LINK, result.directions.to_dicts()),
        ("processor", "processors", ALL, _PROCESSORS, result.processors.to_dicts()),
        *((kind, "functions", (kind,), title, functions[kind]) for kind, title in _FUNCTIONS),
        ("leg", "legs", ALL, _LEGS, ends),
    ]
    return [
        _link_view(noun, title, columns_of(metrics_shown("run", table, kinds), rows), rows, most)
        for noun, table, kinds, title, rows in tables
        if rows
    ]


def _link_view(noun: str, title: str, columns: Sequence[Column], rows: _Rows, most: int) -> View:
    """Return a table of rows that are named by their field ``noun``."""
    name = Column(noun, noun)
    if len(rows) <= most:
        return from_mappings(title, [name, *columns], rows)
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(_TERMINAL.sub("", row[noun], count=1), []).append(row)
    names = (name, Column("of", f"of {noun}s"), Column("count", f"{noun}s", once=True))
    grouped = [row for own in groups.values() for row in _group(noun, columns, own)]
    return from_mappings(title, [*names, *columns], grouped, key=2, group=1)


def _group(noun: str, columns: Sequence[Column], rows: _Rows) -> list[Mapping[str, Any]]:
    """Return a row, or one for each percentile over several; counts stay integers."""
    first, last = rows[0][noun], rows[-1][noun]
    if len(rows) == 1:
        return [{**rows[0], "of": "", "count": 1}]
    found: list[Mapping[str, Any]] = []
    for p in ENTRY_PERCENTILES:
        row = {noun: first if first == last else f"{first} to {last}", "of": f"p{p}"}
        for name in (column.name for column in columns):
            known = [row[name] for row in rows if row[name] is not None]
            value = float(np.percentile(known, p)) if known else None
            is_count = all(isinstance(each, int) for each in known) and quantity(name).is_count
            row[name] = round(value) if is_count and value is not None else value
        found.append({**row, "count": len(rows)})
    return found


def columns_of(metrics: Iterable[Metric], rows: _Rows) -> list[Column]:
    """Return the columns of metrics, those of optional ones only if a row has some of it."""
    return [
        Column(
            each.name,
            each.title,
            each.note,
            None if each.decimals is None else f"{{:,.{each.decimals}f}}".format,
        )
        for each in metrics
        if not each.optional or any(row.get(each.name) for row in rows)
    ]


def _of_kinds(rows: _Rows, kinds: Sequence[str]) -> list[Mapping[str, Any]]:
    return [row for row in rows if row["kind"] in kinds]


def notebook_html(result: Result) -> str:
    """Return the flows and the directions of the link as tables, for a notebook."""
    facts = f"seed {result.manifest['seed']}, {result.stop_reason or result.ending}"
    if result.invalid is not None:
        facts += f", INVALID: {result.invalid}"
    views = [*flow_views(result), link_views(result, _NOTEBOOK_ROWS)[0]]
    tables = "".join(map(html_table, views))
    return f"<h4>{escape(result.title)}</h4><p>{escape(facts)}</p>{tables}"
