"""The study's report: table, curves, and what they say, in words made from the figures."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from bentpipe.report import html as _html
from bentpipe.report.style import INK, PALETTE, add_legend, new_figure
from bentpipe.studies._common import number
from bentpipe.studies.jpl.study import BIT_ERROR_RATES, Comparison, JplOutcome, Measurement

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLUMNS: Final = (
    ("bit error rate", ""),
    ("one-way delay", "ms"),
    ("large windows", ""),
    ("published", "%"),
    ("measured", "% (mean)"),
    ("error", "points"),
    ("standard deviation", "points, one transfer"),
    ("standard error", "points, of the mean"),
    ("runs", ""),
)
# "both" holds for either window.
_WINDOWS: Final = {"large windows": ("both", "yes"), "64 KB windows": ("both", "no")}

# Of ten runs a standard deviation is known to about a quarter.
_ENOUGH_RUNS: Final = 10
_GROUPS: Final = {
    "both": "0 to 100 ms",
    "yes": "large windows",
    "no": "64 KB windows",
}

_FIXED: Final = (
    "Frames of 1508 bytes: 1460 of data, 40 of TCP and IP headers, 8 of framing. That is the "
    "96.81 % of the cell without delay and errors.",
    "No timestamps (they would cost 12 bytes a segment) and no SACK: the source says that SACK was "
    "still to come.",
    "Initial window of one segment: the source says that larger ones were still to come.",
    "An ACK for every second segment, and after 200 ms at the latest, as hosts of the time did.",
    "10 MiB of data; a large window of 256 KiB with the window scale option; a small one of "
    "65,535 bytes, the most without that option.",
    "A sender's queue that never drops; 2 Mbit/s, delay and bit errors in both directions.",
    "The clock from established to the last acknowledgement, as netperf times a transfer.",
)
_FITTED: Final = (
    "Growth in congestion avoidance counts bytes, so it is one segment a round trip. Counting ACKs "
    "instead (half a segment a round trip with delayed ACKs) is too slow at 1e-7.",
    "Reno rather than NewReno in loss recovery.",
    "The first segment is acknowledged at once. 96.81 % leaves no room for a wait of 200 ms for a "
    "delayed ACK, which would cost 0.46 % of the transfer.",
)
_UNSAID: Final = (
    "The TCP stack of the hosts and its version, so also its loss recovery and timers.",
    "The initial window and how often the receiver acknowledged.",
    "The buffers of hosts and routers, and the exact size of the large window.",
    "How many transfers a published figure is the mean of; here each is taken for one transfer.",
)
_LINUX_TEXT: Final = (
    "The same cells with the hosts of the linux profile: CUBIC with HyStart++, SACK, RACK-TLP, "
    "PRR, timestamps, an initial window of ten segments, and a receive window that is tuned up to "
    "6 MiB. The testbed never ran such hosts, so a difference here is no error of the model: it is "
    "what TCP gained and paid since. Timestamps take 12 of 1460 bytes from every segment, which "
    "costs 0.8 points where nothing else binds. Without errors the gain is a faster start: ten "
    "segments at first, growth by bytes in slow start, early ACKs. At 1e-7 and long delays most of "
    "it is CUBIC, whose window comes back sooner after a loss: with NewReno in its place, tried at "
    "250 ms, over half of the gain is gone, with SACK or without and with either window."
)


def study_report(outcome: JplOutcome) -> str:
    """Return the report as HTML; the same outcome gives the same bytes."""
    configuration = outcome.configuration
    facts = (
        f"bentpipe {configuration['bentpipe_version']}; first seed {configuration['first_seed']}; "
        f"{configuration['runs_of_a_cell_with_bit_errors']} runs of each cell with bit errors, one "
        "of each cell without, which draws no chance"
    )
    parts = [
        _html.paragraph(
            "Published: Keith Scott for the JPL mobile satellite protocol testbed, to the mailing "
            "list tcp-over-satellite, 1997. Channel utilization is information bits delivered in "
            "the time T over R T, with R = 2 Mbit/s. Measured: simulations of all cells from one "
            "configuration, made before the published figures are read."
        )
    ]
    if outcome.interrupted:
        text = "The study was interrupted: the figures are of the runs that were done."
        parts.append(_html.paragraph(text, notice=True))
    if configuration["runs_of_a_cell_with_bit_errors"] < _ENOUGH_RUNS:
        text = (
            f"With fewer than {_ENOUGH_RUNS} runs a cell the standard deviations are rough, and so "
            "is what is said of chance below."
        )
        parts.append(_html.paragraph(text, notice=True))
    parts += [
        _html.heading("In short"),
        _html.bullets(_in_short(outcome.bsd)),
        _html.heading("Curves"),
        _html.figure(
            _curves(outcome.bsd, outcome.small_windows),
            name="utilization",
            caption=_CURVES_CAPTION,
        ),
        _html.heading("Published beside measured"),
        _cells_table(
            outcome.bsd,
            "Profile bsd-1997. Bold: off by over 1 point and 2 deviations.",
            emphasize=True,
        ),
        _html.heading("What agrees"),
        _html.bullets(_agreement(outcome.bsd)),
        _signed_table(outcome.bsd),
        _html.heading("One figure for both windows"),
        *_either_window(outcome),
        _html.heading("What does not"),
        *_disagreement(outcome.bsd),
        _html.heading("Fixed beforehand, chosen to fit, and left unsaid"),
        _html.paragraph("Fixed beforehand, from the source or from the hosts of the time:"),
        _html.bullets(_FIXED),
        _html.paragraph("Chosen to fit, over all rows at once and never for a cell:"),
        _html.bullets(_FITTED),
        _html.paragraph("What the source leaves unsaid:"),
        _html.bullets(_UNSAID),
        _html.heading("The same table with hosts of today"),
        *_linux(outcome.linux),
        _html.heading("What was run"),
        _html.details("Configuration of all cells", json.dumps(configuration, indent=2)),
    ]
    title = "JPL testbed: TCP channel utilization over satellite delay and bit error rate"
    return _html.page(title, facts, *parts)


_CURVES_CAPTION: Final = (
    "Lines: mean of the runs; bands: one standard deviation of a single transfer; circles: "
    "published. Up to 100 ms the source gives one figure for both windows, which stands on both "
    "curves."
)


def _in_short(comparison: Comparison) -> list[str]:
    by_row = comparison.mean_absolute_error_by_row
    rows = ", ".join(f"{number(by_row[row])} at {row}" for row in BIT_ERROR_RATES)
    largest = max(comparison.measurements, key=lambda each: abs(each.error or 0.0))
    return [
        f"Mean absolute error over {len(comparison.measurements)} cells: "
        f"{number(comparison.mean_absolute_error)} percentage points. By bit error rate: {rows}.",
        f"Largest error: {_name(largest)}, {_against(largest)}.",
    ]


def _agreement(comparison: Comparison) -> list[str]:
    texts = []
    for row in BIT_ERROR_RATES:
        measured = [each for each in comparison.row(row) if each.error is not None]
        if not measured:
            continue
        close = sum(abs(each.error or 0.0) <= 1 for each in measured)
        spread = [each.stdev for each in measured if each.stdev is not None]
        text = (
            f"{row}: {close} of {len(measured)} cells within one point; mean absolute error "
            f"{number(comparison.mean_absolute_error_by_row[row])} points"
        )
        if spread and max(spread) > 0:
            text += (
                f". One transfer's standard deviation is {number(min(spread))} to "
                f"{number(max(spread))} points"
            )
        texts.append(f"{text}.")
    return texts


def _signed_table(comparison: Comparison) -> str:
    rows = []
    for row in BIT_ERROR_RATES:
        texts = [row]
        for windows in ("both", "yes", "no"):
            errors = [
                each.error
                for each in comparison.row(row)
                if each.cell.large_windows == windows and each.error is not None
            ]
            texts.append(number(sum(errors) / len(errors) if errors else None, sign=True))
        rows.append(texts)
    columns = (
        ("bit error rate", ""),
        ("0 to 100 ms", "points"),
        ("large windows", "points, 150 to 300 ms"),
        ("64 KB windows", "points, 150 to 300 ms"),
    )
    caption = "Mean error with its sign: measured less published. It shows what leans one way."
    return _html.table(caption, columns, rows)


def _either_window(outcome: JplOutcome) -> list[str]:
    """Compare the windows where the source does not tell them apart."""
    small = {(each.cell.row, each.cell.one_way_delay_ms): each for each in outcome.small_windows}
    rows, either = [], []
    for large in outcome.bsd.measurements:
        other = small.get((large.cell.row, large.cell.one_way_delay_ms))
        if large.cell.large_windows != "both" or other is None:
            either.append(large)
            continue
        either.append(other)
        change = error = None
        if large.measured is not None and other.measured is not None:
            change = other.measured - large.measured
        if large.standard_error is not None and other.standard_error is not None:
            error = math.hypot(large.standard_error, other.standard_error)
        figures = (large.published, large.measured, other.measured)
        rows.append(
            [
                large.cell.row,
                str(large.cell.one_way_delay_ms),
                *(number(figure) for figure in figures),
                number(change, sign=True),
                number(error),
            ]
        )
    columns = (
        ("bit error rate", ""),
        ("one-way delay", "ms"),
        ("published", "%"),
        ("large windows", "% (mean)"),
        ("64 KB windows", "% (mean)"),
        ("difference", "points"),
        ("standard error", "points, of the difference"),
    )
    text = (
        "Up to 100 ms the source says that one figure serves both windows. Large windows are what "
        "the table and the errors above have there. With 64 KB windows in these cells the mean "
        "absolute error over all cells would be "
        f"{number(Comparison(tuple(either)).mean_absolute_error)} points in place of "
        f"{number(outcome.bsd.mean_absolute_error)}."
    )
    caption = "The cells with one published figure, simulated with either window."
    return [_html.paragraph(text), _html.table(caption, columns, rows, text_columns=2)]


def _disagreement(comparison: Comparison) -> list[str]:
    measurements = comparison.measurements
    parts = []
    outside = [each for each in measurements if each.stands_out]
    rule = "more than one point and more than two standard deviations of a single transfer"
    if outside:
        parts.append(_html.paragraph(f"Cells off by {rule}:"))
        parts.append(_html.bullets(f"{_name(each)}: {_against(each)}." for each in outside))
    else:
        parts.append(_html.paragraph(f"No cell is off by {rule}."))
    off = [each for each in measurements if not each.stands_out and abs(each.error or 0.0) > 1]
    if off:
        text = (
            "Off by more than one point, but by no more than one transfer may be by chance. That "
            "is no proof that they agree: a difference this size cannot be seen in one transfer."
        )
        parts.append(_html.paragraph(text))
        parts.append(_html.bullets(f"{_name(each)}: {_against(each)}." for each in off))
    parts += [_html.paragraph(text) for text in _leanings(comparison)]
    close = [
        each
        for each in measurements
        if each.stdev and each.error is not None and 2 * each.stdev < abs(each.error) <= 1
    ]
    if close:
        names = "; ".join(f"{_name(each)} ({number(each.error, sign=True)})" for each in close)
        text = f"Within one point, yet further off than two standard deviations: {names}."
        parts.append(_html.paragraph(text))
    parts += [_html.paragraph(text) for text in _noise(measurements)]
    return parts


def _leanings(comparison: Comparison) -> list[str]:
    """Name the groups of cells that are off one way by more than single cells show."""
    texts = []
    for row in BIT_ERROR_RATES:
        for windows, label in _GROUPS.items():
            # A deviation that is itself a guess makes nothing certain.
            group = [
                (each.error, each.stdev)
                for each in comparison.row(row)
                if each.cell.large_windows == windows
                and each.error is not None
                and each.stdev
                and each.runs >= _ENOUGH_RUNS
            ]
            if not group:
                continue
            mean = sum(error for error, _ in group) / len(group)
            # A sum of n independent deviations, each of variance one, has the variance n.
            together = sum(error / stdev for error, stdev in group) / math.sqrt(len(group))
            if abs(mean) > 1 and abs(together) > 2:  # noqa: PLR2004 - as for a single cell
                # Beyond one in a million the normal distribution says nothing of real transfers.
                once_in = 1 / max(math.erfc(abs(together) / math.sqrt(2)), 1e-6)
                texts.append(
                    f"{row}, {label}: the {len(group)} cells lean one way, on average by "
                    f"{number(mean, sign=True)} points. Together they are {abs(together):.1f} "
                    f"standard deviations off, which chance gives to one group of {once_in:,.0f} "
                    "(nine groups were looked at). The model, or what is assumed of the testbed, "
                    "may well be off there."
                )
    return texts


def _noise(measurements: Sequence[Measurement]) -> list[str]:
    """Say where the published figures themselves break an order that they should have."""
    texts = []
    noisiest = [each for each in measurements if each.cell.row == "1e-7"]
    for label, windows in _WINDOWS.items():
        curve = [each for each in noisiest if each.cell.large_windows in windows]
        texts += [
            f"The published row 1e-7 is not monotone: with {label}, {first.published:g} % at "
            f"{first.cell.one_way_delay_ms} ms and {second.published:g} % at "
            f"{second.cell.one_way_delay_ms} ms."
            for first, second in pairwise(curve)
            if second.published > first.published
        ]
    clean = {
        (each.cell.one_way_delay_ms, each.cell.large_windows): each.published
        for each in measurements
        if each.cell.row == "0"
    }
    above = [
        each.published - clean[each.cell.one_way_delay_ms, each.cell.large_windows]
        for each in measurements
        if (each.cell.one_way_delay_ms, each.cell.large_windows) in clean
    ]
    above = [excess for excess in above if excess > 0]
    if above:
        texts.append(
            f"{len(above)} published cells with bit errors are above the cell without errors at "
            f"the same delay, by up to {number(max(above))} points: that much the table "
            "itself is uncertain at its best."
        )
    return texts


def _linux(comparison: Comparison) -> list[str]:
    by_row = comparison.mean_absolute_error_by_row
    rows = ", ".join(f"{number(by_row[row])} at {row}" for row in BIT_ERROR_RATES)
    gains = [each for each in comparison.measurements if each.error is not None]
    summary = (
        f"Mean absolute difference from the published table: "
        f"{number(comparison.mean_absolute_error)} points ({rows})."
    )
    if gains:
        highest = max(gains, key=lambda each: each.error or 0.0)
        lowest = min(gains, key=lambda each: each.error or 0.0)
        summary += (
            f" Highest above it: {_name(highest)}, {number(highest.measured)} % for "
            f"{number(highest.published)} %. Lowest: {_name(lowest)}, "
            f"{number(lowest.measured)} % for {number(lowest.published)} %."
        )
    return [
        _html.paragraph(_LINUX_TEXT),
        _html.paragraph(summary),
        _html.figure(
            _curves(comparison),
            name="utilization linux",
            caption=f"Linux, up to 100 ms with large windows alone. {_CURVES_CAPTION}",
        ),
        _cells_table(
            comparison, "Profile linux. Error here means the difference.", emphasize=False
        ),
    ]


def _cells_table(comparison: Comparison, caption: str, *, emphasize: bool) -> str:
    rows, starts = [], []
    for i, each in enumerate(comparison.measurements):
        if i == 0 or each.cell.row != comparison.measurements[i - 1].cell.row:
            starts.append(i)
        emphasis = "*" if emphasize and each.stands_out else ""
        rows.append(
            [
                each.cell.row,
                str(each.cell.one_way_delay_ms),
                each.cell.large_windows,
                number(each.published),
                number(each.measured),
                f"{emphasis}{number(each.error, sign=True)}",
                number(each.stdev),
                number(each.standard_error),
                str(each.runs),
            ]
        )
    return _html.table(caption, _COLUMNS, rows, text_columns=3, group_starts=starts)


def _curves(comparison: Comparison, small_windows: Sequence[Measurement] = ()) -> Figure:
    """Draw utilization over delay: a panel for each bit error rate, a line for each window.

    ``small_windows`` take the place of the cells with one published figure on the line of the 64 KB
    windows.
    """
    instead = {(each.cell.row, each.cell.one_way_delay_ms): each for each in small_windows}
    figure, panels = new_figure(2, 2, height_in=5.4)
    for axes, row in zip(panels, BIT_ERROR_RATES, strict=True):
        for colour, (label, windows) in zip(PALETTE, _WINDOWS.items(), strict=False):
            cells = [each for each in comparison.row(row) if each.cell.large_windows in windows]
            if "no" in windows:
                cells = [instead.get((row, each.cell.one_way_delay_ms), each) for each in cells]
            _curve(axes, cells, label, colour)
        title = "no bit errors" if row == "0" else f"bit error rate {row}"
        axes.text(0.03, 0.06, title, transform=axes.transAxes, fontsize=10, color=INK)
        axes.set_ylim(0, 100)
        axes.label_outer()
    for axes in panels[::2]:
        axes.set_ylabel("Channel utilization [%]")
    for axes in panels[-2:]:
        axes.set_xlabel("One-way delay [ms]")
    add_legend(panels[0])
    return figure


def _curve(axes: Axes, cells: Sequence[Measurement], label: str, colour: str) -> None:
    delays_ms = [each.cell.one_way_delay_ms for each in cells]
    means = [math.nan if each.measured is None else each.measured for each in cells]
    spread = [each.stdev or 0.0 for each in cells]
    # Drawn with its cap at 100 %: one deviation above the mean may lie beyond what is possible.
    axes.fill_between(
        delays_ms,
        [mean - stdev for mean, stdev in zip(means, spread, strict=True)],
        [min(mean + stdev, 100.0) for mean, stdev in zip(means, spread, strict=True)],
        color=colour,
        alpha=0.2,
        linewidth=0,
    )
    axes.plot(delays_ms, means, color=colour, label=label)
    axes.plot(
        delays_ms,
        [each.published for each in cells],
        linestyle="none",
        marker="o",
        markersize=5,
        markerfacecolor="none",
        markeredgecolor=colour,
        markeredgewidth=1.3,
    )


def _name(each: Measurement) -> str:
    windows = {"yes": ", large windows", "no": ", 64 KB windows", "both": ""}
    return f"{each.cell.row}, {each.cell.one_way_delay_ms} ms{windows[each.cell.large_windows]}"


def _against(each: Measurement) -> str:
    text = (
        f"published {number(each.published)} %, measured {number(each.measured)} %, "
        f"error {number(each.error, sign=True)} points"
    )
    if each.stdev and each.error is not None:
        text += f", {abs(each.error) / each.stdev:.1f} standard deviations of one transfer"
    return text
