"""Options that choose what runs the jobs of a sweep or a study."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from bentpipe import sweeps
from bentpipe.cli.options import optional
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
    optional("tcp://HOST:PORT", "Run on the workers of this Dask scheduler.", "--scheduler"),
]


@dataclass(frozen=True)
class ExecutorOptions:
    """The options that choose an executor."""

    threads: int | None
    dask: bool
    scheduler: str | None
    memory_limit: int | None

    def executor(self, engine: str) -> Executor:
        """Return the executor; ``threads`` counts processes or loaded processors, too.

        Raises:
            UsageError: options exclude each other, or the extra ``cluster`` is not installed.
            MachineError: the scheduler does not answer, or a worker has another version.
        """
        if engine == "emulate":
            self.refuse_with_labs()
            return sweeps.Emulated(self.threads)
        if self.scheduler is not None:
            if self.dask:
                raise UsageError("--scheduler: runs on an existing cluster; leave out --dask")
            if self.threads is not None:
                raise UsageError("--scheduler: its workers have their threads; leave out --threads")
            return sweeps.Cluster(self.scheduler, memory_limit=self.memory_limit)
        if self.dask:
            return sweeps.LocalCluster(self.threads, memory_limit=self.memory_limit)
        return sweeps.Threads(self.threads, memory_limit=self.memory_limit)

    def refuse_with_labs(self) -> None:
        """Refuse the options that labs do not have.

        Raises:
            UsageError: naming the option.
        """
        given = {
            "--dask": self.dask,
            "--scheduler": self.scheduler is not None,
            "--memory-limit": self.memory_limit is not None,
        }
        for option, is_given in given.items():
            if is_given:
                raise UsageError(f"{option}: only for simulated runs; labs are on this machine")
