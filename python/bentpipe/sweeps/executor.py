"""What runs the jobs of a sweep: threads, a Dask cluster, or labs.

All executors give the same values for the same jobs. Only the order in which they finish differs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Generic, Literal, Self, TypeVar

from bentpipe import _core
from bentpipe.errors import (
    BentpipeError,
    InternalError,
    InvalidRunError,
    MachineError,
    RunsInterrupted,
    ScenarioError,
    UsageError,
)
from bentpipe.simulation.run import Batch, Job, Outcome, run_as_completed
from bentpipe.sweeps.frames import pack

T = TypeVar("T")

FailureKind = Literal["internal", "memory", "size", "scenario", "lost", "invalid"]


@dataclass(frozen=True)
class RunFailure:
    """Why a run has no value.

    ``kind`` is ``internal`` (an invariant of the simulator was violated), ``memory`` (the run
    reached its memory limit), ``size`` (its hosts and links alone need more), ``scenario`` (its
    plan is not valid), ``lost`` (the workers that executed it died) or ``invalid`` (it was late in
    every attempt, in real time).
    """

    kind: FailureKind
    message: str


@dataclass(frozen=True, slots=True)
class Finished(Generic[T]):
    """One finished job: the value of ``reduce``, or the error of the run.

    ``index`` is the number that the caller gave the job. Exactly one of ``value`` and ``error`` is
    meaningful: ``value`` if ``error`` is None.
    """

    index: int
    value: T | None
    error: RunFailure | None = None


_CANCELLED: Final = RunFailure("lost", "the run was cancelled")
_ERRORS: Final[Mapping[str, type[BentpipeError]]] = {
    "internal": InternalError,
    "memory": InvalidRunError,
    "size": UsageError,
    "scenario": UsageError,
    "lost": MachineError,
    "invalid": InvalidRunError,
}


def error_of(failure: RunFailure) -> BentpipeError:
    """Return the error of a failed run, for callers that cannot go on without it."""
    return _ERRORS[failure.kind](failure.message)


def attempt_all(batch: Batch, reduce: Callable[[Outcome], T]) -> Iterator[Finished[T]]:
    """Run a batch in this thread and reduce its outcomes, up to the run that is cancelled.

    A failure of a run is not an exception. If `pack` is all that is wanted of many runs, the
    extension does them without the interpreter. It ends at a run that fails, which is then repeated
    for its error.
    """
    is_packed = reduce is pack and sum(len(runs.seeds) for runs in batch.runs) > 1
    for runs in batch.runs:
        done = 0
        while done < len(runs.seeds):
            if is_packed:
                for record in _records(batch, runs.job.plan.text, runs.seeds[done:]):
                    yield Finished(runs.indices[done], record)  # type: ignore[arg-type]
                    done += 1
            if done < len(runs.seeds):
                job = replace(runs.job, seed=runs.seeds[done])
                finished = _attempt(batch, runs.indices[done], job, reduce)
                yield finished
                done += 1
                if finished.error is _CANCELLED:
                    return


def _records(batch: Batch, plan_json: str, seeds: Sequence[int]) -> list[bytes]:
    """Return the records of runs up to the first one that has none."""
    try:
        return _core.run_packed(plan_json, seeds, batch.monitor, batch.memory_limit_bytes)
    except _core.PlanError:
        return []


def _attempt(batch: Batch, index: int, job: Job, reduce: Callable[[Outcome], T]) -> Finished[T]:
    try:
        outcome = batch.run(index, job)
    except (ScenarioError, UsageError, InternalError) as error:
        kind: FailureKind = "internal"
        if not isinstance(error, InternalError):
            kind = "scenario" if isinstance(error, ScenarioError) else "size"
        return Finished(index, None, RunFailure(kind, str(error)))
    if outcome.interrupted:
        return Finished(index, None, _CANCELLED)
    if outcome.memory_limit_reached:
        return Finished(index, None, RunFailure("memory", batch.memory_message(outcome)))
    return Finished(index, reduce(outcome))


class Executor(ABC):
    """Runs jobs and yields them as they finish.

    It is a context manager: leaving the block calls `close`.
    """

    @abstractmethod
    def run(
        self, jobs: Iterable[tuple[int, Job]], reduce: Callable[[Outcome], T]
    ) -> Generator[Finished[T]]:
        """Yield jobs as they finish; a failed run does not end the others.

        ``jobs`` are drawn lazily, from the thread of the caller: the number of jobs under way is
        bounded. ``reduce`` is executed where the run is, and only its value comes back; it and its
        value must be picklable. It takes complete runs only. `Outcome.result` is the result of the
        run, simulated or emulated.
        Closing the iterator, or an exception in it such as Ctrl-C, cancels the runs under way.

        Raises:
            MachineError: the executor lost what it runs on; all that was yielded is valid.
        """

    def close(self) -> None:  # noqa: B027 - most have nothing to release
        """Release all resources; the runs under way end with the iterator of `run`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Threads(Executor):
    """Runs jobs on ``threads`` threads (None: one a core).

    Concurrent runs share ``memory_limit`` bytes (None: half of the available memory) equally.
    """

    def __init__(self, threads: int | None = None, *, memory_limit: int | None = None) -> None:
        self._threads = threads
        self._memory_limit = memory_limit

    def run(
        self, jobs: Iterable[tuple[int, Job]], reduce: Callable[[Outcome], T]
    ) -> Generator[Finished[T]]:
        """Yield jobs as they finish; see `bentpipe.sweeps.executor.Executor`."""
        runs = run_as_completed(
            jobs,
            partial(attempt_all, reduce=reduce),
            threads=self._threads,
            memory_limit=self._memory_limit,
        )
        with closing(runs):
            yield from runs


def run_all(
    executor: Executor,
    jobs: Sequence[Job],
    *,
    progress: Callable[[int, int], None] | None = None,
) -> list[Outcome]:
    """Run jobs as `bentpipe.simulation.run.run_jobs` does, by an executor.

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
