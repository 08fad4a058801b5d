"""Results as HTML between the other cells of a notebook."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Final

from bentpipe.units import format_rate, format_size

if TYPE_CHECKING:
    from bentpipe.results.result import Result

# `Result.flows` and `Result.directions` have all rows.
_ROWS_MAX: Final = 20


def notebook_html(result: Result) -> str:
    """Return the flows and the directions of the link as tables."""
    name = escape(result.manifest["scenario"].get("name") or "Scenario")
    facts = f"seed {result.manifest['seed']}, {result.stop_reason or result.ending}"
    if result.invalid is not None:
        facts += f", INVALID: {result.invalid}"
    flows = [
        (
            row["name"],
            row["direction"],
            format_rate(row["goodput_bps"]),
            format_size(row["delivered_bytes"]),
            f"{row['retransmitted_segments']:,}",
        )
        for row in result.flows.head(_ROWS_MAX).to_dicts()
    ]
    directions = [
        (row["direction"], f"{row['utilization']:.1%}", f"{row['sent_packets']:,}")
        for row in result.directions.head(_ROWS_MAX).to_dicts()
    ]
    flow_columns = ("flow", "direction", "goodput", "delivered", "retransmitted segments")
    return (
        f"<h4>{name}</h4><p>{escape(facts)}</p>"
        + _html_table(flow_columns, flows, result.tables["flows"].height)
        + _html_table(
            ("direction", "utilization", "sent packets"),
            directions,
            result.tables["directions"].height,
        )
    )


def _html_table(columns: Sequence[str], rows: Sequence[Sequence[str]], total: int) -> str:
    """Return a table with ``rows``, the first of ``total``."""
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    more = f"<p>The first {len(rows)} of {total:,}.</p>" if total > len(rows) else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"
