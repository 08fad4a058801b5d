"""Emulated runs, each in a child process: one, or many, several at a time.

A run that was late is repeated after the others, when the cause may have ended; its last attempt
runs alone.
"""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Final

from bentpipe.errors import BentpipeError, InvalidRunError, MachineError, error_with_code
from bentpipe.live.checks import check_plan
from bentpipe.plan.plan import Plan
from bentpipe.results.result import Result
from bentpipe.scenario.schema import Scenario
from bentpipe.units import NS_PER_S, check_seed

_SESSION_NICE: Final = -15
# A run that lasts longer than its traffic by this time is considered hung.
_TIMEOUT_S: Final = 60.0
_REMOVE_TIMEOUT_S: Final = 2.0
# A run at this rate takes a whole processor; the programs and timers of a slow one take a quarter.
_RATE_OF_A_PROCESSOR_BPS: Final = 50e6
_MIN_SHARE: Final = 0.25
MAX_ATTEMPTS: Final = 3
_POLL_S: Final = 0.05
# Among so many, one is found whose load fits.
_LOOK_AHEAD: Final = 100


def emulate(
    scenario: Scenario | str | Path | Mapping[str, Any],
    *,
    seed: int | None = None,
    capture: str | Path | None = None,
) -> Result:
    """Run a scenario in real time: iperf3 and Linux TCP over the link of the simulator.

    ``scenario`` is a `Scenario`, the path of a scenario file, or a mapping. ``seed`` (0 to 2^64-1)
    replaces the scenario's and gives the random losses of the link. ``capture`` names a file to
    capture packets into (pcapng, for Wireshark); an existing one is replaced. The run takes as long
    as the scenario and is a process of its own: it needs neither root nor a process with one
    thread. Ctrl-C ends it and raises KeyboardInterrupt. The tables of the result are those of
    `simulate`; its manifest has the kernel's settings, warnings and the lateness of packets.

    Raises:
        ScenarioError: the scenario is wrong, or cannot be run in real time; nothing was run.
        UsageError: the seed is out of range, or the capture cannot be written.
        MachineError: the machine lacks something, such as iperf3 or user namespaces.
        InvalidRunError: packets were late beyond the limits; its ``result`` is what was measured.
    """
    plan = Plan.resolve(scenario)
    check_seed(seed)
    check_plan(plan)
    with tempfile.TemporaryDirectory(prefix="bentpipe-") as folder:
        time_s, used_seed = plan.data["stop_ns"] / NS_PER_S, plan.scenario.seed
        job = EmulationJob(plan, used_seed if seed is None else seed, time_s, time_s)
        file = None if capture is None else Path(capture)
        worker = Worker(job, Path(folder) / "result", file)
        try:
            worker.start()
            while not worker.has_finished():
                time.sleep(_POLL_S)
        finally:
            worker.kill()
        result = Result.load(worker.out)
    if result.invalid is not None:
        raise InvalidRunError(result.invalid, result=result)
    return result


def processor_share(rate_bps: float) -> float:
    """Return the approximate share of a processor that a run takes, at a link's rate."""
    return min(1.0, _MIN_SHARE + (1 - _MIN_SHARE) * rate_bps / _RATE_OF_A_PROCESSOR_BPS)


@dataclass(frozen=True)
class EmulationJob:
    """A plan, and the seed to run it with.

    ``max_s`` is the longest duration of its traffic, ``expected_s`` the usual one. ``folder`` is
    the name of its result, by default its number. ``load`` is the share of a processor that it
    takes.
    """

    plan: Plan
    seed: int
    max_s: float
    expected_s: float
    folder: str = ""
    load: float = 1.0


