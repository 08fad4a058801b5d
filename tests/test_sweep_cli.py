"""The verb sweep: what it prints, its options, its exit codes."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Generator, Iterable
from io import StringIO
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from conftest import ROOT, Program

from bentpipe import Scenario, Sweep, sweep, sweeps
from bentpipe.dashboard.catalog import Catalog
from bentpipe.errors import BentpipeError, InternalError
from bentpipe.results.files import read_execution
from bentpipe.simulation.executor import Finished, Threads
from bentpipe.simulation.run import Job

SCENARIO = """\
name: two delays
link:
  forward: {rate: 8 Mbit/s, delay: 20 ms, bit_error_rate: 1e-6}
  return: {rate: 1 Mbit/s, delay: 20 ms}
traffic:
  - {name: file, kind: bulk, direction: forward, size: 300 kB}
duration: 20 s
"""


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "scenario.yaml"
    path.write_text(SCENARIO)
    return path


def test_the_table_has_a_row_a_cell_in_80_columns(
    scenario: Path, bentpipe: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given two fields with two values each, expect their four cells, one a line."""
    monkeypatch.setenv("COLUMNS", "80")
    called = bentpipe(
        *("sweep", scenario, "--vary", "link.forward.delay=10ms,250ms", "--seeds", "3"),
        *("--vary", "traffic.*.tcp.congestion_control=cubic,bbr"),
    )
    assert (called.code, called.err) == (0, "")
    lines = called.out.splitlines()
    assert lines[0] == "two delays: 4 cells, 12 runs"
    assert lines[1] == "Varied: link.forward.delay, traffic.*.tcp.congestion_control"
    assert max(map(len, lines)) <= 80
    # Another part of the table has further means.
    rows = [line.split() for line in lines if "±" in line]
    cells = [["10ms", "cubic"], ["10ms", "bbr"], ["250ms", "cubic"], ["250ms", "bbr"]]
    assert [row[:3] for row in rows[:4]] == [[*cell, "3"] for cell in cells]
    assert [row[:2] for row in rows[4:]] == cells


def test_fields_of_the_same_name_are_told_apart(scenario: Path, bentpipe: Program) -> None:
    called = bentpipe(
        *("sweep", scenario, "--vary", "link.forward.delay=1ms,2ms"),
        *("--vary", "link.return.delay=1ms,2ms"),
    )
    assert "forward.delay  return.delay" in called.out


def test_a_field_is_named_apart_from_those_that_are_not_varied(
    scenario: Path, bentpipe: Program
) -> None:
    """Given fields that the other direction and another entry have, too, expect longer names."""
    size = ("--vary", "traffic.file.size=100kB,200kB")
    limit = ("--vary", "link.forward.queue.limit=60kB,200kB")
    assert "\nforward.queue.limit  size   runs" in bentpipe("sweep", scenario, *limit, *size).out
    scenario.write_text(
        SCENARIO.replace("duration", "  - {kind: bulk, direction: return, size: 1 kB}\nduration")
    )
    assert "\nfile.size  runs" in bentpipe("sweep", scenario, *size).out


