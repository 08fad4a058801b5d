"""Executors on Dask: a cluster of this machine's processes, or an existing one.

Dask schedules. This module makes batches of runs that are long compared with Dask's time for a
task, keeps a bounded number of them under way, and refuses workers with another bentpipe.
"""

from __future__ import annotations

import logging
import re
import sys
import threading
import warnings
from abc import abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from itertools import count, islice
from queue import Empty, SimpleQueue
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any, Final, Generic, TypeVar
from uuid import uuid4

from bentpipe import _core
from bentpipe.errors import MachineError, MemoryLimitError, UsageError
from bentpipe.live.child import deferring_interrupts
from bentpipe.simulation.executor import Executor, Finished, attempt_all
from bentpipe.simulation.memory import limit_for
from bentpipe.simulation.run import Batch, BatchSize, Job, Outcome, SeededRuns, by_plan, cores

T = TypeVar("T")

_ADDRESS: Final = re.compile(r"(tcp|tls|ucx|ws|wss)://\S+")
_CONNECT_S: Final = 10
# These have levels or handlers of their own (`distributed.config`).
_LOGGERS: Final = (
    "asyncio",
    "distributed",
    "distributed.client",
    "distributed.gc",
    "tornado",
    "tornado.application",
)
_NONE: Final = logging.CRITICAL + 1
_CONFIG: Final = {
    # A worker logs before it imports what silences it (`distributed.nanny`).
    "distributed.nanny.pre-spawn-environ.DASK_LOGGING__DISTRIBUTED": "critical",
    # Nobody sees the profiles that workers would record a hundred times a second.
    "distributed.worker.profile.enabled": False,
    # On a busy machine a worker takes longer to restart than the 15 s after which a local cluster
    # would close its nanny.
    "distributed.deploy.lost-worker-timeout": "1 hour",
}


def silence() -> None:
    """Silence the loggers of Dask for the rest of this process."""
    for name in _LOGGERS:
        logging.getLogger(name).setLevel(_NONE)


@contextmanager
def silenced() -> Iterator[None]:
    """Silence the loggers and the warnings of Dask in this block."""
    with ExitStack() as stack:
        for name in _LOGGERS:
            logger = logging.getLogger(name)
            stack.callback(logger.setLevel, logger.level)
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", module=r"(distributed|dask|tornado)\b")
        silence()
        yield


# --- batches -------------------------------------------------------------------------------------

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
_CANCEL_POLL_S: Final = 0.2
# Dask pauses a worker at 80 % of its memory limit and kills it at 95 %.
_SHARE_OF_DASK_LIMIT: Final = 0.5
# The states of a task that a worker is to execute (`distributed.worker_state_machine`).
_WANTED: Final = frozenset({"executing", "long-running"})


def run_batch(
    runs: Sequence[SeededRuns],
    reduce: Callable[[Outcome], T],
    *,
    version: str,
    memory_limit: int | None,
    threads: Mapping[str, int],
) -> tuple[list[Finished[T]], float]:
    """Run a batch in this worker; return its finished jobs, and the seconds that they took.

    ``version`` is that of bentpipe where the batch was made. ``memory_limit`` in bytes is for all
    runs on one machine (None: half of its available memory), and ``threads`` are those of all
    workers by machine.

    Raises:
        MachineError: the worker has another version of bentpipe.
    """
    worker = import_module("distributed").get_worker()
    if version != _core.version():
        raise MachineError(
            f"the worker {worker.address} has bentpipe {_core.version()}, not {version}"
        )
    started_s = monotonic()
    worker_threads = int(worker.state.nthreads)
    sharing = max(threads.get(worker.ip, 0), worker_threads)
    limit = limit_for(sharing, memory_limit)
    of_dask = worker.memory_manager.memory_limit
    if memory_limit is None and of_dask:
        limit = min(limit, limit_for(worker_threads, int(_SHARE_OF_DASK_LIMIT * of_dask)))
    batch = Batch(runs=runs, memory_limit_bytes=limit, sharing=sharing)
    with _until_cancelled(worker, batch.monitor):
        finished = list(attempt_all(batch, reduce))
    for job in finished:
        if isinstance(job.error, MemoryLimitError):
            # The outcome of such a run may be large: it is not sent back.
            job.error.outcomes = ()
    return finished, monotonic() - started_s


@contextmanager
def _until_cancelled(worker: Any, monitor: _core.Monitor) -> Iterator[None]:
    """Cancel the runs of a monitor when the task of this thread is no longer wanted.

    Dask forgets a cancelled task, also when its client died, but does not stop its thread.
    """
    key = worker.get_current_task()
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(_CANCEL_POLL_S):
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


