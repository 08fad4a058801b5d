"""Tables for people, as data: what a table says, apart from how it is shown.

A `View` holds raw values. Each output has one function: `text_table` for a terminal, `html_table`,
`latex_table`, `csv_table`, and `records` for JSON.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from itertools import zip_longest
from typing import Any, Final
from urllib.parse import quote

from bentpipe.quantities import quantity
from bentpipe.results.files import csv_text

# In characters: longer names, headings and labels of rows are folded.
_NAME_WIDTH: Final = 20
_HEADING_WIDTH: Final = 14
_LABEL_WIDTH: Final = 26
# Between two columns on a terminal.
_GAP: Final = 2
# Of the lines that the other layout takes.
_MUCH_FEWER: Final = 2 / 3
# In characters of 9 pt, of which some 94 and the space around 8 columns fit on A4 portrait.
_PAGE_WIDTH: Final = 96
_PADDING: Final = 2
# Of 255 bytes that a file may have.
_STEM_MAX: Final = 60
# In a URL of data.
_UNQUOTED: Final = ",:;/()"
# Half of an interval that is a smaller share of its mean changes none of the digits shown.
_ROUNDING: Final = 1e-4
# Larger numbers are written without decimals.
_DECIMALS_BELOW: Final = 10_000


@dataclass(frozen=True)
class Cell:
    """A value with its text, where the name of the column does not say how to write it."""

    value: Any
    text: str


@dataclass(frozen=True)
class Mean:
    """A mean with half of its 95 % interval, which is None of a single value."""

    value: float | None
    half_width: float | None

    def text(self, size: float) -> str:
        """Return both in the unit of this size: ``7.72 ± 0.16``; a dash without a value."""
        if self.value is None:
            return "-"
        text, half = _number(self.value, size), self.half_width
        if half is None or (half == self.value == 0):
            return text
        if half < _ROUNDING * abs(self.value):
            return f"{text} ± 0"
        decimals = max(0, 1 - math.floor(math.log10(half / size)))
        return f"{text} ± {half / size:,.{decimals}f}"


@dataclass(frozen=True)
class Column:
    """A column: its name in CSV and JSON, which ends in the unit, and its heading.

    ``note`` is what stands below the heading: the unit's layer, or of what a share is. ``text``
    writes a value for a person; by default the unit in the name decides. A value that is ``once``
    is of all rows of a group, and shown in the first one. A column without a heading is for CSV and
    JSON only. ``meaning`` is its definition, which pages show at the heading.
    """

    name: str
    title: str
    note: str = ""
    text: Callable[[Any], str] | None = None
    once: bool = False
    meaning: str = ""

    @property
    def heading(self) -> str:
        """The heading with its note, in one line."""
        return f"{self.title} ({self.note})" if self.note else self.title

    def unit(self, values: Iterable[float]) -> tuple[str, float]:
        """Return the unit for some values, and its size in base units; counts have none."""
        kind = quantity(self.name)
        return ("", 1.0) if kind.is_count else kind.scale(max(map(abs, values)))

    def write(self, value: Any) -> str:
        """Return a value for a person: a dash for None, text as it is, counts without a unit."""
        if value is None:
            return "-"
        if isinstance(value, Cell | Mean):
            return value.text if isinstance(value, Cell) else self._mean(value)
        if self.text is not None:
            return self.text(value)
        if isinstance(value, str | bool):
            return value if isinstance(value, str) else ("no", "yes")[value]
        kind = quantity(self.name)
        if not kind.is_count:
            return kind.text(value)
        return f"{value:,}" if isinstance(value, int) else quantity("").text(value)

    def _mean(self, mean: Mean) -> str:
        unit, size = self.unit([mean.value or 0.0])
        return mean.text(size) if mean.value is None else f"{mean.text(size)} {unit}".rstrip()


@dataclass(frozen=True)
class View:
    """A table: one value a column in each row.

    ``key`` is the number of leading columns that name a row; where a table is too wide, each part
    repeats them. Rows of a group have equal values in the first ``group`` columns. The cells of
    ``strong``, each the index of its row and of its column, are emphasized. ``more`` says what is
    left out, and ``note`` what to know about the values.
    """

    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Any]]
    key: int = 1
    group: int = 0
    strong: Collection[tuple[int, int]] = ()
    more: str = ""
    note: str = ""

    @property
    def shown(self) -> list[int]:
        """The indices of the columns with a heading."""
        return [i for i, column in enumerate(self.columns) if column.title]

    def is_text(self, column: int) -> bool:
        """Return whether a column names rows or has texts, which may be folded."""
        values = [value for row in self.rows if (value := _plain(row[column])) is not None]
        is_text = bool(values) and all(isinstance(value, str) for value in values)
        return column < self.key or is_text

    def starts(self) -> list[int]:
        """Return the indices of the first rows of groups."""
        heads = [tuple(row[: self.group]) for row in self.rows]
        changed = [i for i, head in enumerate(heads) if i == 0 or head != heads[i - 1]]
        return changed if self.group else []

    def texts(self) -> list[list[str]]:
        """Return the cells of all columns as texts; what a group has in common, once."""
        starts = set(self.starts()) or range(len(self.rows))
        return [
            [
                "" if i not in starts and (j < self.group or column.once) else column.write(value)
                for j, (column, value) in enumerate(zip(self.columns, row, strict=True))
            ]
            for i, row in enumerate(self.rows)
        ]

    def parts(self, widths: Sequence[int], width: int) -> list[list[int]]:
        """Return the columns of each part of the table: its key, and others that fit beside it.

        ``widths`` are those of all columns with the space between two. Parts are about equally
        wide. The one of a column that does not fit is wider than ``width``.
        """
        keys = [i for i in self.shown if i < self.key]
        others = [i for i in self.shown if i >= self.key]

        def filled(room: int) -> list[list[int]]:
            parts: list[list[int]] = []
            left = 0
            for i in others:
                if not parts or widths[i] > left:
                    parts.append([])
                    left = room
                parts[-1].append(i)
                left -= widths[i]
            return parts

        room = width - sum(widths[i] for i in keys)
        parts = filled(room)
        narrower = (filled(less) for less in range(room - 1, 0, -1))
        for candidate in narrower:
            if len(candidate) > len(parts):
                break
            parts = candidate
        return [[*keys, *part] for part in parts] or [keys]


_Texts = Sequence[Sequence[str]]
# Rows, the first of which has the headings, the widths of columns, and whether each is text.
_Grid = tuple[_Texts, Sequence[int], Sequence[bool]]


# --- terminal -----------------------------------------------------------------------------------


def text_table(view: View, width: int) -> str:
    """Return a table below its title, in at most ``width`` columns; no number is shortened."""
    return "\n".join(line for _, line in text_lines(view, width))


def text_lines(view: View, width: int) -> Iterator[tuple[str, str]]:
    """Yield the lines of a table, each with its style: "title", "heading" or nothing.

    A table that is too wide is divided into parts that repeat the key. Its rows become columns if
    all fit side by side, or if that takes much fewer lines.
    """
    texts = view.texts()
    parts = _parts(view, texts, width)
    lines = _lines(parts)
    if len(parts) != 1:
        blocks = _blocks(view, texts, width)
        turned = _lines(blocks)
        if len(blocks) == 1 or not parts or len(turned) < _MUCH_FEWER * len(lines):
            lines = turned
    yield from (("title", line) for line in textwrap.wrap(view.title, width))
    yield from lines
    if view.more:
        yield "", f"... and {view.more}"
    yield from (("", line) for line in textwrap.wrap(view.note, width))


def _parts(view: View, texts: _Texts, width: int) -> list[_Grid]:
    """Return the parts of a table; none if a column does not fit beside the key."""
    fold = partial(textwrap.wrap, width=_HEADING_WIDTH, break_long_words=False)
    headings = ["\n".join([*fold(column.title), *fold(column.note)]) for column in view.columns]
    longest = [max((len(row[i]) for row in texts), default=0) for i in range(len(headings))]
    widths = [
        max(
            min(_NAME_WIDTH, longest[i]) if view.is_text(i) else longest[i],
            *map(len, heading.split("\n")),
        )
        for i, heading in enumerate(headings)
    ]
    grids: list[_Grid] = []
    for part in view.parts([needed + _GAP for needed in widths], width + _GAP):
        part_widths = {i: widths[i] for i in part}
        left = width - _total(part_widths.values())
        if left < 0:
            return []
        # The room that is left is given to texts.
        for _ in range(left):
            folded = [i for i in part if longest[i] > part_widths[i]]
            if not folded:
                break
            part_widths[max(folded, key=lambda i: longest[i] / part_widths[i])] += 1
        rows = [[row[i] for i in part] for row in [headings, *texts]]
        grids.append((rows, list(part_widths.values()), [view.is_text(i) for i in part]))
    return grids


def _total(widths: Iterable[int]) -> int:
    return sum(width + _GAP for width in widths) - _GAP


def _blocks(view: View, texts: _Texts, width: int) -> list[_Grid]:
    """Return tables with a column for each row, as many as fit, and a row for each column."""
    shown = view.shown
    labels = [view.columns[i].heading for i in shown]
    label_width = max(map(len, labels))
    is_text = [view.is_text(i) for i in shown]

    def needed(limit: int) -> list[int]:
        cells = ([row[i] for i in shown] for row in texts)
        return [
            max(
                min(len(cell), limit) if folds else len(cell)
                for cell, folds in zip(row, is_text, strict=True)
            )
            for row in cells
        ]

    widths = needed(_NAME_WIDTH)
    if _total([label_width, *widths]) > width:
        label_width = min(label_width, _LABEL_WIDTH, width // 2)
        widths = needed(min(_NAME_WIDTH, max(width - label_width - _GAP, 1)))
    starts = view.starts()
    ends = dict(zip(starts, [*starts, len(texts)][1:], strict=True))
    blocks: list[list[int]] = [[]]
    for i in range(len(texts)):
        # A group is not divided if it fits.
        row, group = (
            _total([label_width, *(widths[number] for number in [*blocks[-1], *more])]) <= width
            for more in ([i], range(i, ends.get(i, i + 1)))
        )
        if blocks[-1] and not (row and (group or i not in ends)):
            blocks.append([])
        blocks[-1].append(i)
    return [
        (
            [
                [label, *(texts[row][i] for row in rows)]
                for i, label in zip(shown, labels, strict=True)
            ],
            [label_width, *(widths[row] for row in rows)],
            [True] + [False] * len(rows),
        )
        for rows in blocks
    ]


def _lines(grids: Sequence[_Grid]) -> list[tuple[str, str]]:
    """Return the lines of grids, an empty one between two; cells are folded to the widths."""
    lines: list[tuple[str, str]] = []
    for rows, widths, is_text in grids:
        lines += [("", "")] * bool(lines)
        for number, row in enumerate(rows):
            cells = [
                [part for line in cell.split("\n") for part in textwrap.wrap(line, width) or [""]]
                for cell, width in zip(row, widths, strict=True)
            ]
            for line in zip_longest(*cells, fillvalue=""):
                aligned = (
                    text.ljust(width) if left else text.rjust(width)
                    for text, width, left in zip(line, widths, is_text, strict=True)
                )
                text = (" " * _GAP).join(aligned).rstrip()
                lines.append(("" if number else "heading", text))
    return lines


# --- files and pages ----------------------------------------------------------------------------


def html_table(view: View, *, link: bool = False) -> str:
    """Return a table as HTML, in parts that fit on A4 portrait.

    With ``link`` its caption has links to it as CSV and LaTeX.
    """
    texts, starts = view.texts(), set(view.starts())
    kinds = [' class="text"' if view.is_text(i) else "" for i in range(len(view.columns))]
    titles = [
        f' title="{escape(column.meaning)}"' if column.meaning else "" for column in view.columns
    ]
    caption = escape(view.title)
    if link and view.rows:
        files = ", ".join(
            f'<a download="{file_stem(view)}.{suffix}" href="data:{media};charset=utf-8,'
            f'{quote(content, safe=_UNQUOTED)}">{label}</a>'
            for suffix, media, label, content in (
                ("csv", "text/csv", "CSV", csv_table(view)),
                ("tex", "application/x-tex", "LaTeX", latex_table(view)),
            )
        )
        caption += f' <span class="files">{files}</span>'
    lines = ['<div class="wide">']
    for number, part in enumerate(view.parts(_html_widths(view, texts), _PAGE_WIDTH)):
        has_caption = caption and not number
        lines.append(f"<table><caption>{caption}</caption>" if has_caption else "<table>")
        notes = {i: escape(view.columns[i].note) for i in part}
        head = "".join(
            f"<th{kinds[i]}{titles[i]}>{escape(view.columns[i].title)}"
            f"{f'<br><small>{note}</small>' if note else ''}</th>"
            for i, note in notes.items()
        )
        lines.append(f"<thead><tr>{head}</tr></thead><tbody>")
        for row, cells in enumerate(texts):
            start = ' class="first"' if row in starts else ""
            shown = ((i, escape(cells[i]), (row, i) in view.strong) for i in part)
            body = (
                f"<td{kinds[i]}>{f'<b>{text}</b>' if is_strong else text}</td>"
                for i, text, is_strong in shown
            )
            lines.append(f"<tr{start}>{''.join(body)}</tr>")
        lines.append("</tbody></table>")
    more = f"<p>... and {escape(view.more)}.</p>" if view.more else ""
    more += f"<p>{escape(view.note)}</p>" if view.note else ""
    return "\n".join([*lines, f"</div>{more}"])


def file_stem(view: View) -> str:
    """Return the name of a file of a table, without its suffix, from the start of its title."""
    words = view.title.partition("(")[0].removesuffix(".csv")
    return re.sub(r"\W+", "-", words.lower())[:_STEM_MAX].strip("-") or "table"


def csv_table(view: View) -> str:
    """Return the raw values as CSV; None is an empty cell."""
    return csv_text([column.name for column in view.columns], _raw(view))


# Special characters of LaTeX, what may be an argument of the end of a row, and quotes, which make
# ligatures.
_LATEX: Final = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "±": r"\ensuremath{\pm}",
    "\u00d7": r"\ensuremath{\times}",
    "µ": r"\ensuremath{\mu}",
    **{character: f"\\{character}" for character in "{}$&#%_"},
    **{character: f"{{{character}}}" for character in "[]*`'"},
}
# With the package booktabs they are its rules.
_RULES: Final = "".join(
    rf"\providecommand{{\{rule}}}{{\hline}}" for rule in ("toprule", "midrule", "bottomrule")
)


def latex_table(view: View) -> str:
    """Return a table for LaTeX, in parts that fit on A4 portrait; booktabs is optional.

    Columns of numbers have one unit, which stands in the heading.
    """
    texts, starts = view.texts(), set(view.starts()) - {0}
    columns = [_latex_column(view, i, [row[i] for row in texts]) for i in range(len(view.columns))]
    title = latex_text(view.title)
    lines = [
        f"% {' '.join(view.title.splitlines())}",
        _RULES,
        r"\begin{table}[htbp]",
        r"\centering",
    ]
    lines += [rf"\caption{{{title}}}"] if title else []
    for number, part in enumerate(view.parts(_html_widths(view, texts), _PAGE_WIDTH)):
        if number:
            lines.append(r"\par\medskip")
        kinds = "".join("l" if view.is_text(i) else "r" for i in part)
        lines += [rf"\begin{{tabular}}{{{kinds}}}", r"\toprule"]
        lines.append(_latex_row(latex_text(view.columns[i].title) for i in part))
        if any(columns[i][0] for i in part):
            lines.append(_latex_row(latex_text(columns[i][0]) for i in part))
        lines.append(r"\midrule")
        for row in range(len(texts)):
            cells = ((latex_text(columns[i][1][row]), (row, i) in view.strong) for i in part)
            lines += [r"\midrule"] if row in starts else []
            lines.append(
                _latex_row(rf"\textbf{{{cell}}}" if bold else cell for cell, bold in cells)
            )
        lines += [r"\bottomrule", r"\end{tabular}"]
    if view.more:
        lines.append(rf"\par\smallskip \ldots{{}} and {latex_text(view.more)}")
    lines += [rf"\par\smallskip {latex_text(view.note)}"] if view.note else []
    return "\n".join([*lines, r"\end{table}", ""])


def latex_text(text: str) -> str:
    """Return a text as it is, for LaTeX, in one line."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    # Two hyphens would become a dash.
    return re.sub("-(?=-)", "-{}", "".join(_LATEX.get(c, c) for c in line))


