"""The section on packet aggregation, in the report and for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bentpipe.report import html as _html
from bentpipe.report.style import MUTED, PALETTE, add_legend, new_figure
from bentpipe.studies._common import number
from bentpipe.studies.snip._aggregation import HOLD_TIMES_MS, LOAD_PAYLOAD
from bentpipe.studies.snip.study import SnipOutcome

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# "above about 40 times the packet size": bytes a second, so as many packets a second.
PUBLISHED_LOAD_PPS: Final = 40


def summary_lines(outcome: SnipOutcome) -> list[str]:
    """Return what aggregation gave, in a few sentences."""
    shared = outcome.measured.aggregation
    lines = [
        f"{row['payload_bytes']} bytes: {number(row['without_pps'], 0)} packets a second without "
        f"aggregation, {number(row['with_pps'], 0)} with it, {number(row['gain'], 2)} times as "
        f"many; on paper {number(row['paper_pps'], 0)}, limited by {row['paper_limit']} (error "
        f"{number(row['error_percent'], 2, sign=True)} %)."
        for row in shared.sizes(outcome.measured.table)
    ]
    begins = (
        f"Hold time {hold_ms} ms: of the loads tried, frames are fewer than packets from "
        f"{number(shared.begins_at(hold_ms), 0)} packets a second on; on paper above "
        f"{1000 // hold_ms}."
        for hold_ms in HOLD_TIMES_MS
        if hold_ms
    )
    return [*lines, *begins]


def section(outcome: SnipOutcome) -> list[str]:
    """Return the section of the report."""
    shared = outcome.measured.aggregation
    columns = (
        ("payload", "bytes"),
        ("without", "packets/s"),
        ("with", "packets/s"),
        ("gain", ""),
        ("a frame", "packets"),
        ("on paper", "packets/s"),
        ("error", "%"),
        ("limit", "on paper"),
    )
    rows = [
        [
            str(row["payload_bytes"]),
            number(row["without_pps"], 0),
            number(row["with_pps"], 0),
            number(row["gain"], 2),
            str(row["packets_per_frame"]),
            number(row["paper_pps"], 0),
            number(row["error_percent"], 2, sign=True),
            row["paper_limit"],
        ]
        for row in shared.sizes(outcome.measured.table)
    ]
    parts = [
        _html.heading("With packet aggregation"),
        _html.paragraph(
            "The note's remedy for small packets is external packet processing, which aggregates "
            "them; there are no published rates to compare with. Here both "
            "gateways have an aggregator in front of the processor, with frames of 1,500 bytes "
            "and a hold time of 5 ms. On paper: packets in a full frame, times the lesser of what "
            "processor and link carry of such frames (docs/model/aggregation.md)."
        ),
        _html.table("Largest rate without a loss.", columns, rows),
    ]
    if shared.loads:
        parts += [
            _html.figure(
                _load_figure(outcome),
                name="aggregation",
                caption=f"Packets in a frame, and added delay, over the load of {LOAD_PAYLOAD} "
                "bytes a packet.",
            ),
            _html.paragraph(
                "Aggregation begins to pay when a second packet comes within the hold time; below, "
                "it only delays. The note says above about 40 times the packet size, so at "
                f"{PUBLISHED_LOAD_PPS} packets a second: that is a hold time of 25 ms. It does not "
                "tell its hold time, so this agreement is chosen (fitted)."
            ),
            _html.bullets(summary_lines(outcome)[-sum(map(bool, HOLD_TIMES_MS)) :]),
        ]
    return parts


def _load_figure(outcome: SnipOutcome) -> Figure:
    figure, (packets, delay) = new_figure(2, 1, height_in=4.8)
    for color, hold_ms in zip(PALETTE, filter(None, HOLD_TIMES_MS), strict=False):
        loads = [each for each in outcome.measured.aggregation.loads if each.hold_ms == hold_ms]
        offered = [each.offered for each in loads]
        label = f"{hold_ms} ms"
        packets.plot(
            offered,
            [each.packets_per_frame for each in loads],
            color=color,
            marker="o",
            label=label,
        )
        delay.plot(
            offered, [each.added_delay_ms for each in loads], color=color, marker="o", label=label
        )
    packets.axvline(PUBLISHED_LOAD_PPS, color=MUTED, linestyle=":", label="published")
    packets.set_ylabel("Packets a frame")
    delay.set_ylabel("Added delay [ms]")
    delay.set_xlabel("Offered [packets/s]")
    for axes in (packets, delay):
        axes.set_xscale("log")
        axes.set_ylim(bottom=0)
        add_legend(axes)
    return figure
