"""What a Dask worker executes: a batch of runs, one after the other.

A batch is long compared with what the scheduler takes for a task, however short a run is.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final, Generic, TypeVar

from bentpipe import _core
from bentpipe.errors import MachineError
from bentpipe.simulation.many import Job, Outcome, PlanEncoder, PreparedRun
from bentpipe.simulation.memory import default_limit, limit_for
from bentpipe.sweeps.executor import Finished, attempt

T = TypeVar("T")

_POLL_S: Final = 0.2
# Dask pauses a worker at 80 % of its memory limit and kills it at 95 %.
_SHARE_OF_DASK_LIMIT: Final = 0.5
# The states of a task that a worker is to execute (`distributed.worker_state_machine`).
_WANTED: Final = frozenset({"executing", "long-running"})


@dataclass(frozen=True, kw_only=True)
class Batch(Generic[T]):
    """Jobs for one task, each with its number, and the function that reduces their outcomes.

    ``version`` is that of bentpipe where the batch was made. ``memory_limit`` in bytes is for all
    runs on one machine (None: half of its available memory), and ``threads`` are those of all
    workers by machine.
    """

    version: str
    jobs: tuple[tuple[int, Job], ...]
    reduce: Callable[[Outcome], T]
    memory_limit: int | None
    threads: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class BatchDone(Generic[T]):
    """The finished jobs of a batch, and how long they took."""

    finished: tuple[Finished[T], ...]
    seconds: float


def run_batch(batch: Batch[T]) -> BatchDone[T]:
    """Run the jobs of a batch in this worker.

    Raises:
        MachineError: the worker has another version of bentpipe.
    """
    worker = import_module("distributed").get_worker()
    if batch.version != _core.version():
        raise MachineError(
            f"the worker {worker.address} has bentpipe {_core.version()}, not {batch.version}"
        )
    started_s = time.perf_counter()
    sharing, limit = _memory_of(worker, batch)
    encoder = PlanEncoder()
    finished: list[Finished[T]] = []
    with _until_cancelled(worker) as current:
        for index, job in batch.jobs:
            prepared = PreparedRun(
                index=index,
                job=job,
                plan_json=encoder.encode(job.plan),
                memory_limit_bytes=limit,
                sharing=sharing,
            )
            if not current.set(prepared.monitor):
                break
            finished.append(attempt(prepared, batch.reduce))
    return BatchDone(finished=tuple(finished), seconds=time.perf_counter() - started_s)


def _memory_of(worker: Any, batch: Batch[T]) -> tuple[int, int]:
    """Return how many runs share the memory limit of this machine, and the limit of each."""
    own = int(worker.state.nthreads)
    sharing = max(batch.threads.get(worker.ip, 0), own)
    if batch.memory_limit is not None:
        return sharing, limit_for(sharing, batch.memory_limit)
    limit = limit_for(sharing, default_limit())
    of_dask = worker.memory_manager.memory_limit
    if of_dask:
        limit = min(limit, limit_for(own, int(_SHARE_OF_DASK_LIMIT * of_dask)))
    return sharing, limit


class _Current:
    """The monitor of the run under way, and whether the batch was cancelled."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cancelled = False
        self._monitor: _core.Monitor | None = None

    def set(self, monitor: _core.Monitor) -> bool:
        """Name the next run; return whether it may start."""
        with self._lock:
            self._monitor = monitor
            return not self._cancelled

    def cancel(self) -> None:
        """Cancel the run under way, and all that follow."""
        with self._lock:
            self._cancelled = True
            if self._monitor is not None:
                self._monitor.cancel()


@contextmanager
def _until_cancelled(worker: Any) -> Iterator[_Current]:
    """Cancel the run under way when the task of this thread is no longer wanted.

    Dask forgets a cancelled task, also when its client died, but does not stop its thread.
    """
    key = worker.get_current_task()
    current, ended = _Current(), threading.Event()

    def watch() -> None:
        while not ended.wait(_POLL_S):
            task = worker.state.tasks.get(key)
            if task is None or task.state not in _WANTED:
                current.cancel()
                return

    watcher = threading.Thread(target=watch, name="bentpipe cancellation", daemon=True)
    watcher.start()
    try:
        yield current
    finally:
        ended.set()
        watcher.join()
