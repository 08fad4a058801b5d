"""The study's report: rows, figures, and what they say, in words made from the figures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from bentpipe.report import html as _html
from bentpipe.studies._common import number
from bentpipe.studies.hermes import _sections
from bentpipe.studies.hermes._plots import points
from bentpipe.studies.hermes._rows import KINDS, WITHIN_PERCENT, Cell, misses, shown

if TYPE_CHECKING:
    from bentpipe.studies.hermes.study import HermesOutcome

_CHOSEN: Final = (
    "The round trip of 390 ms without any data: 252 ms over the satellite and 138 ms over ISDN and "
    "the ground. The source says a little under 400 ms and does not split it.",
    "Framing: multi-protocol encapsulation, packed, on the carrier; PPP with an FCS of 16 bits on "
    "ISDN. The rates count these bits too.",
    "Hosts of 4.4BSD (profile bsd-1997): Reno, no SACK, an initial window of one segment, an ACK "
    "for every second segment or after 200 ms, no window scaling.",
    "Queues of one bandwidth-delay product that drop at the tail: 195 kB for the carrier, 6.2 kB "
    "(130 ACKs) for each ISDN line.",
    "Segments of 512 bytes. 4.4BSD takes 1,460 only for hosts of its own network and 512 for all "
    "others. The source does not say; both were run, and 512 is nearer to what was published: that "
    "much is chosen to fit. The table of segments shows every row with 1,460 bytes.",
    "8 KB is 8,192 bytes; 64 KB is 65,535, the most without window scaling (127 segments).",
    "The file of the HTTP rows is the image, the only file that the source names: 524,288 bytes. "
    "A request has 300 bytes; server and client take no time.",
    "Datagrams of 1,024 bytes in streams and of 450 bytes in conferences.",
)
_UNSAID: Final = (
    "Which files were fetched, how often, and whether connections were kept.",
    "How many sessions the maximum took, with which window, and what else was on the carrier.",
    "Operating systems, segment sizes, and buffers of routers and of the satellite receiver.",
    "How the conference reached its participants: copies, multicast, or pictures mixed into one.",
    "What the stream lost, and how long anything was measured.",
)


def study_report(outcome: HermesOutcome) -> str:
    """Return the report as HTML; the same outcome gives the same bytes."""
    found, configuration = outcome.found, outcome.configuration
    published = points(outcome.cells)
    facts = (
        f"bentpipe {configuration['bentpipe_version']}; first seed {configuration['first_seed']}; "
        f"{configuration['runs_of_a_case_with_chance']} runs of each case that draws chance, one "
        "of each other"
    )
    parts = [
        _html.paragraph(
            "Published: Crudele and Cinque, measurements on the networks HERMES and IperSpace, "
            "1999. Medical centres hear a DVB carrier of 4 Mbit/s by satellite and answer over "
            "ISDN. Measured: simulations of that network, made before the published figures are "
            "read."
        )
    ]
    if outcome.interrupted:
        text = "The study was interrupted: the figures are of the runs that were done."
        parts.append(_html.paragraph(text, notice=True))
    parts += [
        _html.heading("Published beside measured"),
        _cells_table(outcome.cells),
        _html.bullets(f"{kind}: {meaning}." for kind, meaning in KINDS.items()),
        _html.heading("What does not agree"),
        _html.bullets(misses(outcome.cells) or ["No row is off."]),
        *_sections.windows(found, published),
        *_sections.files(found, published),
        *_sections.sessions(found, outcome.asymmetries, published),
        *_sections.streams(found),
        *_sections.conference(found),
        *_sections.segments(found, outcome.asymmetries),
        _html.heading("What was chosen, and what the source leaves unsaid"),
        _html.bullets(_CHOSEN),
        _html.paragraph("The source leaves unsaid:"),
        _html.bullets(_UNSAID),
        _html.heading("What was run"),
        _html.details("Configuration", json.dumps(configuration, indent=2)),
    ]
    title = "HERMES: files, streams and a conference over satellite and ISDN"
    return _html.page(title, facts, *parts)


def _cells_table(cells: Sequence[Cell]) -> str:
    rows = [
        [
            cell.published.quantity,
            cell.measured.how,
            cell.measured.kind,
            shown(cell.published.value),
            shown(cell.measured.value),
            cell.published.unit,
            ("*" if cell.within is False else "") + number(cell.error_percent, digits=1, sign=True),
            number(cell.measured.stdev),
            cell.verdict,
        ]
        for cell in cells
    ]
    columns = (
        ("quantity", ""),
        ("how it was measured", ""),
        ("kind", ""),
        ("published", ""),
        ("measured", ""),
        ("unit", ""),
        ("error", "%"),
        ("standard deviation", "one run"),
        ("verdict", ""),
    )
    caption = f"All rows of the source, in its order. Within: {WITHIN_PERCENT:g} %. Bold: off."
    return _html.table(caption, columns, rows, text_columns=3)
