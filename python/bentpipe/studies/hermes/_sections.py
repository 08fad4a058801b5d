"""The report's sections, one a part of the study: words made from the figures, plots, tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from bentpipe.report import html as _html
from bentpipe.studies._common import number
from bentpipe.studies.hermes import _conference, _fetches, _plots, _streams, _windows
from bentpipe.studies.hermes._cells import (
    conference_max,
    kbps,
    mbps,
    several,
    upstream_max_kbps,
    window_bound_error_percent,
)
from bentpipe.studies.hermes._conference import RATES_KBPS, ConferenceCase, UpstreamCase
from bentpipe.studies.hermes._fetches import FetchCase
from bentpipe.studies.hermes._network import (
    DEFAULT_WINDOW_BYTES,
    IMAGE_BYTES,
    LARGE_MSS_BYTES,
    MSS_BYTES,
    TUNED_WINDOW_BYTES,
    Found,
)
from bentpipe.studies.hermes._plots import Points
from bentpipe.studies.hermes._sessions import (
    MAX_BESIDE,
    NOBODY,
    SESSIONS,
    SEVERAL,
    STREAMS_BESIDE_KBPS,
    THINK_S,
    Asymmetry,
    SessionsCase,
)
from bentpipe.studies.hermes._windows import WindowCase

_BINARY_MEGABIT: Final = 2**20


def windows(found: Found, published: Points) -> list[str]:
    """Hold the window formula against the simulation."""
    small, large = (window_bound_error_percent(found, mss) for mss in (MSS_BYTES, LARGE_MSS_BYTES))
    five = WindowCase(DEFAULT_WINDOW_BYTES, 400, LARGE_MSS_BYTES)
    limit_mbps = mbps(found, WindowCase(TUNED_WINDOW_BYTES, None), "goodput_bps")
    texts = (
        "A long transfer over an ideal path, after slow start, against the window over the round "
        "trip. Goodput counts application bytes. Of a window only whole segments count, because a "
        "sender does not send part of one while data wait. With segments of 512 bytes the largest "
        f"difference from that bound is {number(small, sign=True)} %: a window of 65,535 bytes "
        "holds 127 segments, and the odd one waits at the receiver for the next before it is "
        "acknowledged, so that 126 are under way. The other windows hold an even number.",
        "That wait costs much where few segments fit. Of 1,460 bytes a window of 8,192 holds five, "
        f"and {number(kbps(found, five, 'goodput_bps'), digits=0)} kbit/s come through at 400 ms "
        f"where five would give {number((five.bound_whole_segments_bps or 0) / 1e3, digits=0)}; "
        f"over all windows the largest difference is {number(large, digits=1, sign=True)} %.",
        "64 KB over 0.4 s are 1.31 Mbit/s; the source prints 1.25, which is 64 x 1,024 x 8 bits "
        "taken for half a megabit. In megabits of 1,048,576 bits the simulation has "
        f"{number(None if limit_mbps is None else limit_mbps * 1e6 / _BINARY_MEGABIT)}.",
    )
    caption = (
        "Lines: the window over the round trip. Circles: simulated on an ideal path. Diamonds: on "
        "the network, where ISDN and the carrier are bounds too. Cross: published."
    )
    rows = []
    for case in _windows.ideal_cases():
        goodput_bps, bound_bps = found.mean(case, "goodput_bps"), case.bound_whole_segments_bps
        if case.mss_bytes != MSS_BYTES or case.bound_bps is None or bound_bps is None:
            continue
        error = None if goodput_bps is None else 100 * (goodput_bps / bound_bps - 1)
        rows.append(
            [
                str(case.round_trip_ms),
                str(case.window_bytes),
                number(case.bound_bps / 1e6, digits=3),
                number(bound_bps / 1e6, digits=3),
                number(mbps(found, case, "goodput_bps"), digits=3),
                number(error, sign=True),
            ]
        )
    columns = (
        ("round trip", "ms"),
        ("window", "bytes"),
        ("window / round trip", "Mbit/s"),
        ("of whole segments", "Mbit/s"),
        ("simulated", "Mbit/s"),
        ("error", "% of whole segments"),
    )
    starts = range(0, len(rows), len(_windows.WINDOWS_BYTES))
    return [
        _html.heading("Windows"),
        *(_html.paragraph(text) for text in texts),
        _html.figure(_plots.windows(found, published), name="windows", caption=caption),
        _html.table("Ideal path, segments of 512 bytes.", columns, rows, group_starts=starts),
    ]


def files(found: Found, published: Points) -> list[str]:
    """Show how the throughput of HTTP hangs on the size of the file."""
    untuned, tuned = (
        FetchCase(IMAGE_BYTES, window) for window in (DEFAULT_WINDOW_BYTES, TUNED_WINDOW_BYTES)
    )
    small, large = (
        number(kbps(found, FetchCase(size, TUNED_WINDOW_BYTES), "throughput_bps"), digits=0)
        for size in (100_000, 5_000_000)
    )
    text = (
        f"The image of 524,288 bytes takes {number(found.mean(untuned, 'time_s'), digits=1)} s "
        f"with a window of 8 KB and {number(found.mean(tuned, 'time_s'), digits=1)} s with one of "
        "64 KB. With 8 KB the window is the bound almost from the start. With 64 KB slow start "
        "takes most of the time: from one segment, with an ACK for every second one, the window "
        "grows by half each round trip of 0.4 s. So what HTTP reaches with 64 KB is a matter of "
        f"the file: {small} kbit/s for 100 kB, {large} kbit/s for 5 MB."
    )
    rows = []
    for size_bytes in _fetches.SIZES_BYTES:
        row = [f"{size_bytes / 1e3:g}"]
        for window_bytes in (DEFAULT_WINDOW_BYTES, TUNED_WINDOW_BYTES):
            case = FetchCase(size_bytes, window_bytes)
            row.append(number(found.mean(case, "time_s"), digits=1))
            row.append(number(kbps(found, case, "throughput_bps"), digits=0))
        rows.append(row)
    columns = (
        ("file", "kB"),
        ("time", "s, 8 KB"),
        ("throughput", "kbit/s, 8 KB"),
        ("time", "s, 64 KB"),
        ("throughput", "kbit/s, 64 KB"),
    )
    caption = (
        "Throughput of one file over a connection of its own, as the client sees it. Lines: "
        "segments of 512 bytes; dashed: 1,460. Circles: published, drawn at the size of the image, "
        "though the source does not name the file."
    )
    return [
        _html.heading("Files"),
        _html.paragraph(text),
        _html.figure(_plots.files(found, published), name="files", caption=caption),
        _html.table("Segments of 512 bytes.", columns, rows),
    ]


_SESSION_COLUMNS: Final = (
    ("goodput", "Mbit/s, together"),
    ("standard deviation", "Mbit/s"),
    ("others", "Mbit/s"),
    ("carrier busy", "%"),
    ("carrier loss", "%"),
    ("ISDN busy", "%"),
    ("ACKs lost", "%"),
    ("ACKs waiting", "mean"),
    ("round trip", "ms, mean"),
)


def sessions(found: Found, asymmetries: Sequence[Asymmetry], published: Points) -> list[str]:
    """Say what bounds several sessions of one client."""
    caption = (
        "Goodput of all sessions together. Lines: alone on the carrier. Dashed: while sites fetch "
        "images, mean and one standard deviation. Dotted: where the carrier and, with an ACK for "
        "every second segment, ISDN are full. Thin: published, at an unknown number of sessions."
    )
    alone = [[str(n), *_session(found, SessionsCase(n, TUNED_WINDOW_BYTES))] for n in SESSIONS]
    beside = [
        [name, *_session(found, SessionsCase(SEVERAL[-1], TUNED_WINDOW_BYTES, name))]
        for name in (NOBODY, *STREAMS_BESIDE_KBPS, *THINK_S)
    ]
    return [
        _html.heading("Several sessions of one client"),
        *(_html.paragraph(text) for text in _session_texts(found, asymmetries)),
        _html.figure(
            _plots.sessions(found, asymmetries[0], published), name="sessions", caption=caption
        ),
        _html.table("Sessions with 64 KB, alone.", (("sessions", ""), *_SESSION_COLUMNS), alone),
        _html.table(
            f"{SEVERAL[-1]} sessions with 64 KB beside others.",
            (("beside", ""), *_SESSION_COLUMNS),
            beside,
        ),
    ]


def _session_texts(found: Found, asymmetries: Sequence[Asymmetry]) -> list[str]:
    small, large = asymmetries
    texts = [
        "RFC 3449 compares the two directions by packets: k = (4 Mbit/s / 128 kbit/s) / "
        f"({number(small.data_bytes, digits=1)} B / {number(small.ack_bytes)} B) = "
        f"{number(small.ratio)}. An ACK for every second segment makes up for 2 of it: ISDN is "
        f"full of ACKs at {number(small.isdn_bps / 1e6)} Mbit/s of goodput, the carrier of data at "
        f"{number(small.carrier_bps / 1e6)}. With segments of 1,460 bytes k is "
        f"{number(large.ratio)}, and ACKs are no bound."
    ]
    alone = several(found, NOBODY)
    if alone is not None:
        texts.append(
            "Three sessions with 64 KB stop where ISDN is full. More of them fill the queue of "
            "ISDN, each round trip grows by what waits there, and then ACKs are lost: of "
            f"{alone.sessions} sessions {number(found.mean(alone, 'isdn_loss_percent'), digits=0)} "
            "% of them. That costs no goodput, because an ACK speaks for all before it: the fewer "
            "that come each free more, and the carrier fills at "
            f"{number(mbps(found, alone, 'goodput_bps'))} Mbit/s. With more sessions yet, bursts "
            "overflow the carrier's queue, and timeouts take a little away."
        )
    reach = [
        number(mbps(found, SessionsCase(SEVERAL[-1], TUNED_WINDOW_BYTES, beside), "goodput_bps"))
        for beside in (MAX_BESIDE, NOBODY)
    ]
    texts.append(
        "Neither the window nor ISDN nor the empty carrier holds sessions at what was published. "
        "The source calls the carrier shared and does not say by what. The second table shows what "
        "is left to eight sessions beside the services that the source names, and while all 20 "
        "sites fetch images. The row of the source takes half a minute for each image, a guess; "
        f"what stands in the table reaches from {reach[0]} to {reach[1]} Mbit/s, so this row does "
        "not test the simulation. Another reading: no client is said to have taken in more than 2 "
        "Mbit/s of anything, datagrams included, so that the receiver may have been the bound."
    )
    return texts


def _session(found: Found, case: SessionsCase) -> list[str]:
    stdev_bps = found.stdev(case, "goodput_bps")
    return [
        number(mbps(found, case, "goodput_bps")),
        number(None if stdev_bps is None else stdev_bps / 1e6),
        number(mbps(found, case, "others_bps")),
        number(found.mean(case, "forward_busy_percent"), digits=0),
        number(found.mean(case, "forward_loss_percent")),
        number(found.mean(case, "isdn_busy_percent"), digits=0),
        number(found.mean(case, "isdn_loss_percent"), digits=1),
        number(found.mean(case, "isdn_queue_packets_mean"), digits=0),
        number(found.mean(case, "rtt_ms_mean"), digits=0),
    ]


def streams(found: Found) -> list[str]:
    """Show streams beside TCP, and why the clip needs one copy."""
    asked_mbps = _streams.CLIP_EACH.rate_kbps * _streams.CLIP_EACH.copies / 1e3
    text = (
        "Datagrams do not give way: as long as the carrier has room for them nothing is lost, and "
        "TCP has the rest. The clip is one flow, because every site hears the whole carrier, so "
        "that one copy serves twenty as well as one. With a copy for each site "
        f"{asked_mbps:g} Mbit/s are asked of the carrier, and each receives "
        f"{number(kbps(found, _streams.CLIP_EACH, 'received_bps'), digits=0)} kbit/s."
    )
    rows = [
        [
            case.name,
            str(case.rate_kbps * case.copies),
            number(kbps(found, case, "received_bps"), digits=0),
            number(found.mean(case, "loss_percent")),
            number(mbps(found, case, "tcp_goodput_bps") if case.sessions else None),
        ]
        for case in _streams.cases()
    ]
    columns = (
        ("datagrams", ""),
        ("sent", "kbit/s, all copies"),
        ("received", "kbit/s, each receiver"),
        ("lost", "%"),
        ("TCP beside", "Mbit/s goodput"),
    )
    return [
        _html.heading("Streams"),
        _html.paragraph(text),
        _html.table("Datagrams, counted as UDP payload.", columns, rows),
    ]


def conference(found: Found) -> list[str]:
    """Find how many participants the carrier and ISDN bear."""
    rows = []
    for rate_kbps in RATES_KBPS:
        for participants in _conference.PARTICIPANTS:
            case = ConferenceCase(participants, rate_kbps)
            rows.append(
                [
                    f"{rate_kbps} kbit/s",
                    str(participants),
                    number(found.mean(case, "forward_offered_percent"), digits=0),
                    number(kbps(found, case, "received_bps"), digits=0),
                    number(kbps(found, case, "received_bps_min"), digits=0),
                    number(found.mean(case, "loss_percent")),
                    number(found.mean(case, "loss_percent_worst")),
                ]
            )
    columns = (
        ("each sends", ""),
        ("participants", ""),
        ("carrier offered", "% of its rate"),
        ("received", "kbit/s, mean receiver"),
        ("received", "kbit/s, worst receiver"),
        ("lost", "%, mean receiver"),
        ("lost", "%, worst receiver"),
    )
    caption = (
        "What a receiver has of each stream, and what it loses, mean over receivers. Lines: the "
        "hub sends a copy to each. Dashed: one copy of each stream, for all to hear."
    )
    starts = range(0, len(rows), len(_conference.PARTICIPANTS))
    return [
        _html.heading("Conference"),
        *(_html.paragraph(text) for text in _conference_texts(found)),
        _html.figure(_plots.conference(found), name="conference", caption=caption),
        _html.table("A copy for each.", columns, rows, group_starts=starts),
    ]


def _conference_texts(found: Found) -> list[str]:
    fits = ", ".join(
        f"{number(conference_max(found, rate), digits=0)} at {rate} kbit/s" for rate in RATES_KBPS
    )
    each, one = (
        ConferenceCase(_conference.PARTICIPANTS[-1], RATES_KBPS[1], copies)
        for copies in ("each", "one")
    )
    offered = [number(found.mean(x, "forward_offered_percent"), digits=0) for x in (each, one)]
    limit = _conference.upstream_cases()[-1]
    return [
        "Each participant sends over ISDN to a reflector at the hub, which sends a copy to each of "
        "the others: N (N - 1) streams share the carrier. The largest conferences whose every "
        f"receiver loses at most {_conference.TOLERABLE_LOSS_PERCENT:g} %: {fits}. "
        f"{each.participants} at {each.rate_kbps} kbit/s offer {offered[0]} % of what the carrier "
        f"takes, and {number(found.mean(each, 'loss_percent'), digits=0)} % are lost.",
        "So a conference of eight at the published rates needs another way. With one copy of each "
        f"stream, which all sites hear, it takes {offered[1]} % of the carrier and loses "
        f"{number(found.mean(one, 'loss_percent'))} %. A hub that mixes all pictures into one, as "
        "continuous presence often means, sends one stream to each site or one to all.",
        "Who loses is unfair: all send at even intervals, so that some datagrams always find the "
        "queue full. Participants start at moments that are drawn; the worst receiver is the mean "
        "over runs of each run's worst.",
        "Up over ISDN, nothing is lost of 80 to 100 kbit/s, nor of anything up to "
        f"{number(upstream_max_kbps(found), digits=0)} kbit/s; of {limit.rate_kbps} kbit/s "
        f"{number(kbps(found, UpstreamCase(limit.rate_kbps), 'received_bps'), digits=0)} arrive, "
        "after headers and framing. So the published range is what the senders chose, and not what "
        "the line bore.",
    ]


def segments(found: Found, asymmetries: Sequence[Asymmetry]) -> list[str]:
    """Show the same figures with both lengths of segments."""
    both = (MSS_BYTES, LARGE_MSS_BYTES)
    tuned = [FetchCase(IMAGE_BYTES, TUNED_WINDOW_BYTES, mss) for mss in both]
    untuned = [FetchCase(IMAGE_BYTES, DEFAULT_WINDOW_BYTES, mss) for mss in both]
    long = [WindowCase(TUNED_WINDOW_BYTES, None, mss) for mss in both]
    best = [several(found, NOBODY, mss) for mss in both]
    best_mbps = [None if case is None else mbps(found, case, "goodput_bps") for case in best]
    figures = (
        ("image with 8 KB", "kbit/s", [kbps(found, case, "throughput_bps") for case in untuned], 0),
        ("image with 64 KB", "kbit/s", [kbps(found, case, "throughput_bps") for case in tuned], 0),
        ("image with 64 KB", "s", [found.mean(case, "time_s") for case in tuned], 2),
        ("long transfer with 64 KB", "Mbit/s", [mbps(found, c, "goodput_bps") for c in long], 2),
        ("most of several sessions, alone", "Mbit/s", best_mbps, 2),
        ("k of RFC 3449", "", [each.ratio for each in asymmetries], 2),
    )
    rows = [
        [name, unit, *(number(value, digits=digits) for value in values)]
        for name, unit, values, digits in figures
    ]
    columns = (("figure", ""), ("unit", ""), ("512 bytes", "chosen"), ("1,460 bytes", ""))
    caption = "The same runs with either length of segments."
    return [
        _html.heading("The other length of segments"),
        _html.table(caption, columns, rows, text_columns=2),
    ]
