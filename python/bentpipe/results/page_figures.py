"""The tables of exchanges and web pages as texts, for the terminal, reports and notebooks."""

from __future__ import annotations

from typing import Any, Final

from bentpipe.results.entries import ENTRY_PERCENTILES
from bentpipe.results.text_table import TextTable, count, duration

PAGE_COLUMNS: Final = tuple(f"page_load_time_p{p}_ns" for p in (50, 95, 99))
_EXCHANGE_COLUMNS: Final = (
    ("flow", ""),
    ("finished", "exchanges"),
    ("time median", "at the client"),
    ("time 95 %", "at the client"),
)
_PAGE_COLUMNS: Final = (
    ("flow", ""),
    ("finished", "pages"),
    ("load time p50", "from the click"),
    ("load time p95", "from the click"),
    ("load time p99", "from the click"),
)
_PAGE_ENTRY_COLUMNS: Final = (
    ("entry", ""),
    ("direction", ""),
    ("users", ""),
    ("finished", "pages"),
    ("of pages", ""),
    ("load time", "from the click"),
)


def exchange_table(flows: list[dict[str, Any]]) -> TextTable:
    """Return the times of the exchanges of each flow."""
    rows = [
        [
            flow["name"],
            count(flow["exchanges"]),
            duration(flow["exchange_time_median_ns"]),
            duration(flow["exchange_time_p95_ns"]),
        ]
        for flow in flows
    ]
    return TextTable("Exchanges (request and response)", _EXCHANGE_COLUMNS, rows)


def page_table(flows: list[dict[str, Any]]) -> TextTable:
    """Return the page load times of each flow."""
    rows = [
        [flow["name"], count(flow["exchanges"]), *(duration(flow[name]) for name in PAGE_COLUMNS)]
        for flow in flows
    ]
    return TextTable("Web pages (to the last byte of the last object)", _PAGE_COLUMNS, rows)


def page_entry_table(entries: list[dict[str, Any]]) -> TextTable:
    """Return the page load times of each entry of ``traffic``."""
    rows = [
        [
            entry["entry"],
            entry["direction"],
            count(entry["flows"]),
            count(entry["exchanges"]),
            f"p{p}",
            duration((entry["page_load_time_ns"] or {}).get(f"p{p}")),
        ]
        for entry in entries
        for p in ENTRY_PERCENTILES
    ]
    return TextTable("Web pages by entry of traffic", _PAGE_ENTRY_COLUMNS, rows, 2, 4)
