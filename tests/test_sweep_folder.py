"""Sweeps in a folder: the data set, failed runs, resuming, and what is refused."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable, Generator, Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pytest
from conftest import SMALL, Program
from polars.testing import assert_frame_equal

import bentpipe
from bentpipe import Result, Scenario, Sweep, simulate, sweeps
from bentpipe.errors import BentpipeError, InternalError, MachineError, UsageError
from bentpipe.results.tables import decode_tables
from bentpipe.simulation.executor import Executor, Finished, Threads
from bentpipe.simulation.run import Job, Outcome
from bentpipe.sweeps.definition import UntilCi
from bentpipe.sweeps.journal import FAILURE, RESULT, Journal, Run
from bentpipe.sweeps.points import read_values
from bentpipe.sweeps.tables import raw_columns

VARY = (
    "link.forward.delay=10 ms,250 ms",
    "traffic.0.tcp.initial_window=2,10",
    "link.forward.bit_error_rate=1e-6,1e-5",
)


def quiet(_done: int, _total: int) -> None:
    pass


def begun(folder: sweeps.SweepFolder, *vary: str, seeds: int = 3, **more: Any) -> sweeps.SweepRun:
    """Begin a sweep of the small scenario."""
    base = Scenario.from_dict({**SMALL, "packet_events": False})
    points = sweeps.Points(sweeps.vary_option(text) for text in vary)
    return sweeps.SweepRun.begin(folder, sweeps.Definition.of(base, points, seeds, **more))


def swept(path: Path, *vary: str, threads: int = 1, **more: Any) -> Sweep:
    """Run a sweep of the small scenario into a folder."""
    with sweeps.SweepFolder(path) as folder, Threads(threads) as executor:
        begun(folder, *vary, **more).execute(executor, quiet)
    return Sweep.load(path)


def tree(path: Path) -> dict[str, bytes]:
    """Return the files of a folder, without the one in which equal runs differ."""
    files = (each for each in path.rglob("*") if each.is_file())
    return {
        str(each.relative_to(path)): each.read_bytes()
        for each in files
        if each.name != "execution.json"
    }


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep of three fields and three seeds: 24 runs of two flows."""
    path = tmp_path_factory.mktemp("grid") / "out"
    swept(path, *VARY)
    return path


# --- the data set -------------------------------------------------------------------------------


def test_the_rows_are_those_of_a_sweep_in_memory(grid: Path) -> None:
    found = Sweep.load(grid)
    vary = {path: read_values(text) for path, text in (each.split("=") for each in VARY)}
    expected = bentpipe.sweep(SMALL, vary=vary, seeds=3)
    assert_frame_equal(found.flows, expected.flows, check_exact=True)
    assert_frame_equal(found.directions, expected.directions, check_exact=True)
    assert (found.interrupted, found.failures.height, found.runs.height) == (False, 0, 24)
    assert found.runs["end_ns"].to_list() == [r.manifest["end_ns"] for r in expected.results]
    assert sorted(path.name for path in grid.iterdir()) == found.manifest["files"]


@pytest.mark.system
def test_other_programs_open_the_data_set(grid: Path) -> None:
    """Given the folder of flows, expect the same rows in polars, DuckDB and pandas."""
    expected = Sweep.load(grid).flows
    delay, window = "link.forward.delay", "traffic.0.tcp.initial_window"
    columns = ["run", delay, window, "link.forward.bit_error_rate", "seed", "goodput_bps"]
    rows = expected.select(columns).sort("run", "goodput_bps").rows()
    of_polars = pl.read_parquet(grid / "flows", hive_partitioning=True)
    assert of_polars.select(columns).sort("run", "goodput_bps").rows() == rows
    quoted = ", ".join(f'"{name}"' for name in columns)
    of_duckdb = duckdb.sql(
        f"select {quoted} from read_parquet('{grid}/flows/**/*.parquet', hive_partitioning=true) "
        "order by run, goodput_bps"
    )
    assert of_duckdb is not None
    assert of_duckdb.fetchall() == rows
    of_pandas = (
        import_module("pandas").read_parquet(grid / "flows").astype({delay: str, window: int})
    )
    of_pandas = of_pandas[columns].sort_values(["run", "goodput_bps"])
    assert list(of_pandas.itertuples(index=False, name=None)) == rows


def test_partitions_are_the_varied_values_but_fractions(grid: Path) -> None:
    files = sorted(str(path.relative_to(grid)) for path in (grid / "flows").rglob("*.parquet"))
    assert files == [
        f"flows/link.forward.delay={delay}/traffic.0.tcp.initial_window={window}/part-0.parquet"
        for delay in ("10%20ms", "250%20ms")
        for window in (10, 2)
    ]


