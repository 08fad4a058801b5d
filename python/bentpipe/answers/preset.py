"""``ask preset``: what delay, jitter and loss to use for an orbit, with source and date."""

from __future__ import annotations

from typing import Any, Final

from bentpipe.answers.answer import Answer, columns, read_rows
from bentpipe.errors import UsageError
from bentpipe.results.views import View
from bentpipe.scenario.tables import PRESETS
from bentpipe.text import choice

ORBITS: Final = ("geo", "meo", "leo")


def preset(orbit: str = "geo") -> Answer:
    """Answer what delay, jitter and loss to use for ``geo``, ``meo`` or ``leo``.

    Raises:
        UsageError: there is no such orbit.
    """
    if orbit not in ORBITS:
        raise UsageError(f"orbit: {choice(orbit, ORBITS)}")
    # Published figures: what each is, its range, where it is from, and the year.
    facts: list[dict[str, Any]] = [
        {**row, "year": int(row["year"])} for row in read_rows("orbits.csv", orbit)
    ]
    link = PRESETS[orbit].link
    lines = [
        f"Preset {orbit}: one-way delay {link['forward']['delay']}, queue of 1 BDP each way",
        *(f"{fact['what']}: {_range(fact)} ({fact['year']})" for fact in facts),
    ]
    if not any("jitter" in fact["what"] for fact in facts):
        lines.append("Jitter and loss: none published here; 0 is assumed, so measure your link")
    table = columns("preset")
    rows = [[fact[column.name] for column in table] for fact in facts]
    return Answer(
        question=f"What delay, jitter and loss should a simulation of {orbit} use?",
        lines=lines,
        reason="delay is geometry: the distance to the satellite and down again, over the speed of "
        "light. What is measured also has the terrestrial network, access and queues in it.",
        uncertainty="propagation is exact for an elevation; measured values are those of one place "
        "and year, and services change.",
        assumption="the elevation of the satellite: the preset has 10 degrees, the longest path in "
        "use.",
        commands=[f"bentpipe show presets {orbit}", f"bentpipe ask tcp --link {orbit}"],
        figures={"orbit": orbit, "link": link, "facts": facts},
        tables=[View("Published figures", table, rows)],
        sources=[PRESETS[orbit].source],
        parameters={"orbit": orbit},
    )


def _range(fact: dict[str, Any]) -> str:
    return str(fact["low"]) if fact["low"] == fact["high"] else f"{fact['low']} to {fact['high']}"
