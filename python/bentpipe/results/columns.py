"""Columns as the extension returns them, decoded into arrays and frames."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

_DTYPES: Final = {"u8": "<u1", "u32": "<u4", "u64": "<u8", "f64": "<f8"}
BYTES_PER_VALUE: Final = {name: np.dtype(dtype).itemsize for name, dtype in _DTYPES.items()}


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