def test_names_that_are_no_file_names_are_columns(tmp_path: Path) -> None:
    """Given texts with slashes and signs, and a long one, expect them back."""
    for values in (["a/b=c", "100 % é"], ["é" * 60, "y"]):
        found = swept(tmp_path / "out", f"traffic.0.name={json.dumps(values)[1:-1]}", seeds=1)
        assert found.flows.filter(flow=0)["traffic.0.name"].to_list() == values
        # Also where the cells are in one file, each has its own flows.
        assert found.flows.filter(flow=0)["name"].to_list() == values


def test_the_number_of_threads_changes_no_byte(grid: Path, tmp_path: Path) -> None:
    swept(tmp_path / "out", *VARY, threads=2)
    assert tree(tmp_path / "out") == tree(grid)


def test_kept_runs_are_results(tmp_path: Path) -> None:
    found = swept(tmp_path / "out", VARY[0], seeds=2, keep_runs=True)
    assert len(found.results) == 4
    alone = simulate(
        {**SMALL, "packet_events": False, "link": SMALL["link"]}
        | {"link": {**SMALL["link"], "forward": SMALL["link"]["forward"] | {"delay": "250 ms"}}},
        seed=2,
    )
    last = found.results[3]
    assert last.manifest == alone.manifest
    assert all(table.equals(alone.tables[name]) for name, table in last.tables.items())
    assert not (tmp_path / "out" / ".part").exists()
    # The data set is the same with and without them.
    without = swept(tmp_path / "without", VARY[0], seeds=2)
    assert without.flows.equals(found.flows)
    assert without.directions.equals(found.directions)


def test_the_means_of_cells_have_intervals(grid: Path) -> None:
    found = Sweep.load(grid)
    cells = found.cells
    assert cells.height == 8
    first = cells.row(0, named=True)
    runs = found.flows.filter(pl.col("run") < 3).group_by("run").agg(pl.col("goodput_bps").mean())
    values = runs["goodput_bps"]
    assert first["runs"] == 3
    assert first["goodput_bps"] == pytest.approx(values.mean())
    # t(0.975, 2) = 4.303 (table of Student's t).
    half = 4.3027 * float(values.std()) / 3**0.5  # type: ignore[arg-type]
    assert first["goodput_bps_half_width"] == pytest.approx(half, rel=1e-4)


# --- records and the journal --------------------------------------------------------------------


def test_a_frame_becomes_the_columns_that_the_simulator_returns(every_result: Result) -> None:
    """Given the tables of a run, with nulls, expect them back from the bytes of their columns."""
    for table in every_result.tables.values():
        assert decode_tables({"table": raw_columns(table)})["table"].equals(table)


def test_a_torn_journal_is_cut_at_any_byte(tmp_path: Path) -> None:
    """Given a journal cut after each byte, expect the records before the cut, and new ones."""
    path = tmp_path / "journal"
    with Journal(path) as journal:
        for seed in range(3):
            journal.append(Run(7, seed), RESULT, bytes([seed]) * (5 + seed))
    content = path.read_bytes()
    header = (len(content) - 5 - 6 - 7) // 3
    ends = [header + 5, 2 * header + 11, 3 * header + 18]
    for length in range(len(content) + 1):
        path.write_bytes(content[:length])
        whole = sum(end <= length for end in ends)
        with Journal(path) as journal:
            assert journal.runs(RESULT) == [Run(7, seed) for seed in range(whole)]
            journal.append(Run(8, 0), FAILURE, b"new")
        with Journal(path) as journal:
            assert len(journal) == whole + 1
            assert journal.read(Run(8, 0)) == b"new"
            assert [journal.read(run)[0] for run in journal.runs(RESULT)] == list(range(whole))


