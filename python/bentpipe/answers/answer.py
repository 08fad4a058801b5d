"""The parts of an answer: its figures, tables and charts, and its words.

The words are a template for each question. It has a section for each part, below a line such as
``## reason``. What is before the first one, macros and names, is for all of them. Of ``lines``,
``commands`` and ``sources`` each line is one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from bentpipe.answers.runs import (
    WORTH_PERCENT,
    Estimate,
    Measurements,
    percent_of,
    percent_text,
    signed_percent,
)
from bentpipe.errors import InternalError
from bentpipe.plan.presets import series_values
from bentpipe.results.views import Column, View, from_mappings, text_table
from bentpipe.text import counted, csv_rows
from bentpipe.units import format_duration, format_rate, format_size

if TYPE_CHECKING:
    from bentpipe.answers.trial import Trial

# An answer is read at once: longer ones belong in the table of the report.
MAX_LINES: Final = 9
_SUMMARY_WIDTH: Final = 80
_LISTS: Final = ("lines", "commands", "sources")
_FILTERS: Final = {
    "rate": format_rate,
    "time": format_duration,
    "size": format_size,
    "counted": counted,
    "change": signed_percent,
    "share": percent_text,
    "percent_of": percent_of,
    "grouped": "{:,.0f}".format,
    "percent": "{:.0%}".format,
}


@dataclass(frozen=True)
class Effect:
    """How the figure of an answer changes if one assumption is another, in percent of it.

    ``figure`` names it, unless the assumption does.
    """

    assumption: str
    instead: str
    percent: Estimate
    figure: str = ""

    def __str__(self) -> str:
        """Return a part of a sentence, such as "bit error rate 1e-07 instead of 0: -74.6 %"."""
        change = f"{self.figure} {signed_percent(self.percent)}".lstrip()
        return f"{self.assumption} instead of {self.instead}: {change}"


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

    ``figures`` are its numbers: names end in their unit. ``effects`` are how its main figure
    depends on assumptions, the largest first. ``trial`` is what can be tried in real time.
    ``interrupted``: Ctrl-C ended the runs, and the answer is that of the complete ones. ``command``
    asks again. ``seeds`` are those of each case; after Ctrl-C a case may lack the last ones.
    ``warnings`` are those about the link.

    Its words are from ``question`` on, made of ``figures`` and ``facts``: ``lines`` are the answer
    itself, ``summary`` is a table for below them, and ``commands`` are what to try next.
    """

    figures: Mapping[str, Any]
    facts: Mapping[str, Any] = field(default_factory=dict)
    tables: Sequence[View] = ()
    summary: View | None = None
    charts: Sequence[Chart] = ()
    effects: Sequence[Effect] = ()
    trial: Trial | None = None
    interrupted: bool = False
    warnings: Sequence[str] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict)
    seeds: Sequence[int] = ()
    command: str = ""
    question: str = ""
    lines: Sequence[str] = ()
    reason: str = ""
    uncertainty: str = ""
    assumption: str = ""
    commands: Sequence[str] = ()
    sources: Sequence[str] = ()

    def __post_init__(self) -> None:
        if len(self.lines) > MAX_LINES:
            raise InternalError(f"an answer of {len(self.lines)} lines; at most {MAX_LINES}")

    @property
    def matters_most(self) -> str:
        """Return the assumption with the largest effect that is shown, as a sentence."""
        if self.assumption:
            return self.assumption
        if not self.effects:
            return "none was varied."
        for effect in self.effects:
            if abs(effect.percent.mean) > (effect.percent.half_width or 0):
                return f"{effect}."
        return f"none: no effect is shown; the largest was {self.effects[0]}."

    @property
    def interruption(self) -> str:
        """What Ctrl-C left of the answer; empty without it."""
        text = "the answer is that of the runs that were complete by then"
        return text if self.interrupted else ""

    def text(self) -> str:
        """Return the answer for a terminal, a paragraph a line."""
        parts = [
            self.question,
            *(f"  {line}" for line in self.lines),
            "",
            *([text_table(self.summary, _SUMMARY_WIDTH), ""] if self.summary else []),
            f"Why: {self.reason}",
            f"How sure: {self.uncertainty}",
            *(f"Warning: {warning}." for warning in self.warnings),
            *([f"Interrupted: {self.interruption}."] if self.interrupted else []),
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
            "warnings": list(self.warnings),
            "matters_most": self.matters_most,
            "effects": [plain(vars(effect)) for effect in self.effects],
            "commands": list(self.commands),
            "parameters": dict(self.parameters),
            "seeds": list(self.seeds),
            "command": self.command,
            "figures": plain(self.figures),
            "sources": list(self.sources),
            **({"interrupted": True} if self.interrupted else {}),
        }


def plain(value: Any) -> Any:
    """Return figures as plain data: an estimate becomes a mapping, with a spread if it has one."""
    if isinstance(value, Estimate):
        fields = vars(value)
        return {name: fields[name] for name in fields if name != "spread" or fields[name]}
    if isinstance(value, Mapping):
        return {name: plain(nested) for name, nested in value.items()}
    if isinstance(value, list | tuple):
        return [plain(nested) for nested in value]
    return value


# How tables.csv says that estimates are written; of others a table has the mean.
_INTERVALS: Final = {
    "change": signed_percent,
    "plus_minus": lambda percent: percent.text("{:.1f}".format),
}
# And other values, if not by a format.
_TEXTS: Final = {"": None, **_INTERVALS}


