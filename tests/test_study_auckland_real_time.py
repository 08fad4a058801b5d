"""The study auckland in real time: cells, figures in both engines, expected time, and two cells."""

from __future__ import annotations

import json
from collections.abc import Generator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest
from conftest import SMALL, measures, needs

from bentpipe import Plan
from bentpipe.errors import UsageError
from bentpipe.live.pool import EmulatedRun, EmulationJob
from bentpipe.live.requirements import refuse
from bentpipe.results.files import utc_now
from bentpipe.simulation.executor import Threads, run_jobs
from bentpipe.simulation.run import Job, Outcome
from bentpipe.studies import STUDIES
from bentpipe.studies.auckland import cells as auckland, study
from bentpipe.studies.auckland.cells import QUEUES_KB, Cell, LinkPath
from bentpipe.studies.auckland.runs import (
    TOTAL,
    TRANSFER,
    TRANSFER_GOODPUT,
    UNITS,
    figures,
    real_figures,
)
from bentpipe.studies.base import real_time
from bentpipe.studies.base.inputs import Provenance
from bentpipe.studies.base.real_time import RealOutcome, RealWork, duration_text, expected_time_s

pytestmark = pytest.mark.system

S = 1_000_000_000


def ignore(_: object) -> None:
    pass


def run(
    folder: Path, chosen: str, seconds: float, notes: list[str] | None = None, runs: int = 1
) -> RealOutcome:
    work = RealWork(
        "auckland",
        chosen=chosen,
        seed=1,
        runs=runs,
        seconds=seconds,
        parallel=1,
        progress=ignore,
        note=ignore if notes is None else notes.append,
        folder=folder,
    )
    return study.run_real_time(work)


def outcome_of(job: Job) -> Outcome:
    (outcome,) = run_jobs([job], Threads(1))
    return outcome


# --- which cells, and for how long ----------------------------------------------------------------


def test_cells_are_named_from_the_left() -> None:
    assert study.cells_named("20:120") == tuple(Cell(20, 120, path) for path in LinkPath)
    assert study.cells_named("20:120:titrated 10 %") == (Cell(20, 120, LinkPath.TITRATED_10),)
    assert study.cells_named("10:1000:pep, 10:1000:plain") == (
        Cell(10, 1000, LinkPath.PEP),
        Cell(10, 1000, LinkPath.PLAIN),
    )
    assert len(study.cells_named("90")) == 2 * len(LinkPath)


@pytest.mark.parametrize("name", ["", "21", "20:121", "20:120:tunnel", "20:120:pep:1"])
def test_cells_that_are_not_there_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match=rf'cells: read "{name}".*as in 90:120:PEP'):
        study.cells_named(name)


def test_the_help_names_the_cells_that_run_by_default() -> None:
    chosen, about = study.cells_named(None), STUDIES["auckland"]
    (channels,) = {cell.channels for cell in chosen}
    paths = {cell.path for cell in chosen}
    assert {cell.queue_kb for cell in chosen} == set(QUEUES_KB)
    assert len(chosen) == len(paths) * len(QUEUES_KB)
    assert about.default_cells == (
        f"{channels} channels with {len(paths)} paths and both queues, each for {about.seconds:g} "
        "s instead of 600 s"
    )
    for each in (auckland.LOADS.every, QUEUES_KB, LinkPath):
        assert f"({', '.join(map(str, each))})" in about.cells_help


def test_the_transfer_is_in_the_middle_half() -> None:
    """Given 40 s, expect the transfer from 10 to 30 s, samples each second, and the study's PEP."""
    plan: Any = Plan.resolve(Cell(5, 120, LinkPath.PEP, seconds=40).scenario()).data
    (transfer,) = (flow for flow in plan["flows"] if flow["name"] == TRANSFER)
    assert plan["stop_ns"] == 40 * S
    assert transfer["start_ns"] == 10 * S
    assert transfer["workload"]["amount"] == {"unit": "duration_ns", "value": 20 * S}
    assert plan["sample_interval_ns"] == S
    (pep,) = plan["gateways"][0]["functions"]
    assert pep["kind"] == "pep"
    assert pep["early_accept"]


