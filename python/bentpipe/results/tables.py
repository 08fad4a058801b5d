"""The tables of a result, as the simulator defines them (``crates/sim/src/record``), and as frames.

An emulation writes the same tables. `table_rows` replaces indices by names and adds the derived
columns (`bentpipe.metrics`). A table may hold several runs of one plan: its column ``run`` numbers
them from 0, as an index into ``ends_ns``, the ends of the runs in nanoseconds.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, Final, NoReturn, Self

import numpy as np
import numpy.typing as npt
import polars as pl

from bentpipe import _core
from bentpipe.errors import UsageError
from bentpipe.metrics import metrics_of
from bentpipe.plan.presets import direction_number
from bentpipe.results.measures import goodput_of_rows, names_of_entries
from bentpipe.results.metric_values import reduced
from bentpipe.results.voice import call_columns
from bentpipe.scenario.metric_ref import read_metric
from bentpipe.text import choice


@dataclass(frozen=True)
class Column:
    """A column: its type (u8, u32, u64, f64), its unit, and what a value means.

    In a nullable column, null means that the event did not happen, that the column does not apply
    to the row, or that an emulation cannot measure the value; ``meaning`` says which.
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


# Why a direction drops a packet. A processor has one cause, ``processor_overload``, which the table
# ``processors`` counts.
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

# A place at a terminal, such as terminal-1-pep; terminals are numbered from 1.
_TERMINAL: Final = re.compile(r"terminal-(\d+)-")


# --- decoded --------------------------------------------------------------------------------------


_DTYPES: Final = {"u8": "<u1", "u32": "<u4", "u64": "<u8", "f64": "<f8"}


def decode_column(
    column: tuple[str, bytes, bytes | None],
) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_] | None]:
    """View a column of the extension as an array, and its validity (None: no nulls) as another.

    It is its type, its little-endian values, and a byte of 0 or 1 a row, or None. The views are
    read-only.
    """
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


def _column_names(key: Any) -> list[str]:
    """Return the names of columns in a key of a frame: columns, or rows and columns."""
    if isinstance(key, tuple) and not isinstance(key[0], str):
        key = key[-1]
    if isinstance(key, slice):
        key = (key.start, key.stop)
    return [name for name in ([key] if isinstance(key, str) else key) if isinstance(name, str)]


class Frame(pl.DataFrame):
    """A polars frame whose error for an unknown column names the nearest one.

    Filters, joins and other operations return plain frames.
    """

    def __getitem__(self, key: Any) -> Any:
        try:
            return super().__getitem__(key)
        except pl.exceptions.ColumnNotFoundError:
            names = [name for name in _column_names(key) if name not in self]
            message = f"column: {choice(names[0], tuple(self.columns))}"
            raise pl.exceptions.ColumnNotFoundError(message) from None


class Tables(dict[str, pl.DataFrame]):
    """The tables of a result by name; the error for an unknown one names the nearest."""

    def __missing__(self, name: object) -> NoReturn:
        raise KeyError(f"table: {choice(name, tuple(self))}")

    def __reduce__(self) -> tuple[type[Self], tuple[dict[str, pl.DataFrame]]]:
        return type(self), (dict(self),)


def to_pandas(source: object, table: str, allowed: Collection[str]) -> Any:
    """Return a table of a result or a sweep as a pandas frame; null is NaN, and None among texts.

    Integers with nulls become floats, exact up to 2^53. The conversion of polars needs pyarrow, a
    large library.

    Raises:
        UsageError: the table is none of those that are allowed, or pandas is not installed.
    """
    if table not in allowed:
        raise UsageError(f"table: {choice(table, tuple(allowed))}")
    frame: pl.DataFrame = getattr(source, table)
    try:
        pandas = import_module("pandas")
    except ModuleNotFoundError:
        raise UsageError(
            "to_pandas: pandas is not installed; pip install 'bentpipe[pandas]'"
        ) from None
    columns = {
        series.name: list(series) if series.dtype == pl.String else series.to_numpy(writable=True)
        for series in frame
    }
    return pandas.DataFrame(columns)


# --- with names and derived columns ---------------------------------------------------------------


def table_rows(
    name: str,
    tables: Mapping[str, pl.DataFrame],
    plan: Mapping[str, Any],
    entries: Sequence[Mapping[str, Any]],
    ends_ns: Sequence[int],
) -> pl.DataFrame:
    """Return a table with names, and its derived columns in the order of metrics.csv at the end.

    Rows of flows have ``name`` and ``direction`` in front; those of ``flows`` also ``kind``, and
    ``entry`` after the columns of the table. Names replace the indices of directions, processors
    and gateways.
    """
    table = tables[name]
    front = [column for column in table.columns if column == "run"]
    columns = [column for column in table.columns if column != "run"]
    # Formulas see stored columns, run_ns and size_bytes; `select` leaves the last two out.
    rows = table.with_columns(run_ns=_run_time(table, ends_ns))
    if "flow" in columns:
        flows = _flows(plan, entries)
        rows = rows.join(flows, on="flow", how="left", maintain_order="left")
        front += ["name", *(["kind"] if name == "flows" else []), "direction"]
    elif name in {"directions", "classes"}:
        names = dict(enumerate(direction["name"] for direction in plan["directions"]))
        label = pl.col("direction").replace_strict(names, return_dtype=pl.String)
        rows = rows.with_columns(direction=label)
        if name == "classes":
            rows = rows.with_columns(pl.format("{}-{}", "direction", "class").alias("class"))
    elif name == "processors":
        number = pl.col("processor")
        label = pl.format("terminal-{}-processor", number)
        label = pl.when(number == 0).then(pl.lit("hub-processor")).otherwise(label)
        rows = rows.with_columns(processor=label)
    rows = _with_formulas(rows, name)
    if name == "flows":
        columns = [*columns, "entry"]
        rows = _with_aggregates(rows, tables, plan, ends_ns)
    elif name == "legs":
        replaced = {"flow", "leg", "from_gateway", "to_gateway"}
        rest = [column for column in columns if column not in replaced]
        columns = ["flow", "leg", "from", "to", *rest]
        rows = rows.with_columns(_leg_ends(plan))
    derived = [metric.name for metric in metrics_of(name).values() if metric.is_derived]
    return rows.select(*front, *columns, *derived)


