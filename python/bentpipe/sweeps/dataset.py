"""The Parquet data set of a sweep: written from its journal, read as frames.

``flows`` and ``directions`` are folders of Parquet files, partitioned by varied values in the
layout of Hive (``PATH=VALUE/PATH=VALUE/part-0.parquet``, percent-encoded). ``runs.parquet`` and
``failures.parquet`` have a row a run. Nothing in a file depends on the order in which runs ended.
The thresholds of the scenario are checked on the way: each run of a cell must meet them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import polars as pl

from bentpipe.results.derived import table_rows
from bentpipe.results.metric_values import ThresholdCheck, metric_values, of_runs
from bentpipe.scenario.metric_ref import read_threshold
from bentpipe.sweeps.definition import Definition
from bentpipe.sweeps.frames import Decoded, Keys, decode, decoded, text_of
from bentpipe.sweeps.journal import FAILURE, RESULT, Journal, Run
from bentpipe.sweeps.points import Points

TABLES: Final = ("flows", "directions")
RUNS: Final = "runs.parquet"
FAILURES: Final = "failures.parquet"
# A thousand folders are opened in a fraction of a second.
_PARTITIONS_MAX: Final = 1_000
# Linux allows names of 255 bytes.
_NAME_BYTES_MAX: Final = 200
# Files of some 100 MB.
_ROWS_PER_FILE: Final = 250_000


class CellChecks:
    """Checks the thresholds of each cell in its runs, of which many are added at a time."""

    def __init__(self) -> None:
        # The worst check of a threshold in a cell and its seed, and how many runs are and fail.
        self._found: dict[tuple[int, int], tuple[ThresholdCheck, int, int, int]] = {}

    def add(self, found: Decoded) -> None:
        """Add runs, of which all cells have the same thresholds."""
        cell, plan = found.cell, found.cell.plan
        ends_ns = found.tables["runs"]["end_ns"].to_list()
        frames = dict(zip(TABLES, found.rows, strict=True))
        for number, text in enumerate(cell.scenario.thresholds):
            threshold = read_threshold(text)
            table = threshold.metric.table
            if table not in frames:
                frames[table] = table_rows(table, found.tables, plan.data, plan.entries, ends_ns)
            frame = of_runs(frames[table], table, plan.data, plan.entries)
            values: dict[int, float] = dict(metric_values(frame, threshold.metric).iter_rows())
            for index, run in enumerate(found.runs):
                check = ThresholdCheck(threshold, values.get(index))
                key = (run.point, number)
                worst, seed, runs, failed = self._found.get(key, (check, run.seed, 0, 0))
                if check.margin < worst.margin:
                    worst, seed = check, run.seed
                self._found[key] = (worst, seed, runs + 1, failed + (not check.passed))

    def to_json(self, points: Points) -> list[dict[str, Any]]:
        """Return the check of each threshold in each cell as plain data, for the manifest.

        The value is that of the run that misses the threshold most, or meets it least.
        """
        return [
            {
                "point": point,
                "cell": _cell_text(points, point),
                **worst.to_json(),
                "seed": seed,
                "runs": runs,
                "failed_runs": failed,
            }
            for (point, _), (worst, seed, runs, failed) in sorted(self._found.items())
        ]


def _cell_text(points: Points, point: int) -> str:
    """Return the varied values of a point, as ``--vary`` takes them; empty without any."""
    values = zip(points.paths, points[point], strict=True)
    return ", ".join(f"{path}={text_of(value)}" for path, value in values)


def write_dataset(
    folder: Path, definition: Definition, ended: Sequence[Run], journal: Journal
) -> dict[str, Any]:
    """Write the files of the data set of runs in order; return what the manifest has of them.

    That is the columns of the tables with their types, the fields that partition them, and the
    thresholds of the cells.

    Raises:
        OSError: one cannot be written.
    """
    points, cells = definition.points, definition.cells
    keys, checks, partitions = Keys(points), CellChecks(), partition_paths(points)
    # The runs of each point, with their numbers.
    of_point: dict[int, list[tuple[int, Run]]] = {}
    for number, run in enumerate(run for run in ended if journal.kind(run) == RESULT):
        of_point.setdefault(run.point, []).append((number, run))
    # The runs of each folder, by its name.
    values = keys.of(list(of_point))
    segments = [[_segment(path, value) for value in values[path]] for path in partitions]
    folders: dict[str, list[tuple[int, Run]]] = {}
    for position, numbered in enumerate(of_point.values()):
        folders.setdefault("/".join(each[position] for each in segments), []).extend(numbered)
    columns: dict[str, dict[str, str]] = {}
    about = [decode(keys, cells[0], (), ()).frames()["runs"]]
    for name, own in folders.items():
        files = {table: _Files(folder / table / name) for table in TABLES}
        for runs in decoded(keys, cells, own, lambda _, run: journal.read(run)):
            checks.add(runs)
            frames = runs.frames()
            about.append(frames["runs"])
            for table in TABLES:
                rows = frames[table]
                columns.setdefault(table, {name: str(each) for name, each in rows.schema.items()})
                files[table].add(rows.drop(partitions))
        for each in files.values():
            each.close()
    write_parquet(pl.concat(about).sort("run"), folder / RUNS)
    failed = [run for run in ended if journal.kind(run) == FAILURE]
    errors = [json.loads(journal.read(run)) for run in failed]
    failures = keys.runs(failed, range(len(failed))).drop("run")
    failures = failures.with_columns(
        pl.Series("point", [run.point for run in failed], dtype=pl.UInt32),
        pl.Series("kind", [each["kind"] for each in errors], dtype=pl.String),
        pl.Series("message", [each["message"] for each in errors], dtype=pl.String),
    )
    write_parquet(failures, folder / FAILURES)
    return {
        # A list, because the keys of a manifest are sorted.
        "columns": {table: list(types.items()) for table, types in columns.items()},
        "partitions": partitions,
        "thresholds": checks.to_json(points),
    }


class _Files:
    """The files of one partition of a table."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._waiting: list[pl.DataFrame] = []
        self._count = 0

    def add(self, rows: pl.DataFrame) -> None:
        self._waiting.append(rows)
        if sum(each.height for each in self._waiting) >= _ROWS_PER_FILE:
            self._write()

    def close(self) -> None:
        if self._waiting:
            self._write()

    def _write(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        rows = pl.concat(self._waiting)
        write_parquet(rows, self._folder / f"part-{self._count}.parquet")
        self._waiting = []
        self._count += 1


def partition_paths(points: Points) -> list[str]:
    """Return the varied fields that partition the data set, in order.

    The others are columns: those of a Latin hypercube, which have a value for each point; those of
    fractions, whose type readers would not recognise; those with values that make no name of a
    folder; and those beyond a thousand folders.
    """
    types = Keys(points).schema
    paths: list[str] = []
    folders = 1
    for axis in points.axes:
        if axis.kind == "latin_hypercube" or folders * len(axis.rows) > _PARTITIONS_MAX:
            continue
        segments = [
            _segment(path, value)
            for row in axis.rows
            for path, value in zip(axis.paths, row, strict=True)
        ]
        if any(types[path].is_float() for path in axis.paths):
            continue
        if all(len(each) <= _NAME_BYTES_MAX and not each.endswith("=") for each in segments):
            paths += axis.paths
            folders *= len(axis.rows)
    return paths


def _segment(path: str, value: Any) -> str:
    return f"{quote(path, safe='.*')}={quote(text_of(value), safe='')}"


def write_parquet(frame: pl.DataFrame, path: Path) -> None:
    """Write a frame; polars does not tell why it cannot write a file."""
    buffer = BytesIO()
    frame.write_parquet(buffer)
    path.write_bytes(buffer.getbuffer())
