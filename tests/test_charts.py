"""The charts of a run: each kind of traffic has one, and each renderer draws the same data."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any, get_args

import numpy as np
import polars as pl
import pytest
from conftest import ROOT, SMALL, Program
from starlette.testclient import TestClient

from bentpipe import Result, plots, report, simulate
from bentpipe.dashboard.app import create_app
from bentpipe.dashboard.charts import page_data
from bentpipe.errors import UsageError
from bentpipe.report.html import Exports, csv_of_figure, svg_file
from bentpipe.report.plots import draw
from bentpipe.report.style import figure_of, new_figure
from bentpipe.results.charts import CHARTS, Chart, chart_data, charts_of, csv_of
from bentpipe.scenario import traffic
from bentpipe.scenario.record import Record

# Every kind of traffic, and drops: something to show for each chart.
ALL: dict[str, Any] = {
    "name": "all",
    "link": {
        "terminals": 2,
        "forward": {
            "rate": "4 Mbit/s",
            "delay": "100 ms",
            "queue": {"discipline": "drop_tail", "limit": "40 kB"},
        },
        "return": {"rate": "2 Mbit/s", "delay": "100 ms"},
    },
    "traffic": [
        {"name": "bulk", "kind": "bulk", "direction": "forward", "size": "2 MB"},
        {
            "name": "udp",
            "kind": "constant_rate",
            "direction": "return",
            "rate": "64 kbit/s",
            "payload": "160 B",
            "duration": "12 s",
        },
        {"name": "call", "kind": "voice", "duration": "12 s"},
        {
            "name": "ask",
            "kind": "request_response",
            "direction": "forward",
            "request": "100 B",
            "response": "1 kB",
            "exchanges": 2,
        },
        {"name": "file", "kind": "fetch", "direction": "forward", "size": "1 kB", "files": 2},
        {
            "name": "film",
            "kind": "video",
            "direction": "forward",
            "rate": "500 kbit/s",
            "duration": "4 s",
        },
        {"name": "page", "kind": "web_page", "direction": "forward", "pages": 1},
        {"name": "users", "kind": "channels", "channels": 1},
        {
            "name": "room",
            "kind": "conference",
            "participants": 2,
            "rate": "64 kbit/s",
            "payload": "160 B",
            "duration": "12 s",
        },
    ],
    "duration": "15 s",
}


@pytest.fixture(scope="module")
def result() -> Result:
    return simulate(ALL)


@pytest.fixture(params=list(CHARTS.values()), ids=list(CHARTS))
def chart(request: pytest.FixtureRequest) -> Chart:
    found: Chart = request.param
    return found


def test_every_kind_of_traffic_has_charts_of_its_flows(result: Result) -> None:
    """Given a flow of each kind that a scenario can have, expect lines of it, one of goodput."""
    kinds = {entry["kind"] for entry in ALL["traffic"]}
    assert kinds == {
        get_args(each.model_fields["kind"].annotation)[0]
        for each in vars(traffic).values()
        if isinstance(each, type) and issubclass(each, Record) and "kind" in each.model_fields
    }
    flows = [f"{row['name']} ({row['direction']})" for row in result.flows.to_dicts()]
    lines = {
        name: {line.name for line in chart_data(CHARTS[name], result).lines}
        for name in ("goodput", "congestion_window", "one_way_delay")
    }
    assert lines["goodput"] == set(flows)
    assert lines["congestion_window"] | lines["one_way_delay"] == set(flows)
    assert not lines["congestion_window"] & lines["one_way_delay"]


def test_each_chart_is_drawn_by_matplotlib(chart: Chart, result: Result) -> None:
    """Given a chart, expect a public function of its name, with the lines and the labels."""
    data = chart_data(chart, result)
    axes = getattr(plots, chart.name)(result)
    assert chart.name in plots.names(result)
    assert chart.label in (axes.get_ylabel(), axes.get_xlabel())
    if chart.kind == "stacks":
        assert len(axes.containers) == len(data.lines)
    else:
        assert [line.get_label() for line in axes.lines] == [line.name for line in data.lines]
        assert axes.get_xlabel() == chart.x_label
        for line, expected in zip(axes.lines, data.lines, strict=True):
            np.testing.assert_array_equal(np.asarray(line.get_ydata()), expected.values)


def test_each_chart_is_data_of_a_page_and_a_csv_file(chart: Chart, result: Result) -> None:
    data = chart_data(chart, result, intervals=1_000, bins=300)
    page = page_data(chart, result)
    json.dumps(page, allow_nan=False)
    assert [line["name"] for line in page["lines"]] == [line.name for line in data.lines]
    header, *rows = csv.reader(StringIO(csv_of(data)))
    assert header[1:] == [chart.x_label, chart.label]
    points = [(line["name"], y) for line in page["lines"] for y in line["y"]]
    assert points == [(name, float(y) if y else None) for name, _, y in rows]


def test_a_chart_without_data_is_not_shown(result: Result) -> None:
    assert [each.name for each in charts_of(result)] == list(CHARTS)
    call = {**ALL, "traffic": [{"name": "call", "kind": "voice", "duration": "5 s"}]}
    assert plots.names(simulate(call)) == [
        *("goodput", "throughput", "queues", "one_way_delay", "jitter", "call_quality")
    ]
    assert plots.names(simulate({**call, "sample_interval": None})) == []


# --- flows of datagrams ---------------------------------------------------------------------------


def test_the_samples_of_datagrams_end_with_the_row_of_the_flow(result: Result) -> None:
    flows = result.flows.filter(pl.col("kind").is_in(["constant_rate", "voice", "conference"]))
    last = result.datagram_samples.group_by("flow", maintain_order=True).last()
    assert last["name"].to_list() == flows["name"].to_list()
    counts = ("expected_segments", "received_segments", "delivered_bytes", "lost_packets")
    for name in (*counts, "jitter_ns", "late_packets", "loss_bursts"):
        assert last[name].to_list() == flows[name].to_list(), name
    mean_ns = last["one_way_delay_sum_ns"] / last["received_segments"]
    assert mean_ns.to_list() == pytest.approx(flows["one_way_delay_mean_ns"].to_list())


def test_the_loss_over_time_adds_up_to_that_of_the_flow() -> None:
    """Given 2 Mbit/s on a link of 1 Mbit/s, expect half of the datagrams lost at last."""
    link: dict[str, Any] = {
        each: {"rate": "1 Mbit/s", "delay": "50 ms"} for each in ("forward", "return")
    }
    link["forward"]["queue"] = {"discipline": "drop_tail", "limit": "10 kB"}
    udp = {
        "kind": "constant_rate",
        "direction": "forward",
        "rate": "2 Mbit/s",
        "payload": "1000 B",
        "duration": "4 s",
    }
    overload = simulate({"link": link, "traffic": [udp], "duration": "5 s"})
    (line,) = chart_data(CHARTS["loss"], overload).lines
    assert line.values[-5] == pytest.approx(51, abs=6)
    (delay,) = chart_data(CHARTS["one_way_delay"], overload).lines
    # The queue of 10 kB at 1 Mbit/s, the packet on the link, and 50 ms.
    assert 120 < np.nanmax(delay.values) < 140


def test_the_quality_of_a_short_call_is_that_of_its_row() -> None:
    """Given a call shorter than a window, without a loss, expect its MOS."""
    call = {**ALL, "traffic": [{"name": "call", "kind": "voice", "duration": "3 s"}]}
    short = simulate(call)
    lines = chart_data(CHARTS["call_quality"], short).lines
    assert [line.values[0] for line in lines] == pytest.approx(short.flows["mos"].to_list())


def test_without_samples_there_are_no_rows_of_datagrams() -> None:
    assert simulate({**ALL, "sample_interval": None}).datagram_samples.height == 0


# --- files ---------------------------------------------------------------------------------------


def links_of(text: str) -> list[str]:
    return re.findall(r'<a href="([^"]*)">(?:PNG|SVG|CSV)</a>', text)


@pytest.fixture
def small_file(tmp_path: Path) -> Path:
    file = tmp_path / "small.json"
    file.write_text(json.dumps(SMALL), encoding="utf-8")
    return file


def check_files(folder: Path, links: list[str]) -> None:
    """Check that each link has a file, and that there are no others beside them."""
    starts = {".png": b"\x89PNG", ".svg": b"<?xml", ".csv": b""}
    for link in links:
        content = (folder / link).read_bytes()
        assert len(content) > 100
        assert content.startswith(starts[Path(link).suffix])
    (name,) = {link.partition("/")[0] for link in links}
    found = {f"{name}/{path.name}" for path in (folder / name).iterdir()}
    assert found == set(links)


@pytest.mark.system
def test_a_run_writes_its_charts_beside_the_report(
    bentpipe: Program, small_file: Path, tmp_path: Path
) -> None:
    """Given a report, expect three files for each figure, linked and in the manifest."""
    out = tmp_path / "out"
    assert bentpipe("run", small_file, "--out", out).code == 0
    links = links_of((out / "report.html").read_text())
    result = Result.load(out)
    names = [chart.name for chart in charts_of(result)]
    kinds = ("png", "svg", "csv")
    assert sorted(links) == sorted(f"charts/{name}.{kind}" for name in names for kind in kinds)
    check_files(out, links)
    assert "charts" in json.loads((out / "manifest.json").read_text())["files"]
    # A report that is written later is the same, with the same files.
    before = {path.name: path.read_bytes() for path in (out / "charts").iterdir()}
    text = (out / "report.html").read_text()
    assert bentpipe("report", out).code == 0
    assert {path.name: path.read_bytes() for path in (out / "charts").iterdir()} == before
    assert (out / "report.html").read_text() == text


@pytest.mark.system
def test_a_report_of_another_name_has_a_folder_of_its_own(
    plain_result: Result, tmp_path: Path
) -> None:
    path = report.write_run_report(plain_result, tmp_path / "geo.html")
    links = links_of(path.read_text())
    assert all(link.startswith("geo-charts/") for link in links)
    check_files(tmp_path, links)


@pytest.mark.system
def test_a_report_to_a_device_has_no_files(plain_result: Result) -> None:
    report.write_run_report(plain_result, "/dev/null")
    assert not Path("/dev/null-charts").exists()
    assert links_of(report.run_report(plain_result)) == []


@pytest.mark.system
def test_a_search_has_files_too(bentpipe: Program, tmp_path: Path) -> None:
    search = ("search", ROOT / "scenarios/snip-duplex.yaml", "--no-drop", "--sizes", "1400")
    assert bentpipe(*search, "--out", tmp_path / "found").code == 0
    page = (tmp_path / "found/report.html").read_text()
    check_files(tmp_path / "found", links_of(page))
    header, *rows = csv.reader(StringIO((tmp_path / "found/charts/no-drop-rate.csv").read_text()))
    assert header == ["panel", "x axis", "y axis", "series", "x", "y", "low", "high"]
    assert {row[4] for row in rows} == {"1400.0"}


@pytest.fixture
def client(tmp_path: Path, small_result: Result) -> Iterator[TestClient]:
    small_result.save(tmp_path / "a run")
    with TestClient(create_app(tmp_path), raise_server_exceptions=False) as client:
        yield client


@pytest.mark.system
def test_the_dashboard_offers_the_files_of_each_chart(
    client: TestClient, small_result: Result
) -> None:
    links = re.findall(r'href="(/export/[^"]*)"', client.get("/result/a%20run").text)
    assert len(links) == 3 * len(charts_of(small_result))
    for link in links[:3]:
        reply = client.get(link)
        assert reply.status_code == 200
        assert reply.headers["content-disposition"].startswith("attachment; filename=")
    data = chart_data(CHARTS["goodput"], small_result)
    assert client.get("/export/goodput.csv/a%20run").text == csv_of(data)
    assert client.get("/export/goodput.png/a%20run").content.startswith(b"\x89PNG")
    for path, status in (("goodput.pdf", 404), ("no.png", 404), ("call_quality.svg", 422)):
        assert client.get(f"/export/{path}/a%20run").status_code == status


def test_figures_with_like_names_have_different_files() -> None:
    """Given names that differ in characters that no file has, expect a number."""
    figure, _ = new_figure(1, 1, height_in=1)
    exports = Exports()
    for name in ("a b", "a/b", "a:b", "x" * 300):
        exports.add(figure, name, svg_file(figure, name), "")
    assert len(exports.files) == 12
    assert {"charts/a-b.csv", f"charts/{'x' * 60}.png"} < exports.files.keys()


@pytest.mark.system
def test_a_report_needs_the_folder_of_its_page(plain_result: Result, tmp_path: Path) -> None:
    path = tmp_path / "none/report.html"
    with pytest.raises(UsageError, match=f"{path}: cannot be written: No such file"):
        report.write_run_report(plain_result, path)
    assert not path.parent.exists()


def test_any_figure_has_a_csv_file() -> None:
    """Given a line with a band, marks and bars, expect their points, with the bounds."""
    figure, (left, right) = new_figure(2, 1, height_in=2)
    left.set_title("curve")
    left.fill_between([1, 2], [1, 2], [3, 4], color="C0")
    left.plot([1, 2], [2, 3], color="C0", label="mean")
    left.scatter([1.5], [2.5], label="published")
    right.set_xlabel("error [%]")
    right.barh([0], [5], left=[2], label="parts")
    right.set_yticks([0], ["one"])
    _, *rows = csv.reader(StringIO(csv_of_figure(figure)))
    assert [row[:1] + row[3:] for row in rows] == [
        ["curve", "mean", "1.0", "2.0", "1.0", "3.0"],
        ["curve", "mean", "2.0", "3.0", "2.0", "4.0"],
        ["curve", "published", "1.5", "2.5", "", ""],
        ["", "parts", "one", "5.0", "2.0", "7.0"],
    ]


def test_a_chart_of_many_flows_has_its_bands_in_the_csv_file() -> None:
    udp = {**SMALL["traffic"][1], "count": 13}
    result = simulate({**SMALL, "traffic": [udp], "packet_events": False})
    data = chart_data(CHARTS["goodput"], result)
    header, *rows = csv.reader(StringIO(csv_of(data)))
    assert header == ["line", "Time [s]", "Goodput [Mbit/s]", "p5 [Mbit/s]", "p95 [Mbit/s]"]
    assert {row[0] for row in rows} == {"call (return): median, p5 to p95 of 13"}
    assert figure_of(draw(data)).axes[0].collections


def test_a_band_has_no_values_where_none_of_its_lines_has_one() -> None:
    """Given a flow that starts at 4 s beside 12 others, expect no RTT of it in the first second."""
    bulk = SMALL["traffic"][0]
    traffic = [{**bulk, "name": "early", "count": 12}, {**bulk, "name": "late", "start": "4 s"}]
    result = simulate({**SMALL, "traffic": traffic, "packet_events": False})
    early, late = chart_data(CHARTS["smoothed_rtt"], result, span_s=(0.0, 1.0)).lines
    assert np.isfinite(early.values).any()
    assert np.isnan([late.values, *late.bounds]).all()
