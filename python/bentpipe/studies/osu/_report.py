"""The study's report: tables, curves, and what they say, in words made from the figures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from bentpipe.report import html as _html
from bentpipe.studies._common import number
from bentpipe.studies.osu._checks import (
    SMALLEST_FAIR_BUFFER_K,
    efficiency_if_halving,
    filled_buffer_rtt,
    place,
    sensitivity_json,
)
from bentpipe.studies.osu._plots import efficiency_figure, fairness_figure, losses_figure
from bentpipe.studies.osu._tables import verdict
from bentpipe.studies.osu._variants import BASE
from bentpipe.studies.osu.study import WARM_UP_S, Measurement, OsuOutcome

# With fewer the standard errors say little.
_ENOUGH_RUNS: Final = 5

_COLUMNS: Final = (
    ("scenario", ""),
    ("sources", ""),
    ("k", ""),
    ("buffer", "cells"),
    ("published", "%, at least"),
    ("efficiency", "%, after the warm-up"),
    ("error", "points below what is published"),
    ("standard error", "points"),
    ("whole run", "%, efficiency"),
    ("fairness", "Jain"),
    ("standard error", "of the fairness"),
    ("after the warm-up", "fairness"),
    ("recoveries", "a source"),
    ("timeouts", "a source"),
    ("drop-tail", "%, efficiency"),
    ("drop-tail", "fairness"),
    ("runs", ""),
)
_SENSITIVITY_COLUMNS: Final = (
    ("what is different", ""),
    ("min efficiency", "%, k = 1"),
    ("mean efficiency", "%, k = 1"),
    ("mean efficiency", "%, k = 3"),
    ("min fairness", "Jain, k = 1 and 3"),
    ("mean fairness", "Jain, k = 1 and 3"),
    ("runs", "of each cell"),
)

_SAID: Final = (
    "N sources that always have data, one bottleneck of 155.52 Mbit/s, 100 s, SACK; access links "
    "of 5 ms each side; satellite links of 5, 50 and 275 ms one way. The figure of the model draws "
    "100 ms where the list says 50: both are simulated.",
    "A buffer of 2^-k round trips at the link's rate, k = -1 to 6, and per-VC accounting with "
    "selective drop (R = 0.9, Z = 0.8, ATM Forum 96-1269). The bottleneck counts cells here too.",
    "Efficiency: the sum of the goodputs over the most that full segments could carry, which is "
    "89.74 % of the rate with segments of 9180 bytes and 84.00 % with 1024.",
)
_OF_THE_TIME: Final = (
    "Hosts by the standards of July 1997: delayed ACKs (RFC 1122), slow start from one segment and "
    "growth of mss*mss/cwnd for each ACK in congestion avoidance (RFC 2001), SACK (RFC 2018) with "
    "the recovery that became RFC 6675, timer ticks of 500 ms, no timestamps.",
    "AAL5 with LLC/SNAP: 16 bytes more a packet, cells of 48 in 53 bytes.",
    "The access links delay and do not queue: they are as fast as the bottleneck, so their 10 ms "
    "are part of the link's delay.",
)
_CHOSEN: Final = (
    "Growth for each ACK in place of the host profile's growth by bytes: it is the standard of the "
    "time, and it was chosen knowing what both give. By bytes fewer cells are unfair and one "
    "scenario misses 98 %; both are in the table of what hangs on what.",
    "Segments of 9180 bytes, and 1024 on the single hop over LEO: our reading of the source.",
    "Windows of 64 MiB, more than all that can be under way. They never limit.",
    "Sources start within the first second, each at a moment drawn from the run's seed. Nothing "
    "else in a run is drawn.",
    f"The efficiency counts from {WARM_UP_S} s on, the fairness over the whole run; the table has "
    "each both ways.",
)
_UNSAID: Final = (
    "The figures behind the curves: what the source states in text is two shapes and one number.",
    "Whether receivers delayed their ACKs, how windows grew, the first threshold of slow start, "
    "timers and receive windows. Other simulations of the group may have acknowledged every "
    "segment; what that would do here is in the table of what hangs on what.",
    "When sources start and whether slow start is part of the efficiency.",
    "How many runs a point is, and its spread.",
)
_WHY_HALVING: Final = (
    "Why half a round trip is enough, on paper. When the buffer overflows, the windows add up to "
    "one round trip and the buffer. If all sources halve in that moment, half a round trip of "
    "buffer leaves the link idle until the windows have grown again: 95.4 %. If every second one "
    "does, the sum falls by a quarter, the link stays busy, and it is 100 %. Which of the two "
    "happens depends on how many packets the sources add in the round trip of the overflow, for so "
    "many are lost. With delayed ACKs and growth for each ACK every second source adds one in a "
    "round trip. With an ACK for each segment every source adds one and loses one; see the table "
    "of what hangs on what. More sources do better than the paper: fewer than half lose at once. "
    "Few sources over GEO with small buffers do worse: a window that slow start's losses left "
    "small grows by half a segment each 570 ms, and 100 s are too short for it."
)


def study_report(outcome: OsuOutcome) -> str:
    """Return the report as HTML; the same outcome gives the same bytes."""
    configuration = outcome.configuration
    runs = configuration["runs_of_a_cell"]
    facts = (
        f"bentpipe {configuration['bentpipe_version']}; first seed {configuration['first_seed']}; "
        f"{runs} runs of each cell"
    )
    parts = [
        _html.paragraph(
            "Published: Goyal, Jain and others, UBR Buffer Requirements for TCP/IP over Satellite "
            "Networks, ATM Forum/97-0616, July 1997. How large must the buffer in front of a "
            "satellite link be for SACK TCP to fill it? Measured: simulations of all cells from "
            "one configuration, made before the source's claims are read."
        )
    ]
    if outcome.interrupted:
        text = "The study was interrupted: the figures are of the runs that were done."
        parts.append(_html.paragraph(text, notice=True))
    if runs < _ENOUGH_RUNS:
        text = f"With fewer than {_ENOUGH_RUNS} runs a cell the figures are a quick look."
        parts.append(_html.paragraph(text, notice=True))
    parts += [
        _html.heading("What the source says, and whether it holds here"),
        _html.bullets(f"Published: {claim}." for claim in outcome.published.claims),
        _html.bullets(f"{verdict(check)}." for check in outcome.checks),
        _html.heading("Curves"),
        *_figures(outcome),
        _html.heading("What agrees"),
        _html.bullets(_agreement(outcome)),
        _html.paragraph(_WHY_HALVING),
        _halving_table(outcome),
        _html.heading("What does not, and why"),
        *_misses(outcome),
        _html.heading("What hangs on what"),
        *_sensitivities(outcome),
        _html.heading("Every cell"),
        _cells_table(outcome),
        _html.heading("What the source says, what is of its time, what was chosen, what is unsaid"),
        _html.paragraph("The source says:"),
        _html.bullets(_SAID),
        _html.paragraph("Of its time, and fixed beforehand:"),
        _html.bullets(_OF_THE_TIME),
        _html.paragraph("Chosen, for all cells at once:"),
        _html.bullets(_CHOSEN),
        _html.paragraph("What the source leaves unsaid:"),
        _html.bullets(_UNSAID),
        _html.heading("What was run"),
        _html.details("Configuration of all cells", json.dumps(configuration, indent=2)),
    ]
    title = "ATM Forum 97-0616: buffers for SACK TCP over satellite UBR"
    return _html.page(title, facts, *parts)


def _figures(outcome: OsuOutcome) -> list[str]:
    lines = "Solid with marks: selective drop; dashed: drop-tail with the same limit. "
    return [
        _html.figure(
            efficiency_figure(outcome),
            name="efficiency",
            caption=f"{lines}Grey: on paper, when all sources halve at once, and when every second "
            "one does.",
        ),
        _html.figure(
            fairness_figure(outcome),
            name="fairness",
            caption=f"{lines}Dotted: 0.95.",
        ),
        _html.figure(
            losses_figure(outcome.measurements),
            name="losses",
            caption="Each mark is a cell with selective drop. One recovery is that of slow start. "
            "The low ones far right are buffers of three packets.",
        ),
    ]


def _agreement(outcome: OsuOutcome) -> list[str]:
    texts = [
        f"{check.name}: {check.places - len(check.misses)} of {check.places} places."
        for check in outcome.checks
    ]
    geo = [
        f"{number(each.mean('efficiency_whole_run'))} % with {each.cell.sources} sources"
        for each in outcome.measurements
        if (each.cell.scenario, each.cell.k, each.cell.discipline)
        == ("GEO single hop", -1, "selective_drop")
    ]
    if geo:
        texts.append(
            f"The efficiency counts from {WARM_UP_S} s on. Over the whole run GEO with its largest "
            f"buffer has {', '.join(geo)}: what is missing is slow start from one segment, which "
            "no buffer makes up for, so that the published number cannot include it. In order is "
            "what counts as delivered: data behind a hole at that moment count later, which lifts "
            "a figure above 100 % by tenths."
        )
    both = [
        _mean_of(outcome, figure, discipline)
        for figure in ("fairness", "efficiency")
        for discipline in ("selective_drop", "drop_tail")
    ]
    texts.append(
        f"Down to 1/{2**SMALLEST_FAIR_BUFFER_K} round trip, selective drop has a mean fairness of "
        f"{number(both[0], digits=3)} and drop-tail of {number(both[1], digits=3)}; their mean "
        f"efficiencies are {number(both[2])} and {number(both[3])} %. Per-VC accounting makes "
        "shares more equal, and does not make the link busier."
    )
    return texts


def _mean_of(outcome: OsuOutcome, figure: str, discipline: str) -> float | None:
    figures = [
        value
        for each in outcome.measurements
        if each.cell.discipline == discipline and each.cell.k <= SMALLEST_FAIR_BUFFER_K
        if (value := each.mean(figure)) is not None
    ]
    return sum(figures) / len(figures) if figures else None


def _halving_table(outcome: OsuOutcome) -> str:
    """Hold a curve with many losses against what is expected on paper."""
    rows = []
    for each in outcome.curve("LEO single hop", 15, "selective_drop"):
        buffer_rtt = filled_buffer_rtt(each.cell.k)
        rows.append(
            [
                str(each.cell.k),
                number(efficiency_if_halving(buffer_rtt, 1.0)),
                number(efficiency_if_halving(buffer_rtt, 0.5)),
                number(each.mean("efficiency")),
            ]
        )
    columns = (
        ("k", ""),
        ("all halve at once", "%, on paper"),
        ("every second halves", "%, on paper"),
        ("measured", "%"),
    )
    return _html.table("LEO single hop, 15 sources, selective drop.", columns, rows)


def _misses(outcome: OsuOutcome) -> list[str]:
    parts = []
    for check in outcome.checks:
        if check.misses:
            parts.append(_html.paragraph(f"{verdict(check)}:"))
            parts.append(
                _html.bullets(
                    f"{place(miss.cell)}: {miss.found}; {miss.reason}." for miss in check.misses
                )
            )
            if check.name == "fairness":
                parts.append(_html.paragraph(_why_unfair(outcome)))
    return parts or [_html.paragraph("Nothing: all that was measured does as the source says.")]


def _why_unfair(outcome: OsuOutcome) -> str:
    text = (
        "Where fairness is low there are few losses. Windows leave slow start unequal, and each "
        "loss halves whoever is met; many losses even that out, a handful does not. "
    )
    short = [
        each
        for each in outcome.measurements
        if each.cell.scenario == "LEO single hop" and each.cell.discipline == "selective_drop"
    ]
    if any(each.runs for each in short):
        recoveries, fairness = (
            min(value for each in short if (value := each.mean(figure)) is not None)
            for figure in ("recoveries_per_source", "fairness")
        )
        text += (
            f"On the single hop over LEO each source recovers at least {recoveries:.0f} times, and "
            f"fairness is at least {number(fairness, digits=3)} in all cells. "
        )
    for sensitivity in outcome.sensitivities:
        data = sensitivity_json(sensitivity)
        lowest = [data[key]["fairness_min"] for key in ("as_described", "changed")]
        if sensitivity.variant.duration_s != BASE.duration_s and None not in lowest:
            text += (
                f"In {sensitivity.variant.duration_s} s instead of {BASE.duration_s} s the lowest "
                f"fairness of the cells with 1/2 and 1/8 round trip rises from "
                f"{number(lowest[0], digits=3)} to {number(lowest[1], digits=3)}. "
            )
    return text.rstrip()


def _sensitivities(outcome: OsuOutcome) -> list[str]:
    found = [sensitivity_json(each) for each in outcome.sensitivities]
    rows = [_sensitivity_row("nothing", data["as_described"]) for data in found[:1]]
    rows += [_sensitivity_row(data["variant"], data["changed"]) for data in found]
    text = (
        "One thing changed at a time, in all cells alike, with the same seeds. It tells how far "
        "the agreement hangs on what the source leaves unsaid."
    )
    caption = "Selective drop, all scenarios and numbers of sources."
    return [_html.paragraph(text), _html.table(caption, _SENSITIVITY_COLUMNS, rows)]


def _sensitivity_row(name: str, digest: dict[str, Any]) -> list[str]:
    figures = (
        ("measured_min_at_half_rtt", 2),
        ("measured_mean_at_half_rtt", 2),
        ("measured_mean_at_eighth_rtt", 2),
        ("fairness_min", 3),
        ("fairness_mean", 3),
    )
    texts = [number(digest[figure], digits=digits) for figure, digits in figures]
    return [name, *texts, str(digest["runs_of_a_cell"])]


def _cells_table(outcome: OsuOutcome) -> str:
    rows: list[list[str]] = []
    starts: list[int] = []
    tails = {
        (each.cell.scenario, each.cell.sources, each.cell.k): each
        for each in outcome.measurements
        if each.cell.discipline == "drop_tail"
    }
    missed = {miss.cell for check in outcome.checks for miss in check.misses}
    before = None
    for each in outcome.measurements:
        cell = each.cell
        if cell.discipline == "drop_tail":
            continue
        if (cell.scenario, cell.sources) != before:
            starts.append(len(rows))
            before = (cell.scenario, cell.sources)
        tail = tails.get((cell.scenario, cell.sources, cell.k))
        rows.append(_cell_row(outcome, each, tail, emphasis="*" if cell in missed else ""))
    caption = (
        "Selective drop, and drop-tail beside it. Bold: named above as a miss. The source gives a "
        "number for the efficiency with half a round trip of buffer or more, and no other."
    )
    return _html.table(caption, _COLUMNS, rows, group_starts=starts)


def _cell_row(
    outcome: OsuOutcome, each: Measurement, tail: Measurement | None, *, emphasis: str
) -> list[str]:
    published = outcome.published
    floor = below = None
    if 2.0**-each.cell.k >= published.from_buffer_rtt:
        floor = published.min_efficiency
        efficiency = each.mean("efficiency")
        below = None if efficiency is None else max(0.0, floor - efficiency)
    beside: Sequence[str] = ("-", "-")
    if tail is not None:
        beside = (number(tail.mean("efficiency")), number(tail.mean("fairness"), digits=3))
    return [
        each.cell.scenario,
        str(each.cell.sources),
        str(each.cell.k),
        str(each.buffer_cells),
        number(floor, digits=0),
        f"{emphasis}{number(each.mean('efficiency'))}",
        number(below),
        number(each.standard_error("efficiency")),
        number(each.mean("efficiency_whole_run")),
        f"{emphasis}{number(each.mean('fairness'), digits=3)}",
        number(each.standard_error("fairness"), digits=3),
        number(each.mean("fairness_after_warm_up"), digits=3),
        number(each.mean("recoveries_per_source"), digits=1),
        number(each.mean("timeouts_per_source"), digits=1),
        *beside,
        str(len(each.runs)),
    ]
