"""What `bentpipe serve` shows of changed settings, thresholds and answers, the newest first."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import PLAIN, ROOT, Program
from starlette.testclient import TestClient
from test_dashboard import other_scenario

from bentpipe import Result, answers, simulate
from bentpipe.answers import Answer
from bentpipe.dashboard.app import create_app
from bentpipe.dashboard.catalog import Catalog
from bentpipe.results.views import Column, View
from bentpipe.scenario.schema import Scenario
from bentpipe.units import format_rate


def test_the_newest_result_is_the_first(tmp_path: Path, plain_result: Result) -> None:
    """Given results of the same minute and of another day, expect them by their seconds."""
    for name, ended in (("a", "01T09:00:01"), ("b", "01T09:00:02"), ("c", "02T08:00:00")):
        about = {"ended": f"2026-01-{ended}+00:00"}
        Result(plain_result.manifest, plain_result.tables, about).save(tmp_path / name)
    (tmp_path / "d").mkdir()
    (tmp_path / "d/manifest.json").write_text("{")
    assert [entry.path for entry in Catalog(tmp_path).entries()] == ["c", "b", "a", "d"]


def test_thresholds_are_on_the_page_of_a_run(tmp_path: Path) -> None:
    thresholds = ["flows.bulk-1.goodput_bps >= 1 kbit/s", "flows.bulk-1.goodput_bps >= 1 Gbit/s"]
    simulate(other_scenario(**PLAIN, thresholds=thresholds)).save(tmp_path / "run")
    with TestClient(create_app(tmp_path)) as client:
        page = client.get("/result/run").text
    assert "<caption>Thresholds" in page
    assert [page.count(word) for word in (">passed<", ">FAILED<")] == [1, 1]


def test_three_runs_are_compared_with_what_was_changed(
    tmp_path: Path, small_result: Result
) -> None:
    """Given two other congestion controls, expect them, a column for each run, and no charts."""
    small_result.save(tmp_path / "one")
    goodputs = [small_result.goodput_bps[0]]
    for kind in ("bbr", "newreno"):
        setting = f"traffic.0.tcp.congestion_control={kind}"
        result = simulate(Scenario.from_dict(other_scenario(**PLAIN), [setting]))
        result.save(tmp_path / kind)
        goodputs.append(result.goodput_bps[0])
    with TestClient(create_app(tmp_path)) as client:
        query = "&".join(f"result={name}" for name in ("one", "bbr", "newreno"))
        page = client.get(f"/compare?{query}").text
        run = client.get("/result/bbr").text
        listed = client.get("/").text
    path = '<td class="text">traffic.0.tcp.congestion_control</td>'
    assert f'{path}<td class="text">-</td><td class="text">bbr</td>' in page
    cells = "".join(f"<td>{format_rate(each)}</td>" for each in goodputs)
    assert f"bulk-1: goodput</td>{cells}" in page
    assert "data-chart" not in page
    assert f'{path}<td class="text">bbr</td>' in run
    assert "traffic.0.tcp.congestion_control=bbr</td>" in listed


def test_an_answer_is_listed_with_its_lines_and_its_page(
    tmp_path: Path, bentpipe: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given `ask --out`, expect what `serve` shows, and another result in the folder refused."""
    lines, table = ("It does.", "By 7 %."), View("Cases", [Column("case", "case")], [["one"]])
    answer = Answer(
        question="Does it help?",
        lines=lines,
        figures={"gain": 7.0},
        tables=[table],
        parameters={"link": "geo"},
    )
    monkeypatch.setattr(answers, "ask", lambda *_, **__: answer)
    called = bentpipe("ask", "tcp", "--link", "geo", "--out", tmp_path / "answer")
    assert called.code == 0
    assert called.err == f"bentpipe: wrote {tmp_path / 'answer'} (report.html shows it)\n"
    (entry,) = Catalog(tmp_path).entries()
    assert (entry.kind, entry.title, entry.has_report) == ("question", "Does it help?", True)
    assert json.loads((tmp_path / "answer/answer.json").read_text())["figures"] == {"gain": 7.0}
    with TestClient(create_app(tmp_path)) as client:
        page = client.get("/result/answer").text
        assert client.get("/report/answer/").text.count("Does it help?") == 2
    assert all(f"<li>{line}</li>" in page for line in lines)
    assert "<caption>table-1.csv" in page
    assert 'href="/report/answer/"' in page
    small = bentpipe("run", ROOT / "scenarios/geo-bulk.yaml", "--out", tmp_path / "answer")
    assert small.code == 2
    assert "holds the result of a question; name another folder" in small.err