def _latex_row(cells: Iterable[str]) -> str:
    return rf"{' & '.join(cells)} \\"


def _latex_column(view: View, index: int, texts: Sequence[str]) -> tuple[str, Sequence[str]]:
    """Return what stands below the heading of a column, its unit included, and its cells."""
    column, values = view.columns[index], [row[index] for row in view.rows]
    plain: list[Any] = [value.value if isinstance(value, Mean) else value for value in values]
    numbers = [value for value in plain if type(value) in (int, float)]
    others = len(plain) - plain.count(None) - len(numbers)
    if column.text is not None or not numbers or others:
        return column.note, texts
    unit, size = column.unit(numbers)
    cells = []
    for value, number, text in zip(values, plain, texts, strict=True):
        if number is None or not text:
            cells.append(text)
        else:
            is_mean = isinstance(value, Mean)
            cells.append(value.text(size) if is_mean else _number(number, size))
    return ", ".join(filter(None, (column.note, unit))), cells


def _number(value: float, size: float) -> str:
    if isinstance(value, int) and size == 1:
        return str(value)
    return f"{value / size:{'.4g' if abs(value / size) < _DECIMALS_BELOW else '.0f'}}"


def records(view: View) -> list[dict[str, Any]]:
    """Return the raw values of each row by the names of the columns, for JSON."""
    names = [column.name for column in view.columns]
    return [dict(zip(names, row, strict=True)) for row in _raw(view)]


