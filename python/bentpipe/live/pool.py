"""Emulated runs, each in a child process: one, or many, several at a time.

A run that was late is repeated after the others, when the cause may have ended; its last attempt
runs alone.
"""

from __future__ import annotations

import signal
import tempfile
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Final

from bentpipe.errors import BentpipeError, InvalidRunError, MachineError, error_with_code
from bentpipe.live.child import Child, deferring_interrupts
from bentpipe.live.run import check_plan, run_emulation
from bentpipe.plan.plan import Plan
from bentpipe.results.result import Result
from bentpipe.scenario.schema import Scenario
from bentpipe.units import NS_PER_S, check_seed

# A run that lasts longer than its traffic by this time is considered hung.
_TIMEOUT_S: Final = 60.0
# A run at this rate takes a whole processor; the programs and timers of a slow one take a quarter.
_RATE_OF_A_PROCESSOR_BPS: Final = 50e6
_MIN_SHARE: Final = 0.25
MAX_ATTEMPTS: Final = 3
_POLL_S: Final = 0.05
# Among so many, one is found whose load fits.
_LOOK_AHEAD: Final = 100

Listeners = Mapping[str, Callable[[Any], None]]


def emulate(
    scenario: Scenario | str | Path | Mapping[str, Any],
    *,
    seed: int | None = None,
    capture: str | Path | None = None,
) -> Result:
    """Run a scenario in real time: iperf3 and Linux TCP over the link of the simulator.

    The run takes as long as the scenario and is a process of its own: it needs neither root nor a
    process with one thread.

    Parameters
    ----------
    scenario
        A `Scenario`, the path of a scenario file, or a mapping.
    seed
        Replaces the scenario's seed, 0 to 2^64-1: it gives the random losses of the link.
    capture
        The file to capture packets into (pcapng, for Wireshark); an existing one is replaced.

    Returns
    -------
    Result
        The tables are those of `simulate`. The manifest has the kernel's settings, warnings and the
        lateness of packets.

    Raises
    ------
    ScenarioError
        The scenario is wrong, or cannot be run in real time; nothing was run.
    UsageError
        The seed is out of range, or the capture cannot be written.
    MachineError
        The machine lacks something, such as iperf3 or user namespaces.
    InvalidRunError
        Packets were late beyond the limits; its ``result`` is what was measured.
    KeyboardInterrupt
        Ctrl-C.

    Examples
    --------
    >>> result = bentpipe.emulate("scenarios/geo-bulk.yaml")  # doctest: +SKIP
    >>> result.flows["delivered_bytes"].to_list()  # doctest: +SKIP
    [10485760]
    """
    file = None if capture is None else Path(capture)
    result = run_plan(Plan.resolve(scenario), seed=seed, capture=file)
    if result.invalid is not None:
        raise InvalidRunError(result.invalid, result=result)
    return result


def run_plan(
    plan: Plan,
    *,
    seed: int | None = None,
    capture: Path | None = None,
    listeners: Listeners | None = None,
) -> Result:
    """Run a plan in real time in a process of its own.

    ``listeners`` are called with the messages of `run_emulation`. With them, Ctrl-C ends the run
    early: the result is what was recorded, marked interrupted. A second one discards it.

    Raises:
        BentpipeError: see `emulate`; an invalid run is not an error.
    """
    check_seed(seed)
    check_plan(plan)
    stop_s = plan.data["stop_ns"] / NS_PER_S
    job = EmulationJob(plan, plan.scenario.seed if seed is None else seed, stop_s, stop_s)
    run = EmulatedRun(0, job, capture, listeners)
    try:
        run.start()
        try:
            run.wait()
        except KeyboardInterrupt:
            if listeners is None:
                raise
            run.interrupt()
            run.wait()
    finally:
        run.kill()
    return run.result


def processor_share(rate_bps: float) -> float:
    """Return the approximate share of a processor that a run takes, at a link's rate."""
    return min(1.0, _MIN_SHARE + (1 - _MIN_SHARE) * rate_bps / _RATE_OF_A_PROCESSOR_BPS)


@dataclass(frozen=True)
class EmulationJob:
    """A plan, and the seed to run it with.

    ``max_s`` is the longest duration of its traffic, ``expected_s`` the usual one. ``load`` is the
    share of a processor that it takes.
    """

    plan: Plan
    seed: int
    max_s: float
    expected_s: float
    load: float = 1.0


