"""Labs that stay, by name: where their sockets are, and how a command line talks to their keepers.

A lab is one process, its keeper, which listens on a unix socket in a folder that only its user can
enter. A request is one line of JSON, the answer another. Whether a lab is there is whether somebody
answers: of a keeper that was killed nothing is left but the file of its socket, which whoever finds
it removes.

The folder is named by the number of its user, who has another one once it is root of a user
namespace: a keeper takes the folder that it had before.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import socket
import stat
import struct
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from bentpipe.errors import BentpipeError, MachineError, UsageError

# A request holds a few settings; an answer a report.
REQUEST_BYTES_MAX: Final = 64 * 1024
ANSWER_BYTES_MAX: Final = 4 * 1024 * 1024
# A keeper answers between two packets; one that does not within this does not work.
PATIENCE_SECONDS: Final = 10.0

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,31}", re.ASCII)
_SUFFIX: Final = ".sock"
_LOCK: Final = ".lock"
# Connections that wait to be accepted: as many as a kernel usually allows; net.core.somaxconn.
_BACKLOG: Final = 4096
# With so many waiting, one more is refused until one of them is accepted; unix(7).
_RETRY_SECONDS: Final = 0.05
_CREDENTIALS: Final = struct.Struct("=iII")
_DESCRIPTORS_MAX: Final = 8


class LabEndedError(MachineError):
    """Somebody was asked who is no more."""


class AnsweredError(BentpipeError):
    """What a keeper refused, in its words and with its exit code."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code  # type: ignore[misc]


def checked_name(name: str) -> str:
    """Return a name that a lab may have.

    Raises:
        UsageError: it is none.
    """
    if _NAME.fullmatch(name) is None:
        raise UsageError(
            f'name: read "{name}"; allowed are up to 32 letters, digits, "-", "_" and ".", '
            "the first a letter or a digit"
        )
    return name


def folder() -> Path:
    """Return the folder of this user's sockets, which is made if it is not there.

    Raises:
        MachineError: there is none that others cannot enter.
    """
    path = _chosen_folder()
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
    except OSError as error:
        raise MachineError(
            f"{path}: {error.strerror}; to fix it: set XDG_RUNTIME_DIR to a folder of yours"
        ) from None
    private = found.st_mode & 0o077 == 0 and found.st_uid == os.geteuid()
    if not stat.S_ISDIR(found.st_mode) or not private:
        raise MachineError(
            f"{path}: others could enter it; to fix it: remove it, or set XDG_RUNTIME_DIR"
        )
    return path


def _chosen_folder() -> Path:
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    # One of another user's, as su(1) and sudo(8) may leave it, may not even be looked into.
    with suppress(OSError):
        if runtime and Path(runtime).is_dir():
            return Path(runtime) / "bentpipe"
    return Path(tempfile.gettempdir()) / f"bentpipe-{os.geteuid()}"


