"""Tables for the terminal; each number has its unit, direction and layer."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from rich.console import Console, RenderableType
from rich.table import Table

from bentpipe.report.cells import duration_or_dash, duration_pair
from bentpipe.results.metrics import aggregate_goodput_bps, competing_flows, exchange_times_ns, jain
from bentpipe.results.result import Result
from bentpipe.results.tables import DROP_CAUSES
from bentpipe.scenario.presets import Preset
from bentpipe.units import format_duration, format_rate, format_size

# More rows do not fit on a screen; --json and --out have every flow and direction.
_MAX_ROWS: Final = 24
# A pipe has no width; wide enough that no table is wrapped.
_PIPE_WIDTH: Final = 160


def show(*renderables: RenderableType) -> None:
    """Print to stdout, unwrapped and without colours when it is not a terminal."""
    console = Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH, highlight=False)
    for renderable in renderables:
        console.print(renderable)


def run_tables(result: Result) -> list[RenderableType]:
    """Return the tables of flows and directions of a run, and a line on the run itself."""
    flows = result.flows.to_dicts()
    goodputs = result.goodput_bps
    manifest = result.manifest
    head = (
        f"{manifest['scenario'].get('name') or 'Scenario'}: seed {manifest['seed']}, "
        f"{result.ending}, {manifest['packet_hops']:,} packet-hops"
    )
    tables: list[RenderableType] = [head, *_real_time(result), _flows(flows[:_MAX_ROWS])]
    if len(flows) > _MAX_ROWS:
        tables.append(f"... and {len(flows) - _MAX_ROWS} more flows (--json shows them all)")
    for direction, group in list(competing_flows(result).items())[:_MAX_ROWS]:
        tables.append(
            f"{direction}: {len(group)} bulk flows, aggregate goodput "
            f"{format_rate(aggregate_goodput_bps(result, group))}, "
            f"fairness (Jain) {jain(goodputs[group]):.3f}"
        )
    if result.tables["exchanges"].height:
        with_exchanges = [flow for flow in flows if flow["kind"] == "request_response"]
        tables += _shortened(_exchanges, with_exchanges, "flows")
        if len(with_exchanges) > 1:
            tables.append(_all_exchanges(result, len(with_exchanges)))
    tables += _shortened(_directions, result.directions.to_dicts(), "directions")
    if result.tables["processors"].height:
        tables += _shortened(_processors, result.processors.to_dicts(), "processors")
    if aggregators := result.functions:
        tables += _shortened(_aggregators, aggregators, "aggregators")
    return tables


def _shortened(
    table: Callable[[list[dict[str, Any]]], Table], rows: list[dict[str, Any]], what: str
) -> list[RenderableType]:
    """Return a table of the first rows, and how many more there are."""
    more = len(rows) - _MAX_ROWS
    return [table(rows[:_MAX_ROWS]), *([f"... and {more} more {what}"] if more > 0 else [])]


def _real_time(result: Result) -> list[str]:
    """Return the lateness of a run in real time, and why it is invalid."""
    if result.engine == "simulate":
        return []
    about = result.manifest["emulation"]
    late = about["lateness"]
    figures = ", ".join(
        f"{format_duration(late[name])} ({what})"
        for name, what in (("p50_ns", "median"), ("p99_ns", "p99"), ("max_ns", "max"))
    )
    lines = [f"In real time, Linux {about['kernel']}; packets were late by {figures}"]
    if result.invalid is not None:
        lines.append(f"INVALID: {result.invalid}")
    return lines


def _flows(flows: list[dict[str, Any]]) -> Table:
    table = _table("Flows (goodput and delivered: application bytes)", ("flow", "direction"))
    for heading in (
        "goodput",
        "delivered",
        "retransmitted",
        "timeouts",
        "RTT min / mean",
        "one-way delay mean / max",
        "finished at",
    ):
        table.add_column(heading, justify="right")
    for flow in flows:
        table.add_row(
            flow["name"],
            flow["direction"],
            format_rate(flow["goodput_bps"]),
            format_size(flow["delivered_bytes"]),
            f"{_known(flow['retransmitted_segments'])} of {flow['sent_segments']}",
            _known(flow["timeouts"]),
            duration_pair(flow["rtt_min_ns"], flow["rtt_mean_ns"]),
            duration_pair(flow["one_way_delay_mean_ns"], flow["one_way_delay_max_ns"]),
            duration_or_dash(flow["finished_ns"]),
        )
    return table


def _exchanges(flows: list[dict[str, Any]]) -> Table:
    table = _table("Exchanges (times at the client)", ("flow",))
    for heading in ("finished", "time median", "time 95 %"):
        table.add_column(heading, justify="right")
    for flow in flows:
        median_ns, high_ns = flow["exchange_time_median_ns"], flow["exchange_time_p95_ns"]
        table.add_row(
            flow["name"],
            f"{flow['exchanges']:,}",
            duration_or_dash(median_ns),
            duration_or_dash(high_ns),
        )
    return table


def _all_exchanges(result: Result, flows: int) -> str:
    times_ns = exchange_times_ns(result)
    line = f"{flows} flows together: {times_ns.size:,} finished"
    if times_ns.size:
        median_ns, high_ns = np.quantile(times_ns, (0.5, 0.95))
        line += f", time median {format_duration(median_ns)}, 95 % {format_duration(high_ns)}"
    return line


def _directions(directions: list[dict[str, Any]]) -> Table:
    table = _table("Link (sent: link bytes, framing included; queue: IP bytes)", ("direction",))
    for heading in (
        "utilization",
        "sent",
        "packets sent",
        "packets dropped: queue full",
        "packets dropped: bit error",
        "largest queue",
    ):
        table.add_column(heading, justify="right")
    usual = ("queue_full", "bit_error")
    others = [
        cause
        for cause in DROP_CAUSES
        if cause not in usual and any(row[f"dropped_{cause}_packets"] for row in directions)
    ]
    for cause in others:
        table.add_column(f"packets dropped: {cause.replace('_', ' ')}", justify="right")
    for row in directions:
        table.add_row(
            row["direction"],
            f"{row['utilization']:.1%}",
            format_size(row["sent_bytes"]),
            f"{row['sent_packets']:,}",
            *(f"{row[f'dropped_{cause}_packets']:,}" for cause in usual),
            format_size(row["queue_max_bytes"]),
            *(f"{row[f'dropped_{cause}_packets']:,}" for cause in others),
        )
    return table


def _processors(processors: list[dict[str, Any]]) -> Table:
    table = _table("Gateways (packets, by ingress side)", ("processor",))
    for heading in (
        "utilization",
        "from its network",
        "dropped of these",
        "from the link",
        "dropped of these",
    ):
        table.add_column(heading, justify="right")
    for row in processors:
        table.add_row(
            row["processor"],
            f"{row['utilization']:.1%}",
            f"{row['received_lan_packets']:,}",
            f"{row['dropped_lan_packets']:,}",
            f"{row['received_link_packets']:,}",
            f"{row['dropped_link_packets']:,}",
        )
    return table


def _aggregators(aggregators: list[dict[str, Any]]) -> Table:
    table = _table("Aggregators (frames sent over the link)", ("aggregator",))
    for heading in ("frames", "packets in them", "packets sent alone", "hold time mean / max"):
        table.add_column(heading, justify="right")
    for row in aggregators:
        table.add_row(
            row["function"],
            f"{row['sent_frames']:,}",
            f"{row['packed_packets']:,}",
            f"{row['single_packets']:,}",
            duration_pair(row["hold_time_mean_ns"], row["hold_time_max_ns"]),
        )
    return table


def presets_table(presets: Mapping[str, Preset]) -> Table:
    """Return the presets, one a row."""
    table = _table("", ("preset", "link", "forward", "return"))
    for preset in presets.values():
        ends = (preset.link["forward"], preset.link["return"])
        table.add_row(preset.name, preset.title, *(f"{e['rate']}, {e['delay']}" for e in ends))
    return table


def preset_text(preset: Preset) -> str:
    """Return a preset as YAML for a scenario file, and the source of its numbers."""
    lines = [f"{preset.name}: {preset.title}", "", "link:"]
    for name, values in preset.link.items():
        fields = f"rate: {values['rate']}, delay: {values['delay']}"
        lines.append(f"  {name}: {{{fields}, queue: {{limit: {values['queue']['limit']}}}}}")
    return "\n".join([*lines, "", *textwrap.wrap(f"Source: {preset.source}", width=88)])


def plain_table(columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Table:
    """Return a table of texts."""
    table = _table("", columns)
    for row in rows:
        table.add_row(*row)
    return table


def _table(title: str, columns: tuple[str, ...]) -> Table:
    table = Table(*columns, title=title or None, title_justify="left", box=None, pad_edge=False)
    table.header_style = "bold"
    return table


def _known(count: int | None) -> str:
    return "-" if count is None else str(count)
