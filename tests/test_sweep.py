"""Runs, one and many: order, threads, progress, Ctrl-C."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from conftest import SMALL

from bentpipe import Plan, _core, compare, simulate, sweep
from bentpipe.errors import InternalError, RunsInterrupted, ScenarioError, UsageError
from bentpipe.simulation import Job, run_many
from bentpipe.simulation.executor import Threads, run_jobs
from bentpipe.simulation.run import run_simulation


def jobs(count: int) -> list[Job]:
    """Return jobs of very different lengths, the longest first."""
    plans = []
    for i in range(count):
        scenario = copy.deepcopy(SMALL)
        scenario["traffic"][0]["size"] = f"{(count - i) * 100} kB"
        plans.append(Job(plan=Plan.resolve(scenario), seed=i))
    return plans


def test_outcomes_come_in_the_order_of_the_jobs_whatever_the_threads() -> None:
    work = jobs(12)
    alone = run_jobs(work, Threads(1))
    together = run_jobs(work, Threads(4))
    assert [outcome.index for outcome in alone] == list(range(12))
    assert [outcome.job.seed for outcome in together] == list(range(12))
    # The raw bytes of every column, not only their meaning.
    assert [outcome.raw for outcome in alone] == [outcome.raw for outcome in together]
    delivered = [int(outcome.column("flows", "delivered_bytes")[0]) for outcome in together]
    assert delivered == [(12 - i) * 100_000 for i in range(12)]


def test_columns_are_arrays_and_nulls_are_nan() -> None:
    (outcome,) = run_jobs(jobs(1))
    assert outcome.column("flows", "delivered_bytes").dtype == np.uint64
    # The first flow is TCP and was established; the second is UDP and never is.
    bulk, call = outcome.column("flows", "established_ns")
    # The handshake: 40 ms of propagation, SYN and SYN-ACK of some 60 bytes at 8 and 1 Mbit/s, and
    # at most 1.5 ms behind a datagram of 188 bytes.
    assert 40e6 < bulk < 43e6
    assert np.isnan(call)
    assert outcome.tables()["flows"]["established_ns"].null_count() == 1


def test_progress_counts_every_job_once() -> None:
    seen: list[tuple[int, int]] = []
    run_jobs(jobs(5), Threads(2), progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 5), (2, 5), (3, 5), (4, 5), (5, 5)]


def interrupt_after(runs: int) -> Callable[[int, int], None]:
    """Return a progress callback that presses Ctrl-C."""

    def interrupt(done: int, _total: int) -> None:
        if done == runs:
            raise KeyboardInterrupt

    return interrupt


def test_ctrl_c_ends_the_script_and_keeps_what_is_complete() -> None:
    """Given fifty runs and Ctrl-C after the third, expect the first few, in the exception."""
    with pytest.raises(KeyboardInterrupt) as caught:
        run_many(jobs(50), threads=1, progress=interrupt_after(3))
    assert isinstance(caught.value, RunsInterrupted)
    results = caught.value.results
    assert 3 <= len(results) < 50
    assert str(caught.value) == f"{len(results)} of 50 runs are complete"
    assert [result.manifest["seed"] for result in results] == list(range(len(results)))
    assert {result.state for result in results} == {"completed"}


def test_results_of_plans_are_those_of_simulate() -> None:
    """Given plans without their scenarios, expect tables, names and goodput of a run alone."""
    small, again = run_many([Job(plan=Plan.resolve(SMALL), seed=1)] * 2)
    alone = simulate(SMALL)
    assert small.flows.equals(alone.flows)
    assert again.flows["name"].to_list() == ["bulk-1", "call"]
    assert small.goodput_bps.tolist() == alone.goodput_bps.tolist()
    assert repr(small).startswith("<Result 'small': 2 flows, completed at ")
    assert small.manifest == alone.manifest


@pytest.mark.parametrize("seeds", [10**10, 10**20, range(10**10), itertools.count(1)])
def test_more_seeds_than_fit_into_memory_are_refused(seeds: Any) -> None:
    """Given thousands of millions of seeds, expect one message without a list of them."""
    with pytest.raises(UsageError, match="seeds: more than 1,000,000; ask"):
        sweep(SMALL, seeds=seeds)
    if isinstance(seeds, int):
        with pytest.raises(UsageError, match="seeds: more than 1,000,000; ask"):
            compare(SMALL, SMALL, seeds=seeds)


def test_no_jobs_are_no_outcomes() -> None:
    assert run_jobs([]) == []


def broken(plan: Plan) -> Plan:
    """Return the plan without its directions."""
    data = {name: value for name, value in plan.data.items() if name != "directions"}
    return replace(plan, data=data)


def test_a_plan_that_is_not_valid_stops_the_sweep() -> None:
    work = jobs(6)
    work[2] = Job(plan=broken(work[2].plan), seed=1)
    with pytest.raises(ScenarioError, match="directions"):
        run_jobs(work, Threads(2))
    with pytest.raises(ScenarioError, match="directions"):
        run_simulation(work[2].plan)


def test_a_violated_invariant_names_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Given an extension that reports a violated invariant, expect an error with the seed."""

    def fail(*_arguments: object) -> None:
        raise _core.RunError("forward: 3 packets too many")

    monkeypatch.setattr(_core, "run", fail)
    with pytest.raises(InternalError, match=r"seed 4 .* 3 packets too many") as failure:
        run_simulation(Plan.resolve(SMALL), seed=4)
    assert failure.value.exit_code == 1


def long_plan() -> Plan:
    """Return a run of minutes of computing: a million packets a second, for ten minutes."""
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
    return Plan.resolve(scenario)


def test_ctrl_c_stops_a_run_and_keeps_what_it_recorded() -> None:
    fractions: list[float] = []

    def interrupt(fraction: float) -> None:
        fractions.append(fraction)
        if fraction > 0:
            raise KeyboardInterrupt

    result = run_simulation(long_plan(), progress=interrupt)
    assert result.interrupted
    assert fractions == sorted(fractions)
    assert 0 < fractions[-1] < 0.5
    assert 0 < result.manifest["end_ns"] < 300e9
    assert result.tables["direction_samples"].height > 0


def test_an_error_of_the_caller_stops_the_run() -> None:
    """Given an error of the progress callback, expect that error and no run that continues."""

    def fail(_fraction: float) -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        run_simulation(long_plan(), progress=fail)
