"""The study's figures for a terminal and as files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from bentpipe.results.folder import csv_text
from bentpipe.studies._common import number, write_study
from bentpipe.studies.snip.study import SnipOutcome

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

_CELL_COLUMNS: Final = (
    "packet_bytes",
    "published",
    "measured",
    "error_percent",
    "published_pps",
    "measured_pps",
    "pps_error_percent",
    "published_limit",
    "measured_limit",
    "measured_at_round_figure",
    "miss",
    "reason",
)
_FACT_COLUMNS: Final = (
    "quantity",
    "unit",
    "published",
    "measured",
    "error_percent",
    "miss",
    "basis",
    "reason",
)


def terminal_table(outcome: SnipOutcome) -> RenderableType:
    """Return the table, the other figures, and the errors of both."""
    from rich.console import Group

    from bentpipe.studies.snip._report_aggregation import summary_lines

    summary = outcome.summary()
    misses = ", ".join(summary["misses"]) or "none"
    return Group(
        _cells(outcome),
        f"Mean error {number(summary['mean_error_percent'], 2)} %, largest "
        f"{number(summary['max_error_percent'], 2)} %; packets a second "
        f"{number(summary['mean_pps_error_percent'], 2)} % and "
        f"{number(summary['max_pps_error_percent'], 2)} %. With 6,000 packets a second, the note's "
        f"round figure: {number(summary['mean_error_percent_at_round_figure'], 2)} % and "
        f"{number(summary['max_error_percent_at_round_figure'], 2)} %.",
        "",
        _facts(outcome),
        f"Further off than {summary['tolerance_percent']:g} %: {misses}.",
        "",
        "With packet aggregation at both gateways:",
        *summary_lines(outcome),
    )


def write_outcome(outcome: SnipOutcome, out_dir: Path) -> Path:
    """Write report, data and manifest, replacing a study that is there.

    Raises:
        UsageError: the folder has other things in it, or cannot be written.
    """
    from bentpipe.studies.snip._report import study_report

    data = outcome.to_json()
    facts = ([row[column] for column in _FACT_COLUMNS] for row in data["facts"])
    return write_study(
        out_dir,
        result=data,
        report=study_report(outcome),
        csv_columns=_CELL_COLUMNS,
        csv_rows=([row[column] for column in _CELL_COLUMNS] for row in data["cells"]),
        more={"facts.csv": csv_text(_FACT_COLUMNS, facts)},
    )


def _cells(outcome: SnipOutcome) -> Table:
    table = _table("Largest rate without a loss, in Mbit/s of UDP payload")
    headings = ("payload", "published", "measured", "error", "packets/s", "measured", "error")
    for heading in headings:
        table.add_column(heading, justify="right")
    table.add_column("limit, published and measured")
    for cell in outcome.cells:
        table.add_row(
            f"{cell.packet_bytes} B",
            f"{cell.published.rate_mbps:g}",
            number(cell.measured_mbps, 2),
            f"{number(cell.error_percent, 1, sign=True)} %",
            number(cell.published.packets_per_second, 0),
            number(cell.measured_pps, 0),
            f"{number(cell.pps_error_percent, 1, sign=True)} %",
            f"{cell.published.limit}, {cell.measured_limit or '-'}",
        )
    return table


def _facts(outcome: SnipOutcome) -> Table:
    table = _table(
        "The note's other figures (basis: how much the agreement proves, see the report)"
    )
    table.add_column("quantity")
    for heading in ("published", "measured", "error"):
        table.add_column(heading, justify="right")
    for heading in ("unit", "basis"):
        table.add_column(heading)
    for fact in outcome.facts:
        table.add_row(
            fact.quantity,
            f"{fact.published:g}",
            number(fact.finding.measured, 1),
            f"{number(fact.error_percent, 1, sign=True)} %",
            fact.unit,
            f"{fact.finding.basis}{' (miss)' if fact.miss else ''}",
        )
        if fact.miss:
            table.add_row(f"  {fact.finding.reason}")
    return table


def _table(title: str) -> Table:
    from rich.table import Table

    return Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
