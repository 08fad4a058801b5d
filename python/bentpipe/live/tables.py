"""The tables of a run in real time: those of the simulator, with null for what is unknown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import Any, Final

import numpy as np
import polars as pl

from bentpipe import _core
from bentpipe.live.exchanges import exchanges_of, playback
from bentpipe.live.flow_report import FlowReport
from bentpipe.live.flows import ChannelFlow, ExchangesFlow, Flow, WebPageFlow
from bentpipe.live.gateways import gateway_hosts
from bentpipe.metrics import metrics_of
from bentpipe.results.files import RESULT_FORMAT_VERSION
from bentpipe.results.metric_values import ThresholdCheck, metric_values
from bentpipe.results.result import Result, State
from bentpipe.results.tables import DROP_CAUSES, LOSS_CAUSES, TABLES, table_rows
from bentpipe.scenario.metric_ref import Threshold
from bentpipe.units import BITS_PER_BYTE, NS_PER_US

_TYPES: Final = {"u8": pl.UInt8, "u32": pl.UInt32, "u64": pl.UInt64, "f64": pl.Float64}
# linux/tcp.h: no round trip was measured.
_UNKNOWN_RTT_US: Final = 0xFFFF_FFFF
# Columns of ``flows`` that are 0 for datagrams.
_OF_TCP: Final = (
    *("retransmitted_segments", "timeouts", "fast_recoveries", "tail_loss_probes"),
    *("spurious_timeouts", "spurious_recoveries", "acks_sent", "acked_bytes"),
)
# When everything that a flow with a duration sent was acknowledged and delivered: the column, that
# of the last packet, and the counter that reaches the amount earlier if some of it was unsent.
_ENDS: Final = (
    ("finished_ns", "last_ack_ns", "acked_bytes"),
    ("last_delivery_ns", "last_delivery_ns", "delivered_bytes"),
)
# An iperf3 client begins each stream with the cookie of the test (COOKIE_SIZE of iperf.h).
_COOKIE_BYTES: Final = 37
# The kernel counts the SYN as an acknowledged byte.
_SYN_BYTES: Final = 1

Row = dict[str, Any]
Connection = dict[str, Any]
Report = dict[str, Any]


@dataclass
class Watched:
    """Samples of one flow: rows of ``flow_samples``, and the last TCP_INFO of the sender."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    sender: Connection | None = None
    # Whether the sender's connection was open when the link stopped.
    to_the_end: bool = False
    # Data that the sender's kernel had not sent when the sending program was stopped.
    unsent_bytes: int = 0


@dataclass
class RunRecord:
    """The record of a run; ``started_ns`` and ``ended_ns`` are on the clock of the lab.

    ``monotonic_ns`` is the start on the machine's monotonic clock, ``samples`` are the reports of
    the link at the sample interval, and ``watched`` the samples of TCP_INFO by flow.
    """

    started_ns: int = 0
    monotonic_ns: int = 0
    ended_ns: int = 0
    samples: list[Report] = field(default_factory=list)
    watched: dict[int, Watched] = field(default_factory=dict)
    report: Report = field(default_factory=dict)
    completed: bool = False
    interrupted: bool = False

    @property
    def duration_ns(self) -> int:
        """The time from the start of the run to its end."""
        return self.ended_ns - self.started_ns


