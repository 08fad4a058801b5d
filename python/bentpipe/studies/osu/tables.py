"""The study's tables: curves for a terminal, and the columns of the report's table of all cells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from rich.table import Table

from bentpipe.studies.base import tables
from bentpipe.studies.base.comparison import Comparison, Row
from bentpipe.studies.base.samples import Samples
from bentpipe.studies.base.tables import Column, margin_text
from bentpipe.studies.osu.cells import DISCIPLINES, KS, ROUTES, Cell
from bentpipe.studies.osu.compare import EFFICIENCY, FAIRNESS, RISE
from bentpipe.studies.osu.measure import Measurement

DIGITS: Final = {EFFICIENCY: 2, RISE: 2, FAIRNESS: 3}


def curves_table(measured: Mapping[Cell, Measurement], figure: str, title: str) -> Table:
    """Return a figure over the buffer, a line for each curve, intervals below the means."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for heading in ("scenario", "sources", "discipline"):
        table.add_column(heading)
    for k in KS:
        table.add_column(f"k = {k}", justify="right")
    for discipline in DISCIPLINES:
        for scenario, route in ROUTES.items():
            for sources in route.sources:
                curve = [measured.get(Cell(scenario, sources, k, discipline)) for k in KS]
                if any(curve):
                    texts = [
                        "-" if each is None else margin_text(each[figure], DIGITS[figure])
                        for each in curve
                    ]
                    texts = [text.replace(" ", "\n") for text in texts]
                    table.add_row(scenario, str(sources), discipline, *texts)
    return table


def columns(main: Comparison, fairness: Comparison) -> tuple[Column, ...]:
    """Return the columns of the table of all cells with selective drop."""
    fair = {row.name: row for row in fairness.rows}
    rows = {row.name: row for row in main.rows}

    def beside(unit: str, figure: str) -> Column:
        def text(row: Row) -> str:
            tail = rows.get(f"{row.name}, drop-tail")
            return "-" if tail is None else margin_text(_figure(tail, figure), DIGITS[figure])

        return Column(heading="drop-tail", unit=unit, text=text)

    published, _, error = tables.figures(interval=False, error_unit="points")
    return (
        tables.label("scenario", "scenario"),
        tables.label("sources", "sources"),
        tables.label("k", "k"),
        Column(heading="buffer", unit="cells", text=lambda row: str(row.more["buffer_cells"])),
        published,
        replace(mean_of(EFFICIENCY, "efficiency", "%, after the warm-up", 2), bold=error.bold),
        error,
        tables.AGREEMENT,
        mean_of("efficiency_whole_run", "whole run", "%, efficiency", 2),
        replace(
            mean_of(FAIRNESS, "fairness", "Jain", 3),
            bold=lambda row: row.name in fair and fair[row.name].is_outside,
        ),
        Column(
            heading="agreement",
            unit="of the fairness",
            text=lambda row: tables.AGREEMENT.text(fair[row.name]) if row.name in fair else "-",
            is_text=True,
        ),
        mean_of("fairness_after_warm_up", "after the warm-up", "fairness", 3),
        mean_of("recoveries_per_source", "recoveries", "a source", 1),
        mean_of("timeouts_per_source", "timeouts", "a source", 1),
        beside("%, efficiency", EFFICIENCY),
        beside("fairness", FAIRNESS),
        tables.PROVENANCE,
        tables.RUNS,
    )


def sensitivity_columns() -> tuple[Column, ...]:
    """Return the columns of the variants."""
    return (
        tables.label("changed", "changed"),
        tables.more("efficiency_min", "lowest efficiency", "%, k = 1"),
        mean_of(EFFICIENCY, "mean efficiency", "%, k = 1", 2),
        mean_of("efficiency_at_eighth_rtt", "mean efficiency", "%, k = 3", 2),
        tables.more("fairness_min", "lowest fairness", "Jain, k = 1 and 3", 3),
        mean_of(FAIRNESS, "mean fairness", "Jain, k = 1 and 3", 3),
        tables.RUNS,
    )


def mean_of(figure: str, heading: str, unit: str, digits: int) -> Column:
    """Return the column of a mean with half of its interval."""
    return Column(
        heading=heading, unit=unit, text=lambda row: margin_text(_figure(row, figure), digits)
    )


def _figure(row: Row, figure: str) -> Samples:
    found = row.simulated if figure == EFFICIENCY else row.more[figure]
    assert isinstance(found, Samples)
    return found
