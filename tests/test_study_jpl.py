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
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import Program
from test_plots_report import assert_self_contained

from bentpipe import Plan, Scenario
from bentpipe.cli.app import main
from bentpipe.simulation import Threads
from bentpipe.simulation.executor import run_jobs
from bentpipe.simulation.run import Job
from bentpipe.studies import STUDIES
from bentpipe.studies.base.comparison import Agreement, Comparison, Row, Samples
from bentpipe.studies.base.inputs import Provenance
from bentpipe.studies.base.work import Work
from bentpipe.studies.jpl import study
from bentpipe.studies.jpl.study import (
    BIT_ERROR_RATES,
    BSD,
    BSD_SMALL,
    LINUX,
    UTILIZATION,
    Cell,
    JplOutcome,
    cells,
    small_window_cells,
)
from bentpipe.units import parse_rate

pytestmark = pytest.mark.system

ROWS = ["1e-7", "1e-8", "1e-9", "0"]
# 4.4BSD's IFQ_MAXLEN.
BSD_QUEUE = "50 packets"


@pytest.fixture(scope="module")
def full() -> JplOutcome:
    """The default study."""
    return study.run(Work("jpl"))


@pytest.fixture(scope="module")
def short() -> JplOutcome:
    """Two runs a cell, on one thread."""
    return study.run(Work("jpl", runs=2, seed=7, executor=Threads(1)))


# --- the published table and the cells ----------------------------------------------------------


def test_the_published_table_is_the_source_s() -> None:
    """The sums of the source's rows, and the one cell that arithmetic gives."""
    published = study.read_published()
    sums = {
        row: sum(p for cell, p in published.items() if cell.bit_error_rate == row) for row in ROWS
    }
    assert sums == pytest.approx({"1e-7": 657.79, "1e-8": 852.16, "1e-9": 864.85, "0": 865.49})
    assert published[Cell("0", 0, "both")] == pytest.approx(100 * 1460 / 1508, abs=0.01)


def test_there_are_44_cells_and_each_is_published() -> None:
    assert len(set(cells())) == 44
    assert set(cells()) == set(study.read_published())
    assert Counter(cell.large_windows for cell in cells()) == {"both": 12, "yes": 16, "no": 16}


def test_one_configuration_for_all_cells() -> None:
    """Plans differ in delay, bit errors and the small window; in nothing else."""
    plans: dict[str, set[str]] = {}
    for cell in cells():
        plan: Any = Plan.resolve(cell.scenario()).data
        for way in plan["directions"]:
            assert way.pop("delay_ns")["value"] == cell.one_way_delay_ms * 1_000_000
            channel = way.pop("channel")
            assert channel.get("bit_error_rate", 0.0) == BIT_ERROR_RATES[cell.bit_error_rate]
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
    """With all published figures 50 the simulated ones are the same."""
    honest = study.run(Work("jpl", runs=1))
    monkeypatch.setattr(study, "read_published", lambda: dict.fromkeys(cells(), 50.0))
    bent = study.run(Work("jpl", runs=1))
    for name, comparison in honest.comparisons.items():
        assert [row.simulated for row in bent.comparisons[name].rows] == [
            row.simulated for row in comparison.rows
        ]
    assert bent.main.summary() != honest.main.summary()


# --- provenance ---------------------------------------------------------------------------------


def test_the_cells_by_provenance() -> None:
    """The framing is computed from one cell; 64 KB windows with few errors are predictions."""
    assert Counter(cell.provenance for cell in cells()) == {
        "derived": 1,
        "calibrated": 35,
        "predicted": 8,
    }
    assert Cell("0", 0, "both").provenance is Provenance.DERIVED
    predicted = {
        (cell.bit_error_rate, cell.large_windows)
        for cell in cells()
        if cell.provenance == "predicted"
    }
    assert predicted == {("1e-9", "no"), ("0", "no")}


@pytest.mark.thorough
@pytest.mark.parametrize(
    "change",
    [
        {"tcp": {"avoidance_counting": "acks"}},
        {"tcp": {"congestion_control": "newreno"}},
        {"tcp": {"quick_ack_segments": 0}},
        {"queue": {"limit": BSD_QUEUE}},
    ],
    ids=str,
)
def test_predicted_cells_do_not_depend_on_what_was_calibrated(
    change: dict[str, dict[str, Any]], full: JplOutcome
) -> None:
    """Given another value of a calibrated setting, expect a change below half a point."""
    for cell in cells():
        if cell.provenance is Provenance.PREDICTED:
            (row,) = full.main.where(**cell.labels).rows
            assert row.simulated.mean is not None
            assert abs(mean_utilization(changed(cell, change)) - row.simulated.mean) < 0.5


