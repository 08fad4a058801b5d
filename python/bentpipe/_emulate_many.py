"""Scenarios in real time, several at once, each in a process of its own.

A run that was late says nothing of the link, so it is made again, alone if that is what it takes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bentpipe.errors import BentpipeError, MachineError, UsageError
from bentpipe.scenario import Scenario

if TYPE_CHECKING:
    from bentpipe.results import Result

# Of a run that was late every time, the last one.
ATTEMPTS: Final = 3
_EXIT_USAGE, _EXIT_MACHINE, _EXIT_INVALID = 2, 3, 4
_STEP_S: Final = 0.05
_PATIENCE_S: Final = 5.0


@dataclass(frozen=True)
class RealRun:
    """What came of a scenario: its result, and how often it was late before that."""

    result: Result
    attempts: int

    @property
    def is_valid(self) -> bool:
        """Whether the link was on time."""
        return self.result.invalid is None


@dataclass
class _Job:
    index: int
    scenario: Scenario
    folder: Path
    attempts: int = 0
    process: subprocess.Popen[bytes] | None = None

    def start(self, seed: int) -> None:
        self.attempts += 1
        file = self.folder / f"{self.index}.json"
        file.write_text(json.dumps(self.scenario.to_dict()))
        command = [sys.executable, "-m", "bentpipe", "run", "--engine", "emulate", str(file)]
        command += ["--seed", str(seed), "--json", "--out", str(self.out)]
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                # Ctrl-C is for this process to pass on.
                start_new_session=True,
            )

    @property
    def out(self) -> Path:
        return self.folder / f"{self.index}-{self.attempts}"

    @property
    def errors(self) -> Path:
        return self.folder / f"{self.index}.txt"


@dataclass
class _Work:
    seed: int
    parallel: int
    waiting: list[_Job]
    running: list[_Job] = field(default_factory=list)
    # What was late with others beside it has the machine for itself the last time.
    alone: list[_Job] = field(default_factory=list)
    done: dict[int, RealRun] = field(default_factory=dict)

    def step(self) -> None:
        for job in list(self.running):
            if job.process is not None and (code := job.process.poll()) is not None:
                self.running.remove(job)
                self._over(job, code)
        while self.waiting and len(self.running) < self.parallel:
            self._start(self.waiting.pop(0))
        if self.alone and not self.running:
            self._start(self.alone.pop(0))

    def _start(self, job: _Job) -> None:
        job.start(self.seed)
        self.running.append(job)

    def _over(self, job: _Job, code: int) -> None:
        from bentpipe.results import Result

        if code not in (0, _EXIT_INVALID):
            raise _error(job, code)
        if code == _EXIT_INVALID and job.attempts < ATTEMPTS:
            (self.alone if job.attempts == ATTEMPTS - 1 else self.waiting).append(job)
            return
        self.done[job.index] = RealRun(Result.load(job.out), job.attempts)

    def end(self) -> None:
        for job in self.running:
            if job.process is not None:
                job.process.terminate()
        for job in self.running:
            if job.process is not None:
                with suppress(subprocess.TimeoutExpired):
                    job.process.wait(_PATIENCE_S)
                job.process.kill()
                job.process.wait()


def emulate_many(
    scenarios: Sequence[Scenario],
    *,
    seed: int,
    parallel: int,
    progress: Callable[[int, int], None] | None = None,
) -> list[RealRun | None]:
    """Run scenarios in real time, ``parallel`` of them at once; None is what Ctrl-C left out.

    A run that was late is made again, up to three times; the last one may still be invalid.

    Raises:
        UsageError: a scenario cannot be run in real time.
        MachineError: the machine lacks something.
    """
    with tempfile.TemporaryDirectory(prefix="bentpipe-") as folder:
        jobs = [_Job(index, each, Path(folder)) for index, each in enumerate(scenarios)]
        work = _Work(seed, parallel, jobs)
        try:
            while len(work.done) < len(scenarios):
                work.step()
                if progress is not None:
                    progress(len(work.done), len(scenarios))
                time.sleep(_STEP_S)
        except KeyboardInterrupt:
            pass
        finally:
            work.end()
    return [work.done.get(index) for index in range(len(scenarios))]


def _error(job: _Job, code: int) -> BentpipeError:
    said = job.errors.read_text(errors="replace").strip()
    text = said.removeprefix("bentpipe: ").removeprefix("error: ")
    kinds = {_EXIT_USAGE: UsageError, _EXIT_MACHINE: MachineError}
    name = job.scenario.to_dict().get("name", "")
    if code in kinds:
        return kinds[code](text)
    return MachineError(f"a run in real time ({name}) ended with exit code {code}: {said}")
