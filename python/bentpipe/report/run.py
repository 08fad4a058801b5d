"""The report of a run: one HTML file that needs nothing else.

Same plan, seed and version: the same bytes. So it names no time and no machine; the manifest does.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bentpipe.report import html as _html
from bentpipe.report import plots
from bentpipe.report.style import figure_of
from bentpipe.results.metrics import aggregate_goodput_bps, competing_flows, jain
from bentpipe.results.tables import DROP_CAUSES
from bentpipe.units import format_duration, format_rate, format_size

if TYPE_CHECKING:
    from bentpipe.results.result import Result

_TIMES: Final = {"simulate": "simulated", "emulate": "real"}
# A report is for people, and stays below 2 MB; the Parquet files have every flow and direction.
_MAX_ROWS: Final = 200
_MAX_PLANNED: Final = 16

_FLOW_COLUMNS: Final = (
    ("flow", ""),
    ("direction", "of the data"),
    ("kind", ""),
    ("goodput", "application bits"),
    ("delivered", "application bytes"),
    ("sent", "data packets"),
    ("retransmitted", "segments"),
    ("timeouts", "events"),
    ("fast recoveries", "events"),
    ("RTT least / mean", "at the sender"),
    ("one-way delay mean / largest", "of data packets"),
    ("finished", "time of the run"),
    ("exchanges", "finished"),
    ("exchange time median / 95 %", "at the client"),
)
# Where there are no exchanges, their columns would only be dashes.
_EXCHANGE_COLUMNS: Final = 2
_DIRECTION_COLUMNS: Final = (
    ("direction", ""),
    ("utilization", "busy time / run"),
    ("sent", "link bytes"),
    ("sent", "packets"),
    ("delivered", "packets"),
    ("delivered", "IP bytes"),
    ("still held at the end", "packets"),
    ("largest queue", "IP bytes"),
)
# Shown even where they dropped nothing; the others only where they did.
_USUAL_CAUSES: Final = ("queue_full", "bit_error")
_SHARES: Final = ("p50", "p90", "p99", "p999", "max")
_PROCESSOR_COLUMNS: Final = (
    ("processor", ""),
    ("utilization", "busy time / run"),
    ("received from its network", "packets"),
    ("dropped of these", "packets"),
    ("received from the link", "packets"),
    ("dropped of these", "packets"),
    ("still held at the end", "packets"),
)
_AGGREGATOR_COLUMNS: Final = (
    ("aggregator", ""),
    ("sent", "frames"),
    ("in frames", "packets"),
    ("sent alone", "packets"),
    ("hold time mean / largest", "of packets that waited"),
)


def write_run_report(result: Result, path: str | Path) -> Path:
    """Write the report of a run as one self-contained HTML file; return its path.

    Raises:
        OSError: the file cannot be written.
    """
    file = Path(path)
    file.write_text(run_report(result), encoding="utf-8", newline="\n")
    return file


def run_report(result: Result) -> str:
    """Return the report of a run as HTML."""
    manifest = result.manifest
    state = "interrupted at" if result.interrupted else "ended at"
    state = "stopped at" if result.memory_limit_reached else state
    facts = (
        f"bentpipe {manifest['bentpipe_version']}, seed {manifest['seed']}, {state} "
        f"{format_duration(manifest['end_ns'])} of {_TIMES[result.engine]} time, "
        f"{manifest['packet_hops']:,} packet-hops"
    )
    parts = []
    if result.interrupted:
        text = "The run was interrupted: every figure is of what was recorded until then."
        parts.append(_html.paragraph(text, notice=True))
    if result.stop_reason is not None:
        text = f"The run {result.stop_reason}: every figure is of what was recorded until then."
        parts.append(_html.paragraph(text, notice=True))
    parts += _real_time(result)
    parts += [_html.heading("Flows"), *_flows(result)]
    parts += [_html.heading("Link"), *_directions(result), *_processors(result)]
    parts += _aggregators(result)
    parts += [_html.heading("Over time"), *_figures(result)]
    parts += [_html.heading("What was run"), *_what_was_run(result)]
    return _html.page(manifest["scenario"].get("name") or "Scenario", facts, *parts)


def _real_time(result: Result) -> list[str]:
    """Return what ran in real time, how late its packets were, and the verdict."""
    if result.engine == "simulate":
        return []
    about = result.manifest["emulation"]
    text = (
        f"Run in real time by {about['iperf3']} with the TCP of Linux {about['kernel']}: timeouts, "
        "acknowledged bytes and data in flight are not known."
    )
    rows = [
        [
            what,
            f"{about[name]['packets']:,}",
            *(format_duration(about[name][f"{share}_ns"]) for share in _SHARES),
        ]
        for name, what in (("lateness", "at the exit"), ("wait", "before it was read, at most"))
    ]
    columns = (("lateness of packets", ""), ("packets", ""), *((share, "") for share in _SHARES))
    caption = "How late the link was: beyond its limits the figures do not count."
    parts = [_html.paragraph(text), _html.table(caption, columns, rows)]
    if result.invalid is not None:
        verdict = f"INVALID: {result.invalid}; the figures do not count."
        parts.insert(0, _html.paragraph(verdict, notice=True))
    return parts + [_html.paragraph(warning, notice=True) for warning in about["warnings"]]


def _flows(result: Result) -> list[str]:
    flows = result.flows.to_dicts()
    caption = "Goodput: application data delivered in order, over the time the flow took."
    with_exchanges = bool(result.tables["exchanges"].height)
    columns = _FLOW_COLUMNS if with_exchanges else _FLOW_COLUMNS[:-_EXCHANGE_COLUMNS]
    rows = [_flow_row(flow)[: len(columns)] for flow in flows[:_MAX_ROWS]]
    parts = [_html.table(caption, columns, rows, text_columns=3)]
    if len(flows) > _MAX_ROWS:
        more = f"The first {_MAX_ROWS} of {len(flows):,} flows; flows.parquet has them all."
        parts.append(_html.paragraph(more))
    goodputs = result.goodput_bps
    for direction, group in list(competing_flows(result).items())[:_MAX_ROWS]:
        joint = format_rate(aggregate_goodput_bps(result, group))
        parts.append(
            _html.paragraph(
                f"{direction}: {len(group)} bulk flows, together {joint} of goodput, fairness "
                f"(Jain's index, 1 is equal) {jain(goodputs[group]):.3f}."
            )
        )
    return parts


def _flow_row(flow: dict[str, Any]) -> list[str]:
    # A datagram is never retransmitted: a dash says so better than a zero.
    def of_tcp(name: str) -> str:
        known = flow["kind"] in ("bulk", "request_response") and flow[name] is not None
        return f"{flow[name]:,}" if known else "-"

    return [
        flow["name"],
        flow["direction"],
        flow["kind"].replace("_", " "),
        format_rate(flow["goodput_bps"]),
        format_size(flow["delivered_bytes"]),
        f"{flow['sent_segments']:,}",
        of_tcp("retransmitted_segments"),
        of_tcp("timeouts"),
        of_tcp("fast_recoveries"),
        _pair(flow["rtt_min_ns"], flow["rtt_mean_ns"]),
        _pair(flow["one_way_delay_mean_ns"], flow["one_way_delay_max_ns"]),
        "-" if flow["finished_ns"] is None else format_duration(flow["finished_ns"]),
        f"{flow['exchanges']:,}" if flow["kind"] == "request_response" else "-",
        _pair(flow["exchange_time_median_ns"], flow["exchange_time_p95_ns"]),
    ]


def _directions(result: Result) -> list[str]:
    caption = "Link bytes include framing; IP bytes do not."
    found = plots.drop_causes(result)
    causes = [cause for cause in DROP_CAUSES if cause in found or cause in _USUAL_CAUSES]
    dropped = [(f"dropped: {cause.replace('_', ' ')}", "packets") for cause in causes]
    rows = [
        [
            row["direction"],
            f"{row['utilization']:.1%}",
            format_size(row["sent_bytes"]),
            f"{row['sent_packets']:,}",
            f"{row['delivered_packets']:,}",
            format_size(row["delivered_bytes"]),
            f"{row['held_packets']:,}",
            format_size(row["queue_max_bytes"]),
            *(f"{row[f'dropped_{cause}_packets']:,}" for cause in causes),
        ]
        for row in result.directions.head(_MAX_ROWS).to_dicts()
    ]
    parts = [_html.table(caption, (*_DIRECTION_COLUMNS, *dropped), rows)]
    directions = result.tables["directions"].height
    if directions > _MAX_ROWS:
        more = f"The first {_MAX_ROWS} of {directions:,} directions; directions.parquet has all."
        parts.append(_html.paragraph(more))
    return parts


def _processors(result: Result) -> list[str]:
    rows = [
        [
            row["processor"],
            f"{row['utilization']:.1%}",
            f"{row['received_lan_packets']:,}",
            f"{row['dropped_lan_packets']:,}",
            f"{row['received_link_packets']:,}",
            f"{row['dropped_link_packets']:,}",
            f"{row['held_packets']:,}",
        ]
        for row in result.processors.head(_MAX_ROWS).to_dicts()
    ]
    if not rows:
        return []
    caption = "Each processor handles the packets of both its sides, one at a time."
    return [_html.table(caption, _PROCESSOR_COLUMNS, rows)]


def _aggregators(result: Result) -> list[str]:
    rows = [
        [
            row["function"],
            f"{row['sent_frames']:,}",
            f"{row['packed_packets']:,}",
            f"{row['single_packets']:,}",
            _pair(row["hold_time_mean_ns"], row["hold_time_max_ns"]),
        ]
        for row in result.functions[:_MAX_ROWS]
    ]
    if not rows:
        return []
    caption = "Each aggregator packs the packets that go to the link into frames."
    return [_html.table(caption, _AGGREGATOR_COLUMNS, rows)]


def _figures(result: Result) -> list[str]:
    if not plots.has_time_series(result):
        text = (
            "No time series were recorded (sample_interval is null), so there is nothing to plot. "
            "Set sample_interval, such as 100 ms, and run again."
        )
        return [_html.paragraph(text, notice=True), *_exchange_times(result)]
    interval = format_duration(result.plan["sample_interval_ns"])
    figures = []
    if plots.has_tcp_flows(result):
        figures += [
            (
                "congestion windows",
                plots.congestion_window(result),
                "Congestion window of the sender.",
            ),
            (
                "data in flight",
                plots.in_flight(result),
                "Application bytes sent and not yet acknowledged.",
            ),
            (
                "round-trip times",
                plots.smoothed_rtt(result),
                "Smoothed round-trip time (RFC 6298) at the sender.",
            ),
            (
                "goodput",
                plots.goodput(result),
                "Application data delivered in order, by TCP flow (datagrams have no time series).",
            ),
        ]
    queue_text = "IP bytes that wait in front of each transmitter."
    figures.append(("queues", plots.queues(result), queue_text))
    if plots.has_drops(result):
        drop_text = "Packets dropped since the start, by direction and cause."
        figures.append(("drops", plots.drops(result), drop_text))
    parts = [
        _html.figure(figure_of(axes), name=name, caption=f"{caption} Sampled every {interval}.")
        for name, axes, caption in figures
    ]
    parts += _exchange_times(result)
    if not plots.has_drops(result):
        parts.append(_html.paragraph("The link dropped no packet."))
    return parts


def _exchange_times(result: Result) -> list[str]:
    if not plots.has_exchanges(result):
        return []
    caption = (
        "Share of a flow's exchanges that took at most so long, from the client's start to the "
        "last byte of the response; with each flow the number of its finished exchanges."
    )
    drawing = figure_of(plots.exchange_times(result))
    return [_html.figure(drawing, name="exchange times", caption=caption)]


def _what_was_run(result: Result) -> list[str]:
    scenario, plan = dict(result.manifest["scenario"]), dict(result.plan)
    plan_title = "The complete plan (ns, bytes, bit/s)"
    if len(plan["flows"]) > _MAX_PLANNED:
        plan_title += f"; the first {_MAX_PLANNED} of {len(plan['flows']):,} flows"
        plan["flows"] = plan["flows"][:_MAX_PLANNED]
    terminals = len(plan["gateways"]) - 1
    if terminals > 1:
        plan_title += f"; the first of {terminals:,} terminals, which are alike"
        plan["gateways"] = plan["gateways"][:2]
        plan["directions"] = plan["directions"][:2]
    scenario_title = "The scenario"
    if len(scenario["traffic"]) > _MAX_PLANNED:
        scenario_title += f"; the first {_MAX_PLANNED} of {len(scenario['traffic']):,} entries"
        scenario["traffic"] = scenario["traffic"][:_MAX_PLANNED]
    again = (
        "The same plan, seed and version of bentpipe give the same result, to the byte: "
        f"seed {result.manifest['seed']}, version {result.manifest['bentpipe_version']}."
    )
    if result.engine == "emulate":
        again = (
            "Another run in real time gives other figures: hosts and kernel have their own time."
        )
    return [
        _html.paragraph(again),
        _html.details(scenario_title, _pretty(scenario)),
        _html.details(plan_title, _pretty(plan)),
    ]


def _pretty(data: Any) -> str:
    # Sorted, as the manifest is: a result from a folder gives the same report.
    return json.dumps(data, indent=2, sort_keys=True, ensure_ascii=False)


def _pair(first_ns: float | None, second_ns: float | None) -> str:
    if first_ns is None or second_ns is None:
        return "-"
    return f"{format_duration(first_ns)} / {format_duration(second_ns)}"
