"""What delay, jitter and loss to use for an orbit.

Each has its source, range and year.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from bentpipe.answers.answer import Answer, read_rows, table
from bentpipe.answers.catalog import Option
from bentpipe.answers.question import Question
from bentpipe.scenario.tables import PRESETS


@dataclass(kw_only=True, eq=False)
class Preset(Question):
    """Published figures of an orbit."""

    orbit: Annotated[
        Literal["geo", "meo", "leo"], Option("The orbit.", "geo|meo|leo", is_argument=True)
    ] = "geo"

    examples = ("geo", "leo --json")

    def answer(self) -> Answer:
        """Return what is published, without runs."""
        # What each is, its range, where it is from, and the year.
        facts: list[dict[str, Any]] = [
            {**row, "year": int(row["year"])} for row in read_rows("orbits.csv", self.orbit)
        ]
        preset = PRESETS[self.orbit]
        return Answer(
            facts={"source": preset.source},
            figures={"orbit": self.orbit, "link": preset.link, "facts": facts},
            tables=[table("preset", "Published figures", facts)],
        )
