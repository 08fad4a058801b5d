"""What this machine has: programs, capabilities and processes; and checks of it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bentpipe.errors import MachineError

# What its lines begin with, and the last one of a daemon that fails.
_SAYS: Final = "bentpipe-gate: "
_FAILS: Final = f"{_SAYS}error: "
FIX: Final = "; to fix it: "
# The user and the group nobody, which every Linux has.
NOBODY: Final = 65_534
# The open files of a worker, as `descriptors` of daemon/plan.rs: for each connection a socket on
# either side, for each thread two, and besides them pipes and sockets of its own.
_FILES_PER_CONNECTION: Final = 2
_FILES_PER_THREAD: Final = 2
_OTHER_FILES: Final = 1_024
# The defaults of gateways, which tests/test_gateway_shared.py compares with those of the program:
# the mark, a multiple of those of up to 64 workers, and the table of routes; the TUN device.
MARK: Final = 25_088
ROUTE_TABLE: Final = 25_113
DEVICE: Final = "bp0"
# The folders of system programs, which the PATH of a user may lack.
_SYSTEM_FOLDERS: Final = ("/usr/local/sbin", "/usr/sbin", "/sbin")
# capabilities(7), by the numbers of linux/capability.h.
_CAPABILITIES: Final = {
    "CAP_SETGID": 6,
    "CAP_SETUID": 7,
    "CAP_NET_ADMIN": 12,
    "CAP_NET_RAW": 13,
    "CAP_SYS_ADMIN": 21,
}


@dataclass(frozen=True)
class Check:
    """The result of one check: ``found`` is a sentence, ``fix`` the remedy if it is not ``ok``.

    One that is not ``needed`` is advice.
    """

    name: str
    ok: bool
    found: str
    fix: str = ""
    needed: bool = True

    @property
    def passes(self) -> bool:
        """Whether it is passed, or advice."""
        return self.ok or not self.needed


def require(checks: Iterable[Check]) -> None:
    """Check that all checks are passed.

    Raises:
        MachineError: one line for each that is not.
    """
    lines = [
        f"{check.name}: {check.found.rstrip('.')}{FIX}{check.fix}"
        for check in checks
        if not check.passes
    ]
    if lines:
        raise MachineError("\n".join(lines))


def open_files(connections: int, *, threads: int) -> int:
    """Return the largest number of open files of a worker with so many connections."""
    return _FILES_PER_CONNECTION * connections + _FILES_PER_THREAD * threads + _OTHER_FILES


def connections_within(files: int, *, threads: int) -> int:
    """Return the largest number of connections with which a worker has no more open files."""
    return max(files - open_files(0, threads=threads), 0) // _FILES_PER_CONNECTION


def user_folder(name: str) -> Path:
    """Return where this user's daemons have a folder of this name, which need not exist."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    # su(1) and sudo(8) may leave the folder of another user, which cannot be accessed.
    with suppress(OSError):
        if runtime and Path(runtime).is_dir():
            return Path(runtime) / name
    return Path(tempfile.gettempdir()) / f"{name}-{os.geteuid()}"


def program(name: str) -> str | None:
    """Return the path of a program, or None if it is not installed."""
    folders = [os.environ.get("PATH", os.defpath), *_SYSTEM_FOLDERS]
    return shutil.which(name, path=os.pathsep.join(folders))


def require_ip() -> str:
    """Return the path of ip(8).

    Raises:
        MachineError: it is not installed.
    """
    path = program("ip")
    if path is None:
        raise MachineError("ip is not installed; to fix it: apt install iproute2")
    return path


def missing_capabilities(*names: str) -> list[str]:
    """Return which capabilities this process lacks."""
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    effective = next(line.split()[1] for line in status.splitlines() if line.startswith("CapEff:"))
    return [name for name in names if not int(effective, 16) >> _CAPABILITIES[name] & 1]


def parent(process: int) -> int:
    """Return the process id of a parent; 0 if the process has ended."""
    with suppress(OSError, ValueError, IndexError):
        stat = Path(f"/proc/{process}/stat").read_text(encoding="ascii", errors="replace")
        # proc_pid_stat(5): the name of the program, in parentheses, may have spaces.
        return int(stat.rpartition(")")[2].split()[1])
    return 0


def children(process: int) -> list[int]:
    """Return the process ids of the children of a process."""
    running = (int(folder.name) for folder in Path("/proc").glob("[0-9]*"))
    return [candidate for candidate in running if parent(candidate) == process]


def why_ended(printed: Sequence[str]) -> str:
    """Return why a daemon that printed these lines has ended, if not as asked."""
    if printed and printed[-1].startswith(_FAILS):
        return printed[-1].removeprefix(_FAILS).removeprefix(_SAYS)
    return "it was killed"
