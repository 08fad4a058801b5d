"""The study's figures for a terminal and as files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from bentpipe.studies._common import number, write_study
from bentpipe.studies.osu._checks import Check, place
from bentpipe.studies.osu.study import KS, OsuOutcome

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

_TABLES: Final = (
    (
        "efficiency",
        2,
        "Efficiency in percent after the warm-up, over the buffer (2^-k round trips)",
    ),
    ("fairness", 3, "Fairness (Jain's index) over the whole run"),
)


def terminal_table(outcome: OsuOutcome) -> RenderableType:
    """Return efficiency and fairness over the buffer and, below them, the checks."""
    from rich.console import Group

    parts: list[RenderableType] = []
    for figure, digits, title in _TABLES:
        parts += [_curves(outcome, figure, digits, title), ""]
    for check in outcome.checks:
        parts.append(verdict(check))
        parts += [
            f"  miss: {place(miss.cell)}: {miss.found}; {miss.reason}" for miss in check.misses
        ]
    return Group(*parts)


def verdict(check: Check) -> str:
    """Return in a line what a check found."""
    text = f"{check.name}: {check.verdict}"
    if check.misses:
        text += f" in {len(check.misses)} of {check.places} places"
    elif check.places:
        text += f" in all {check.places} places"
    return f"{text} ({check.claim}); worst: {check.worst or '-'}"


def write_folder(outcome: OsuOutcome, out_dir: Path) -> Path:
    """Write report, data and manifest, replacing a result or a study that is there.

    Raises:
        UsageError: the folder has other things in it, or cannot be written.
    """
    from bentpipe.studies.osu._report import study_report

    result = outcome.to_json()
    columns = [name for name in result["cells"][0] if name != "miss"]
    return write_study(
        out_dir,
        result=result,
        report=study_report(outcome),
        csv_columns=columns,
        csv_rows=[[cell[name] for name in columns] for cell in result["cells"]],
    )


def _curves(outcome: OsuOutcome, figure: str, digits: int, title: str) -> Table:
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for heading in ("scenario", "sources", "discipline"):
        table.add_column(heading)
    for k in KS:
        table.add_column(f"k = {k}", justify="right")
    curves = dict.fromkeys(
        (each.cell.scenario, each.cell.sources, each.cell.discipline)
        for each in outcome.measurements
    )
    for scenario, sources, discipline in sorted(curves, key=lambda key: key[2] == "drop_tail"):
        cells = {each.cell.k: each for each in outcome.curve(scenario, sources, discipline)}
        figures = [number(cells[k].mean(figure) if k in cells else None, digits=digits) for k in KS]
        table.add_row(scenario, str(sources), discipline, *figures)
    return table