@contextmanager
def _short(place: Path) -> Iterator[str]:
    """Give a folder a name short enough for the address of a socket, whatever its path."""
    handle = os.open(place, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{handle}"
    finally:
        os.close(handle)


@contextmanager
def _locked(place: Path) -> Iterator[None]:
    """Keep others from making or removing sockets: one that is not listened to yet looks dead."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    handle = os.open(place / _LOCK, flags, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def listen(name: str, place: Path) -> socket.socket:
    """Return a socket in a folder of sockets on which the lab of that name is asked.

    Raises:
        UsageError: there is a lab of that name.
    """
    with _locked(place):
        refuse_taken(name, place)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with _short(place) as short:
            listener.bind(f"{short}/{name}{_SUFFIX}")
        listener.listen(_BACKLOG)
    return listener


def forget(name: str, place: Path) -> None:
    """Remove the socket of a lab that ends."""
    (place / f"{name}{_SUFFIX}").unlink(missing_ok=True)


def refuse_taken(name: str, place: Path) -> None:
    """Refuse a name that a lab has, and remove what a killed lab of that name left.

    Raises:
        UsageError: there is a lab of that name.
    """
    try:
        _connect(name, place).close()
    except FileNotFoundError:
        return
    except ConnectionRefusedError:
        forget(name, place)
        return
    except TimeoutError:
        pass
    raise UsageError(
        f'there is a lab "{name}" already; end it by bentpipe lab down {name}, '
        "or choose another name"
    )


def names() -> list[str]:
    """Return the names of the labs that are up, in order; remove what killed ones left."""
    place = folder()
    found = sorted(path.name.removesuffix(_SUFFIX) for path in place.glob(f"*{_SUFFIX}"))
    return [name for name in found if _is_alive(name, place)]


def _is_alive(name: str, place: Path) -> bool:
    try:
        _connect(name, place).close()
    except ConnectionRefusedError:
        with _locked(place):
            # It may have been taken anew meanwhile.
            try:
                _connect(name, place).close()
            except ConnectionRefusedError:
                forget(name, place)
            except OSError:
                pass
        return False
    except TimeoutError:
        return True
    except OSError:
        return False
    return True


def _connect(name: str, place: Path) -> socket.socket:
    patience = time.monotonic() + PATIENCE_SECONDS
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(PATIENCE_SECONDS)
    try:
        with _short(place) as short:
            while True:
                try:
                    connection.connect(f"{short}/{name}{_SUFFIX}")
                    return connection
                except BlockingIOError:
                    if time.monotonic() > patience:
                        raise TimeoutError("it has too many others to answer") from None
                    time.sleep(_RETRY_SECONDS)
    except OSError:
        connection.close()
        raise


def connect(name: str, place: Path | None = None) -> socket.socket:
    """Return a connection to the keeper of a lab, in the user's folder of sockets or another one.

    Raises:
        UsageError: there is no such lab; those that there are are named.
    """
    checked_name(name)
    try:
        return _connect(name, place or folder())
    except (FileNotFoundError, ConnectionRefusedError):
        from bentpipe.text import choice

        present = tuple(names())
        there = choice(name, present) if present else "there is none; bentpipe lab up makes one"
        raise UsageError(f"lab: {there}") from None
    except OSError as error:
        raise MachineError(f"asking the lab {name}: {error}; to fix it: try again") from None


def peer(connection: socket.socket) -> tuple[int, int]:
    """Return the process and the user at the other end of a connection."""
    size = _CREDENTIALS.size
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    pid, user, _ = _CREDENTIALS.unpack(found)
    return pid, user


def is_of_this_user(connection: socket.socket) -> bool:
    """Tell whether the other end of a connection belongs to the user of this process."""
    return peer(connection)[1] == os.geteuid()


def ask(connection: socket.socket, request: dict[str, Any]) -> tuple[dict[str, Any], list[int]]:
    """Ask a keeper; return its answer and the descriptors that came with it, which are ours.

    Raises:
        AnsweredError: it refuses, and says why.
        MachineError: it does not answer.
    """
    if not is_of_this_user(connection):
        raise MachineError("the lab belongs to somebody else; to fix it: set XDG_RUNTIME_DIR")
    descriptors: list[int] = []
    try:
        connection.sendall(json.dumps(request).encode() + b"\n")
        line = _read_line(connection, ANSWER_BYTES_MAX, descriptors)
    except OSError as error:
        raise MachineError(f"the lab does not answer: {error}; to fix it: try again") from None
    if line is None:
        raise LabEndedError("the lab has ended; to fix it: set it up again")
    answer = parsed(line)
    if answer is None:
        raise MachineError("the lab's answer cannot be read; to fix it: end it and set it up again")
    error_text = answer.get("error")
    if error_text is not None:
        code = answer.get("exit_code")
        raise AnsweredError(str(error_text), code if isinstance(code, int) else 1)
    return answer, descriptors


def answer(
    connection: socket.socket, content: dict[str, Any], descriptors: list[int] | None = None
) -> None:
    """Answer a request, with descriptors if there are any."""
    line = json.dumps(content).encode() + b"\n"
    sent = socket.send_fds(connection, [line], descriptors) if descriptors else 0
    connection.sendall(line[sent:])


def _read_line(connection: socket.socket, bytes_max: int, descriptors: list[int]) -> bytes | None:
    """Read up to the end of a line; None if the other end closes before it, or it is too long."""
    line = bytearray()
    while True:
        part, received, _, _ = socket.recv_fds(connection, 65_536, _DESCRIPTORS_MAX)
        for descriptor in received:
            os.set_inheritable(descriptor, False)
        descriptors.extend(received)
        if not part:
            return None
        line += part
        if b"\n" in part:
            return bytes(line[: line.index(b"\n")])
        if len(line) > bytes_max:
            return None


def parsed(line: bytes) -> dict[str, Any] | None:
    """Return the mapping that a line of JSON holds; None if it holds something else."""
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None
