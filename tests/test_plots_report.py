"""Figures and the report of a run: what is drawn, what is written, and that nothing is fetched."""

from __future__ import annotations

import copy
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ROOT, SMALL
from hypothesis import given, settings, strategies as st

from bentpipe import Result, plots, simulate
from bentpipe.errors import UsageError
from bentpipe.report import style
from bentpipe.report.run import run_report
from bentpipe.results.charts import thinned

# br, meta and the like never close; the parts of SVG that do are written as <path/>.
VOID = {"meta", "br", "link"}
LARGEST_REPORT_BYTES = 2_000_000


class Page(HTMLParser):
    """Reads a page: the tags in it, ids, references, and whether all tags close in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.references: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(str(value))
            # Values of a table in the page itself, and files of a figure beside it.
            tables = ("data:text/csv;", "data:application/x-tex;")
            is_file = str(value).startswith((*tables, "charts/"))
            if name in ("src", "href", "xlink:href") and not is_file:
                self.references.append(str(value))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def assert_self_contained(text: str) -> Page:
    """Check that a page fetches nothing, closes its tags, and refers to its parts and charts."""
    page = Page(text)
    assert page.open == []
    assert not re.search(r"https?://", text)
    assert not re.search(r"@import|<script|<link|<iframe|<img", text)
    used = set(re.findall(r"url\(#([^)]+)\)", text)) | {
        r.removeprefix("#") for r in page.references
    }
    assert used <= set(page.ids)
    assert all(reference.startswith("#") for reference in page.references)
    return page


def with_changes(**changes: Any) -> dict[str, Any]:
    return {**copy.deepcopy(SMALL), **changes}


# --- the report ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small_report(small_result: Result) -> str:
    """The report of the small scenario, drawn once."""
    return run_report(small_result)


@pytest.mark.system
def test_the_report_has_the_numbers_of_the_run(small_result: Result, small_report: str) -> None:
    text = small_report
    flow = small_result.flows.to_dicts()[0]
    hops = small_result.manifest["packet_hops"]
    assert "seed 1, completed at" in text
    assert f"{hops:,} packet-hops" in text
    # 1 MB of application data, and each loss retransmitted.
    assert "<td>1 MB</td>" in text
    assert f"<td>{flow['sent_segments']:,}</td>" in text
    assert "<small>application bits</small>" in text
    assert "<small>link bytes</small>" in text
    assert "<summary>The scenario</summary>" in text
    assert "8 Mbit/s" in text
    assert "&#34;rate_bps&#34;" in text


@pytest.mark.system
def test_the_report_is_self_contained_with_a_figure_for_each_quantity(small_report: str) -> None:
    text = small_report
    page = assert_self_contained(text)
    assert page.tags.count("svg") == 10
    for label in ("Congestion window [kB]", "In flight [kB]", "Smoothed RTT [ms]"):
        assert label in text
    for label in ("Goodput [Mbit/s]", "Queue [kB]", "Dropped [packets]", "Time [s]"):
        assert label in text
    assert "forward: on the channel" in text


@pytest.mark.system
def test_no_colour_of_a_figure_is_fixed_so_that_it_can_be_dark(small_report: str) -> None:
    text = small_report
    assert "prefers-color-scheme:dark" in text
    figures = re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL)
    assert [re.findall(r"#[0-9a-f]{6}\b(?![-\w])", figure) for figure in figures] == [[]] * 10
    # SVG text without a fill is black, which is unreadable on a dark page.
    assert all("fill: var(" in tag for tag in re.findall(r"<text[^>]*>", "".join(figures)))


@pytest.mark.system
def test_the_same_run_gives_the_same_bytes(small_report: str, tmp_path: Path) -> None:
    """Also when it ran at another time and comes from a folder."""
    assert run_report(Result.load(simulate(SMALL).save(tmp_path / "result"))) == small_report


@pytest.mark.system
def test_outages_are_shaded_and_named_in_each_figure_over_time() -> None:
    """Given outages at 1 and 1.5 s of one direction, expect both behind the lines, from 0 up."""
    link = copy.deepcopy(SMALL["link"])
    link["return"]["outage"] = [{"at": "1 s", "for": "200 ms"}, {"at": "1.5 s", "for": "100 ms"}]
    result = simulate(with_changes(link=link))
    for draw in (plots.goodput, plots.queues, plots.congestion_window, plots.drops):
        axes = draw(result)
        (shade,) = axes.collections
        boxes = [path.get_extents() for path in shade.get_paths()]
        assert [box.x0 for box in boxes] == pytest.approx([1, 1.5])
        assert [box.x1 for box in boxes] == pytest.approx([1.2, 1.6])
        assert axes.get_legend_handles_labels()[1][-1] == "outage of return"
        assert shade.get_zorder() < min(line.get_zorder() for line in axes.lines)
    # The scales are those of the lines.
    assert plots.queues(result).get_ylim()[1] > 1.05
    assert run_report(result).count("outage of return") == 9


def test_without_time_series_the_report_says_so(plain_result: Result) -> None:
    text = run_report(plain_result)
    # Where the capacity went needs none.
    assert text.count("<svg") == 1
    assert "No time series were recorded (sample_interval is null)" in text
    with pytest.raises(UsageError, match="set sample_interval and run again"):
        plots.congestion_window(plain_result)
    with pytest.raises(UsageError, match="set sample_interval and run again"):
        plots.queues(plain_result)


def test_without_drops_and_tcp_there_is_less_to_draw() -> None:
    """Given a call, expect goodput, throughput, queues, delay and jitter."""
    scenario = with_changes(traffic=SMALL["traffic"][1:], duration="3 s")
    text = run_report(simulate(scenario))
    assert text.count("<svg") == 5
    assert "The link dropped no packet." in text


@pytest.mark.system
def test_names_are_escaped_and_no_formulas() -> None:
    """Matplotlib reads text between dollars as mathematics; a flow's name is not that."""
    scenario = with_changes(name="<script>alert(1)</script> & co")
    scenario["traffic"][0]["name"] = "a<b"
    scenario["traffic"][1]["name"] = "$5 or $\\frac"
    text = run_report(simulate(scenario))
    assert_self_contained(text)
    assert "<h1>&lt;script&gt;alert(1)&lt;/script&gt; &amp; co</h1>" in text
    assert "a&lt;b (forward)" in text
    assert "$5 or $\\frac (return)" in text


