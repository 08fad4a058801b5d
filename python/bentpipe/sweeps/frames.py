"""Frames with the varied values of each run in front."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import polars as pl

from bentpipe.errors import UnitError
from bentpipe.sweeps.journal import Run
from bentpipe.sweeps.points import Points
from bentpipe.sweeps.ranges import QUANTITIES


class Keys:
    """The columns of the varied values, by point.

    The column of a value is named after its path. Where all values are quantities, such as
    "275 ms", a second column has the numbers, and its name ends in the unit:
    ``link.forward.delay_ns``.
    """

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


def with_keys(rows: pl.DataFrame, runs: pl.DataFrame) -> pl.DataFrame:
    """Return rows with the columns of ``runs`` in front; their ``run`` is an index into these."""
    keys = runs[rows["run"].to_numpy()]
    return pl.concat([keys, rows.drop("run")], how="horizontal")


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
        numbers = _parsed(values, parse)
        if numbers is not None:
            return [pl.Series(f"{path}_{unit}", numbers)]
    return []


def _parsed(values: Sequence[str], parse: Callable[[object], int]) -> list[int] | None:
    try:
        return [parse(value) for value in values]
    except UnitError:
        return None
