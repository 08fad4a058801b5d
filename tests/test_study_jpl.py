"""The study of the JPL table: its cells, its figures, and what it writes.

The thresholds are those of the study's purpose. The full default study runs once for all of them:
44 cells, 30 runs of each cell with errors, both profiles, some three seconds of CPU.
"""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from conftest import Program
from test_plots_report import assert_self_contained

from bentpipe.cli.app import main
from bentpipe.plan.resolver import from_dict, resolve
from bentpipe.results.folder import prepare_output_folder
from bentpipe.scenario.schema import Scenario
from bentpipe.simulation.many import Job, run_many
from bentpipe.studies import STUDIES
from bentpipe.studies.jpl import study
from bentpipe.studies.jpl._report import study_report
from bentpipe.studies.jpl.study import Cell, Comparison, JplOutcome, Measurement
from bentpipe.units import parse_rate

ROWS = ["1e-7", "1e-8", "1e-9", "0"]


@pytest.fixture(scope="module")
def full() -> JplOutcome:
    """The default study."""
    return study.run()


@pytest.fixture(scope="module")
def short() -> JplOutcome:
    """Two runs a cell, on one thread."""
    return study.run(runs=2, seed=7, threads=1)


# --- the published table and the cells ----------------------------------------------------------


def test_the_published_table_is_the_source_s() -> None:
    """The sums of the source's rows, and the one cell that arithmetic gives."""
    published = study.read_published()
    sums = {row: sum(p for cell, p in published.items() if cell.row == row) for row in ROWS}
    assert sums == pytest.approx({"1e-7": 657.79, "1e-8": 852.16, "1e-9": 864.85, "0": 865.49})
    assert published[Cell("0", 0, "both")] == pytest.approx(100 * 1460 / 1508, abs=0.01)


def test_there_are_44_cells_and_each_is_published() -> None:
    cells = study.cells()
    assert len(set(cells)) == 44
    assert set(cells) == set(study.read_published())
    assert Counter(cell.large_windows for cell in cells) == {"both": 12, "yes": 16, "no": 16}


def test_one_configuration_for_all_cells() -> None:
    """Plans differ in delay, bit errors and the small window; in nothing else."""
    plans: dict[str, set[str]] = {}
    for cell in study.cells():
        plan = resolve(study.scenario_of(cell))
        for way in plan["directions"]:
            assert way.pop("delay_ns")["value"] == cell.one_way_delay_ms * 1_000_000
            channel = way.pop("channel")
            assert channel.get("bit_error_rate", 0.0) == study.BIT_ERROR_RATES[cell.row]
        plan["flows"][0].pop("name")
        plans.setdefault(cell.large_windows, set()).add(json.dumps(plan, sort_keys=True))
    assert {windows: len(found) for windows, found in plans.items()} == {
        "both": 1,
        "yes": 1,
        "no": 1,
    }
    assert plans["both"] == plans["yes"]
    (small,), (large,) = (
        [json.loads(text)["flows"][0]["workload"]["receiver"] for text in plans[windows]]
        for windows in ("no", "yes")
    )
    differences = {name: small[name] for name in large if small[name] != large[name]}
    assert differences == {
        "receive_buffer_bytes": 65_535,
        "receive_buffer_initial_bytes": 65_535,
        "window_scaling": False,
    }


def test_the_model_reads_no_published_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """With all published figures 50 the measured ones are the same."""
    honest = study.run(runs=1)
    monkeypatch.setattr(study, "read_published", lambda: dict.fromkeys(study.cells(), 50.0))
    bent = study.run(runs=1)
    assert [m.measured for m in bent.bsd.measurements] == [
        m.measured for m in honest.bsd.measurements
    ]
    assert bent.bsd.mean_absolute_error != honest.bsd.mean_absolute_error


# --- the figures --------------------------------------------------------------------------------


