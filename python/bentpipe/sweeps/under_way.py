"""The batches of a sweep that a Dask cluster has: a bounded number, each of a useful size."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from importlib import import_module
from itertools import count, islice
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any, Final, Generic, TypeVar
from uuid import uuid4

from bentpipe import _core
from bentpipe.errors import MachineError
from bentpipe.simulation.batches import BatchSize, by_plan
from bentpipe.simulation.many import Job, Outcome
from bentpipe.sweeps.batches import BatchDone, Task, run_batch
from bentpipe.sweeps.executor import Finished, RunFailure

T = TypeVar("T")

_POLL_S: Final = 0.5
_REFRESH_S: Final = 2.0
_RESULT_S: Final = 5.0
# A cluster that starts its workers on demand takes a while.
_NO_WORKERS_S: Final = 60.0
# The scheduler takes some ms for a task, its result included.
_BATCH_S: Final = 0.4
# Bounds a message: a record has some kB, and each job may have a plan of its own, of some 20 kB.
_LARGEST_BATCH: Final = 1_000
# One is executed, and the next ones are with the worker already.
_BATCHES_A_THREAD: Final = 3


class UnderWay(Generic[T]):
    """Gives batches to a cluster and takes their results.

    ``check`` raises an error if a worker has another bentpipe.
    """

    def __init__(
        self,
        client: Any,
        reduce: Callable[[Outcome], T],
        *,
        memory_limit: int | None,
        check: Callable[[], None],
    ) -> None:
        self._client = client
        self._reduce = reduce
        self._memory_limit = memory_limit
        self._check = check
        self._jobs: dict[Any, tuple[tuple[int, Job], ...]] = {}
        self._finished: SimpleQueue[Any] = SimpleQueue()
        self._keys = (f"bentpipe-{uuid4().hex}-{number}" for number in count())
        self._suspects: deque[tuple[int, Job]] = deque()
        self._alone = False
        self._size = BatchSize(_BATCH_S, _LARGEST_BATCH)
        self._had_workers_s = self._refreshed_s = monotonic()
        self._threads = threads_by_machine(client)

    def __bool__(self) -> bool:
        return bool(self._jobs or self._suspects)

    def fill(self, waiting: Iterator[tuple[int, Job]]) -> None:
        """Draw jobs until enough batches are under way, or none are left."""
        while len(self._jobs) < _BATCHES_A_THREAD * max(sum(self._threads.values()), 1):
            batch = tuple(islice(waiting, self._size.runs))
            if not batch:
                break
            self._submit(batch)
        if self._suspects and not self._jobs:
            self._alone = True
            self._submit([self._suspects.popleft()])

    def wait(self) -> Iterator[Finished[T]]:
        """Wait for a batch, but not for long; yield its finished jobs.

        Raises:
            MachineError: the scheduler or all workers are lost, or a worker has another bentpipe.
        """
        self._refresh()
        try:
            future = self._finished.get(timeout=_POLL_S)
        except Empty:
            return
        jobs = self._jobs.pop(future)
        if future.status == "error":
            yield from self._failed(jobs, future.exception())
            return
        done = self._result_of(future)
        self._size.adapt(len(done.finished), done.seconds)
        yield from done.finished

    def _result_of(self, future: Any) -> BatchDone[T]:
        """Return the result of a batch that is done.

        A worker that dies before it has sent the result leaves it to another one. If there is none,
        waiting must not hide that.
        """
        while True:
            try:
                done: BatchDone[T] = future.result(timeout=_RESULT_S)
            except TimeoutError:
                self._refresh()
            except (CancelledError, OSError):
                raise scheduler_lost() from None
            else:
                return done

    def cancel(self) -> None:
        """Cancel all batches."""
        futures = list(self._jobs)
        self._jobs.clear()
        if futures and self._is_connected():
            with suppress(OSError, CancelledError):
                self._client.cancel(futures)

    def _submit(self, jobs: Sequence[tuple[int, Job]]) -> None:
        task = Task(
            version=_core.version(),
            runs=by_plan(jobs),
            reduce=self._reduce,
            memory_limit=self._memory_limit,
            threads=self._threads,
        )
        future = self._client.submit(run_batch, task, key=next(self._keys), pure=False)
        self._jobs[future] = tuple(jobs)
        future.add_done_callback(self._finished.put)

    def _failed(
        self, jobs: tuple[tuple[int, Job], ...], error: BaseException
    ) -> Iterator[Finished[T]]:
        """Keep the jobs of a batch whose workers died for later; raise other errors.

        Dask blames all tasks that a dead worker had. So suspects are executed alone at the end.
        """
        if not isinstance(error, import_module("distributed").KilledWorker):
            self._check()
            raise error
        if not self._alone:
            self._suspects.extend(jobs)
            return
        message = f"{error.allowed_failures + 1} workers died while they executed it"
        yield Finished(jobs[0][0], None, RunFailure("lost", message))

    def _refresh(self) -> None:
        """Count the threads of the workers from time to time, and check that there are any."""
        now_s = monotonic()
        if not self._is_connected():
            raise scheduler_lost()
        if now_s - self._refreshed_s < _REFRESH_S:
            return
        self._refreshed_s = now_s
        self._threads = threads_by_machine(self._client)
        if self._threads:
            self._had_workers_s = now_s
        elif now_s - self._had_workers_s > _NO_WORKERS_S:
            raise MachineError(f"the cluster has had no workers for {_NO_WORKERS_S:.0f} s")

    def _is_connected(self) -> bool:
        return bool(self._client.status == "running")


def threads_by_machine(client: Any) -> dict[str, int]:
    """Return the number of threads of all workers, by machine."""
    try:
        workers = client.scheduler_info(n_workers=-1)["workers"]
    except OSError:
        raise scheduler_lost() from None
    threads: dict[str, int] = {}
    for worker in workers.values():
        threads[worker["host"]] = threads.get(worker["host"], 0) + worker["nthreads"]
    return threads


def scheduler_lost() -> MachineError:
    """Return the error for a scheduler that does not answer."""
    return MachineError("lost the connection to the Dask scheduler")
