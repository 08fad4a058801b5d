"""The tables that people read: no number is shortened, and many flows are shown by entry."""

from __future__ import annotations

import itertools
import json
import re
from html import escape
from typing import Any

import numpy as np
import pytest
from conftest import Program

from bentpipe import Result, cli, plots, simulate
from bentpipe.report.run import run_report
from bentpipe.report.style import log_axis, new_figure
from bentpipe.report.terminal import run_tables
from bentpipe.results.run_views import flow_views, link_views
from bentpipe.results.views import Column, View, text_table

CALL = {
    "name": "call",
    "kind": "constant_rate",
    "direction": "both",
    "rate": "64 kbit/s",
    "payload": "160 B",
    "duration": "5 s",
}
MIXED: dict[str, Any] = {
    "name": "Mixed",
    "link": {
        "forward": {"rate": "2 Mbit/s", "delay": "250 ms", "queue": {"limit": "20 packets"}},
        "return": {"rate": "1 Mbit/s", "delay": "250 ms", "queue": {"limit": "20 packets"}},
    },
    "traffic": [
        {"name": "file", "kind": "bulk", "direction": "forward", "size": "500 kB", "count": 3},
        {"name": "web", "kind": "fetch", "direction": "forward", "size": "10 kB", "files": 2},
        {**CALL, "start": "1 s"},
    ],
    "duration": "40 s",
    "sample_interval": "100 ms",
}
MANY = {
    **MIXED,
    "traffic": [
        {**MIXED["traffic"][0], "count": 6},
        {**MIXED["traffic"][1], "count": 8},
        {**CALL, "start": "1 s", "count": 28, "start_spacing": "7 ms"},
    ],
}


@pytest.fixture(scope="module")
def mixed() -> Result:
    return simulate(MIXED)


@pytest.fixture(scope="module")
def many() -> Result:
    """70 flows: 6 transfers, 8 sessions, 28 calls each way."""
    return simulate(MANY)


def printed(result: Result, width: int) -> str:
    parts = run_tables(result)
    return "\n".join(p if isinstance(p, str) else text_table(p, width) for p in parts)


@pytest.mark.parametrize("width", [60, 80, 100, 160])
@pytest.mark.parametrize("name", ["mixed", "many"])
def test_a_table_never_shortens_a_number(
    width: int, name: str, request: pytest.FixtureRequest
) -> None:
    """Given terminals of 60 columns and more, expect each cell on one line, and no ellipsis."""
    result: Result = request.getfixturevalue(name)
    for view in [*flow_views(result), *link_views(result, 24)]:
        text = text_table(view, width)
        assert max(map(len, text.splitlines())) <= width
        for row in view.texts():
            for cell in row[view.key :]:
                assert re.search(rf"(?<!\S){re.escape(cell)}(?!\S)", text), (view.title, cell)


def test_a_wide_table_is_turned_and_a_narrow_one_is_not() -> None:
    """Given three numbers of 14 characters with a gap of 2, expect rows from a width of 52 on."""
    columns = [Column("flow", "flow"), *(Column(name, name) for name in ("c0", "c1", "c2"))]
    view = View("t", columns, [("a", *([123_456_789_012] * 3))])
    for width, heading in ((55, r"flow +c0 +c1 +c2"), (54, r"flow +a")):
        text = text_table(view, width)
        assert re.search(heading, text), text
        assert text.count("123,456,789,012") == 3


def test_tcp_and_udp_flows_have_the_columns_that_apply(mixed: Result) -> None:
    tcp, exchanges, udp = flow_views(mixed)
    of_tcp, of_udp = ({column.name for column in view.columns} for view in (tcp, udp))
    assert {"retransmitted_segments", "timeouts"} <= of_tcp
    assert {"received_segments", "lost_packets", "loss_percent", "one_way_delay_p95_ns"} <= of_udp
    assert not {"retransmitted_segments", "rtt_min_ns"} & of_udp
    assert [row[0] for row in tcp.rows] == ["file-1", "file-2", "file-3", "web"]
    assert [row[0] for row in exchanges.rows] == ["web"]
    assert [row[0] for row in udp.rows] == ["call-forward", "call-return"]


def test_more_than_twelve_flows_are_summarized_by_entry(many: Result) -> None:
    """Given 70 flows of three entries, expect a group of rows an entry and direction."""
    tcp, udp = flow_views(many)
    heads = [tuple(view.rows[i][:4]) for view in (tcp, udp) for i in view.starts()]
    assert heads == [
        ("file", "forward", "p5", 6),
        ("web", "forward", "p5", 8),
        ("call", "forward", "p5", 28),
        ("call", "return", "p5", 28),
    ]
    assert [row[3] for row in tcp.texts()] == ["6", "", "", "", "8", "", "", ""]
    # A row a percentile: 5, 50, 95 and 99.
    assert len(tcp.rows) == 2 * 4
    text = printed(many, 160)
    assert "All 70 flows: --json, or flows.parquet in the folder of --out" in text
    assert "file-1" not in text
    goodputs = many.goodput_bps[:6]
    assert many.entries[0]["goodput_bps"]["p50"] == pytest.approx(np.median(goodputs))


