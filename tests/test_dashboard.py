"""The pages of `bentpipe serve`: what they list and show, for each kind of result and request."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from conftest import ROOT, SMALL, Program
from starlette.testclient import TestClient

from bentpipe import Result, simulate
from bentpipe.dashboard.app import create_app
from bentpipe.dashboard.catalog import Catalog, Entry
from bentpipe.dashboard.charts import INTERVALS, page_data
from bentpipe.results.charts import CHARTS, charts_of
from bentpipe.results.files import RESULT_FORMAT_VERSION
from bentpipe.results.views import Column, View
from bentpipe.units import format_rate

VENDOR = ROOT / "python/bentpipe/dashboard/static/vendor"
# A browser reads it once; the page of a run is not to wait for it.
SCRIPT_BYTES_MAX = 60_000


def other_scenario(**changes: Any) -> dict[str, Any]:
    return copy.deepcopy(SMALL) | changes


@pytest.fixture(scope="module")
def served(
    tmp_path_factory: pytest.TempPathFactory, small_result: Result, every_result: Result
) -> Path:
    """A folder with runs, one of them damaged, and what is no result."""
    root = tmp_path_factory.mktemp("served")
    small_result.save(root / "small")
    every_result.save(root / "deeper/every, 100 %")
    shutil.copytree(root / "small", root / "cut-off")
    os.truncate(root / "cut-off/flows.parquet", 100)
    shutil.copytree(root / "small", root / "lacking")
    (root / "lacking/exchanges.parquet").unlink()
    (root / "page").mkdir()
    (root / "page/manifest.json").write_text('{"name": "a web page"}')
    (root / ".hidden").mkdir()
    small_result.save(root / ".hidden/small")
    return root


@pytest.fixture
def client(served: Path) -> Iterator[TestClient]:
    with TestClient(create_app(served), raise_server_exceptions=False) as client:
        yield client


def by_path(root: Path) -> dict[str, Entry]:
    return {entry.path: entry for entry in Catalog(root).entries()}


# --- the list -----------------------------------------------------------------------------------


def test_the_list_has_each_result_with_its_state(served: Path) -> None:
    found = by_path(served)
    assert set(found) == {"small", "deeper/every, 100 %", "cut-off", "lacking"}
    small = found["small"]
    assert (small.kind, small.title, small.state) == ("run", "small", "completed")
    assert (small.seed, small.engine, small.problem) == (1, "simulate", None)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC", small.ended)
    assert found["cut-off"].state == found["lacking"].state == "damaged"
    assert str(found["cut-off"].problem).startswith("flows.parquet: cannot be read")
    assert found["lacking"].problem == "exchanges.parquet: is missing"


def test_a_result_that_is_served_by_itself_is_listed(served: Path) -> None:
    with TestClient(create_app(served / "small")) as client:
        assert 'href="/result/"' in client.get("/").text
        assert "<h1>small</h1>" in client.get("/result/").text
        assert client.get("/data/chart/queues/").json()["unit"] == "kB"


def test_the_page_lists_results_and_why_one_is_damaged(client: TestClient) -> None:
    page = client.get("/")
    assert page.status_code == 200
    assert 'href="/result/deeper/every%2C%20100%20%25"' in page.text
    assert "<b>damaged</b>: exchanges.parquet: is missing" in page.text
    assert page.text.count('type="checkbox"') == 2
    assert client.get("/list").text in page.text


def test_a_result_that_appears_or_changes_is_seen_without_a_restart(
    tmp_path: Path, small_result: Result
) -> None:
    """Given an empty folder, then a result, then another in its place, expect each in the list."""
    catalog = Catalog(tmp_path)
    assert catalog.entries() == []
    small_result.save(tmp_path / "new")
    assert catalog.entry("new").state == "completed"
    changed = Result({**small_result.manifest, "state": "interrupted"}, small_result.tables)
    changed.save(tmp_path / "new")
    assert catalog.entry("new").state == "interrupted"


def test_a_result_whose_writer_was_killed_before_the_last_step_is_read(
    tmp_path: Path, small_result: Result
) -> None:
    """Its files are in `.part/commit`, see `bentpipe.results.output`."""
    small_result.save(tmp_path / "run")
    commit = tmp_path / "run/.part/commit"
    commit.parent.mkdir()
    shutil.copytree(tmp_path / "run", commit, ignore=shutil.ignore_patterns(".part"))
    for path in commit.iterdir():
        (tmp_path / "run" / path.name).unlink()
    assert by_path(tmp_path)["run"].problem is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "manifest.json: cannot be read: "),
        ('{"bentpipe_version": "0.1.0"}', "manifest.json: format_version is None"),
        ('{"bentpipe_version": "0.1.0", "format_version": 8, "files": 7}', "manifest.json: lacks"),
    ],
)
def test_a_manifest_that_cannot_be_used_is_a_damaged_result(
    tmp_path: Path, text: str, problem: str
) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/manifest.json").write_text(text)
    (entry,) = Catalog(tmp_path).entries()
    assert str(entry.problem).startswith(problem)
    with TestClient(create_app(tmp_path)) as client:
        assert "This result is damaged: " in client.get("/result/broken").text


def test_the_search_of_a_large_folder_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bentpipe.dashboard.catalog.FOLDERS_MAX", 10)
    for i in range(20):
        (tmp_path / str(i)).mkdir()
    with TestClient(create_app(tmp_path)) as client:
        assert "There are more folders than are searched." in client.get("/").text


# --- results ------------------------------------------------------------------------------------


def test_the_page_of_a_run_has_facts_tables_charts_and_its_report(
    client: TestClient, small_result: Result
) -> None:
    page = client.get("/result/small").text
    assert "<h1>small</h1>" in page
    assert "seed 1, completed at " in page
    for chart in charts_of(small_result):
        assert f'data-chart="{chart.name}"' in page
        for kind in ("png", "svg", "csv"):
            assert f'href="/export/{chart.name}.{kind}/small"' in page
    assert "<small>application bits</small>" in page
    assert "<summary>The complete plan (ns, bytes, bit/s)</summary>" in page
    assert "/report/" not in page


def test_a_run_that_is_invalid_or_has_warnings_says_so(
    tmp_path: Path, small_result: Result
) -> None:
    warning = {"field": "traffic.0", "message": "cannot end <in time>"}
    manifest = {**small_result.manifest, "state": "interrupted", "warnings": [warning]}
    Result(manifest, small_result.tables).save(tmp_path / "run")
    with TestClient(create_app(tmp_path)) as client:
        page = client.get("/result/run").text
        assert "The run was interrupted." in page
        assert "Warning: traffic.0: cannot end &lt;in time&gt;" in page
        assert '<td class="c-warnings">1</td>' in client.get("/").text


def test_a_run_without_time_series_says_how_to_get_them(tmp_path: Path) -> None:
    simulate(other_scenario(sample_interval=None)).save(tmp_path / "run")
    with TestClient(create_app(tmp_path)) as client:
        assert "No time series were recorded" in client.get("/result/run").text
        reply = client.get("/data/chart/congestion_window/run")
    assert reply.status_code == 422
    assert "set sample_interval" in reply.json()["error"]


@pytest.mark.system
def test_a_report_is_shown_without_scripts(
    bentpipe: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.json").write_text(json.dumps(other_scenario(duration="2 s")))
    assert bentpipe("run", "s.json", "--out", "run").code == 0
    with TestClient(create_app(tmp_path)) as client:
        assert 'href="/report/run/"' in client.get("/result/run").text
        reply = client.get("/report/run")
        chart = client.get("/report/run/charts/goodput.png")
        for path in ("run/charts/none.png", "run/charts/..png", "charts/goodput.png"):
            assert client.get(f"/report/{path}").status_code == 404
        (tmp_path / "run/charts/out.csv").symlink_to("/etc/passwd")
        assert client.get("/report/run/charts/out.csv").status_code == 404
    assert reply.text == (tmp_path / "run/report.html").read_text()
    assert chart.content == (tmp_path / "run/charts/goodput.png").read_bytes()
    for each in (reply, chart):
        policy = each.headers["content-security-policy"]
        assert policy.startswith("sandbox allow-same-origin allow-downloads; default-src 'none'")


def test_the_page_of_a_search_shows_its_tables(
    bentpipe: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    scenario = ROOT / "scenarios/snip-duplex.yaml"
    found = bentpipe("search", scenario, "--no-drop", "--sizes", "1400", "--out", "found")
    assert found.code == 0, found.err
    with TestClient(create_app(tmp_path)) as client:
        page = client.get("/result/found").text
        assert client.get("/data/chart/queues/found").status_code == 404
    assert "<caption>sizes.csv <span" in page
    assert "rate bps" in page


def test_names_are_escaped(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>"
    simulate(other_scenario(name=evil, duration="1 s")).save(tmp_path / "a<b")
    with TestClient(create_app(tmp_path)) as client:
        for path in ("/", "/result/a<b", f"/result/{evil}"):
            assert evil not in client.get(path).text


# --- charts -------------------------------------------------------------------------------------


def test_a_chart_is_the_series_of_the_run(client: TestClient, small_result: Result) -> None:
    """Given the windows of one flow, expect its samples between start and end."""
    data = client.get("/data/chart/congestion_window/small").json()
    assert (data["title"], data["unit"], data["steps"]) == ("Congestion window", "kB", False)
    (line,) = data["lines"]
    samples = small_result.tables["flow_samples"]
    finished_ns = small_result.flows["finished_ns"][0]
    own = samples.filter(pl.col("time_ns") <= finished_ns)
    assert line["name"] == "bulk-1 (forward)"
    assert line["x"] == pytest.approx([ns / 1e9 for ns in own["time_ns"]])
    assert line["y"] == pytest.approx([size / 1e3 for size in own["cwnd_bytes"]])


def test_a_part_of_a_chart_has_the_next_point_on_either_side(client: TestClient) -> None:
    (whole, *_) = client.get("/data/chart/queues/small").json()["lines"]
    (part, *_) = client.get("/data/chart/queues/small?from=0.25&to=0.55").json()["lines"]
    inside = [i for i, at in enumerate(whole["x"]) if 0.25 <= at <= 0.55]
    assert part["x"] == whole["x"][inside[0] - 1 : inside[-1] + 2]


def test_a_chart_has_the_outages_in_its_time() -> None:
    """Given an outage of the forward direction from 1 to 1.5 s, expect it, cut at a part's end."""
    link = copy.deepcopy(SMALL["link"])
    link["forward"]["outage"] = [{"at": "1 s", "for": "500 ms"}]
    result = simulate(other_scenario(link=link))
    (whole,) = page_data(CHARTS["queues"], result)["outages"]
    assert whole == {"name": "outage of forward", "intervals": [[1, 1.5]]}
    (part,) = page_data(CHARTS["queues"], result, 1.25, 2)["outages"]
    assert part["intervals"] == [[1.25, 1.5]]
    assert page_data(CHARTS["queues"], result, 1.75, 2)["outages"] == []


