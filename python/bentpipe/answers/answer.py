"""The parts of an answer: its lines, the reason, the uncertainty, and what to do next."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from bentpipe.errors import InternalError
from bentpipe.results.views import Column, View, text_table
from bentpipe.text import counted

# An answer is read at once: longer ones belong in the table of the report.
MAX_LINES: Final = 9
_SUMMARY_WIDTH: Final = 80


@dataclass(frozen=True)
class Estimate:
    """A mean over runs and the half width of its 95 % confidence interval.

    The half width is None with one run, and 0 if all runs agree.
    """

    mean: float
    half_width: float | None
    runs: int

    @property
    def low(self) -> float:
        """The lower end of the interval; the mean without one."""
        return self.mean - (self.half_width or 0)

    @property
    def high(self) -> float:
        """The upper end of the interval; the mean without one."""
        return self.mean + (self.half_width or 0)

    @property
    def runs_text(self) -> str:
        """How many runs it has: ``10 runs``."""
        return counted(self.runs, "run")

    def text(self, write: Callable[[float], str]) -> str:
        """Return the mean with its interval: ``12.3 Mbit/s ± 200 kbit/s``."""
        text = write(self.mean)
        return f"{text} ± {write(self.half_width)}" if self.half_width else text

    def times(self, factor: float) -> Estimate:
        """Return the estimate in another unit."""
        half_width = None if self.half_width is None else self.half_width * abs(factor)
        return Estimate(self.mean * factor, half_width, self.runs)


@dataclass(frozen=True)
class Effect:
    """How the figure of an answer changes if one assumption is another, in percent of it."""

    assumption: str
    instead: str
    percent: Estimate

    def __str__(self) -> str:
        """Return a part of a sentence, such as "bit error rate 1e-07 instead of 0: -74.6 %"."""
        return f"{self.assumption} instead of {self.instead}: {signed_percent(self.percent)}"


@dataclass(frozen=True, kw_only=True)
class Chart:
    """Values over a common x axis (``lines``, ``panels``), or one value a name (``bars``).

    ``series`` has the estimates of each label, one an element of ``x``. ``panels`` draws each
    series on a panel of its own, above each other, with its label on the y axis. ``marks`` are
    vertical lines at positions of x, with a text each. ``scale`` is that of x, and ``x_units`` are
    further units of x: a label, and how much of the unit 1 of x is.
    """

    title: str
    x_label: str = ""
    y_label: str = ""
    x: Sequence[float] | Sequence[str]
    series: Mapping[str, Sequence[Estimate]]
    marks: Sequence[tuple[float, str]] = ()
    kind: Literal["lines", "panels", "bars"] = "lines"
    scale: Literal["linear", "log"] = "linear"
    x_units: Sequence[tuple[str, float]] = ()
    markers: bool = True

    @classmethod
    def bars(cls, title: str, unit: str, values: Mapping[str, Estimate]) -> Chart:
        """Return a chart with a bar for each value, by name."""
        return cls(
            title=title,
            y_label=unit,
            x=list(values),
            series={unit: list(values.values())},
            kind="bars",
        )


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The answer to a question, for a person (`text`) and for programs (`to_json`).

    ``lines`` are the answer itself, and ``summary`` is a table for below them. ``effects`` are how
    its main figure depends on assumptions, the largest first. ``commands`` are what to try next.
    ``figures`` are its numbers: names end in their unit. ``case`` is the scenario, as plain data,
    whose first flow has the figure ``goodput_bps``, if there is one. ``interrupted``: Ctrl-C ended
    the runs, and the answer is that of the complete ones.
    """

    question: str
    lines: Sequence[str]
    reason: str
    uncertainty: str
    effects: Sequence[Effect] = ()
    assumption: str = ""
    commands: Sequence[str]
    figures: Mapping[str, Any]
    tables: Sequence[View] = ()
    charts: Sequence[Chart] = ()
    sources: Sequence[str] = ()
    case: Mapping[str, Any] = field(default_factory=dict)
    summary: View | None = None
    interrupted: bool = False
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.lines) > MAX_LINES:
            raise InternalError(f"an answer of {len(self.lines)} lines; at most {MAX_LINES}")

    @property
    def matters_most(self) -> str:
        """Return the assumption with the largest effect on the main figure, as a sentence."""
        if self.assumption:
            return self.assumption
        if not self.effects:
            return "none was varied."
        largest = self.effects[0]
        if abs(largest.percent.mean) <= (largest.percent.half_width or 0):
            return f"none: no effect is shown; the largest was {largest}."
        return f"{largest}."

    def text(self) -> str:
        """Return the answer for a terminal, a paragraph a line."""
        parts = [
            self.question,
            *(f"  {line}" for line in self.lines),
            "",
            *([text_table(self.summary, _SUMMARY_WIDTH), ""] if self.summary else []),
            f"Why: {self.reason}",
            f"How sure: {self.uncertainty}",
            f"What matters most: {self.matters_most}",
            *(f"Next: {command}" for command in self.commands),
        ]
        return "\n".join(parts)

    def to_json(self) -> dict[str, Any]:
        """Return the answer as plain data."""
        return {
            "question": self.question,
            "answer": list(self.lines),
            "reason": self.reason,
            "uncertainty": self.uncertainty,
            "matters_most": self.matters_most,
            "effects": [asdict(effect) for effect in self.effects],
            "commands": list(self.commands),
            "parameters": dict(self.parameters),
            "figures": plain(self.figures),
            "sources": list(self.sources),
            **({"interrupted": True} if self.interrupted else {}),
        }


def plain(value: Any) -> Any:
    """Return figures as plain data: an estimate becomes a mapping."""
    if isinstance(value, Estimate):
        return asdict(value)
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value


def signed_percent(percent: Estimate) -> str:
    """Return a change in percent with its interval, such as "+12.1 % (+11.8 to +12.4)"."""
    text = f"{percent.mean:+.1f} %"
    if percent.half_width:
        text += f" ({percent.low:+.1f} to {percent.high:+.1f})"
    return text


def percent_of(part: float, whole: float) -> str:
    """Return a part in percent: ``61.3 %``."""
    return f"{100 * part / whole:.1f} %" if whole else "-"


def percent_text(share: Estimate) -> str:
    """Return a share in percent with its interval: ``61.3 % ± 0.4``."""
    text = f"{100 * share.mean:.1f} %"
    return f"{text} ± {100 * share.half_width:.1f}" if share.half_width else text


# How tables.csv says that values are written, if not by a format.
_TEXTS: Final = {
    "": None,
    "change": signed_percent,
    "plus_minus": lambda percent: percent.text("{:.1f}".format),
}


def columns(table: str) -> tuple[Column, ...]:
    """Return the columns of a table in tables.csv."""
    return tuple(
        Column(row["name"], row["title"], row["note"], _TEXTS.get(row["text"], row["text"].format))
        for row in read_rows("tables.csv", table)
    )


def read_rows(file: str, key: str) -> list[dict[str, str]]:
    """Return the rows of a CSV file of this package whose first cell is ``key``, without it."""
    with (Path(__file__).parent / file).open(encoding="utf-8", newline="") as lines:
        _, *names = next(rows := csv.reader(lines))
        return [dict(zip(names, cells, strict=True)) for first, *cells in rows if first == key]
