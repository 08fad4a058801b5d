"""Tables for the terminal; each number has its unit, direction and layer."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from bentpipe.results.entries import MAX_SINGLE_FLOWS
from bentpipe.results.figures import attribution_table, flow_tables
from bentpipe.results.link_figures import link_tables
from bentpipe.results.metrics import (
    aggregate_goodput_bps,
    competing_flows,
    exchange_times_ns,
    jain,
    page_load_times_ns,
)
from bentpipe.results.result import Result
from bentpipe.results.text_table import TextTable
from bentpipe.results.thresholds import check_thresholds, threshold_table
from bentpipe.results.views import View, text_lines
from bentpipe.scenario.presets import Preset
from bentpipe.units import format_duration, format_rate

_STYLES: Final = {"title": "italic", "heading": "bold"}
# Between two columns.
_GAP: Final = 2
# Longer names and headings are folded.
_NAME_WIDTH: Final = 20
_HEADING_WIDTH: Final = 14
_LABEL_WIDTH: Final = 26
# A pipe has no width, unless COLUMNS is set.
_PIPE_WIDTH: Final = 160
_WIDTH_MAX: Final = 1_000


def show(*renderables: View | RenderableType) -> None:
    """Print texts and tables to stdout, without styles when it is not a terminal."""
    has_width = sys.stdout.isatty() or "COLUMNS" in os.environ
    console = Console(width=None if has_width else _PIPE_WIDTH, highlight=False)
    unlimited = console.options.update(max_width=_WIDTH_MAX)
    for renderable in renderables:
        if isinstance(renderable, View):
            console.print()
            for style, line in text_lines(renderable, console.width):
                console.print(Text(line, style=_STYLES.get(style, "")), soft_wrap=True)
            continue
        needed = console.measure(renderable, options=unlimited)
        # rich would shorten the cells of such a table: let the terminal fold its lines.
        is_too_wide = needed.minimum > console.width
        width = needed.maximum if is_too_wide else console.width
        Console(width=width, highlight=False).print(renderable)


def run_tables(result: Result) -> list[RenderableType]:
    """Return the tables of flows and directions of a run, and a line on the run itself."""
    flows = result.tables["flows"].height
    manifest = result.manifest
    head = (
        f"{manifest['scenario'].get('name') or 'Scenario'}: seed {manifest['seed']}, "
        f"{result.ending}, {manifest['packet_hops']:,} packet-hops"
    )
    tables: list[RenderableType] = [head, *_real_time(result)]
    tables += [Fitted(table) for table in flow_tables(result)]
    if flows > MAX_SINGLE_FLOWS:
        tables.append(f"All {flows:,} flows: --json, or flows.parquet in the folder of --out")
    tables += _competing(result)
    with_exchanges = result.tables["exchanges"]["flow"].n_unique()
    if with_exchanges > 1:
        tables.append(_all_exchanges(result, with_exchanges))
    users = result.tables["pages"]["flow"].n_unique()
    if users > 1:
        tables.append(_all_pages(result, users))
    attribution = attribution_table(result)
    if attribution is not None:
        tables.append(Fitted(attribution))
    tables += [Fitted(table) for table in link_tables(result, MAX_SINGLE_FLOWS)]
    directions = result.tables["directions"].height
    if directions > MAX_SINGLE_FLOWS:
        tables.append(
            f"All {directions:,} directions: --json, or directions.parquet in the folder of --out"
        )
    # Those of a run that did not complete are not known.
    checks = check_thresholds(result) if result.state == "completed" else []
    if checks:
        tables.append(Fitted(threshold_table(checks)))
    return tables


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


def _competing(result: Result) -> list[str]:
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


def _all_exchanges(result: Result, flows: int) -> str:
    times_ns = exchange_times_ns(result)
    return f"{flows} flows together: {times_ns.size:,} finished{_quantiles(times_ns)}"


def _all_pages(result: Result, users: int) -> str:
    times_ns = page_load_times_ns(result)
    return f"{users} users together: {times_ns.size:,} pages loaded{_quantiles(times_ns)}"


def _quantiles(times_ns: npt.NDArray[np.int64]) -> str:
    if times_ns.size:
        median_ns, high_ns = np.quantile(times_ns, (0.5, 0.95))
        return f", time median {format_duration(median_ns)}, 95 % {format_duration(high_ns)}"
    return ""


class Fitted:
    """A table that shortens no number: where its rows do not fit, they become columns.

    Before that, up to ``optional`` of the last columns are left out.
    """

    def __init__(self, table: TextTable, *, optional: int = 0) -> None:
        self._table = table
        self._optional = optional

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table, width = self._table, options.max_width
        yield Text(f"\n{table.title}", style="italic")
        headings = [[*_folded(name), *_folded(unit)] for name, unit in table.columns]
        rows = table.without_repeats()
        widths = _column_widths(table, headings)
        needed = len(widths) - self._optional
        while len(widths) > needed and not _fits(widths, width):
            widths, headings = widths[:-1], headings[:-1]
        if _fits(widths, width):
            rows = [row[: len(widths)] for row in rows]
            yield _aligned(["\n".join(lines) for lines in headings], rows, table.text_columns)
        else:
            yield from _stacked(table, width)
        if table.more:
            yield Text(f"... and {table.more}")


def _fits(widths: Sequence[int], width: int) -> bool:
    return sum(widths) + _GAP * (len(widths) - 1) <= width


def _column_widths(table: TextTable, headings: list[list[str]]) -> list[int]:
    """Return the width of each column; a name may be folded, a number may not."""
    cells = zip(*table.rows, strict=True)
    return [
        max(len(line) for line in (*lines, *(column if i >= table.text_columns else ())))
        if i >= table.text_columns
        else max(*map(len, lines), min(_NAME_WIDTH, max(map(len, column))))
        for i, (lines, column) in enumerate(zip(headings, cells, strict=True))
    ]


def _folded(heading: str) -> list[str]:
    return textwrap.wrap(heading, _HEADING_WIDTH, break_long_words=False)


def _aligned(columns: Sequence[str], rows: Iterable[Sequence[str]], text_columns: int) -> Table:
    """Return a table whose text columns fold, and whose other columns keep their width."""
    table = _table("", ())
    for i, column in enumerate(columns):
        is_text = i < text_columns
        table.add_column(
            Text(column),
            justify="left" if is_text else "right",
            no_wrap=not is_text,
            overflow="fold",
        )
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def _stacked(table: TextTable, width: int) -> Iterator[RenderableType]:
    """Yield tables with a column for each row, as many as fit, and a row for each quantity."""
    labels = [f"{name} ({unit})" if unit else name for name, unit in table.columns]
    label_width = max(map(len, labels))
    if _stacked_width(label_width, table.rows) > width:
        label_width = min(label_width, _LABEL_WIDTH)
    label_cells = ["\n".join(textwrap.wrap(label, label_width)) for label in labels]
    name_width = max(1, min(_NAME_WIDTH, width - label_width - _GAP))
    rows = [
        ["\n".join(textwrap.wrap(name, name_width)) for name in row[: table.text_columns]]
        + list(row[table.text_columns :])
        for row in table.rows
    ]
    starts = table.starts()
    ends = dict(zip(starts, [*starts, len(rows)][1:], strict=True))
    block: list[list[str]] = []
    for i, row in enumerate(rows):
        # A group is not divided if it fits.
        group = rows[i : ends.get(i, i + 1)]
        fits = _stacked_width(label_width, [*block, row]) <= width
        fits_whole = _stacked_width(label_width, [*block, *group]) <= width
        if block and not (fits and (fits_whole or i not in ends)):
            yield _block(label_cells, block)
            yield Text("")
            block = []
        block.append(row)
    yield _block(label_cells, block)


def _stacked_width(label_width: int, rows: Iterable[Sequence[str]]) -> int:
    return label_width + sum(
        _GAP + max(len(line) for cell in row for line in cell.split("\n")) for row in rows
    )


def _block(labels: list[str], rows: list[list[str]]) -> Table:
    heads, *quantities = zip(labels, *rows, strict=True)
    return _aligned(heads, quantities, 1)


def presets_table(presets: Mapping[str, Preset]) -> Table:
    """Return the presets, one a row."""
    table = _table("", ("preset", "link", "forward", "return"))
    for preset in presets.values():
        ends = (preset.link["forward"], preset.link["return"])
        shown = (f"{_range(end['rate'])}, {_range(end['delay'])}" for end in ends)
        table.add_row(preset.name, preset.title, *shown)
    return table


def _range(value: str | Mapping[str, Any]) -> str:
    """Return a value, or the smallest and the largest of those that repeat."""
    if isinstance(value, str):
        return value
    values = sorted(value["values"], key=lambda text: float(text.partition(" ")[0]))
    return f"{values[0]} to {values[-1]}"


def preset_text(preset: Preset) -> str:
    """Return a preset as YAML for a scenario file, and the source of its numbers."""
    lines = [f"{preset.name}: {preset.title}", "", "link:"]
    for name, values in preset.link.items():
        fields = [f"{field}: {_yaml(value)}" for field, value in values.items()]
        if all(isinstance(values[field], str) for field in ("rate", "delay")):
            lines.append(f"  {name}: {{{', '.join(fields)}}}")
        else:
            lines += [f"  {name}:", *(f"    {field}" for field in fields)]
    return "\n".join([*lines, "", *textwrap.wrap(f"Source: {preset.source}", width=88)])


def _yaml(value: object) -> str:
    """Return a value of a preset in the flow style of YAML."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {_yaml(each)}' for key, each in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_yaml, value))}]"
    return str(value)


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
