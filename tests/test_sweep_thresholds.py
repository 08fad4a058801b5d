"""Thresholds in sweeps: each run of a cell must meet them, and the whole sweep is written."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from conftest import Program
from ruamel.yaml import YAML

from bentpipe import Result, Scenario, simulate, simulation, sweeps
from bentpipe.results import check_thresholds
from bentpipe.sweeps import SweepFolder

SCENARIO: dict[str, Any] = {
    "name": "a page and a transfer",
    "link": {"preset": "leo", "forward": {"bit_error_rate": 1e-6}},
    "gateways": {"hub": {"processor": {"mode": "route", "buffer": "50 packets"}}},
    "traffic": [
        {"name": "file", "kind": "bulk", "direction": "forward", "size": "400 kB"},
        {
            "name": "page",
            "kind": "request_response",
            "direction": "forward",
            "request": "400 B",
            "response": "20 kB",
            "exchanges": 3,
        },
    ],
    "duration": "20 s",
}
# Of each table.
THRESHOLDS = [
    "flows.file.goodput_bps >= 1 Mbit/s",
    "flows.file.completion_time_ns < 500 ms",
    "exchanges.time_ns.p95 <= 200 ms",
    "directions.forward.utilization == 0 %",
    "processors.hub-processor.utilization < 50 %",
    "flows.page.loss_percent <= 1 %",
]
VARY = "link.forward.delay=10ms,150ms"


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "scenario.yaml"
    YAML().dump(SCENARIO, path)
    return path


def swept(tmp_path: Path, data: dict[str, Any], *vary: str, seeds: int) -> sweeps.Sweep:
    points = sweeps.Points(map(sweeps.vary_option, vary))
    base = Scenario.from_dict(data)
    definition = sweeps.Definition.of(base, points, seeds)
    with SweepFolder(tmp_path / "sweep") as folder:
        running = sweeps.SweepRun.begin(folder, definition)
        running.execute(simulation.Threads(2), lambda _done, _total: None)
    return sweeps.Sweep.load(tmp_path / "sweep")


@pytest.mark.system
def test_a_cell_has_the_value_of_its_worst_run(tmp_path: Path) -> None:
    """Given thresholds of all tables, expect those of single runs, the worst one of each cell."""
    found = swept(tmp_path, {**SCENARIO, "thresholds": THRESHOLDS}, VARY, seeds=4).thresholds
    assert [check["point"] for check in found] == [0] * 6 + [1] * 6
    for point, delay in enumerate(("10ms", "150ms")):
        link = {**SCENARIO["link"], "forward": {**SCENARIO["link"]["forward"], "delay": delay}}
        data = {**SCENARIO, "link": link, "thresholds": THRESHOLDS}
        runs: list[Result] = [simulate(data, seed=seed) for seed in range(1, 5)]
        for check in found[6 * point : 6 * point + 6]:
            number = THRESHOLDS.index(check["threshold"])
            of_runs = [check_thresholds(run)[number] for run in runs]
            worst = min(of_runs, key=lambda each: each.margin)
            assert check["value"] == worst.value
            assert check["message"] == worst.message
            assert check["cell"] == f"link.forward.delay={delay}"
            assert check["runs"] == 4
            assert check["failed_runs"] == sum(not each.passed for each in of_runs)
            assert check["passed"] == all(each.passed for each in of_runs)
            assert of_runs[check["seed"] - 1] == worst
    # All kinds of verdicts are among them: some runs fail, all do, or none.
    assert {check["passed"] for check in found} == {True, False}
    assert {each["value"] for each in found if "loss" in each["threshold"]} == {None}


def test_thresholds_of_web_pages_are_checked_in_each_cell(tmp_path: Path) -> None:
    page = {"kind": "web_page", "direction": "forward", "pages": 2, "objects": 3}
    data = {**SCENARIO, "traffic": [page], "thresholds": ["pages.load_time_ns.max < 10 s"]}
    (check,) = swept(tmp_path, data, seeds=1).thresholds
    assert check["value"] == simulate({**data, "seed": 1}).pages["load_time_ns"].max()
    assert check["passed"]


def test_varied_thresholds_belong_to_their_cells(tmp_path: Path) -> None:
    """Given a threshold that is varied, and cells with other flows, expect each cell's own."""
    data = {**SCENARIO, "thresholds": [THRESHOLDS[0]]}
    limits = ("1 Mbit/s", "1 Gbit/s")
    texts = ",".join(f'"flows.file.goodput_bps >= {limit}"' for limit in limits)
    found = swept(tmp_path, data, f"thresholds.0={texts}", "traffic.0.size=400kB,20kB", seeds=2)
    assert [(check["point"], check["passed"]) for check in found.thresholds] == [
        (0, True),
        (1, True),
        (2, False),
        (3, False),
    ]
    ended = swept(tmp_path / "more", {**SCENARIO, "thresholds": [THRESHOLDS[1]]}, seeds=1)
    assert [(check["cell"], check["runs"]) for check in ended.thresholds] == [("", 1)]


