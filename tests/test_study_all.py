"""What all studies promise: equal figures on any threads, Ctrl-C, and what they write."""

from __future__ import annotations

import copy
import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_plots_report import assert_self_contained
from test_study_auckland import NOTHING_VARIED
from test_study_hermes import FEW
from test_study_snip import REDUCED

from bentpipe.simulation import Threads
from bentpipe.studies.auckland import cells as auckland_cells, study as auckland
from bentpipe.studies.base import inputs
from bentpipe.studies.base.outcome import StudyOutcome
from bentpipe.studies.base.work import Work
from bentpipe.studies.hermes import study as hermes
from bentpipe.studies.jpl import study as jpl
from bentpipe.studies.osu import study as osu
from bentpipe.studies.osu.cells import VARIANTS, Cell
from bentpipe.studies.snip import study as snip

pytestmark = pytest.mark.system

GEO = [Cell("GEO single hop", sources, k) for sources in (5, 15) for k in (1, 2)]
# Each study with few cells: its function, and the options of these cells.
STUDIES: dict[str, tuple[Callable[..., StudyOutcome], dict[str, Any]]] = {
    "jpl": (jpl.run, {}),
    "snip": (snip.run, {"settings": REDUCED}),
    "hermes": (hermes.run, {}),
    "osu": (osu.run, {"grid": GEO, "variants": VARIANTS[:1]}),
    "auckland": (auckland.run, {"loads": NOTHING_VARIED, "variants": ()}),
}


def each_study(*names: str) -> list[Any]:
    """Return studies as parameters; only the quickest is in every run."""
    return [
        name if name == "jpl" else pytest.param(name, marks=pytest.mark.thorough) for name in names
    ]


# The tables with columns of their own.
OTHER_FILES = {
    "snip": {"facts.csv"},
    "osu": {"rise.csv", "fairness.csv", "sensitivity.csv"},
    "auckland": {"checks.csv"},
}


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Five cases of hermes, a second of iperf for snip, 2 Mbit/s and equal runs for auckland."""
    scenario_of = inputs.load_scenario

    def scenario(study: str) -> dict[str, Any]:
        data = copy.deepcopy(scenario_of(study))
        if study == "snip":
            data["traffic"][0]["duration"] = "1 s"
            data["duration"] = "2 s"
        elif study == "auckland":
            for direction in data["link"].values():
                direction["rate"] = "2 Mbit/s"
        return data

    if "jpl" in request.node.name:
        # `test_study_jpl.py` draws its charts.
        request.getfixturevalue("undrawn")
    monkeypatch.setattr(hermes, "PARTS", FEW)
    monkeypatch.setattr(auckland_cells, "MORE_RUNS", 1)
    monkeypatch.setattr(inputs, "load_scenario", scenario)


def run(study: str, **options: Any) -> StudyOutcome:
    function, few_cells = STUDIES[study]
    return function(Work(study, **options), **few_cells)


@pytest.mark.parametrize("study", each_study(*STUDIES))
def test_threads_do_not_change_the_figures(study: str) -> None:
    alone, together = (run(study, runs=2, seed=7, executor=Threads(n)) for n in (1, 2))
    assert json.dumps(together.to_json()) == json.dumps(alone.to_json())
    assert together.report() == alone.report()


@pytest.mark.thorough
@pytest.mark.parametrize("study", ["jpl", "osu", "auckland"])
def test_seeds_count_up_from_the_first(study: str) -> None:
    """The values of the seeds 7 and 8 are those of two studies of one run each."""
    both, seventh, eighth = (
        run(study, runs=runs, seed=seed).main.rows for runs, seed in ((2, 7), (1, 7), (1, 8))
    )
    for row, one, other in zip(both, seventh, eighth, strict=True):
        values = one.simulated.values + other.simulated.values
        assert row.simulated.values == (values[:1] if row.simulated.exact else values)
        # One run has no interval, and only a deterministic cell needs none.
        assert one.simulated.interval is None


@pytest.mark.parametrize(
    ("study", "calls"),
    [
        ("jpl", 5),
        ("snip", 1),
        pytest.param("hermes", 2, marks=pytest.mark.thorough),
        pytest.param("osu", 3, marks=pytest.mark.thorough),
        pytest.param("auckland", 2, marks=pytest.mark.thorough),
        pytest.param("snip", 30, marks=pytest.mark.thorough),
        pytest.param("snip", 99, marks=pytest.mark.thorough),
    ],
)
def test_ctrl_c_leaves_the_figures_of_the_runs_that_were_done(
    study: str, calls: int, tmp_path: Path
) -> None:
    counted = 0

    def interrupt(_done: int, _total: int) -> None:
        nonlocal counted
        counted += 1
        if counted == calls:
            raise KeyboardInterrupt

    outcome = run(study, runs=2, executor=Threads(1), progress=interrupt)
    assert outcome.interrupted
    result = outcome.to_json()
    first, last = result["cells"][0], result["cells"][-1]
    assert (first["simulated"] is None) == (calls == 1)
    if study not in {"hermes", "snip"}:
        assert (last["simulated"], last["agreement"]) == (None, None)
    # Strict JSON: no NaN anywhere.
    json.dumps(result, allow_nan=False)
    text = (outcome.write(tmp_path / "cut") / "report.html").read_text(encoding="utf-8")
    assert "The study was interrupted" in text


@pytest.mark.parametrize("study", each_study(*STUDIES))
def test_the_folder_has_report_data_and_manifest(study: str, tmp_path: Path) -> None:
    outcome = run(study, runs=1)
    folder = outcome.write(tmp_path / study)
    names = {"cells.csv", "inputs.csv", "report.html", "result.json", "execution.json"}
    names |= {"manifest.json", "charts"} | OTHER_FILES.get(study, set())
    assert {path.name for path in folder.iterdir()} == names
    assert json.loads((folder / "result.json").read_text(encoding="utf-8")) == outcome.to_json()
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    assert (manifest["kind"], manifest["study"]) == ("study", study)
    with (folder / "cells.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))[: len(outcome.main.rows)]
    means = [float(row["simulated"]) if row["simulated"] else None for row in rows]
    assert means == [row.simulated.mean for row in outcome.main.rows]
    text = (folder / "report.html").read_text(encoding="utf-8")
    assert_self_contained(outcome.report())
    assert "Not stated in the source" in text
    assert (outcome.write(folder) / "report.html").read_text(encoding="utf-8") == text
