"""The tables of runs, from their records: as frames, and with the varied values in front."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import groupby, islice
from typing import Any, Final, NamedTuple

import numpy as np
import polars as pl

from bentpipe import _core
from bentpipe.errors import UnitError
from bentpipe.results.derived import table_rows
from bentpipe.results.tables import decode_tables
from bentpipe.sweeps.definition import Cell
from bentpipe.sweeps.journal import Run
from bentpipe.sweeps.points import QUANTITIES, Points

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
        columns[series.name] = (_NAMES[str(series.dtype)], values.tobytes(), validity)
    return columns


_NAMES: Final = {"UInt8": "u8", "UInt32": "u32", "UInt64": "u64", "Float64": "f64"}


def rows_of(
    tables: Mapping[str, pl.DataFrame],
    plan: Mapping[str, Any],
    entries: Sequence[Mapping[str, Any]],
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the rows of flows and of directions of runs of one plan, derived columns included.

    They are those of `Result.flows` and `Result.directions`, with ``run`` in front. ``tables`` are
    those of `unpack`.
    """
    ends_ns = tables[_RUNS]["end_ns"].to_list()
    flows, directions = (
        table_rows(name, tables, plan, entries, ends_ns) for name in ("flows", "directions")
    )
    return flows, directions


class Decoded(NamedTuple):
    """Runs of cells whose plans have the same flows: their tables, and rows with keys in front."""

    cell: Cell
    runs: Sequence[Run]
    keys: pl.DataFrame
    tables: Mapping[str, pl.DataFrame]
    rows: tuple[pl.DataFrame, pl.DataFrame]

    def frames(self) -> dict[str, pl.DataFrame]:
        """Return flows, directions and runs, with the number of each run and its keys in front.

        A run says how it ended, and its work.
        """
        flows, directions = (
            pl.concat([self.keys[rows["run"].to_numpy()], rows.drop("run")], how="horizontal")
            for rows in self.rows
        )
        facts = self.tables[_RUNS]
        runs = self.keys.with_columns(
            pl.Series("point", [run.point for run in self.runs], dtype=pl.UInt32),
            facts["completed"].cast(pl.Boolean).alias("traffic_ended"),
            facts["end_ns"],
            facts["packet_hops"],
        )
        return {"flows": flows, "directions": directions, "runs": runs}


def decoded(
    keys: Keys,
    cells: Sequence[Cell],
    runs: Iterable[tuple[int, Run]],
    record: Callable[[int, Run], bytes],
) -> Iterator[Decoded]:
    """Yield runs, each with its number, many at a time; ``record`` returns that of a run.

    Cells whose plans have the same flows are decoded together: mostly, only the link differs.
    """
    flows_of = cache(lambda point: cells[point].identity_of_flows)
    for _, group in groupby(runs, key=lambda each: flows_of(each[1].point)):
        while some := list(islice(group, _RUNS_AT_ONCE)):
            yield decode(keys, cells[some[0][1].point], some, [record(*each) for each in some])


def decode(
    keys: Keys, cell: Cell, numbered: Sequence[tuple[int, Run]], records: Sequence[bytes]
) -> Decoded:
    """Return runs, each with its number, from their records."""
    runs, tables = [run for _, run in numbered], unpack(records)
    frame = keys.runs(runs, [number for number, _ in numbered])
    return Decoded(cell, runs, frame, tables, rows_of(tables, cell.plan.data, cell.plan.entries))


def flow_schema(plan: Mapping[str, Any], entries: Sequence[Mapping[str, Any]]) -> pl.Schema:
    """Return the columns of the rows of flows, without ``run``, and their types."""
    return rows_of(unpack([]), plan, entries)[0].drop("run").schema


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
        found: list[pl.Series] = []
        for axis, columns in zip(reversed(self._points.axes), reversed(self._columns), strict=True):
            rows, row = np.divmod(rows, len(axis.rows))
            found = [*(column.gather(row) for column in columns), *found]
        return pl.DataFrame(found)

    def runs(self, runs: Sequence[Run], numbers: Sequence[int]) -> pl.DataFrame:
        """Return a row a run: its number, the varied values, its seed."""
        return pl.DataFrame(
            [
                pl.Series("run", numbers, dtype=pl.UInt32),
                *self.of([run.point for run in runs]),
                pl.Series("seed", [run.seed for run in runs], dtype=pl.UInt64),
            ]
        )


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
