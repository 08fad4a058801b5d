"""Points of a validation in real time: several at once, each a process of its own.

A process of its own for each, since a lab and its clock belong to one, and a run that was late says
so for itself alone.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

from bentpipe.errors import BentpipeError, MachineError
from bentpipe.validation import Figures, Point, figures_of

ATTEMPTS: Final = 3
_INVALID: Final = 4
_MACHINE: Final = 3
_POLL_S: Final = 0.1
_SESSION_NICE: Final = -15
# A run that takes so much longer than its traffic hangs.
_PATIENCE_S: Final = 60.0


@dataclass(kw_only=True)
class Run:
    """One run of a point: a seed, and what came of it."""

    point: Point
    seed: int
    figures: Figures | None = None
    invalid: str | None = None
    attempts: int = 0
    _process: subprocess.Popen[bytes] | None = None
    _errors: IO[bytes] | None = None
    _began: float = field(default=0.0)

    def start(self, folder: Path, seconds: float) -> None:
        """Start it; its result goes into a folder of its own."""
        self.attempts += 1
        scenario, out = self._paths(folder)
        scenario.write_text(json.dumps(self.point.scenario(seconds)))
        command = [sys.executable, "-m", "bentpipe", "run", "--engine", "emulate", str(scenario)]
        self._errors = (folder / f"{out.name}.txt").open("wb+")
        self._began = time.monotonic()
        self._process = subprocess.Popen(
            [*command, "--seed", str(self.seed), "--out", str(out)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            start_new_session=True,
        )
        # A session shares the processors with the others as a group (sched(7), autogroup), however
        # its threads are preferred within it. Who may not raise its share does without.
        with suppress(OSError):
            Path(f"/proc/{self._process.pid}/autogroup").write_text(str(_SESSION_NICE))

    def age_s(self) -> float:
        """Return for how long it has been running."""
        return time.monotonic() - self._began

    def ended(self, folder: Path) -> bool:
        """Look whether it is over, and if so take what it gave.

        Raises:
            MachineError: the machine lacks something for it.
            BentpipeError: it failed.
        """
        assert self._process is not None
        assert self._errors is not None
        code = self._process.poll()
        if code is None:
            return False
        self._errors.seek(0)
        said = self._errors.read().decode("utf-8", "replace").strip()
        self._errors.close()
        if code == _MACHINE:
            raise MachineError(said.removeprefix("bentpipe: "))
        if code not in (0, _INVALID):
            raise BentpipeError(f"point {self.point.number} failed with exit code {code}: {said}")
        from bentpipe.results import Result

        result = Result.load(self._paths(folder)[1])
        self.invalid = result.invalid
        if self.invalid is None:
            self.figures = figures_of(result, self.point)
        return True

    def kill(self) -> None:
        """End it at once. Its lab goes with it."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()

    def _paths(self, folder: Path) -> tuple[Path, Path]:
        name = f"point-{self.point.number:03}-seed-{self.seed}"
        return folder / f"{name}.json", folder / name


def in_real_time(
    points: Sequence[Point],
    *,
    seconds: float,
    seeds: Sequence[int],
    parallel: int,
    folder: Path,
    progress: Callable[[float], None],
) -> Iterator[Run]:
    """Run all points with all seeds, ``parallel`` at once; yield each run that is over.

    One that was late is repeated up to `ATTEMPTS` times and comes back without figures if all were.
    Runs under way are ended when the iterator is closed.

    Raises:
        MachineError: the machine lacks something.
        BentpipeError: a run failed.
    """
    waiting = deque(_fast_with_slow([Run(point=p, seed=seed) for p in points for seed in seeds]))
    running: list[Run] = []
    total, done, most = len(waiting), 0, 0.0
    try:
        while waiting or running:
            while waiting and len(running) < parallel:
                run = waiting.popleft()
                run.start(folder, seconds)
                running.append(run)
            time.sleep(_POLL_S)
            for run in [each for each in running if _is_over(each, folder, seconds)]:
                running.remove(run)
                if run.figures is None and run.attempts < ATTEMPTS:
                    # At the end: what disturbed it may be over by then.
                    waiting.append(run)
                else:
                    done += 1
                    yield run
            share = sum(min(1.0, run.age_s() / seconds) for run in running)
            most = max(most, (done + share) / total)
            progress(most)
    finally:
        # Not waited for: whoever is impatient must not keep the last from being ended.
        for run in running:
            run.kill()


def _is_over(run: Run, folder: Path, seconds: float) -> bool:
    if run.age_s() > seconds + _PATIENCE_S:
        run.kill()
        raise BentpipeError(f"point {run.point.number} does not end; see bentpipe doctor")
    return run.ended(folder)


def _fast_with_slow(runs: list[Run]) -> list[Run]:
    """Return runs such that the fastest go beside the slowest."""
    by_rate = deque(sorted(runs, key=lambda run: run.point.rate_mbps))
    mixed = []
    while by_rate:
        mixed.append(by_rate.pop())
        if by_rate:
            mixed.append(by_rate.popleft())
    return mixed
