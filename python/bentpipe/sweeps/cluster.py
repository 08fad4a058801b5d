"""Executors on Dask: a cluster of this machine's processes, or an existing one.

Dask schedules. This module makes batches of runs that are long compared with Dask's time for a
task, keeps a bounded number of them under way, and refuses workers with another bentpipe.
"""

from __future__ import annotations

import logging
import re
import signal
import sys
import threading
import warnings
from abc import abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from tempfile import TemporaryDirectory
from typing import Any, Final, TypeVar

from bentpipe import _core
from bentpipe.errors import MachineError, UsageError
from bentpipe.simulation.run import Job, Outcome, cores
from bentpipe.sweeps.dask_batches import DaskBatches, scheduler_lost
from bentpipe.sweeps.executor import Executor, Finished

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
}


@contextmanager
def deferring_interrupts() -> Iterator[None]:
    """Raise Ctrl-C at the end of this block, which must not take long."""
    before = signal.getsignal(signal.SIGINT)
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or before in {None, signal.SIG_IGN}:
        yield
        return
    came = False

    def remember(_number: int, _frame: object) -> None:
        nonlocal came
        came = True

    signal.signal(signal.SIGINT, remember)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        raise KeyboardInterrupt


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
        self._stack = ExitStack()
        self._stack.enter_context(silenced())
        try:
            self._client = self._connect(self._stack)
            self._check_workers()
        except BaseException:
            self.close()
            raise

    @abstractmethod
    def _connect(self, stack: ExitStack) -> Any:
        """Return a client; what it needs is closed with ``stack``."""

    def run(
        self, jobs: Iterable[tuple[int, Job]], reduce: Callable[[Outcome], T]
    ) -> Generator[Finished[T]]:
        """Yield jobs as they finish; see `bentpipe.sweeps.executor.Executor`.

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

    def close(self) -> None:
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
        for address, found in sorted(versions.items()):
            packages = found["packages"]
            theirs = (packages["bentpipe"], ".".join(packages["python"].split(".")[:2]))
            for name, own, version in zip(("bentpipe", "Python"), ours, theirs, strict=True):
                if version != own:
                    has = f"no {name}" if version is None else f"{name} {version}"
                    refused.append(f"the worker {address} has {has}, not {own}")
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
