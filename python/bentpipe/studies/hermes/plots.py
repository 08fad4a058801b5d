"""The report's figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from bentpipe.report.style import INK, MUTED, PALETTE, add_legend, new_figure
from bentpipe.studies.base.plots import plot_samples
from bentpipe.studies.base.samples import Samples
from bentpipe.studies.hermes import compare, network
from bentpipe.studies.hermes.network import Case, Found
from bentpipe.studies.hermes.streams import PARTICIPANTS, RATES_KBPS, ConferenceCase
from bentpipe.studies.hermes.transfers import (
    ASSUMED_LOAD,
    NONE,
    ROUND_TRIPS_MS,
    SESSIONS,
    SIZES_BYTES,
    WINDOWS_BYTES,
    Asymmetry,
    FetchCase,
    IdealPathCase,
    LongTransferCase,
    SessionsCase,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_WINDOWS: Final = {"8 KB": network.DEFAULT_WINDOW_BYTES, "64 KB": network.TUNED_WINDOW_BYTES}
_MARKS: Final[dict[str, Any]] = {
    "linestyle": "none",
    "markersize": 5,
    "markerfacecolor": "none",
    "markeredgewidth": 1.3,
}

Points = Mapping[str, float]


def window_figure(found: Found, published: Points) -> Figure:
    """Draw goodput over window: the bound as lines, the simulation as marks."""
    figure, (axes,) = new_figure(1, 1, height_in=4.0)
    sizes_kib = [window_bytes / 1024 for window_bytes in WINDOWS_BYTES]
    for colour, round_trip_ms in zip(PALETTE, ROUND_TRIPS_MS, strict=False):
        ideal = [IdealPathCase(window_bytes, round_trip_ms) for window_bytes in WINDOWS_BYTES]
        bounds = [case.bound_bps / 1e6 for case in ideal]
        axes.plot(sizes_kib, bounds, color=colour, label=f"window / {round_trip_ms} ms")
        goodputs = _line(found, ideal, "goodput_bps", 1e6)
        plot_samples(axes, sizes_kib, goodputs, color=colour, marker="o", **_MARKS)
    cases = [LongTransferCase(window_bytes) for window_bytes in WINDOWS_BYTES]
    goodputs = _line(found, cases, "goodput_bps", 1e6)
    style = {"label": "on the network", "marker": "D", **_MARKS}
    plot_samples(axes, sizes_kib, goodputs, color=PALETTE[3], **style)
    limit = published[compare.TCP_LIMIT]
    axes.plot([64], [limit], color=INK, label="published", marker="x", **_MARKS)
    axes.set_xscale("log", base=2)
    axes.set(yscale="log", xlabel="Window [KiB]", ylabel="Goodput [Mbit/s]")
    axes.set_yticks([0.1, 1, 10], ["0.1", "1", "10"])
    axes.set_xticks(sizes_kib, [f"{size_kib:.0f}" for size_kib in sizes_kib])
    add_legend(axes)
    return figure


def file_figure(found: Found, published: Points) -> Figure:
    """Draw the throughput of a file over its size."""
    figure, (axes,) = new_figure(1, 1, height_in=3.6)
    sizes_kb = [size_bytes / 1e3 for size_bytes in SIZES_BYTES]
    for colour, (name, window) in zip(PALETTE, _WINDOWS.items(), strict=False):
        for mss, style in ((network.MSS_BYTES, "-"), (network.LARGE_MSS_BYTES, "--")):
            cases = [FetchCase(size_bytes, window, mss) for size_bytes in SIZES_BYTES]
            rates = _line(found, cases, "throughput_bps", 1e3)
            label = f"{name}, MSS {mss} B"
            plot_samples(axes, sizes_kb, rates, color=colour, linestyle=style, label=label)
        rate = published[compare.HTTP[window]]
        axes.plot([network.IMAGE_BYTES / 1e3], [rate], color=colour, marker="o", **_MARKS)
    axes.set(xscale="log", xlabel="File [kB]", ylabel="Throughput [kbit/s]")
    axes.set_xticks([10, 100, 1000], ["10", "100", "1000"])
    axes.set_ylim(bottom=0)
    add_legend(axes)
    return figure


def session_figure(found: Found, asymmetry: Asymmetry, published: Points) -> Figure:
    """Draw the goodput of all sessions over their number."""
    figure, (axes,) = new_figure(1, 1, height_in=3.8)
    for colour, (name, window) in zip(PALETTE, _WINDOWS.items(), strict=False):
        for load, style, words in ((NONE, "-", ""), (ASSUMED_LOAD, "--", ", with images")):
            cases = [SessionsCase(sessions, window, load) for sessions in SESSIONS]
            rates = _line(found, cases, "goodput_bps", 1e6)
            label = f"{name}{words}"
            plot_samples(axes, SESSIONS, rates, color=colour, linestyle=style, label=label)
    for text, bound_bps in (("carrier", asymmetry.carrier_bps), ("ISDN", asymmetry.isdn_bps)):
        axes.axhline(bound_bps / 1e6, color=MUTED, linestyle=":", linewidth=1)
        axes.text(SESSIONS[-1], bound_bps / 1e6, f"{text} full", ha="right", va="bottom", color=INK)
    limit = published[compare.SESSIONS_MAX]
    axes.axhline(limit, color=INK, linewidth=0.8)
    axes.text(SESSIONS[0], limit, "published", va="bottom", color=INK)
    axes.set(xlim=(0.5, SESSIONS[-1] + 0.5), xlabel="Sessions", ylabel="Goodput [Mbit/s]")
    axes.set_ylim(bottom=0)
    add_legend(axes)
    return figure


def conference_figure(found: Found) -> Figure:
    """Draw what a receiver gets of each stream, and the loss, over the participants."""
    figure, panels = new_figure(2, 1, height_in=5.0)
    lines = (("received_bps_a_stream", 1e3), ("loss_percent", 1))
    for colour, rate_kbps in zip(PALETTE, RATES_KBPS, strict=False):
        for copies, style in (("each", "-"), ("one", "--")):
            cases = [ConferenceCase(count, rate_kbps, copies) for count in PARTICIPANTS]
            label = f"each sends {rate_kbps} kbit/s" if copies == "each" else None
            for axes, (name, unit) in zip(panels, lines, strict=True):
                values = _line(found, cases, name, unit)
                plot_samples(axes, PARTICIPANTS, values, color=colour, linestyle=style, label=label)
    limits = (0, 1.1 * RATES_KBPS[-1])
    panels[0].set(ylim=limits, ylabel="Received of a stream [kbit/s]")
    panels[1].set(ylabel="Lost [%]", xlabel="Participants")
    add_legend(panels[0])
    return figure


def _line(found: Found, cases: Sequence[Case], figure: str, unit: float) -> list[Samples]:
    return [found.samples(case, figure, unit) for case in cases]
