"""Results: the manifest and the columns of one run, in memory and as a folder.

A result folder holds ``manifest.json`` and one Parquet file a table. `TABLES` lists every table
and column with unit and meaning; ``docs/results-format.md`` says the same for people. Columns hold
facts; what is derived from them (goodput, utilization) is computed when it is read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from bentpipe.errors import UsageError
from bentpipe.results.tables import DROP_CAUSES, TABLES, Column, Table
from bentpipe.simulation.memory import stopped

if TYPE_CHECKING:
    import polars as pl

__all__ = [
    "DROP_CAUSES",
    "MANIFEST",
    "REPORT",
    "RESULT_FORMAT_VERSION",
    "TABLES",
    "Column",
    "Result",
    "Table",
    "decode_column",
    "decode_tables",
    "prepare_output_folder",
]

RESULT_FORMAT_VERSION: Final = 2
MANIFEST: Final = "manifest.json"
REPORT: Final = "report.html"

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
    import polars as pl

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


class Result:
    """One run: ``manifest`` says what was run and how it ended, ``tables`` hold the columns.

    The frames in ``tables`` are as stored (see `TABLES`). The properties below are the same facts
    with names in the place of numbers and the derived figures added.
    """

    def __init__(self, manifest: dict[str, Any], tables: dict[str, pl.DataFrame]) -> None:
        self.manifest = manifest
        self.tables = tables

    def __repr__(self) -> str:
        title = self.manifest["scenario"].get("name") or "unnamed"
        early = "interrupted" if self.interrupted else self.stop_reason
        state = "complete" if early is None else early
        return f"<Result {title!r}: {len(self.tables['flows'])} flows, {state}>"

    @property
    def plan(self) -> dict[str, Any]:
        """The complete plan that was run, in ns, bytes and bit/s."""
        plan: dict[str, Any] = self.manifest["plan"]
        return plan

    @property
    def interrupted(self) -> bool:
        """Whether the run was stopped before its end; the tables hold what was recorded."""
        return bool(self.manifest["interrupted"])

    @property
    def memory_limit_reached(self) -> bool:
        """Whether the run was stopped at its memory limit; the tables hold what was recorded."""
        return bool(self.manifest.get("memory", {}).get("limit_reached", False))

    @property
    def stop_reason(self) -> str | None:
        """When and why the simulator stopped the run before its end, if it did."""
        if not self.memory_limit_reached:
            return None
        return stopped(self.manifest["end_ns"], self.manifest["memory"]["limit_bytes"])

    @property
    def engine(self) -> str:
        """What ran it: ``simulate``, or ``emulate`` for a run in real time."""
        return str(self.manifest.get("engine", "simulate"))

    @property
    def invalid(self) -> str | None:
        """Why the figures do not count, if they do not: a run in real time was late."""
        reason: str | None = self.manifest.get("emulation", {}).get("invalid")
        return reason

    @property
    def goodput_bps(self) -> npt.NDArray[np.float64]:
        """Goodput of each flow in application bit/s; see `bentpipe.results.metrics.goodput_bps`."""
        from bentpipe.results.metrics import goodput_bps

        return goodput_bps(self)

    @property
    def flows(self) -> pl.DataFrame:
        """The table ``flows`` with names in front, and what is derived from it at the end.

        ``direction`` is a name, so that with several terminals it tells their returns apart. At the
        end stand goodput_bps, and median and 95th percentile of the flow's exchange times.
        """
        import polars as pl

        from bentpipe.results.metrics import exchange_quantiles_ns

        table = self.tables["flows"]
        planned = [self.plan["flows"][flow] for flow in table["flow"].to_list()]
        median_ns, high_ns = exchange_quantiles_ns(self, (0.5, 0.95))
        return table.select(
            pl.Series("name", [flow["name"] for flow in planned], dtype=pl.String),
            pl.Series("kind", [flow["workload"]["kind"] for flow in planned], dtype=pl.String),
            pl.Series("direction", self.flow_directions, dtype=pl.String),
            pl.all(),
            pl.Series("goodput_bps", self.goodput_bps),
            pl.Series("exchange_time_ns_median", median_ns, dtype=pl.Float64),
            pl.Series("exchange_time_ns_p95", high_ns, dtype=pl.Float64),
        )

    @property
    def flow_directions(self) -> list[str]:
        """The direction of each flow's data by name, in the order of the plan."""
        names = self.manifest["names"]["directions"]
        return [
            names[0 if flow["direction"] == "forward" else 1 + flow["terminal"]]
            for flow in self.plan["flows"]
        ]

    @property
    def directions(self) -> pl.DataFrame:
        """The table ``directions`` with names, and utilization: busy time over the run, 0 to 1."""
        return self._used(self._named("directions", direction="directions"))

    @property
    def processors(self) -> pl.DataFrame:
        """The table ``processors`` with names, and utilization; no rows when there are none."""
        import polars as pl

        table = self.tables["processors"]
        number = pl.col("processor")
        name = pl.format("terminal-{}-processor", number)
        name = pl.when(number == 0).then(pl.lit("hub-processor")).otherwise(name)
        return self._used(table.with_columns(name.alias("processor")))

    @property
    def function_statistics(self) -> pl.DataFrame:
        """The table ``function_statistics`` with names; no rows when no function counts."""
        return self._named("function_statistics", place="places", statistic="statistics")

    @property
    def functions(self) -> list[dict[str, Any]]:
        """The statistics of each gateway function that counts: its name, and each value by name.

        ``hold_time_mean_ns`` is that of all packets that waited, ``None`` if none did.
        """
        functions: dict[str, dict[str, Any]] = {}
        for row in self.function_statistics.to_dicts():
            function = functions.setdefault(row["place"], {"function": row["place"]})
            function[row["statistic"]] = row["value"]
        for function in functions.values():
            waited = function["packed_packets"] + function["single_packets"]
            mean_ns = function["hold_time_sum_ns"] / waited if waited else None
            function["hold_time_mean_ns"] = mean_ns
        return list(functions.values())

    @property
    def exchanges(self) -> pl.DataFrame:
        """The table ``exchanges`` with the flow's name in front, and ``time_ns`` at the end.

        ``time_ns`` is from start to finish, null when the run ended before.
        """
        import polars as pl

        table = self.tables["exchanges"]
        names = [self.plan["flows"][flow]["name"] for flow in table["flow"].to_list()]
        return table.select(
            pl.Series("name", names, dtype=pl.String),
            pl.all(),
            (pl.col("finished_ns") - pl.col("start_ns")).alias("time_ns"),
        )

    @property
    def flow_samples(self) -> pl.DataFrame:
        """The table ``flow_samples``: windows, round-trip times and progress over time."""
        return self.tables["flow_samples"]

    @property
    def direction_samples(self) -> pl.DataFrame:
        """The table ``direction_samples`` with names: queue, traffic and drops over time."""
        return self._named("direction_samples", direction="directions")

    @property
    def events(self) -> pl.DataFrame:
        """The table ``events`` with names.

        Raises:
            UsageError: the scenario did not ask for packet events.
        """
        if "events" not in self.tables:
            raise UsageError(
                "the result has no packet events; set packet_events: true and run again"
            )
        return self._named("events", place="places", kind="event_kinds", cause="drop_causes")

    def summary(self) -> dict[str, Any]:
        """Return the figures of the run as plain data, ready for JSON; names end in their unit."""
        manifest = self.manifest
        real_time = {"engine": self.engine, "emulation": manifest.get("emulation")}
        return {
            **(real_time if self.engine != "simulate" else {}),
            "scenario": manifest["scenario"].get("name", ""),
            "seed": manifest["seed"],
            "completed": manifest["completed"],
            "interrupted": manifest["interrupted"],
            "memory_limit_reached": self.memory_limit_reached,
            "end_ns": manifest["end_ns"],
            "packet_hops": manifest["packet_hops"],
            "flows": self.flows.to_dicts(),
            "directions": self.directions.to_dicts(),
            "processors": self.processors.to_dicts(),
            "functions": self.functions,
        }

    def save(self, folder: str | Path) -> Path:
        """Write the result into a folder, made if need be, replacing a result that is there.

        The manifest is written last: a folder with one is complete.

        Raises:
            UsageError: the folder holds something other than a result, or cannot be written.
        """
        path = Path(folder)
        prepare_output_folder(path)
        try:
            for stale in (MANIFEST, REPORT, *(f"{name}.parquet" for name in TABLES)):
                (path / stale).unlink(missing_ok=True)
            for name, table in self.tables.items():
                table.write_parquet(path / f"{name}.parquet")
            text = json.dumps(self.manifest, indent=2, sort_keys=True)
            (path / MANIFEST).write_text(f"{text}\n", encoding="utf-8")
        except OSError as error:
            raise UsageError(f"{path}: cannot be written: {error.strerror or error}") from None
        return path

    @classmethod
    def load(cls, folder: str | Path) -> Result:
        """Read a result folder.

        Raises:
            UsageError: not a result folder, of a format version that is not known, or damaged.
        """
        import polars as pl

        path = Path(folder)
        manifest = _read_manifest(path)
        if _kind(manifest) != "run":
            raise UsageError(
                f"{path}: holds the result of a {_kind(manifest)}, whose report is {path / REPORT}"
            )
        version = manifest.get("format_version")
        if version != RESULT_FORMAT_VERSION:
            raise UsageError(
                f"{path / MANIFEST}: format_version is {version!r}; this bentpipe reads "
                f"{RESULT_FORMAT_VERSION}: read it with the bentpipe that wrote it "
                f"({manifest['bentpipe_version']})"
            )
        names = [name for name in TABLES if name != "events" or manifest["plan"]["packet_events"]]
        tables = {}
        for name in names:
            file = path / f"{name}.parquet"
            try:
                tables[name] = pl.read_parquet(file)
            except (OSError, pl.exceptions.PolarsError) as error:
                raise UsageError(
                    f"{file}: cannot be read, the result is damaged: {error}"
                ) from None
        return cls(manifest, tables)

    def _used(self, table: pl.DataFrame) -> pl.DataFrame:
        """Add the share of the run that ``busy_ns`` is."""
        import polars as pl

        end_ns = max(int(self.manifest["end_ns"]), 1)
        return table.with_columns((pl.col("busy_ns") / end_ns).alias("utilization"))

    def _named(self, table: str, **enumerations: str) -> pl.DataFrame:
        """Return a table with the numbers of some columns replaced by their names."""
        import polars as pl

        return self.tables[table].with_columns(
            pl.col(column).replace_strict(
                dict(enumerate(self.manifest["names"][enumeration])), return_dtype=pl.String
            )
            for column, enumeration in enumerations.items()
        )


