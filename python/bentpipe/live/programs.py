"""Programs in labs: those of a lab of this process, and those in one that another process keeps.

For the latter ``python -m bentpipe.live.programs`` runs one in a process of its own: only
a process with one thread may join a user namespace (setns(2)).
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from bentpipe import _core
from bentpipe.errors import BentpipeError, MachineError, ProgramStartError, UsageError
from bentpipe.live import machine
from bentpipe.refusals import refused_program

# Signals that a user or a service manager sends to end or to notify a program.
FORWARDED_SIGNALS: Final = frozenset(
    {signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2}
)
_POLL_S: Final = 60.0
# As env(1) exits when it fails itself.
_EXIT_FAILED: Final = 125


@dataclass
class Program:
    """A program of a lab of this process.

    ``process`` is the init process of its namespace, and ``output`` the file that it prints to.
    Once it has ended, ``code`` is its exit code, and ``text`` what it has printed.
    """

    process: int
    output: int = -1
    text: str = ""
    code: int | None = None
    children: Sequence[int] = ()

    @classmethod
    def start(cls, spawn: Callable[..., int]) -> Self:
        """Start it by ``spawn``, which takes a descriptor ``output`` and returns the process."""
        output = os.memfd_create("output")
        try:
            return cls(spawn(output=output), output)
        except BaseException:
            os.close(output)
            raise

    def find_children(self) -> Sequence[int]:
        """Return the children of its init process; a program that runs is the only one."""
        if not self.children:
            self.children = machine.children(self.process)
        return self.children

    def has_ended(self) -> bool:
        """Return whether it has ended; one whose file was closed is observed no longer."""
        if self.code is None and self.output >= 0:
            process, status = os.waitpid(self.process, os.WNOHANG)
            if process:
                self.code = os.waitstatus_to_exitcode(status)
                self.close()
        return self.code is not None

    def wait(self) -> int:
        """Wait until it ends; return its exit code."""
        while not self.has_ended():
            os.waitid(os.P_PID, self.process, os.WEXITED | os.WNOWAIT)
        assert self.code is not None
        return self.code

    def close(self) -> None:
        """Read what it has printed, and close the file."""
        if self.output >= 0:
            self.text = os.pread(self.output, self.printed_bytes(), 0).decode("utf-8", "replace")
            os.close(self.output)
            self.output = -1

    def printed_bytes(self) -> int:
        """Return how much it has printed; the position in the file is its own."""
        return os.fstat(self.output).st_size

    def first_byte(self) -> bytes:
        """Return the first byte that it has printed."""
        return os.pread(self.output, 1, 0)

    def report(self) -> dict[str, Any]:
        """Return the JSON that it has printed; nothing if it is anything else."""
        with suppress(ValueError):
            if isinstance(report := json.loads(self.text), dict):
                return report
        return {}

    def signal(self, number: signal.Signals, *, directly: bool = False) -> None:
        """Send it a signal, by its init process unless that does not forward it."""
        if self.has_ended():
            return
        for process in self.find_children() if directly else [self.process]:
            with suppress(ProcessLookupError):
                os.kill(process, number)


def refuse_program(words: Sequence[str]) -> None:
    """Refuse a program, with its arguments, whose traffic would not pass the link of a lab.

    Raises:
        UsageError: the program does not work in a lab; the message names the page that says why.
    """
    if (message := refused_program(words)) is not None:
        raise UsageError(message)


def start_in_lab(descriptors: Sequence[int], arguments: Sequence[str], host: str) -> int:
    """Start a program on a host, with the descriptors that the lab daemon passed; they are closed.

    Blocks `FORWARDED_SIGNALS` for `wait_for_program`. Returns the process id.

    Raises:
        ProgramStartError: the program cannot be started.
        MachineError: the lab cannot be entered.
    """
    try:
        *namespaces, user = descriptors
        current = Path("/proc/self/ns/user").stat()
        if not os.path.samestat(current, os.fstat(user)):
            _core.join_user_namespace(user)
        signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED_SIGNALS | {signal.SIGCHLD})
        return _core.spawn_in(namespaces, list(arguments), [("BENTPIPE_HOST", host)])
    except _core.ProgramError as error:
        raise start_error(arguments, error) from None
    except _core.MachineError as error:
        raise MachineError(str(error)) from None
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def start_error(arguments: Sequence[str], error: OSError) -> ProgramStartError:
    """Return the error of a program that the kernel did not execute, with its fix."""
    program = arguments[0] if arguments else ""
    reason = error.strerror if error.errno is None else os.strerror(error.errno)
    fix = ""
    if error.errno == errno.ENOENT and shutil.which(program) is None:
        place = "check the path" if "/" in program else "install it, or add its folder to PATH"
        return ProgramStartError(f"{program}: not found; to fix it: {place}", found=False)
    if error.errno == errno.ENOENT:
        # execve(2): also the interpreter of a script may be what does not exist.
        reason, fix = "its interpreter does not exist", "; to fix it: correct its first line"
    elif error.errno == errno.EACCES:
        fix = "; to fix it: name an executable file (chmod +x makes it one)"
    return ProgramStartError(f"{program}: cannot be executed: {reason}{fix}", found=True)


def wait_for_program(
    process: int, poll: Callable[[], None] = lambda: None, every_s: float = _POLL_S
) -> int:
    """Wait for a program and forward signals to it; call ``poll`` at least every so many seconds.

    `FORWARDED_SIGNALS` and SIGCHLD must be blocked. Returns the exit code, or minus the number of
    the signal that ended the program.
    """
    while True:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended == process:
            return os.waitstatus_to_exitcode(status)
        received = signal.sigtimedwait(FORWARDED_SIGNALS | {signal.SIGCHLD}, every_s)
        poll()
        if received is None or received.si_signo == signal.SIGCHLD:
            continue
        if not _has_reached_group(received):
            os.kill(process, received.si_signo)


def _has_reached_group(received: signal.struct_siginfo) -> bool:
    """Return whether the kernel sent a signal to every process of the foreground group.

    kill(2), whose si_code is at most 0, signals this process only. So does a terminal that closes
    while this process leads the session (`tty_signal_session_leader` of Linux).
    """
    leads = os.getsid(0) == os.getpid()
    return received.si_code > 0 and not (received.si_signo == signal.SIGHUP and leads)


def exit_status(code: int) -> int:
    """Return the exit status that a shell shows for the code of `wait_for_program`."""
    return code if code >= 0 else 128 - code


def main(action: str, *arguments: str) -> int:
    """Run a program on a host of a lab, and return its exit status.

    ``enter HOST DESCRIPTOR,... COMMAND...`` runs it with the descriptors of `start_in_lab`;
    ``become DESCRIPTOR COMMAND...`` becomes it in a user namespace.
    """
    try:
        if action == "become":
            descriptor, *command = arguments
            _core.join_user_namespace(int(descriptor))
            os.execv(command[0], command)
        host, descriptors, *command = arguments
        process = start_in_lab([int(text) for text in descriptors.split(",")], command, host)
    except (BentpipeError, _core.MachineError, OSError) as error:
        print(f"bentpipe: {error}", file=sys.stderr)
        return _EXIT_FAILED
    return exit_status(wait_for_program(process))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
