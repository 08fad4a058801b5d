"""One emulated run in a child process, which runs this module.

A lab needs a process that may create a user namespace, so one with a single thread, and its
real-time clock is disturbed by other work of the same process. The child reads the plan, pickled,
from standard input, runs it and saves the result; it prints an error on standard error.
"""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

# By way of the packages: what starts threads must be imported after `prepare`.
from bentpipe import emulation
from bentpipe.errors import BentpipeError, MachineError, error_with_code

if TYPE_CHECKING:
    from bentpipe.plan.plan import Plan

_SESSION_NICE: Final = -15
# A run that lasts longer than its traffic by this time is considered hung.
_TIMEOUT_S: Final = 60.0
_REMOVE_TIMEOUT_S: Final = 2.0


@dataclass(eq=False, kw_only=True)
class Worker:
    """A child process that runs a plan and saves the result in the folder ``out``.

    ``max_s`` is the longest duration of the traffic, ``capture`` the file to capture packets into.
    """

    plan: Plan
    seed: int
    out: Path
    max_s: float
    capture: Path | None = None
    _started_s: float = field(init=False, default=0.0)
    _process: subprocess.Popen[bytes] | None = field(init=False, default=None)
    # Of temporary files, which a process that is killed leaves behind.
    _temporary: Path | None = field(init=False, default=None)

    def start(self) -> None:
        """Start the process."""
        self._started_s = time.monotonic()
        self._temporary = Path(tempfile.mkdtemp(prefix="bentpipe-"))
        with self._errors.open("w") as errors:
            process = self._process = subprocess.Popen(
                [sys.executable, "-m", "bentpipe.emulation.worker"],
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
            pickle.dump((self.plan, self.seed, self.out, self.capture), request_pipe)

    @property
    def _errors(self) -> Path:
        return self.out.with_suffix(".txt")

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
        if code is None:
            if self.age_s() > self.max_s + _TIMEOUT_S:
                raise MachineError(f"{self._name} does not end; see bentpipe doctor")
            return False
        self._remove_temporary()
        if code != 0:
            message = self._errors.read_text(errors="replace").strip()
            raise error_with_code(code, message or f"{self._name} failed with exit code {code}")
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

    @property
    def _name(self) -> str:
        return self.plan.scenario.name or self.out.name


def main() -> int:
    """Run the plan of the request; return the exit code."""
    plan, seed, out, capture = pickle.load(sys.stdin.buffer)
    try:
        emulation.prepare(plan)
        emulation.run_emulation(plan, seed=seed, capture=capture).save(out)
    except BentpipeError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
