"""What runs the jobs of a sweep: threads, a Dask cluster, or labs.

All executors give the same values for the same jobs. Only the order in which they finish differs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Final, Generic, Literal, Self, TypeVar

from bentpipe import _core
from bentpipe.errors import (
    BentpipeError,
    InternalError,
    InvalidRunError,
    MachineError,
    ScenarioError,
    UsageError,
)
from bentpipe.simulation.many import Batch, Job, Outcome, PreparedRun
from bentpipe.sweeps.records import pack

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
                finished = _attempt(batch.prepare(runs.indices[done], job), reduce)
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


def _attempt(prepared: PreparedRun, reduce: Callable[[Outcome], T]) -> Finished[T]:
    index = prepared.index
    try:
        outcome = prepared.run()
    except ScenarioError as error:
        return Finished(index, None, RunFailure("scenario", str(error)))
    except UsageError as error:
        return Finished(index, None, RunFailure("size", str(error)))
    except InternalError as error:
        return Finished(index, None, RunFailure("internal", str(error)))
    if outcome.interrupted:
        return Finished(index, None, _CANCELLED)
    if outcome.memory_limit_reached:
        return Finished(index, None, RunFailure("memory", prepared.memory_message(outcome)))
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
