"""The result of a no-drop search: for a terminal, as a report, and as files."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from bentpipe import _core
from bentpipe.report.export import Exports
from bentpipe.report.html import environment
from bentpipe.report.style import PALETTE, from_zero, new_figure
from bentpipe.results.files import REPORT
from bentpipe.results.folder import json_text, write_folder
from bentpipe.results.views import Cell, Column, View, csv_table
from bentpipe.simulation.no_drop import NoDropRate, NoDropSearch
from bentpipe.units import NS_PER_S, format_duration, format_rate

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.figure import Figure

    from bentpipe.results.output import OutputFolder

# The names of flows that fit in a line.
_MAX_NAMES: Final = 4
_COLUMNS: Final = (
    Column("payload_bytes", "payload", "of UDP", "{:,} B".format),
    Column("rate_bps", "largest rate without loss", "of payload, each flow"),
    Column("fails_bps", ""),
    Column("packets_per_second", "packets", "per second, each flow", "{:,.0f}".format),
    Column("aggregate_packets_per_second", "packets", "per second, all flows", "{:,.0f}".format),
    Column("limit", "limited by"),
    Column("place", "where"),
    Column("converged", ""),
    Column("proven", "proven"),
)
NOTE: Final = (
    "A rate passes if nothing is lost and no delay grows by more than the resolution times the "
    "time sent, as it does at a rate above the limit, whatever the buffers. A rate is not proven "
    "if the run is too short, or the delay varies too much, to tell: then buffers may hide more"
)
_NOT_PROVEN: Final = (
    "Not proven: buffers may hide that a rate is too high; send for longer (traffic.N.duration)."
)


def search_tables(found: NoDropSearch) -> list[View | str]:
    """Return the table of the sizes for a terminal, with a line on the search above it."""
    unproven = any(each.rate_bps is not None and not each.proven for each in found.rates)
    return [_head(found), _view(found), *([_NOT_PROVEN] if unproven else [])]


def write_search(found: NoDropSearch, out: Path | OutputFolder) -> Path:
    """Write report.html, sizes.csv, search.json and the manifest; return the folder.

    Raises:
        UsageError: the folder contains other files, or cannot be written.
    """
    exports = Exports()
    report = search_report(found, exports)
    return write_folder(
        out,
        kind="search",
        manifest={
            "bentpipe_version": _core.version(),
            "search": "no-drop",
            "scenario": found.scenario,
            "seed": found.seed,
            "interrupted": found.interrupted,
        },
        files={
            REPORT: report,
            **exports.files,
            "sizes.csv": csv_table(_view(found)),
            "search.json": json_text(found.to_json()),
        },
    )


def search_report(found: NoDropSearch, exports: Exports | None = None) -> str:
    """Return the report as HTML; the same search gives identical bytes.

    Its figures are added to ``exports``, and linked.
    """
    template = environment().get_template("search.html.j2")
    return template.render(
        title=f"{found.scenario or 'Scenario'}: largest rate without loss",
        facts=f"bentpipe {_core.version()}; seed {found.seed}",
        head=_head(found),
        interrupted=found.interrupted,
        figure=rate_figure(found),
        sizes=_view(found),
        note=NOTE,
        sending=_sending(found),
        exports=exports,
    )


def rate_figure(found: NoDropSearch) -> Figure:
    """Draw rate in Mbit/s and packets per second of each flow over the payload in bytes."""
    figure, (above, below) = new_figure(2, 1, height_in=4.6)
    sizes = [each.payload_bytes for each in found.rates]
    rates = [math.nan if each.rate_bps is None else each.rate_bps / 1e6 for each in found.rates]
    packets = [each.packets_per_second or math.nan for each in found.rates]
    for axes, values, colour in zip((above, below), (rates, packets), PALETTE, strict=False):
        axes.plot(sizes, values, color=colour, marker="o", markersize=4)
        from_zero(axes)
    above.set_ylabel("Payload [Mbit/s]")
    below.set_ylabel("Packets [1/s]")
    below.set_xlabel("UDP payload [bytes]")
    return figure


def _head(found: NoDropSearch) -> str:
    flows = found.flows
    shown = ", ".join(flows[:_MAX_NAMES])
    if len(flows) > _MAX_NAMES:
        shown += f" and {len(flows) - _MAX_NAMES} more"
    return (
        f"{found.scenario or 'Scenario'}: largest rate without loss, flows: {shown}; to "
        f"{100 * found.resolution:.3g} % of the rate, seed {found.seed}, "
        f"sending for {_sending(found)}"
    )


def _sending(found: NoDropSearch) -> str:
    return format_duration(found.sending_s * NS_PER_S)


def _view(found: NoDropSearch) -> View:
    return View(
        "Each rate passed; a rate above it by at most the resolution failed",
        _COLUMNS,
        [_row(each) for each in found.rates],
    )


def _row(each: NoDropRate) -> list[Any]:
    loss, facts = each.first_loss, each.to_json()
    limit = facts["limit"]
    text = "none up to the link rate" if each.converged else "unknown (not converged)"
    if loss is not None:
        text = limit if each.converged else f"{limit} (rate not converged)"
    cells = {
        "rate_bps": "none passes" if each.rate_bps is None else format_rate(each.rate_bps),
        "limit": text,
        "proven": "-" if each.rate_bps is None else "yes" if each.proven else "no",
    }
    values = {**facts, "place": None if loss is None else loss.place}
    return [
        Cell(values[column.name], cells[column.name])
        if column.name in cells
        else values[column.name]
        for column in _COLUMNS
    ]
