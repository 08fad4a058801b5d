"""Runs in virtual time: one of a scenario, and many of plans."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bentpipe.errors import MemoryLimitError, RunsInterrupted, UsageError
from bentpipe.plan.plan import Plan
from bentpipe.results.files import capture_file, utc_now
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
    plan = Plan.resolve(scenario)
    result = run_simulation(
        plan,
        seed=seed,
        capture=None if capture is None else Path(capture),
        memory_limit=memory_limit,
    )
    if result.interrupted:
        raise KeyboardInterrupt
    if result.memory_limit_reached:
        raise MemoryLimitError(memory_message(plan, result), result=result)
    return result


def run_simulation(
    plan: Plan,
    *,
    seed: int | None = None,
    progress: Callable[[float], None] | None = None,
    capture: Path | None = None,
    memory_limit: int | None = None,
) -> Result:
    """Simulate as `simulate` does, but return what was recorded after Ctrl-C or at the limit."""
    if memory_limit is not None and memory_limit < 1:
        raise UsageError(f"memory_limit: read {memory_limit}; must be at least 1 byte")
    check_seed(seed)
    job = Job(plan=plan, seed=plan.scenario.seed if seed is None else seed)
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
        MemoryLimitError: a run reached its part and ended early; all results are in the error.
        RunsInterrupted: Ctrl-C; the results of the complete runs are in the exception.
        BentpipeError: another error of `run_jobs`.
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


def memory_message(plan: Plan, result: Result) -> str:
    """Return why a run of a plan ended at its memory limit, and how to change the scenario."""
    return f"the run {result.stop_reason}. {_memory.advice(plan.text)}"


def memory_warning(plan: Plan, limit_bytes: int | None) -> str | None:
    """Return a warning if a run is expected to reach its memory limit."""
    return _memory.warning(plan.text, _memory.limit_for(1, limit_bytes))