def test_damage_in_a_journal_loses_what_follows_only(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with Journal(path) as journal:
        for seed in range(3):
            journal.append(Run(0, seed), RESULT, b"x" * 100)
    for position in (0, 30, 130, 150):
        damaged = bytearray(path.read_bytes())
        damaged[position] ^= 0xFF
        (tmp_path / "damaged").write_bytes(damaged)
        with Journal(tmp_path / "damaged") as journal:
            assert len(journal) == position // 120
    # A length beyond the file.
    (tmp_path / "damaged").write_bytes(struct.pack("<I", 2**32 - 1) + bytes(100))
    with Journal(tmp_path / "damaged") as journal:
        assert len(journal) == 0


# --- Ctrl-C, failures and resuming --------------------------------------------------------------


class Failing(Executor):
    """An executor on one thread: some runs fail, and Ctrl-C comes before others."""

    def __init__(
        self, failures: dict[int, BentpipeError] | None = None, interrupt_at: int | None = None
    ) -> None:
        self.failures = failures or {}
        self.interrupt_at = interrupt_at
        self.done = 0

    def run(
        self, jobs: Iterable[tuple[int, Job]], reduce: Callable[[Outcome], Any]
    ) -> Generator[Finished[Any]]:
        for each in Threads(1).run(jobs, reduce):
            if each.index == self.interrupt_at:
                raise KeyboardInterrupt
            failure = self.failures.get(each.index)
            self.done += 1
            yield Finished(each.index, None, failure) if failure else each


def resumed(path: Path, executor: Failing | None = None) -> sweeps.SweepRun:
    with sweeps.SweepFolder(path, resume=True) as folder:
        running = sweeps.SweepRun(folder, folder.resume())
        running.execute(executor or Failing(), quiet)
    return running


def test_ctrl_c_keeps_what_has_ended_and_resume_does_the_rest(grid: Path, tmp_path: Path) -> None:
    """Given Ctrl-C after 10 and after 7 more of 24 runs, expect the undisturbed folder."""
    out = tmp_path / "out"
    with sweeps.SweepFolder(out) as folder:
        running = begun(folder, *VARY)
        running.execute(Failing(interrupt_at=10), quiet)
        assert running.interrupted
    partial = Sweep.load(out)
    assert (partial.interrupted, partial.runs.height) == (True, 10)
    assert partial.flows.equals(Sweep.load(grid).flows.head(20))
    assert resumed(out, Failing(interrupt_at=7)).interrupted
    assert Sweep.load(out).runs.height == 17
    rest = Failing()
    assert not resumed(out, rest).interrupted
    assert rest.done == 7
    assert tree(out) == tree(grid)


class Lost(Failing):
    """An executor whose scheduler is lost after four runs."""

    def run(
        self, jobs: Iterable[tuple[int, Job]], reduce: Callable[[Outcome], Any]
    ) -> Generator[Finished[Any]]:
        for each in super().run(jobs, reduce):
            if self.done > 4:
                raise MachineError("the scheduler does not answer")
            yield each


def test_a_lost_scheduler_keeps_what_has_ended(grid: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with sweeps.SweepFolder(out) as folder, pytest.raises(MachineError) as caught:
        begun(folder, *VARY).execute(Lost(), quiet)
    assert str(caught.value) == (
        "the scheduler does not answer; the 4 runs that have ended are kept, continue with "
        f"bentpipe sweep --resume {out}"
    )
    assert Sweep.load(out).runs.height == 4
    resumed(out)
    assert tree(out) == tree(grid)


def test_a_failed_run_is_recorded_and_the_others_go_on(tmp_path: Path) -> None:
    out = tmp_path / "out"
    failures = {1: InternalError("a packet was lost"), 4: MachineError("worker 3")}
    with sweeps.SweepFolder(out) as folder:
        begun(folder, VARY[0]).execute(Failing(failures), quiet)
    found = Sweep.load(out)
    assert found.runs.height == 4
    assert found.failures.select("link.forward.delay", "seed", "kind", "message").rows() == [
        ("10 ms", 2, "internal", "a packet was lost"),
        ("250 ms", 2, "lost", "worker 3"),
    ]
    # A worker may be lost for another reason than its run, which is therefore done again.
    again = Failing()
    resumed(out, again)
    assert again.done == 1
    found = Sweep.load(out)
    assert found.failures["kind"].to_list() == ["internal"]
    assert found.runs.height == 5
    assert not (out / ".part").exists()


def test_a_sweep_of_failed_runs_has_no_rows(tmp_path: Path) -> None:
    failure = InternalError("no")
    with sweeps.SweepFolder(tmp_path / "out") as folder:
        begun(folder, seeds=2).execute(Failing({0: failure, 1: failure}), quiet)
    found = Sweep.load(tmp_path / "out")
    assert (found.flows.height, found.failures.height, found.cells.height) == (0, 2, 0)


# --- narrow intervals ---------------------------------------------------------------------------


def test_seeds_are_added_until_the_interval_is_narrow(tmp_path: Path) -> None:
    """Given a cell without bit errors and one with many, expect seeds for the second only."""
    ber = "link.forward.bit_error_rate=0.0,1e-5"
    until = UntilCi(0.05, "goodput_bps", 200)
    found = swept(tmp_path / "out", ber, seeds=3, until_ci=until, threads=2)
    clear, noisy = found.cells.to_dicts()
    assert clear["runs"] == 3
    assert 3 < noisy["runs"] < 200
    assert noisy["goodput_bps_half_width"] <= 0.05 * noisy["goodput_bps"]
    seeds = found.flows.filter(pl.col("link.forward.bit_error_rate") > 0)["seed"].unique()
    assert seeds.sort().to_list() == list(range(1, noisy["runs"] + 1))
    # Ctrl-C changes neither the seeds nor the rows.
    out = tmp_path / "interrupted"
    with sweeps.SweepFolder(out) as folder:
        begun(folder, ber, seeds=3, until_ci=until).execute(Failing(interrupt_at=4), quiet)
    resumed(out, Failing(interrupt_at=2))
    resumed(out)
    assert tree(out) == tree(tmp_path / "out")


def test_a_cell_gets_no_more_than_the_most_seeds(tmp_path: Path) -> None:
    until = UntilCi(0.0001, "goodput_bps", 7)
    found = swept(tmp_path / "out", "link.forward.bit_error_rate=1e-5", seeds=3, until_ci=until)
    assert found.cells["runs"].to_list() == [7]


def test_a_cell_without_a_value_gets_no_more_seeds(tmp_path: Path) -> None:
    """Given TCP flows, which have no mean opinion score, expect the seeds of the start."""
    ber = "link.forward.bit_error_rate=1e-5"
    found = swept(tmp_path / "out", ber, seeds=3, until_ci=UntilCi(0.05, "mos", 7))
    assert found.cells["runs"].to_list() == [3]


# --- what is refused ----------------------------------------------------------------------------


@pytest.fixture
def unfinished(tmp_path: Path) -> Path:
    """A sweep that was interrupted after two of six runs."""
    with sweeps.SweepFolder(tmp_path / "out") as folder:
        begun(folder, VARY[0]).execute(Failing(interrupt_at=2), quiet)
    return tmp_path / "out"


def edited(path: Path, **changes: Any) -> None:
    file = path / ".part" / "work" / "sweep.json"
    about = json.loads(file.read_text())
    about["definition"] |= changes.pop("definition", {})
    file.write_text(json.dumps(about | changes))


def test_an_unfinished_sweep_is_not_overwritten(unfinished: Path, bentpipe: Program) -> None:
    before = tree(unfinished)
    called = bentpipe("sweep", "scenarios/geo-bulk.yaml", "--out", unfinished)
    assert called.code == 2
    assert f"has an unfinished sweep; continue it with --resume {unfinished}" in called.err
    assert tree(unfinished) == before


def test_another_version_is_refused(unfinished: Path) -> None:
    edited(unfinished, definition={"bentpipe_version": "0.0.9"})
    with pytest.raises(UsageError, match=r"bentpipe 0\.0\.9 began this sweep, and this is"):
        resumed(unfinished)


def test_other_tables_are_refused(unfinished: Path) -> None:
    edited(unfinished, tables_sha256="0")
    with pytest.raises(UsageError, match="whose results may differ"):
        resumed(unfinished)


def test_a_changed_file_is_refused(unfinished: Path, tmp_path: Path) -> None:
    file = tmp_path / "scenario.yaml"
    file.write_text("before")
    edited(unfinished, sources=[[str(file), sweeps.file_hash(file)]])
    file.write_text("after")
    with pytest.raises(UsageError, match=r"scenario\.yaml: has changed since the sweep"):
        resumed(unfinished)
    file.write_text("before")
    assert not resumed(unfinished).interrupted


def test_other_plans_are_refused(unfinished: Path) -> None:
    edited(unfinished, definition={"plan_sha256": "0"})
    with pytest.raises(UsageError, match="not resolved into the same plans"):
        resumed(unfinished)


def test_two_sweeps_into_one_folder_are_refused(tmp_path: Path, bentpipe: Program) -> None:
    out = tmp_path / "out"
    with sweeps.SweepFolder(out) as folder:
        begun(folder, VARY[0])
        for option in ("--out", "--resume"):
            called = bentpipe("sweep", *(["x.yaml"] if option == "--out" else []), option, out)
            assert called.code == 2
            assert "another run writes its result to this folder" in called.err


@pytest.mark.parametrize("kind", ["missing", "run", "other"])
def test_a_folder_without_a_sweep_is_not_resumed(kind: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    if kind == "run":
        simulate(SMALL).save(out)
    elif kind == "other":
        out.mkdir()
        (out / "file").touch()
    with pytest.raises(UsageError, match=r"no such folder|holds the result of a run|other files"):
        resumed(out)
    if kind == "run":
        assert Result.load(out).state == "completed"


def test_the_result_of_a_run_is_no_sweep(tmp_path: Path, grid: Path) -> None:
    simulate(SMALL).save(tmp_path / "run")
    with pytest.raises(UsageError, match="holds the result of a run, not of a sweep"):
        Sweep.load(tmp_path / "run")
    with pytest.raises(UsageError, match="holds the result of a sweep"):
        Result.load(grid)
    shutil.copytree(grid, tmp_path / "damaged")
    shutil.rmtree(tmp_path / "damaged" / "flows")
    with pytest.raises(UsageError, match="the result is damaged"):
        Sweep.load(tmp_path / "damaged")
