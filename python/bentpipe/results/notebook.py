"""Results as HTML between the other cells of a notebook."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Final

from bentpipe.results.figures import flow_tables
from bentpipe.results.link_figures import direction_table
from bentpipe.results.text_table import TextTable

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
    tables = [*flow_tables(result), direction_table(result, _ROWS_MAX)]
    return f"<h4>{name}</h4><p>{escape(facts)}</p>" + "".join(map(_html_table, tables))


def _html_table(table: TextTable) -> str:
    head = "".join(
        f"<th>{escape(name)}{f'<br><small>{escape(unit)}</small>' if unit else ''}</th>"
        for name, unit in table.columns
    )
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
        for row in table.without_repeats()
    )
    more = f"<p>... and {table.more}.</p>" if table.more else ""
    return (
        f"<table><caption>{escape(table.title)}</caption><thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table>{more}"
    )