@dataclass(eq=False)
class DaskBatches(Generic[T]):
    """Gives batches to a cluster and takes their results.

    ``check`` raises an error if a worker has another bentpipe.
    """

    client: Any
    reduce: Callable[[Outcome], T]
    memory_limit: int | None
    check: Callable[[], None]

    def __post_init__(self) -> None:
        self._jobs: dict[Any, tuple[tuple[int, Job], ...]] = {}
        self._finished: SimpleQueue[Any] = SimpleQueue()
        self._keys = (f"bentpipe-{uuid4().hex}-{number}" for number in count())
        self._suspects: deque[tuple[int, Job]] = deque()
        self._alone = False
        self._size = BatchSize(_BATCH_S, _LARGEST_BATCH)
        self._had_workers_s = self._refreshed_s = monotonic()
        self._threads = threads_by_machine(self.client)

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
        finished, seconds = self._result_of(future)
        self._size.adapt(len(finished), seconds)
        yield from finished

    def _result_of(self, future: Any) -> tuple[list[Finished[T]], float]:
        """Return the result of a batch that is done.

        A worker that dies before it has sent the result leaves it to another one. If there is none,
        waiting must not hide that.
        """
        while True:
            try:
                result: tuple[list[Finished[T]], float] = future.result(timeout=_RESULT_S)
            except TimeoutError:
                self._refresh()
            except (CancelledError, OSError):
                raise scheduler_lost() from None
            else:
                return result

    def cancel(self) -> None:
        """Cancel all batches."""
        futures = list(self._jobs)
        self._jobs.clear()
        if futures and self.client.status == "running":
            with suppress(OSError, CancelledError):
                self.client.cancel(futures)

    def _submit(self, jobs: Sequence[tuple[int, Job]]) -> None:
        future = self.client.submit(
            run_batch,
            by_plan(jobs),
            self.reduce,
            version=_core.version(),
            memory_limit=self.memory_limit,
            threads=self._threads,
            key=next(self._keys),
            pure=False,
        )
        self._jobs[future] = tuple(jobs)
        future.add_done_callback(self._finished.put)

    def _failed(
        self, jobs: tuple[tuple[int, Job], ...], error: BaseException
    ) -> Iterator[Finished[T]]:
        """Keep the jobs of a batch whose workers died for later; raise other errors.

        Dask blames all tasks that a dead worker had. So suspects are executed alone at the end.
        """
        if not isinstance(error, import_module("distributed").KilledWorker):
            self.check()
            raise error
        if not self._alone:
            self._suspects.extend(jobs)
            return
        message = f"{error.allowed_failures + 1} workers died while they executed it"
        yield Finished(jobs[0][0], None, MachineError(message))

    def _refresh(self) -> None:
        """Count the threads of the workers from time to time, and check that there are any."""
        now_s = monotonic()
        if self.client.status != "running":
            raise scheduler_lost()
        if now_s - self._refreshed_s < _REFRESH_S:
            return
        self._refreshed_s = now_s
        self._threads = threads_by_machine(self.client)
        if self._threads:
            self._had_workers_s = now_s
        elif now_s - self._had_workers_s > _NO_WORKERS_S:
            raise MachineError(f"the cluster has had no workers for {_NO_WORKERS_S:.0f} s")


def threads_by_machine(client: Any) -> dict[str, int]:
    """Return the number of threads of all workers, by machine."""
    try:
        workers = client.scheduler_info(n_workers=-1)["workers"]
    except OSError:
        raise scheduler_lost() from None
    threads: Counter[str] = Counter()
    for worker in workers.values():
        threads[worker["host"]] += worker["nthreads"]
    return threads


def scheduler_lost() -> MachineError:
    """Return the error for a scheduler that does not answer."""
    return MachineError("lost the connection to the Dask scheduler")


# --- executors -----------------------------------------------------------------------------------


