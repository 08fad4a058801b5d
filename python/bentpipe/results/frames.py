"""Frames and tables that suggest the right name for a wrong one, and frames of pandas."""

from __future__ import annotations

from importlib import import_module
from typing import Any, NoReturn, Self

import polars as pl

from bentpipe.errors import UsageError
from bentpipe.text import choice


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
