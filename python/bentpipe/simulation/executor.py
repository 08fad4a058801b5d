"""What runs jobs: threads of this process; a Dask cluster and labs are in `bentpipe.sweeps`.

All executors give the same values for the same jobs. Only the order in which they finish differs:
each run has its own random seed. A run is one thread and the extension releases the interpreter
lock, so threads use all cores.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain, islice
from queue import SimpleQueue
from time import perf_counter
from typing import Final, Generic, Self, TypeVar

from bentpipe import _core
from bentpipe.errors import (
    BentpipeError,
    InternalError,
    MachineError,
    MemoryLimitError,
    RunsInterrupted,
    UsageError,
)
from bentpipe.results.files import utc_now
from bentpipe.results.result import Result
from bentpipe.simulation.memory import limit_for
from bentpipe.simulation.run import Batch, BatchSize, Job, Outcome, by_plan, cores, pack

T = TypeVar("T")

# One is running and one is waiting, so that a thread never waits for the next batch.
_BATCHES_A_THREAD: Final = 2
# Python takes some 0.1 ms for a batch. Ctrl-C loses the runs of the batches under way.
_BATCH_S: Final = 0.02
_LARGEST_BATCH: Final = 1_000


@dataclass(frozen=True, slots=True)
class Finished(Generic[T]):
    """One finished job: the value of ``reduce``, or the error of the run.

    ``index`` is the number that the caller gave the job. Exactly one of ``value`` and ``error`` is
    meaningful: ``value`` if ``error`` is None. A `MachineError` is that of a run whose worker died,
    an `InvalidRunError` that of a run in real time that was late in every attempt.
    """

    index: int
    value: T | None
    error: BentpipeError | None = None


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
                if isinstance(finished.error, MachineError):
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
    except (UsageError, InternalError) as error:
        return Finished(index, None, error)
    if outcome.interrupted:
        return Finished(index, None, MachineError("the run was cancelled"))
    if outcome.memory_limit_reached:
        message = batch.memory_message(outcome)
        return Finished(index, None, MemoryLimitError(message, outcomes=[outcome]))
    return Finished(index, reduce(outcome))


class Executor(ABC):
    """Runs jobs and yields them as they finish.

    It is a context manager: leaving the block releases all resources.
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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:  # noqa: B027 - most have nothing to release
        """Release all resources; the runs under way end with the iterator of `run`."""


class Threads(Executor):
    """Runs jobs on ``threads`` threads (None: one a core).

    Concurrent runs share ``memory_limit`` bytes (None: half of the available memory) equally. An
    error of ``reduce`` is raised.
    """

    def __init__(self, threads: int | None = None, *, memory_limit: int | None = None) -> None:
        self._threads = threads or cores()
        self._memory_limit = memory_limit

    def run(
        self, jobs: Iterable[tuple[int, Job]], reduce: Callable[[Outcome], T]
    ) -> Generator[Finished[T]]:
        """Yield jobs as they finish; see `Executor`.

        Jobs are drawn when a batch of two a thread can start. Batches of short runs have many.
        """
        waiting = iter(jobs)
        first = list(islice(waiting, self._threads))
        waiting, workers = chain(first, waiting), max(len(first), 1)
        limit = limit_for(workers, self._memory_limit)
        size = BatchSize(_BATCH_S, _LARGEST_BATCH)
        finished: SimpleQueue[Future[tuple[list[Finished[T]], float]]] = SimpleQueue()
        monitors: dict[Future[tuple[list[Finished[T]], float]], _core.Monitor] = {}

        def attempt(batch: Batch) -> tuple[list[Finished[T]], float]:
            started_s = perf_counter()
            return list(attempt_all(batch, reduce)), perf_counter() - started_s

        with ThreadPoolExecutor(max_workers=workers) as pool:
            try:
                while True:
                    runs = by_plan(islice(waiting, size.runs))
                    if runs:
                        batch = Batch(runs=runs, memory_limit_bytes=limit, sharing=workers)
                        future = pool.submit(attempt, batch)
                        monitors[future] = batch.monitor
                        future.add_done_callback(finished.put)
                    elif not monitors:
                        return
                    if not runs or len(monitors) >= _BATCHES_A_THREAD * workers:
                        future = finished.get()
                        del monitors[future]
                        ended, seconds = future.result()
                        size.adapt(len(ended), seconds)
                        yield from ended
            finally:
                for future, monitor in monitors.items():
                    future.cancel()
                    monitor.cancel()


def run_jobs(
    jobs: Sequence[Job],
    executor: Executor | None = None,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> list[Outcome]:
    """Run jobs by an executor (None: threads); outcomes are in the order of the jobs.

    ``progress(done, total)`` is called from this thread. After Ctrl-C the current runs are stopped
    and the others are not started.

    Raises:
        MemoryLimitError: a run reached its part and ended early; all outcomes that are in this
            process are in the error.
        UsageError: a plan is not valid.
        InternalError: a run violated an invariant of the simulator.
        MachineError: the executor lost what it runs on.
        RunsInterrupted: Ctrl-C; the outcomes of the complete runs are in the exception, and
            `Outcome.index` is the index of the job.
    """
    outcomes: dict[int, Outcome] = {}
    exhausted: dict[int, MemoryLimitError] = {}

    def in_order() -> list[Outcome]:
        return [outcomes[index] for index in sorted(outcomes)]

    try:
        with closing((executor or Threads()).run(enumerate(jobs), _without_job)) as runs:
            for done, finished in enumerate(runs, 1):
                if isinstance(finished.error, MemoryLimitError):
                    exhausted[finished.index] = finished.error
                    outcomes |= {outcome.index: outcome for outcome in finished.error.outcomes}
                elif finished.error is not None:
                    raise finished.error
                elif finished.value is not None:
                    raw, limit = finished.value
                    outcomes[finished.index] = Outcome(
                        job=jobs[finished.index],
                        index=finished.index,
                        raw=raw,
                        memory_limit_bytes=limit,
                    )
                if progress is not None:
                    progress(done, len(jobs))
    except KeyboardInterrupt:
        message = f"{len(outcomes):,} of {len(jobs):,} runs are complete"
        raise RunsInterrupted(message, outcomes=in_order()) from None
    if exhausted:
        raise MemoryLimitError(str(exhausted[min(exhausted)]), outcomes=in_order())
    return in_order()


def _without_job(outcome: Outcome) -> tuple[_core.RawRun, int]:
    """Return what a worker must send: the plan is known where the job came from."""
    return outcome.raw, outcome.memory_limit_bytes


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

    executor = Threads(threads, memory_limit=memory_limit)
    try:
        return results(run_jobs(jobs, executor, progress=progress))
    except (RunsInterrupted, MemoryLimitError) as ended:
        raise type(ended)(str(ended), results=results(ended.outcomes)) from None