def test_the_errors_are_within_what_the_study_promises(full: JplOutcome) -> None:
    result = full.to_json()
    rows = result["mean_absolute_error_by_row"]
    assert result["mean_absolute_error"] <= 1.5
    assert rows["0"] <= 0.3
    assert rows["1e-9"] <= 0.5


def test_json_has_every_cell_with_its_runs(full: JplOutcome) -> None:
    result = full.to_json()
    assert result["study"] == "jpl"
    assert list(result["mean_absolute_error_by_row"]) == ROWS
    for table in (result, result["linux"]):
        assert len(table["cells"]) == 44
        for cell in table["cells"]:
            assert list(cell) == [
                "bit_error_rate",
                "one_way_delay_ms",
                "large_windows",
                "published",
                "measured",
                "stdev",
                "runs",
            ]
            assert cell["runs"] == (30 if cell["bit_error_rate"] > 0 else 1)
            # The ceiling: 1460 of 1508 bytes.
            assert 0 < cell["measured"] <= 100 * 1460 / 1508
    errors = [abs(cell["measured"] - cell["published"]) for cell in result["cells"]]
    assert result["mean_absolute_error"] == pytest.approx(sum(errors) / 44)


def test_a_cell_without_errors_by_hand(full: JplOutcome) -> None:
    """64 KB windows at 300 ms: 44 segments a round trip.

    A round takes 600 ms, the segment's 6.03 ms and the 0.19 ms of its ACK of 48 bytes, and up to
    one segment more for the ACK of every second one: 44 x 1460 bytes in 606 to 612 ms are 41.98 to
    42.40 % of 2 Mbit/s. The start costs: windows of 1, 2, 3, 5, 8, 12, 18, 27, 41 segments need
    nine rounds for 117 of 7183 segments, some six of 163 rounds for nothing: 3.7 %; 3 to 5 pass.
    """
    (cell,) = (m for m in full.bsd.measurements if m.cell == Cell("0", 300, "no"))
    assert cell.measured is not None
    steady = [100 * 44 * 1460 * 8 / parse_rate("2 Mbit/s") / seconds for seconds in (0.612, 0.606)]
    assert steady == pytest.approx([41.99, 42.40], abs=0.01)
    assert 0.95 * steady[0] < cell.measured < 0.97 * steady[1]


def test_one_published_figure_is_simulated_with_both_windows(full: JplOutcome) -> None:
    """Without errors and up to 100 ms, 44 segments cover the path: the window changes nothing.

    A round takes at most 200 ms and 6.2 ms for a segment and its ACK; 44 frames of 1508 bytes take
    265 ms. With errors a window that shrinks from less than the queue holds is a little slower.
    """
    large = [m for m in full.bsd.measurements if m.cell.large_windows == "both"]
    places = [(m.cell.row, m.cell.one_way_delay_ms, m.published) for m in large]
    small = full.small_windows
    assert [(m.cell.row, m.cell.one_way_delay_ms, m.published) for m in small] == places
    for one, other in zip(large, small, strict=True):
        assert other.cell.large_windows == "no"
        assert other.runs == one.runs
        if one.cell.row == "0":
            assert other.measured == one.measured
    assert full.to_json()["both_with_64_kb_windows"] == [m.to_json() for m in small]
    changed = {m.cell: m.measured for m in small if m.cell.row == "1e-7"}
    text = study_report(full)
    assert f"<td>{changed[Cell('1e-7', 100, 'no')]:.2f}</td>" in text


@pytest.mark.parametrize("windows", ["yes", "no"])
def test_most_of_what_linux_gains_at_1e_7_is_cubic(windows: str) -> None:
    """The report says so: with NewReno over half of the gain is gone, with SACK or without."""
    cell = Cell("1e-7", 250, windows)
    with_newreno = []
    for sack in (True, False):
        scenario = study.scenario_of(cell, linux=True).to_dict()
        settings = {"congestion_control": "newreno", "sack": sack, "rack_tlp": sack}
        scenario["traffic"][0]["tcp"] |= settings
        with_newreno.append(mean_utilization(from_dict(scenario)))
    bsd = mean_utilization(study.scenario_of(cell))
    linux = mean_utilization(study.scenario_of(cell, linux=True))
    for newreno in with_newreno:
        assert newreno - bsd < 0.5 * (linux - bsd)


