"""Suggestions of the files and presets that a misspelt name may mean."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import Program

from bentpipe import Result
from bentpipe.errors import ScenarioError, UsageError
from bentpipe.plan.presets import link_plan
from bentpipe.scenario import Scenario
from bentpipe.text import nearest_path

FILES = ("scenarios/geo-bulk.yaml", "scenarios/leo-trace.yaml", "scenarios/geo-bulk.csv", "x/.geo")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with files."""
    for name in FILES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("written", "near"),
    [
        ("scenarios/geo-blk.yaml", "scenarios/geo-bulk.yaml"),
        ("scenarios/geo-bulk.yml", "scenarios/geo-bulk.yaml"),
        ("scenarios/geo-bulk", "scenarios/geo-bulk.yaml"),
        ("scenarios/geo-buk.csv", "scenarios/geo-bulk.csv"),
        ("scenario/GEO-BULK.yaml", "scenarios/geo-bulk.yaml"),
        ("./scenarios/../scenarois/leo_trace.yaml", "scenarios/../scenarios/leo-trace.yaml"),
        # Only the suffix is that of a file.
        ("scenarios/q.yaml", None),
        ("nowhere/geo-bulk.yaml", None),
        ("scenarios/geo-bulk.yaml/geo", None),
        ("x/geo", None),
        ("scenarios/" + "a" * 300, None),
        ("scenarios/\0", None),
    ],
)
def test_the_nearest_path_has_the_nearest_names(
    written: str, near: str | None, folder: Path
) -> None:
    expected = None if near is None else Path(near)
    assert nearest_path(Path(written)) == expected
    absolute = nearest_path(folder / written)
    assert absolute == (None if near is None else folder / near)


def test_a_misspelt_file_of_a_scenario_suggests_the_nearest(
    folder: Path, bentpipe: Program
) -> None:
    called = bentpipe("run", "scenarios/geo-blk.yaml")
    suggestion = 'no such file; did you mean "scenarios/geo-bulk.yaml"?'
    assert (called.code, called.err) == (2, f"bentpipe: scenarios/geo-blk.yaml: {suggestion}\n")
    with pytest.raises(ScenarioError, match=r'did you mean "scenarios/leo-trace.yaml"'):
        Scenario.load("scenarios/leo-trce.yaml")
    (folder / "results").mkdir()
    with pytest.raises(UsageError, match='result: no such folder; did you mean "results"'):
        Result.load("result")


@pytest.mark.usefixtures("folder")
def test_a_misspelt_link_suggests_a_preset_or_a_file() -> None:
    with pytest.raises(UsageError, match='; did you mean "geo"'):
        link_plan("gio")
    with pytest.raises(UsageError, match=r'; did you mean "scenarios/geo-bulk.yaml"'):
        link_plan("scenarios/geo-blk.yaml")
    with pytest.raises(UsageError, match='no such file; read ""; allowed: '):
        link_plan("")
