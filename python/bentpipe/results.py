"""Results: the manifest and the columns of one run, in memory and as a folder.

A result folder holds ``manifest.json`` and one Parquet file a table. `TABLES` lists every table
and column with unit and meaning; ``docs/results-format.md`` says the same for people. Columns hold
facts; what is derived from them (goodput, utilization) is computed when it is read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from bentpipe.errors import UsageError

if TYPE_CHECKING:
    import polars as pl

RESULT_FORMAT_VERSION: Final = 1
MANIFEST: Final = "manifest.json"
REPORT: Final = "report.html"

_DTYPES: Final = {"u8": "<u1", "u32": "<u4", "u64": "<u8", "f64": "<f8"}


@dataclass(frozen=True)
class Column:
    """A column: its type (u8, u32, u64, f64), its unit, and what it means.

    A nullable column is null where the thing did not happen.
    """

    name: str
    dtype: str
    unit: str
    meaning: str
    nullable: bool = False


@dataclass(frozen=True)
class Table:
    """A table: what one row of it is, and its columns in order."""

    row: str
    columns: tuple[Column, ...]


TABLES: Final[Mapping[str, Table]] = {
    "flows": Table(
        "one flow over the whole run",
        (
            Column("flow", "u32", "index", "The flow, as an index into the plan's flows."),
            Column("start_ns", "u64", "ns", "When the flow started."),
            Column(
                "established_ns", "u64", "ns", "When the handshake was done, at the sender.", True
            ),
            Column(
                "last_ack_ns",
                "u64",
                "ns",
                "Arrival of the last acknowledgement that covered new data.",
                True,
            ),
            Column(
                "finished_ns",
                "u64",
                "ns",
                "Bulk: all bytes acknowledged. Constant rate: last datagram sent.",
                True,
            ),
            Column("sent_bytes", "u64", "application bytes", "Sent, each byte counted once."),
            Column("acked_bytes", "u64", "application bytes", "Acknowledged to the sender."),
            Column(
                "delivered_bytes", "u64", "application bytes", "Delivered in order to the receiver."
            ),
            Column("first_delivery_ns", "u64", "ns", "First delivery to the receiver.", True),
            Column("last_delivery_ns", "u64", "ns", "Last delivery to the receiver.", True),
            Column(
                "sent_segments",
                "u64",
                "segments",
                "Data segments or datagrams sent, retransmissions included.",
            ),
            Column("retransmitted_segments", "u64", "segments", "Data segments sent again."),
            Column("timeouts", "u64", "events", "Retransmission timeouts."),
            Column("fast_recoveries", "u64", "events", "Entries into fast recovery."),
            Column("tail_loss_probes", "u64", "segments", "Tail loss probes sent (RFC 8985)."),
            Column("acks_sent", "u64", "segments", "Acknowledgements sent by the receiver."),
            Column(
                "received_segments",
                "u64",
                "segments",
                "Data segments or datagrams that reached the receiver.",
            ),
            Column(
                "rtt_ns_min", "u64", "ns", "Smallest round-trip time that the sender took.", True
            ),
            Column("rtt_ns_mean", "f64", "ns", "Mean of the sender's round-trip samples.", True),
            Column(
                "one_way_delay_ns_mean",
                "f64",
                "ns",
                "Mean time of a data packet from sender to receiver.",
                True,
            ),
            Column(
                "one_way_delay_ns_max",
                "u64",
                "ns",
                "Largest time of a data packet from sender to receiver.",
                True,
            ),
        ),
    ),
    "flow_samples": Table(
        "one flow at one moment",
        (
            Column("time_ns", "u64", "ns", "The moment, from the start of the run."),
            Column("flow", "u32", "index", "The flow, as an index into the plan's flows."),
            Column("cwnd_bytes", "u64", "application bytes", "Congestion window."),
            Column(
                "ssthresh_bytes",
                "u64",
                "application bytes",
                "Slow-start threshold; null before the first loss.",
                True,
            ),
            Column("srtt_ns", "u64", "ns", "Smoothed round-trip time (RFC 6298).", True),
            Column(
                "in_flight_bytes", "u64", "application bytes", "Sent and not known to have arrived."
            ),
            Column("acked_bytes", "u64", "application bytes", "Acknowledged so far."),
            Column("delivered_bytes", "u64", "application bytes", "Delivered in order so far."),
        ),
    ),
    "direction_samples": Table(
        "one direction of the link at one moment",
        (
            Column("time_ns", "u64", "ns", "The moment, from the start of the run."),
            Column("direction", "u8", "name", "The direction, as an index into names.directions."),
            Column("queue_bytes", "u64", "IP bytes", "Waiting in the queue."),
            Column("queue_packets", "u64", "packets", "Waiting in the queue."),
            Column("in_flight_bytes", "u64", "IP bytes", "Sent and still propagating."),
            Column("sent_bytes", "u64", "link bytes", "Sent so far, framing included."),
            Column("sent_packets", "u64", "packets", "Sent so far."),
            Column("delivered_bytes", "u64", "IP bytes", "Delivered at the far end so far."),
            Column(
                "dropped_packets_queue_full",
                "u64",
                "packets",
                "Dropped so far because the queue was full.",
            ),
            Column(
                "dropped_packets_bit_error",
                "u64",
                "packets",
                "Dropped so far because of a bit error on the channel.",
            ),
        ),
    ),
    "directions": Table(
        "one direction of the link over the whole run",
        (
            Column("direction", "u8", "name", "The direction, as an index into names.directions."),
            Column("received_packets", "u64", "packets", "Came in from the hosts."),
            Column("received_bytes", "u64", "IP bytes", "Came in from the hosts."),
            Column("sent_packets", "u64", "packets", "Left the transmitter."),
            Column("sent_bytes", "u64", "link bytes", "Left the transmitter, framing included."),
            Column("delivered_packets", "u64", "packets", "Delivered at the far end."),
            Column("delivered_bytes", "u64", "IP bytes", "Delivered at the far end."),
            Column("dropped_packets_queue_full", "u64", "packets", "Dropped: the queue was full."),
            Column("dropped_bytes_queue_full", "u64", "IP bytes", "Dropped: the queue was full."),
            Column(
                "dropped_packets_bit_error", "u64", "packets", "Dropped: bit error on the channel."
            ),
            Column(
                "dropped_bytes_bit_error", "u64", "IP bytes", "Dropped: bit error on the channel."
            ),
            Column("held_packets", "u64", "packets", "Queued, being sent or in flight at the end."),
            Column("held_bytes", "u64", "IP bytes", "Queued, being sent or in flight at the end."),
            Column("busy_ns", "u64", "ns", "Time that the transmitter was sending."),
            Column("queue_bytes_max", "u64", "IP bytes", "The most that waited in the queue."),
        ),
    ),
    "events": Table(
        "one step of one packet; only when the scenario asks for packet events",
        (
            Column("time_ns", "u64", "ns", "When it happened."),
            Column("direction", "u8", "name", "The direction, as an index into names.directions."),
            Column("kind", "u8", "name", "What happened, as an index into names.event_kinds."),
            Column("cause", "u8", "name", "Why it was dropped, in names.drop_causes.", True),
            Column("flow", "u32", "index", "The flow, as an index into the plan's flows."),
            Column("packet", "u64", "number", "The packet's number within the run."),
            Column("bytes", "u64", "IP bytes", "The packet's size."),
        ),
    ),
}


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
        state = "interrupted" if self.interrupted else "complete"
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
    def goodput_bps(self) -> npt.NDArray[np.float64]:
        """Goodput of each flow in application bit/s; see `bentpipe.metrics.goodput_bps`."""
        from bentpipe.metrics import goodput_bps

        return goodput_bps(self)

    @property
    def flows(self) -> pl.DataFrame:
        """The table ``flows`` with name, kind and direction in front and goodput_bps at the end."""
        import polars as pl

        table = self.tables["flows"]
        planned = [self.plan["flows"][flow] for flow in table["flow"].to_list()]
        return table.select(
            pl.Series("name", [flow["name"] for flow in planned], dtype=pl.String),
            pl.Series("kind", [flow["workload"]["kind"] for flow in planned], dtype=pl.String),
            pl.Series("direction", [flow["direction"] for flow in planned], dtype=pl.String),
            pl.all(),
            pl.Series("goodput_bps", self.goodput_bps),
        )

    @property
    def directions(self) -> pl.DataFrame:
        """The table ``directions`` with names, and utilization: busy time over the run, 0 to 1."""
        import polars as pl

        end_ns = max(int(self.manifest["end_ns"]), 1)
        table = self._named("directions", direction="directions")
        return table.with_columns((pl.col("busy_ns") / end_ns).alias("utilization"))

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
        return self._named(
            "events", direction="directions", kind="event_kinds", cause="drop_causes"
        )

    def summary(self) -> dict[str, Any]:
        """Return the figures of the run as plain data, ready for JSON; names end in their unit."""
        manifest = self.manifest
        return {
            "scenario": manifest["scenario"].get("name", ""),
            "seed": manifest["seed"],
            "completed": manifest["completed"],
            "interrupted": manifest["interrupted"],
            "end_ns": manifest["end_ns"],
            "packet_hops": manifest["packet_hops"],
            "flows": self.flows.to_dicts(),
            "directions": self.directions.to_dicts(),
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
        UsageError: it is a file, has something other than a result of this kind (``run`` or
            ``study``) in it, or cannot be written.
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
    """Whether a manifest is of a single run or of a study."""
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
