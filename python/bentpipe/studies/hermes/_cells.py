"""What is measured for each row of the source, and how; the figures that the report speaks of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, Final

from bentpipe.studies._common import number
from bentpipe.studies.hermes import _conference, _fetches, _streams, _windows
from bentpipe.studies.hermes._conference import (
    RATES_KBPS,
    TOLERABLE_LOSS_PERCENT,
    ConferenceCase,
    UpstreamCase,
)
from bentpipe.studies.hermes._fetches import FetchCase
from bentpipe.studies.hermes._network import (
    DEFAULT_WINDOW_BYTES,
    IMAGE_BYTES,
    LARGE_MSS_BYTES,
    MSS_BYTES,
    SITES,
    TUNED_WINDOW_BYTES,
    Case,
    Found,
)
from bentpipe.studies.hermes._rows import KINDS, WITHIN_PERCENT, Cell, Measured, Published
from bentpipe.studies.hermes._sessions import (
    ASSUMED,
    MAX_BESIDE,
    MIN_BESIDE,
    NOBODY,
    SESSIONS,
    SEVERAL,
    THINK_S,
    Asymmetry,
    SessionsCase,
)
from bentpipe.studies.hermes._windows import WindowCase

# The image must show within this time: with its size the throughput that it needs.
_IMAGE_LIMIT_S: Final = 10
_MIDDLE_KBPS: Final = 90


def compare(
    found: Found, asymmetries: Sequence[Asymmetry], published: Sequence[Published]
) -> tuple[Cell, ...]:
    """Put what was measured beside each row of the source, in its order."""
    return tuple(Cell(row, _MEASURED[row.quantity](found, asymmetries)) for row in published)


def summarize(
    cells: Sequence[Cell], found: Found, asymmetries: Sequence[Asymmetry]
) -> dict[str, Any]:
    """Return counts by kind, misses, and the figures that the report speaks of."""
    return {
        "rows": len(cells),
        "within_percent": WITHIN_PERCENT,
        "within": {
            kind: sum(cell.within is True for cell in cells if cell.measured.kind == kind)
            for kind in KINDS
        },
        "of": {kind: sum(cell.measured.kind == kind for cell in cells) for kind in KINDS},
        "misses": [cell.published.quantity for cell in cells if cell.within is False],
        "window_bound_error_percent_largest": window_bound_error_percent(found, MSS_BYTES),
        "conference_participants_max": _by_rate(found, "each"),
        "conference_participants_max_one_copy": _by_rate(found, "one"),
        "upstream_without_loss_kbps": upstream_max_kbps(found),
        "asymmetry": [asdict(each) for each in asymmetries],
    }


def window_bound_error_percent(found: Found, mss_bytes: int) -> float | None:
    """Return the largest error of a simulated transfer against the window of whole segments."""
    errors = []
    for case in _windows.ideal_cases():
        goodput_bps, bound_bps = found.mean(case, "goodput_bps"), case.bound_whole_segments_bps
        if case.mss_bytes == mss_bytes and goodput_bps is not None and bound_bps is not None:
            errors.append(100 * (goodput_bps / bound_bps - 1))
    return max(errors, key=abs, default=None)


def conference_max(found: Found, rate_kbps: int, copies: str = "each") -> int | None:
    """Return the largest conference whose every receiver loses no more than is tolerable.

    None when a run is missing.
    """
    fits = 1
    for participants in _conference.PARTICIPANTS:
        loss = found.mean(ConferenceCase(participants, rate_kbps, copies), "loss_percent_worst")
        if loss is None:
            return None
        if fits == participants - 1 and loss <= TOLERABLE_LOSS_PERCENT:
            fits = participants
    return fits


def upstream_max_kbps(found: Found) -> int | None:
    """Return the largest rate of which nothing was lost on ISDN; None when a run is missing."""
    losses = {
        case.rate_kbps: found.mean(case, "loss_percent") for case in _conference.upstream_cases()
    }
    if None in losses.values():
        return None
    return max((rate_kbps for rate_kbps, loss in losses.items() if loss == 0), default=None)


def several(found: Found, beside: str, mss_bytes: int = MSS_BYTES) -> SessionsCase | None:
    """Return the number of sessions, of those that are several, that reach most together.

    None when a run is missing.
    """
    reached = {}
    for sessions in SEVERAL:
        case = SessionsCase(sessions, TUNED_WINDOW_BYTES, beside, mss_bytes)
        goodput_bps = found.mean(case, "goodput_bps")
        if goodput_bps is None:
            return None
        reached[case] = goodput_bps
    return max(reached, key=lambda case: reached[case])


def kbps(found: Found, case: Case, figure: str) -> float | None:
    """Return a figure in bit/s as kbit/s."""
    value = found.mean(case, figure)
    return None if value is None else value / 1e3


def mbps(found: Found, case: Case, figure: str) -> float | None:
    """Return a figure in bit/s as Mbit/s."""
    value = found.mean(case, figure)
    return None if value is None else value / 1e6


def _by_rate(found: Found, copies: str) -> dict[str, int | None]:
    return {str(rate_kbps): conference_max(found, rate_kbps, copies) for rate_kbps in RATES_KBPS}


def _round_trip(found: Found, _: Sequence[Asymmetry]) -> Measured:
    return Measured(
        value=found.mean(_fetches.PingCase(), "round_trip_ms"),
        how="Smallest round trip of 32 bytes there and back. The delays are ours to choose: 252 ms "
        "and 138 ms; the source says a little under 400 ms.",
        kind="input",
    )


def _forward_rate(found: Found, _: Sequence[Asymmetry]) -> Measured:
    carried = number(mbps(found, _streams.FORWARD_FLOOD, "received_bps"))
    return Measured(
        value=mbps(found, _streams.FORWARD_FLOOD, "link_bps"),
        how=f"Carrier saturated with UDP, link bits. Of datagrams of 1,024 bytes it carries "
        f"{carried} Mbit/s.",
        kind="input",
    )


def _return_rate(found: Found, _: Sequence[Asymmetry]) -> Measured:
    carried = number(kbps(found, _streams.RETURN_FLOOD, "received_bps"), digits=0)
    return Measured(
        value=kbps(found, _streams.RETURN_FLOOD, "link_bps"),
        how=f"ISDN saturated with UDP, link bits. Of datagrams of 1,024 bytes it carries {carried} "
        "kbit/s.",
        kind="input",
    )


def _tcp_limit(found: Found, _: Sequence[Asymmetry]) -> Measured:
    return Measured(
        value=mbps(found, WindowCase(TUNED_WINDOW_BYTES, None), "goodput_bps"),
        how="One long transfer on the network, after slow start, application bits. 64 KB / 0.4 s "
        "is 1.31 Mbit/s; the source counts 64 x 1024 x 8 bits as half a megabit.",
        reason="The round trip is shorter or longer than the source's.",
    )


def _http(window_bytes: int, reason: str) -> Callable[[Found, Sequence[Asymmetry]], Measured]:
    def measured(found: Found, _: Sequence[Asymmetry]) -> Measured:
        case = FetchCase(IMAGE_BYTES, window_bytes)
        large = FetchCase(IMAGE_BYTES, window_bytes, LARGE_MSS_BYTES)
        other = number(kbps(found, large, "throughput_bps"), digits=0)
        return Measured(
            value=kbps(found, case, "throughput_bps"),
            how="The image of 524,288 bytes over a connection of its own, from opening it to the "
            f"last byte. Segments of 512 bytes; with 1,460 bytes {other} kbit/s.",
            reason=reason,
        )

    return measured


def _sessions_max(found: Found, asymmetries: Sequence[Asymmetry]) -> Measured:
    case, alone = several(found, ASSUMED), several(found, NOBODY)
    if case is None or alone is None:
        return Measured(value=None, how="Not run.", kind="guess", runs=0)
    stdev_bps = found.stdev(case, "goodput_bps")
    largest = SessionsCase(SESSIONS[-1], TUNED_WINDOW_BYTES, ASSUMED)
    busy, idle = (
        number(mbps(found, SessionsCase(SEVERAL[-1], TUNED_WINDOW_BYTES, beside), "goodput_bps"))
        for beside in (MAX_BESIDE, MIN_BESIDE)
    )
    alone_mbps = number(mbps(found, alone, "goodput_bps"))
    return Measured(
        value=mbps(found, case, "goodput_bps"),
        kind="guess",
        stdev=None if stdev_bps is None else stdev_bps / 1e6,
        runs=found.runs(case),
        how=f"Largest of {SEVERAL[0]} to {SEVERAL[-1]} sessions with 64 KB, at {case.sessions}, "
        f"while at 20 sites somebody fetches images and looks at each for {THINK_S[ASSUMED]} s: "
        f"{number(mbps(found, case, 'others_bps'))} Mbit/s. Both are guesses. With {SESSIONS[-1]} "
        f"sessions: {number(mbps(found, largest, 'goodput_bps'))} Mbit/s. With {SEVERAL[-1]}, "
        f"looking for {THINK_S[MAX_BESIDE]} or {THINK_S[MIN_BESIDE]} s: {busy} or {idle} "
        f"Mbit/s. Alone on the carrier: {alone_mbps} Mbit/s.",
        reason="The source says that the carrier is shared and not how full it was, nor how many "
        f"sessions there were. Alone, {alone.sessions} sessions reach {alone_mbps} Mbit/s: no "
        f"window and, at {number(asymmetries[0].isdn_bps / 1e6)} Mbit/s, no ISDN line holds them "
        "at what was published. What held them is others' traffic, or a receiver that took in no "
        "more.",
    )


def _stream(found: Found, _: Sequence[Asymmetry]) -> Measured:
    loss = number(found.mean(_streams.STREAM, "loss_percent"))
    tcp = number(mbps(found, _streams.STREAM, "tcp_goodput_bps"))
    return Measured(
        value=kbps(found, _streams.STREAM, "received_bps"),
        kind="carried",
        how=f"The stream beside a TCP session with 64 KB, which has {tcp} Mbit/s; {loss} % lost. "
        "The rate is the sender's: the row asks whether the path carries it.",
        reason="The carrier was full.",
    )


def _buffering(found: Found, _: Sequence[Asymmetry]) -> Measured:
    loss = number(found.mean(_streams.BUFFERING, "loss_percent"))
    highest = number(kbps(found, _streams.FORWARD_FLOOD, "received_bps"), digits=0)
    return Measured(
        value=kbps(found, _streams.BUFFERING, "received_bps"),
        kind="carried",
        how=f"Ten seconds at this rate beside a TCP session with 64 KB; {loss} % lost. The rate is "
        f"the sender's; an empty carrier would bring up to {highest} kbit/s.",
        reason="The carrier was full.",
    )


def _clip(found: Found, _: Sequence[Asymmetry]) -> Measured:
    each = number(found.mean(_streams.CLIP_EACH, "loss_percent"), digits=0)
    return Measured(
        value=kbps(found, _streams.CLIP, "received_bps"),
        kind="carried",
        how="One flow forward: every receiver hears the whole carrier, so one copy serves all "
        f"sites. With a copy for each of {SITES} sites {each} % of them would be lost.",
        reason="The carrier was full.",
    )


def _participants(found: Found, _: Sequence[Asymmetry]) -> Measured:
    fits = {rate: conference_max(found, rate) for rate in RATES_KBPS}
    eight = ConferenceCase(_conference.PARTICIPANTS[-1], _MIDDLE_KBPS)
    copies = eight.participants * (eight.participants - 1)
    loss = number(found.mean(eight, "loss_percent"), digits=0)
    rates = ", ".join(f"{count} at {rate} kbit/s" for rate, count in fits.items())
    one = conference_max(found, _MIDDLE_KBPS, "one")
    return Measured(
        value=fits[_MIDDLE_KBPS],
        runs=found.runs(eight),
        how="The most participants at 90 kbit/s whose every receiver loses at most 1 %, the hub "
        f"sending a copy to each: {rates}.",
        reason=f"{copies} copies of 90 kbit/s are more than the carrier takes: {loss} % are lost. "
        f"With one copy of each stream for all to hear, {one} are carried without loss; a hub "
        "that mixes all pictures into one needs less still. So the eight of the source were not "
        "served with a copy for each, or sent less than this.",
    )


def _upstream(found: Found, _: Sequence[Asymmetry]) -> Measured:
    ends = [kbps(found, UpstreamCase(rate), "received_bps") for rate in (80, 100)]
    highest = upstream_max_kbps(found)
    value = None if None in ends else (ends[0] or 0.0, ends[1] or 0.0)
    return Measured(
        value=value,
        kind="carried",
        how="What arrives at the hub of 80 and 100 kbit/s sent over ISDN. Nothing is lost up to "
        f"{highest} kbit/s: the line leaves room, so the range is what the senders chose.",
        reason="The line does not carry it.",
    )


def _image_size(_found: Found, _: Sequence[Asymmetry]) -> Measured:
    return Measured(
        value=IMAGE_BYTES / 1e3,
        how="512 x 512 points of 16 bits are 524,288 bytes, which is what is sent.",
        kind="input",
    )


def _image_time(found: Found, _: Sequence[Asymmetry]) -> Measured:
    tuned = FetchCase(IMAGE_BYTES, TUNED_WINDOW_BYTES)
    untuned = FetchCase(IMAGE_BYTES, DEFAULT_WINDOW_BYTES)
    other_s = number(found.mean(untuned, "time_s"), digits=1)
    return Measured(
        value=found.mean(tuned, "time_s"),
        how=f"Time to fetch the image with a window of 64 KB. With 8 KB it takes {other_s} s.",
        reason="Slow start takes too many round trips.",
        kind="limit",
    )


def _image_rate(found: Found, _: Sequence[Asymmetry]) -> Measured:
    tuned, untuned = (
        number(kbps(found, FetchCase(IMAGE_BYTES, window_bytes), "throughput_bps"), digits=0)
        for window_bytes in (TUNED_WINDOW_BYTES, DEFAULT_WINDOW_BYTES)
    )
    return Measured(
        value=IMAGE_BYTES * 8 / _IMAGE_LIMIT_S / 1e3,
        kind="arithmetic",
        how=f"Arithmetic: 524,288 bytes in {_IMAGE_LIMIT_S} s. Reached: {tuned} kbit/s with 64 KB, "
        f"{untuned} kbit/s with 8 KB.",
    )


def _sites(_found: Found, _: Sequence[Asymmetry]) -> Measured:
    return Measured(value=SITES, how="The terminals of the network.", kind="input")


_MEASURED: Final[dict[str, Callable[[Found, Sequence[Asymmetry]], Measured]]] = {
    "round-trip time": _round_trip,
    "forward rate": _forward_rate,
    "return rate": _return_rate,
    "TCP limit with a 64 KB window": _tcp_limit,
    "HTTP throughput with the default 8 KB window": _http(
        DEFAULT_WINDOW_BYTES,
        "The source names neither the file nor the length of segments; a window of few segments "
        "waits for delayed acknowledgements.",
    ),
    "HTTP throughput measured with a 64 KB window": _http(
        TUNED_WINDOW_BYTES,
        "The source does not name the file; slow start makes a small file slow and a large fast.",
    ),
    "maximum TCP throughput with several sessions on one client": _sessions_max,
    "UDP stream played without tuning": _stream,
    "UDP stream reception while buffering; highest seen": _buffering,
    "video clip multicast from the operating theatre": _clip,
    "videoconference participants in continuous presence": _participants,
    "upstream each participant manages over ISDN": _upstream,
    "DICOM image size (512 x 512 x 16 bit)": _image_size,
    "DICOM image must show within": _image_time,
    "throughput that the DICOM image needs": _image_rate,
    "medical centres in the network": _sites,
}