class DaskExecutor(Executor):
    """Runs jobs on a Dask cluster, in batches.

    ``memory_limit`` in bytes is for all runs on one machine (None: half of its available memory).
    """

    def __init__(self, *, memory_limit: int | None = None) -> None:
        try:
            self._distributed = import_module("distributed")
        except ModuleNotFoundError:
            raise UsageError(
                "a cluster: dask.distributed is not installed; pip install 'bentpipe[cluster]'"
            ) from None
        self._memory_limit = memory_limit
        with ExitStack() as stack:
            stack.enter_context(silenced())
            self._client = self._connect(stack)
            self._check_workers()
            self._stack = stack.pop_all()

    @abstractmethod
    def _connect(self, stack: ExitStack) -> Any:
        """Return a client; what it needs is closed with ``stack``."""

    def run(
        self, jobs: Iterable[tuple[int, Job]], reduce: Callable[[Outcome], T]
    ) -> Generator[Finished[T]]:
        """Yield jobs as they finish; see `Executor`.

        Raises:
            MachineError: the scheduler or all workers are lost, or a worker has another bentpipe.
        """
        under_way = DaskBatches(
            self._client, reduce, memory_limit=self._memory_limit, check=self._check_workers
        )
        waiting = iter(jobs)
        try:
            under_way.fill(waiting)
            while under_way:
                yield from under_way.wait()
                under_way.fill(waiting)
        finally:
            under_way.cancel()

    def __exit__(self, *_: object) -> None:
        """Disconnect from the cluster; one that this executor started ends."""
        self._stack.close()

    def _check_workers(self) -> None:
        """Check the version of bentpipe and Python of all workers.

        Raises:
            MachineError: a worker has another one; the message has a line for each.
        """
        try:
            versions = self._client.get_versions(packages=["bentpipe"])["workers"]
        except OSError:
            raise scheduler_lost() from None
        # A pickled function is readable by the same major and minor version of Python.
        ours = (_core.version(), ".".join(map(str, sys.version_info[:2])))
        refused = []
        for address, installed in sorted(versions.items()):
            packages = installed["packages"]
            theirs = (packages["bentpipe"], ".".join(packages["python"].split(".")[:2]))
            for name, expected, version in zip(("bentpipe", "Python"), ours, theirs, strict=True):
                if version != expected:
                    has = f"no {name}" if version is None else f"{name} {version}"
                    refused.append(f"the worker {address} has {has}, not {expected}")
        if refused:
            fix = f"install the same on all workers: pip install bentpipe=={ours[0]}"
            raise MachineError("\n".join([*refused, fix]))


class LocalCluster(DaskExecutor):
    """Runs jobs in ``workers`` processes of this machine (None: one a core).

    All of them listen on the loopback interface only.
    """

    def __init__(self, workers: int | None = None, *, memory_limit: int | None = None) -> None:
        self._workers = workers or cores()
        super().__init__(memory_limit=memory_limit)

    def _connect(self, stack: ExitStack) -> Any:
        # Dask would leave its folder behind.
        folder = stack.enter_context(TemporaryDirectory(prefix="bentpipe-"))
        config = {**_CONFIG, "temporary-directory": folder}
        stack.enter_context(import_module("dask").config.set(config))
        # Dask cannot end a cluster that is not complete without errors.
        with deferring_interrupts():
            cluster = stack.enter_context(
                self._distributed.LocalCluster(
                    n_workers=self._workers,
                    threads_per_worker=1,
                    processes=True,
                    host="127.0.0.1",
                    # Dask always serves HTTP; without a dashboard, and on any free port.
                    scheduler_kwargs={"dashboard": False, "dashboard_address": "127.0.0.1:0"},
                    # The memory limit of runs is that of bentpipe.
                    memory_limit=0,
                    silence_logs=False,
                    preload=["bentpipe.sweeps.dask_worker"],
                )
            )
            return stack.enter_context(self._distributed.Client(cluster, set_as_default=False))


class Cluster(DaskExecutor):
    """Runs jobs on the workers of an existing scheduler, such as ``tcp://10.0.0.1:8786``."""

    def __init__(self, address: str, *, memory_limit: int | None = None) -> None:
        if not _ADDRESS.fullmatch(address):
            raise UsageError(f'scheduler: read "{address}"; expected tcp://HOST:PORT')
        self._address = address
        super().__init__(memory_limit=memory_limit)

    def _connect(self, stack: ExitStack) -> Any:
        try:
            client = stack.enter_context(
                self._distributed.Client(
                    self._address, timeout=_CONNECT_S, set_as_default=False, name="bentpipe"
                )
            )
        except (OSError, ValueError) as error:
            raise MachineError(
                f"no Dask scheduler answers at {self._address}: {error}; start one with "
                "dask scheduler"
            ) from None
        try:
            client.wait_for_workers(1, timeout=_CONNECT_S)
        except TimeoutError:
            raise MachineError(
                f"the scheduler at {self._address} has no workers; start one with "
                f"dask worker {self._address}"
            ) from None
        return client