def test_json_has_every_flow_and_entry_with_units_in_names(
    bentpipe: Program, tmp_path: Any
) -> None:
    file = tmp_path / "many.json"
    file.write_text(json.dumps(MANY), encoding="utf-8")
    summary = json.loads(bentpipe("run", file, "--json").out)
    assert len(summary["flows"]) == 70
    call = summary["flows"][-1]
    assert call["expected_segments"] == call["received_segments"] + call["lost_packets"] == 250
    for name in ("jitter_ns", "jitter_mean_ns", "one_way_delay_p50_ns", "one_way_delay_p99_ns"):
        assert call[name] is not None, name
    assert [entry["entry"] for entry in summary["entries"]] == ["file", "web", "call", "call"]
    assert summary["entries"][2]["flows"] == 28
    assert set(summary["entries"][2]["loss_percent"]) == {"p5", "p50", "p95", "p99"}


def test_datagrams_add_up_and_percentiles_are_those_of_the_events() -> None:
    """Given calls that compete with transfers, expect sent = received + lost.

    Expect delay percentiles and jitter of the packets in the event log.
    """
    result = simulate({**MIXED, "packet_events": True})
    flow = result.flows.to_dicts()[4]
    assert flow["name"] == "call-forward"
    assert flow["lost_packets"] > 0
    assert flow["expected_segments"] == flow["received_segments"] + flow["lost_packets"]
    assert flow["loss_percent"] == pytest.approx(100 * flow["lost_packets"] / 250)
    mine = result.events
    mine = mine.filter(mine["flow"] == 4)
    sent = dict(mine.filter(mine["kind"] == "enqueued").select("packet", "time_ns").iter_rows())
    arrived = mine.filter(mine["kind"] == "delivered").select("packet", "time_ns").rows()
    delays_ns = [time_ns - sent[packet] for packet, time_ns in arrived]
    exact = np.percentile(delays_ns, (50, 95, 99), method="inverted_cdf")
    found = [flow[f"one_way_delay_{p}_ns"] for p in ("p50", "p95", "p99")]
    assert found == pytest.approx(exact.tolist(), rel=0.002)
    # RFC 3550, section 6.4.1.
    jitter_ns = 0.0
    for before, delay_ns in itertools.pairwise(delays_ns):
        jitter_ns += (abs(delay_ns - before) - jitter_ns) / 16
    assert flow["jitter_ns"] == pytest.approx(jitter_ns, abs=2)
    assert flow["jitter_mean_ns"] == pytest.approx(np.abs(np.diff(delays_ns)).mean(), abs=1)


def test_tcp_flows_have_their_losses_by_cause(mixed: Result) -> None:
    flows, forward = mixed.flows, mixed.directions.to_dicts()[0]
    assert flows["lost_queue_full_packets"].sum() == forward["dropped_queue_full_packets"] > 0
    assert flows["loss_percent"][0] is None
    assert flows["retransmitted_percent"][0] > 0
    assert flows["completion_time_ns"][0] == flows["finished_ns"][0] - flows["start_ns"][0]


# --- reports and plots --------------------------------------------------------------------------


def test_lines_begin_and_end_with_their_flows(mixed: Result) -> None:
    """Given a transfer that ends before the run does, expect no line of it after its end."""
    flows = {f"{flow['name']} ({flow['direction']})": flow for flow in mixed.flows.to_dicts()}
    assert mixed.flows["finished_ns"].min() < mixed.manifest["end_ns"] / 2
    for draw in (plots.congestion_window, plots.in_flight, plots.smoothed_rtt, plots.goodput):
        for line in draw(mixed).lines:
            flow = flows[str(line.get_label())]
            time_s = np.asarray(line.get_xdata(), dtype=float)
            end_ns = flow["finished_ns"] or mixed.manifest["end_ns"]
            end_ns = max(end_ns, flow["last_delivery_ns"] if flow["kind"] == "constant_rate" else 0)
            assert flow["start_ns"] / 1e9 <= time_s[0]
            assert time_s[-1] <= end_ns / 1e9


def test_many_flows_are_a_band_by_entry(many: Result) -> None:
    """The band of an entry ends with its last flow."""
    axes = plots.congestion_window(many)
    labels = [str(line.get_label()) for line in axes.lines]
    assert labels == [
        "file (forward): median, p5 to p95 of 6",
        "web (forward): median, p5 to p95 of 8",
    ]
    ends_s = [flow["finished_ns"] / 1e9 for flow in many.flows.to_dicts()[:6]]
    assert np.asarray(axes.lines[0].get_xdata(), dtype=float)[-1] <= max(ends_s)


