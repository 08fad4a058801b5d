"""Files that a scenario names: CSV tables of spreadsheets, loggers and satellite terminals.

What can be read in one way only is read; everything else is refused with the line and the fix. A
table becomes steps (nanosecond, value), as `bentpipe.plan.series` takes them.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from pathlib import Path
from typing import Final

from bentpipe import units
from bentpipe.errors import ScenarioError, UnitError
from bentpipe.plan.lower import PlanningError
from bentpipe.scenario.document import FieldPath, file_text
from bentpipe.text import choice, shown
from bentpipe.units import NS_PER_S, Kind

# Of a file, some 2.5 MB of plan.
MAX_STEPS: Final = 100_000
# The traces that come with mahimahi have up to 5 MB.
LARGEST_FILE_BYTES: Final = 16 * 1024 * 1024
# What a plan may hold (crates/sim/src/plan): 100 days and 100 Tbit/s.
LONGEST_NS: Final = 100 * 86_400 * NS_PER_S
_HIGHEST_BPS: Final = 10**14
NUMBER: Final = re.compile(r"(?P<sign>[+-]?)(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,2})?", re.ASCII)
_LONGEST_NUMBER: Final = 64

# The first line that Excel writes and reads for the separator of a file.
_STATED_SEPARATOR: Final = re.compile(r"\s*sep=([,;|\t])\s*", re.IGNORECASE)
# A decimal comma and a separator of thousands look alike in 1,234.
_THOUSANDS: Final = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+\D*", re.ASCII)
_DATE: Final = re.compile(r"\d{1,4}[-/.]\d{1,2}[-/.]\d", re.ASCII)
# A fraction of a minute, which ISO 8601 allows, is refused: only one of a second is read.
_DATE_AND_TIME: Final = re.compile(
    r"(?P<date>\d{4}-\d\d-\d\d)[T ](?P<time>\d\d:\d\d(:\d\d)?)"
    r"((?<=:\d\d:\d\d)[.,](?P<fraction>\d{1,9}))?\s*(?P<zone>Z|UTC|[+-]\d\d:?\d\d)?",
    re.ASCII,
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
# Columns of time that have another name than `time` and its unit, such as datetimestamp_utc.
_TIME_COLUMN: Final = re.compile(
    r"((date_?|unix_?)?time(stamp)?|epoch)(_utc|_s|_ms|_us|_ns)?", re.IGNORECASE
)
# How a table says that a value was not measured.
_MISSING: Final = frozenset({"", "-", "nan", "na", "n/a", "#n/a", "null", "none"})

Steps = list[tuple[int, float]]
Cell = tuple[int, str]
"""A line and the text of a cell in it."""


@dataclass(frozen=True)
class SourceFile:
    """A file, and the field of the scenario that names it."""

    name: str
    field: FieldPath

    def error(self, reason: str, field: str = "") -> PlanningError:
        """Return an error of the file; ``field`` is the one to change, beside that of the name."""
        path = (*self.field[:-1], field) if field else self.field
        return PlanningError(path, f"{self.name}: {reason}")

    def line_error(self, line: int, read: str, allowed: str, column: str = "") -> PlanningError:
        """Return the error of a line: what was read, and what is allowed."""
        where = f'column "{column}": ' if column else ""
        message = f"{self.name}:{line}: {where}read {shown(read)}; {allowed}"
        return PlanningError(self.field, message)

    def rows(self) -> list[tuple[int, list[str]]]:
        """Return the cells of each row of a CSV file with its line.

        They are separated by semicolons or tabs if the header has one, else by commas. Comments
        (``#``) and rows without a value are left out, and so are empty cells beyond the header.

        Raises:
            PlanningError: the file cannot be read, is too large, or is not text; quotes are wrong.
        """
        rows: list[tuple[int, list[str]]] = []
        separator = ""
        for number, text in enumerate(self.lines(), 1):
            if not text.strip() or text.lstrip().startswith("#"):
                continue
            if not rows and (stated := _STATED_SEPARATOR.fullmatch(text)):
                separator = stated[1]
                continue
            separator = separator or next(
                (character for character in ";\t" if character in text), ","
            )
            cells = self._cells(number, text, separator)
            width = len(rows[0][1]) if rows else 0
            while len(cells) > width and not cells[-1]:
                cells.pop()
            if any(cells):
                rows.append((number, cells))
        return rows

    def _cells(self, line: int, text: str, separator: str) -> list[str]:
        cells = text.split(separator)
        if '"' in text:
            # RFC 4180, but for cells of several lines.
            reader = csv.reader([text], delimiter=separator, skipinitialspace=True, strict=True)
            try:
                cells = next(reader)
            except csv.Error:
                allowed = "quotes must enclose a whole cell, in one line"
                raise self.line_error(line, text, allowed) from None
        return [cell.strip() for cell in cells]

    def lines(self) -> list[str]:
        """Return the lines, whatever ends them; errors are those of `rows`."""
        file = Path(self.name)
        with suppress(OSError):
            # A pipe might never end.
            if file.exists() and not (file.is_file() or file.is_dir()):
                raise self.error("is not a file")
        try:
            text = file_text(file, "a table or a trace", LARGEST_FILE_BYTES)
        except ScenarioError as error:
            missing = "no such file" in str(error)
            hint = " (paths are relative to the scenario)" if missing else ""
            raise PlanningError(self.field, f"{error}{hint}") from None
        # splitlines would also split at form feeds and similar characters.
        text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
        lines = text.split("\n")
        return lines[:-1] if lines[-1] == "" else lines

    def with_points(self, cells: Sequence[Cell]) -> list[str]:
        """Return the texts of cells with decimal points, if they are written with commas.

        Raises:
            PlanningError: some have points, or the commas may separate thousands.
        """
        commas = [cell for cell in cells if "," in cell[1]]
        if commas:
            line, text = commas[0]
            points = [other_line for other_line, other in cells if "." in other]
            if points:
                allowed = f"line {points[0]} has a decimal point; write one in each number, and no"
                raise self.line_error(line, text, f"{allowed} separators of thousands")
            if all(_THOUSANDS.fullmatch(other) for _, other in commas):
                allowed = "the comma may be decimal or separate thousands; write a decimal point"
                raise self.line_error(line, text, f"{allowed}, or the number without it")
        return [text.replace(",", ".") for _, text in cells]


@dataclass(frozen=True)
class ColumnKind:
    """The values that a column of a CSV file can hold, and the names of such columns."""

    noun: str
    suffixes: Mapping[str, Fraction | int]
    """The suffixes of columns with plain numbers, and the unit of each."""
    largest: float
    largest_shown: str
    name: str = ""
    """The name of a column whose cells have units of ``kind``."""
    kind: Kind | None = None

    def factor(self, name: str) -> Fraction | int | None:
        """Return the unit of a column's numbers, or None if each cell has its own unit."""
        _, underscore, suffix = name.rpartition("_")
        return self.suffixes.get(f"{underscore}{suffix}") if underscore else None


RATE: Final = ColumnKind(
    units.RATE.noun,
    {"_bps": 1, "_kbps": 10**3, "_mbps": 10**6, "_gbps": 10**9},
    _HIGHEST_BPS,
    "100 Tbit/s",
    "rate",
    units.RATE,
)
DURATION: Final = ColumnKind(
    units.DURATION.noun,
    {"_ns": 1, "_us": 10**3, "_ms": 10**6, "_s": 10**9},
    LONGEST_NS,
    "100 days",
    "delay",
    units.DURATION,
)
_SHARE: Final = ColumnKind("a share from 0 to 1", {"": 1}, 1.0, "1")
_PERCENT: Final = ColumnKind("a percentage", {"": Fraction(1, 100)}, 1.0, "100")
# The columns of errors by the end of their names, with the field of the plan for each.
_ERROR_COLUMNS: Final[dict[str, str]] = {
    "loss": "loss_rate",
    "loss_rate": "loss_rate",
    "drop_rate": "loss_rate",
    "loss_percent": "loss_rate",
    "loss_pct": "loss_rate",
    "bit_error_rate": "bit_error_rate",
}
# Anywhere in the name, as in percent_packet_loss.
_PERCENT_NAME: Final = re.compile("percent|pct|%", re.IGNORECASE)


def _error_column(name: str) -> tuple[ColumnKind, str] | None:
    """Return what a column of errors holds; None if its name does not say it."""
    kind = _PERCENT if _PERCENT_NAME.search(name) else _SHARE
    ends = (end for end in _ERROR_COLUMNS if name == end or name.endswith(f"_{end}"))
    return next(((kind, _ERROR_COLUMNS[end]) for end in ends), None)


class Table:
    """A CSV file with a header, then one row per step.

    Raises:
        PlanningError: it has no header with one column of times, no rows, or too many.
    """

    def __init__(self, file: SourceFile) -> None:
        self.file = file
        rows = file.rows()
        if not rows[1:]:
            raise file.error("has no rows; expected a header and at least one row")
        (self.line, self.header), *self.rows = rows
        exact = {"time", *(f"time{suffix}" for suffix in DURATION.suffixes)}
        times = [name for name in self.header if name in exact]
        times = times or [name for name in self.header if _TIME_COLUMN.fullmatch(name)]
        if not times and any(NUMBER.fullmatch(cell) or _DATE.match(cell) for cell in self.header):
            allowed = "the first line is data; a header is missing: write one, such as time,rate"
            # All fields with this file have one error.
            whole = SourceFile(file.name, file.field[:1])
            raise whole.line_error(self.line, ",".join(self.header), allowed)
        if len(times) != 1:
            allowed = "one column is time, time_s, time_ms, time_us, time_ns or timestamp"
            raise file.line_error(self.line, ",".join(self.header), allowed)
        self.time = times[0]
        self.names = [name for name in self.header if name and name != self.time]
        doubled = [name for name, count in Counter(self.names).items() if count > 1]
        if doubled:
            raise file.line_error(self.line, doubled[0], "two columns have this name; rename one")
        if len(self.rows) > MAX_STEPS:
            raise file.error(f"has {len(self.rows)} rows; at most {MAX_STEPS} are allowed")

    def values(self, kind: ColumnKind, column: str | None) -> Steps:
        """Return the steps of rates or delays, in bit/s or nanoseconds.

        Raises:
            PlanningError: naming the line, what was read and what is allowed.
        """
        column = self.column(kind, column)
        return self._steps(kind, column, kind.factor(column))

    def column(self, kind: ColumnKind, name: str | None) -> str:
        """Return the name of the column of rates or delays; by default that of the only one.

        Raises:
            PlanningError: there is none, or several.
        """
        possible = [column for column in self.names if column == kind.name or kind.factor(column)]
        return self._column(name, possible)

    def errors(self, column: str | None) -> tuple[Steps, str]:
        """Return the steps of errors, and their field: loss or bit error rate.

        Raises:
            PlanningError: naming the line, what was read and what is allowed.
        """
        possible = [name for name in self.names if name in _ERROR_COLUMNS]
        column = self._column(column, possible or list(filter(_error_column, self.names)))
        held = _error_column(column)
        if held is None:
            allowed = choice(column, tuple(_ERROR_COLUMNS))
            raise PlanningError((*self.file.field[:-1], "column"), f'column "{column}": {allowed}')
        kind, field = held
        return self._steps(kind, column, kind.suffixes[""]), field

    def _column(self, name: str | None, possible: list[str]) -> str:
        """Return the column with this name, or the only possible one."""
        if name is None and len(possible) == 1:
            return possible[0]
        at_header = SourceFile(f"{self.file.name}:{self.line}", self.file.field)
        if name is None:
            names = ", ".join(self.names) or "none"
            problem = "several columns match" if possible else "no column name matches"
            raise at_header.error(f"{problem}; name the column (there are: {names})")
        if name not in self.names:
            raise at_header.error(f"column: {choice(name, tuple(self.names))}", "column")
        return name

    def _steps(self, kind: ColumnKind, column: str, factor: Fraction | int | None) -> Steps:
        """Return a step for each row that has a value; the others keep the value above them."""
        when, where = self._cells(self.time), self._cells(column)
        is_dated = _DATE.match(when[0][1]) is not None
        values = [cell for cell in where if cell[1].lower() not in _MISSING]
        if values[:1] != where[:1]:
            allowed = "the first row needs a value; remove the rows above the first one that has"
            raise self.file.line_error(*where[0], allowed, column)
        texts = self.file.with_points([*values, *([] if is_dated else when)])
        measured = {
            cell[0]: self._value(cell, text, kind, column, factor)
            for cell, text in zip(values, texts, strict=False)
        }
        times_ns = self._times_ns(when, [] if is_dated else texts[len(values) :])
        steps: Steps = []
        last_ns = 0
        for cell, at_ns in zip(when, times_ns, strict=True):
            if at_ns < last_ns:
                allowed = "must be after the row above; sort the rows by time"
                raise self.file.line_error(*cell, allowed)
            last_ns, step = at_ns, (at_ns, measured.get(cell[0]))
            if step[1] is None or (steps and steps[-1] == step):
                continue
            if steps and steps[-1][0] == at_ns:
                allowed = "must be after the row above, which has this time and another value"
                raise self.file.line_error(*cell, f"{allowed}; keep one of them")
            steps.append((at_ns, step[1]))
        return steps

    def _cells(self, column: str) -> list[Cell]:
        """Return the cells of a column."""
        position = self.header.index(column)
        for line, cells in self.rows:
            if len(cells) != len(self.header):
                allowed = f"a row must have {len(self.header)} values, as the header has"
                if len(cells) > len(self.header):
                    allowed += " (decimal commas need quotes, or semicolons between the columns)"
                raise self.file.line_error(line, ",".join(cells), allowed)
        return [(line, cells[position]) for line, cells in self.rows]

    def _times_ns(self, cells: Sequence[Cell], texts: Sequence[str]) -> list[int]:
        """Return times in nanoseconds from the first row on; without ``texts`` they are dates.

        Numbers beyond any run count from 1970, so that they have their own beginning, as dates do.
        """
        if texts:
            factor = DURATION.factor(self.time.lower())
            times_ns = [
                int(self._number(cell, text, DURATION, self.time, factor))
                for cell, text in zip(cells, texts, strict=True)
            ]
        else:
            times_ns = self._dates_ns(cells)
        first_ns = times_ns[0]
        if texts and 0 < first_ns <= LONGEST_NS:
            allowed = f"the first time must be 0, or a date; subtract {cells[0][1]} from all times"
            raise self.file.line_error(*cells[0], allowed)
        for cell, at_ns in zip(cells, times_ns, strict=True):
            if at_ns - first_ns > LONGEST_NS:
                allowed = "must be at most 100 days after the first"
                raise self.file.line_error(*cell, allowed, self.time)
        return [at_ns - first_ns for at_ns in times_ns]

    def _dates_ns(self, cells: Sequence[Cell]) -> list[int]:
        """Return dates with times, in nanoseconds since 1970; all or none have a time zone."""
        allowed = "expected a date and a time as in ISO 8601, such as 2024-05-01T12:00:00.5Z"
        zones = set()
        dates_ns = []
        for cell in cells:
            match = _DATE_AND_TIME.fullmatch(cell[1])
            try:
                if match is None:
                    raise ValueError
                zone = "+00:00" if match["zone"] in {None, "Z", "UTC"} else match["zone"]
                at = datetime.fromisoformat(f"{match['date']}T{match['time']}{zone}")
            except ValueError:
                raise self.file.line_error(*cell, allowed, self.time) from None
            zones.add(match["zone"] is None)
            if len(zones) > 1:
                both = "some rows have a time zone and others none; write it in all"
                raise self.file.line_error(*cell, both, self.time)
            seconds = (at - _EPOCH) // timedelta(seconds=1)
            dates_ns.append(seconds * NS_PER_S + int((match["fraction"] or "").ljust(9, "0")))
        return dates_ns

    def _value(
        self, cell: Cell, text: str, kind: ColumnKind, column: str, factor: Fraction | int | None
    ) -> float:
        """Return a value; ``text`` is that of its cell with a decimal point."""
        value = self._number(cell, text, kind, column, factor)
        if value > kind.largest:
            allowed = f"must be at most {kind.largest_shown}"
            raise self.file.line_error(*cell, allowed, column)
        return value

    def _number(
        self, cell: Cell, text: str, kind: ColumnKind, column: str, factor: Fraction | int | None
    ) -> float:
        if factor is None:
            assert kind.kind is not None
            try:
                return kind.kind.parse(text)
            except UnitError as error:
                names = ", ".join(f"{column}{suffix}" for suffix in kind.suffixes)
                plain = f"for plain numbers, name the column {names}"
                where = f'{self.file.name}:{cell[0]}: column "{column}"'
                raise PlanningError(self.file.field, f"{where}: {error} ({plain})") from None
        match = NUMBER.fullmatch(text)
        if match is None or len(text) > _LONGEST_NUMBER:
            raise self.file.line_error(*cell, f"{kind.noun} is a plain number", column)
        if match["sign"] == "-" and Fraction(text) < 0:
            raise self.file.line_error(*cell, "must not be negative", column)
        number = Fraction(text) * factor
        return float(number) if kind.kind is None else round(number)
