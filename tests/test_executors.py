"""What runs the jobs of a sweep in this process: threads, and what all executors share."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

import pytest
from conftest import SMALL
from dask_processes import delivered, disk_full, raw

from bentpipe import Job, UsageError, _core, from_dict, resolve
from bentpipe.simulation import many
from bentpipe.sweeps import Finished, RunFailure, Threads, cluster

PLAN = resolve(from_dict({**SMALL, "packet_events": False}))


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
        next(runs)
        assert len(drawn) == 5


def test_a_plan_is_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Given two plans in turns, expect each to be encoded once for all of its runs."""
    encoded: list[object] = []
    real = json.dumps

    def dumps(plan: object) -> str:
        encoded.append(plan)
        return real(plan)

    monkeypatch.setattr(json, "dumps", dumps)
    plans = [PLAN, {**PLAN}]
    work = ((seed, Job(plan=plans[seed % 2], seed=seed)) for seed in range(20))
    assert len(list(Threads(2).run(work, delivered))) == 20
    assert encoded == plans


def test_encoded_plans_are_bounded() -> None:
    """Given more plans than the encoder keeps, expect the text of each, also of the first again."""
    encoder = many.PlanEncoder()
    plans = [{"number": number} for number in range(200)]
    texts = [encoder.encode(plan) for plan in (*plans, plans[0])]
    assert texts == [json.dumps(plan) for plan in (*plans, plans[0])]


def without_directions(plan: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in plan.items() if name != "directions"}


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
    assert {index: error.kind for index, error in failed.items()} == {
        102: "scenario",
        104: "internal",
    }
    assert "directions" in failed[102].message
    assert "seed 4" in failed[104].message
    assert [each.value for each in finished if each.error is None] == [1e6] * 4


def test_threads_share_the_memory_limit() -> None:
    """Given a limit that one run needs, expect two at once to fail, for the memory they share."""
    (alone,) = Threads(1).run(jobs(1), raw)
    assert alone.value is not None
    needed = alone.value["memory_bytes_max"]
    limit = int(1.5 * needed)
    assert [each.error for each in Threads(1, memory_limit=limit).run(jobs(2), raw)] == [None] * 2
    for each in Threads(2, memory_limit=limit).run(jobs(2), raw):
        assert isinstance(each.error, RunFailure)
        assert each.error.kind == "memory"
        assert "its part of what 2 runs share" in each.error.message
    (each,) = Threads(1, memory_limit=1000).run(jobs(1), raw)
    assert each.error is not None
    assert (each.error.kind, each.value) == ("size", None)
    assert "hosts and links" in each.error.message


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
    work = [Job(plan=PLAN, seed=1), *[Job(plan=resolve(from_dict(scenario)), seed=1)] * 3]
    runs = Threads(2).run(enumerate(work), delivered)
    assert next(runs).index == 0
    runs.close()


def test_an_error_of_reduce_is_raised() -> None:
    with pytest.raises(OSError, match="No space left"):
        list(Threads(2).run(jobs(5), disk_full))


def test_a_cluster_without_its_extra_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(name=name)

    monkeypatch.setattr(cluster, "import_module", missing)
    with pytest.raises(UsageError, match=r"pip install 'bentpipe\[cluster\]'"):
        cluster.LocalCluster(2)
