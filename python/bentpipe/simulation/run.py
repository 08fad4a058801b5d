"""Runs in virtual time: one of a scenario, and many of plans."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bentpipe import _core
from bentpipe.errors import MemoryLimitError, RunsInterrupted, ScenarioWarning, UsageError
from bentpipe.plan.entries import traffic_entries
from bentpipe.plan.resolver import from_dict, load, resolve
from bentpipe.plan.warnings import warnings_of
from bentpipe.results.capture import capture_file
from bentpipe.results.execution import utc_now
from bentpipe.results.result import Result
from bentpipe.scenario.schema import Scenario
from bentpipe.scenario.seeds import check_seed
from bentpipe.simulation import memory as _memory
from bentpipe.simulation.many import Job, Outcome, run_jobs, run_one


def simulate(
    scenario: Scenario | str | Path | Mapping[str, Any],
    *,
    seed: int | None = None,
    capture: str | Path | None = None,
    memory_limit: int | None = None,
) -> Result:
    """Simulate a scenario, packet by packet.

    ``scenario`` is a `Scenario`, the path of a scenario file, or a mapping. ``seed`` (0 to 2^64-1)
    replaces the scenario's: the same plan, seed and version give identical tables. ``capture``
    names a file to capture packets into (pcapng, for Wireshark); an existing one is replaced.
    ``memory_limit`` is in bytes; by default it is half of the available memory. Ctrl-C stops the
    run and raises KeyboardInterrupt.

    Raises:
        ScenarioError: the scenario is wrong; nothing was run.
        UsageError: the seed is out of range, or hosts and links alone take more than the memory
            limit, and nothing was run; or the capture cannot be written.
        MemoryLimitError: the memory limit was reached; its ``result`` is what was recorded.
        InternalError: the run violated an invariant of the simulator.
    """
    result = simulate_partly(
        as_scenario(scenario),
        seed=seed,
        capture=None if capture is None else Path(capture),
        memory_limit=memory_limit,
    )
    if result.interrupted:
        raise KeyboardInterrupt
    if result.memory_limit_reached:
        raise MemoryLimitError(memory_message(result), result=result)
    return result


def simulate_partly(
    scenario: Scenario,
    *,
    seed: int | None = None,
    progress: Callable[[float], None] | None = None,
    capture: Path | None = None,
    memory_limit: int | None = None,
    warnings: Sequence[ScenarioWarning] | None = None,
) -> Result:
    """Simulate as `simulate` does, but return what was recorded after Ctrl-C or at the limit.

    ``warnings`` are those that the result has; by default those about the scenario.
    """
    if memory_limit is not None and memory_limit < 1:
        raise UsageError(f"memory_limit: read {memory_limit}; must be at least 1 byte")
    check_seed(seed)
    plan = resolve(scenario)
    job = Job(
        plan=plan,
        seed=scenario.seed if seed is None else seed,
        scenario=scenario.to_dict(),
        entries=traffic_entries(scenario),
        warnings=warnings_of(scenario, plan) if warnings is None else warnings,
    )
    started = utc_now()
    with capture_file(capture) as file:
        outcome = run_one(job, progress=progress, capture=file, memory_limit=memory_limit)
    return outcome.result(started=started)


def run_many(
    jobs: Sequence[Job],
    *,
    threads: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    memory_limit: int | None = None,
) -> list[Result]:
    """Simulate plans on ``threads`` threads (None: one a core); results are in the order of jobs.

    ``progress(done, total)`` is called from this thread. Concurrent runs share ``memory_limit``
    bytes (None: half of the available memory) equally.

    Raises:
        ScenarioError: a plan is not valid.
        UsageError: the hosts and links of a plan alone take more than its part of the memory limit.
        MemoryLimitError: a run reached its part and ended early; all results are in the error.
        InternalError: a run violated an invariant of the simulator; the message has its seed.
        RunsInterrupted: Ctrl-C; the results of the complete runs are in the exception, which is a
            KeyboardInterrupt.
    """
    started = utc_now()

    def results(outcomes: Iterable[Outcome]) -> list[Result]:
        return [outcome.result(started=started) for outcome in outcomes]

    try:
        return results(
            run_jobs(jobs, threads=threads, progress=progress, memory_limit=memory_limit)
        )
    except RunsInterrupted as ended:
        raise RunsInterrupted(str(ended), results=results(ended.outcomes)) from None
    except MemoryLimitError as error:
        raise MemoryLimitError(str(error), results=results(error.outcomes)) from None


def as_scenario(scenario: Scenario | str | Path | Mapping[str, Any]) -> Scenario:
    """Return a scenario from what `simulate` takes.

    Raises:
        ScenarioError: naming the field, what was read and what is allowed.
    """
    if isinstance(scenario, str | Path):
        return load(scenario)
    return scenario if isinstance(scenario, Scenario) else from_dict(scenario)


def memory_message(result: Result) -> str:
    """Return why a run ended at its memory limit, and how to change the scenario."""
    estimate = _core.memory_estimate(json.dumps(result.plan))
    return f"the run {result.stop_reason}. {_memory.advice(estimate)}"


def memory_warning(scenario: Scenario, limit_bytes: int | None) -> str | None:
    """Return a warning if a run is expected to reach its memory limit."""
    estimate = _core.memory_estimate(json.dumps(resolve(scenario)))
    return _memory.warning(estimate, _memory.limit_for(1, limit_bytes))
