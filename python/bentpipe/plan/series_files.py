"""Values over time from files: delivery traces of mahimahi, and CSV time series.

Both become steps (nanosecond, value) in the plan, so that a result does not depend on the file.
Errors name the file and the line, what was read and what is allowed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Final

from bentpipe import units
from bentpipe.errors import ScenarioError, UnitError
from bentpipe.plan.lower import PlanningError
from bentpipe.scenario.document import FieldPath, file_text
from bentpipe.text import choice, shown
from bentpipe.units import NS_PER_S, Kind, format_duration

# The traces that come with mahimahi have up to 5 MB.
LARGEST_FILE_BYTES: Final = 16 * 1024 * 1024
# Some 2.5 MB of plan.
MAX_STEPS: Final = 100_000
# mm-link(1): each line is an opportunity to deliver 1500 bytes.
DELIVERY_BITS: Final = 8 * 1_500

_NS_PER_MS: Final = 10**6
# What a plan may hold (crates/sim/src/plan): 100 days and 100 Tbit/s.
_LONGEST_NS: Final = 100 * 86_400 * NS_PER_S
_HIGHEST_BPS: Final = 10**14
NUMBER: Final = re.compile(r"(?P<sign>[+-]?)(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,2})?", re.ASCII)
_LONGEST_NUMBER: Final = 64
_TIMESTAMP: Final = re.compile(r"\d{1,20}", re.ASCII)

Steps = list[tuple[int, float]]


@dataclass
class SeriesError(Exception):
    """A file is wrong; the message has its name and line, and ``field`` is the one to change."""

    message: str
    field: str = ""


@contextmanager
def file_errors(path: FieldPath, field: str) -> Iterator[None]:
    """Name the field of a file that is wrong: that of the error, or ``field``, below ``path``.

    Raises:
        PlanningError: a `SeriesError` was raised.
    """
    try:
        yield
    except SeriesError as error:
        raise PlanningError((*path, error.field or field), error.message) from None


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
    _LONGEST_NS,
    "100 days",
    "delay",
    units.DURATION,
)
_SHARE: Final = ColumnKind("a share from 0 to 1", {"": 1}, 1.0, "1")
_PERCENT: Final = ColumnKind("a percentage", {"": Fraction(1, 100)}, 1.0, "100")
# The columns of errors by name, with the field of the plan for each.
ERROR_COLUMNS: Final[dict[str, tuple[ColumnKind, str]]] = {
    "loss": (_SHARE, "loss_rate"),
    "loss_rate": (_SHARE, "loss_rate"),
    "loss_percent": (_PERCENT, "loss_rate"),
    "bit_error_rate": (_SHARE, "bit_error_rate"),
}


def delivery_steps(path: str, bin_ns: int, until_ns: int) -> Steps:
    """Return the rate steps of a mahimahi delivery trace, repeated until a time.

    The steps include the whole trace, and end with a bin that has deliveries, so that packets
    queued at the end of the run can leave.

    Raises:
        SeriesError: the file cannot be read as a trace, or gives too many steps.
    """
    counts, length_ms = _deliveries(path, bin_ns)
    length_ns = length_ms * _NS_PER_MS
    until_ns = max(until_ns, length_ns)
    steps: Steps = []
    for start_ns, rate_bps in _repeated(counts, length_ns, bin_ns):
        if not steps or steps[-1][1] != rate_bps:
            steps.append((start_ns, rate_bps))
        if len(steps) > MAX_STEPS:
            reason = (
                f"{path}: gives more than {MAX_STEPS} steps of the rate by "
                f"{format_duration(until_ns)}; write a longer bin, or a shorter duration"
            )
            raise SeriesError(reason, "bin")
        if start_ns >= until_ns and rate_bps > 0:
            break
    return steps


def _repeated(counts: dict[int, int], length_ns: int, bin_ns: int) -> Iterator[tuple[int, int]]:
    """Yield the start and the rate of each bin with deliveries, and of each gap between them."""
    base_ns = 0
    while True:
        end_ns = 0
        for number, count in counts.items():
            start_ns = number * bin_ns
            if start_ns > end_ns:
                yield base_ns + end_ns, 0
            # The last bin ends with the trace.
            end_ns = min(start_ns + bin_ns, length_ns)
            yield base_ns + start_ns, count * DELIVERY_BITS * NS_PER_S // (end_ns - start_ns)
        base_ns += length_ns


def _deliveries(path: str, bin_ns: int) -> tuple[dict[int, int], int]:
    """Return the deliveries of each bin, by its number, and the length of the trace in ms."""
    counts: dict[int, int] = {}
    last_ms = 0
    for line, text in enumerate(_lines(path), 1):
        if not _TIMESTAMP.fullmatch(text):
            raise line_error(path, line, text, "expected an integer (milliseconds), such as 12")
        stamp_ms = int(text)
        if stamp_ms * _NS_PER_MS > _LONGEST_NS:
            raise line_error(path, line, text, "must be at most 100 days")
        if stamp_ms < last_ms:
            raise line_error(path, line, text, f"must not be before {last_ms}, the line above")
        last_ms = stamp_ms
        # A bin includes its end, as the trace does.
        number = max(stamp_ms * _NS_PER_MS - 1, 0) // bin_ns
        counts[number] = counts.get(number, 0) + 1
    if not counts:
        raise SeriesError(f"{path}: is empty; a trace has a line for each delivery")
    if last_ms == 0:
        raise SeriesError(f"{path}: ends at 0 ms; a trace must last longer, to be repeated")
    return counts, last_ms


def value_steps(path: str, column: str | None, kind: ColumnKind) -> Steps:
    """Return the steps of rates or delays in a CSV file, in bit/s or nanoseconds.

    Raises:
        SeriesError: the file cannot be read as a time series of them.
    """
    table = _Table(path)
    possible = [name for name in table.values if name == kind.name or _factor(kind, name)]
    column = table.column(column, possible)
    return table.read(kind, column, _factor(kind, column))


def error_steps(path: str, column: str | None) -> tuple[Steps, str]:
    """Return the steps of errors in a CSV file, and their field: loss or bit error rate.

    Raises:
        SeriesError: the file cannot be read as a time series of errors.
    """
    table = _Table(path)
    column = table.column(column, [name for name in table.values if name in ERROR_COLUMNS])
    if column not in ERROR_COLUMNS:
        message = f'column "{column}": {choice(column, tuple(ERROR_COLUMNS))}'
        raise SeriesError(message, "column")
    quantity, field = ERROR_COLUMNS[column]
    return table.read(quantity, column, quantity.suffixes[""]), field


class _Table:
    """A CSV file: a header, then one row per step."""

    def __init__(self, path: str) -> None:
        self.path = path
        rows = rows_of(path)
        if not rows[1:]:
            raise SeriesError(f"{path}: has no rows; expected a header and at least one row")
        (self.line, self.header), *self.rows = rows
        names = {"time", *(f"time{suffix}" for suffix in DURATION.suffixes)}
        times = [name for name in self.header if name in names]
        if len(times) != 1:
            allowed = "one column is time, time_s, time_ms, time_us or time_ns"
            raise line_error(path, self.line, ",".join(self.header), allowed)
        self.time = times[0]
        self.values = [name for name in self.header if name != self.time]
        doubled = [name for name in self.values if self.values.count(name) > 1]
        if doubled:
            raise line_error(path, self.line, doubled[0], "two columns have this name")
        if len(self.rows) > MAX_STEPS:
            raise SeriesError(f"{path}: has {len(self.rows)} rows; at most {MAX_STEPS} are allowed")

    def column(self, name: str | None, possible: list[str]) -> str:
        """Return the column with this name, or the only possible one."""
        if name is None and len(possible) == 1:
            return possible[0]
        where = f"{self.path}:{self.line}"
        if name is None:
            names = ", ".join(self.values) or "none"
            problem = "several columns match" if possible else "no column name matches"
            raise SeriesError(f"{where}: {problem}; name the column (there are: {names})")
        if name not in self.values:
            raise SeriesError(f"{where}: column: {choice(name, tuple(self.values))}", "column")
        return name

    def read(self, quantity: ColumnKind, column: str, factor: Fraction | int | None) -> Steps:
        where, when = self.header.index(column), self.header.index(self.time)
        time_factor = _factor(DURATION, self.time)
        steps: Steps = []
        for line, cells in self.rows:
            if len(cells) != len(self.header):
                allowed = f"a row must have {len(self.header)} values, as the header has"
                raise line_error(self.path, line, ",".join(cells), allowed)
            at_ns = int(_cell(self.path, line, cells[when], DURATION, self.time, time_factor))
            if not steps and at_ns != 0:
                raise line_error(self.path, line, cells[when], "the first time must be 0")
            if steps and at_ns <= steps[-1][0]:
                raise line_error(self.path, line, cells[when], "must be after the row above")
            steps.append((at_ns, _cell(self.path, line, cells[where], quantity, column, factor)))
        return steps


def _factor(quantity: ColumnKind, name: str) -> Fraction | int | None:
    """Return the unit of a column's numbers, or None if each cell has its own unit."""
    _, underscore, suffix = name.rpartition("_")
    return quantity.suffixes.get(f"{underscore}{suffix}") if underscore else None