def _flows(plan: Mapping[str, Any], entries: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    """Return a row for each flow of a plan: its names, and the size of a transfer that has one."""
    flows = plan["flows"]
    # Only bulk transfers have an amount: bytes, or a time.
    amounts = [flow["workload"].get("amount", {}) for flow in flows]
    sizes = [amount["value"] if amount.get("unit") == "bytes" else None for amount in amounts]
    names = {
        "name": [flow["name"] for flow in flows],
        "kind": [flow["workload"]["kind"] for flow in flows],
        "direction": flow_directions(plan),
        "entry": names_of_entries(plan, entries),
    }
    return pl.DataFrame(
        [
            pl.Series("flow", range(len(flows)), dtype=pl.UInt32),
            *(pl.Series(name, values, dtype=pl.String) for name, values in names.items()),
            pl.Series("size_bytes", sizes, dtype=pl.UInt64),
        ]
    )


def flow_directions(plan: Mapping[str, Any]) -> list[str]:
    """Return the name of the direction of each flow's data, in the order of the plan.

    With several terminals, the returns are return-1, return-2 and so on.
    """
    return [plan["directions"][direction_number(flow)]["name"] for flow in plan["flows"]]


def _with_aggregates(
    rows: pl.DataFrame,
    tables: Mapping[str, pl.DataFrame],
    plan: Mapping[str, Any],
    ends_ns: Sequence[int],
) -> pl.DataFrame:
    """Return rows of flows with statistics of their rows in other tables, goodput, and calls."""
    by = [name for name in ("run", "flow") if name in rows.columns]
    sources: dict[str, list[pl.Expr]] = {}
    for metric in metrics_of("flows").values():
        if metric.of:
            ref = read_metric(metric.of)
            value = reduced(pl.col(ref.column).drop_nulls(), ref)
            sources.setdefault(ref.table, []).append(value.alias(metric.name))
    for name, statistics in sources.items():
        values = _with_formulas(tables[name], name).group_by(by).agg(statistics)
        rows = rows.join(values, on=by, how="left", maintain_order="left")
    ends = np.asarray(ends_ns, dtype=np.int64)
    end_ns = ends[rows["run"].to_numpy()] if "run" in by else ends[0]
    workloads = [plan["flows"][flow]["workload"] for flow in rows["flow"]]
    return rows.with_columns(
        pl.Series("goodput_bps", goodput_of_rows(rows, plan, end_ns)),
        *call_columns(workloads, rows),
    )


def _leg_ends(plan: Mapping[str, Any]) -> list[pl.Expr]:
    """Return the names of both ends of a leg; without a gateway it is the sender or receiver."""
    names = dict(enumerate(gateway["name"] for gateway in plan["gateways"]))
    return [
        pl.col(f"{end}_gateway")
        .replace_strict(names, return_dtype=pl.String)
        .fill_null(pl.lit(host))
        .alias(end)
        for end, host in (("from", "sender"), ("to", "receiver"))
    ]


def _with_formulas(rows: pl.DataFrame, table: str) -> pl.DataFrame:
    formulas = {name: metric.formula for name, metric in metrics_of(table).items()}
    return rows.with_columns(
        _expression(formula).alias(name) for name, formula in formulas.items() if formula
    )


@cache
def _expression(formula: str) -> pl.Expr:
    return pl.sql_expr(formula)


def _run_time(table: pl.DataFrame, ends_ns: Sequence[int]) -> pl.Expr:
    """Return the expression of the time of the run of each row, at least 1 ns to divide by."""
    ends = np.maximum(np.asarray(ends_ns, dtype=np.int64), 1)
    if "run" in table.columns:
        return pl.lit(pl.Series(ends[table["run"].to_numpy()]))
    return pl.lit(int(ends[0]))


def by_function(rows: list[dict[str, Any]], offered_bytes: Sequence[int]) -> list[dict[str, Any]]:
    """Return the statistics of each gateway function from rows of ``function_statistics``.

    ``offered_bytes`` are the IP bytes that each direction received: 0 is forward, behind the hub,
    and n the return of terminal n. A derived metric is added to the functions that have every input
    of its formula.
    """
    functions: dict[str, dict[str, Any]] = {}
    for row in rows:
        function = functions.setdefault(row["place"], {"function": row["place"]})
        function[row["statistic"]] = row["value"]
    terminals = (_TERMINAL.match(place) for place in functions)
    offered = [offered_bytes[int(terminal[1]) if terminal else 0] for terminal in terminals]
    statistics = list(functions.values())
    values = pl.DataFrame(statistics, infer_schema_length=None)
    values = values.with_columns(offered_bytes=pl.Series(offered, dtype=pl.UInt64))
    for name, metric in metrics_of("functions").items():
        if metric.formula:
            formula = _expression(metric.formula)
            needed = set(formula.meta.root_names()) - {"offered_bytes"}
            if needed <= set(values.columns):
                column = values.select(formula).to_series()
                for function, value in zip(statistics, column, strict=True):
                    if needed <= function.keys():
                        function[name] = value
    return statistics