@pytest.mark.usefixtures("undrawn")
def test_transfers_that_did_not_end_are_counted_everywhere(
    scenario: Path, bentpipe: Program, tmp_path: Path
) -> None:
    """Given runs of two downloads of which some do not end, expect a mean of the other runs."""
    out, tables = tmp_path / "out", tmp_path / "tables"
    both = Scenario.load(scenario, ("traffic.0.count=2", "link.forward.bit_error_rate=3e-6"))
    runs = sweep(both, seeds=12).flows.group_by("run")
    ends_ns = sorted(runs.agg(pl.col("finished_ns").max())["finished_ns"])
    called = bentpipe(
        *("sweep", scenario, "--vary", "link.forward.bit_error_rate=0.0,3e-6", "--seeds", "12"),
        *("--set", f"duration={(ends_ns[5] + ends_ns[6]) // 2} ns"),
        *("--set", "traffic.0.count=2", "--out", out),
    )
    found = Sweep.load(out)
    times = found.flows.group_by("run").agg(
        pl.col("link.forward.bit_error_rate").first(),
        pl.col("completion_time_ns").mean(),
        ended=pl.col("completion_time_ns").is_not_null().all(),
    )
    lossy = times.filter(pl.col("link.forward.bit_error_rate") > 0)
    ended = lossy.filter("ended")
    # Runs of which one download ended do not count: the other one was slower.
    assert 6 == ended.height < lossy["completion_time_ns"].count()
    cell = found.to_json()["cells"][1]
    assert (cell["runs"], cell["completion_time_ns_runs"]) == (12, ended.height)
    assert cell["completion_time_ns"] == pytest.approx(ended["completion_time_ns"].mean())
    assert cell["goodput_bps_runs"] == 12
    text, note = f"{ended.height} of 12", "completion time: some runs have no value"
    row = next(line for line in called.out.splitlines() if text in line)
    assert "±" in row.partition(text)[0]
    assert note in called.out
    page = (out / "report.html").read_text()
    assert f"<td>{text}</td>" in page
    assert f"<p>{note}" in page
    # The tables of the report, and those of `report`.
    assert bentpipe("report", out, "--tables", tables).out == f"{out / 'report.html'}\n"
    (tex,), (csv_file,) = tables.glob("*.tex"), tables.glob("*.csv")
    assert f" & {text} & " in tex.read_text()
    assert note in tex.read_text()
    rows = list(csv.DictReader(StringIO(csv_file.read_text())))
    assert rows[1]["completion_time_ns_runs"] == str(ended.height)


