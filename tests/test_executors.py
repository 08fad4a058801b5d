"""What runs the jobs of a sweep in this process: threads, and what all executors share."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import takewhile
from typing import Any

import pytest
from conftest import SMALL
from dask_processes import delivered, disk_full, raw

from bentpipe import Plan, _core
from bentpipe.errors import (
    InternalError,
    MachineError,
    MemoryLimitError,
    RunSizeError,
    ScenarioError,
    UsageError,
)
from bentpipe.simulation import Job
from bentpipe.simulation.executor import Finished, Threads, attempt_all
from bentpipe.simulation.run import Batch, BatchSize, Outcome, by_plan, pack
from bentpipe.sweeps import cluster
from bentpipe.sweeps.tables import unpack

PLAN = Plan.resolve({**SMALL, "packet_events": False})


def jobs(count: int) -> Iterator[tuple[int, Job]]:
    """Yield jobs of one plan with the seeds from 0 on; their numbers are from 100 on."""
    for seed in range(count):
        yield 100 + seed, Job(plan=PLAN, seed=seed)


def in_order(finished: Iterator[Finished[Any]]) -> list[Finished[Any]]:
    return sorted(finished, key=lambda each: each.index)


def test_the_number_of_threads_changes_no_value() -> None:
    alone, together = (in_order(Threads(threads).run(jobs(9), raw)) for threads in (1, 4))
    assert [each.index for each in alone] == list(range(100, 109))
    assert all(each.error is None for each in alone)
    # The seeds differ in which packets have bit errors.
    assert alone[0] != alone[1]
    assert alone == together


def test_jobs_are_drawn_when_they_can_start() -> None:
    """Given two threads and endless jobs, expect four to be drawn before the first is done."""
    drawn: list[int] = []

    def endless() -> Iterator[tuple[int, Job]]:
        for index, job in jobs(10**9):
            drawn.append(index)
            yield index, job

    with closing(Threads(2).run(endless(), delivered)) as runs:
        next(runs)
        assert len(drawn) == 4
        # The next batch has two runs, if they are short.
        next(runs)
        assert len(drawn) in {5, 6}


def test_a_plan_is_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Given a plan and a changed one in turns, expect that only the changed one is encoded."""
    plans = [PLAN, PLAN.with_values(stop_ns=PLAN.data["stop_ns"] // 2)]
    encoded: list[object] = []
    real = json.dumps

    def dumps(plan: object) -> str:
        encoded.append(plan)
        return real(plan)

    monkeypatch.setattr(json, "dumps", dumps)
    work = ((seed, Job(plan=plans[seed % 2], seed=seed)) for seed in range(20))
    assert len(list(Threads(1).run(work, delivered))) == 20
    assert encoded == [plans[1].data]


def without_directions(plan: Plan) -> Plan:
    data = {name: value for name, value in plan.data.items() if name != "directions"}
    return replace(plan, data=data)


def test_a_failed_run_does_not_end_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Given a plan that is not valid and a run that violates an invariant, expect the others."""
    real = _core.run

    def run(plan: str, seed: int, *rest: Any) -> Any:
        if seed == 4:
            raise _core.RunError("forward: 3 packets too many")
        return real(plan, seed, *rest)

    monkeypatch.setattr(_core, "run", run)
    work = dict(jobs(6))
    work[102] = Job(plan=without_directions(PLAN), seed=2)
    finished = in_order(Threads(2).run(iter(work.items()), delivered))
    failed = {each.index: each.error for each in finished if each.error is not None}
    assert {index: type(error) for index, error in failed.items()} == {
        102: ScenarioError,
        104: InternalError,
    }
    assert "directions" in str(failed[102])
    assert "seed 4" in str(failed[104])
    assert [each.value for each in finished if each.error is None] == [1e6] * 4


def test_records_are_the_same_one_by_one_and_in_batches() -> None:
    """Given runs of two plans, expect the extension's records to be those of single outcomes."""
    other = PLAN.with_values(stop_ns=PLAN.data["stop_ns"] // 2)
    work = [(index, Job(plan=PLAN if index % 5 else other, seed=index)) for index in range(40)]
    one_by_one = in_order(Threads(1).run(work, partial(pack)))
    for threads in (1, 3):
        assert in_order(Threads(threads).run(work, pack)) == one_by_one
    # All but the first few were in batches.
    batches = by_plan(work[:10])
    assert [runs.indices for runs in batches] == [(0,), (1, 2, 3, 4), (5,), (6, 7, 8, 9)]


def test_records_have_the_tables_of_their_runs() -> None:
    """Given the records of two runs, expect their tables one after the other."""
    outcomes = [
        Batch(runs=(), memory_limit_bytes=2**30, sharing=1).run(index, job)
        for index, job in jobs(2)
    ]
    tables = unpack([pack(outcome) for outcome in outcomes])
    assert tables.pop("runs")["end_ns"].to_list() == [each.raw["end_ns"] for each in outcomes]
    # Flows, legs, exchanges, pages, capacity, directions, classes, processors, statistics of
    # functions.
    assert len(tables) == 9
    for name, table in tables.items():
        for run, outcome in enumerate(outcomes):
            own = table.filter(run=run).drop("run")
            assert own.equals(outcome.tables()[name]), name
    assert tables["flows"].height == 2 * len(PLAN.data["flows"])


def test_columns_without_validity_are_joined_with_nullable_ones() -> None:
    """Given a record with nulls between two without, expect all other values to be valid."""
    (outcome,) = Threads(1).run(jobs(1), raw)
    assert outcome.value is not None
    flows = outcome.value["tables"]["flows"]
    (name, *_) = (name for name, (dtype, _, valid) in flows.items() if valid and dtype == "u64")
    dtype, data, valid = flows[name]
    assert valid is not None
    records = []
    for present in (None, bytes(len(valid)), None):
        tables = {**outcome.value["tables"], "flows": {**flows, name: (dtype, data, present)}}
        raw_run: Any = {**outcome.value, "tables": tables}
        job = Job(plan=PLAN, seed=0)
        records.append(pack(Outcome(job=job, index=0, raw=raw_run, memory_limit_bytes=0)))
    is_null = unpack(records)["flows"][name].is_null().to_list()
    assert is_null == [run == 1 for run in range(3) for _ in valid]


def test_a_damaged_record_is_refused() -> None:
    (finished,) = Threads(1).run(jobs(1), pack)
    assert finished.value is not None
    for damaged in (b"", finished.value[:-1], finished.value + b"\0"):
        with pytest.raises(ValueError, match="damaged"):
            unpack([damaged])
    with pytest.raises(ValueError, match="damaged"):
        _core.pack(True, 0, 0, [(b"", None)])


def test_failed_runs_of_a_batch_do_not_end_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Given a batch with a plan that is not valid and runs that fail, expect the others."""
    real, real_packed = _core.run, _core.run_packed
    failing = {4, 5, 8}

    def run(plan: str, seed: int, *rest: Any) -> Any:
        if seed in failing:
            raise _core.RunError("forward: 3 packets too many")
        return real(plan, seed, *rest)

    def run_packed(plan: str, seeds: list[int], *rest: Any) -> list[bytes]:
        ended = list(takewhile(lambda seed: seed not in failing, seeds))
        return real_packed(plan, ended, *rest)

    work = dict(jobs(9))
    work[102] = Job(plan=without_directions(PLAN), seed=2)
    expected = in_order(Threads(1).run(iter(work.items()), pack))
    monkeypatch.setattr(_core, "run", run)
    monkeypatch.setattr(_core, "run_packed", run_packed)
    batch = Batch(
        runs=by_plan(work.items()),
        memory_limit_bytes=2**30,
        sharing=1,
    )
    finished = list(attempt_all(batch, pack))
    wrong, none = InternalError, type(None)
    assert [type(each.error) for each in finished] == [
        *(none, none, ScenarioError, none, wrong, wrong, none, none, wrong)
    ]
    for each, wanted in zip(finished, expected, strict=True):
        assert each == wanted or each.error is not None
    # A plan of which no run fits fails run by run, too.
    small = replace(batch, memory_limit_bytes=1000)
    monkeypatch.undo()
    kinds = [type(each.error) for each in attempt_all(small, pack)]
    assert kinds == [RunSizeError, RunSizeError, ScenarioError, *[RunSizeError] * 6]


def test_a_cancelled_batch_ends_at_the_run_under_way() -> None:
    batch = Batch(
        runs=by_plan(jobs(5)),
        memory_limit_bytes=2**30,
        sharing=1,
    )
    batch.monitor.cancel()
    for reduce in (pack, partial(pack)):
        (each,) = attempt_all(batch, reduce)
        assert isinstance(each.error, MachineError)
        assert str(each.error) == "the run was cancelled"


def test_batches_have_as_many_runs_as_fit_their_time() -> None:
    """Given runs of 1 ms and batches of 20 ms, expect sizes that double up to 20, then one of 1."""
    size = BatchSize(0.02, 1000)
    sizes = []
    for _ in range(6):
        sizes.append(size.runs)
        size.adapt(size.runs, 1e-3 * size.runs)
    assert sizes == [1, 2, 4, 8, 16, 20]
    size.adapt(20, 2.0)
    assert size.runs == 1
    size.runs = 800
    size.adapt(800, 1e-6)
    assert size.runs == 1000


def test_threads_share_the_memory_limit() -> None:
    """Given a limit that one run needs, expect two at once to fail, for the memory they share."""
    (alone,) = Threads(1).run(jobs(1), raw)
    assert alone.value is not None
    needed = alone.value["memory_bytes_max"]
    limit = int(1.5 * needed)
    assert [each.error for each in Threads(1, memory_limit=limit).run(jobs(2), raw)] == [None] * 2
    for each in Threads(2, memory_limit=limit).run(jobs(2), raw):
        assert isinstance(each.error, MemoryLimitError)
        assert "its part of what 2 runs share" in str(each.error)
    (each,) = Threads(1, memory_limit=1000).run(jobs(1), raw)
    assert isinstance(each.error, RunSizeError)
    assert each.value is None
    assert "hosts and links" in str(each.error)


def test_closing_the_iterator_stops_the_runs() -> None:
    """Given runs that take minutes, expect `close` to cancel those under way."""
    scenario = {
        "link": {"preset": "leo", "forward": {"rate": "10 Gbit/s"}},
        "traffic": [
            {
                "kind": "constant_rate",
                "direction": "forward",
                "rate": "1 Gbit/s",
                "payload": "125 B",
            }
        ],
        "duration": "600 s",
    }
    work = [
        Job(plan=PLAN, seed=1),
        *[Job(plan=Plan.resolve(scenario), seed=1)] * 3,
    ]
    runs = Threads(2).run(enumerate(work), delivered)
    assert next(runs).index == 0
    runs.close()


def test_an_error_of_reduce_is_raised() -> None:
    with pytest.raises(OSError, match="No space left"):
        list(Threads(2).run(jobs(5), disk_full))


@pytest.mark.system
def test_a_cluster_without_its_extra_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(name=name)

    monkeypatch.setattr(cluster, "import_module", missing)
    with pytest.raises(UsageError, match=r"pip install 'bentpipe\[cluster\]'"):
        cluster.LocalCluster(2)
