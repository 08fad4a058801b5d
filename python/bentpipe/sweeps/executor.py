"""What runs the jobs of a sweep: threads, a Dask cluster, or labs.

All executors give the same values for the same jobs. Only the order in which they finish differs.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Generic, Literal, Protocol, Self, TypeVar

from bentpipe.errors import (
    BentpipeError,
    InternalError,
    InvalidRunError,
    MachineError,
    ScenarioError,
    UsageError,
)
from bentpipe.simulation.many import Job, Outcome, PreparedRun

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


@dataclass(frozen=True)
class Finished(Generic[T]):
    """One finished job: the value of ``reduce``, or the error of the run.

    ``index`` is the number that the caller gave the job. Exactly one of ``value`` and ``error`` is
    meaningful: ``value`` if ``error`` is None.
    """

    index: int
    value: T | None
    error: RunFailure | None = None


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


def attempt(prepared: PreparedRun, reduce: Callable[[Outcome], T]) -> Finished[T]:
    """Run a job in this thread and reduce its outcome; a failure of the run is not an exception."""
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
        return Finished(index, None, RunFailure("lost", "the run was cancelled"))
    if outcome.memory_limit_reached:
        return Finished(index, None, RunFailure("memory", prepared.memory_message(outcome)))
    return Finished(index, reduce(outcome))


class Executor(Protocol):
    """Runs jobs and yields them as they finish.

    It is a context manager: leaving the block calls `close`.
    """

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
        ...

    def close(self) -> None:
        """Cancel the runs under way and release all resources."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...