def test_further_warnings_are_counted(
    scenario: Path, bentpipe: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bentpipe.cli.sweep._MAX_WARNINGS", 0)
    called = bentpipe("sweep", scenario, "--set", "duration=100 ms")
    assert called.err == "bentpipe: and 1 more warning\n"


def test_json_has_the_cells_and_the_failures(
    scenario: Path, bentpipe: Program, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    called = bentpipe(
        *("sweep", scenario, "--vary", "link.forward.delay=10ms,250ms", "--seeds", "2"),
        *("--json", "--out", out),
    )
    wrote = f"bentpipe: wrote {out} (flows, directions: Parquet; report.html shows it)\n"
    assert (called.code, called.err) == (0, wrote)
    found = json.loads(called.out)
    assert (found["scenario"], found["state"], found["runs"]) == ("two delays", "completed", 4)
    assert found["failures"] == []
    cells = Sweep.load(out).cells.to_dicts()
    assert found["cells"] == cells
    assert [cell["link.forward.delay_ns"] for cell in cells] == [10_000_000, 250_000_000]


@pytest.mark.usefixtures("undrawn")
def test_a_sweep_writes_a_report_that_serve_lists(
    scenario: Path, bentpipe: Program, tmp_path: Path
) -> None:
    """Given a threshold that one of two cells misses, expect it first, means, and a chart."""
    out, limit = tmp_path / "served/out", "flows.goodput_bps.min >= 1 Mbit/s"
    called = bentpipe(
        *("sweep", scenario, "--vary", "link.forward.rate=500kbit/s,2Mbit/s"),
        *("--set", "traffic.0.size=1MB", "--threshold", limit, "--out", out),
    )
    assert called.code == 99
    page = (out / "report.html").read_text()
    assert "Thresholds: met in 1 of 2 cells" in page
    assert page.index(">FAILED<") < page.index(">passed<")
    assert "goodput, application bits over link.forward.rate. Mean of the runs" in page
    assert (out / "charts/sweep.csv").read_text().startswith("line,link.forward.rate [Mbit/s]")
    assert bentpipe("report", out, "--junit", tmp_path / "junit.xml").code == 99
    called = bentpipe("report", out, "--threshold", "flows.goodput_bps > 0 bit/s")
    assert (called.code, "give it to bentpipe sweep" in called.err) == (2, True)
    assert (tmp_path / "junit.xml").read_text().count("<failure") == 1
    (entry,) = Catalog(out.parent).entries()
    assert (entry.kind, entry.has_report) == ("sweep", True)
    assert "link.forward.rate varied" in entry.changed


def test_a_sweep_replaces_an_earlier_one(scenario: Path, bentpipe: Program, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for path in ("link.forward.delay=1ms,2ms", "traffic.0.size=100kB,200kB"):
        called = bentpipe("sweep", scenario, "--vary", path, "--out", out)
        assert called.code == 0
    assert 'replaced the result of a sweep of "two delays"' in called.err
    folders = sorted(path.name for path in (out / "flows").iterdir())
    assert folders == ["traffic.0.size=100kB", "traffic.0.size=200kB"]


def test_seeds_are_added_until_the_interval_is_narrow(scenario: Path, bentpipe: Program) -> None:
    called = bentpipe("sweep", scenario, "--until-ci", "10 %", "--json")
    assert called.code == 0
    (cell,) = json.loads(called.out)["cells"]
    assert cell["runs"] >= 5
    assert cell["goodput_bps_half_width"] <= 0.1 * cell["goodput_bps"]


def test_cells_without_a_value_are_named(scenario: Path, bentpipe: Program) -> None:
    """Given a metric that no TCP flow has, expect the seeds of the start, and the reason."""
    called = bentpipe("sweep", scenario, "--until-ci", "10 %", "--metric", "mos", "--json")
    assert [cell["runs"] for cell in json.loads(called.out)["cells"]] == [5]
    assert "no run of 1 of 1 cell has a value of mos: no seeds were added there" in called.err


def test_a_width_that_is_not_reached_is_told(scenario: Path, bentpipe: Program) -> None:
    """Given bit errors and at most three seeds, expect the cell to be counted; and not with one."""
    size = ("--set", "traffic.file.size=30kB", "--set", "link.forward.bit_error_rate=1e-5")
    called = bentpipe(
        *("sweep", scenario, *size, "--seeds", "2"),
        *("--until-ci", "0.1%", "--max-seeds", "3", "--json"),
    )
    assert [cell["runs"] for cell in json.loads(called.out)["cells"]] == [3]
    assert "1 of 1 cell did not reach 0.1 % of the mean with 3 seeds (--max-seeds)" in called.err
    called = bentpipe("sweep", scenario, "--seeds", "5", "--until-ci", "1%", "--max-seeds", "3")
    assert (called.code, "read 3; each cell has 5 seeds at first" in called.err) == (2, True)


@pytest.mark.system
def test_the_sweep_file_of_the_docs_is_one_of_the_examples(bentpipe: Program) -> None:
    page = (ROOT / "docs" / "how-to" / "run-a-sweep.md").read_text()
    file = ROOT / "scenarios" / "sweeps" / "geo-queues.yaml"
    assert file.read_text().partition("\n")[2] in page
    called = bentpipe("sweep", file, "--set", "traffic.0.size=20kB", "--seeds", "1", "--json")
    assert called.code == 0
    assert len(json.loads(called.out)["cells"]) == 2 * 2 * 4


# --- failed runs --------------------------------------------------------------------------------


class Failing(Threads):
    """Threads on which the second run fails."""

    failure: BentpipeError = InternalError("a packet was lost")

    def run(self, jobs: Iterable[tuple[int, Job]], reduce: Any) -> Generator[Finished[Any]]:
        for each in super().run(jobs, reduce):
            yield Finished(each.index, None, self.failure) if each.index == 1 else each


@pytest.mark.parametrize(
    ("kind", "code"),
    [("internal", 1), ("scenario", 2), ("lost", 3), ("memory", 4), ("size", 2), ("invalid", 4)],
)
def test_failed_runs_are_one_sentence_and_an_exit_code(
    kind: str,
    code: int,
    scenario: Path,
    bentpipe: Program,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Given a failure in the second of four runs, expect the others, and what went wrong."""
    monkeypatch.setattr(Failing, "failure", sweeps.error_of(kind, "the reason"))
    monkeypatch.setattr("bentpipe.simulation.Threads", Failing)
    out = tmp_path / "out"
    called = bentpipe("sweep", scenario, "--seeds", "4", "--out", out)
    assert called.code == code
    assert called.err.splitlines()[-1] == (
        f"bentpipe: 1 of 4 runs failed; {out}/failures.parquet has their seeds and errors. The "
        "first, with seed 2: the reason"
    )
    assert "3 runs, 1 failed" in called.out
    found = Sweep.load(out)
    assert found.flows["seed"].to_list() == [1, 3, 4]
    assert found.failures["seed"].to_list() == [2]


@pytest.mark.thorough
@pytest.mark.system
def test_a_run_without_memory_fails_and_the_others_go_on(
    scenario: Path, bentpipe: Program, tmp_path: Path
) -> None:
    """Given 1 MB of memory, expect the cell with 2,000 flows to fail, and then not."""
    out = tmp_path / "out"
    arguments = ("--vary", "traffic.0.count=1,2000", "--set", "duration=1 s", "--threads", "1")
    called = bentpipe("sweep", scenario, *arguments, "--memory-limit", "1MB", "--out", out)
    assert called.code == 2
    assert "1 of 2 runs failed" in called.err
    assert Sweep.load(out).failures["kind"].to_list() == ["size"]
    # With more memory it does not.
    called = bentpipe("sweep", "--resume", out)
    assert called.code == 0, called.err
    assert Sweep.load(out).runs["traffic.0.count"].to_list() == [1, 2000]


# --- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name a scenario file or a sweep file"),
        (["FILE", "--vary", "delay"], "--vary delay: write it as PATH=V1,V2,..."),
        (["FILE", "--vary", "link.forward.delai=1ms"], 'did you mean "delay"?'),
        (["FILE", "--vary", "link.forward.delay=1ms,2"], "the unit is missing"),
        (["FILE", "--vary", "seed=1,2"], "seeds are not varied"),
        (["FILE", "--vary", "link.forward.delay="], "a value is empty"),
        (["FILE", "--set", "link.forward.delay="], "--set link.forward.delay=: has no value"),
        (["FILE", *["--vary", "duration=1s"] * 2], "duration: is varied twice"),
        (["FILE", "--until-ci", "2"], '--until-ci: read "2"; expected a percentage'),
        (["FILE", "--until-ci", "2%", "--metric", "goodput"], 'did you mean "goodput_bps"?'),
        (["FILE", "--seeds", "1000001"], "1,000,001 runs; more than 1,000,000 need --yes"),
        (["--resume", "x", "--out", "y"], "leave out --out"),
        (["--resume", "nowhere"], "nowhere: no such folder"),
    ],
)
def test_wrong_options_are_refused_before_any_run(
    arguments: list[str],
    message: str,
    scenario: Path,
    bentpipe: Program,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    given = [str(scenario) if each == "FILE" else each for each in arguments]
    called = bentpipe("sweep", *given)
    assert (called.code, called.out) == (2, "")
    assert message in called.err
    assert [path.name for path in tmp_path.iterdir()] == ["scenario.yaml"]


@pytest.mark.system
def test_another_scenario_is_not_resumed(scenario: Path, bentpipe: Program, tmp_path: Path) -> None:
    """Given an unfinished sweep, expect other values and a changed file to be refused."""
    out = tmp_path / "out"
    options = ["--vary", "traffic.0.count=1,2000", "--set", "duration=1 s"]
    small = ("--memory-limit", "1MB", "--threads", "1", "--out", out)
    assert bentpipe("sweep", scenario, *options, *small).code == 2
    called = bentpipe("sweep", scenario, "--resume", out)
    assert called.code == 2
    assert "the command line describes another sweep than the one in this folder" in called.err
    called = bentpipe("sweep", "--resume", out, "--vary", "duration=1s")
    assert (called.code, "leave out --vary and --set" in called.err) == (2, True)
    scenario.write_text(SCENARIO + "seed: 2\n")
    called = bentpipe("sweep", "--resume", out)
    assert called.code == 2
    assert f"{scenario}: has changed since the sweep in {out} began" in called.err
    scenario.write_text(SCENARIO)
    assert bentpipe("sweep", scenario, *options, "--resume", out).code == 0
    assert read_execution(out)["scenario_file"] == str(scenario)
    called = bentpipe("sweep", "--resume", out)
    assert (called.code, f"{out}: the sweep is complete" in called.err) == (0, True)


@pytest.mark.system
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--vary", "link.forward.delay=1ms,2ms"], "leave out --vary and --set"),
        (["--seeds", "9"], "leave out --vary and --set, --seeds"),
        (["FILE", "--vary", "traffic.file.size=1kB,2kB"], "in this folder (--vary)"),
        (["FILE", "--seeds", "2"], "in this folder (--vary, --seeds)"),
    ],
)
def test_a_complete_sweep_is_not_resumed_with_other_values(
    arguments: list[str], message: str, scenario: Path, bentpipe: Program, tmp_path: Path
) -> None:
    """Given a finished sweep and --resume with a new --vary, expect no "is complete" for it."""
    out, same = tmp_path / "out", ("--vary", "traffic.file.size=1kB,3kB")
    assert bentpipe("sweep", scenario, *same, "--out", out).code == 0
    given = [str(scenario) if each == "FILE" else each for each in arguments]
    called = bentpipe("sweep", *given, "--resume", out)
    assert (called.code, called.out) == (2, "")
    assert message in called.err
    called = bentpipe("sweep", scenario, *same, "--resume", out)
    assert (called.code, "the sweep is complete" in called.err) == (0, True)


class Terminal(StringIO):
    """Standard input or error of a user, who answers."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("n\n", 2), ("", 2)])
def test_a_user_is_asked_before_more_than_a_million_runs(
    answer: str, code: int, scenario: Path, bentpipe: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a limit of two runs, expect the question on a terminal, and --yes to answer it."""
    monkeypatch.setattr(sweeps, "RUNS_MAX", 2)
    monkeypatch.setattr("bentpipe.sweeps.run.RUNS_MAX", 2)
    command = ("sweep", scenario, "--set", "traffic.file.size=1kB", "--seeds", "3")
    called = bentpipe(*command)
    refused = "bentpipe: 3 runs; more than 2 need --yes\n"
    assert (called.code, called.out, called.err) == (2, "", refused)
    assert bentpipe(*command, "--yes").code == 0
    shown = Terminal()
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    monkeypatch.setattr(sys, "stderr", shown)
    assert bentpipe(*command).code == code
    assert "3 runs. Do them all? [y/N]" in shown.getvalue()


@pytest.mark.system
def test_narrow_intervals_that_need_too_many_runs_keep_what_has_ended(
    scenario: Path, bentpipe: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a limit of six runs and an interval that needs more, expect the data set of some."""
    monkeypatch.setattr("bentpipe.sweeps.run.RUNS_MAX", 6)
    out = tmp_path / "out"
    size = ("--set", "traffic.file.size=30kB", "--set", "link.forward.bit_error_rate=1e-5")
    called = bentpipe(
        "sweep", scenario, *size, "--until-ci", "0.1%", "--max-seeds", "12", "--out", out
    )
    assert called.code == 2
    assert "need --yes; the 5 runs that have ended are kept, continue with" in called.err
    assert Sweep.load(out).runs.height == 5
    assert bentpipe("sweep", "--resume", out).code == 2
    more = bentpipe("sweep", "--resume", out, "--yes", "--threads", "1")
    assert (more.code, Sweep.load(out).runs.height > 6) == (0, True)


def test_a_latin_hypercube_names_the_extra(
    bentpipe: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "scipy.stats.qmc", None)
    called = bentpipe("sweep", ROOT / "scenarios" / "sweeps" / "geo-queues.yaml")
    assert called.code == 2
    assert "pip install 'bentpipe[sweep]'" in called.err