def test_throughput_adds_up_to_what_was_delivered(small_result: Result) -> None:
    """The area under the line is the bytes that the direction delivered until the last sample."""
    forward, _ = page_data(CHARTS["throughput"], small_result)["lines"]
    bits = float(np.sum(np.diff(forward["x"]) * np.array(forward["y"][:-1]))) * 1e6
    samples = small_result.direction_samples.filter(pl.col("direction") == "forward")
    assert bits / 8 == pytest.approx(samples["delivered_bytes"][-1], rel=1e-5)


def test_many_flows_are_bands() -> None:
    traffic = [{"kind": "bulk", "direction": "forward", "size": "20 kB", "count": 30}]
    result = simulate(other_scenario(traffic=traffic, packet_events=False))
    data = page_data(CHARTS["congestion_window"], result)
    assert data["lines"] == []
    (band,) = data["bands"]
    assert band["name"] == "bulk-1 to bulk-30 (forward): median, p5 to p95 of 30"
    rows = zip(band["low"], band["y"], band["high"], strict=True)
    assert all(low <= middle <= high for low, middle, high in rows if low is not None)


@pytest.mark.parametrize("name", CHARTS)
def test_every_chart_of_a_long_run_is_small(name: str) -> None:
    """30,000 samples: each line has at most some 2,000 points, and its largest value."""
    scenario = other_scenario(duration="60 s", sample_interval="2 ms", packet_events=False)
    scenario["traffic"][0] |= {"size": None, "duration": "60 s"}
    scenario["traffic"] = [
        {key: value for key, value in entry.items() if value is not None}
        for entry in scenario["traffic"]
    ]
    result = _long_result(json.dumps(scenario))
    if not CHARTS[name].is_shown(result):
        assert name in ("drops", "page_load_times", "exchange_times", "call_quality", "loss")
        return
    data = page_data(CHARTS[name], result)
    for line in data["lines"]:
        assert 0 < len(line["x"]) == len(line["y"]) <= 2 * INTERVALS + 2
    if name == "queues":
        samples = result.direction_samples.filter(pl.col("direction") == "forward")
        largest = samples["queue_bytes"].to_numpy().max() / 1e3
        assert max(data["lines"][0]["y"]) == pytest.approx(largest)
    assert len(json.dumps(data)) < 200_000


