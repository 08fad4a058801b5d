"""A Dask scheduler and its workers as separate processes, and what they run in tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from bentpipe.simulation.run import Outcome

HERE = Path(__file__).parent
_TIMEOUT_S = 60.0

needs_dask = pytest.mark.skipif(
    find_spec("distributed") is None,
    reason="distributed is not installed (pip install 'bentpipe[cluster]')",
)

# A worker that reports another version, to Dask and to bentpipe.
OTHER_VERSION = """
import distributed.versions
from bentpipe import _core

real = distributed.versions.version
distributed.versions.version = lambda name: "0.0.1" if name == "bentpipe" else real(name)
_core.version = lambda: "0.0.1"
"""


def raw(outcome: Outcome) -> Any:
    """Return the bytes of all columns."""
    return outcome.raw


def delivered(outcome: Outcome) -> float:
    """Return the bytes that the first flow delivered."""
    return float(outcome.column("flows", "delivered_bytes")[0])


def killing_seed_3(outcome: Outcome) -> float:
    """Return the bytes that were delivered; seed 3 kills the process."""
    if outcome.job.seed == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return delivered(outcome)


def disk_full(_outcome: Outcome) -> float:
    """Fail as a write to a full disk does."""
    raise OSError(28, "No space left on device")


def processes_below(pid: int | None = None) -> list[Any]:
    """Return the processes below one, by default this one, as those of psutil."""
    processes: list[Any] = import_module("psutil").Process(pid).children(recursive=True)
    return processes


def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition."""
    deadline_s = time.monotonic() + _TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline_s, "the condition was not met in time"
        time.sleep(0.05)


@dataclass
class DaskProcesses:
    """A scheduler, and workers with one thread each; the workers have no nanny to restart them."""

    folder: Path
    scheduler: subprocess.Popen[bytes] = field(init=False)
    workers: list[subprocess.Popen[bytes]] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.scheduler = self._start(
            "scheduler", "--host", "127.0.0.1", "--port", "0", "--dashboard-address", "127.0.0.1:0"
        )
        until(lambda: "Scheduler at" in self.log("scheduler-0"))

    @property
    def address(self) -> str:
        """The address of the scheduler."""
        (line,) = [each for each in self.log("scheduler-0").splitlines() if "Scheduler at" in each]
        return line.split()[-1]

    def add_worker(self, preload: str = "") -> None:
        """Start a worker, which executes the script ``preload`` first."""
        options = ["--nthreads", "1", "--no-nanny", "--no-dashboard", "--host", "127.0.0.1"]
        options += ["--local-directory", str(self.folder)]
        if preload:
            script = self.folder / f"preload-{len(self.workers)}.py"
            script.write_text(preload)
            options += ["--preload", str(script)]
        self.workers.append(self._start("worker", *options, self.address))

    def wait_for_workers(self) -> None:
        """Wait until all workers are registered."""
        for number in range(len(self.workers)):
            until(partial(self._is_registered, number))

    def log(self, name: str) -> str:
        """Return what a process wrote."""
        return (self.folder / f"{name}.log").read_text()

    def _is_registered(self, number: int) -> bool:
        return "Registered to" in self.log(f"worker-{number}")

    def close(self) -> None:
        """Kill all processes."""
        for each in (*self.workers, self.scheduler):
            each.kill()
            each.wait()

    def _start(self, kind: str, *options: str) -> subprocess.Popen[bytes]:
        number = len(self.workers) if kind == "worker" else 0
        path = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
        with (self.folder / f"{kind}-{number}.log").open("w") as log:
            return subprocess.Popen(
                [sys.executable, "-m", f"distributed.cli.dask_{kind}", *options],
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONPATH": path, "TMPDIR": str(self.folder)},
            )