def _cell(
    path: str,
    line: int,
    text: str,
    quantity: ColumnKind,
    column: str,
    factor: Fraction | int | None,
) -> float:
    value: float
    if factor is None:
        assert quantity.kind is not None
        try:
            value = quantity.kind.parse(text)
        except UnitError as error:
            names = ", ".join(f"{column}{suffix}" for suffix in quantity.suffixes)
            message = f'{path}:{line}: column "{column}": {error}'
            raise SeriesError(f"{message} (for plain numbers, name the column {names})") from None
    else:
        found = NUMBER.fullmatch(text)
        if found is None or len(text) > _LONGEST_NUMBER:
            raise line_error(path, line, text, f"{quantity.noun} is a plain number", column)
        if found["sign"] == "-" and Fraction(text) < 0:
            raise line_error(path, line, text, "must not be negative", column)
        number = Fraction(text) * factor
        value = float(number) if quantity.kind is None else round(number)
    if value > quantity.largest:
        raise line_error(path, line, text, f"must be at most {quantity.largest_shown}", column)
    return value


def line_error(path: str, line: int, read: str, allowed: str, column: str = "") -> SeriesError:
    """Return the error of a line of a file: what was read, and what is allowed."""
    where = f'column "{column}": ' if column else ""
    return SeriesError(f"{path}:{line}: {where}read {shown(read)}; {allowed}")


def rows_of(path: str) -> list[tuple[int, list[str]]]:
    """Return the cells of each row of a CSV file with its line, without comments (``#``).

    Raises:
        SeriesError: the file cannot be read, is too large, or is not text.
    """
    return [
        (number, [cell.strip() for cell in text.split(",")])
        for number, text in enumerate(_lines(path), 1)
        if text.strip() and not text.lstrip().startswith("#")
    ]


def _lines(path: str) -> list[str]:
    file = Path(path)
    with suppress(OSError):
        # A pipe might never end.
        if file.exists() and not (file.is_file() or file.is_dir()):
            raise SeriesError(f"{path}: is not a file")
    try:
        text = file_text(file, "a table or a trace", LARGEST_FILE_BYTES)
    except ScenarioError as error:
        missing = str(error).endswith("no such file")
        hint = " (paths are relative to the scenario)" if missing else ""
        raise SeriesError(f"{error}{hint}") from None
    # splitlines would also split at form feeds and similar characters.
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
    return lines[:-1] if lines[-1] == "" else lines