_KEPT: dict[str, Result] = {}


def _long_result(scenario: str) -> Result:
    if scenario not in _KEPT:
        _KEPT[scenario] = simulate(json.loads(scenario))
    return _KEPT[scenario]


# --- comparison ---------------------------------------------------------------------------------


def test_two_runs_are_compared_by_the_metrics_of_compare(
    tmp_path: Path, small_result: Result
) -> None:
    """Given one run each, expect the means, their difference, and that there is no interval."""
    other = simulate(other_scenario(seed=2))
    small_result.save(tmp_path / "one")
    other.save(tmp_path / "two")
    with TestClient(create_app(tmp_path)) as client:
        page = client.get("/compare?result=one&result=two").text
    before, after = small_result.goodput_bps[0], other.goodput_bps[0]
    for rate in (before, after):
        assert f"<td>{format_rate(rate)}</td>" in page
    assert f"{100 * (after - before) / before:+.0f}</td>" in page
    assert "No interval: 1 run" in page
    assert "&#34;A&#34;: &#34;one&#34;" in page
    assert str(tmp_path) not in page


def test_a_comparison_of_many_cells_is_a_page_of_some_rows(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given 1,000 differences and a long note, expect 200 rows, what is left out, and a fold."""
    table = View("No interval", [Column("metric", "metric")], [[str(i)] for i in range(1_000)])
    monkeypatch.setattr("bentpipe.dashboard.app.difference_views", lambda _: [table])
    monkeypatch.setattr("bentpipe.dashboard.app.setting_views", lambda _: [])
    notes = ["short", "long " * 200]
    monkeypatch.setattr("bentpipe.dashboard.app.comparison_notes", lambda _: notes)
    page = client.get("/compare?result=small&result=deeper/every, 100 %").text
    assert page.count("<tr><td") == 200
    assert "... and 800 more rows; bentpipe compare prints all." in page
    assert page.count("<details>") == 1
    assert "data-chart" in page


def test_a_run_that_is_not_complete_is_drawn_and_not_compared(
    tmp_path: Path, small_result: Result
) -> None:
    small_result.save(tmp_path / "one")
    manifest = {**small_result.manifest, "state": "interrupted"}
    Result(manifest, small_result.tables).save(tmp_path / "two")
    with TestClient(create_app(tmp_path)) as client:
        page = client.get("/compare?result=one&result=two").text
    assert "<p>two: the run with seed 1 is not complete" in page
    assert 'data-chart="congestion_window"' in page


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("", "choose two to 8 results to compare; 0 are chosen"),
        ("?result=small", "choose two to 8 results to compare; 1 are chosen"),
        ("?result=small&result=small", "choose different results"),
        ("?result=small&result=cut-off", "cut-off: only whole runs and sweeps are compared"),
    ],
)
def test_what_cannot_be_compared_is_said(client: TestClient, query: str, message: str) -> None:
    reply = client.get(f"/compare{query}")
    assert reply.status_code == 400
    assert message in reply.text


# --- files and errors ---------------------------------------------------------------------------


OUTSIDE = [
    "/result/../secret",
    "/result/..%2fsecret",
    "/result/small/../../secret",
    "/result//secret",
    "/report/..%2fsecret",
    "/report/%2e%2e/secret",
    "/data/chart/queues/..%2fsecret",
    "/data/chart/queues/small%2f..%2f..%2fsecret",
    "/result/link",
    "/report/link",
    "/result/.hidden/small",
    "/result/small%00",
    "/result/" + "a" * 5_000,
    "/static/../app.py",
    "/static/..%2fapp.py",
    "/static/%2fetc%2fpasswd",
    "/compare?result=small&result=../secret",
]


@pytest.mark.parametrize("path", OUTSIDE)
def test_no_path_leaves_the_folder(served: Path, path: str, small_result: Result) -> None:
    """Given a result beside the folder and a link to it, expect neither to be found."""
    secret = served.parent / "secret"
    if not secret.exists():
        small_result.save(secret)
        (served / "link").symlink_to(secret)
    with TestClient(create_app(served)) as client:
        assert client.get(path).status_code == 404


@pytest.mark.parametrize("name", ["../secret.csv", "/etc/hostname", "a/b.csv", "..", 7])
def test_no_manifest_names_a_file_of_another_folder(tmp_path: Path, name: object) -> None:
    """Given a manifest of somebody else, expect what it names outside its folder not to be read."""
    (tmp_path / "secret.csv").write_text("secret\n1\n")
    (tmp_path / "root/study").mkdir(parents=True)
    manifest = {
        "bentpipe_version": "0.1.0",
        "format_version": RESULT_FORMAT_VERSION,
        "kind": "study",
        "files": [name],
    }
    (tmp_path / "root/study/manifest.json").write_text(json.dumps(manifest))
    with TestClient(create_app(tmp_path / "root")) as client:
        page = client.get("/result/study").text
    assert "manifest.json: names a file of another folder" in page
    assert "secret" not in page


def test_a_folder_whose_name_is_no_text_is_left_out(tmp_path: Path, small_result: Result) -> None:
    small_result.save(tmp_path / "named")
    (tmp_path / os.fsdecode(b"\xff")).mkdir()
    shutil.copytree(tmp_path / "named", tmp_path / os.fsdecode(b"\xff/run"))
    with TestClient(create_app(tmp_path)) as client:
        assert client.get("/").text.count("<tr data-kind") == 1


@pytest.mark.parametrize("name", ["report.html", "flows.parquet", "manifest.json", ".part"])
def test_no_link_in_a_result_leads_outside(tmp_path: Path, small_result: Result, name: str) -> None:
    """Given a file of a result that is a link to one outside, expect the result to be damaged."""
    root = tmp_path / "root"
    small_result.save(root / "run")
    outside = tmp_path / "outside"
    inner = root / "run" / name
    if inner.exists():
        shutil.move(inner, outside)
    else:
        outside.write_text("secret")
    inner.symlink_to(outside)
    (entry,) = Catalog(root).entries()
    assert entry.problem == f"{name}: is a link to a place outside the served folder"
    with TestClient(create_app(root)) as client:
        assert client.get("/report/run").status_code == 404
        assert client.get("/data/chart/queues/run").status_code == 422


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/nothing", 404),
        ("/result/nothing", 404),
        ("/lab/nothing", 404),
        ("/data/chart/nothing/small", 404),
        ("/data/chart/queues/cut-off", 422),
        ("/data/chart/queues/small?from=x", 400),
        ("/data/chart/queues/small?to=-1", 400),
        ("/data/chart/queues/small?to=nan", 400),
        ("/report/small", 404),
    ],
)
def test_errors_say_what_is_wrong_and_show_no_traceback(
    client: TestClient, path: str, status: int
) -> None:
    reply = client.get(path)
    assert reply.status_code == status
    assert "Traceback" not in reply.text
    assert ("error" in reply.json()) if path.startswith("/data") else ("notice" in reply.text)


def test_an_internal_error_shows_no_traceback(
    served: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> str:
        raise RuntimeError("secret")

    monkeypatch.setattr("bentpipe.dashboard.app.run_context", fail)
    with TestClient(create_app(served), raise_server_exceptions=False) as client:
        reply = client.get("/result/small")
    assert reply.status_code == 500
    assert "secret" not in reply.text
    assert "the terminal of bentpipe serve shows the details" in reply.text


def test_the_library_for_charts_is_the_released_one() -> None:
    """Given the table of its README, expect these files, the licence, and few bytes."""
    text = (VENDOR / "README.md").read_text()
    rows = re.findall(r"^\| `(\S+)` \| ([0-9a-f]{64}) \|$", text, re.MULTILINE)
    assert {name for name, _ in rows} == {path.name for path in VENDOR.iterdir()} - {"README.md"}
    for name, digest in rows:
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == digest
    assert "The MIT License" in (VENDOR / "uPlot.LICENSE").read_text()
    assert sum(path.stat().st_size for path in VENDOR.iterdir()) < SCRIPT_BYTES_MAX
    version = re.search(r"uPlot (\d+\.\d+\.\d+)", text)
    assert version is not None


def test_pages_load_files_of_this_server_alone(client: TestClient) -> None:
    """Expect no other address in a page, a style or a script of ours, and no inline script."""
    for path in ("/", "/result/small", "/compare?result=small&result=deeper/every, 100 %"):
        page = client.get(path).text
        assert not re.search(r"https?://", page.split("What was run")[0])
        assert not re.search(r"<script(?![^>]*src=)|<style|\sstyle=|\son\w+=", page)
        for name in re.findall(r'(?:src|href)="(/static/[^"]+)"', page):
            reply = client.get(name)
            assert reply.status_code == 200
            assert "url(" not in reply.text or "uPlot" in name
            if "uPlot" not in name and not name.endswith(".svg"):
                assert not re.search(r"https?://", reply.text)