def mean_utilization(scenario: Scenario) -> float:
    plan = resolve(scenario)
    outcomes = run_many([Job(plan=plan, seed=seed) for seed in range(1, 31)])
    return sum(study.utilization(outcome) for outcome in outcomes) / len(outcomes)


def test_threads_do_not_change_the_figures(short: JplOutcome) -> None:
    together = study.run(runs=2, seed=7, threads=2)
    assert json.dumps(together.to_json()) == json.dumps(short.to_json())
    assert study_report(together) == study_report(short)


def test_seeds_count_up_from_the_first(short: JplOutcome) -> None:
    """The mean of the seeds 7 and 8 is the mean of two studies of one run each."""
    seventh, eighth = (study.run(runs=1, seed=seed) for seed in (7, 8))
    pairs = zip(seventh.bsd.measurements, eighth.bsd.measurements, strict=True)
    for both, (one, other) in zip(short.bsd.measurements, pairs, strict=True):
        assert one.measured is not None
        assert other.measured is not None
        assert both.measured == pytest.approx((one.measured + other.measured) / 2)
    # One run says nothing of the spread, unless there is no chance in it.
    assert {m.stdev for m in seventh.bsd.measurements if m.cell.row != "0"} == {None}
    assert {m.stdev for m in seventh.bsd.measurements if m.cell.row == "0"} == {0.0}


def test_ctrl_c_leaves_the_figures_of_the_runs_that_were_done(tmp_path: Path) -> None:
    def interrupt(done: int, _total: int) -> None:
        if done == 5:
            raise KeyboardInterrupt

    outcome = study.run(runs=2, threads=1, progress=interrupt)
    assert outcome.interrupted
    result = outcome.to_json()
    assert len(result["cells"]) == 44
    assert result["cells"][0]["runs"] == 2
    assert result["cells"][-1]["measured"] is None
    assert result["linux"]["mean_absolute_error"] is None
    # Strict JSON: no NaN anywhere.
    json.dumps(result, allow_nan=False)
    text = (outcome.write(tmp_path / "cut") / "report.html").read_text(encoding="utf-8")
    assert "The study was interrupted" in text


# --- what it writes -----------------------------------------------------------------------------