def test_a_transfer_that_does_not_end_misses_any_time(tmp_path: Path) -> None:
    data = {**SCENARIO, "duration": "40 ms", "thresholds": [THRESHOLDS[1]]}
    (check,) = swept(tmp_path, data, seeds=2).thresholds
    assert (check["passed"], check["value"]) == (False, None)
    assert check["message"] == f"{THRESHOLDS[1]}: did not end"
    assert math.isfinite(check["limit"])


def test_a_missed_threshold_is_code_99_after_the_whole_sweep(
    scenario: Path, bentpipe: Program, tmp_path: Path
) -> None:
    out, junit = tmp_path / "out", tmp_path / "junit.xml"
    options = ["--vary", VARY, "--seeds", "3", "--out", out]
    called = bentpipe(
        *("sweep", scenario, *options, "--threshold", "flows.file.completion_time_ns < 500 ms"),
        *("--threshold", "flows.file.goodput_bps >= 1 kbit/s", "--junit", junit),
    )
    assert called.code == 99
    assert "Thresholds: met in 1 of 2 cells" in called.out.splitlines()
    first, missed = called.err.splitlines()[-2:]
    assert first == "bentpipe: thresholds failed in 1 of 2 cells"
    assert missed.startswith(
        "bentpipe: link.forward.delay=150ms: flows.file.completion_time_ns < 500 ms: "
    )
    assert "missed by" in missed
    assert "; 3 of 3 runs)" in missed
    assert sweeps.Sweep.load(out).runs.height == 6
    root = ET.fromstring(junit.read_text())
    assert (root.get("tests"), root.get("failures"), root.get("errors")) == ("4", "1", "0")
    (failure,) = root.iter("failure")
    assert f"bentpipe: {failure.get('message')}" == missed
    names = [case.get("name") for case in root.iter("testcase")]
    assert names[0] == "link.forward.delay=10ms: flows.file.completion_time_ns < 500 ms"
    # The complete sweep still misses it.
    again = bentpipe("sweep", "--resume", out, "--json", "--junit", tmp_path / "again.xml")
    assert again.code == 99
    assert [each["passed"] for each in json.loads(again.out)["thresholds"]] == [
        True,
        True,
        False,
        True,
    ]
    assert (tmp_path / "again.xml").read_text() == junit.read_text()


def test_thresholds_that_are_met_are_code_0(scenario: Path, bentpipe: Program) -> None:
    called = bentpipe("sweep", scenario, "--seeds", "2", "--threshold", THRESHOLDS[0], "--json")
    assert called.code == 0
    (check,) = json.loads(called.out)["thresholds"]
    assert (check["cell"], check["passed"], check["runs"]) == ("", True, 2)


def test_a_wrong_threshold_is_refused_before_any_run(
    scenario: Path, bentpipe: Program, tmp_path: Path
) -> None:
    for threshold, reason in (
        ("flows.phone.goodput_bps >= 1 Mbit/s", "phone"),
        ("flows.file.speed >= 1 Mbit/s", "speed"),
    ):
        called = bentpipe("sweep", scenario, "--threshold", threshold, "--out", tmp_path / "out")
        assert called.code == 2
        assert reason in called.err
    called = bentpipe("sweep", scenario, "--junit", tmp_path / "none" / "junit.xml")
    assert called.code == 2
    assert "there is no folder" in called.err
    assert not (tmp_path / "out").exists()


def test_thresholds_belong_to_the_begin_of_a_sweep(
    scenario: Path, bentpipe: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given an interrupted sweep, expect its file to say so, and no new thresholds later."""

    class Interrupted(simulation.Threads):
        def run(self, jobs: Any, reduce: Any) -> Any:
            yield next(super().run(jobs, reduce))
            raise KeyboardInterrupt

    out, junit = tmp_path / "out", tmp_path / "junit.xml"
    with monkeypatch.context() as patched:
        patched.setattr("bentpipe.simulation.Threads", Interrupted)
        called = bentpipe(
            *("sweep", scenario, "--seeds", "3", "--out", out),
            *("--threshold", "flows.file.goodput_bps >= 1 Tbit/s", "--junit", junit),
        )
    assert called.code == 130
    (error,) = ET.fromstring(junit.read_text()).iter("error")
    assert error.get("message") == "the sweep was interrupted"
    refused = bentpipe("sweep", "--resume", out, "--threshold", THRESHOLDS[0])
    assert refused.code == 2
    assert "--threshold" in refused.err
    assert bentpipe("sweep", "--resume", out).code == 99


@pytest.mark.system
def test_many_missed_thresholds_are_bounded(scenario: Path, bentpipe: Program) -> None:
    delays = ",".join(f"{delay}ms" for delay in range(10, 40))
    called = bentpipe(
        *("sweep", scenario, "--vary", f"link.forward.delay={delays}"),
        *("--threshold", "flows.file.goodput_bps >= 1 Gbit/s"),
    )
    assert called.code == 99
    lines = [line for line in called.err.splitlines() if "warning" not in line]
    assert lines[-22] == "bentpipe: thresholds failed in 30 of 30 cells"
    assert lines[-1] == "bentpipe: and 10 more: --json"
