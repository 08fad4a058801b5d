"""The report of a run: one self-contained HTML file, from ``templates/run.html.j2``.

The same plan, seed and version give identical bytes. So the report names neither the time nor the
machine of a run; the manifest does.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bentpipe.report import plots
from bentpipe.report.cells import duration_or_dash, duration_pair
from bentpipe.report.html import environment
from bentpipe.report.style import figure_of
from bentpipe.results.folder import write_text
from bentpipe.results.metrics import aggregate_goodput_bps, competing_flows, jain
from bentpipe.results.tables import DROP_CAUSES
from bentpipe.units import format_duration, format_rate, format_size

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from bentpipe.results.result import Result

_TIMES: Final = {"simulate": "simulated", "emulate": "real"}
# Keeps a report below 2 MB; the Parquet files have every flow and direction.
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
    ("RTT min / mean", "at the sender"),
    ("one-way delay mean / max", "of data packets"),
    ("finished", "time of the run"),
    ("exchanges", "finished"),
    ("exchange time median / 95 %", "at the client"),
)
# The last columns of a flow, left out if there are no exchanges.
_EXCHANGE_COLUMNS: Final = 2
_DIRECTION_COLUMNS: Final = (
    ("direction", ""),
    ("utilization", "busy time / run"),
    ("sent", "link bytes"),
    ("sent", "packets"),
    ("delivered", "packets"),
    ("delivered", "IP bytes"),
    ("held at the end", "packets"),
    ("largest queue", "IP bytes"),
)
# Shown also if they dropped nothing; other causes only if they did.
_USUAL_CAUSES: Final = ("queue_full", "bit_error")
_SHARES: Final = ("p50", "p90", "p99", "p999", "max")
_PROCESSOR_COLUMNS: Final = (
    ("processor", ""),
    ("utilization", "busy time / run"),
    ("received from its network", "packets"),
    ("dropped of these", "packets"),
    ("received from the link", "packets"),
    ("dropped of these", "packets"),
    ("held at the end", "packets"),
)
_AGGREGATOR_COLUMNS: Final = (
    ("aggregator", ""),
    ("sent", "frames"),
    ("in frames", "packets"),
    ("sent alone", "packets"),
    ("hold time mean / max", "of packets that waited"),
)


def write_run_report(result: Result, path: str | Path) -> Path:
    """Write the report of a run as one self-contained HTML file; return its path.

    Raises:
        UsageError: the file cannot be written; an existing one is unchanged.
    """
    file = Path(path)
    write_text(file, run_report(result))
    return file


def run_report(result: Result) -> str:
    """Return the report of a run as HTML."""
    manifest = result.manifest
    template = environment().get_template("run.html.j2")
    return template.render(
        title=manifest["scenario"].get("name") or "Scenario",
        facts=(
            f"bentpipe {manifest['bentpipe_version']}, seed {manifest['seed']}, {result.ending} "
            f"of {_TIMES[result.engine]} time, "
            f"{manifest['packet_hops']:,} packet-hops"
        ),
        interrupted=result.interrupted,
        stop_reason=result.stop_reason,
        invalid=result.invalid,
        warnings=result.warnings,
        emulation=_emulation(result),
        flows=_flows(result),
        competing=_competing(result),
        directions=_directions(result),
        processors={"columns": _PROCESSOR_COLUMNS, "rows": _processor_rows(result)},
        aggregators={"columns": _AGGREGATOR_COLUMNS, "rows": _aggregator_rows(result)},
        sample_interval=_sample_interval(result),
        plots=_plots(result),
        exchange_times=_exchange_times(result),
        has_drops=plots.has_drops(result),
        seed=manifest["seed"],
        version=manifest["bentpipe_version"],
        scenario=_scenario(result),
        plan=_plan(result),
    )


def _emulation(result: Result) -> dict[str, Any] | None:
    """Return what ran in real time, the lateness of its packets, and its warnings."""
    if result.engine == "simulate":
        return None
    about = result.manifest["emulation"]
    rows = [
        [
            what,
            f"{about[name]['packets']:,}",
            *(format_duration(about[name][f"{share}_ns"]) for share in _SHARES),
        ]
        for name, what in (("lateness", "at egress"), ("wait", "before it was read, at most"))
    ]
    columns = (("lateness of packets", ""), ("packets", ""), *((share, "") for share in _SHARES))
    return {**about, "columns": columns, "rows": rows}


def _flows(result: Result) -> dict[str, Any]:
    flows = result.flows.head(_MAX_ROWS).to_dicts()
    with_exchanges = bool(result.tables["exchanges"].height)
    columns = _FLOW_COLUMNS if with_exchanges else _FLOW_COLUMNS[:-_EXCHANGE_COLUMNS]
    return {
        "columns": columns,
        "rows": [_flow_row(flow)[: len(columns)] for flow in flows],
        "shown": len(flows),
        "total": result.tables["flows"].height,
    }


def _competing(result: Result) -> list[dict[str, Any]]:
    """Return aggregate goodput and fairness of the bulk flows that share a direction."""
    goodputs = result.goodput_bps
    return [
        {
            "direction": direction,
            "flows": len(flows),
            "goodput": format_rate(aggregate_goodput_bps(result, flows)),
            "fairness": jain(goodputs[flows]),
        }
        for direction, flows in list(competing_flows(result).items())[:_MAX_ROWS]
    ]


def _flow_row(flow: dict[str, Any]) -> list[str]:
    # A datagram is never retransmitted, which a dash shows better than a zero.
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
        duration_pair(flow["rtt_min_ns"], flow["rtt_mean_ns"]),
        duration_pair(flow["one_way_delay_mean_ns"], flow["one_way_delay_max_ns"]),
        duration_or_dash(flow["finished_ns"]),
        f"{flow['exchanges']:,}" if flow["kind"] == "request_response" else "-",
        duration_pair(flow["exchange_time_median_ns"], flow["exchange_time_p95_ns"]),
    ]


def _directions(result: Result) -> dict[str, Any]:
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
    return {
        "columns": (*_DIRECTION_COLUMNS, *dropped),
        "rows": rows,
        "shown": len(rows),
        "total": result.tables["directions"].height,
    }


def _processor_rows(result: Result) -> list[list[str]]:
    return [
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


def _aggregator_rows(result: Result) -> list[list[str]]:
    return [
        [
            row["function"],
            f"{row['sent_frames']:,}",
            f"{row['packed_packets']:,}",
            f"{row['single_packets']:,}",
            duration_pair(row["hold_time_mean_ns"], row["hold_time_max_ns"]),
        ]
        for row in result.functions[:_MAX_ROWS]
    ]


def _sample_interval(result: Result) -> str | None:
    if not plots.has_time_series(result):
        return None
    return format_duration(result.plan["sample_interval_ns"] or 0)


def _plots(result: Result) -> list[dict[str, Any]]:
    """Return the plots over time, each with a name that is unique in the report."""
    if not plots.has_time_series(result):
        return []
    drawn = []
    if plots.has_tcp_flows(result):
        drawn += [
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
                "Application data delivered in order, by TCP flow. Datagrams have no time series.",
            ),
        ]
    drawn.append(("queues", plots.queues(result), "IP bytes in the queue of each transmitter."))
    if plots.has_drops(result):
        caption = "Packets dropped since the start, by direction and cause."
        drawn.append(("drops", plots.drops(result), caption))
    return [
        {"name": name, "figure": figure_of(axes), "caption": caption}
        for name, axes, caption in drawn
    ]


def _exchange_times(result: Result) -> Figure | None:
    return figure_of(plots.exchange_times(result)) if plots.has_exchanges(result) else None


def _scenario(result: Result) -> dict[str, str]:
    scenario, title = dict(result.manifest["scenario"]), "The scenario"
    if len(scenario["traffic"]) > _MAX_PLANNED:
        title += f"; the first {_MAX_PLANNED} of {len(scenario['traffic']):,} entries"
        scenario["traffic"] = scenario["traffic"][:_MAX_PLANNED]
    return {"title": title, "text": _pretty(scenario)}


def _plan(result: Result) -> dict[str, str]:
    plan, title = dict(result.plan), "The complete plan (ns, bytes, bit/s)"
    if len(result.plan["flows"]) > _MAX_PLANNED:
        title += f"; the first {_MAX_PLANNED} of {len(result.plan['flows']):,} flows"
        plan["flows"] = result.plan["flows"][:_MAX_PLANNED]
    terminals = len(result.plan["gateways"]) - 1
    if terminals > 1:
        title += f"; the first of {terminals:,} terminals, which are alike"
        plan["gateways"] = result.plan["gateways"][:2]
        plan["directions"] = result.plan["directions"][:2]
    return {"title": title, "text": _pretty(plan)}


def _pretty(data: Any) -> str:
    # Sorted as in the manifest, so that a result from a folder gives the same report.
    return json.dumps(data, indent=2, sort_keys=True, ensure_ascii=False)
