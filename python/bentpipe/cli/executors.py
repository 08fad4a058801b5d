"""Options that choose what runs the jobs of a sweep or a study."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from bentpipe import sweeps
from bentpipe.errors import UsageError

if TYPE_CHECKING:
    from bentpipe.sweeps.executor import Executor

Dask = Annotated[
    bool,
    typer.Option(
        "--dask", help="Run in processes, on a Dask cluster of this machine; --threads counts them."
    ),
]
Scheduler = Annotated[
    str | None,
    typer.Option(
        "--scheduler",
        metavar="tcp://HOST:PORT",
        help="Run on the workers of this Dask scheduler.",
        show_default=False,
    ),
]


def simulating_executor(
    *, threads: int | None, dask: bool, scheduler: str | None, memory_limit: int | None
) -> Executor:
    """Return the executor of simulated runs that the options choose.

    Raises:
        UsageError: options exclude each other, or the extra ``cluster`` is not installed.
        MachineError: the scheduler does not answer, or has other versions.
    """
    if scheduler is not None:
        if dask:
            raise UsageError("--scheduler: runs on an existing cluster; leave out --dask")
        if threads is not None:
            raise UsageError("--scheduler: its workers have their threads; leave out --threads")
        return sweeps.Cluster(scheduler, memory_limit=memory_limit)
    if dask:
        return sweeps.LocalCluster(threads, memory_limit=memory_limit)
    return sweeps.Threads(threads, memory_limit=memory_limit)


def emulating_executor(
    *, threads: int | None, dask: bool, scheduler: str | None, memory_limit: int | None
) -> Executor:
    """Return the executor of runs in real time; ``threads`` is the number of processors to load.

    Raises:
        UsageError: an option is for simulated runs only.
    """
    for option, value in (
        ("--dask", dask or None),
        ("--scheduler", scheduler),
        ("--memory-limit", memory_limit),
    ):
        if value is not None:
            raise UsageError(f"{option}: only with --engine simulate; labs are on this machine")
    return sweeps.Emulated(threads)