@pytest.mark.parametrize("cell", auckland.cells(auckland.LOADS.every, tuple(LinkPath)), ids=str)
def test_every_cell_is_one_that_the_kernel_can_run(cell: Cell) -> None:
    refuse(Plan.resolve(replace(cell, seconds=60).scenario()))


def test_runs_share_processors_by_their_load() -> None:
    """Two runs of 10 s with a load of 2: 20 s on two processors, 10 s on four, never less."""
    plan = Plan.resolve(SMALL)
    jobs = [EmulationJob(plan, 1, max_s=10, expected_s=10, load=2.0)] * 2
    assert [expected_time_s(jobs, 2, parallel) for parallel in (1, 2, 4, 8)] == [20, 20, 10, 10]
    # 30 further runs like these.
    assert expected_time_s(jobs, 32, 4) == 160
    assert [duration_text(each) for each in (64.0, 119.4, 256.0)] == ["64 s", "119 s", "4 min"]


# --- figures --------------------------------------------------------------------------------------


def test_figures_are_those_of_the_simulated_study() -> None:
    """Given a simulated cell of 600 s, expect the goodputs that the study reads from it.

    Its total has also what arrives after the transfer's 180 s, at most what the PEP holds: buffers
    of 4 MiB to send and 6 MiB to receive, 0.14 Mbit/s of the run.
    """
    (job,) = Cell(5, 120, LinkPath.PEP).jobs([3])
    outcome = outcome_of(job)
    expected, result = figures(outcome), outcome.result(started=utc_now())
    total_mbps = real_figures(result)["total goodput"]
    assert total_mbps is not None
    assert 0 < expected[TOTAL] - total_mbps < 0.14
    assert real_figures(result)["transfer goodput"] == pytest.approx(expected[TRANSFER_GOODPUT])
    median_s = real_figures(result)["median download"]
    # Its client has the first data after two round trips of link and server, also with this PEP.
    assert median_s is not None
    assert 1 < median_s < 2


