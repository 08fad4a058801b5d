"""All outcomes of a list of jobs, whatever runs them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing

from bentpipe import _core
from bentpipe.errors import RunsInterrupted
from bentpipe.simulation.many import Job, Outcome
from bentpipe.sweeps.executor import Executor, error_of


def run_all(
    executor: Executor,
    jobs: Sequence[Job],
    *,
    progress: Callable[[int, int], None] | None = None,
) -> list[Outcome]:
    """Run jobs as `bentpipe.simulation.many.run_jobs` does, by an executor.

    Raises:
        UsageError: a plan is not valid.
        InvalidRunError: a run reached its memory limit.
        InternalError: a run violated an invariant of the simulator.
        MachineError: the executor lost what it runs on.
        RunsInterrupted: Ctrl-C; the outcomes of the complete runs are in the exception.
    """
    outcomes: dict[int, Outcome] = {}
    try:
        with closing(executor.run(enumerate(jobs), _without_job)) as runs:
            for each in runs:
                if each.error is not None:
                    raise error_of(each.error)
                assert each.value is not None, "the run did not fail"
                raw, limit = each.value
                outcomes[each.index] = Outcome(
                    job=jobs[each.index], index=each.index, raw=raw, memory_limit_bytes=limit
                )
                if progress is not None:
                    progress(len(outcomes), len(jobs))
    except KeyboardInterrupt:
        complete = [outcomes[index] for index in sorted(outcomes)]
        raise RunsInterrupted(
            f"{len(complete):,} of {len(jobs):,} runs are complete", outcomes=complete
        ) from None
    return [outcomes[index] for index in sorted(outcomes)]


def _without_job(outcome: Outcome) -> tuple[_core.RawRun, int]:
    """Return what a worker must send: the plan is known where the job came from."""
    return outcome.raw, outcome.memory_limit_bytes