@pytest.mark.system
def test_an_interrupted_run_is_marked(plain_result: Result) -> None:
    manifest = {**plain_result.manifest, "state": "interrupted"}
    text = run_report(Result(manifest, plain_result.tables))
    assert "interrupted at" in text
    assert "The run was interrupted" in text


@pytest.mark.system
def test_a_long_run_with_many_flows_stays_small() -> None:
    """300 flows, 1,000 samples of each: below 2 MB, and it says what is left out."""
    scenario = with_changes(duration="10 s", sample_interval="10 ms", packet_events=False)
    scenario["traffic"] = [
        {"kind": "bulk", "direction": "forward", "size": "20 kB", "count": 300},
    ]
    text = run_report(simulate(scenario))
    assert len(text.encode()) < LARGEST_REPORT_BYTES
    assert "flows.parquet has all 300 flows" in text
    assert "the first 16 of 300 flows" in text
    assert "bulk-1 to bulk-300 (forward): median, p5 to p95 of 300" in text
    assert "fairness (Jain)" in text


@pytest.mark.thorough
@pytest.mark.system
@pytest.mark.parametrize("name", ["geo-voip-and-bulk", "isdn-return", "leo-two-flows"])
def test_reports_of_the_examples(name: str) -> None:
    text = run_report(simulate(ROOT / "scenarios" / f"{name}.yaml"))
    assert_self_contained(text)
    assert len(text.encode()) < LARGEST_REPORT_BYTES


# --- terminals, processors, exchanges -----------------------------------------------------------


@pytest.mark.system
def test_the_report_names_every_direction_processor_and_cause(every_result: Result) -> None:
    text = run_report(every_result)
    assert_self_contained(text)
    for words in ("return-2", "forward: red", "dropped: red", "hub-processor", "terminal-2-proc"):
        assert words in text
    assert "dropped: selective drop" not in text, "a cause that dropped nothing"
    assert "first of 2 terminals" in text
    assert "Exchange time [s]" in text
    assert "exchange time p50<br><small>at the client</small>" in text


@pytest.mark.system
def test_without_exchanges_and_processors_the_report_has_none_of_their_columns(
    small_result: Result, small_report: str
) -> None:
    # Definitions name the kinds of flow that they are about.
    shown = re.sub(r' title="[^"]*"', "", small_report)
    assert "exchange" not in shown.lower()
    assert "processor" not in shown.split("What was run", maxsplit=1)[0]
    with pytest.raises(UsageError, match="nothing to draw as exchange_times"):
        plots.exchange_times(small_result)


def test_exchange_times_are_drawn_as_the_share_that_took_at_most_so_long(
    every_result: Result,
) -> None:
    axes = plots.exchange_times(every_result)
    (line,) = axes.lines
    time_s, share = (np.asarray(data, dtype=float) for data in line.get_data())
    sorted_s = np.sort(every_result.exchanges["time_ns"].to_numpy()) / 1e9
    assert (share[0], share[-1]) == (0, 1)
    assert time_s[-1] == pytest.approx(sorted_s[-1])
    # Half of six exchanges are over when the third is.
    assert share[time_s == sorted_s[2]].max() == pytest.approx(0.5)
    assert str(line.get_label()) == "web (forward), 6"


def test_exchanges_are_drawn_without_time_series_too() -> None:
    web = {"kind": "fetch", "direction": "forward", "size": "1 kB", "files": 2}
    text = run_report(simulate(with_changes(traffic=[web], sample_interval=None)))
    # Exchange times, and where the capacity went.
    assert text.count("<svg") == 2
    assert "Exchange time [s]" in text


