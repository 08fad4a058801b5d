"""Scenarios in real time, several at once, each in a process of its own.

A process for each, since a lab and its clock belong to one, and a run that was late says so for
itself alone. Such a run is made again: at the end, since what disturbed it may be over by then, and
the last time alone.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bentpipe.errors import BentpipeError, MachineError, UsageError

if TYPE_CHECKING:
    from bentpipe.results.result import Result

ATTEMPTS: Final = 3
_EXIT_USAGE, _EXIT_MACHINE, _EXIT_INVALID = 2, 3, 4
_STEP_S: Final = 0.05
_SESSION_NICE: Final = -15
# A run that takes so much longer than its traffic hangs.
_PATIENCE_S: Final = 60.0


@dataclass(frozen=True)
class RealJob:
    """A scenario as plain data, and the seed to run it with.

    ``longest_s`` is when its traffic is over at the latest, ``usual_s`` when it may well be;
    ``folder`` is what its result is called, by its number if nothing is said. ``load`` is the share
    of a processor that it takes.
    """

    scenario: dict[str, Any]
    seed: int
    longest_s: float
    usual_s: float
    folder: str = ""
    load: float = 1.0


@dataclass(frozen=True)
class RealRun:
    """What came of the job ``index``: its result, and how often it was made."""

    index: int
    result: Result
    attempts: int

    @property
    def invalid(self) -> str | None:
        """Why the figures do not count, if the link was late each time."""
        return self.result.invalid


@dataclass(eq=False)
class _Running:
    index: int
    job: RealJob
    folder: Path
    attempts: int = 0
    began: float = 0.0
    process: subprocess.Popen[bytes] = field(init=False)

    def start(self) -> None:
        self.attempts += 1
        self.began = time.monotonic()
        file = self.out.with_suffix(".json")
        file.write_text(json.dumps(self.job.scenario))
        command = [sys.executable, "-m", "bentpipe", "run", "--engine", "emulate", str(file)]
        command += ["--seed", str(self.job.seed), "--out", str(self.out)]
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                # Ctrl-C is for this process, which ends them all.
                start_new_session=True,
            )
        # A session shares the processors with the others as a group (sched(7), autogroup), however
        # its threads are preferred within it. Who may not raise its share does without.
        with suppress(OSError):
            Path(f"/proc/{self.process.pid}/autogroup").write_text(str(_SESSION_NICE))

    @property
    def out(self) -> Path:
        return self.folder / (self.job.folder or f"{self.index:03}")

    @property
    def errors(self) -> Path:
        return self.out.with_suffix(".txt")

    def age_s(self) -> float:
        return time.monotonic() - self.began

    def ended(self) -> bool:
        """Whether it is over.

        Raises:
            BentpipeError: it failed, or does not end.
        """
        code = self.process.poll()
        if code is None:
            if self.age_s() > self.job.longest_s + _PATIENCE_S:
                raise MachineError(f"{self._name()} does not end; see bentpipe doctor")
            return False
        if code not in (0, _EXIT_INVALID):
            raise self._error(code)
        return True

    def end(self) -> None:
        """End it at once. Its lab goes with it."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def _name(self) -> str:
        return str(self.job.scenario.get("name") or f"run {self.index}")

    def _error(self, code: int) -> BentpipeError:
        said = self.errors.read_text(errors="replace").strip()
        text = said.removeprefix("bentpipe: ")
        if code == _EXIT_USAGE:
            return UsageError(text)
        if code == _EXIT_MACHINE:
            return MachineError(text)
        return BentpipeError(f"{self._name()} failed with exit code {code}: {said}")


def emulate_each(
    jobs: Sequence[RealJob],
    *,
    parallel: int,
    folder: Path,
    progress: Callable[[float], None],
) -> Generator[RealRun]:
    """Run all jobs in ``folder``, a load of ``parallel`` at once; yield each when it is over.

    A run that was late is made again, up to `ATTEMPTS` times; the last one may still be invalid.
    Runs under way are ended when the iterator is closed.

    Raises:
        UsageError: a scenario cannot be run in real time.
        MachineError: the machine lacks something.
        BentpipeError: a run failed.
    """
    from bentpipe.results.result import Result

    waiting = deque(_Running(index, job, folder) for index, job in enumerate(jobs))
    running: list[_Running] = []
    alone: deque[_Running] = deque()
    done, furthest = 0, 0.0
    try:
        while waiting or running or alone:
            while (next_run := _fitting(waiting, running, parallel)) is not None:
                waiting.remove(next_run)
                running.append(next_run)
                next_run.start()
            if alone and not running:
                running.append(alone.popleft())
                running[-1].start()
            time.sleep(_STEP_S)
            for run in [each for each in running if each.ended()]:
                running.remove(run)
                result = Result.load(run.out)
                if result.invalid is None or run.attempts == ATTEMPTS:
                    done += 1
                    yield RealRun(run.index, result, run.attempts)
                else:
                    (alone if run.attempts == ATTEMPTS - 1 else waiting).append(run)
            share = sum(min(1.0, run.age_s() / run.job.usual_s) for run in running)
            # What has to be made again does not turn the clock back.
            furthest = max(furthest, (done + share) / len(jobs))
            progress(furthest)
    finally:
        for run in running:
            run.end()


def _fitting(
    waiting: Iterable[_Running], running: Sequence[_Running], parallel: int
) -> _Running | None:
    """Return the first run whose load fits beside those under way; any does beside none."""
    left = parallel - sum(run.job.load for run in running)
    return next((run for run in waiting if not running or run.job.load <= left), None)


def emulate_all(
    jobs: Sequence[RealJob], *, parallel: int, progress: Callable[[float], None]
) -> list[RealRun | None]:
    """Run all jobs as `emulate_each` does; None is what Ctrl-C left out.

    Raises:
        UsageError: a scenario cannot be run in real time.
        MachineError: the machine lacks something.
        BentpipeError: a run failed.
    """
    found: list[RealRun | None] = [None] * len(jobs)
    with tempfile.TemporaryDirectory(prefix="bentpipe-") as folder:
        runs = emulate_each(jobs, parallel=parallel, folder=Path(folder), progress=progress)
        # It ends what is under way when it is interrupted.
        with suppress(KeyboardInterrupt), closing(runs):
            for run in runs:
                found[run.index] = run
    return found
