"""The thresholds of a scenario in the cells of a sweep: each run of a cell must meet them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from bentpipe.results.derived import table_rows
from bentpipe.results.metric_values import metric_values, of_runs
from bentpipe.results.thresholds import ThresholdCheck
from bentpipe.scenario.thresholds import read_threshold
from bentpipe.sweeps.cells import Cell
from bentpipe.sweeps.frames import text_of
from bentpipe.sweeps.journal import Run
from bentpipe.sweeps.points import Points


@dataclass
class _InCell:
    """A threshold in the runs of a cell so far, and its check in the worst of them."""

    worst: ThresholdCheck
    seed: int
    runs: int = 0
    failed: int = 0


class CellChecks:
    """Checks the thresholds of each cell in its runs, of which many are added at a time."""

    def __init__(self) -> None:
        self._found: dict[tuple[int, int], _InCell] = {}

    def add(
        self,
        cell: Cell,
        runs: Sequence[Run],
        tables: Mapping[str, pl.DataFrame],
        rows: tuple[pl.DataFrame, pl.DataFrame],
    ) -> None:
        """Add runs of a cell, or of several whose flows and thresholds are the same.

        ``tables`` are those of `records.unpack`, and ``rows`` those of `records.rows_of`.
        """
        texts = cell.scenario.thresholds
        if not texts:
            return
        plan, ends_ns = cell.plan, tables["runs"]["end_ns"].to_list()
        frames = dict(zip(("flows", "directions"), rows, strict=True))
        for number, text in enumerate(texts):
            threshold = read_threshold(text)
            table = threshold.metric.table
            if table not in frames:
                frames[table] = table_rows(table, tables, plan.data, plan.entries, ends_ns)
            frame = of_runs(frames[table], table, plan.data, plan.entries)
            values: dict[int, float] = dict(metric_values(frame, threshold.metric).iter_rows())
            for index, run in enumerate(runs):
                self._add(number, run, ThresholdCheck(threshold, values.get(index)))

    def _add(self, number: int, run: Run, check: ThresholdCheck) -> None:
        found = self._found.setdefault((run.point, number), _InCell(check, run.seed))
        found.runs += 1
        found.failed += not check.passed
        if check.margin < found.worst.margin:
            found.worst, found.seed = check, run.seed

    def to_json(self, points: Points) -> list[dict[str, Any]]:
        """Return the check of each threshold in each cell as plain data, for the manifest.

        The value is that of the run that misses the threshold most, or meets it least.
        """
        return [
            {
                "point": point,
                "cell": _cell_text(points, point),
                **found.worst.to_json(),
                "seed": found.seed,
                "runs": found.runs,
                "failed_runs": found.failed,
            }
            for (point, _), found in sorted(self._found.items())
        ]


def _cell_text(points: Points, point: int) -> str:
    """Return the varied values of a point, as ``--vary`` takes them; empty without any."""
    values = zip(points.paths, points[point], strict=True)
    return ", ".join(f"{path}={text_of(value)}" for path, value in values)


def cell_message(check: Mapping[str, Any]) -> str:
    """Return what a check of `CellChecks.to_json` says, in a line."""
    cell = f"{check['cell']}: " if check["cell"] else ""
    runs = f"; {check['failed_runs']} of {check['runs']} runs" if check["runs"] > 1 else ""
    seed = f" (seed {check['seed']}{runs})" if not check["passed"] else ""
    return f"{cell}{check['message']}{seed}"
