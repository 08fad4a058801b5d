"""Tables as data, and what each output makes of them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from conftest import Program
from hypothesis import given, strategies as st
from properties import examples

from bentpipe.results.views import (
    Cell,
    Column,
    Mean,
    View,
    csv_table,
    from_mappings,
    html_table,
    latex_table,
    latex_text,
    records,
    text_table,
)

COLUMNS = (
    Column("name", "flow"),
    Column("goodput_bps", "goodput", "application bits"),
    Column("sent_packets", "sent", "packets"),
    Column("seed", ""),
    Column("limit", "limit"),
)
ROWS = (
    ("a & b", 9_222_000.0, 7_242, 1, Cell(0.5, "50 % | half")),
    ("c", None, 12.5, 2, Cell(None, "none")),
)
FLOWS = View("Flows (two)", COLUMNS, ROWS, strong={(0, 1)}, more="3 more")


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("goodput_bps", 9_222_000.0, "9.222 Mbit/s"),
        ("rtt_min_ns", 542_000_000, "542 ms"),
        ("loss_percent", 1.96666, "1.967 %"),
        ("utilization", 0.4572, "45.72 %"),
        ("sent_packets", 12_345, "12,345"),
        ("sent_packets", 12_345.6, "12,346"),
        ("stalls", 0.25, "0.25"),
        ("passed", True, "yes"),
        ("goodput_bps", None, "-"),
        ("name", "a", "a"),
    ],
)
def test_the_unit_in_the_name_of_a_column_writes_its_values(
    name: str, value: object, text: str
) -> None:
    assert Column(name, name).write(value) == text


def test_csv_and_json_have_raw_values_and_all_columns() -> None:
    lines = ["name,goodput_bps,sent_packets,seed,limit", "a & b,9222000.0,7242,1,0.5", "c,,12.5,2,"]
    assert csv_table(FLOWS).splitlines() == lines
    assert records(FLOWS)[1] == {
        "name": "c",
        "goodput_bps": None,
        "sent_packets": 12.5,
        "seed": 2,
        "limit": None,
    }


def test_html_escapes_and_links_the_csv_and_the_latex() -> None:
    text = html_table(FLOWS, link=True)
    assert '<td class="text">a &amp; b</td><td><b>9.222 Mbit/s</b></td>' in text
    assert "<th>goodput<br><small>application bits</small></th>" in text
    assert "seed" not in text.partition("</caption>")[2]
    assert text.endswith("<p>... and 3 more.</p>")
    address = text.partition('download="flows.csv" href="data:text/csv;charset=utf-8,')[2]
    assert unquote(address.partition('"')[0]) == csv_table(FLOWS)
    tex = text.partition('download="flows.tex" href="data:application/x-tex;charset=utf-8,')[2]
    assert unquote(tex.partition('"')[0]) == latex_table(FLOWS)
    assert 'download="table.tex"' in html_table(View("", COLUMNS, ROWS), link=True)
    assert "download" not in html_table(FLOWS)


def test_the_heading_of_a_page_has_the_definition_of_its_metric() -> None:
    """Given a definition with a quote, expect it escaped as the title of the heading alone."""
    column = Column("mos", "MOS", "1 to 4.5", meaning='Mean "opinion" score.')
    view = View("Calls", (Column("name", "flow"), column), [("a", 4.0)])
    assert '<th title="Mean &quot;opinion&quot; score.">MOS<br>' in html_table(view)
    assert "opinion" not in text_table(view, 80) + csv_table(view)


def test_what_a_group_has_in_common_is_shown_once() -> None:
    columns = (Column("entry", "entry"), Column("of", "of"), Column("flows", "flows", once=True))
    rows = [{"entry": name, "of": f"p{p}", "flows": 6} for name in "ab" for p in (5, 95)]
    view = from_mappings("t", columns, rows, key=2, group=1)
    assert view.texts() == [["a", "p5", "6"], ["", "p95", ""], ["b", "p5", "6"], ["", "p95", ""]]
    assert html_table(view).count('<tr class="first">') == 2
    assert [row["flows"] for row in records(view)] == [6, 6, 6, 6]


def test_a_wide_table_is_divided_into_even_parts_that_repeat_the_key() -> None:
    """Given twelve columns of 8 characters with a gap of 2 beside a key of 4, expect 3 of 4."""
    columns = [Column("key", "key"), *(Column(f"c{i}", f"c{i}") for i in range(12))]
    view = View("", columns, [[f"k{row}xx", *([12_345_678 - 10**7] * 12)] for row in range(40)])
    widths = [6] + [10] * 12
    assert view.parts(widths, 6 + 50) == [
        [0, 1, 2, 3, 4],
        [0, 5, 6, 7, 8],
        [0, 9, 10, 11, 12],
    ]
    assert html_table(view).count("<table>") == 2
    text = text_table(view, 60)
    assert text.count("k39xx") == 3
    assert max(map(len, text.splitlines())) <= 60


def test_few_wide_rows_become_columns() -> None:
    columns = [Column("key", "key"), *(Column(f"c{i}", f"heading {i}") for i in range(9))]
    view = View("t", columns, [["a", *range(9)], ["b", *range(9)]])
    lines = text_table(view, 40).splitlines()
    assert lines[:3] == ["t", "key        a  b", "heading 0  0  0"]


def test_the_tables_of_a_study_are_those_of_its_page(bentpipe: Program, tmp_path: Path) -> None:
    """Given the folder of a study, expect the files that its page links, equal names numbered."""
    view = View("Rows (all)", [Column("of", "of"), Column("rate_bps", "rate")], [("a & b", 2e6)])
    page = html_table(view, link=True)
    (tmp_path / "manifest.json").write_text('{"bentpipe_version": "0.1.0", "kind": "study"}')
    (tmp_path / "report.html").write_text(page + page)
    tables = tmp_path / "tables"
    called = bentpipe("report", tmp_path, "--tables", tables)
    assert (called.code, called.out) == (0, f"{tmp_path / 'report.html'}\n")
    assert {path.name: path.read_text() for path in tables.iterdir()} == {
        f"rows{number}.{suffix}": text
        for number in ("", "-2")
        for suffix, text in (("csv", csv_table(view)), ("tex", latex_table(view)))
    }
    assert "its report is" in bentpipe("report", tmp_path).err
    (tmp_path / "report.html").unlink()
    assert "report.html: cannot be read" in bentpipe("report", tmp_path, "--tables", tables).err


# --- LaTeX --------------------------------------------------------------------------------------


def test_a_column_of_numbers_has_its_unit_in_the_heading() -> None:
    """Given rates and counts, expect numbers in one unit, and texts of other cells as they are."""
    rows = (("a_1", 9_222_000.0, 7_242, 1, Cell(0.5, "50 %")), ("c", 800_000.0, None, 2, "x"))
    lines = latex_table(View("Flows & co", COLUMNS, rows, strong={(0, 1)})).splitlines()
    assert r"\caption{Flows \& co}" in lines
    start = lines.index(r"\begin{tabular}{lrrr}")
    assert lines[start + 1 : start + 8] == [
        r"\toprule",
        r"flow & goodput & sent & limit \\",
        r" & application bits, Mbit/s & packets &  \\",
        r"\midrule",
        r"a\_1 & \textbf{9.222} & 7242 & 50 \% \\",
        r"c & 0.8 & - & x \\",
        r"\bottomrule",
    ]


@pytest.mark.parametrize(
    ("name", "value", "half_width", "text"),
    [
        ("goodput_bps", 7_718_000.0, 162_345.0, "7.718 ± 0.16 Mbit/s"),
        ("completion_time_ns", 105.9e9, 12.4e9, "105.9 ± 12 s"),
        # Points, not a share of the mean.
        ("forward_utilization", 0.5, 0.0123, "50 ± 1.2 %"),
        ("goodput_bps", 7_718_000.0, 1.0, "7.718 ± 0 Mbit/s"),
        ("goodput_bps", 7_718_000.0, None, "7.718 Mbit/s"),
        ("loss_percent", 0.0, 0.0, "0 %"),
        ("mos", 4.125, 0.25, "4.125 ± 0.25"),
        ("mos", None, None, "-"),
    ],
)
def test_a_mean_has_half_its_interval_in_its_own_unit(
    name: str, value: float | None, half_width: float | None, text: str
) -> None:
    assert Column(name, name).write(Mean(value, half_width)) == text


def test_means_have_their_unit_in_the_heading() -> None:
    """Given means of Mbit/s and kbit/s, expect one unit in LaTeX and base units in CSV."""
    columns = (Column("seed", "of"), Column("goodput_bps", "goodput"))
    means = (Mean(7_718_000.0, 150_000.0), Mean(565_700.0, None), Mean(None, None))
    view = View("", columns, list(zip("abc", means, strict=True)), note="b < c & d")
    lines = latex_table(view).splitlines()
    start = lines.index(r" & Mbit/s \\")
    pm = r"\ensuremath{\pm}"
    assert lines[start + 2 : start + 5] == [
        rf"a & 7.718 {pm} 0.15 \\",
        r"b & 0.5657 \\",
        r"c & - \\",
    ]
    assert csv_table(view).splitlines()[1:] == ["a,7718000.0", "b,565700.0", "c,"]
    # What to know about the values is below them.
    assert lines[-2] == r"\par\smallskip b \textless{} c \& d"
    assert text_table(view, 80).endswith("\nb < c & d")
    assert html_table(view).endswith("<p>b &lt; c &amp; d</p>")


def test_booktabs_is_optional() -> None:
    """Given a document without the package, expect its rules to be those of LaTeX."""
    text = latex_table(FLOWS)
    for rule in ("toprule", "midrule", "bottomrule"):
        assert rf"\providecommand{{\{rule}}}{{\hline}}" in text


def test_groups_are_divided_by_rules_and_wide_tables_into_parts() -> None:
    columns = (Column("entry", "entry"), Column("of", "of"), Column("flows", "flows", once=True))
    rows = [{"entry": name, "of": f"p{p}", "flows": 6} for name in "ab" for p in (5, 95)]
    grouped = latex_table(from_mappings("t", columns, rows, key=2, group=1))
    assert grouped.count("\n\\midrule\n") == 2
    assert " & p95 &  \\\\" in grouped
    wide = [Column("key", "key"), *(Column(f"c{i}", f"c{i}") for i in range(30))]
    divided = latex_table(View("", wide, [["k", *([12_345_678] * 30)]]))
    assert divided.count(r"\begin{tabular}") == divided.count(r"\par\medskip") + 1 > 2


# What LaTeX prints for a command.
PRINTED = {
    r"\textbackslash{}": "\\",
    r"\textasciitilde{}": "~",
    r"\textasciicircum{}": "^",
    r"\textless{}": "<",
    r"\textgreater{}": ">",
    r"\textbar{}": "|",
    r"\ensuremath{\pm}": "\u00b1",
    r"\ensuremath{\times}": "\u00d7",
    r"\ensuremath{\mu}": "\u00b5",
    "{}": "",
}
SPECIAL = set("\\{}$&#%_~^<>|[]*`'")


def printed(text: str) -> str:
    """Return what LaTeX prints for a text; fail at a special character that is not escaped."""
    found = ""
    while text:
        name = next((each for each in PRINTED if text.startswith(each)), "")
        if name:
            found, text = found + PRINTED[name], text[len(name) :]
        elif match := re.match(r"\\([{}$&#%_])|\{([\[\]*`'])\}", text):
            found, text = found + (match[1] or match[2]), text[match.end() :]
        else:
            assert text[0] not in SPECIAL
            assert not text.startswith("--")
            found, text = found + text[0], text[1:]
    return found


@examples(200)
@given(text=st.text(max_size=60) | st.text(alphabet=sorted(SPECIAL | set("-? a")), max_size=60))
def test_latex_prints_any_text_as_it_is(text: str) -> None:
    """Given any text, expect it in print, with spaces for what cannot be printed."""
    shown = "".join(character if character.isprintable() else " " for character in text)
    assert printed(latex_text(text)) == " ".join(shown.split())


CELLS: st.SearchStrategy[Any] = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20)
)


@examples(100)
@given(
    title=st.text(max_size=20),
    headings=st.lists(st.tuples(st.text(min_size=1), st.text(max_size=9)), min_size=1, max_size=9),
    data=st.data(),
)
def test_braces_and_columns_of_any_table_match(
    title: str, headings: list[tuple[str, str]], data: st.DataObject
) -> None:
    """Given any titles and cells, expect balanced braces and a cell in each column of each row."""
    columns = [Column(f"c{i}_ns", *heading) for i, heading in enumerate(headings)]
    rows = data.draw(st.lists(st.tuples(*[CELLS] * len(columns)), max_size=4))
    text = latex_table(View(title, columns, rows))
    body = text.partition("\n")[2]
    bare = re.sub(r"\\[{}&%]", "", body)
    assert bare.count("{") == bare.count("}")
    for part in re.findall(
        r"\\begin\{tabular\}\{([lr]+)\}\n(.*?)\\end\{tabular\}", bare, re.DOTALL
    ):
        kinds, lines = part
        cells = [line for line in lines.splitlines() if not re.fullmatch(r"\\\w+rule", line)]
        assert {line.count("&") + 1 for line in cells} == {len(kinds)}
        assert all(line.endswith(r" \\") for line in cells)