@dataclass(eq=False)
class EmulatedRun:
    """A job, its attempts, each in a child process, and what came of the last one.

    ``capture`` is the file to capture packets into.
    """

    index: int
    job: EmulationJob
    capture: Path | None = None
    listeners: Listeners | None = None
    attempts: int = 0
    outcome: Result | BentpipeError | None = None
    _started_s: float = field(init=False, default=0.0)
    _child: Child | None = field(init=False, default=None)

    @property
    def result(self) -> Result:
        """The result; it may be that of an invalid run.

        Raises:
            BentpipeError: the run failed.
        """
        if isinstance(self.outcome, BentpipeError):
            raise self.outcome
        assert self.outcome is not None, "the run is over"
        return self.outcome

    @property
    def invalid(self) -> str | None:
        """Why the run is invalid: the link was late in every attempt; None if it is valid."""
        return self.result.invalid

    def start(self) -> None:
        """Start the next attempt."""
        self.attempts += 1
        self._started_s = time.monotonic()
        request = (self.job.plan, self.job.seed, self.capture, self.listeners is not None)
        # A program that is killed leaves temporary files behind.
        folder = Path(tempfile.mkdtemp(prefix="bentpipe-"))
        self._child = Child("run", run_emulation, *request, folder=folder)

    def has_finished(self) -> bool:
        """Pass messages on; return whether the attempt is over."""
        # Ctrl-C must not lose a message.
        with deferring_interrupts():
            if self._child is not None and self._is_over(self._child):
                self.kill()
        return self._child is None

    def _is_over(self, child: Child) -> bool:
        name = self.job.plan.scenario.name or "the run"
        try:
            while child.has_message():
                kind, value = child.receive()
                if kind == "result":
                    self.outcome = value
                    return True
                if self.listeners is not None:
                    self.listeners[kind](value)
            if self._age_s() < self.job.max_s + _TIMEOUT_S:
                return False
            self.outcome = MachineError(f"{name} does not end; see bentpipe check")
        except EOFError:
            code = child.process.wait()
            if code == -signal.SIGINT:
                raise KeyboardInterrupt from None
            self.outcome = error_with_code(code, f"{name} failed with exit code {code}")
        except BentpipeError as error:
            self.outcome = error
        return True

    def wait(self) -> None:
        """Wait until the attempt is over."""
        while not self.has_finished():
            time.sleep(_POLL_S)

    def interrupt(self) -> None:
        """End the attempt early, with what was recorded."""
        if self._child is not None:
            self._child.process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        """Kill the process; its lab ends with it."""
        if self._child is not None:
            self._child.close()
        self._child = None

    @property
    def is_final(self) -> bool:
        """Return whether the job is not repeated."""
        failed = isinstance(self.outcome, BentpipeError)
        return failed or self.attempts == MAX_ATTEMPTS or self.invalid is None

    def progress(self) -> float:
        """Return the expected fraction of the attempt that is done."""
        return min(1.0, self._age_s() / self.job.expected_s)

    def _age_s(self) -> float:
        return time.monotonic() - self._started_s


def emulate_as_completed(
    jobs: Iterable[EmulationJob],
    *,
    parallel: float,
    total: int = 1,
    progress: Callable[[float], None] = lambda _: None,
) -> Generator[EmulatedRun]:
    """Run jobs with a total load of ``parallel`` at a time; yield each when it is over.

    A run that was late is repeated, up to `MAX_ATTEMPTS` attempts; the last one may be invalid,
    too. Jobs are drawn some time before they start. ``progress`` is called twenty times a second
    with the fraction of ``total`` jobs that is done. Closing the generator ends the runs.
    """
    drawn = (EmulatedRun(index, job) for index, job in enumerate(jobs))
    waiting: deque[EmulatedRun] = deque()
    running: list[EmulatedRun] = []
    alone: deque[EmulatedRun] = deque()
    done, reached = 0, 0.0
    try:
        while True:
            waiting.extend(islice(drawn, max(0, _LOOK_AHEAD - len(waiting))))
            while (run := _next_run(waiting, running, parallel)) is not None:
                waiting.remove(run)
                running.append(run)
                run.start()
            if alone and not running:
                running.append(alone.popleft())
                running[-1].start()
            if not running:
                return
            time.sleep(_POLL_S)
            for run in [run for run in running if run.has_finished()]:
                running.remove(run)
                if run.is_final:
                    done += 1
                    yield run
                else:
                    (alone if run.attempts == MAX_ATTEMPTS - 1 else waiting).append(run)
            # A run that is repeated does not reduce the progress.
            reached = max(reached, (done + sum(run.progress() for run in running)) / total)
            progress(reached)
    finally:
        for run in running:
            run.kill()


def _next_run(
    waiting: Iterable[EmulatedRun], running: Sequence[EmulatedRun], parallel: float
) -> EmulatedRun | None:
    """Return the first run with a load that fits into ``parallel``; a run may be alone."""
    free = parallel - sum(run.job.load for run in running)
    return next((run for run in waiting if not running or run.job.load <= free), None)
