"""The report's figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from bentpipe.report.style import INK, MUTED, PALETTE, add_legend, new_figure
from bentpipe.studies.base.plots import plot_samples
from bentpipe.studies.hermes.compare import HTTP, SESSIONS_MAX, TCP_LIMIT
from bentpipe.studies.hermes.conference import PARTICIPANTS, RATES_KBPS, ConferenceCase
from bentpipe.studies.hermes.network import (
    DEFAULT_WINDOW_BYTES,
    IMAGE_BYTES,
    LARGE_MSS_BYTES,
    MSS_BYTES,
    TUNED_WINDOW_BYTES,
    Found,
)
from bentpipe.studies.hermes.sessions import ASSUMED_LOAD, NONE, SESSIONS, Asymmetry, SessionsCase
from bentpipe.studies.hermes.transfers import (
    ROUND_TRIPS_MS,
    SIZES_BYTES,
    WINDOWS_BYTES,
    FetchCase,
    IdealPathCase,
    LongTransferCase,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_WINDOWS: Final = {"8 KB": DEFAULT_WINDOW_BYTES, "64 KB": TUNED_WINDOW_BYTES}
_WINDOWS_KIB: Final = [window_bytes / 1024 for window_bytes in WINDOWS_BYTES]

Points = Mapping[str, float]


def window_figure(found: Found, published: Points) -> Figure:
    """Draw goodput over window: the bound as lines, the simulation as marks."""
    figure, (axes,) = new_figure(1, 1, height_in=4.0)
    for colour, round_trip_ms in zip(PALETTE, ROUND_TRIPS_MS, strict=False):
        cases = [IdealPathCase(window_bytes, round_trip_ms) for window_bytes in WINDOWS_BYTES]
        bounds = [case.bound_bps / 1e6 for case in cases]
        axes.plot(_WINDOWS_KIB, bounds, color=colour, label=f"window / {round_trip_ms} ms")
        goodputs = [found.samples(case, "goodput_bps", 1e6) for case in cases]
        plot_samples(axes, _WINDOWS_KIB, goodputs, color=colour, **_marks("o"))
    network = [found.samples(LongTransferCase(size), "goodput_bps", 1e6) for size in WINDOWS_BYTES]
    plot_samples(
        axes, _WINDOWS_KIB, network, color=PALETTE[3], label="on the network", **_marks("D")
    )
    axes.plot([64], [published[TCP_LIMIT]], color=INK, label="published", **_marks("x"))
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_yticks([0.1, 1, 10], ["0.1", "1", "10"])
    axes.set_xticks(_WINDOWS_KIB, [f"{size_kib:.0f}" for size_kib in _WINDOWS_KIB])
    axes.set_xlabel("Window [KiB]")
    axes.set_ylabel("Goodput [Mbit/s]")
    add_legend(axes)
    return figure


def file_figure(found: Found, published: Points) -> Figure:
    """Draw the throughput of a file over its size."""
    figure, (axes,) = new_figure(1, 1, height_in=3.6)
    sizes_kb = [size_bytes / 1e3 for size_bytes in SIZES_BYTES]
    for colour, (name, window_bytes) in zip(PALETTE, _WINDOWS.items(), strict=False):
        for mss_bytes, style in ((MSS_BYTES, "-"), (LARGE_MSS_BYTES, "--")):
            cases = [FetchCase(size_bytes, window_bytes, mss_bytes) for size_bytes in SIZES_BYTES]
            rates = [found.samples(case, "throughput_bps", 1e3) for case in cases]
            label = f"{name}, MSS {mss_bytes} B"
            plot_samples(axes, sizes_kb, rates, color=colour, linestyle=style, label=label)
        axes.plot([IMAGE_BYTES / 1e3], [published[HTTP[window_bytes]]], color=colour, **_marks("o"))
    axes.set_xscale("log")
    axes.set_xticks([10, 100, 1000], ["10", "100", "1000"])
    axes.set_ylim(bottom=0)
    axes.set_xlabel("File [kB]")
    axes.set_ylabel("Throughput [kbit/s]")
    add_legend(axes)
    return figure


def session_figure(found: Found, asymmetry: Asymmetry, published: Points) -> Figure:
    """Draw the goodput of all sessions over their number."""
    figure, (axes,) = new_figure(1, 1, height_in=3.8)
    for colour, (name, window_bytes) in zip(PALETTE, _WINDOWS.items(), strict=False):
        for load, style, label in (
            (NONE, "-", name),
            (ASSUMED_LOAD, "--", f"{name}, with images"),
        ):
            cases = [SessionsCase(sessions, window_bytes, load) for sessions in SESSIONS]
            rates = [found.samples(case, "goodput_bps", 1e6) for case in cases]
            plot_samples(axes, SESSIONS, rates, color=colour, linestyle=style, label=label)
    for text, bound_bps in (("carrier", asymmetry.carrier_bps), ("ISDN", asymmetry.isdn_bps)):
        axes.axhline(bound_bps / 1e6, color=MUTED, linestyle=":", linewidth=1)
        axes.text(SESSIONS[-1], bound_bps / 1e6, f"{text} full", ha="right", va="bottom", color=INK)
    axes.axhline(published[SESSIONS_MAX], color=INK, linewidth=0.8)
    axes.text(SESSIONS[0], published[SESSIONS_MAX], "published", va="bottom", color=INK)
    axes.set_xlim(0.5, SESSIONS[-1] + 0.5)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("Sessions")
    axes.set_ylabel("Goodput [Mbit/s]")
    add_legend(axes)
    return figure


def conference_figure(found: Found) -> Figure:
    """Draw what a receiver gets of each stream, and the loss, over the participants."""
    figure, panels = new_figure(2, 1, height_in=5.0)
    for colour, rate_kbps in zip(PALETTE, RATES_KBPS, strict=False):
        for copies, style in (("each", "-"), ("one", "--")):
            cases = [ConferenceCase(count, rate_kbps, copies) for count in PARTICIPANTS]
            label = f"each sends {rate_kbps} kbit/s" if copies == "each" else None
            for axes, (name, unit) in zip(
                panels, (("received_bps_a_stream", 1e3), ("loss_percent", 1)), strict=True
            ):
                values = [found.samples(case, name, unit) for case in cases]
                plot_samples(axes, PARTICIPANTS, values, color=colour, linestyle=style, label=label)
    panels[0].set_ylim(0, 1.1 * RATES_KBPS[-1])
    panels[0].set_ylabel("Received of a stream [kbit/s]")
    panels[1].set_ylabel("Lost [%]")
    panels[1].set_xlabel("Participants")
    add_legend(panels[0])
    return figure


def _marks(marker: str) -> dict[str, Any]:
    return {
        "linestyle": "none",
        "marker": marker,
        "markersize": 5,
        "markerfacecolor": "none",
        "markeredgewidth": 1.3,
    }
