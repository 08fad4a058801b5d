"""The tables and columns of a result, as the simulator defines them (``crates/sim/src/record``).

An emulation writes the same tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from bentpipe import _core


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
