"""The result of a search for the largest count: for a terminal, as a report, and as files."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from bentpipe import _core
from bentpipe.quantities import quantity
from bentpipe.report.export import Exports
from bentpipe.report.html import environment
from bentpipe.report.style import PALETTE, new_figure
from bentpipe.results.files import REPORT
from bentpipe.results.folder import csv_text, json_text, write_folder
from bentpipe.results.views import Cell, Column, View

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.figure import Figure

    from bentpipe.results.output import OutputFolder
    from bentpipe.simulation.counts import MaxCount

_CSV_COLUMNS: Final = ("count", "passed", "threshold", "value")
NOTE: Final = (
    "A count passes if every threshold holds with every seed. The search assumes that every count "
    "above one that fails fails, too; with random traffic or errors, a larger one may pass by "
    "chance"
)


def count_tables(found: MaxCount) -> list[View | str]:
    """Return the answer, and the table of the trials, for a terminal."""
    return [_answer(found), _view(found), f"{NOTE}."]


def write_count(found: MaxCount, out: Path | OutputFolder) -> Path:
    """Write report.html, trials.csv, search.json and the manifest; return the folder.

    Raises:
        UsageError: the folder contains other files, or cannot be written.
    """
    rows = [
        [trial["count"], trial["passed"], check["threshold"], check["value"]]
        for trial in found.to_json()["trials"]
        for check in trial["checks"]
    ]
    exports = Exports()
    report = count_report(found, exports)
    return write_folder(
        out,
        kind="search",
        manifest={
            "bentpipe_version": _core.version(),
            "search": "max-count",
            "scenario": found.scenario,
            "seeds": list(found.seeds),
            "interrupted": found.interrupted,
        },
        files={
            REPORT: report,
            **exports.files,
            "trials.csv": csv_text(_CSV_COLUMNS, rows),
            "search.json": json_text(found.to_json()),
        },
    )


def count_report(found: MaxCount, exports: Exports | None = None) -> str:
    """Return the report as HTML; the same search gives identical bytes.

    Its figures are added to ``exports``, and linked.
    """
    return (
        environment()
        .get_template("max_count.html.j2")
        .render(
            title=f"{found.scenario or 'Scenario'}: largest count of {found.entry}",
            facts=f"bentpipe {_core.version()}; seeds {found.seeds[0]} to {found.seeds[-1]}",
            answer=_answer(found),
            interrupted=found.interrupted,
            figure=count_figure(found),
            trials=_view(found),
            note=NOTE,
            exports=exports,
        )
    )


def count_figure(found: MaxCount) -> Figure:
    """Draw the worst value of each threshold over the count, with its limit as a line."""
    figure, axes = new_figure(len(found.thresholds), 1, height_in=2.3 * len(found.thresholds))
    trials = sorted(found.trials, key=lambda trial: trial.count)
    for number, axis in enumerate(axes):
        checks = [(trial.count, trial.checks[number]) for trial in trials]
        if not checks:
            continue
        threshold = checks[0][1].threshold
        points = [
            (count, check.value)
            for count, check in checks
            if check.value is not None and math.isfinite(check.value)
        ]
        unit, size = quantity(threshold.metric.unit_column).scale(
            max([abs(threshold.limit), *(abs(value) for _, value in points)])
        )
        axis.plot(
            [count for count, _ in points],
            [value / size for _, value in points],
            color=PALETTE[0],
            marker="o",
            markersize=4,
        )
        axis.axhline(threshold.limit / size, color=PALETTE[1], linestyle="--")
        axis.set_ylabel(f"{threshold.metric.title}{f' [{unit}]' if unit else ''}")
    axes[-1].set_xlabel(f"count of {found.entry}")
    return figure


def _answer(found: MaxCount) -> str:
    """Return the answer in a line or two."""
    where = f"{found.scenario or 'Scenario'}: "
    if found.count is None:
        text = "not even 1" if found.converged else "none yet"
        answer = f"{where}{text} of {found.entry} meets the thresholds"
    elif found.fails is None:
        at_most = "" if found.converged else " (interrupted)"
        answer = f"{where}at least {found.count} of {found.entry} meet the thresholds{at_most}"
        if found.converged:
            answer += "; all counts up to the bound (--max) pass"
    else:
        range_ = "" if found.converged else f" (between {found.count} and {found.fails})"
        answer = f"{where}at most {found.count} of {found.entry} meet the thresholds{range_}"
    if found.reason is not None:
        answer += f"; at {found.fails}, {found.reason.message}"
    return answer


def _view(found: MaxCount) -> View:
    columns = [
        Column("count", "count"),
        Column("passed", "result", text=lambda passed: "passed" if passed else "FAILED"),
        *(Column(text, text) for text in found.thresholds),
    ]
    rows = [
        [
            trial.count,
            trial.passed,
            *(Cell(check.value, check.value_text) for check in trial.checks),
        ]
        for trial in sorted(found.trials, key=lambda trial: trial.count)
    ]
    return View(f"Trials: the worst of {len(found.seeds)} seeds", columns, rows)