@pytest.mark.parametrize(
    ("values", "labels"),
    [([0.3, 40], ["0.5", "1", "2", "5", "10", "20"]), ([1, 1e5], ["1", "10", "100", "1,000"])],
)
def test_a_log_axis_has_numbers_as_labels(values: list[float], labels: list[str]) -> None:
    figure, (axes,) = new_figure(1, 1, height_in=2)
    axes.plot(values, values)
    log_axis(axes.xaxis)
    log_axis(axes.yaxis)
    figure.canvas.draw()
    for axis in (axes.xaxis, axes.yaxis):
        shown = [label.get_text() for label in axis.get_ticklabels()]
        assert set(labels) <= set(shown)
        assert not any("$" in label for label in shown)


@pytest.mark.system
def test_the_report_begins_with_loss_utilization_and_a_figure(mixed: Result) -> None:
    text = run_report(mixed)
    first = text.index("<svg")
    row = mixed.directions.to_dicts()[0]
    lost = f"forward: utilization {row['utilization']:.1%}, {row['dropped_packets']:,} of"
    assert 0 < text.index(lost) < first < text.index("<table")
    assert re.search(r"UDP: \d+ of 500 datagrams lost", text[:first])


def test_a_notebook_shows_the_same_tables(mixed: Result, many: Result) -> None:
    text = mixed._repr_html_()
    for view in flow_views(mixed):
        assert f"<caption>{escape(view.title)}</caption>" in text
    assert "download" not in text
    assert many._repr_html_().count("<tr>") < 40


def test_no_cell_is_shortened_where_a_table_is_too_wide(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given ten columns of 9 characters on a terminal of 60 columns, expect each cell whole."""
    cells = range(1_000_001, 1_000_011)
    monkeypatch.setenv("COLUMNS", "60")
    cli.print_views(View("", [Column(name, name) for name in "abcdefghij"], [cells]))
    printed = capsys.readouterr().out
    assert all(f"{cell:,}" in printed for cell in cells)


def test_many_terminals_are_one_group_of_rows() -> None:
    """Given 20 terminals of which one sends more, expect the forward direction and one group."""
    result = simulate(
        {
            "link": {
                "terminals": 20,
                "forward": {"rate": "2 Mbit/s", "delay": "20 ms"},
                "return": {"rate": "1 Mbit/s", "delay": "20 ms"},
            },
            "gateways": {
                "hub": {"processor": {}, "aggregator": {}},
                "terminal": {"processor": {}, "aggregator": {}},
            },
            "traffic": [
                {"kind": "bulk", "direction": "return", "size": "10 kB", "terminal": 1, "count": 2},
                {"kind": "bulk", "direction": "forward", "size": "2 kB", "terminal": "all"},
            ],
            "duration": "5 s",
        }
    )
    directions, processors, aggregators = link_views(result, 12)
    heads = [[*row[:3]] for row in directions.rows]
    returns = [["return-1 to return-20", f"p{p}", 20] for p in (5, 50, 95, 99)]
    assert heads == [["forward", "", 1], *returns]
    assert [row[0] for row in processors.rows[1:]] == [
        "terminal-1-processor to terminal-20-processor"
    ] * 4
    assert len(aggregators.rows) == 5
    sent = [column.name for column in directions.columns].index("sent_packets")
    packets = result.directions["sent_packets"][1:].to_numpy()
    for row, p in zip(directions.rows[1:], (5, 50, 95, 99), strict=True):
        assert row[sent] == round(np.percentile(packets, p))
    text = printed(result, 160)
    assert "All 21 directions: --json" in text
    assert "return-2" not in text.replace("return-20", "")
    assert len(text.splitlines()) < 70
    # As many as fit are listed.
    assert len(link_views(result, 200)[0].rows) == 21


def test_flows_that_compete_in_many_directions_are_one_line() -> None:
    """Given two transfers in each of 13 returns, expect one line; of 12, a line each."""
    for terminals, lines in ((13, 1), (12, 12)):
        link = {
            "terminals": terminals,
            "forward": {"rate": "2 Mbit/s", "delay": "20 ms"},
            "return": {"rate": "1 Mbit/s", "delay": "20 ms"},
        }
        bulk = {"kind": "bulk", "direction": "return", "size": "5 kB", "terminal": "all"}
        result = simulate({"link": link, "traffic": [bulk, bulk], "duration": "5 s"})
        shared = [line for line in run_tables(result) if "fairness" in str(line)]
        assert len(shared) == lines
        assert not shared[1:] or "return-12: 2 bulk flows" in str(shared[-1])
