"""What a gateway keeps in files: its folder, who holds it, its plan, its counters and its log.

The folder of a gateway has

- ``gateway.json``: its record. Whoever starts a daemon locks it (flock(2)), and the processes of
  the daemon inherit the lock: while one of them runs, the gateway is up.
- ``state.json``: its counters, which the daemon writes once a second.
- ``log``: what the daemon has printed, if it runs in the background.
- ``control``: a socket of a daemon with a tunnel, for `reload`.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from bentpipe.errors import MachineError
from bentpipe.gateway.machine import PROGRAM, user_folder

RUN: Final = Path("/run")
_LOG_BYTES_MAX: Final = 64 * 1024
# Others take the lock for a moment to see whether the gateway is up.
_LOCK_TIMEOUT_S: Final = 0.2
_POLL_S: Final = 0.01


@dataclass(frozen=True, kw_only=True)
class Record:
    """What is written down when a gateway is started, to end it later.

    ``described`` is what the status says of its configuration. ``network`` is the number of the
    network namespace.
    """

    config: str
    described: dict[str, Any]
    plan: dict[str, Any]
    network: int
    started_unix_s: float


def base_folder() -> Path:
    """Return the folder of all gateways: ``/run/bentpipe`` for root, else one of the user's."""
    # In a user namespace, root may not own /run.
    if os.geteuid() == 0 and RUN.stat().st_uid == 0:
        return RUN / "bentpipe"
    return user_folder("bentpipe-gateways")


def network_namespace() -> int:
    """Return the number of the network namespace of this process."""
    return Path("/proc/self/ns/net").stat().st_ino


class GatewayFolder:
    """The folder of one gateway, which need not exist."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.path = base_folder() / name
        self.record_file = self.path / "gateway.json"
        self.state_file = self.path / "state.json"
        self.log_file = self.path / "log"
        self.control_file = self.path / "control"

    def lock(self) -> int:
        """Make the folder and lock it; return the descriptor that holds the lock.

        Raises:
            MachineError: the gateway is up, or is being started or ended, or the folder cannot be
                written.
        """
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            while True:
                # Read-only: a process without privileges inherits it.
                handle = os.open(
                    self.record_file, os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
                )
                if _locked(handle, self.record_file):
                    return handle
                os.close(handle)
        except OSError as error:
            raise self._unwritable(error) from None

    def is_up(self) -> bool:
        """Return whether a process has the gateway."""
        try:
            handle = os.open(self.record_file, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(handle)
        return False

    def exists(self) -> bool:
        """Return whether a gateway has been started here and not been ended."""
        return self.record_file.is_file()

    def record(self) -> Record | None:
        """Return the record, or None if there is none, or none that can be read."""
        try:
            return Record(**json.loads(self.record_file.read_bytes()))
        except (OSError, ValueError, TypeError):
            return None

    def write_record(self, record: Record) -> None:
        """Write the record into the locked file.

        Raises:
            MachineError: it cannot be written, for instance because the disk is full.
        """
        try:
            # Not replaced by a new file: this one is locked.
            with self.record_file.open("r+b") as file:
                file.write(json.dumps(asdict(record)).encode())
                file.truncate()
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise self._unwritable(error) from None

    def counters(self) -> dict[str, Any] | None:
        """Return the latest counters, or None before the first ones."""
        try:
            read = json.loads(self.state_file.read_bytes())
        except (OSError, ValueError):
            return None
        return read if isinstance(read, dict) else None

    def last_words(self) -> str | None:
        """Return the last line that the daemon printed to its log."""
        try:
            with self.log_file.open("rb") as file:
                file.seek(max(self.log_file.stat().st_size - _LOG_BYTES_MAX, 0))
                lines = file.read().decode(errors="replace").strip().splitlines()
        except OSError:
            return None
        return lines[-1].removeprefix(f"{PROGRAM}: ") if lines else None

    def remove(self) -> None:
        """Remove the files, and folders that are empty then."""
        part = Path(f"{self.state_file}.part")
        # The record last: a gateway without one does not exist.
        files = (self.state_file, part, self.log_file, self.control_file, self.record_file)
        for file in files:
            with suppress(OSError):
                file.unlink()
        for folder in (self.path, self.path.parent):
            # A service manager may keep the folder.
            with suppress(OSError):
                folder.rmdir()

    def processes(self) -> list[int]:
        """Return the process ids of the daemon: those that hold the lock."""
        try:
            lock = self.record_file.stat()
        except OSError:
            return []
        found = Path("/proc").glob("[0-9]*")
        return sorted(int(entry.name) for entry in found if _is_daemon(entry, lock))

    def _unwritable(self, error: OSError) -> MachineError:
        place = error.filename or self.path
        return MachineError(
            f"{place}: {error.strerror}; to fix it: run it as root, and see that "
            f"{base_folder().parent} has space and can be written"
        )


def gateway_names() -> list[str]:
    """Return the names of the gateways that were started and not ended, sorted."""
    with suppress(OSError):
        names = sorted(path.name for path in base_folder().iterdir())
        return [name for name in names if GatewayFolder(name).exists()]
    return []


@contextmanager
def held(folder: GatewayFolder) -> Iterator[int]:
    """Hold the lock of a gateway in this process."""
    handle = folder.lock()
    try:
        yield handle
    finally:
        os.close(handle)


def _locked(handle: int, path: Path) -> bool:
    """Lock an open file; False if another file has taken its path meanwhile."""
    deadline = time.monotonic() + _LOCK_TIMEOUT_S
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() > deadline:
                os.close(handle)
                name = path.parent.name
                raise MachineError(
                    f"gateway {name} is up already; to fix it: end it with bentpipe gateway down "
                    f"{name}, or choose another name"
                ) from None
            time.sleep(_POLL_S)
    opened = os.fstat(handle)
    try:
        found = path.stat()
    except FileNotFoundError:
        return False
    return os.path.samestat(found, opened)


def _is_daemon(process: Path, lock: os.stat_result) -> bool:
    """Return whether a process, a folder of /proc, is a daemon that holds a lock."""
    with suppress(OSError):
        # The file of a running program may have been replaced.
        name = (process / "exe").readlink().name.removesuffix(" (deleted)")
        for entry in (process / "fd").iterdir() if name == PROGRAM else ():
            with suppress(OSError):
                if os.path.samestat(entry.stat(), lock):
                    return True
    return False
