"""The tables of one run as bytes, and those of many runs as frames.

A record has the tables of a run without its samples and events, column by column in the order of
`bentpipe.results.tables.TABLES`, as the simulator returns them. So one version of bentpipe reads
what it wrote.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
import polars as pl

from bentpipe.results.columns import BYTES_PER_VALUE, decode_tables
from bentpipe.results.derived import direction_rows, flow_rows
from bentpipe.results.tables import TABLES
from bentpipe.simulation.many import Outcome

_LEFT_OUT: Final = ("flow_samples", "direction_samples", "events")
KEPT: Final = tuple(name for name in TABLES if name not in _LEFT_OUT)
_DTYPES: Final = {name: [column.dtype for column in TABLES[name].columns] for name in KEPT}
# How the run ended, its work, and the rows of each table.
_HEAD: Final = struct.Struct(f"<?QQ{len(KEPT)}I")

RawColumns = Mapping[str, tuple[str, bytes, bytes | None]]


@dataclass(frozen=True)
class RunRecord:
    """One complete run: when it ended, its work, and its tables as they are stored."""

    traffic_ended: bool
    end_ns: int
    packet_hops: int
    tables: Mapping[str, RawColumns]


def record_of(outcome: Outcome) -> RunRecord:
    """Return the record of a run."""
    raw = outcome.raw
    return RunRecord(raw["completed"], raw["end_ns"], raw["packet_hops"], raw["tables"])


def pack(outcome: Outcome) -> bytes:
    """Return the record of a complete run as bytes, in the thread or process of the run."""
    raw = outcome.raw
    return _pack(raw["completed"], raw["end_ns"], raw["packet_hops"], raw["tables"])


def _pack(ended: bool, end_ns: int, packet_hops: int, tables: Mapping[str, RawColumns]) -> bytes:
    rows, parts = [], []
    for name, dtypes in _DTYPES.items():
        columns = tables[name].values()
        first = next(iter(columns))
        rows.append(len(first[1]) // BYTES_PER_VALUE[dtypes[0]])
        parts.append(bytes([validity is not None for _, _, validity in columns]))
        for _, data, validity in columns:
            parts.append(data)
            if validity is not None:
                parts.append(validity)
    return b"".join((_HEAD.pack(ended, end_ns, packet_hops, *rows), *parts))


def unpack(data: bytes) -> RunRecord:
    """Return the record that `pack` has written."""
    facts = unpack_facts(data)
    position = _HEAD.size
    tables = {}
    for (name, dtypes), count in zip(_DTYPES.items(), facts.rows, strict=True):
        flags = data[position : position + len(dtypes)]
        base = position + len(dtypes)
        layout, size = _layout(name, count, flags)
        tables[name] = {
            column: (
                dtype,
                data[base + begin : base + middle],
                data[base + middle : base + end] if nullable else None,
            )
            for column, dtype, begin, middle, end, nullable in layout
        }
        position = base + size
    return RunRecord(facts.traffic_ended, facts.end_ns, facts.packet_hops, tables)


class RunFacts(NamedTuple):
    """The beginning of a record: how the run ended, its work, and the rows of each table."""

    traffic_ended: bool
    end_ns: int
    packet_hops: int
    rows: tuple[int, ...]


def unpack_facts(data: bytes) -> RunFacts:
    """Return the beginning of a record."""
    ended, end_ns, packet_hops, *rows = _HEAD.unpack_from(data)
    return RunFacts(ended, end_ns, packet_hops, tuple(rows))


@lru_cache(maxsize=1_000)
def _layout(
    name: str, count: int, has_validity: bytes
) -> tuple[tuple[tuple[str, str, int, int, int, bool], ...], int]:
    """Return where the columns of a table are, from the end of its flags, and its size.

    A column has a name, a type, the begin of its values, that of its validity, its end, and whether
    it has a validity. The runs of a cell mostly have the same layout.
    """
    found, position = [], 0
    for column, nullable in zip(TABLES[name].columns, has_validity, strict=True):
        middle = position + count * BYTES_PER_VALUE[column.dtype]
        end = middle + (count if nullable else 0)
        found.append((column.name, column.dtype, position, middle, end, bool(nullable)))
        position = end
    return tuple(found), position


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
    records: Sequence[RunRecord], plan: Mapping[str, Any], entries: Sequence[Mapping[str, Any]]
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the rows of flows and of directions of runs of one plan, derived columns included.

    They are those of `Result.flows` and `Result.directions`, with ``run``, the index into
    ``records``, in front.
    """
    tables = {name: _together(record.tables[name] for record in records) for name in KEPT}
    ends_ns = [record.end_ns for record in records]
    return (
        flow_rows(tables, plan, entries, ends_ns),
        direction_rows(tables["directions"], plan, ends_ns),
    )


def flow_schema(plan: Mapping[str, Any], entries: Sequence[Mapping[str, Any]]) -> pl.Schema:
    """Return the columns of the rows of flows, without ``run``, and their types."""
    tables: dict[str, RawColumns] = {
        name: {column.name: (column.dtype, b"", None) for column in TABLES[name].columns}
        for name in KEPT
    }
    rows = rows_of([RunRecord(True, 0, 0, tables)], plan, entries)[0]
    return rows.drop("run").schema


def _together(tables: Iterable[RawColumns]) -> pl.DataFrame:
    """Return the rows of the tables of several runs, with the number of the run in front."""
    found = list(tables)
    columns: dict[str, tuple[str, bytes, bytes | None]] = {}
    heights = [_height(table) for table in found]
    for name, (dtype, _, _) in found[0].items():
        own = [table[name] for table in found]
        validity = None
        if any(each is not None for _, _, each in own):
            validity = b"".join(
                bytes([1]) * height if each is None else each
                for (_, _, each), height in zip(own, heights, strict=True)
            )
        columns[name] = (dtype, b"".join([data for _, data, _ in own]), validity)
    run = np.repeat(np.arange(len(found), dtype=np.uint32), heights)
    return decode_tables({"all": {"run": ("u32", run.tobytes(), None), **columns}})["all"]


def _height(table: RawColumns) -> int:
    dtype, data, _ = next(iter(table.values()))
    return len(data) // BYTES_PER_VALUE[dtype]