def test_calibrated_cells_depend_on_what_was_calibrated(full: JplOutcome) -> None:
    """A queue of 1997 drops what large windows send; growth for each ACK is too slow."""
    for cell, change in (
        (Cell("0", 50, "both"), {"queue": {"limit": BSD_QUEUE}}),
        (Cell("1e-9", 300, "yes"), {"queue": {"limit": BSD_QUEUE}}),
        (Cell("1e-7", 300, "no"), {"tcp": {"avoidance_counting": "acks"}}),
        (Cell("1e-8", 300, "no"), {"tcp": {"avoidance_counting": "acks"}}),
    ):
        assert cell.provenance is Provenance.CALIBRATED
        (row,) = full.main.where(**cell.labels).rows
        assert row.simulated.mean is not None
        assert row.simulated.mean - mean_utilization(changed(cell, change)) > 0.5


def changed(cell: Cell, change: dict[str, dict[str, Any]]) -> Scenario:
    data = cell.scenario().to_dict()
    data["traffic"][0]["tcp"] |= change.get("tcp", {})
    for direction in data["link"].values():
        direction["queue"] |= change.get("queue", {})
    return Scenario.from_dict(data)


# --- the figures --------------------------------------------------------------------------------


def test_the_errors_are_within_the_stated_bounds(full: JplOutcome) -> None:
    summary = full.to_json()["summary"]["by_provenance"]
    assert summary["predicted"]["mean_absolute_error"] <= 0.3
    assert summary["predicted"]["outside"] == 0
    assert summary["calibrated"]["mean_absolute_error"] <= 1.8
    assert summary["derived"] == {"rows": 1}
    by_rate = full.to_json()["by_bit_error_rate"]
    assert by_rate["0"]["calibrated"]["mean_absolute_error"] <= 0.3
    assert by_rate["1e-9"]["calibrated"]["mean_absolute_error"] <= 0.5


def test_json_has_every_cell_with_its_runs(full: JplOutcome) -> None:
    result = full.to_json()
    assert result["study"] == "jpl"
    assert list(result["by_bit_error_rate"]) == ROWS
    for table in (result, result["linux"]):
        assert len(table["cells"]) == 44
        for cell in table["cells"]:
            exact = cell["bit_error_rate"] == "0"
            assert cell["simulated_exact"] == exact
            assert cell["simulated_runs"] == (1 if exact else 30)
            assert (cell["simulated_low"] is None) == exact
            # The ceiling: 1460 of 1508 bytes.
            assert 0 < cell["simulated"] <= 100 * 1460 / 1508
            assert cell["error"] == pytest.approx(cell["simulated"] - cell["published"])
            assert cell["error_unit"] == "points"
    for provenance, found in result["summary"]["by_provenance"].items():
        errors = [abs(c["error"]) for c in result["cells"] if c["provenance"] == provenance]
        assert found["rows"] == len(errors)
        if provenance != "derived":
            assert found["mean_absolute_error"] == pytest.approx(sum(errors) / len(errors))
            low, high = found["mean_absolute_error_low"], found["mean_absolute_error_high"]
            assert low < found["mean_absolute_error"] < high
    # What the testbed never ran is not judged.
    assert {cell["agreement"] for cell in result["linux"]["cells"]} == {None}
    assert "by_provenance" not in result["linux"]["summary"]


def test_a_cell_without_errors_by_hand(full: JplOutcome) -> None:
    """64 KB windows at 300 ms: 44 segments a round trip.

    A round takes 600 ms, the segment's 6.03 ms and the 0.19 ms of its ACK of 48 bytes, and up to
    one segment more for the ACK of every second one: 44 x 1460 bytes in 606 to 612 ms are 41.98 to
    42.40 % of 2 Mbit/s. The start costs: windows of 1, 2, 3, 5, 8, 12, 18, 27, 41 segments need
    nine rounds for 117 of 7183 segments, some six of 163 rounds for nothing: 3.7 %; 3 to 5 pass.
    """
    (cell,) = full.main.where(**Cell("0", 300, "no").labels).rows
    assert cell.simulated.mean is not None
    steady = [100 * 44 * 1460 * 8 / parse_rate("2 Mbit/s") / seconds for seconds in (0.612, 0.606)]
    assert steady == pytest.approx([41.99, 42.40], abs=0.01)
    assert 0.95 * steady[0] < cell.simulated.mean < 0.97 * steady[1]


