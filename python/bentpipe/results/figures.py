"""The tables of the flows of a run as texts, for the terminal, reports and notebooks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from bentpipe.metrics import CAPACITY_PARTS, TCP
from bentpipe.results.entries import (
    ENTRY_PERCENTILES,
    MAX_SINGLE_FLOWS,
    entry_statistics,
)
from bentpipe.results.page_figures import exchange_table, page_entry_table, page_table
from bentpipe.results.tables import LOSS_CAUSES
from bentpipe.results.text_table import (
    TextTable,
    count,
    duration,
    duration_pair,
    percent,
    points,
    score,
)
from bentpipe.results.video_figures import video_entries, video_table
from bentpipe.units import format_duration, format_rate, format_size

if TYPE_CHECKING:
    from bentpipe.results.result import Result

_TCP_TITLE: Final = "TCP flows (goodput: application data in order, over the flow's duration)"
_UDP_TITLE: Final = "UDP flows (sent: to the receiver, in a conference by the others)"
_TCP_COLUMNS: Final = (
    ("flow", ""),
    ("direction", "of the data"),
    ("goodput", "application bits"),
    ("delivered", "application bytes"),
    ("sent", "segments"),
    ("retransmitted", "segments"),
    ("timeouts", "events"),
    ("fast recoveries", "events"),
    ("RTT min / mean", "at the sender"),
    ("one-way delay mean / max", "of data packets"),
    ("finished", "time of the run"),
)
_UDP_COLUMNS: Final = (
    ("flow", ""),
    ("direction", "of the data"),
    ("goodput", "application bits"),
    ("sent", "datagrams"),
    ("received", "datagrams"),
    ("lost", "datagrams"),
    ("loss", "of sent"),
    ("jitter end / mean", "RFC 3550"),
    ("delay p50", "one way"),
    ("delay p95", "one way"),
    ("delay p99", "one way"),
)
_CALL_TITLE: Final = "Calls (R-factor and MOS: ITU-T G.107, without echo)"
_CALL_COLUMNS: Final = (
    ("flow", ""),
    ("direction", "of the speech"),
    ("MOS", "1 to 4.5"),
    ("R", "0 to 93"),
    ("Idd", "delay, of R"),
    ("Ie,eff", "codec, loss, of R"),
    ("mouth to ear", "delay"),
    ("not played", "of sent"),
    ("late", "datagrams"),
)
_ENTRY_COLUMNS: Final = (("entry", ""), ("direction", ""), ("flows", ""), ("lost", "packets"))


def flow_tables(result: Result) -> list[TextTable]:
    """Return the TCP flows and the UDP flows; more than some 12 by entry of ``traffic``."""
    if result.tables["flows"].height > MAX_SINGLE_FLOWS:
        entries = entry_statistics(result)
        tables = [_tcp_entries, _udp_entries, page_entry_table, _call_entries, video_entries]
        kinds_of = ("web_page", "voice", "video")
        groups = [*_split(entries), *(_of_kind(entries, kind) for kind in kinds_of)]
        return [table(own) for table, own in zip(tables, groups, strict=True) if own]
    tcp, udp = _split(result.flows.to_dicts())
    kinds = {
        _tcp_flows: tcp,
        exchange_table: _of_kind(tcp, "request_response") + _of_kind(tcp, "channel"),
        video_table: _of_kind(tcp, "video"),
        page_table: _of_kind(tcp, "web_page"),
        _udp_flows: udp,
        _calls: _of_kind(udp, "voice"),
    }
    return [table(flows) for table, flows in kinds.items() if flows]


def _of_kind(rows: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [row for row in rows if row["kind"] == kind]


def _split(rows: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    return (
        [row for row in rows if row["kind"] in TCP],
        [row for row in rows if row["kind"] not in TCP],
    )


def _tcp_flows(flows: list[dict[str, Any]]) -> TextTable:
    causes = _loss_causes(flows)
    rows = [
        [
            flow["name"],
            flow["direction"],
            format_rate(flow["goodput_bps"]),
            format_size(flow["delivered_bytes"]),
            count(flow["sent_segments"]),
            count(flow["retransmitted_segments"]),
            count(flow["timeouts"]),
            count(flow["fast_recoveries"]),
            duration_pair(flow["rtt_min_ns"], flow["rtt_mean_ns"]),
            duration_pair(flow["one_way_delay_mean_ns"], flow["one_way_delay_max_ns"]),
            duration(flow["finished_ns"]),
            *(count(flow[f"lost_{cause}_packets"]) for cause in causes),
        ]
        for flow in flows
    ]
    columns = [*_TCP_COLUMNS, *_lost(causes, "packets")]
    return TextTable(_TCP_TITLE, columns, rows, text_columns=2)


def _udp_flows(flows: list[dict[str, Any]]) -> TextTable:
    causes = _loss_causes(flows)
    rows = [
        [
            flow["name"],
            flow["direction"],
            format_rate(flow["goodput_bps"]),
            count(flow["expected_segments"]),
            count(flow["received_segments"]),
            count(flow["lost_packets"]),
            percent(flow["loss_percent"]),
            duration_pair(flow["jitter_ns"], flow["jitter_mean_ns"]),
            *(duration(flow[f"one_way_delay_{p}_ns"]) for p in ("p50", "p95", "p99")),
            *(count(flow[f"lost_{cause}_packets"]) for cause in causes),
        ]
        for flow in flows
    ]
    columns = [*_UDP_COLUMNS, *_lost(causes, "datagrams")]
    return TextTable(_UDP_TITLE, columns, rows, text_columns=2)


def _calls(flows: list[dict[str, Any]]) -> TextTable:
    rows = [
        [
            flow["name"],
            flow["direction"],
            score(flow["mos"]),
            points(flow["r_factor"]),
            points(flow["delay_impairment"]),
            points(flow["loss_impairment"]),
            duration(flow["mouth_to_ear_ns"]),
            percent(flow["unplayed_percent"]),
            count(flow["late_packets"]),
        ]
        for flow in flows
    ]
    return TextTable(_CALL_TITLE, _CALL_COLUMNS, rows, text_columns=2)


def _loss_causes(flows: list[dict[str, Any]]) -> list[str]:
    """Return the causes for which a flow lost packets."""
    return [cause for cause in LOSS_CAUSES if any(flow[f"lost_{cause}_packets"] for flow in flows)]


def _lost(causes: Sequence[str], unit: str) -> list[tuple[str, str]]:
    return [(f"lost: {cause.replace('_', ' ')}", unit) for cause in causes]


def _tcp_entries(entries: list[dict[str, Any]]) -> TextTable:
    columns = (
        *_ENTRY_COLUMNS,
        ("of flows", ""),
        ("goodput", "application bits"),
        ("completion time", "of transfers, exchanges"),
        ("retransmitted", "of segments"),
        ("idle", "of time"),
        ("mean delay", "one way"),
    )
    rows = [
        [
            *_entry_cells(entry),
            f"p{p}",
            _of(entry["goodput_bps"], p, format_rate),
            _of(entry["completion_time_ns"], p, format_duration),
            _of(entry["retransmitted_percent"], p, percent),
            _of(entry["idle_percent"], p, percent),
            _of(entry["one_way_delay_mean_ns"], p, format_duration),
        ]
        for entry in entries
        for p in ENTRY_PERCENTILES
    ]
    return TextTable("TCP flows by entry of traffic", columns, rows, 2, len(_ENTRY_COLUMNS))


def _udp_entries(entries: list[dict[str, Any]]) -> TextTable:
    columns = (
        *_ENTRY_COLUMNS,
        ("of flows", ""),
        ("goodput", "application bits"),
        ("loss", "of sent"),
        ("mean jitter", "of datagrams"),
        ("mean delay", "one way"),
        ("p95 delay", "one way"),
        ("p99 delay", "one way"),
    )
    rows = [
        [
            *_entry_cells(entry),
            f"p{p}",
            _of(entry["goodput_bps"], p, format_rate),
            _of(entry["loss_percent"], p, percent),
            _of(entry["jitter_mean_ns"], p, format_duration),
            _of(entry["one_way_delay_mean_ns"], p, format_duration),
            _of(entry["one_way_delay_p95_ns"], p, format_duration),
            _of(entry["one_way_delay_p99_ns"], p, format_duration),
        ]
        for entry in entries
        for p in ENTRY_PERCENTILES
    ]
    return TextTable("UDP flows by entry of traffic", columns, rows, 2, len(_ENTRY_COLUMNS))


def _call_entries(entries: list[dict[str, Any]]) -> TextTable:
    columns = (
        ("entry", ""),
        ("direction", ""),
        ("calls", ""),
        ("of calls", ""),
        *_CALL_COLUMNS[2:8],
    )
    rows = [
        [
            entry["entry"],
            entry["direction"],
            count(entry["flows"]),
            f"p{p}",
            _of(entry["mos"], p, score),
            _of(entry["r_factor"], p, points),
            _of(entry["delay_impairment"], p, points),
            _of(entry["loss_impairment"], p, points),
            _of(entry["mouth_to_ear_ns"], p, format_duration),
            _of(entry["unplayed_percent"], p, percent),
        ]
        for entry in entries
        for p in ENTRY_PERCENTILES
    ]
    return TextTable("Calls by entry of traffic (ITU-T G.107)", columns, rows, 2, 3)


def _entry_cells(entry: dict[str, Any]) -> list[str]:
    return [entry["entry"], entry["direction"], count(entry["flows"]), count(entry["lost_packets"])]


def _of(quantity: dict[str, float] | None, p: int, text: Any) -> str:
    return "-" if quantity is None else str(text(quantity[f"p{p}"]))


def attribution_table(result: Result) -> TextTable | None:
    """Return where the capacity went, by TCP flow; None without such flows, or with many."""
    rows = result.attribution.to_dicts()
    if not 0 < len(rows) <= MAX_SINGLE_FLOWS:
        return None
    parts = [part for part in CAPACITY_PARTS if any(row[f"{part}_percent"] for row in rows)]
    cells = [
        [
            row["name"],
            row["direction"],
            format_duration(row["until_ns"] - row["from_ns"]),
            *(percent(row[f"{part}_percent"]) for part in parts),
        ]
        for row in rows
    ]
    columns = (("flow", ""), ("direction", "of the data"), ("time", "of the flow"))
    of_link = tuple((CAPACITY_PARTS[part], "of capacity") for part in parts)
    title = "Where the capacity of the link went, in the time of each TCP flow"
    return TextTable(title, (*columns, *of_link), cells, text_columns=2)
