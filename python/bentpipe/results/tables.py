"""The tables of a result, as the simulator defines them (``crates/sim/src/record``), and as frames.

An emulation writes the same tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final, NoReturn, Self

import numpy as np
import numpy.typing as npt
import polars as pl

from bentpipe import _core
from bentpipe.errors import UsageError
from bentpipe.text import choice


@dataclass(frozen=True)
class Column:
    """A column: its type (u8, u32, u64, f64), its unit, and what a value means.

    In a nullable column, null means that the event did not happen.
    """

    name: str
    dtype: str
    unit: str
    meaning: str
    nullable: bool


@dataclass(frozen=True)
class Table:
    """A table: what one row describes, and the columns in order."""

    row: str
    columns: tuple[Column, ...]


# Why a direction drops a packet. A processor has one cause, ``processor_overload``, and its own
# table.
DROP_CAUSES: Final[Mapping[str, str]] = _core.drop_causes()

TABLES: Final[Mapping[str, Table]] = {
    name: Table(row, tuple(Column(*column) for column in columns))
    for name, row, columns in _core.table_schema()
}

# Why a packet of a flow is lost: in a direction, in a processor, or without a route.
LOSS_CAUSES: Final = tuple(
    column.name.removeprefix("lost_").removesuffix("_packets")
    for column in TABLES["flows"].columns
    if column.name.startswith("lost_")
)


# --- decoded --------------------------------------------------------------------------------------


_DTYPES: Final = {"u8": "<u1", "u32": "<u4", "u64": "<u8", "f64": "<f8"}


def decode_column(
    column: tuple[str, bytes, bytes | None],
) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_] | None]:
    """View a column of the extension as an array, and its validity (None: no nulls) as another."""
    dtype, data, validity = column
    values = np.frombuffer(data, dtype=_DTYPES[dtype])
    return values, None if validity is None else np.frombuffer(validity, dtype=np.bool_)


def decode_tables(
    tables: Mapping[str, Mapping[str, tuple[str, bytes, bytes | None]]],
) -> dict[str, pl.DataFrame]:
    """Return the extension's tables as frames."""
    frames = {}
    for name, columns in tables.items():
        series = []
        for column_name, column in columns.items():
            values, valid = decode_column(column)
            decoded = pl.Series(column_name, values)
            if valid is not None:
                decoded = pl.select(pl.when(pl.Series(valid)).then(decoded)).to_series()
                decoded = decoded.alias(column_name)
            series.append(decoded)
        frames[name] = pl.DataFrame(series)
    return frames


class Frame(pl.DataFrame):
    """A polars frame whose error for an unknown column names the nearest one.

    Filters, joins and other operations return plain frames.
    """

    def __getitem__(self, key: Any) -> Any:
        try:
            return super().__getitem__(key)
        except pl.exceptions.ColumnNotFoundError:
            names = [key] if isinstance(key, str) else [name for name in key if name not in self]
            message = f"column: {choice(names[0], tuple(self.columns))}"
            raise pl.exceptions.ColumnNotFoundError(message) from None


class Tables(dict[str, pl.DataFrame]):
    """The tables of a result by name; the error for an unknown one names the nearest."""

    def __missing__(self, name: object) -> NoReturn:
        raise KeyError(f"table: {choice(name, tuple(self))}")

    def __reduce__(self) -> tuple[type[Self], tuple[dict[str, pl.DataFrame]]]:
        return type(self), (dict(self),)


def to_pandas(frame: pl.DataFrame) -> Any:
    """Return a frame as one of pandas; null is NaN, and None among texts.

    polars converts by way of pyarrow, which is larger than all that bentpipe needs.

    Raises:
        UsageError: pandas is not installed.
    """
    try:
        pandas = import_module("pandas")
    except ModuleNotFoundError:
        raise UsageError(
            "to_pandas: pandas is not installed; pip install 'bentpipe[pandas]'"
        ) from None
    columns = {}
    for series in frame:
        columns[series.name] = (
            series.to_list() if series.dtype == pl.String else series.to_numpy(writable=True)
        )
    return pandas.DataFrame(columns)