def result_of(
    about: dict[str, Any],
    flows: list[Flow],
    reports: list[FlowReport],
    record: RunRecord,
    execution: dict[str, Any],
) -> Result:
    """Return the result of a run from the reports of the link and of the flows.

    ``about`` is the part of the manifest that does not depend on the reports, ``execution`` says
    when and where the run was made.
    """
    directions, functions = record.report["directions"], record.report["functions"]
    names = list(directions)
    runs = [FlowRun(flow, report, record) for flow, report in zip(flows, reports, strict=True)]
    state: State = "completed" if about["emulation"]["invalid"] is None else "invalid"
    if record.interrupted:
        state = "interrupted"
    statistics = sorted(
        {name for function in functions.values() for name in function["statistics"]}
    )
    manifest = {
        **about,
        "format_version": RESULT_FORMAT_VERSION,
        "bentpipe_version": _core.version(),
        "names": {
            **_core.names(),
            "directions": names,
            "places": [*names, *functions],
            "statistics": statistics,
        },
        "state": state,
        "traffic_ended": record.completed,
        "end_ns": record.duration_ns,
        "packet_hops": sum(direction["sent_packets"] for direction in directions.values()),
        "engine_calls": None,
    }
    rows: dict[str, Iterable[Mapping[str, Any]]] = {
        "flows": [_known(run.row(), about["plan"]) for run in runs],
        "directions": [_direction(number, directions[name]) for number, name in enumerate(names)],
        "flow_samples": [row for run in runs if record.samples for row in run.samples()],
        "datagram_samples": _by_time(
            _known(row, about["plan"]) for run in runs for row in run.datagrams()
        ),
        "direction_samples": [
            {**_direction(number, link["directions"][name]), "time_ns": time_ns}
            for time_ns, link in _samples(record)
            for number, name in enumerate(names)
        ],
        # What limits the kernel's senders is not known.
        "capacity": [],
        # The daemon of a PEP does not report its legs.
        "legs": [],
        "classes": record.report["classes"],
        "processors": [
            {"processor": function["gateway"], **function["processor"]}
            for function in functions.values()
            if function["processor"] is not None
        ],
        "function_statistics": [
            {"place": place, "statistic": statistics.index(name), "value": value}
            for place, function in enumerate(functions.values(), len(names))
            for name, value in function["statistics"].items()
        ],
        "exchanges": _by_time(row for run in runs for row in run.exchanges()),
        "pages": _by_time(row for run in runs for row in run.pages()),
    }
    tables = {name: _table(name, rows[name]) for name in TABLES if name in rows}
    return Result(manifest, tables, execution)


