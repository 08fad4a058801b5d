"""Tables for the terminal; each number has its unit, direction and layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from bentpipe.results.measures import (
    MAX_SINGLE_FLOWS,
    aggregate_goodput_bps,
    competing_flows,
    finished_times_ns,
    jain,
)
from bentpipe.results.metric_values import threshold_view
from bentpipe.results.result import Result
from bentpipe.results.run_views import attribution_view, flow_views, link_views
from bentpipe.results.verdict import bounds_text
from bentpipe.results.views import Cell, Column, Mean, View
from bentpipe.sweeps.reader import cell_metrics
from bentpipe.sweeps.tables import text_of, varied_fields
from bentpipe.text import counted
from bentpipe.units import format_duration, format_rate

if TYPE_CHECKING:
    from bentpipe.sweeps.reader import Sweep

# More cells do not fit on a screen.
_MAX_CELLS: Final = 50
# The parts of paths that differ between fields of the same name.
_TWINS: Final = {"forward": "return", "return": "forward", "hub": "terminal", "terminal": "hub"}
_LEFT_OUT: Final = (
    "some runs have no value, such as a transfer that did not end, and are left out of the mean; "
    "compare the goodput, too."
)


def run_tables(result: Result) -> list[View | str]:
    """Return the tables of flows and directions of a run, and lines on the run itself."""
    manifest = result.manifest
    head = (
        f"{result.title}: seed {manifest['seed']}, {result.ending}, "
        f"{manifest['packet_hops']:,} packet-hops"
    )
    tables = [
        head,
        *_real_time(result),
        *flow_views(result),
        *_stored(result, "flows"),
        *competing(result),
        *_together(result, "exchanges", "flows together: {:,} finished"),
        *_together(result, "pages", "users together: {:,} pages loaded"),
        attribution_view(result),
        *link_views(result, MAX_SINGLE_FLOWS),
        *_stored(result, "directions"),
        threshold_view(result),
    ]
    return [table for table in tables if table is not None]


def _stored(result: Result, table: str) -> list[str]:
    """Return where all rows of a table are that is shown in groups."""
    rows = result.tables[table].height
    where = f"--json, or {table}.parquet in the folder of --out"
    return [f"All {rows:,} {table}: {where}"] if rows > MAX_SINGLE_FLOWS else []


def _real_time(result: Result) -> list[str]:
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
    elif (text := bounds_text(about)) is not None:
        lines.append(text)
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


def _together(result: Result, table: str, text: str) -> list[str]:
    """Return the times of all rows of a table that has those of several flows."""
    flows = result.tables[table]["flow"].n_unique()
    if flows < 2:  # noqa: PLR2004 - the table of flows has those of one
        return []
    times_ns = finished_times_ns(result, table)
    line = f"{flows} {text.format(times_ns.size)}"
    if times_ns.size:
        median_ns, high_ns = np.quantile(times_ns, (0.5, 0.95))
        line += f", time median {format_duration(median_ns)}, 95 % {format_duration(high_ns)}"
    return [line]


# --- sweeps ---------------------------------------------------------------------------------------


def sweep_tables(sweep: Sweep, more: str = "--json") -> list[View | str]:
    """Return a table with the means of the cells; ``more`` is where those left out are."""
    name = sweep.manifest.get("scenario", {}).get("name") or "Sweep"
    counts, *facts = sweep_facts(sweep)
    view = cells_view(sweep, _MAX_CELLS, more)
    return [f"{name}: {counts}", *facts, *([view] if view else [])]


def sweep_facts(sweep: Sweep) -> list[str]:
    """Return what was run: the number of cells and runs, what was varied, and the thresholds."""
    failed = sweep.failures.height
    failures = f", {failed:,} failed" if failed else ""
    cells, paths = sweep.cells, _paths(sweep)
    facts = [f"{counted(cells.height, 'cell')}, {counted(sweep.runs.height, 'run')}{failures}"]
    if paths:
        facts.append(f"Varied: {', '.join(paths)}")
    checked = {check["point"] for check in sweep.thresholds}
    failed_cells = {check["point"] for check in sweep.thresholds if not check["passed"]}
    if checked:
        met = len(checked) - len(failed_cells)
        facts.append(f"Thresholds: met in {met:,} of {counted(len(checked), 'cell')}")
    return facts


def _paths(sweep: Sweep) -> list[str]:
    """Return the varied fields, without the columns of their numbers."""
    columns = sweep.cells.columns
    return varied_fields(columns[: columns.index("runs")] if columns else [])


def cells_view(sweep: Sweep, most: int, more: str) -> View | None:
    """Return the means of at most so many cells; ``more`` is where those left out are."""
    cells, paths = sweep.cells, _paths(sweep)
    if not cells.height:
        return None
    metrics = {name: metric for name, metric in cell_metrics().items() if cells[name].count()}
    partly = [name for name in metrics if (cells[f"{name}_runs"] < cells["runs"]).any()]
    headings = _headings(paths, sweep.manifest.get("scenario", {}))
    columns = [Column(path, heading) for path, heading in zip(paths, headings, strict=True)]
    columns.append(Column("runs", "runs"))
    for name, metric in metrics.items():
        note = metric.note if metric.table == "flows" else "forward"
        runs = ("runs", f"with {metric.title}") if name in partly else ("",)
        columns += [
            Column(name, metric.title, note),
            Column(f"{name}_half_width", ""),
            Column(f"{name}_runs", *runs),
        ]
    rows = []
    for row in cells.head(most).to_dicts():
        cell = [*(text_of(row[path]) for path in paths), row["runs"]]
        for name in metrics:
            half, runs = row[f"{name}_half_width"], row[f"{name}_runs"]
            cell += [Mean(row[name], half), half, Cell(runs, f"{runs:,} of {row['runs']:,}")]
        rows.append(cell)
    left_out = cells.height - len(rows)
    titles = ", ".join(metrics[name].title for name in partly)
    return View(
        "Means, and half the 95 % confidence interval (Student's t, over the runs)",
        columns,
        rows,
        key=len(paths),
        more=f"{counted(left_out, 'more cell')}: {more}" if left_out else "",
        note=f"{titles}: {_LEFT_OUT}" if titles else "",
    )


def _headings(paths: Sequence[str], scenario: Mapping[str, Any]) -> list[str]:
    """Return the last parts of paths, as many as tell them from other paths of the scenario."""
    twins = dict(_TWINS)
    if len(scenario.get("traffic", ())) > 1:
        twins |= {path.split(".")[1]: "" for path in paths if path.startswith("traffic.")}
    headings = []
    for path in paths:
        parts = path.split(".")
        endings = [".".join(parts[-count:]) for count in range(1, len(parts) + 1)]
        alike = ".".join(twins.get(part, part) for part in parts)
        others = [f".{other}" for other in (*paths, alike) if other != path]
        headings.append(
            next(ending for ending in endings if not any(o.endswith(f".{ending}") for o in others))
        )
    return headings