def from_mappings(
    title: str, columns: Sequence[Column], rows: Iterable[Mapping[str, Any]], **options: Any
) -> View:
    """Return the view of rows that have their values by name; what a row lacks is None."""
    values = [[row.get(column.name) for column in columns] for row in rows]
    return View(title, columns, values, **options)


def _raw(view: View) -> list[list[Any]]:
    """Return plain values; another object, such as a mean with its interval, as its text."""
    return [
        [
            value if isinstance(value, str | int | float | None) else column.write(value)
            for column, value in zip(view.columns, map(_plain, row), strict=True)
        ]
        for row in view.rows
    ]


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, Cell | Mean) else value


def _html_widths(view: View, texts: Sequence[Sequence[str]]) -> list[int]:
    """Return the width that each column needs: a browser folds headings and texts at spaces."""
    widths = []
    for i, column in enumerate(view.columns):
        cells = [row[i] for row in texts]
        headings = [word[:_NAME_WIDTH] for word in f"{column.title} {column.note}".split()]
        least = max(map(len, [*headings, *(cell for cell in cells if not view.is_text(i)), ""]))
        if view.is_text(i):
            words = max((len(word) for cell in cells for word in cell.split()), default=0)
            least = max(least, words, min(_NAME_WIDTH, max(map(len, cells), default=0)))
        widths.append(least + _PADDING)
    return widths
