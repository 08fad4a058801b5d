"""``ask preset``: what delay, jitter and loss to use for an orbit, with source and date."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Final

from bentpipe.answers.answer import Answer
from bentpipe.errors import UsageError
from bentpipe.results.views import Column, View
from bentpipe.scenario.presets import PRESETS
from bentpipe.text import choice


@dataclass(frozen=True)
class Fact:
    """A published figure of an orbit: what it is, its range, where it is from, and the year."""

    what: str
    low: str
    high: str
    source: str
    year: int


_HUSTON_2022: Final = "G. Huston, Testing LEO and GEO satellite services in Australia, APNIC blog"
_HUSTON_2024: Final = "G. Huston, A transport protocol's view of Starlink, APNIC blog"
_FACT_CHECK: Final = (
    "Fact checking Starlink's performance figures, APNIC blog (UCLouvain, Trieste, Torino): "
    "measured in Belgium"
)
_TR_38821: Final = "3GPP TR 38.821, table 4.2-2, transparent payload"

ORBITS: Final[dict[str, tuple[Fact, ...]]] = {
    "geo": (
        Fact("one-way propagation", "239.6 ms", "279.0 ms", "RFC 2488, section 2", 1999),
        Fact("one-way propagation, 10 degrees", "270.7 ms", "270.7 ms", _TR_38821, 2023),
        Fact("measured round trip", "about 600 ms", "about 600 ms", _HUSTON_2022, 2022),
    ),
    "meo": (
        Fact(
            "one-way propagation, 8,062 km",
            "53.8 ms",
            "79.3 ms",
            "geometry: overhead, and at 10 degrees of elevation",
            2013,
        ),
    ),
    "leo": (
        Fact("one-way propagation, 600 km", "4.0 ms", "12.9 ms", _TR_38821, 2023),
        Fact("measured round trip, quartiles", "40 ms", "60 ms", _FACT_CHECK, 2022),
        Fact("measured round trip, smallest", "20 ms", "20 ms", _FACT_CHECK, 2022),
        Fact("jitter of successive round trips, mean", "6.7 ms", "6.7 ms", _HUSTON_2024, 2024),
        Fact("interval between handovers", "15 s", "15 s", _HUSTON_2024, 2024),
        Fact("added at a handover", "30 ms", "50 ms", _HUSTON_2024, 2024),
    ),
}


def preset(orbit: str = "geo") -> Answer:
    """Answer what delay, jitter and loss to use for ``geo``, ``meo`` or ``leo``.

    Raises:
        UsageError: there is no such orbit.
    """
    if orbit not in ORBITS:
        raise UsageError(f"orbit: {choice(orbit, tuple(ORBITS))}")
    facts = ORBITS[orbit]
    link = PRESETS[orbit].link
    lines = [
        f"Preset {orbit}: one-way delay {link['forward']['delay']}, queue of 1 BDP each way",
        *(f"{fact.what}: {_range(fact)} ({fact.year})" for fact in facts),
    ]
    if not any("jitter" in fact.what for fact in facts):
        lines.append("Jitter and loss: none published here; 0 is assumed, so measure your link")
    titles = {"what": "what", "low": "from", "high": "to", "year": "year", "source": "source"}
    columns = [Column(name, title, text=str) for name, title in titles.items()]
    rows = [[getattr(fact, name) for name in titles] for fact in facts]
    return Answer(
        question=f"What delay, jitter and loss should a simulation of {orbit} use?",
        lines=lines,
        reason="delay is geometry: the distance to the satellite and down again, over the speed of "
        "light. What is measured also has the terrestrial network, access and queues in it.",
        uncertainty="propagation is exact for an elevation; measured values are those of one place "
        "and year, and services change.",
        assumption="the elevation of the satellite: the preset has 10 degrees, the longest path in "
        "use.",
        commands=[f"bentpipe presets {orbit}", f"bentpipe ask tcp --link {orbit}"],
        figures={
            "orbit": orbit,
            "link": link,
            "facts": [asdict(fact) for fact in facts],
        },
        tables=[View("Published figures", columns, rows)],
        sources=[PRESETS[orbit].source],
        parameters={"orbit": orbit},
    )


def _range(fact: Fact) -> str:
    return fact.low if fact.low == fact.high else f"{fact.low} to {fact.high}"
