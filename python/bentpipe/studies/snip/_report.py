"""The study's report: tables, figures, and what they say, in words made from the figures."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from bentpipe.report import html as _html
from bentpipe.report.style import INK, MUTED, PALETTE, add_legend, new_figure
from bentpipe.scenario.framings import frame_bits, plan_framing
from bentpipe.studies._common import number
from bentpipe.studies.snip._facts import FITTED_WINDOWS
from bentpipe.studies.snip._report_aggregation import section as aggregation_section
from bentpipe.studies.snip.study import Cell, SnipOutcome
from bentpipe.units import parse_rate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_UDP_IP_HEADER_BYTES: Final = 28
# Well within what rounding to a tenth of a Mbit/s and searching by hand explain.
_CLOSE_PERCENT: Final = 2.0
_CANDIDATES: Final[tuple[tuple[str, dict[str, object]], ...]] = (
    ("ppp", {"fcs": 16, "payload": "iperf"}),
    ("ppp", {"fcs": 32, "payload": "iperf"}),
    ("ppp", {"fcs": 32, "payload": "random"}),
    ("ethernet", {}),
    ("gse", {}),
    ("mpe", {}),
    ("aal5", {}),
)
_BASES: Final = (
    "input: the note's own number was put in, and the measurement gives it back. It shows that "
    "simulator and search do what they say, and nothing about the SnIP.",
    "calibrated: the same with the one constant of the table.",
    "fitted: something that the note leaves open was chosen for this figure, as its remark says.",
    "predicted: none of these.",
)
_UNSAID: Final = (
    "The buffers before the processor and in the modem. 50 packets each here: in ten seconds they "
    "hide up to 0.2 % above the rate that lasts.",
    "The framing on the link, chosen below.",
    "How finely the rate was searched, for how long, and which loss counted as none. Here: to "
    "0.25 %, ten seconds (iperf's default), and not one packet.",
    "The TCP hosts, their windows and how long they sent. Here: bsd-1997 hosts and 60 s.",
    "How the processor divides its time between the directions. Here they take turns.",
)


def study_report(outcome: SnipOutcome) -> str:
    """Return the report as HTML; the same outcome gives the same bytes."""
    configuration = outcome.configuration
    facts = f"bentpipe {configuration['bentpipe_version']}; no figure draws chance: one run each"
    parts = [
        _html.paragraph(
            "Published: the technical note of the SnIP, an interface between local network and "
            "satellite modem. With iperf it finds the largest UDP rate at which no packet is "
            "dropped, for 15 packet sizes, routing, on a modem at 29.52 Mbit/s. Measured: the "
            "same search (bentpipe search no-drop) with one scenario for all rows, made before the "
            "published figures are read."
        )
    ]
    if outcome.interrupted:
        text = "The study was interrupted: the figures are those that were found by then."
        parts.append(_html.paragraph(text, notice=True))
    parts += [
        _html.heading("In short"),
        _html.bullets(_in_short(outcome)),
        *_curves(outcome),
        _html.heading("Published beside measured"),
        _cells_table(outcome.cells),
        _html.heading("What agrees, and what does not"),
        _html.bullets(_agreement(outcome.cells)),
        _html.heading("The note's other figures"),
        _facts_table(outcome),
        _html.paragraph("What a basis means:"),
        _html.bullets(_BASES),
        *_crossover(outcome),
        *_directions(outcome),
        *_windows(outcome),
        *_sharing(outcome),
        *aggregation_section(outcome),
        _html.heading("Chosen to fit"),
        *_fitted(outcome),
        _html.heading("What the source leaves unsaid"),
        _html.bullets(_UNSAID),
        _html.heading("What was run"),
        _html.details("Configuration", json.dumps(configuration, indent=2)),
    ]
    title = "SnIP: UDP rate without loss over packet size, and TCP over a satellite hop"
    return _html.page(title, facts, *parts)


def _in_short(outcome: SnipOutcome) -> list[str]:
    summary = outcome.summary()
    misses = summary["misses"]
    return [
        f"Rates of the table: mean error {number(summary['mean_error_percent'], 2)} %, largest "
        f"{number(summary['max_error_percent'], 2)} %, with one calibrated constant for all rows.",
        "Without it, at the note's round figure of 6,000 packets a second: "
        f"{number(summary['mean_error_percent_at_round_figure'], 2)} % and "
        f"{number(summary['max_error_percent_at_round_figure'], 2)} %.",
        f"Packets a second: mean error {number(summary['mean_pps_error_percent'], 2)} %, largest "
        f"{number(summary['max_pps_error_percent'], 2)} %.",
        f"Further off than {summary['tolerance_percent']:g} % of what was published: "
        f"{', '.join(misses) if misses else 'no row and no other figure'}.",
    ]


# --- the table ----------------------------------------------------------------------------------


def _curves(outcome: SnipOutcome) -> list[str]:
    rates, packets = _panel("Payload [Mbit/s]"), _panel("Packets [1/s]")
    sizes = [cell.packet_bytes for cell in outcome.cells]
    published = [cell.published for cell in outcome.cells]
    _line(rates[1], sizes, [cell.measured_mbps for cell in outcome.cells], "measured")
    _dots(rates[1], sizes, [row.rate_mbps for row in published])
    _line(packets[1], sizes, [cell.measured_pps for cell in outcome.cells], "measured")
    _dots(packets[1], sizes, [row.packets_per_second for row in published])
    for _, axes in (rates, packets):
        _finish(axes, "UDP payload [bytes]")
    return [
        _html.heading("Curves"),
        _html.figure(
            rates[0],
            name="rate",
            caption="Rate without a loss over packet size: the packet rate binds for small "
            "packets, the channel for large ones.",
        ),
        _html.figure(
            packets[0], name="packet rate", caption="The same in packets a second over packet size."
        ),
    ]


def _cells_table(cells: Sequence[Cell]) -> str:
    columns = (
        ("payload", "bytes"),
        ("published", "Mbit/s"),
        ("measured", "Mbit/s"),
        ("error", "%"),
        ("published", "packets/s"),
        ("measured", "packets/s"),
        ("error", "%"),
        ("at 6,000 packets/s", "Mbit/s"),
        ("error", "%"),
        ("limit", "published"),
        ("limit", "measured"),
    )
    rows = [
        [
            str(cell.packet_bytes),
            f"{cell.published.rate_mbps:g}",
            number(cell.measured_mbps, 2),
            f"{'*' if cell.miss else ''}{number(cell.error_percent, 2, sign=True)}",
            number(cell.published.packets_per_second, 0),
            number(cell.measured_pps, 0),
            number(cell.pps_error_percent, 2, sign=True),
            number(cell.round_figure_mbps, 2),
            number(cell.round_figure_error_percent, 2, sign=True),
            cell.published.limit,
            cell.measured_limit or "-",
        ]
        for cell in cells
    ]
    caption = "Rates in Mbit/s of UDP payload, as iperf -b counts. Bold: further off than 10 %."
    return _html.table(caption, columns, rows)


def _agreement(cells: Sequence[Cell]) -> list[str]:
    measured = [cell for cell in cells if cell.error_percent is not None]
    close = [cell for cell in measured if abs(cell.error_percent or 0.0) <= _CLOSE_PERCENT]
    texts = [f"{len(close)} of {len(measured)} rates within {_CLOSE_PERCENT:g} %."]
    same = sum(cell.measured_limit == cell.published.limit for cell in measured)
    texts.append(f"What limits is the same in {same} of {len(measured)} rows.")
    texts += [
        f"{cell.packet_bytes} bytes: published {cell.published.rate_mbps:g} Mbit/s, measured "
        f"{number(cell.measured_mbps, 2)}, error {number(cell.error_percent, 1, sign=True)} %."
        for cell in measured
        if abs(cell.error_percent or 0.0) > _CLOSE_PERCENT
    ]
    bound = [c.published.packets_per_second for c in cells if c.published.limit == "packet rate"]
    low, high = min(bound), max(bound)
    texts.append(
        f"The published packets a second scatter from {low:,.0f} to {high:,.0f} without a trend "
        f"in size. No single constant comes closer than {100 * (high - low) / (high + low):.1f}"
        " % to both; a processor whose cost grew with the size would not either."
    )
    return texts


# --- the other figures --------------------------------------------------------------------------


def _facts_table(outcome: SnipOutcome) -> str:
    columns = (
        ("quantity", ""),
        ("unit", ""),
        ("basis", ""),
        ("remark", ""),
        ("published", ""),
        ("measured", ""),
        ("error", "%"),
    )
    rows = [
        [
            fact.quantity,
            fact.unit,
            fact.finding.basis,
            f"Miss. {fact.finding.reason}" if fact.miss else fact.finding.reason,
            f"{fact.published:g}",
            number(fact.finding.measured, 1),
            f"{'*' if fact.miss else ''}{number(fact.error_percent, 1, sign=True)}",
        ]
        for fact in outcome.facts
    ]
    return _html.table("Bold: further off than 10 %.", columns, rows, text_columns=4)


def _crossover(outcome: SnipOutcome) -> list[str]:
    crossover = outcome.measured.crossover
    (fact,) = (fact for fact in outcome.facts if fact.unit == "byte")
    if crossover is None:
        return []
    layers = (
        ("UDP payload", float(crossover.payload_bytes)),
        ("IP packet", float(crossover.ip_bytes)),
        ("on the link", crossover.link_bytes),
    )
    rows = [
        [
            layer,
            f"{fact.published:g}",
            number(size, 1),
            number(100 * (size / fact.published - 1), 1, sign=True),
        ]
        for layer, size in layers
    ]
    text = (
        "The smallest packet for which a modem at 4 Mbit/s, and not the processor, is the limit, "
        "by a search over sizes. The source does not say at which layer it counts. It agrees best "
        "as a size on the link, a reading that was chosen with the figure in sight: as a payload, "
        "which is what the table counts, it would be off by the first row's error."
    )
    columns = (("counted as", ""), ("published", "bytes"), ("measured", "bytes"), ("error", "%"))
    return [
        _html.heading("From which size a modem at 4 Mbit/s is the limit"),
        _html.paragraph(text),
        _html.table("The same packet at three layers.", columns, rows),
    ]


def _directions(outcome: SnipOutcome) -> list[str]:
    duplex = outcome.measured.duplex
    if not duplex:
        return []
    figure, axes = _panel("Delivered [packets/s]")
    offered = [each.offered for each in duplex]
    _line(axes, offered, [each.forward for each in duplex], "forward")
    axes.plot(
        offered,
        [each.backward for each in duplex],
        color=PALETTE[1],
        linestyle="none",
        marker="x",
        label="return",
    )
    axes.plot(offered, offered, color=MUTED, linestyle=":", linewidth=1, label="offered")
    _finish(axes, "Offered in each direction [packets/s]")
    return [
        _html.heading("Both directions at once"),
        _html.figure(
            figure,
            name="duplex",
            caption="iperf -d with 200 bytes: from half the packet rate on, each direction has "
            "half.",
        ),
    ]


def _windows(outcome: SnipOutcome) -> list[str]:
    tcp_bps = outcome.measured.tcp_bps
    if not tcp_bps:
        return []
    figure, axes = _panel("Goodput [kbit/s]")
    windows_kb = [window / 1e3 for window in tcp_bps]
    _line(axes, windows_kb, [bps / 1e3 for bps in tcp_bps.values()], "measured", marker="o")
    facts = {fact.quantity: fact for fact in outcome.facts}
    rows = []
    for quantity, window in FITTED_WINDOWS.items():
        published = facts[quantity].published
        axes.axhline(published, color=PALETTE[1], linestyle="--", linewidth=1)
        label = quantity.rpartition("; ")[2]
        axes.text(1, published, f"published, {label}", va="bottom", color=INK)
        rows.append([label, f"{window:,}", f"{published:g}", number(_kbps(tcp_bps, window), 0)])
    _finish(axes, "Receive window [kB]")
    text = (
        "A window W on a hop with a round trip of half a second carries W / RTT. With what hosts "
        "had without tuning, 16 to 64 KB, that is the range that the note reports, and the most "
        "without window scaling is the highest that it saw. 8,760 bytes would be below that range. "
        "How a window falls into bursts matters too: one whose last segment has no partner waits "
        "up to 200 ms for the delayed ACK, each round anew. 16,384 bytes give "
        f"{number(_kbps(tcp_bps, 16_384), 0)} kbit/s and 17,520 bytes, one segment more, "
        f"{number(_kbps(tcp_bps, 17_520), 0)}; when each segment is acknowledged at once, tried "
        "apart, all windows come within 5 % of W / RTT."
    )
    columns = (("figure", ""), ("window", "bytes"), ("published", "kbit/s"), ("measured", "kbit/s"))
    return [
        _html.heading("TCP over one satellite hop"),
        _html.paragraph(text),
        _html.figure(figure, name="windows", caption="Goodput of 60 s over the receive window."),
        _html.table("The windows that come nearest to the note's figures.", columns, rows),
    ]


def _kbps(tcp_bps: Mapping[int, float], window: int) -> float | None:
    bps = tcp_bps.get(window)
    return None if bps is None else bps / 1e3


def _sharing(outcome: SnipOutcome) -> list[str]:
    sharing = outcome.measured.sharing
    if not sharing:
        return []
    rows = [
        [
            str(terminals),
            number(found.rates[0].packets_per_second, 0),
            number(found.rates[0].aggregate_packets_per_second, 0),
        ]
        for terminals, found in sharing.items()
    ]
    columns = (("terminals", ""), ("each", "packets/s"), ("all", "packets/s"))
    return [
        _html.heading("Point to multipoint"),
        _html.paragraph(
            "The note describes one hub for several terminals and gives no figure. One flow of 200 "
            "bytes to each, equal rates: the hub's processor is what they share, and those of the "
            "terminals have time to spare."
        ),
        _html.table("Largest rate without a loss.", columns, rows),
    ]


# --- what was chosen ----------------------------------------------------------------------------


def _fitted(outcome: SnipOutcome) -> list[str]:
    scenario = outcome.configuration["scenario"]
    link_bps = parse_rate(scenario["link"]["forward"]["rate"])
    constant = scenario["gateways"]["hub"]["processor"]["packets_per_second"]
    channel = [cell for cell in outcome.cells if cell.published.limit == "channel"]
    beyond = [
        cell.packet_bytes * (link_bps / 1e6 / cell.published.rate_mbps - 1) - _UDP_IP_HEADER_BYTES
        for cell in channel
    ]
    over = [
        cell.packet_bytes
        for cell in channel
        if cell.published.packets_per_second * 8 * (cell.packet_bytes + _UDP_IP_HEADER_BYTES)
        > link_bps
    ]
    rows = _framing_rows(channel, link_bps)
    columns = (
        ("framing", ""),
        ("mean error", "%"),
        *((f"{cell.packet_bytes} bytes", "error, %") for cell in channel),
    )
    texts = (
        f"The processor's {constant:,} packets a second: the mean of the published packets a "
        "second over the rows limited by packet rate, for all of them alike.",
        "The framing: the published rates leave a packet "
        f"{min(beyond):.1f} to {max(beyond):.1f} bytes beyond UDP and IP. PPP in HDLC-like framing "
        "with a check of 32 bits takes 9 (7 with 16 bits) and is what a synchronous serial modem "
        "carries; iperf's digits stuff no bits. GSE comes closer in the table below, but it frames "
        "for the base band of DVB-S2, which a modem with a serial interface does not have. Part of "
        "the rest may be rounding: published rates are steps of 0.1 Mbit/s that passed, so the "
        "true ones lie above them.",
        "The published packets a second of the rows "
        f"{', '.join(map(str, over))} cannot pass at all: with UDP and IP headers alone they would "
        f"need more than the modem's {link_bps / 1e6:g} Mbit/s. The rates do fit, so the rates are "
        "what is compared; the errors of the packets a second there are the note's own discord.",
    )
    caption = (
        "Rates that framings allow on a full channel, against the published rows limited by it."
    )
    return [_html.bullets(texts), _html.table(caption, columns, rows)]


def _framing_rows(channel: Sequence[Cell], link_bps: int) -> list[list[str]]:
    """Compare what framings allow on a full channel with the published rows that it limits."""
    rows = []
    for kind, options in _CANDIDATES:
        framing = plan_framing(kind, options)
        errors = []
        for cell in channel:
            bits = frame_bits(framing, cell.packet_bytes + _UDP_IP_HEADER_BYTES)
            rate_mbps = link_bps / 1e6 * 8 * cell.packet_bytes / bits
            errors.append(100 * (rate_mbps / cell.published.rate_mbps - 1))
        named = ", ".join(f"{name} {value}" for name, value in options.items())
        mean = sum(map(abs, errors)) / len(errors)
        rows.append(
            [f"{kind} ({named})" if named else kind, number(mean, 2)]
            + [number(error, 2, sign=True) for error in errors]
        )
    return rows


# --- drawing ------------------------------------------------------------------------------------


def _panel(label: str) -> tuple[Figure, Axes]:
    figure, (axes,) = new_figure(1, 1, height_in=3.2)
    axes.set_ylabel(label)
    return figure, axes


def _finish(axes: Axes, label: str) -> None:
    """Name what is on the abscissa and start both axes at zero, once everything is drawn."""
    axes.set_xlabel(label)
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    add_legend(axes)


def _line(
    axes: Axes,
    x: Sequence[float],
    values: Sequence[float | None],
    label: str,
    marker: str | None = None,
) -> None:
    drawn = [math.nan if value is None else value for value in values]
    axes.plot(x, drawn, color=PALETTE[0], label=label, marker=marker, markersize=4)


def _dots(axes: Axes, x: Sequence[float], values: Sequence[float]) -> None:
    axes.plot(
        x,
        values,
        linestyle="none",
        marker="o",
        markersize=5,
        markerfacecolor="none",
        markeredgecolor=PALETTE[1],
        markeredgewidth=1.3,
        label="published",
    )
