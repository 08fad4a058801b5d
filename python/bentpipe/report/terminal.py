"""Tables for the terminal; each number has its unit, direction and layer."""

from __future__ import annotations

import os
import sys
from typing import Final

import numpy as np
import numpy.typing as npt
from rich.console import Console

from bentpipe.results.entries import MAX_SINGLE_FLOWS
from bentpipe.results.measures import (
    aggregate_goodput_bps,
    competing_flows,
    exchange_times_ns,
    jain,
    page_load_times_ns,
)
from bentpipe.results.result import Result
from bentpipe.results.run_views import attribution_view, flow_views, link_views
from bentpipe.results.thresholds import threshold_view
from bentpipe.results.views import View, text_lines
from bentpipe.units import format_duration, format_rate

_STYLES: Final = {"title": "italic", "heading": "bold"}
# A pipe has no width, unless COLUMNS is set.
_PIPE_WIDTH: Final = 160


def show(*parts: View | str) -> None:
    """Print texts and tables to stdout, without styles when it is not a terminal."""
    has_width = sys.stdout.isatty() or "COLUMNS" in os.environ
    console = Console(width=None if has_width else _PIPE_WIDTH, highlight=False, markup=False)
    for part in parts:
        if isinstance(part, str):
            console.print(part)
            continue
        if part.title:
            console.print()
        for style, line in text_lines(part, console.width):
            console.print(line, style=_STYLES.get(style), soft_wrap=True)


def run_tables(result: Result) -> list[View | str]:
    """Return the tables of flows and directions of a run, and lines on the run itself."""
    manifest = result.manifest
    head = (
        f"{manifest['scenario'].get('name') or 'Scenario'}: seed {manifest['seed']}, "
        f"{result.ending}, {manifest['packet_hops']:,} packet-hops"
    )
    attribution, thresholds = attribution_view(result), threshold_view(result)
    return [
        head,
        *_real_time(result),
        *flow_views(result),
        *_stored(result, "flows"),
        *competing(result),
        *_together(result, "exchanges", "flows together: {:,} finished", exchange_times_ns(result)),
        *_together(
            result, "pages", "users together: {:,} pages loaded", page_load_times_ns(result)
        ),
        *([attribution] if attribution else []),
        *link_views(result, MAX_SINGLE_FLOWS),
        *_stored(result, "directions"),
        *([thresholds] if thresholds else []),
    ]


def _stored(result: Result, table: str) -> list[str]:
    """Return where all rows of a table are that is shown in groups."""
    rows = result.tables[table].height
    where = f"--json, or {table}.parquet in the folder of --out"
    return [f"All {rows:,} {table}: {where}"] if rows > MAX_SINGLE_FLOWS else []


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


def competing(result: Result) -> list[str]:
    """Return goodput and fairness of the bulk flows that share a direction; of many, medians."""
    goodputs = result.goodput_bps
    shared = list(competing_flows(result).items())
    rates = [aggregate_goodput_bps(result, group) for _, group in shared]
    fairness = [jain(goodputs[group]) for _, group in shared]
    if len(shared) > MAX_SINGLE_FLOWS:
        flows = sum(len(group) for _, group in shared)
        return [
            f"{len(shared):,} directions with {flows:,} bulk flows that compete: aggregate goodput "
            f"median {format_rate(float(np.median(rates)))}, smallest {format_rate(min(rates))}; "
            f"fairness (Jain) median {np.median(fairness):.3f}, smallest {min(fairness):.3f}"
        ]
    return [
        f"{direction}: {len(group)} bulk flows, aggregate goodput {format_rate(rate)}, "
        f"fairness (Jain) {fair:.3f}"
        for (direction, group), rate, fair in zip(shared, rates, fairness, strict=True)
    ]


def _together(result: Result, table: str, text: str, times_ns: npt.NDArray[np.int64]) -> list[str]:
    """Return the times of all rows of a table that has those of several flows."""
    flows = result.tables[table]["flow"].n_unique()
    if flows < 2:  # noqa: PLR2004 - the table of flows has those of one
        return []
    line = f"{flows} {text.format(times_ns.size)}"
    if times_ns.size:
        median_ns, high_ns = np.quantile(times_ns, (0.5, 0.95))
        line += f", time median {format_duration(median_ns)}, 95 % {format_duration(high_ns)}"
    return [line]
