"""A lab's way to the outside: slirp4netns(1), a NAT in user space, with an interface in the world.

It makes ordinary connections of this process's user and needs no right on the machine's own
network. It ends when the descriptor is closed that it was given, with this process at the latest.
"""

from __future__ import annotations

import os
import select
import shutil
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from bentpipe.errors import MachineError

PROGRAM: Final = "slirp4netns"
_INTERFACE: Final = "outside"
_MTU_BYTES: Final = 1_500
# It talks to strangers: it gives up its rights, sees no files but /etc and /run, and may use only
# the system calls that it needs; slirp4netns(1), since version 0.4.
_PROTECTION: Final = ("--enable-sandbox", "--enable-seccomp")
_OLDEST: Final = "0.4"
# It starts within a tenth of a second on a quiet machine.
_START_SECONDS: Final = 10.0
_END_SECONDS: Final = 5.0


def program() -> str:
    """Return where the NAT is installed.

    Raises:
        MachineError: it is not.
    """
    path = shutil.which(PROGRAM)
    if path is None:
        raise MachineError(
            f"--internet needs {PROGRAM}, which is not installed; to fix it: apt install {PROGRAM}"
        )
    return path


@dataclass(frozen=True)
class Outside:
    """A NAT that runs; it ends with `close` or with this process."""

    _process: subprocess.Popen[bytes]
    _holder: int

    def close(self) -> None:
        """End it."""
        os.close(self._holder)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)
            return
        self._process.kill()
        self._process.wait()


def open_outside(network: int) -> Outside:
    """Give a network namespace, by a descriptor, an interface that leads outside.

    The machine's own loopback is not reachable through it.

    Raises:
        MachineError: the NAT does not start; with what it said.
    """
    path = program()
    alive, holder = os.pipe()
    ready, said_ready = os.pipe()
    # A pipe that nobody reads would hold it up one day.
    said = os.memfd_create(PROGRAM)
    command = [path, "--configure", f"--mtu={_MTU_BYTES}", "--disable-host-loopback", *_PROTECTION]
    command += ["--netns-type=path", f"--exit-fd={alive}", f"--ready-fd={said_ready}"]
    command += [f"/proc/self/fd/{network}", _INTERFACE]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=said,
        pass_fds=(network, alive, said_ready),
        # Ctrl-C at the terminal is for the program behind the link.
        process_group=0,
    )
    for descriptor in (alive, said_ready):
        os.close(descriptor)
    answered = bool(select.select([ready], [], [], _START_SECONDS)[0])
    started = answered and bool(os.read(ready, 1))
    os.close(ready)
    if not started:
        process.kill()
        process.wait()
        os.close(holder)
        lines = os.pread(said, 4096, 0).decode(errors="replace").strip().splitlines()
    os.close(said)
    if not started:
        late = "" if answered else f" within {_START_SECONDS:.0f} s"
        words = f"it says: {lines[-1]}" if lines else "it says nothing"
        raise MachineError(
            f"{PROGRAM} does not start{late}; {words}; "
            f"to fix it: install version {_OLDEST} or newer, or leave --internet out"
        )
    return Outside(process, holder)
