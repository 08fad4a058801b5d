"""The tables of the link of a run as texts: directions, and the functions of gateways.

A table with many rows has those of all terminals together: percentiles over them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from bentpipe.results.entries import ENTRY_PERCENTILES
from bentpipe.results.tables import DROP_CAUSES
from bentpipe.results.text_table import TextTable, count, duration, duration_pair, percent
from bentpipe.units import format_size

if TYPE_CHECKING:
    from bentpipe.results.result import Result

# Shown also if they dropped nothing; other causes only if they did.
_USUAL_CAUSES: Final = ("queue_full", "bit_error")
# Such as `return-7` and `terminal-7-processor`.
_TERMINAL: Final = re.compile(r"-\d+")


@dataclass(frozen=True)
class _Column:
    """A column of numbers: its heading and unit, the fields that it shows, and their text."""

    heading: str
    unit: str
    text: Callable[..., str]
    fields: Sequence[str]


def link_tables(result: Result, most: int) -> list[TextTable]:
    """Return the directions, and the functions of gateways and legs of flows if there are some.

    In a table of more than ``most`` rows the terminals are one group of rows.
    """
    tables = [
        direction_table,
        processor_table,
        aggregator_table,
        tunnel_table,
        pep_table,
        leg_table,
    ]
    found = [table(result, most) for table in tables]
    return [table for table in found if table.rows]


def direction_table(result: Result, most: int) -> TextTable:
    """Return the directions of the link; of more than ``most``, the returns together."""
    table = result.directions
    found = [cause for cause in DROP_CAUSES if table[f"dropped_{cause}_packets"].sum() > 0]
    causes = [cause for cause in DROP_CAUSES if cause in found or cause in _USUAL_CAUSES]
    columns = [
        _Column("utilization", "busy time / run", _utilization, ["utilization"]),
        _Column("loss", "of packets", percent, ["loss_percent"]),
        *(
            _Column(
                f"dropped: {cause.replace('_', ' ')}",
                "packets",
                count,
                [f"dropped_{cause}_packets"],
            )
            for cause in causes
        ),
        _Column("sent", "link bytes", format_size, ["sent_bytes"]),
        _Column("sent", "packets", count, ["sent_packets"]),
        _Column("delivered", "packets", count, ["delivered_packets"]),
        _Column("delivered", "IP bytes", format_size, ["delivered_bytes"]),
        _Column("held at the end", "packets", count, ["held_packets"]),
        _Column("largest queue", "IP bytes", format_size, ["queue_max_bytes"]),
        *(
            _Column(f"queue delay p{p}", "of packets", duration, [f"queue_delay_p{p}_ns"])
            for p in (50, 95, 99)
        ),
        *(
            _Column(f"queue {state}", "of time", percent, [f"queue_{state}_percent"])
            for state in ("empty", "full")
        ),
    ]
    title = "Link (link bytes include framing; IP bytes do not)"
    return _table(title, "direction", columns, table.to_dicts(), most)


def processor_table(result: Result, most: int) -> TextTable:
    """Return the processors of gateways; of more than ``most``, those of terminals together."""
    columns = [
        _Column("utilization", "busy time / run", _utilization, ["utilization"]),
        _Column("received from its network", "packets", count, ["received_lan_packets"]),
        _Column("dropped of these", "packets", count, ["dropped_lan_packets"]),
        _Column("received from the link", "packets", count, ["received_link_packets"]),
        _Column("dropped of these", "packets", count, ["dropped_link_packets"]),
        _Column("held at the end", "packets", count, ["held_packets"]),
    ]
    title = "Gateways (a processor handles the packets of both sides, one at a time)"
    return _table(title, "processor", columns, result.processors.to_dicts(), most)


def aggregator_table(result: Result, most: int) -> TextTable:
    """Return the aggregators of gateways; of more than ``most``, those of terminals together."""
    columns = [
        _Column("sent", "frames", count, ["sent_frames"]),
        _Column("in frames", "packets", count, ["packed_packets"]),
        _Column("sent alone", "packets", count, ["single_packets"]),
        _Column(
            "hold time mean / max",
            "of packets that waited",
            duration_pair,
            ["hold_time_mean_ns", "hold_time_max_ns"],
        ),
    ]
    title = "Aggregators (they pack the packets for the link into frames)"
    functions = [row for row in result.functions if "sent_frames" in row]
    rows = [{**row, "aggregator": row["function"]} for row in functions]
    return _table(title, "aggregator", columns, rows, most)


def tunnel_table(result: Result, most: int) -> TextTable:
    """Return the ends of tunnels; of more than ``most``, those of terminals together."""
    columns = [
        _Column("sent: coded", "packets", count, ["sources_sent_packets"]),
        _Column("sent: uncoded", "packets", count, ["uncoded_packets"]),
        _Column("sent: repair", "packets", count, ["repairs_sent_packets"]),
        _Column("sent: repair", "of IP bytes", percent, ["repair_share_percent"]),
        _Column("received: loss", "of coded packets", percent, ["loss_before_percent"]),
        _Column("after decoding", "of coded packets", percent, ["loss_after_percent"]),
        _Column("recovered", "packets", count, ["recovered_packets"]),
        _Column(
            "order wait mean / max",
            "of packets that waited",
            duration_pair,
            ["order_wait_mean_ns", "order_wait_max_ns"],
        ),
    ]
    rows = [
        {**row, "tunnel": row["function"]} for row in result.functions if "uncoded_packets" in row
    ]
    title = (
        "Coded tunnels (they send repair over the link, from which the other end recovers losses)"
    )
    return _table(title, "tunnel", columns, rows, most)


def pep_table(result: Result, most: int) -> TextTable:
    """Return the PEPs of gateways; of more than ``most``, those of terminals together."""
    columns = [
        _Column("split", "connections", count, ["split_connections"]),
        _Column("passed unsplit", "connections", count, ["unsplit_connections"]),
        _Column("refused", "connections", count, ["refused_connections"]),
        _Column("reset", "connections", count, ["reset_connections"]),
        _Column("open at most", "connections", count, ["max_open_connections"]),
        _Column("relay held at most", "application bytes", _size, ["max_buffered_bytes"]),
    ]
    functions = [row for row in result.functions if "split_connections" in row]
    # The daemon of a lab does not count what its relay holds.
    rows = [{"max_buffered_bytes": None, **row, "pep": row["function"]} for row in functions]
    return _table("PEPs (they split TCP connections)", "pep", columns, rows, most)


def leg_table(result: Result, most: int) -> TextTable:
    """Return the legs of flows; of more than ``most``, those between the same ends together."""
    columns = [
        _Column("delivered", "application bytes", format_size, ["delivered_bytes"]),
        _Column("sent", "data segments", count, ["sent_segments"]),
        _Column("retransmitted", "data segments", count, ["retransmitted_segments"]),
        _Column("RTT min / mean", "at its sender", duration_pair, ["rtt_min_ns", "rtt_mean_ns"]),
    ]
    # Results of earlier versions have no such table.
    table = result.legs if "legs" in result.tables else result.tables["flows"].clear()
    is_long = table.height > most
    rows = [
        {**row, "leg": ends if is_long else f"{row['name']}: {ends}"}
        for row in table.to_dicts()
        for ends in [f"{row['from']} - {row['to']}"]
    ]
    return _table("Legs of the flows that PEPs split", "leg", columns, rows, most)


def _size(size_bytes: int | None) -> str:
    return "-" if size_bytes is None else format_size(size_bytes)


def _utilization(share: float) -> str:
    return f"{share:.1%}"


def _table(
    title: str, noun: str, columns: Sequence[_Column], rows: list[dict[str, Any]], most: int
) -> TextTable:
    """Return a table of rows that are named by their field ``noun``."""
    headings = [(column.heading, column.unit) for column in columns]
    if len(rows) <= most:
        cells = [[row[noun], *_cells(columns, row)] for row in rows]
        return TextTable(title, [(noun, ""), *headings], cells)
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(_TERMINAL.sub("", row[noun], count=1), []).append(row)
    cells = [row for own in groups.values() for row in _group(noun, columns, own)]
    names = [(noun, ""), (f"{noun}s", ""), (f"of {noun}s", "")]
    return TextTable(title, [*names, *headings], cells, grouped=2)


def _group(noun: str, columns: Sequence[_Column], rows: list[dict[str, Any]]) -> list[list[str]]:
    """Return a row, or one for each percentile over several."""
    first, last = rows[0], rows[-1]
    if first is last:
        return [[first[noun], "1", "", *_cells(columns, first)]]
    is_one = first[noun] == last[noun]
    name = first[noun] if is_one else f"{first[noun]} to {last[noun]}"
    return [
        [name, count(len(rows)), f"p{p}", *_cells(columns, _percentile(columns, rows, p))]
        for p in ENTRY_PERCENTILES
    ]


def _cells(columns: Sequence[_Column], row: dict[str, Any]) -> list[str]:
    return [column.text(*(row[field] for field in column.fields)) for column in columns]


def _percentile(columns: Sequence[_Column], rows: list[dict[str, Any]], p: int) -> dict[str, Any]:
    """Return a percentile of each field over the rows that have it; counts stay integers."""
    found: dict[str, Any] = {}
    for field in (field for column in columns for field in column.fields):
        known = [row[field] for row in rows if row[field] is not None]
        value = float(np.percentile(known, p)) if known else None
        is_count = field.endswith(("_packets", "_frames", "_connections", "_segments"))
        found[field] = round(value) if is_count and value is not None else value
    return found