@pytest.mark.system
def test_many_sessions_and_terminals_are_drawn_together() -> None:
    web = {"kind": "fetch", "direction": "forward", "size": "1 kB", "files": 3}
    scenario = with_changes(traffic=[{**web, "terminal": "all"}], packet_events=False)
    scenario["link"]["terminals"] = 13
    text = run_report(simulate(scenario))
    assert "(forward), 39" in text
    assert "return: median, p5 to p95 of 13" in text


def test_the_queue_of_the_hub_has_a_line_of_its_own_beside_many_returns() -> None:
    """The empty queues of thirteen returns do not hide the full queue of the forward direction."""
    bulk = {"kind": "bulk", "direction": "forward", "duration": "2 s", "terminal": "all"}
    scenario = with_changes(traffic=[bulk], packet_events=False)
    scenario["link"]["terminals"] = 13
    result = simulate(scenario)
    lines = {str(line.get_label()): line for line in plots.queues(result).get_lines()}
    assert set(lines) == {"forward", "return: median, p5 to p95 of 13"}
    largest_kb = result.directions["queue_max_bytes"][0] / 1e3
    assert largest_kb > 0
    assert np.nanmax(np.asarray(lines["forward"].get_ydata())) > largest_kb / 2
    dropped = plots.drops(result).get_legend_handles_labels()[1]
    assert "forward: queue full" in dropped


# --- thinning -----------------------------------------------------------------------------------


def test_thinning_keeps_peaks_and_ends() -> None:
    time = np.arange(100_000, dtype=np.float64)
    values = np.sin(time / 5000)
    values[54_321], values[54_400] = 9.0, -9.0
    thin_time, thin_values = thinned(time, values)
    assert thin_time.size <= 802
    assert (thin_time[0], thin_time[-1]) == (0, 99_999)
    assert (thin_values.max(), thin_values.min()) == (9.0, -9.0)
    assert np.all(np.diff(thin_time) > 0)


def test_thinning_leaves_short_series_and_gaps() -> None:
    time = np.arange(50, dtype=np.float64)
    assert thinned(time, time)[0].size == 50
    long = np.arange(10_000, dtype=np.float64)
    gap = np.where(long < 5000, np.nan, 1.0)
    thin_time, thin_values = thinned(long, gap)
    assert np.isnan(thin_values[thin_time < 4900]).all()
    assert not np.isnan(thin_values[thin_time >= 5000]).any()


@settings(max_examples=100, deadline=None, database=None)
@given(
    values=st.lists(
        st.one_of(st.floats(-1e9, 1e9), st.just(float("nan"))), min_size=1, max_size=3_000
    ),
    intervals=st.integers(1, 300),
)
def test_thinning_keeps_the_smallest_and_the_largest_value(
    values: list[float], intervals: int
) -> None:
    """Given any line, expect points of it in order, both extremes, both ends, and a bound."""
    time = np.arange(len(values), dtype=np.float64)
    thin_time, thin_values = thinned(time, np.array(values), intervals)
    assert thin_time.size <= 2 * intervals + 2
    assert (thin_time[0], thin_time[-1]) == (time[0], time[-1])
    assert np.all(np.diff(thin_time) > 0)
    assert np.array_equal(thin_values, np.array(values)[thin_time.astype(int)], equal_nan=True)
    known = [value for value in values if not np.isnan(value)]
    if known:
        assert np.nanmin(thin_values) == min(known)
        assert np.nanmax(thin_values) == max(known)


def test_goodput_adds_up_to_what_was_delivered(small_result: Result) -> None:
    """The area under a line is the 1 MB of the bulk flow, or what arrived of the call."""
    lines = plots.goodput(small_result).lines
    for line, size_bytes in zip(lines, small_result.flows["delivered_bytes"], strict=True):
        time_s, rate_mbps = (np.asarray(data, dtype=float) for data in line.get_data())
        delivered_bytes = float(np.sum(np.diff(time_s) * rate_mbps[:-1]) * 1e6 / 8)
        assert delivered_bytes == pytest.approx(size_bytes, rel=1e-9)


def test_a_line_that_hardly_varies_has_room_above_it() -> None:
    figure, (axes,) = style.new_figure(1, 1, height_in=2)
    axes.plot([0, 1], [999, 1000])
    style.from_zero(axes)
    bottom, top = axes.get_ylim()
    assert bottom == 0
    assert top == pytest.approx(1050)
    figure, (axes,) = style.new_figure(1, 1, height_in=2)
    axes.plot([0, 1], [0, 0])
    style.from_zero(axes)
    assert axes.get_ylim()[0] == 0
    assert figure.axes == [axes]


@pytest.mark.parametrize(
    "draw",
    [
        plots.congestion_window,
        plots.in_flight,
        plots.smoothed_rtt,
        plots.goodput,
        plots.queues,
        plots.drops,
    ],
    ids=lambda draw: draw.__name__,
)
def test_a_plot_draws_on_the_given_axes(draw: Any, small_result: Result) -> None:
    """Given axes of a figure of the caller's, expect the lines there, with a unit on each axis."""
    _figure, (first, second) = style.new_figure(2, 1, height_in=4)
    assert draw(small_result, ax=second) is second
    assert second.lines
    assert not first.lines
    assert second.get_xlabel() == "Time [s]"
    assert second.get_ylabel().endswith("]")
