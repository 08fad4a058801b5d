"""The result of one run: manifest and tables, in memory and as a folder.

A result folder holds ``manifest.json``, ``execution.json`` and one Parquet file a table.
`tables.TABLES` lists every table and column with unit and meaning; ``docs/results-format.md`` says
the same for people. Columns hold facts; what is derived from them (goodput, utilization) is
computed when it is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal, NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl

from bentpipe.errors import ScenarioWarning, UsageError
from bentpipe.results.files import (
    REPORT,
    kind_of,
    read_execution,
    read_file,
    read_manifest,
    read_unchanged,
    require_format,
    stop_message,
    write_files,
    write_parquet,
)
from bentpipe.results.measures import capacity_attribution, entry_statistics, goodput_of_rows
from bentpipe.results.output import OutputFolder, opened
from bentpipe.results.run_views import notebook_html
from bentpipe.results.tables import (
    TABLES,
    Frame,
    Tables,
    by_function,
    flow_directions,
    table_rows,
    to_pandas,
)
from bentpipe.results.verdict import invalid_message, late_windows, verdict
from bentpipe.text import nearest
from bentpipe.units import format_duration

State: TypeAlias = Literal["completed", "interrupted", "memory_limit_reached", "invalid"]

_STATES: Final[Mapping[State, str]] = {
    "completed": "completed at",
    "interrupted": "interrupted at",
    "memory_limit_reached": "stopped at the memory limit at",
    "invalid": "invalid, ended at",
}


def _rows(table: str) -> cached_property[pl.DataFrame]:
    """Return the property of a result that is a table with names and derived columns."""

    def rows(result: Result) -> pl.DataFrame:
        manifest = result.manifest
        ends_ns = (int(manifest["end_ns"]),)
        entries = manifest.get("entries", [])
        return Frame(table_rows(table, result.tables, result.plan, entries, ends_ns))

    return cached_property(rows)


class Result:
    """One run: ``manifest`` says what was run and how it ended, ``tables`` hold the columns.

    The frames in ``tables`` are as stored (see `TABLES`). The properties give the same frames with
    names in place of indices, and derived columns added (`bentpipe.metrics`). A result does not
    change after the run, so each is computed once. ``execution`` says when and where the run was
    made; manifest and tables of equal runs are equal.

    Examples
    --------
    >>> result = bentpipe.simulate("scenarios/geo-bulk.yaml")
    >>> result.state, result.directions["direction"].to_list()
    ('completed', ['forward', 'return'])
    >>> result.flows.select("name", "direction").rows()
    [('bulk-1', 'forward')]
    """

    tables: Tables

    def __init__(
        self,
        manifest: dict[str, Any],
        tables: Mapping[str, pl.DataFrame],
        execution: dict[str, Any] | None = None,
    ) -> None:
        self.manifest = manifest
        self.tables = Tables(tables)
        self.execution = execution or {}

    def __getattr__(self, name: str) -> NoReturn:
        names = tuple(attribute for attribute in dir(type(self)) if not attribute.startswith("_"))
        near = None if name.startswith("_") else nearest(name, names)
        hint = f"; did you mean {near!r}?" if near else ""
        raise AttributeError(f"a Result has no attribute {name!r}{hint}", name=name, obj=self)

    def __repr__(self) -> str:
        title = self.manifest["scenario"].get("name") or "unnamed"
        return f"<Result {title!r}: {len(self.tables['flows'])} flows, {self.ending}>"

    def _repr_html_(self) -> str:
        """Show the flows and the directions of the link as tables, for notebooks."""
        return notebook_html(self)

    @property
    def plan(self) -> dict[str, Any]:
        """Return the complete plan that was run, in ns, bytes and bit/s."""
        plan: dict[str, Any] = self.manifest["plan"]
        return plan

    @property
    def title(self) -> str:
        """Return the name of the scenario, or "Scenario"."""
        return self.manifest["scenario"].get("name") or "Scenario"

    @property
    def state(self) -> State:
        """Return how the run ended.

        It was ``completed`` (all traffic ended, or the run reached its duration), ``interrupted``
        by Ctrl-C, stopped as ``memory_limit_reached``, or is ``invalid``, because it was late in
        real time. Unless it was completed, the tables hold what was recorded until its end.
        """
        state: State = self.manifest["state"]
        return state

    @property
    def ending(self) -> str:
        """Return the state of the run and when it ended, for a person."""
        return f"{_STATES[self.state]} {format_duration(self.manifest['end_ns'])}"

    @property
    def interrupted(self) -> bool:
        """Return whether the run was stopped before its end; the tables hold what was recorded."""
        return self.state == "interrupted"

    @property
    def memory_limit_reached(self) -> bool:
        """Return whether the run reached its memory limit; the tables hold what was recorded."""
        return self.state == "memory_limit_reached"

    @property
    def stop_reason(self) -> str | None:
        """Return when and why the simulator ended the run early; None if it did not."""
        if not self.memory_limit_reached:
            return None
        return stop_message(self.manifest["end_ns"], self.execution["memory"]["limit_bytes"])

    @property
    def engine(self) -> str:
        """Return the engine: ``simulate``, or ``emulate`` for a run in real time."""
        return str(self.manifest.get("engine", "simulate"))

    @property
    def invalid(self) -> str | None:
        """Return why the run is invalid (a run in real time was late), which figures hold, the fix.

        None if it is valid.
        """
        return invalid_message(self.manifest.get("emulation", {"invalid": None}))

    @property
    def warnings(self) -> tuple[ScenarioWarning, ...]:
        """Return the warnings about the scenario: what may not mean what was intended."""
        return tuple(ScenarioWarning(**warning) for warning in self.manifest.get("warnings", ()))

    @property
    def goodput_bps(self) -> npt.NDArray[np.float64]:
        """Return the goodput of each flow in application bit/s: see `goodput_of_rows`."""
        return goodput_of_rows(self.tables["flows"], self.plan, self.manifest["end_ns"])

    flows = _rows("flows")
    """The table ``flows`` with name, kind and direction in front, and derived columns.

    ``direction`` is a name: with several terminals, each has its own return. ``entry``, the
    name of the flow's entry of ``traffic``, and the derived columns are the last ones.
    """

    @property
    def flow_directions(self) -> list[str]:
        """Return the name of the direction of each flow's data, in the order of the plan."""
        return flow_directions(self.plan)

    directions = _rows("directions")
    """The table ``directions`` with names, utilization, loss and shares of time."""

    @cached_property
    def attribution(self) -> pl.DataFrame:
        """Return where the link's capacity went, by TCP flow: see `capacity_attribution`."""
        return Frame(capacity_attribution(self))

    capacity = _rows("capacity")
    """The table ``capacity`` with the flow's name and direction in front."""

    @cached_property
    def entries(self) -> list[dict[str, Any]]:
        """Return the figures of each entry of ``traffic`` and direction of its data.

        A quantity has ``p5``, ``p50``, ``p95`` and ``p99`` over the entry's flows, or is None.
        """
        return entry_statistics(self)

    classes = _rows("classes")
    """The table ``classes`` with names and rates, empty without a queue with a shared rate.

    ``class`` is the direction and the number of the class, such as ``forward-0``.
    """

    processors = _rows("processors")
    """The table ``processors`` with names and utilization; empty without processors."""

    @cached_property
    def function_statistics(self) -> pl.DataFrame:
        """Return the table ``function_statistics`` with names; empty without such functions."""
        return self._named("function_statistics", place="places", statistic="statistics")

    @cached_property
    def functions(self) -> list[dict[str, Any]]:
        """Return the statistics and derived metrics of each gateway function that has some.

        A mean or a share is None if nothing was counted.
        """
        offered = self.tables["directions"]["received_bytes"].to_list()
        return by_function(self.function_statistics.to_dicts(), offered)

    exchanges = _rows("exchanges")
    """The table ``exchanges`` with the flow's name and direction in front.

    The last column, ``time_ns``, is from start to finish, null if the run ended earlier.
    """

    pages = _rows("pages")
    """The table ``pages`` with the flow's name and direction in front.

    The last column, ``load_time_ns``, is from the click to the last byte of the last object,
    null if the run ended earlier.
    """

    legs = _rows("legs")
    """The table ``legs`` with names: a row a TCP connection that PEPs made of a flow.

    ``from`` and ``to`` are the gateways at its ends, or "sender" and "receiver" of the flow.
    """

    flow_samples = _rows("flow_samples")
    """The table ``flow_samples`` with the flow's name and direction in front.

    Rows: one a TCP flow and sample interval. Windows, round-trip times and progress.
    """

    datagram_samples = _rows("datagram_samples")
    """The table ``datagram_samples`` with the flow's name and direction in front.

    Rows: one a flow of datagrams and sample interval. Counts, delays and losses so far.
    """

    @property
    def direction_samples(self) -> pl.DataFrame:
        """Return the table ``direction_samples`` with names: queue, traffic and drops over time."""
        return self._named("direction_samples", direction="directions")

    @property
    def events(self) -> pl.DataFrame:
        """Return the table ``events`` with names.

        Raises:
            UsageError: the scenario did not ask for packet events.
        """
        if "events" not in self.tables:
            raise UsageError("the result has no packet events; run it with packet_events: true")
        return self._named("events", place="places", kind="event_kinds", cause="drop_causes")

    def summary(self) -> dict[str, Any]:
        """Return the figures of the run as plain data for JSON; names end in their unit."""
        manifest, real_time = self.manifest, {}
        if self.engine != "simulate":
            record = manifest["emulation"]
            judged = {"verdict": verdict(record), "late_windows": late_windows(record)}
            real_time = {"engine": self.engine, **judged, "emulation": record}
        return {
            **real_time,
            "scenario": manifest["scenario"].get("name", ""),
            "seed": manifest["seed"],
            "state": self.state,
            "traffic_ended": manifest["traffic_ended"],
            "end_ns": manifest["end_ns"],
            "warnings": [asdict(warning) for warning in self.warnings],
            "packet_hops": manifest["packet_hops"],
            "entries": self.entries,
            "flows": self.flows.to_dicts(),
            "directions": self.directions.to_dicts(),
            "attribution": self.attribution.to_dicts(),
            "classes": self.classes.to_dicts(),
            "processors": self.processors.to_dicts(),
            "functions": self.functions,
        }

    def to_pandas(self, table: str = "flows") -> Any:
        """Return a table as a pandas frame, with the names and columns of the property.

        Raises:
            UsageError: there is no such table, or pandas is not installed.
        """
        return to_pandas(self, table, TABLES)

    def save(
        self, folder: str | Path | OutputFolder, *, files: Mapping[str, str | bytes] | None = None
    ) -> Path:
        """Write the result into a folder, which is created if missing; an old result is replaced.

        ``files`` are further files by path, such as a report. The replacement is all or nothing:
        see `docs/results-format.md`.

        Raises:
            UsageError: the folder contains other files, another program writes to it, or it cannot
                be written.
        """

        def fill(stage: Path) -> None:
            for name, table in self.tables.items():
                write_parquet(table, stage / f"{name}.parquet")
            write_files(stage, files or {})

        out = folder if isinstance(folder, OutputFolder) else Path(folder)
        with opened(out, kind="run") as output:
            output.write(self.manifest, fill, execution=self.execution)
        return output.path

    @classmethod
    def load(cls, folder: str | Path, *, events: bool = True) -> Result:
        """Read a result folder; without ``events``, leave the table of packet events out.

        Raises:
            UsageError: not a result folder, of an unknown format version, or damaged.
        """
        path = Path(folder)
        return read_unchanged(path, lambda: cls._load(path, events))

    @classmethod
    def _load(cls, path: Path, events: bool) -> Result:
        manifest = read_manifest(path)
        if (kind := kind_of(manifest)) != "run":
            raise UsageError(f"{path}: holds the result of a {kind}; its report is {path / REPORT}")
        require_format(path, manifest)
        events = events and manifest["plan"]["packet_events"]
        names = [name for name in TABLES if name != "events" or events]
        tables = {}
        for name in names:
            file = f"{name}.parquet"
            try:
                tables[name] = read_file(path, file, pl.read_parquet)
            except (OSError, pl.exceptions.PolarsError) as error:
                raise UsageError(
                    f"{path / file}: cannot be read, the result is damaged: {error}"
                ) from None
        # What the manifest in a folder has in addition.
        about = {name: manifest[name] for name in manifest if name not in {"files", "kind"}}
        return cls(about, tables, read_execution(path))

    def _named(self, table: str, **enumerations: str) -> pl.DataFrame:
        named = self.tables[table].with_columns(
            pl.col(column).replace_strict(
                dict(enumerate(self.manifest["names"][enumeration])), return_dtype=pl.String
            )
            for column, enumeration in enumerations.items()
        )
        return Frame(named)