def test_the_folder_has_report_data_and_manifest(short: JplOutcome, tmp_path: Path) -> None:
    folder = short.write(tmp_path / "jpl")
    assert sorted(path.name for path in folder.iterdir()) == [
        "cells.csv",
        "manifest.json",
        "report.html",
        "result.json",
    ]
    assert json.loads((folder / "result.json").read_text(encoding="utf-8")) == short.to_json()
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    assert (manifest["kind"], manifest["study"]) == ("study", "jpl")
    with (folder / "cells.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert Counter(row["profile"] for row in rows) == {"bsd-1997": 44, "linux": 44}
    assert float(rows[0]["measured_percent"]) == short.bsd.measurements[0].measured
    # The study may replace it.
    prepare_output_folder(folder, kind="study")
    before = (folder / "report.html").read_bytes()
    assert (short.write(folder) / "report.html").read_bytes() == before


def test_the_report_is_self_contained_and_has_the_numbers(full: JplOutcome) -> None:
    text = study_report(full)
    page = assert_self_contained(text)
    assert page.tags.count("svg") == 2
    for each in (*full.bsd.measurements, *full.linux.measurements):
        assert f"<td>{each.published:.2f}</td><td>{each.measured:.2f}</td>" in text
    assert f"44 cells: {full.bsd.mean_absolute_error:.2f} percentage points" in text
    for words in ("Chosen to fit", "Fixed beforehand", "leaves unsaid", "is not monotone"):
        assert words in text


@pytest.mark.parametrize("seed", range(1, 9))
def test_two_runs_a_cell_make_a_report_that_doubts_its_deviations(seed: int) -> None:
    """Two runs that agree by luck have next to no deviation, and every error is huge beside it."""
    text = study_report(study.run(runs=2, seed=seed))
    assert "the standard deviations are rough" in text
    assert "lean one way, on average" not in text


def test_cells_that_lean_one_way_together_are_named(full: JplOutcome) -> None:
    """With 64 KB windows at 1e-7 all four published cells are a deviation or more above."""
    text = study_report(full)
    assert "the standard deviations are rough" not in text
    assert "1e-7, 64 KB windows: the 4 cells lean one way" in text


def test_what_stands_out_is_listed_and_what_does_not_is_not() -> None:
    """Four cells made by hand: far off, far off but noisy, close, and without a run."""
    cells = [Cell("1e-8", delay_ms, "both") for delay_ms in (0, 50, 100)]
    cells.append(Cell("1e-8", 150, "yes"))
    made = [(91.0, 0.5), (91.0, 5.0), (90.5, 0.1), (None, None)]
    measurements = tuple(
        Measurement(cell=cell, published=90.0 - 3 * (i < 2), measured=mean, stdev=stdev, runs=30)
        for i, (cell, (mean, stdev)) in enumerate(zip(cells, made, strict=True))
    )
    assert [m.stands_out for m in measurements] == [True, False, False, False]
    assert measurements[0].standard_error == pytest.approx(0.5 / 30**0.5)
    comparison = Comparison(measurements)
    assert comparison.mean_absolute_error == pytest.approx((4 + 4 + 0.5) / 3)
    configuration = {
        "bentpipe_version": "0",
        "first_seed": 1,
        "runs_of_a_cell_with_bit_errors": 30,
    }
    text = study_report(
        JplOutcome(
            bsd=comparison,
            small_windows=(),
            linux=comparison,
            configuration=configuration,
            interrupted=False,
        )
    )
    assert "<b>+4.00</b>" in text
    listed = text[text.index("Cells off by") : text.index("Off by more than one point")]
    assert "1e-8, 0 ms: published 87.00 %, measured 91.00 %" in listed
    assert "1e-8, 50 ms" not in listed


# --- the command --------------------------------------------------------------------------------


def test_the_command_prints_json_and_writes_a_folder(bentpipe: Program, tmp_path: Path) -> None:
    out = tmp_path / "out"
    called = bentpipe("study", "jpl", "--runs", "2", "--seed", "7", "--out", out, "--json")
    assert called.code == 0
    assert json.loads(called.out) == json.loads((out / "result.json").read_text(encoding="utf-8"))


def test_the_command_prints_the_table(bentpipe: Program) -> None:
    called = bentpipe("study", "jpl", "--runs", "1")
    assert (called.code, called.err) == (0, "")
    assert "mean absolute error" in called.out
    assert sum(line.startswith(("1e-", "0 ")) for line in called.out.splitlines()) == 44


def test_the_registry_is_light() -> None:
    """`bentpipe study list` waits for no library."""
    code = (
        "import sys, bentpipe.studies; "
        "print(sorted({'numpy', 'polars', 'matplotlib', 'pydantic'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    assert STUDIES["jpl"].name == "jpl"


def test_a_run_and_a_study_do_not_overwrite_each_other(tmp_path: Path) -> None:
    """Given a study's folder, expect `report` and `run --out` to refuse it, and the reverse."""
    study, run = tmp_path / "study", tmp_path / "run"
    scenario = str(Path(__file__).parent.parent / "scenarios/geo-bulk.yaml")
    assert main(["study", "jpl", "--runs", "1", "--out", str(study)]) == 0
    assert main(["run", scenario, "--out", str(run)]) == 0
    assert main(["report", str(study)]) == 2
    assert main(["run", scenario, "--out", str(study)]) == 2
    assert main(["study", "jpl", "--runs", "1", "--out", str(run)]) == 2
    assert (study / "cells.csv").is_file()
    assert (run / "flows.parquet").is_file()
