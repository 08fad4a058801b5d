"""The report's figures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from bentpipe.report.style import INK, MUTED, PALETTE, add_legend, new_figure
from bentpipe.studies.hermes import _conference, _fetches, _windows
from bentpipe.studies.hermes._conference import RATES_KBPS, ConferenceCase
from bentpipe.studies.hermes._fetches import FetchCase
from bentpipe.studies.hermes._network import (
    DEFAULT_WINDOW_BYTES,
    IMAGE_BYTES,
    LARGE_MSS_BYTES,
    MSS_BYTES,
    TUNED_WINDOW_BYTES,
    Case,
    Found,
)
from bentpipe.studies.hermes._rows import Cell
from bentpipe.studies.hermes._sessions import ASSUMED, SESSIONS, Asymmetry, SessionsCase
from bentpipe.studies.hermes._windows import WindowCase

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_WINDOWS: Final = {"8 KB": DEFAULT_WINDOW_BYTES, "64 KB": TUNED_WINDOW_BYTES}
# The quantities of the source that have a place in a figure.
_TCP_LIMIT: Final = "TCP limit with a 64 KB window"
_HTTP: Final = {
    "8 KB": "HTTP throughput with the default 8 KB window",
    "64 KB": "HTTP throughput measured with a 64 KB window",
}
_SESSIONS_MAX: Final = "maximum TCP throughput with several sessions on one client"

Points = Mapping[str, float]


def points(cells: Sequence[Cell]) -> Points:
    """Return the published values by quantity; a range has no point."""
    return {
        cell.published.quantity: cell.published.value
        for cell in cells
        if isinstance(cell.published.value, float)
    }


def windows(found: Found, published: Points) -> Figure:
    """Draw goodput over window: the bound as lines, the simulation as marks."""
    figure, (axes,) = new_figure(1, 1, height_in=4.0)
    for colour, round_trip_ms in zip(PALETTE, _windows.ROUND_TRIPS_MS, strict=False):
        cases = [WindowCase(window_bytes, round_trip_ms) for window_bytes in _windows.WINDOWS_BYTES]
        bounds = [(case.bound_bps or 0) / 1e6 for case in cases]
        axes.plot(_kib(cases), bounds, color=colour, label=f"window / {round_trip_ms} ms")
        axes.plot(
            _kib(cases),
            _mbps(found, cases, "goodput_bps"),
            **_marks(colour, "o"),
        )
    network = [WindowCase(window_bytes, None) for window_bytes in _windows.WINDOWS_BYTES]
    values = _mbps(found, network, "goodput_bps")
    axes.plot(_kib(network), values, label="on the network", **_marks(PALETTE[3], "D"))
    if _TCP_LIMIT in published:
        axes.plot([64], [published[_TCP_LIMIT]], label="published", **_marks(INK, "x"))
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_yticks([0.1, 1, 10], ["0.1", "1", "10"])
    axes.set_xticks(_kib(network), [f"{size_kib:.0f}" for size_kib in _kib(network)])
    axes.set_xlabel("Window [KiB]")
    axes.set_ylabel("Goodput [Mbit/s]")
    add_legend(axes)
    return figure


def files(found: Found, published: Points) -> Figure:
    """Draw the throughput of a file over its size."""
    figure, (axes,) = new_figure(1, 1, height_in=3.6)
    for colour, (label, window_bytes) in zip(PALETTE, _WINDOWS.items(), strict=False):
        for mss_bytes, style in ((MSS_BYTES, "-"), (LARGE_MSS_BYTES, "--")):
            cases = [
                FetchCase(size_bytes, window_bytes, mss_bytes)
                for size_bytes in _fetches.SIZES_BYTES
            ]
            axes.plot(
                [case.size_bytes / 1e3 for case in cases],
                [value * 1e3 for value in _mbps(found, cases, "throughput_bps")],
                color=colour,
                linestyle=style,
                label=f"{label}, {mss_bytes} B",
            )
        if _HTTP[label] in published:
            axes.plot([IMAGE_BYTES / 1e3], [published[_HTTP[label]]], **_marks(colour, "o"))
    axes.set_xscale("log")
    axes.set_xticks([10, 100, 1000], ["10", "100", "1000"])
    axes.set_ylim(bottom=0)
    axes.set_xlabel("File [kB]")
    axes.set_ylabel("Throughput [kbit/s]")
    add_legend(axes)
    return figure


def sessions(found: Found, asymmetry: Asymmetry, published: Points) -> Figure:
    """Draw the goodput of all sessions over their number."""
    figure, (axes,) = new_figure(1, 1, height_in=3.8)
    for colour, (label, window_bytes) in zip(PALETTE, _WINDOWS.items(), strict=False):
        alone = [SessionsCase(count, window_bytes) for count in SESSIONS]
        axes.plot(SESSIONS, _mbps(found, alone, "goodput_bps"), color=colour, label=label)
        beside = [SessionsCase(count, window_bytes, ASSUMED) for count in SESSIONS]
        means = _mbps(found, beside, "goodput_bps")
        spread = [(found.stdev(case, "goodput_bps") or 0.0) / 1e6 for case in beside]
        axes.plot(SESSIONS, means, color=colour, linestyle="--", label=f"{label}, beside images")
        axes.fill_between(
            SESSIONS,
            [mean - stdev for mean, stdev in zip(means, spread, strict=True)],
            [mean + stdev for mean, stdev in zip(means, spread, strict=True)],
            color=colour,
            alpha=0.2,
            linewidth=0,
        )
    for text, bound_bps in (("carrier", asymmetry.carrier_bps), ("ISDN", asymmetry.isdn_bps)):
        axes.axhline(bound_bps / 1e6, color=MUTED, linestyle=":", linewidth=1)
        axes.text(SESSIONS[-1], bound_bps / 1e6, f"{text} full", ha="right", va="bottom", color=INK)
    if _SESSIONS_MAX in published:
        axes.axhline(published[_SESSIONS_MAX], color=INK, linewidth=0.8)
        axes.text(SESSIONS[0], published[_SESSIONS_MAX], "published", va="bottom", color=INK)
    axes.set_xlim(0.5, SESSIONS[-1] + 0.5)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("Sessions")
    axes.set_ylabel("Goodput [Mbit/s]")
    add_legend(axes)
    return figure


def conference(found: Found) -> Figure:
    """Draw what a receiver has of each stream, and what it loses, over the participants."""
    figure, panels = new_figure(2, 1, height_in=5.0)
    for colour, rate_kbps in zip(PALETTE, RATES_KBPS, strict=False):
        for copies, style in (("each", "-"), ("one", "--")):
            cases = [ConferenceCase(count, rate_kbps, copies) for count in _conference.PARTICIPANTS]
            received_kbps = [value * 1e3 for value in _mbps(found, cases, "received_bps_a_stream")]
            losses = [found.mean(case, "loss_percent") for case in cases]
            lost = [math.nan if loss is None else loss for loss in losses]
            label = f"each sends {rate_kbps} kbit/s" if copies == "each" else None
            for axes, values in zip(panels, (received_kbps, lost), strict=True):
                axes.plot(
                    _conference.PARTICIPANTS, values, color=colour, linestyle=style, label=label
                )
    panels[0].set_ylim(0, 1.1 * RATES_KBPS[-1])
    panels[0].set_ylabel("Received of a stream [kbit/s]")
    panels[1].set_ylabel("Lost [%]")
    panels[1].set_xlabel("Participants")
    add_legend(panels[0])
    return figure


def _kib(cases: Sequence[WindowCase]) -> list[float]:
    return [case.window_bytes / 1024 for case in cases]


def _mbps(found: Found, cases: Sequence[Case], figure: str) -> list[float]:
    values = [found.mean(case, figure) for case in cases]
    return [math.nan if value is None else value / 1e6 for value in values]


def _marks(colour: str, marker: str) -> dict[str, Any]:
    return {
        "linestyle": "none",
        "marker": marker,
        "markersize": 5,
        "markerfacecolor": "none",
        "markeredgecolor": colour,
        "markeredgewidth": 1.3,
    }
