"""Child processes that set up labs, and what they tell the process that started them.

A process can create a user namespace only while it has one thread, and other work of the same
process disturbs the real-time clock of a lab. `Child` starts ``python -m bentpipe.live.child NAME``
and sends it a request: a function and its arguments. The child gains the privileges of a lab, calls
the function, and sends messages: ``ready``, ``progress``, ``note`` and ``report`` as the function
does, and at its end ``result`` or ``error``, with its exit code. It ends with its parent, unless it
was detached.
"""

from __future__ import annotations

import os
import pickle
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, Literal

from bentpipe.errors import BentpipeError, error_with_code
from bentpipe.live import machine
from bentpipe.live.capacity import gain_privileges

_SESSION_NICE: Final = -15
_END_TIMEOUT_S: Final = 5.0
_REMOVE_TIMEOUT_S: Final = 2.0

Kind = Literal["ready", "progress", "note", "report", "result", "error"]
Send = Callable[[Kind, Any], None]


class Child:
    """A child process in which ``function(*arguments, parent)`` runs; ``parent`` is a `Parent`.

    The function is one of a module. ``name`` is for ps(1). A ``folder`` is that of its temporary
    files, and is removed with it.
    """

    def __init__(
        self, name: str, function: Callable[..., Any], *arguments: Any, folder: Path | None = None
    ) -> None:
        self.folder = folder
        ours, its = socket.socketpair()
        self._connection = Connection(ours.detach())
        with its:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "bentpipe.live.child", name, str(its.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[its.fileno()],
                env=os.environ if folder is None else {**os.environ, "TMPDIR": str(folder)},
                # Neither Ctrl-C nor the end of the terminal reaches it.
                start_new_session=True,
            )
        # The scheduler shares the processors among sessions (sched(7), autogroup), whatever the
        # priorities of threads within one. Raising the share needs privileges; it is optional.
        with suppress(OSError):
            Path(f"/proc/{self.process.pid}/autogroup").write_text(str(_SESSION_NICE))
        # One that has ended already reads nothing.
        with suppress(ConnectionError):
            self._connection.send((folder, pickle.dumps((function, arguments))))

    def has_message(self) -> bool:
        """Return whether `receive` returns, or raises an error, without waiting."""
        return self._connection.poll()

    def receive(self) -> tuple[Kind, Any]:
        """Return the next message.

        Raises:
            BentpipeError: the child failed; the class is that of its exit code.
            EOFError: it has ended, or was ended.
        """
        try:
            kind, value = self._connection.recv()
        except OSError:
            raise EOFError from None
        if kind == "error":
            raise error_with_code(*value)
        return kind, value

    def close(self) -> None:
        """Kill the child and all that it started, and remove its folder.

        The kernel ends a lab faster than its destructors.
        """
        # One that is stopped starts no other program.
        self.process.send_signal(signal.SIGSTOP)
        with suppress(ChildProcessError):
            os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        started = list(_pidfds_of_children(self.process.pid))
        self._connection.close()
        self.process.kill()
        self.process.wait()
        _kill(started)
        until_s = time.monotonic() + _REMOVE_TIMEOUT_S
        while self.folder is not None and self.folder.exists() and time.monotonic() < until_s:
            shutil.rmtree(self.folder, ignore_errors=True)


class Parent:
    """The parent of this process, as its child sees it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._is_needed = True

    def send(self, kind: Kind, value: Any) -> None:
        """Send a message, unless nobody receives it; after Ctrl-C, too, it is a whole one."""
        with deferring_interrupts(), suppress(OSError):
            self._connection.send((kind, value))

    def detach(self) -> None:
        """Let this process outlive its parent from now on."""
        self._is_needed = False

    def end_with(self, folder: Path | None) -> None:
        """Wait for the end of the parent, and end this process, too; remove its folder."""
        # They are for the main thread.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        with suppress(EOFError, OSError):
            self._connection.recv()
        if self._is_needed:
            # A program that still runs may make the folder anew.
            _kill(_pidfds_of_children(os.getpid()))
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)
            # The kernel ends a lab faster than its destructors.
            os._exit(0)


def _pidfds_of_children(process: int) -> Iterator[int]:
    for child in machine.children(process):
        # It may have ended, or no descriptor is left: the kernel kills it with its parent anyway.
        with suppress(OSError):
            yield os.pidfd_open(child)


def _kill(pidfds: Iterable[int]) -> None:
    """Kill processes, wait until they have ended, and close their pidfds.

    Where one is the init of a PID namespace, so have all others in it by then, since the kernel
    ends it last (pid_namespaces(7)).
    """
    for pidfd in pidfds:
        with suppress(OSError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        # select(2) refuses descriptors from 1,024 on.
        end = select.poll()
        end.register(pidfd, select.POLLIN)
        end.poll(_END_TIMEOUT_S * 1_000)
        os.close(pidfd)


@contextmanager
def deferring_interrupts() -> Iterator[None]:
    """Raise Ctrl-C at the end of this block, which must not take long."""
    before = signal.getsignal(signal.SIGINT)
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or before in {None, signal.SIG_IGN}:
        yield
        return
    received: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _frame: received.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if received:
        raise KeyboardInterrupt


def main(descriptor: int) -> int:
    """Run the request that the parent sends; return the exit code."""
    # Programs of the lab do not inherit it.
    os.set_inheritable(descriptor, False)
    connection = Connection(descriptor)
    parent = Parent(connection)
    try:
        folder, request = connection.recv()
        gain_privileges()
        threading.Thread(target=parent.end_with, args=(folder,), daemon=True).start()
        # What it imports may start threads.
        function, arguments = pickle.loads(request)
        parent.send("result", function(*arguments, parent))
    except EOFError:
        return BentpipeError.exit_code
    except BentpipeError as error:
        parent.send("error", (error.exit_code, str(error)))
        return error.exit_code
    except Exception:
        parent.send("error", (BentpipeError.exit_code, traceback.format_exc()))
        raise
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[-1])))
