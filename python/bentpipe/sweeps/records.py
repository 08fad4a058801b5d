"""The tables of one run as bytes, and those of many runs as frames.

A record has the tables of a run without its samples and events (``crates/sim/src/record/packed.rs``
has its layout). One version of bentpipe reads what it wrote.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import polars as pl

from bentpipe import _core
from bentpipe.results.columns import decode_tables
from bentpipe.results.derived import table_rows
from bentpipe.simulation.many import Outcome

_RUNS: Final = "runs"
_KEPT: Final = tuple(name for name in _core.unpack([]) if name != _RUNS)


def pack(outcome: Outcome) -> bytes:
    """Return the record of a complete run, in the thread or process of the run."""
    raw = outcome.raw
    tables = raw["tables"]
    columns = [(data, valid) for name in _KEPT for _, data, valid in tables[name].values()]
    return _core.pack(raw["completed"], raw["end_ns"], raw["packet_hops"], columns)


def unpack(records: Sequence[bytes]) -> dict[str, pl.DataFrame]:
    """Return the tables of runs; ``run`` is the index into ``records``.

    The table ``runs`` has a row for each: whether its traffic ended, when, and its work.
    """
    return decode_tables(_core.unpack(records))


def raw_columns(frame: pl.DataFrame) -> dict[str, tuple[str, bytes, bytes | None]]:
    """Return a frame as the simulator returns a table."""
    columns: dict[str, tuple[str, bytes, bytes | None]] = {}
    for series in frame:
        dtype = _NAMES[str(series.dtype)]
        values = series.fill_null(0).to_numpy()
        valid = None if not series.null_count() else series.is_not_null().to_numpy()
        validity = None if valid is None else valid.astype(np.uint8).tobytes()
        columns[series.name] = (dtype, values.tobytes(), validity)
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
    return (
        table_rows("flows", tables, plan, entries, ends_ns),
        table_rows("directions", tables, plan, entries, ends_ns),
    )


def flow_schema(plan: Mapping[str, Any], entries: Sequence[Mapping[str, Any]]) -> pl.Schema:
    """Return the columns of the rows of flows, without ``run``, and their types."""
    return rows_of(unpack([]), plan, entries)[0].drop("run").schema