@dataclass(eq=False)
class Worker:
    """A child process that runs a job and saves the result in the folder ``out``.

    ``capture`` is the file to capture packets into.
    """

    job: EmulationJob
    out: Path
    capture: Path | None = None
    _started_s: float = field(init=False, default=0.0)
    _process: subprocess.Popen[bytes] | None = field(init=False, default=None)
    # Of temporary files, which a process that is killed leaves behind.
    _temporary: Path | None = field(init=False, default=None)

    def start(self) -> None:
        """Start the process."""
        self._started_s = time.monotonic()
        self._temporary = Path(tempfile.mkdtemp(prefix="bentpipe-"))
        with self.out.with_suffix(".txt").open("w") as errors:
            process = self._process = subprocess.Popen(
                [sys.executable, "-m", "bentpipe.live.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                env={**os.environ, "TMPDIR": str(self._temporary)},
                # Ctrl-C is for this process, which ends its children.
                start_new_session=True,
            )
        # The scheduler shares the processors among sessions (sched(7), autogroup), whatever the
        # priorities of threads within one. Raising the share needs privileges; it is optional.
        with suppress(OSError):
            Path(f"/proc/{process.pid}/autogroup").write_text(str(_SESSION_NICE))
        assert process.stdin is not None
        with suppress(BrokenPipeError), process.stdin as request_pipe:
            pickle.dump((self.job.plan, self.job.seed, self.out, self.capture), request_pipe)

    def age_s(self) -> float:
        """Return the time since the start."""
        return time.monotonic() - self._started_s

    def has_finished(self) -> bool:
        """Return whether the run is finished.

        Raises:
            BentpipeError: it failed, or does not end.
        """
        assert self._process is not None, "it was started"
        code = self._process.poll()
        name = self.job.plan.scenario.name or self.out.name
        if code is None:
            if self.age_s() > self.job.max_s + _TIMEOUT_S:
                raise MachineError(f"{name} does not end; see bentpipe doctor")
            return False
        self._remove_temporary()
        if code != 0:
            message = self.out.with_suffix(".txt").read_text(errors="replace").strip()
            raise error_with_code(code, message or f"{name} failed with exit code {code}")
        return True

    def kill(self) -> None:
        """Kill the process; its lab ends with it."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._remove_temporary()

    def _remove_temporary(self) -> None:
        """Remove the temporary files, also while the kernel still ends programs of the lab."""
        until_s = time.monotonic() + _REMOVE_TIMEOUT_S
        while self._temporary is not None and self._temporary.exists():
            shutil.rmtree(self._temporary, ignore_errors=True)
            if time.monotonic() > until_s:
                break
        self._temporary = None


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
class EmulationTask:
    """A job, its attempts, and the result of the last one, or why it failed."""

    index: int
    worker: Worker
    attempts: int = 0
    result: Result | None = None
    error: BentpipeError | None = None

    def start(self) -> None:
        """Start the next attempt."""
        self.attempts += 1
        self.worker.start()

    def has_finished(self) -> bool:
        """Return whether the attempt is over."""
        try:
            if not self.worker.has_finished():
                return False
            self.result = Result.load(self.worker.out)
        except BentpipeError as error:
            self.error = error
            self.worker.kill()
        return True

    @property
    def is_over(self) -> bool:
        """Return whether the job is not repeated."""
        is_valid = self.result is not None and self.result.invalid is None
        return is_valid or self.error is not None or self.attempts == MAX_ATTEMPTS

    def progress(self) -> float:
        """Return the expected fraction of the attempt that is done."""
        return min(1.0, self.worker.age_s() / self.worker.job.expected_s)


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
    done, reached = 0, 0.0

    def report(running: Sequence[EmulationTask]) -> None:
        nonlocal reached
        # A run that is repeated does not reduce the progress.
        reached = max(reached, (done + sum(task.progress() for task in running)) / len(jobs))
        progress(reached)

    with closing(
        run_tasks(enumerate(jobs), parallel=parallel, folder=folder, on_poll=report)
    ) as run:
        for task in run:
            done += 1
            if task.error is not None:
                raise task.error
            assert task.result is not None, "the run did not fail"
            yield EmulatedRun(task.index, task.result, task.attempts)


def run_tasks(
    jobs: Iterable[tuple[int, EmulationJob]],
    *,
    parallel: float,
    folder: Path,
    on_poll: Callable[[Sequence[EmulationTask]], None] = lambda _: None,
) -> Generator[EmulationTask]:
    """Run jobs, each with its number, with a total load of ``parallel``; yield finished tasks.

    ``jobs`` are drawn some time before they start. ``on_poll`` is called twenty times a second with
    the tasks that are running. Closing the generator ends the runs.
    """
    tasks = (
        EmulationTask(index, Worker(job, folder / (job.folder or f"{index:03}")))
        for index, job in jobs
    )
    waiting: deque[EmulationTask] = deque()
    running: list[EmulationTask] = []
    alone: deque[EmulationTask] = deque()
    try:
        while True:
            waiting.extend(islice(tasks, max(0, _LOOK_AHEAD - len(waiting))))
            while (next_task := _next_task(waiting, running, parallel)) is not None:
                waiting.remove(next_task)
                running.append(next_task)
                next_task.start()
            if alone and not running:
                running.append(alone.popleft())
                running[-1].start()
            if not running:
                return
            time.sleep(_POLL_S)
            for task in [each for each in running if each.has_finished()]:
                running.remove(task)
                if task.is_over:
                    yield task
                else:
                    (alone if task.attempts == MAX_ATTEMPTS - 1 else waiting).append(task)
            on_poll(running)
    finally:
        for task in running:
            task.worker.kill()


def _next_task(
    waiting: Iterable[EmulationTask], running: Sequence[EmulationTask], parallel: float
) -> EmulationTask | None:
    """Return the first task with a load that fits into ``parallel``; a task may run alone."""
    free = parallel - sum(task.worker.job.load for task in running)
    return next((task for task in waiting if not running or task.worker.job.load <= free), None)


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