def made(samples: Sequence[tuple[float, int | None]], times_ns: Sequence[int | None]) -> Any:
    """Return a result by hand: a transfer of 4 s that starts at 2.5 s, and a channel."""
    amount = {"unit": "duration_ns", "value": 4 * S}
    plan = {
        "flows": [
            {"name": "channels", "workload": {}},
            {"name": "iperf3", "workload": {"amount": amount}},
        ],
        "stop_ns": 8 * S,
    }
    rows = [{"flow": 1, "time_ns": int(at * S), "delivered_bytes": n} for at, n in samples]
    schema = {"flow": pl.UInt32, "time_ns": pl.UInt64, "delivered_bytes": pl.UInt64}
    return SimpleNamespace(
        plan=plan,
        flows=pl.DataFrame(
            {"start_ns": [0, 5 * S // 2], "delivered_bytes": [3_000_000, 5_000_000]}
        ),
        tables={"flow_samples": pl.DataFrame(rows, schema=schema)},
        exchanges=pl.DataFrame(
            {"name": ["channels"] * len(times_ns), "time_ns": times_ns},
            schema={"name": pl.String, "time_ns": pl.UInt64},
        ),
    )


def test_a_transfer_that_starts_late_is_counted_until_its_own_end() -> None:
    """4 MB at 6 s and 5 at 7 s are 4.5 at 6.5 s: 9 Mbit/s in 4 s.

    With the channel's 3 MB: 7.5 MB in 8 s, which are 7.5 Mbit/s.
    """
    result = made([(3, None), (6, 4_000_000), (7, 5_000_000)], [S, None, 3 * S])
    assert real_figures(result)["transfer goodput"] == pytest.approx(9.0)
    assert real_figures(result)["total goodput"] == pytest.approx(7.5)
    assert real_figures(result)["median download"] == pytest.approx(2.0)


def test_without_samples_or_downloads_there_is_no_figure() -> None:
    assert real_figures(made([(3, None)], []))["transfer goodput"] is None
    assert real_figures(made([(3, None)], []))["total goodput"] is None
    assert real_figures(made([], [None]))["median download"] is None


# --- rows, with the simulator in place of the kernel ----------------------------------------------


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    """Return simulated runs as emulated ones; that with a PEP was late."""

    def emulate(jobs: Sequence[EmulationJob], **_: Any) -> Generator[EmulatedRun]:
        for index, job in enumerate(jobs):
            result = outcome_of(Job(plan=job.plan, seed=job.seed)).result(started=utc_now())
            invalid = "the link was late" if job.plan.data["gateways"][0]["functions"] else None
            result.manifest["emulation"] = {"kernel": "6.0", "invalid": invalid, "windows": []}
            yield EmulatedRun(index, job, attempts=3 if invalid else 1, outcome=result)

    monkeypatch.setattr(real_time, "emulate_as_completed", emulate)
    monkeypatch.setattr(real_time, "check_plan", ignore)


@pytest.mark.usefixtures("fake")
def test_rows_compare_the_same_plan_in_both_engines(tmp_path: Path) -> None:
    """Given equal runs, expect no difference, and none at all of the run that was late."""
    notes: list[str] = []
    outcome = run(tmp_path, "10:120:plain, 10:120:PEP", 20, notes)
    assert notes == ["2 runs in real time: about 48 s"]
    result = json.loads(json.dumps(outcome.to_json(), allow_nan=False))
    rows = result["cells"]
    assert [(row["figure"], row["path"], row["unit"]) for row in rows] == [
        ("total goodput", "plain", "Mbit/s"),
        ("total goodput", "PEP", "Mbit/s"),
        ("transfer goodput", "plain", "Mbit/s"),
        ("transfer goodput", "PEP", "Mbit/s"),
        ("median download", "plain", "s"),
        ("median download", "PEP", "s"),
    ]
    for row in rows:
        assert row["emulated"] == row["simulated"] > 0
        late = row["path"] == "PEP"
        assert row["difference_percent"] == (None if late else 0)
        assert (row["invalid"] is None) is not late
    assert len(result["summary"]["invalid"]) == 3
    headings = [column.title for column in outcome.view().columns]
    assert "published" not in headings
    assert "kernel's hosts" not in headings


@pytest.mark.usefixtures("fake")
def test_what_is_not_that_of_the_source_is_said(tmp_path: Path) -> None:
    """The shorter duration is assumed; the PEP is that of the study."""
    outcome = run(tmp_path, "10:120:plain", 20)
    found = {each.name: each for each in outcome.inputs}
    for name, value in (("duration", "20"), ("traffic.1.start", "5"), ("traffic.1.duration", "10")):
        assert (found[name].value, found[name].unit) == (value, "s")
        assert found[name].provenance is Provenance.ASSUMED
    assert "accepts early" in found["gateways"].value
    assert found["traffic.0.channels"].value == "10"
    report = outcome.report()
    assert "20 s instead of 600 s" in report


@pytest.mark.usefixtures("fake")
def test_the_mean_of_several_runs_is_compared_with_that_of_as_many_simulated(
    tmp_path: Path,
) -> None:
    outcome = run(tmp_path, "10:120:plain", 20, runs=2)
    for row in outcome.main.rows:
        assert len(row.simulated.values) == 2
        assert row["emulated"] == pytest.approx(row.simulated.mean)


# --- for real -------------------------------------------------------------------------------------


@measures
@needs("iperf3")
@pytest.mark.thorough
def test_ten_channels_without_and_with_the_daemon(tmp_path: Path) -> None:
    """Given 10 channels for 12 s, expect the simulated total and download time, plain and PEP.

    Some eighty downloads of a second or more. What is delivered depends on whether the last of them
    have arrived at the end, so the tolerance of the total is wide; that of the median is 150 ms for
    the threads of clients and servers. The transfer of 6 s is in slow start for most of its time,
    and 0.35 s later than the simulated one: it must have delivered something.
    """
    result = run(tmp_path, "10:120:plain, 10:120:PEP", 12).to_json()
    rows = {(row["figure"], row["path"]): row for row in result["cells"]}
    late = {row["path"]: row["invalid"] for row in result["cells"] if row["invalid"] is not None}
    for path in {"plain", "PEP"} - set(late):
        total, transfer, median = (rows[name, path] for name in UNITS)
        assert total["emulated"] == pytest.approx(total["simulated"], rel=0.3)
        assert median["emulated"] == pytest.approx(median["simulated"], abs=0.15)
        assert transfer["emulated"] > 0.05
    for path, why in late.items():
        pytest.skip(f"late machine: {path}: {why}")