def _known(row: dict[str, Any], plan: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of a flow without the losses that the encryption of a tunnel hides."""
    if all(host.function("tunnel") is None for host in gateway_hosts([plan])):
        return row
    return {name: value for name, value in row.items() if not name.startswith("lost_")}


def _by_time(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: int(row.get("start_ns", row.get("time_ns", 0))))


def _samples(record: RunRecord) -> Iterator[tuple[int, Report]]:
    """Yield the reports of the link in the time of the run, with their times from its start."""
    for report in record.samples:
        if report["at_ns"] <= record.ended_ns:
            yield report["at_ns"] - record.started_ns, report


def _table(name: str, rows: Iterable[Mapping[str, Any]]) -> pl.DataFrame:
    """Return rows as a table with the documented columns alone; missing values are null."""
    rows = list(rows)
    return pl.DataFrame(
        [
            pl.Series(column.name, [row.get(column.name) for row in rows], _TYPES[column.dtype])
            for column in TABLES[name].columns
        ]
    )


# --- flows --------------------------------------------------------------------------------------


def flow_start_ns(flow: Flow, report: Report) -> int | None:
    """Return when the flow's first packet arrived at the link, on the clock of the lab."""
    sides = report["ports"][flow.port]
    side = flow.client if flow.is_tcp else flow.sender
    first_ns: int | None = sides[side]["offered"]["first_ns"]
    return first_ns


def acked_bytes(flow: Flow, sender: Connection) -> int:
    """Return the bytes of data that were acknowledged."""
    return max(0, int(sender["bytes_acked"]) - _SYN_BYTES - cookie_bytes(flow))


def cookie_bytes(flow: Flow) -> int:
    """Return how many bytes of a flow's connection are before its data."""
    return _COOKIE_BYTES if flow.client == flow.sender else 0


def moment_of(rows: list[dict[str, Any]], column: str, amount: int) -> int | None:
    """Return when a counter reached an amount, interpolated; None if it never did."""
    before = {"time_ns": 0, column: 0}
    for row in rows:
        if row.get(column) is None:
            continue
        if row[column] >= amount:
            grown = row[column] - before[column]
            share = (amount - before[column]) / grown if grown else 1.0
            return int(before["time_ns"] + share * (row["time_ns"] - before["time_ns"]))
        before = row
    return None


@dataclass
class FlowRun:
    """A flow in a run, with the reports of its programs and of the link."""

    flow: Flow
    report: FlowReport
    record: RunRecord

    def __post_init__(self) -> None:
        self.watched = self.record.watched.get(self.flow.index, Watched())
        self.written_bytes = max(0, (self.report.sent_bytes or 0) - self.watched.unsent_bytes)

    def _from_start(self, at_ns: int | None) -> int | None:
        return None if at_ns is None else max(0, at_ns - self.record.started_ns)

    def _data_start_ns(self) -> int | None:
        """Return when iperf3 started to measure: once the server had read the stream's cookie."""
        sides = self.record.report["ports"][self.flow.port]
        at_ns: int | None = sides[self.flow.client]["delivered"]["first_payload_ns"]
        return at_ns

    def row(self) -> Row:
        """Return the row of the table ``flows``."""
        flow, from_start = self.flow, self._from_start
        sides = self.record.report["ports"][flow.port]
        data, acks = sides[flow.sender], sides[flow.receiver]
        sent, received = data["offered"], data["delivered"]
        start_ns, segments = flow_start_ns(flow, self.record.report), received["segments"]
        row = {
            "flow": flow.index,
            "terminal": flow.plan["terminal"],
            "start_ns": flow.start_ns if start_ns is None else from_start(start_ns),
            "sent_segments": sent["segments"],
            "received_segments": segments,
            "first_delivery_ns": from_start(received["first_payload_ns"]),
            "last_delivery_ns": from_start(received["last_payload_ns"]),
            "one_way_delay_mean_ns": data["delay_sum_ns"] / segments if segments else None,
            "one_way_delay_max_ns": data["delay_max_ns"] if segments else None,
            "exchanges": 0,
            **{f"lost_{cause}_packets": data["dropped_packets"][cause] for cause in LOSS_CAUSES},
        }
        if flow.is_tcp:
            row["acks_sent"] = acks["offered"]["packets"] - acks["offered"]["segments"]
            row["last_ack_ns"] = from_start(acks["delivered"]["last_ns"])
            cookie = sent if flow.client == flow.sender else acks["delivered"]
            row["established_ns"] = from_start(cookie["first_payload_ns"])
            return row | self._tcp(row)
        if flow.state == "stopped":
            row["finished_ns"] = from_start(sent["last_payload_ns"])
        return row | {
            "expected_segments": sent["segments"],
            **{f"one_way_delay_{p}_ns": data[f"delay_{p}_ns"] for p in ("p50", "p95", "p99")},
            **data,
            "sent_bytes": sent["payload_bytes"],
            "delivered_bytes": self.report.received_bytes or 0,
            **dict.fromkeys(_OF_TCP, 0),
        }

    def _tcp(self, row: Row) -> Row:
        """Return the columns of a TCP flow from the kernel and iperf3.

        A flow with a duration consists of what TCP had sent at its end, as in the simulator: data
        that the kernel had not sent by then does not count, although the link still carries it.
        """
        flow, report, written = self.flow, self.report, self.written_bytes
        delivered = report.received_bytes or 0
        columns: Row = {
            "retransmitted_segments": report.retransmitted_segments,
            "timeouts": report.timeouts,
        }
        if report.rtt_min_us is not None and report.rtt_mean_us is not None:
            columns["rtt_min_ns"] = report.rtt_min_us * NS_PER_US
            columns["rtt_mean_ns"] = float(report.rtt_mean_us * NS_PER_US)
        if flow.size_bytes is not None:
            # The sender continues until the receiver ends the test.
            delivered = min(delivered, flow.size_bytes)
            written = min(written, flow.size_bytes)
            start_ns = self._data_start_ns()
            if delivered == flow.size_bytes and start_ns is not None and report.end_ns is not None:
                end_ns = start_ns - self.record.started_ns + report.end_ns
                columns["finished_ns"] = columns["last_delivery_ns"] = end_ns
        elif isinstance(flow, ChannelFlow | ExchangesFlow):
            columns |= self._exchanges(flow)
        elif flow.state == "stopped" and 0 < written <= delivered:
            delivered = written
            columns |= self._end_of_duration(row)
        sizes = {"sent_bytes": written, "delivered_bytes": delivered}
        return sizes | columns | self._watched(written)

    def _exchanges(self, flow: ChannelFlow | ExchangesFlow) -> Row:
        """Return the columns of a flow of exchanges, pages or connections of a channel."""
        written, is_web = self.written_bytes, isinstance(flow, WebPageFlow)
        rows = self.pages() if is_web else self.exchanges()
        finished = [row for row in rows if row["finished_ns"] is not None]
        columns: Row = {
            "acked_bytes": min(self.report.acked_bytes or 0, written),
            "exchanges": len(finished),
        }
        if isinstance(flow, ChannelFlow):
            limit = flow.workload["connections"]
        else:
            limit = flow.workload["pages"] if is_web else exchanges_of(flow.workload)
        if rows and len(finished) == limit:
            columns["finished_ns"] = rows[-1]["finished_ns"]
        if rows and "media" in flow.workload:
            columns |= playback(flow.workload["media"], rows, self.record.duration_ns)
        if is_web:
            # A browser does not count the bytes of its connections. The run may end before the last
            # acknowledgement has crossed the link.
            loaded = sum(row["response_bytes"] for row in finished)
            columns["delivered_bytes"] = max(columns["acked_bytes"], min(loaded, written))
        return columns

    def _end_of_duration(self, row: Row) -> Row:
        """Return when everything that was sent by the end was acknowledged and delivered."""
        columns: Row = {name: row[last] for name, last, _ in _ENDS}
        for name, _, count in _ENDS if self.watched.unsent_bytes else ():
            at_ns = moment_of(self.watched.rows, count, self.written_bytes)
            columns[name] = columns[name] if at_ns is None else at_ns
        return columns

    def _watched(self, written: int) -> Row:
        """Return the columns of a bulk flow from the TCP_INFO of its connection."""
        sender, columns = self.watched.sender, Row()
        if sender is None:
            return columns
        # The connection of a finished transfer is closed: its last TCP_INFO is not final.
        if self.watched.to_the_end:
            columns["retransmitted_segments"] = sender["total_retrans"]
            columns["timeouts"] = sender["total_rto"]
            columns["acked_bytes"] = acked_bytes(self.flow, sender)
            if self.watched.unsent_bytes and written:
                columns["acked_bytes"] = min(columns["acked_bytes"], written)
        if sender["min_rtt_us"] < _UNKNOWN_RTT_US:
            columns["rtt_min_ns"] = sender["min_rtt_us"] * NS_PER_US
        round_trips_ns = [row["srtt_ns"] for row in self.watched.rows if row["srtt_ns"]]
        if round_trips_ns:
            columns["rtt_mean_ns"] = float(np.mean(round_trips_ns))
        return columns

    def samples(self) -> list[Row]:
        """Return the rows of the table ``flow_samples``."""
        flow, record, report = self.flow, self.record, self.report
        if self.watched.rows:
            rows = [row for row in self.watched.rows if row["time_ns"] <= record.duration_ns]
            # Without the sender's report the amount that it had written is unknown.
            if not self.watched.unsent_bytes or report.sent_bytes is None:
                return rows
            counts, most = ("acked_bytes", "delivered_bytes"), self.written_bytes
            return [
                row | {name: min(row[name], most) for name in counts if name in row} for row in rows
            ]
        start_ns = self._data_start_ns()
        if not flow.is_tcp or start_ns is None:
            return []
        offset_ns = -record.monotonic_ns if flow.has_clock else start_ns - record.started_ns
        points = [(0, 0), *((at_ns + offset_ns, count) for at_ns, count in report.progress)]
        times_ns, delivered = np.array(points, dtype=np.float64).T
        rows = []
        for sample in report.samples:
            time_ns = (sample["time_ns"] or 0) + offset_ns
            if 0 <= time_ns <= record.duration_ns:
                rows.append({**sample, "time_ns": time_ns, "flow": flow.index})
                if report.progress:
                    rows[-1]["delivered_bytes"] = int(np.interp(time_ns, times_ns, delivered))
        return rows

    def datagrams(self) -> list[Row]:
        """Return the rows of the table ``datagram_samples``, as the link counts them."""
        flow = self.flow
        return [
            {
                "time_ns": time_ns,
                "flow": flow.index,
                "expected_segments": data["offered"]["segments"],
                "received_segments": data["delivered"]["segments"],
                "delivered_bytes": data["delivered"]["payload_bytes"],
                "lost_packets": sum(data["dropped_packets"][cause] for cause in LOSS_CAUSES),
                "one_way_delay_sum_ns": data["delay_sum_ns"],
                "jitter_ns": data["jitter_ns"],
                "late_packets": data["late_packets"],
            }
            for time_ns, report in _samples(self.record)
            if not flow.is_tcp and flow.port in report["ports"]
            for data in [report["ports"][flow.port][flow.sender]]
        ]

    def exchanges(self) -> list[Row]:
        """Return the exchanges as they were at the end of the run."""
        return self._in_run("exchanges", "exchange", self.report.exchanges)

    def pages(self) -> list[Row]:
        """Return the pages as they were at the end of the run.

        The client knows the times, and the server what it sent.
        """
        nothing: Row = {"objects": 0, "connections": 0, "response_bytes": 0}
        served = chain(self.report.served, repeat(nothing))
        pages = self._in_run("pages", "page", self.report.pages)
        return [row | more for row, more in zip(pages, served, strict=False)]

    def _in_run(self, table: str, number: str, rows: list[Row]) -> list[Row]:
        """Return the rows that began in the run, numbered; a time after its end becomes None.

        Times are since the start of the run.
        """

        def in_run(at_ns: int | None) -> int | None:
            since_ns = None if at_ns is None else at_ns - self.record.monotonic_ns
            return since_ns if since_ns is None or since_ns <= self.record.duration_ns else None

        moments = [col.name for col in TABLES[table].columns if col.name.endswith("_ns")]
        relative = [row | {moment: in_run(row[moment]) for moment in moments} for row in rows]
        begun = (row for row in relative if row["start_ns"] is not None)
        return [row | {"flow": self.flow.index, number: i} for i, row in enumerate(begun)]


# --- directions ---------------------------------------------------------------------------------


def _direction(number: int, counters: dict[str, Any]) -> dict[str, Any]:
    packets, sizes = counters["dropped_packets"], counters["dropped_bytes"]
    # Packets that the channel lost were sent.
    lost = packets.get("bit_error", 0)
    held_packets = (
        counters["queue_packets"]
        + bool(counters["sending_bytes"])
        + counters["sent_packets"]
        - counters["delivered_packets"]
        - lost
    )
    held_bytes = counters["queue_bytes"] + counters["sending_bytes"] + counters["in_flight_bytes"]
    return {
        **counters,
        "direction": number,
        "received_packets": counters["delivered_packets"] + sum(packets.values()) + held_packets,
        "received_bytes": counters["delivered_bytes"] + sum(sizes.values()) + held_bytes,
        "sent_bytes": counters["sent_bits"] // BITS_PER_BYTE,
        **{f"dropped_{cause}_packets": packets.get(cause, 0) for cause in DROP_CAUSES},
        **{f"dropped_{cause}_bytes": sizes.get(cause, 0) for cause in DROP_CAUSES},
        "held_packets": held_packets,
        "held_bytes": held_bytes,
    }


# --- programs -----------------------------------------------------------------------------------


def _directions(report: Report) -> pl.DataFrame:
    """Return the directions of a lab's report as the table of a run, with derived columns."""
    directions = report["directions"]
    rows = [_direction(number, direction) for number, direction in enumerate(directions.values())]
    plan = {"directions": [{"name": name} for name in directions]}
    tables = {"directions": _table("directions", rows)}
    return table_rows("directions", tables, plan, [], [report["at_ns"]])


def derived_metrics(report: Report) -> dict[str, dict[str, float]]:
    """Return the derived metrics that the directions of a lab's report have, by direction."""
    names = [metric.name for metric in metrics_of("directions").values() if metric.is_derived]
    return {
        row["direction"]: {name: row[name] for name in names if row[name] is not None}
        for row in _directions(report).to_dicts()
    }


def check_program(
    report: Report, time_ns: int, thresholds: Sequence[Threshold]
) -> list[ThresholdCheck]:
    """Return the thresholds of a program that ran in a lab for ``time_ns``, with their values.

    ``report`` is that of the lab: directions are measured since it was set up.

    Raises:
        UsageError: a threshold names a direction that the lab does not have.
    """
    frames = {
        "program": pl.DataFrame({"name": ["program"], "time_ns": [time_ns]}),
        "directions": _directions(report),
    }
    checks = []
    for threshold in thresholds:
        rows_of_run = frames[threshold.metric.table].with_columns(run=pl.lit(0, dtype=pl.UInt32))
        values = metric_values(rows_of_run, threshold.metric)["value"]
        checks.append(ThresholdCheck(threshold, values[0] if len(values) else None))
    return checks
