"""The tables of a sweep: the records of runs as frames, and the Parquet data set of a journal.

``flows`` and ``directions`` are folders of Parquet files, partitioned by varied values in the
layout of Hive (``PATH=VALUE/PATH=VALUE/part-0.parquet``, percent-encoded). ``runs.parquet`` and
``failures.parquet`` have a row a run. Nothing in a file depends on the order in which runs ended.
The thresholds of the scenario are checked on the way: each run of a cell must meet them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import groupby, islice
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import numpy as np
import polars as pl

from bentpipe import _core
from bentpipe.errors import UnitError
from bentpipe.plan.plan import Plan
from bentpipe.quantities import QUANTITIES
from bentpipe.results.files import write_parquet
from bentpipe.results.metric_values import ThresholdCheck, metric_values, of_runs
from bentpipe.results.tables import decode_tables, table_rows
from bentpipe.scenario.metric_ref import read_threshold
from bentpipe.sweeps.definition import Cell, Definition
from bentpipe.sweeps.journal import FAILURE, RESULT, Journal, Run
from bentpipe.sweeps.points import Points

TABLES: Final = ("flows", "directions")
_RUNS: Final = "runs"
# Columns are decoded for as many runs at a time.
_RUNS_AT_ONCE: Final = 2_000


def unpack(records: Sequence[bytes]) -> dict[str, pl.DataFrame]:
    """Return the tables of runs; ``run`` is the index into ``records``.

    The table ``runs`` has a row for each: whether its traffic ended, when, and its work.
    """
    return decode_tables(_core.unpack(records))


def raw_columns(frame: pl.DataFrame) -> dict[str, tuple[str, bytes, bytes | None]]:
    """Return a frame as the simulator returns a table."""
    columns: dict[str, tuple[str, bytes, bytes | None]] = {}
    for series in frame:
        values, valid = series.fill_null(0).to_numpy(), series.is_not_null().to_numpy()
        validity = None if valid.all() else valid.astype(np.uint8).tobytes()
        # Such as u8 and f64.
        dtype = f"{values.dtype.kind}{8 * values.dtype.itemsize}"
        columns[series.name] = (dtype, values.tobytes(), validity)
    return columns


def rows_of(tables: Mapping[str, pl.DataFrame], plan: Plan) -> dict[str, pl.DataFrame]:
    """Return the rows of flows and of directions of runs of one plan, derived columns included.

    They are those of `Result.flows` and `Result.directions`, with ``run`` in front. ``tables`` are
    those of `unpack`.
    """
    ends_ns = tables[_RUNS]["end_ns"].to_list()
    return {name: table_rows(name, tables, plan.data, plan.entries, ends_ns) for name in TABLES}


class Decoded(NamedTuple):
    """Runs of cells whose plans have the same flows: their tables, and rows with keys in front."""

    cell: Cell
    runs: Sequence[Run]
    keys: pl.DataFrame
    tables: Mapping[str, pl.DataFrame]
    rows: Mapping[str, pl.DataFrame]

    def frames(self) -> dict[str, pl.DataFrame]:
        """Return flows, directions and runs, with the number of each run and its keys in front.

        A run says how it ended, and its work.
        """
        frames = {
            name: pl.concat([self.keys[rows["run"].to_numpy()], rows.drop("run")], how="horizontal")
            for name, rows in self.rows.items()
        }
        facts = self.tables[_RUNS]
        frames["runs"] = self.keys.with_columns(
            pl.Series("point", [run.point for run in self.runs], dtype=pl.UInt32),
            facts["completed"].cast(pl.Boolean).alias("traffic_ended"),
            facts["end_ns"],
            facts["packet_hops"],
        )
        return frames


def decoded(
    keys: Keys,
    cells: Sequence[Cell],
    runs: Iterable[tuple[int, Run]],
    record: Callable[[int, Run], bytes],
) -> Iterator[Decoded]:
    """Decode numbered runs, many at a time; ``record`` returns the packed record of one run.

    Cells whose plans have the same flows are decoded together: mostly, only the link differs.
    """
    flows_of = cache(lambda point: cells[point].identity_of_flows)
    for _, group in groupby(runs, key=lambda numbered: flows_of(numbered[1].point)):
        while some := list(islice(group, _RUNS_AT_ONCE)):
            yield decode(
                keys, cells[some[0][1].point], some, [record(*numbered) for numbered in some]
            )


def decode(
    keys: Keys, cell: Cell, numbered: Sequence[tuple[int, Run]], records: Sequence[bytes]
) -> Decoded:
    """Return runs, each with its number, from their records."""
    runs, tables = [run for _, run in numbered], unpack(records)
    frame = keys.runs(runs, [number for number, _ in numbered])
    return Decoded(cell, runs, frame, tables, rows_of(tables, cell.plan))


class Keys:
    """The columns of the varied values, by point: see `bentpipe.Sweep`."""

    def __init__(self, points: Points) -> None:
        self._points = points
        # The columns of each axis, with a value for each of its rows.
        self._columns: list[list[pl.Series]] = []
        for axis in points.axes:
            columns = []
            for path, values in zip(axis.paths, zip(*axis.rows, strict=True), strict=True):
                columns += [_column(path, values), *_numbers(path, values)]
            self._columns.append(columns)

    @property
    def schema(self) -> dict[str, pl.DataType]:
        """Return the names of the columns in order, with their types."""
        return {column.name: column.dtype for columns in self._columns for column in columns}

    def of(self, points: Sequence[int]) -> pl.DataFrame:
        """Return a row for each point."""
        rows = np.asarray(points, dtype=np.int64)
        series: list[pl.Series] = []
        for axis, columns in zip(reversed(self._points.axes), reversed(self._columns), strict=True):
            rows, row = np.divmod(rows, len(axis.rows))
            series = [*(column.gather(row) for column in columns), *series]
        return pl.DataFrame(series)

    def runs(self, runs: Sequence[Run], numbers: Sequence[int]) -> pl.DataFrame:
        """Return a row a run: its number, the varied values, its seed."""
        return pl.DataFrame(
            [
                pl.Series("run", numbers, dtype=pl.UInt32),
                *self.of([run.point for run in runs]),
                pl.Series("seed", [run.seed for run in runs], dtype=pl.UInt64),
            ]
        )


def varied_fields(columns: Sequence[str]) -> list[str]:
    """Return the fields among the columns of `Keys`, without the numbers of quantities."""
    numbers = {f"{column}_{unit}" for column in columns for unit, _, _ in QUANTITIES}
    return [column for column in columns if column not in numbers]


def text_of(value: Any) -> str:
    """Return a value of a column as a text."""
    return value if isinstance(value, str) else json.dumps(value)


def _column(path: str, values: Sequence[Any]) -> pl.Series:
    """Return the values as they were given, or as JSON if they have no common column type."""
    types = {type(value) for value in values}
    if types == {int, float}:
        return pl.Series(path, [float(value) for value in values])
    if len(types) == 1 and types <= {bool, int, float, str}:
        return pl.Series(path, values)
    return pl.Series(path, [json.dumps(value) for value in values])


def _numbers(path: str, values: Sequence[Any]) -> list[pl.Series]:
    """Return the column of a varied quantity in its base unit; none if a value is not a text."""
    if not all(isinstance(value, str) for value in values):
        return []
    for unit, parse, _ in QUANTITIES:
        with suppress(UnitError):
            return [pl.Series(f"{path}_{unit}", [parse(value) for value in values])]
    return []


# --- the data set ---------------------------------------------------------------------------------

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

    def add(self, batch: Decoded) -> None:
        """Add runs, of which all cells have the same thresholds."""
        cell, plan = batch.cell, batch.cell.plan
        ends_ns = batch.tables["runs"]["end_ns"].to_list()
        frames = dict(batch.rows)
        for number, text in enumerate(cell.scenario.thresholds):
            threshold = read_threshold(text)
            table = threshold.metric.table
            if table not in frames:
                frames[table] = table_rows(table, batch.tables, plan.data, plan.entries, ends_ns)
            frame = of_runs(frames[table], table, plan.data, plan.entries)
            values: dict[int, float] = dict(metric_values(frame, threshold.metric).iter_rows())
            for index, run in enumerate(batch.runs):
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

        def cell(point: int) -> str:
            """Return the varied values of a point, as ``--vary`` takes them; empty without any."""
            values = zip(points.paths, points[point], strict=True)
            return ", ".join(f"{path}={text_of(value)}" for path, value in values)

        return [
            {
                "point": point,
                "cell": cell(point),
                **worst.to_json(),
                "seed": seed,
                "runs": runs,
                "failed_runs": failed,
            }
            for (point, _), (worst, seed, runs, failed) in sorted(self._found.items())
        ]


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
        folders.setdefault("/".join(of_path[position] for of_path in segments), []).extend(numbered)
    columns: dict[str, dict[str, str]] = {}
    about = [decode(keys, cells[0], (), ()).frames()["runs"]]
    for name, of_folder in folders.items():
        files = {table: _Files(folder / table / name) for table in TABLES}
        for runs in decoded(keys, cells, of_folder, lambda _, run: journal.read(run)):
            checks.add(runs)
            frames = runs.frames()
            about.append(frames["runs"])
            for table in TABLES:
                rows = frames[table]
                columns.setdefault(table, {name: str(dtype) for name, dtype in rows.schema.items()})
                files[table].add(rows.drop(partitions))
        for file in files.values():
            file.close()
    write_parquet(pl.concat(about).sort("run"), folder / RUNS)
    failed = [run for run in ended if journal.kind(run) == FAILURE]
    errors = [json.loads(journal.read(run)) for run in failed]
    failures = keys.runs(failed, range(len(failed))).drop("run")
    failures = failures.with_columns(
        pl.Series("point", [run.point for run in failed], dtype=pl.UInt32),
        pl.Series("kind", [error["kind"] for error in errors], dtype=pl.String),
        pl.Series("message", [error["message"] for error in errors], dtype=pl.String),
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
        if sum(frame.height for frame in self._waiting) >= _ROWS_PER_FILE:
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
            _segment(*pair) for row in axis.rows for pair in zip(axis.paths, row, strict=True)
        ]
        are_names = all(len(name) <= _NAME_BYTES_MAX and name[-1] != "=" for name in segments)
        if are_names and not any(types[path].is_float() for path in axis.paths):
            paths += axis.paths
            folders *= len(axis.rows)
    return paths


def _segment(path: str, value: Any) -> str:
    return f"{quote(path, safe='.*')}={quote(text_of(value), safe='')}"
