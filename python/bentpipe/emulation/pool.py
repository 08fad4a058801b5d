"""Many emulated runs, several at a time, each in a child process.

A run that was late is repeated after the others, when the cause may have ended; its last attempt
runs alone.
"""

from __future__ import annotations

import tempfile
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bentpipe.emulation.worker import Worker
from bentpipe.results.result import Result

MAX_ATTEMPTS: Final = 3
_POLL_S: Final = 0.05


@dataclass(frozen=True)
class EmulationJob:
    """A scenario as plain data, and the seed to run it with.

    ``max_s`` is the longest duration of its traffic, ``expected_s`` the usual one. ``folder`` is
    the name of its result, by default its number. ``load`` is the share of a processor that it
    takes.
    """

    scenario: dict[str, Any]
    seed: int
    max_s: float
    expected_s: float
    folder: str = ""
    load: float = 1.0


@dataclass(frozen=True)
class EmulatedRun:
    """The result of the job ``index``, and the number of attempts."""

    index: int
    result: Result
    attempts: int

    @property
    def invalid(self) -> str | None:
        """Why the run is invalid: the link was late in every attempt; None if it is valid."""
        return self.result.invalid


@dataclass(eq=False)
class _Task:
    index: int
    job: EmulationJob
    worker: Worker
    attempts: int = 0

    def start(self) -> None:
        self.attempts += 1
        self.worker.start()

    def progress(self) -> float:
        return min(1.0, self.worker.age_s() / self.job.expected_s)


def emulate_as_completed(
    jobs: Sequence[EmulationJob],
    *,
    parallel: int,
    folder: Path,
    progress: Callable[[float], None],
) -> Generator[EmulatedRun]:
    """Run jobs with a total load of ``parallel`` at a time; yield each when it is finished.

    A run that was late is repeated, up to `MAX_ATTEMPTS` attempts; the last one may be invalid,
    too. Results are saved in ``folder``. Closing the generator ends the runs.

    Raises:
        UsageError: a scenario cannot be run in real time.
        MachineError: the machine lacks something.
        BentpipeError: a run failed.
    """
    waiting = deque(_task(index, job, folder) for index, job in enumerate(jobs))
    running: list[_Task] = []
    alone: deque[_Task] = deque()
    done, reached = 0, 0.0
    try:
        while waiting or running or alone:
            while (next_task := _next_task(waiting, running, parallel)) is not None:
                waiting.remove(next_task)
                running.append(next_task)
                next_task.start()
            if alone and not running:
                running.append(alone.popleft())
                running[-1].start()
            time.sleep(_POLL_S)
            for task in [each for each in running if each.worker.has_finished()]:
                running.remove(task)
                result = Result.load(task.worker.out)
                if result.invalid is None or task.attempts == MAX_ATTEMPTS:
                    done += 1
                    yield EmulatedRun(task.index, result, task.attempts)
                else:
                    (alone if task.attempts == MAX_ATTEMPTS - 1 else waiting).append(task)
            # A run that is repeated does not reduce the progress.
            reached = max(reached, (done + sum(task.progress() for task in running)) / len(jobs))
            progress(reached)
    finally:
        for task in running:
            task.worker.kill()


def _task(index: int, job: EmulationJob, folder: Path) -> _Task:
    out = folder / (job.folder or f"{index:03}")
    worker = Worker(scenario=job.scenario, seed=job.seed, out=out, max_s=job.max_s)
    return _Task(index, job, worker)


def _next_task(waiting: Iterable[_Task], running: Sequence[_Task], parallel: int) -> _Task | None:
    """Return the first task with a load that fits into ``parallel``; a task may run alone."""
    free = parallel - sum(task.job.load for task in running)
    return next((task for task in waiting if not running or task.job.load <= free), None)


def emulate_many(
    jobs: Sequence[EmulationJob], *, parallel: int, progress: Callable[[float], None]
) -> list[EmulatedRun | None]:
    """Run jobs as `emulate_as_completed` does; None is a run that Ctrl-C prevented.

    Raises:
        UsageError: a scenario cannot be run in real time.
        MachineError: the machine lacks something.
        BentpipeError: a run failed.
    """
    found: list[EmulatedRun | None] = [None] * len(jobs)
    with tempfile.TemporaryDirectory(prefix="bentpipe-") as folder:
        runs = emulate_as_completed(jobs, parallel=parallel, folder=Path(folder), progress=progress)
        # Closing the generator ends the runs after Ctrl-C.
        with suppress(KeyboardInterrupt), closing(runs):
            for run in runs:
                found[run.index] = run
    return found
