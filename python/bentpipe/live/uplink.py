"""A lab's uplink to the Internet: slirp4netns(1), a user-space NAT with an interface in the world.

slirp4netns opens connections as the user of this process and needs no privilege on the machine's
network. Its sandbox requires that it is root, so for another user it runs in the user namespace to
which the world's network belongs, where that user is root. It ends when the file descriptor given
by ``--exit-fd`` is closed, so with this process at the latest.
"""

from __future__ import annotations

import fcntl
import os
import select
import shutil
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from bentpipe.errors import MachineError

PROGRAM: Final = "slirp4netns"
_INTERFACE: Final = "uplink"
_MTU_BYTES: Final = 1_500
# It receives packets from the Internet: it drops its privileges, sees no files but /etc and /run,
# and may use only the system calls that it needs; slirp4netns(1), since version 0.4.
_SANDBOX: Final = ("--enable-sandbox", "--enable-seccomp")
_MIN_VERSION: Final = "0.4"
# Returns the user namespace that a namespace belongs to; ioctl_ns(2), linux/nsfs.h.
_NS_GET_USERNS: Final = 0xB701
# It starts within 0.1 s on an idle machine.
_START_TIMEOUT_S: Final = 10.0
_END_TIMEOUT_S: Final = 5.0


def find_program(program: str = PROGRAM, package: str = PROGRAM) -> str:
    """Return the path of slirp4netns, or of another program of an uplink, which has a package.

    Raises:
        MachineError: it is not installed.
    """
    path = shutil.which(program)
    if path is None:
        raise MachineError(
            f"--internet needs {program}, which is not installed; to fix it: apt install {package}"
        )
    return path


@dataclass(frozen=True)
class Uplink:
    """A running NAT; it ends with `close` or with this process."""

    _process: subprocess.Popen[bytes]
    _exit_fd: int

    def close(self) -> None:
        """End it."""
        os.close(self._exit_fd)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_TIMEOUT_S)
            return
        self._process.kill()
        self._process.wait()


def open_uplink(network_fd: int) -> Uplink:
    """Add an interface to a network namespace that reaches the Internet.

    The machine's own loopback is not reachable through it. ``network_fd`` is closed.

    Raises:
        MachineError: slirp4netns or, for root, unshare is not installed, or the NAT does not start;
            then the message has the last line that it printed.
    """
    path = find_program()
    is_root = os.geteuid() == 0
    unshare = find_program("unshare", "util-linux") if is_root else ""
    exit_read, exit_write = os.pipe()
    ready_read, ready_write = os.pipe()
    # A pipe that is not read would block the NAT once it is full.
    log = os.memfd_create(PROGRAM)
    command = [path, "--configure", f"--mtu={_MTU_BYTES}", "--disable-host-loopback", *_SANDBOX]
    command += ["--netns-type=path", f"--exit-fd={exit_read}", f"--ready-fd={ready_write}"]
    command += [f"/proc/self/fd/{network_fd}", _INTERFACE]
    owner_fds = []
    if is_root:
        # The sandbox detaches all mounts of its own mount namespace. Those of `ip netns` are shared
        # mounts: without private ones, the machine's named network namespaces would go, too.
        command = [unshare, "--mount", "--propagation", "private", *command]
    else:
        owner_fds.append(fcntl.ioctl(network_fd, _NS_GET_USERNS))
        become = [sys.executable, "-m", "bentpipe.live.programs", "become", str(owner_fds[0])]
        command = [*become, *command]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=log,
        pass_fds=(network_fd, exit_read, ready_write, *owner_fds),
        # Ctrl-C at the terminal is for the program behind the link.
        process_group=0,
    )
    for descriptor in (network_fd, exit_read, ready_write, *owner_fds):
        os.close(descriptor)
    is_in_time = bool(select.select([ready_read], [], [], _START_TIMEOUT_S)[0])
    is_ready = is_in_time and bool(os.read(ready_read, 1))
    os.close(ready_read)
    if is_ready:
        os.close(log)
        return Uplink(process, exit_write)
    process.kill()
    process.wait()
    os.close(exit_write)
    lines = os.pread(log, 4096, 0).decode(errors="replace").strip().splitlines()
    os.close(log)
    limit = "" if is_in_time else f" within {_START_TIMEOUT_S:.0f} s"
    output = f"its last line is: {lines[-1]}" if lines else "it printed nothing"
    raise MachineError(
        f"{PROGRAM} does not start{limit}; {output}; "
        f"to fix it: install version {_MIN_VERSION} or newer, or leave --internet out"
    )