@pytest.mark.usefixtures("undrawn")
def test_one_published_figure_is_simulated_with_both_windows(full: JplOutcome) -> None:
    """Without errors and up to 100 ms, 44 segments cover the path: the window changes nothing.

    A round takes at most 200 ms and 6.2 ms for a segment and its ACK; 44 frames of 1508 bytes take
    265 ms. With errors a window that shrinks from less than the queue holds is a little slower.
    """
    large = full.main.where(large_windows="both").rows
    small = full.comparisons[BSD_SMALL].rows
    assert [row.labels for row in small] == [cell.labels for cell in small_window_cells()]
    for one, other in zip(large, small, strict=True):
        assert other.published == one.published
        assert len(other.simulated.values) == len(one.simulated.values)
        if one.labels["bit_error_rate"] == "0":
            assert other.simulated == one.simulated
    (changed_row,) = full.comparisons[BSD_SMALL].where(**Cell("1e-7", 100, "no").labels).rows
    assert f"<td>{changed_row.simulated.mean:.2f}</td>" in full.report()


@pytest.mark.parametrize("windows", ["yes", "no"])
def test_most_of_what_linux_gains_at_1e_7_is_cubic(windows: str) -> None:
    """The report says so: with NewReno over half of the gain is gone, with SACK or without."""
    cell = Cell("1e-7", 250, windows)
    with_newreno = []
    for sack in (True, False):
        scenario = replace(cell, hosts=LINUX).scenario().to_dict()
        settings = {"congestion_control": "newreno", "sack": sack, "rack_tlp": sack}
        scenario["traffic"][0]["tcp"] |= settings
        with_newreno.append(mean_utilization(Scenario.from_dict(scenario)))
    bsd = mean_utilization(cell.scenario())
    linux = mean_utilization(replace(cell, hosts=LINUX).scenario())
    for newreno in with_newreno:
        assert newreno - bsd < 0.5 * (linux - bsd)


def mean_utilization(scenario: Scenario) -> float:
    plan = Plan.resolve(scenario)
    outcomes = run_jobs([Job(plan=plan, seed=seed) for seed in range(1, 31)])
    cell = cells()[0]
    return sum(cell.figures(each)[UTILIZATION] or 0 for each in outcomes) / len(outcomes)


# --- what it writes -----------------------------------------------------------------------------