def columns(table: str) -> tuple[Column, ...]:
    """Return the columns of a table in tables.csv."""
    return tuple(
        Column(row["name"], row["title"], row["note"], _TEXTS.get(row["text"], row["text"].format))
        for row in read_rows("tables.csv", table)
    )


def table(name: str, title: str, rows: Iterable[Mapping[str, Any]], **options: Any) -> View:
    """Return a table with the columns that tables.csv has for it; what a row lacks is None."""
    whole = {row["name"] for row in read_rows("tables.csv", name) if row["text"] in _INTERVALS}
    cells = [
        {key: value if key in whole else _mean(value) for key, value in row.items()} for row in rows
    ]
    return from_mappings(title, columns(name), cells, **options)


def _mean(value: Any) -> Any:
    if not isinstance(value, Estimate):
        return value
    return None if math.isnan(value.mean) else value.mean


def link_view(directions: Iterable[Mapping[str, Any]]) -> View:
    """Return what a link is, direction by direction of a plan.

    Of values that differ with time or from terminal to terminal it has the range.
    """
    rows = []
    for wire in directions:
        queue, ends = wire["queue"], wire["to"]
        limit = _LIMITS[queue["limit"]["unit"]](queue["limit"].get("value"))
        delays = [ns + to["delay_ns"] for ns in series_values(wire["delay_ns"]) for to in ends]
        # Errors are those of all receivers, and of each.
        channels = [wire["channel"], *(to["channel"] for to in ends)]
        errors = dict.fromkeys(_words_of(each) for each in channels if each["kind"] != "clear")
        rows.append(
            {
                "direction": wire["name"],
                "rate": _range(series_values(wire["rate_bps"]), format_rate),
                "delay": _range(delays, format_duration),
                "jitter": format_duration(wire["jitter_ns"]),
                "queue": f"{queue['discipline']}, {limit}",
                "errors": "; ".join(errors) or "none",
            }
        )
    return table("link", "The link", rows)


# The limit of a queue for a person, by its unit in plans.
_LIMITS: Final[Mapping[str, Callable[[Any], str]]] = {
    "unlimited": lambda _: "unlimited",
    "packets": "{:,} packets".format,
    "time_ns": format_duration,
    "link_bytes": format_size,
    "bytes": format_size,
}


def _range(values: Sequence[float], text: Callable[[Any], str]) -> str:
    low, high = min(values), max(values)
    return text(low) if low == high else f"{text(low)} to {text(high)}"


def _words_of(channel: Mapping[str, Any]) -> str:
    """Return the kind of a channel, and the ranges of its rates that are not 0."""
    rates: dict[str, list[float]] = {}

    def collect(part: Any) -> None:
        for name, value in part.items() if isinstance(part, Mapping) else ():
            if name.endswith("rate"):
                rates.setdefault(name.replace("_", " "), []).append(value)
            for nested in value if isinstance(value, list) else [value]:
                collect(nested)

    collect(channel)
    ranges = [
        f"{name} {_range(values, '{:g}'.format)}" for name, values in rates.items() if any(values)
    ]
    return ", ".join(ranges) or channel["kind"].replace("_", " ")


def charts(name: str, measurements: Mapping[Any, Measurements], **options: Any) -> list[Chart]:
    """Return the charts that charts.csv has for a question: figures of cases over their names.

    A chart has a line for each of its series, or panel.
    """
    made: dict[str, Chart] = {}
    for row in read_rows("charts.csv", name):
        series = [
            measured.of(row["figure"]).times(float(row["factor"]))
            for measured in measurements.values()
        ]
        title = row["title"]
        before = made[title].series if title in made else {}
        made[title] = Chart(
            title=title,
            kind=row["kind"],
            scale=row["scale"],
            x_label=row["x_label"],
            y_label=row["y_label"],
            series={**before, row["label"].replace("\\n", "\n"): series},
            **{"x": [*measurements], **options},
        )
    return [*made.values()]


def read_rows(file: str, key: str) -> list[dict[str, Any]]:
    """Return the rows of a CSV file of this package whose first cell is ``key``, without it."""
    rows = csv_rows(Path(__file__).parent / file)
    return [row for row in rows if row.pop(next(iter(row))) == key]


def words(question: str, facts: dict[str, Any]) -> dict[str, Any]:
    """Return the parts of an answer that are words, by name: texts, or lists of texts."""
    texts = {name: part(question, name, facts) for name in sections(question)}
    return {name: lines if name in _LISTS else "".join(lines) for name, lines in texts.items()}


def part(question: str, name: str, facts: dict[str, Any]) -> list[str]:
    """Return the texts of a part of an answer: one, unless it is a list."""
    text = sections(question)[name].render(facts)
    lines = text.splitlines() if name in _LISTS else [text]
    return [line for rendered in lines if (line := " ".join(rendered.split()))]


@cache
def sections(question: str) -> dict[str, Template]:
    """Return the parts of the template of a question."""
    # Texts for terminals and JSON: pages escape them.
    folder = Path(__file__).parent / "templates"
    loader = FileSystemLoader(folder)
    env = Environment(
        loader=loader, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    env.filters |= _FILTERS
    env.globals["WORTH_PERCENT"] = WORTH_PERCENT
    text = (folder / f"{question}.txt.j2").read_text(encoding="utf-8")
    common, *rest = re.split(r"^## (\w+)\n", text, flags=re.MULTILINE)
    parts = zip(rest[::2], rest[1::2], strict=True)
    return {name: env.from_string(common + section) for name, section in parts}