def prepare_output_folder(path: Path, *, kind: str = "run") -> None:
    """Make the folder if need be, and make sure that writing a result into it would lose nothing.

    Raises:
        UsageError: it is a file, has something other than a result of this kind (``run``,
            ``study`` or ``search``) in it, or cannot be written.
    """
    if path.exists() and not path.is_dir():
        raise UsageError(f"{path}: is a file; --out names a folder")
    try:
        path.mkdir(parents=True, exist_ok=True)
        others = any(path.iterdir()) and not (path / MANIFEST).is_file()
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror or error}") from None
    if not os.access(path, os.W_OK):
        raise UsageError(f"{path}: cannot be written: no permission")
    if others:
        raise UsageError(
            f"{path}: has other things in it (no {MANIFEST}); name a new or an empty folder"
        )
    if (path / MANIFEST).is_file():
        found = _kind(_read_manifest(path))
        if found != kind:
            raise UsageError(f"{path}: holds the result of a {found}; name another folder")


def _kind(manifest: Mapping[str, Any]) -> str:
    """Whether a manifest is of a single run, of a study or of a search."""
    return str(manifest.get("kind", "run"))


def _read_manifest(path: Path) -> dict[str, Any]:
    file = path / MANIFEST
    if not path.exists():
        raise UsageError(f"{path}: no such folder")
    if not file.is_file():
        raise UsageError(f"{path}: not a bentpipe result: it has no {MANIFEST}")
    try:
        manifest = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{file}: cannot be read: {error}") from None
    if not isinstance(manifest, dict) or "bentpipe_version" not in manifest:
        raise UsageError(f"{file}: not the manifest of a bentpipe result")
    return manifest