@pytest.mark.usefixtures("undrawn")
def test_the_folder_has_all_tables_and_inputs(short: JplOutcome, tmp_path: Path) -> None:
    folder = short.write(tmp_path / "jpl")
    with (folder / "cells.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert Counter(row["comparison"] for row in rows) == {BSD: 44, BSD_SMALL: 12, LINUX: 44}
    assert float(rows[0]["simulated"]) == short.main.rows[0].simulated.mean
    assert rows[0]["provenance"] == "calibrated"
    with (folder / "inputs.csv").open(encoding="utf-8", newline="") as file:
        inputs = {row["name"]: row for row in csv.DictReader(file)}
    assert inputs["link.*.framing"]["provenance"] == "derived"
    assert (inputs["link.*.rate"]["value"], inputs["link.*.rate"]["unit"]) == ("2", "Mbit/s")
    assert inputs["traffic.0.tcp.avoidance_counting"]["provenance"] == "calibrated"
    before = (folder / "report.html").read_bytes()
    assert (short.write(folder) / "report.html").read_bytes() == before


def test_the_report_is_self_contained_and_has_the_numbers(full: JplOutcome) -> None:
    text = full.report()
    page = assert_self_contained(text)
    assert page.tags.count("svg") == 2
    for each in (*full.main.rows, *full.comparisons[LINUX].rows):
        assert f"<td>{each.published:.2f}</td><td>{each.simulated.mean:.2f}</td>" in text
    for sentence in full.headline():
        assert sentence in text
    for words in (
        "calibrated",
        "Not stated in",
        "is not monotone",
        "95 % interval",
        "exact",
    ):
        assert words in text


def test_few_runs_have_wide_intervals_and_no_bootstrap(short: JplOutcome) -> None:
    """Given two runs, expect an interval of 12.7 standard errors (Student's t) instead of 2."""
    for row in short.main.where(bit_error_rate="1e-7").rows:
        one, other = row.simulated.values
        interval = row.simulated.interval
        assert interval is not None
        assert interval.high - interval.low == pytest.approx(12.706 * abs(one - other), rel=1e-3)
    summary = short.to_json()["summary"]["by_provenance"]
    assert summary["calibrated"]["mean_absolute_error_low"] is None


@pytest.mark.thorough
@pytest.mark.usefixtures("undrawn")
def test_groups_that_are_biased_have_an_interval_without_zero(full: JplOutcome) -> None:
    """With 64 KB windows at 1e-7 all four published cells are above."""
    table = {row[0]: row[1:] for row in full.context()["signed_errors"].texts()}
    assert table["1e-7"][2].startswith("-4.75 [-5.")
    for text in table["1e-7"]:
        assert f"<td>{text}</td>" in full.report()


@pytest.mark.usefixtures("undrawn")
def test_only_rows_outside_the_tolerance_are_listed(full: JplOutcome) -> None:
    """Given four rows, expect the one with a large error and a narrow interval in the list."""
    rows = full.main.where(bit_error_rate="1e-8").rows[:4]
    made = [
        (87.0, (90.9, 91.1)),
        (87.0, (80.0, 100.0)),
        (90.0, (90.4, 90.5, 90.5, 90.6)),
        (90.0, ()),
    ]
    built: list[Row] = [
        replace(row, published=published, simulated=Samples(values))
        for row, (published, values) in zip(rows, made, strict=True)
    ]
    assert [row.agreement for row in built] == [
        Agreement.OUTSIDE,
        Agreement.WITHIN_INTERVAL,
        Agreement.WITHIN_TOLERANCE,
        None,
    ]
    outcome = replace(full, comparisons={**full.comparisons, BSD: Comparison(tuple(built))})
    text = outcome.report()
    assert "<b>+4.00</b>" in text
    listed = text[text.index("Outside the tolerance") : text.index("how many transfers")]
    assert "1e-8, 0, both: published 87 %, simulated 91.00" in listed
    assert "1e-8, 50, both" not in listed
    assert outcome.to_json()["summary"]["outside"] == ["1e-8, 0, both"]


# --- the command --------------------------------------------------------------------------------


@pytest.mark.usefixtures("undrawn")
def test_the_command_prints_json_and_writes_a_folder(bentpipe: Program, tmp_path: Path) -> None:
    out = tmp_path / "out"
    called = bentpipe("study", "jpl", "--seeds", "2", "--seed", "7", "--out", out, "--json")
    assert called.code == 0
    assert json.loads(called.out) == json.loads((out / "result.json").read_text(encoding="utf-8"))


def test_the_command_prints_the_table(bentpipe: Program) -> None:
    called = bentpipe("study", "jpl", "--seeds", "1")
    assert (called.code, called.err) == (0, "")
    assert "Predicted rows: mean absolute error" in called.out
    # The table is in two parts on 80 columns.
    assert sum(" 0  " in line and "both" in line for line in called.out.splitlines()) % 4 == 0


def test_the_registry_is_light() -> None:
    """Given `bentpipe show studies`, expect that no heavy library is imported."""
    code = (
        "import sys, bentpipe.studies; "
        "print(sorted({'numpy', 'polars', 'matplotlib', 'pydantic'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    assert STUDIES["jpl"].name == "jpl"


@pytest.mark.usefixtures("undrawn")
def test_a_run_and_a_study_do_not_overwrite_each_other(tmp_path: Path) -> None:
    """Given a study's folder, expect `report` and `run --out` to refuse it, and the reverse."""
    study, run = tmp_path / "study", tmp_path / "run"
    scenario = str(Path(__file__).parent.parent / "scenarios/geo-bulk.yaml")
    assert main(["study", "jpl", "--seeds", "1", "--out", str(study)]) == 0
    assert main(["run", scenario, "--out", str(run)]) == 0
    assert main(["report", str(study)]) == 2
    assert main(["run", scenario, "--out", str(study)]) == 2
    assert main(["study", "jpl", "--seeds", "1", "--out", str(run)]) == 2
    assert (study / "cells.csv").is_file()
    assert (run / "flows.parquet").is_file()
