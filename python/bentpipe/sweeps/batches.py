"""What a Dask worker executes: a batch of runs, one after the other.

A batch is long compared with what the scheduler takes for a task, however short a run is.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final, Generic, TypeVar

from bentpipe import _core
from bentpipe.errors import MachineError
from bentpipe.simulation.batches import SeededRuns
from bentpipe.simulation.many import Batch, Outcome
from bentpipe.simulation.memory import default_limit, limit_for
from bentpipe.sweeps.executor import Finished, attempt_all

T = TypeVar("T")

_POLL_S: Final = 0.2
# Dask pauses a worker at 80 % of its memory limit and kills it at 95 %.
_SHARE_OF_DASK_LIMIT: Final = 0.5
# The states of a task that a worker is to execute (`distributed.worker_state_machine`).
_WANTED: Final = frozenset({"executing", "long-running"})


@dataclass(frozen=True, kw_only=True)
class Task(Generic[T]):
    """The runs of a batch, and the function that reduces their outcomes.

    ``version`` is that of bentpipe where the task was made. ``memory_limit`` in bytes is for all
    runs on one machine (None: half of its available memory), and ``threads`` are those of all
    workers by machine.
    """

    version: str
    runs: Sequence[SeededRuns]
    reduce: Callable[[Outcome], T]
    memory_limit: int | None
    threads: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class BatchDone(Generic[T]):
    """The finished jobs of a batch, and how long they took."""

    finished: tuple[Finished[T], ...]
    seconds: float


def run_batch(task: Task[T]) -> BatchDone[T]:
    """Run the batch of a task in this worker.

    Raises:
        MachineError: the worker has another version of bentpipe.
    """
    worker = import_module("distributed").get_worker()
    if task.version != _core.version():
        raise MachineError(
            f"the worker {worker.address} has bentpipe {_core.version()}, not {task.version}"
        )
    started_s = time.perf_counter()
    sharing, limit = _memory_of(worker, task)
    batch = Batch(
        runs=task.runs,
        memory_limit_bytes=limit,
        sharing=sharing,
    )
    with _until_cancelled(worker, batch.monitor):
        finished = tuple(attempt_all(batch, task.reduce))
    return BatchDone(finished=finished, seconds=time.perf_counter() - started_s)


def _memory_of(worker: Any, task: Task[T]) -> tuple[int, int]:
    """Return how many runs share the memory limit of this machine, and the limit of each."""
    own = int(worker.state.nthreads)
    sharing = max(task.threads.get(worker.ip, 0), own)
    if task.memory_limit is not None:
        return sharing, limit_for(sharing, task.memory_limit)
    limit = limit_for(sharing, default_limit())
    of_dask = worker.memory_manager.memory_limit
    if of_dask:
        limit = min(limit, limit_for(own, int(_SHARE_OF_DASK_LIMIT * of_dask)))
    return sharing, limit


@contextmanager
def _until_cancelled(worker: Any, monitor: _core.Monitor) -> Iterator[None]:
    """Cancel the runs of a monitor when the task of this thread is no longer wanted.

    Dask forgets a cancelled task, also when its client died, but does not stop its thread.
    """
    key = worker.get_current_task()
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(_POLL_S):
            task = worker.state.tasks.get(key)
            if task is None or task.state not in _WANTED:
                monitor.cancel()
                return

    watcher = threading.Thread(target=watch, name="bentpipe cancellation", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
