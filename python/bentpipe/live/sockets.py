"""Unix sockets of lab daemons: their folder, their names, requests and replies, and clients.

A lab daemon listens on a unix socket in a folder that only its user can access. A request is one
line of JSON, and so is the reply. A lab exists if its socket accepts a connection: a killed daemon
leaves only the socket file, which the next caller removes.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import resource
import selectors
import socket
import stat
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bentpipe.errors import BentpipeError, MachineError, UsageError, error_with_code
from bentpipe.live import machine
from bentpipe.text import choice

# A request holds a few settings, a reply a report.
REQUEST_BYTES_MAX: Final = 64 * 1024
REPLY_BYTES_MAX: Final = 4 * 1024 * 1024
# A daemon replies within milliseconds; one that takes longer than this does not work.
TIMEOUT_S: Final = 10.0

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,31}", re.ASCII)
_SUFFIX: Final = ".sock"
_LOCK: Final = ".lock"
# Connections that wait to be accepted: the kernel's default limit (net.core.somaxconn).
_BACKLOG: Final = 4096
# With a full backlog connect(2) fails with EAGAIN; unix(7).
_RETRY_S: Final = 0.05
_CREDENTIALS: Final = struct.Struct("=iII")
_DESCRIPTORS_MAX: Final = 8
# A client that has not sent its request after this time is disconnected.
_REQUEST_TIMEOUT_S: Final = 2.0
# Above this number the oldest client is disconnected for each new one.
_CLIENTS_MAX: Final = 256
# Wait before the next accept(2) that fails for lack of descriptors (EMFILE, ENFILE).
_BACK_OFF_S: Final = 0.1


class LabEndedError(MachineError):
    """The lab ended before it replied."""

    def __init__(self, message: str = "the lab has ended; to fix it: set it up again") -> None:
        super().__init__(message)


class TakenError(UsageError):
    """A lab of this name exists."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f'a lab "{name}" exists already; end it with bentpipe lab down {name}, '
            "or choose another name"
        )


def checked_name(name: str) -> str:
    """Return the name if it is a valid name of a lab.

    Raises:
        UsageError: it is not.
    """
    if _NAME.fullmatch(name) is None:
        raise UsageError(
            f'name: read "{name}"; allowed are up to 32 letters, digits, "-", "_" and ".", '
            "the first a letter or a digit"
        )
    return name


def folder() -> Path:
    """Return the folder of this user's sockets; create it if it does not exist.

    Raises:
        MachineError: it cannot be created, or other users can access it.
    """
    path = machine.user_folder("bentpipe")
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        status = path.lstat()
    except OSError as error:
        raise MachineError(
            f"{path}: {error.strerror}; to fix it: set XDG_RUNTIME_DIR to a folder of yours"
        ) from None
    private = status.st_mode & 0o077 == 0 and status.st_uid == os.geteuid()
    if not stat.S_ISDIR(status.st_mode) or not private:
        raise MachineError(
            f"{path}: other users can access it; to fix it: remove it, or set XDG_RUNTIME_DIR"
        )
    return path


@contextmanager
def _short(place: Path) -> Iterator[str]:
    """Yield a path of the folder that is short enough for a socket address (unix(7))."""
    handle = os.open(place, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{handle}"
    finally:
        os.close(handle)


@contextmanager
def _locked(place: Path) -> Iterator[None]:
    """Lock the folder: a socket between bind(2) and listen(2) looks like that of a killed lab."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    handle = os.open(place / _LOCK, flags, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def listen(name: str, place: Path) -> socket.socket:
    """Return the listening socket of a new lab.

    Raises:
        UsageError: a lab of that name exists.
    """
    with _locked(place):
        if _is_alive(name, place):
            raise TakenError(name)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with _short(place) as short:
            listener.bind(f"{short}/{name}{_SUFFIX}")
        listener.listen(_BACKLOG)
    return listener


def remove(name: str, place: Path) -> None:
    """Remove the socket file of a lab."""
    (place / f"{name}{_SUFFIX}").unlink(missing_ok=True)


def names() -> list[str]:
    """Return the names of the running labs, sorted; remove the socket files of killed ones."""
    place = folder()
    with _locked(place):
        candidates = sorted(path.name.removesuffix(_SUFFIX) for path in place.glob(f"*{_SUFFIX}"))
        return [name for name in candidates if _is_alive(name, place)]


def _is_alive(name: str, place: Path) -> bool:
    """Return whether a lab runs; remove the socket file of a killed one, in a locked folder."""
    try:
        try_connect(name, place).close()
    except ConnectionRefusedError:
        remove(name, place)
        return False
    except TimeoutError:
        return True
    except OSError:
        return False
    return True


def try_connect(name: str, place: Path) -> socket.socket:
    """Connect to a lab daemon, or raise the OSError of connect(2)."""
    deadline = time.monotonic() + TIMEOUT_S
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(TIMEOUT_S)
    try:
        with _short(place) as short:
            while True:
                try:
                    connection.connect(f"{short}/{name}{_SUFFIX}")
                    return connection
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise TimeoutError("too many clients are waiting") from None
                    time.sleep(_RETRY_S)
    except OSError:
        connection.close()
        raise


def connect(name: str) -> socket.socket:
    """Connect to a lab daemon of this user.

    Raises:
        UsageError: no such lab exists; the message names those that exist.
        MachineError: the daemon does not accept the connection.
    """
    checked_name(name)
    try:
        return try_connect(name, folder())
    except (FileNotFoundError, ConnectionRefusedError):
        running = tuple(names())
        text = (
            choice(name, running) if running else "no lab exists; create one with bentpipe lab up"
        )
        raise UsageError(f"lab: {text}") from None
    except OSError as error:
        raise MachineError(f"connecting to lab {name}: {error}; to fix it: try again") from None


def peer(connection: socket.socket) -> tuple[int, int]:
    """Return the process id and the user id of the peer of a connection (SO_PEERCRED)."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, user, _ = _CREDENTIALS.unpack(credentials)
    return pid, user


def ask(connection: socket.socket, request: dict[str, Any]) -> tuple[dict[str, Any], list[int]]:
    """Send a request to a lab daemon; return the reply and the descriptors that came with it.

    The caller closes the descriptors.

    Raises:
        BentpipeError: the daemon refuses the request; the class is that of its exit code.
        LabEndedError: the lab ended before it replied.
        MachineError: it does not reply, or belongs to another user.
    """
    if peer(connection)[1] != os.geteuid():
        raise MachineError("the lab belongs to another user; to fix it: set XDG_RUNTIME_DIR")
    descriptors: list[int] = []
    try:
        connection.sendall(json.dumps(request).encode() + b"\n")
        line = _read_line(connection, REPLY_BYTES_MAX, descriptors)
    except (ConnectionResetError, BrokenPipeError):
        # The daemon ended with the request unread: unix(7) resets the connection.
        line = None
    except OSError as error:
        raise MachineError(f"the lab does not reply: {error}; to fix it: try again") from None
    if line is None:
        raise LabEndedError
    content = parsed(line)
    if content is None:
        raise MachineError("the lab's reply cannot be read; to fix it: end it and set it up again")
    raise_error_of(content)
    return content, descriptors


def request(name: str, action: str, **arguments: Any) -> dict[str, Any]:
    """Send a request without descriptors to a lab daemon of this user, and return the reply.

    ``process`` of a status is the process id that this process sees.

    Raises:
        UsageError: there is no such lab, or the request is wrong.
        BentpipeError: see `ask`.
    """
    with connect(name) as connection:
        content, _ = ask(connection, {"do": action, **arguments})
        return content | ({"process": peer(connection)[0]} if "process" in content else {})


def raise_error_of(content: dict[str, Any]) -> None:
    """Raise the error that a reply holds, if it holds one."""
    if "error" in content:
        code = content.get("exit_code")
        exit_code = code if isinstance(code, int) else BentpipeError.exit_code
        raise error_with_code(exit_code, str(content["error"]))


def error_reply(error: BentpipeError) -> dict[str, Any]:
    """Return the reply that reports an error."""
    return {"error": str(error), "exit_code": error.exit_code}


def reply(
    connection: socket.socket, content: dict[str, Any], descriptors: list[int] | None = None
) -> None:
    """Reply to a request, with descriptors if there are any."""
    line = json.dumps(content).encode() + b"\n"
    sent = socket.send_fds(connection, [line], descriptors) if descriptors else 0
    connection.sendall(line[sent:])


def _read_line(connection: socket.socket, bytes_max: int, descriptors: list[int]) -> bytes | None:
    """Read one line; None if the peer closes the connection before its end, or it is too long."""
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
    """Return the mapping in a line of JSON, or None if it is anything else."""
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


# --- the clients of a daemon: many at a time, none of which blocks another ------------------------

Request = tuple[socket.socket, dict[str, Any] | None]


@dataclass(kw_only=True)
class _Client:
    connection: socket.socket
    deadline_s: float
    line: bytearray = field(default_factory=bytearray)


class Clients:
    """Accepts connections and reads one request from each."""

    def __init__(self, listener: socket.socket) -> None:
        listener.setblocking(False)
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        # Requests and the web server need the other descriptors.
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        limited = descriptors != resource.RLIM_INFINITY
        self._clients_max = min(_CLIENTS_MAX, descriptors // 4) if limited else _CLIENTS_MAX

    def requests(self, timeout_s: float) -> list[Request]:
        """Wait up to ``timeout_s`` for requests; None stands for a line that is not a request.

        The caller replies on the connections and closes them.
        """
        complete: list[Request] = []
        ready = self._selector.select(timeout_s)
        # Clients before the listener: a new connection may reuse the descriptor of a closed one.
        for key, _ in ready:
            if key.data is not None and (request := self._read(key.data)) is not None:
                complete.append(request)
        if any(key.data is None for key, _ in ready):
            self._accept()
        now = time.monotonic()
        self._drop([client for client in self._clients() if client.deadline_s < now])
        return complete

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError:
            oldest = self._clients()[:1]
            self._drop(oldest)
            if not oldest:
                time.sleep(_BACK_OFF_S)
            return
        if peer(connection)[1] != os.geteuid():
            connection.close()
            return
        if len(self._clients()) >= self._clients_max:
            self._drop(self._clients()[:1])
        connection.setblocking(False)
        client = _Client(connection=connection, deadline_s=time.monotonic() + _REQUEST_TIMEOUT_S)
        self._selector.register(connection, selectors.EVENT_READ, client)

    def _read(self, client: _Client) -> Request | None:
        """Return the request of a client if it is complete."""
        try:
            part = client.connection.recv(REQUEST_BYTES_MAX)
        except BlockingIOError:
            return None
        except OSError:
            part = b""
        client.line += part
        line, end, _ = client.line.partition(b"\n")
        if not end and part and len(line) <= REQUEST_BYTES_MAX:
            return None
        self._selector.unregister(client.connection)
        if not line and not end:
            # A caller that only tests whether the lab runs.
            client.connection.close()
            return None
        fits = end and len(line) <= REQUEST_BYTES_MAX
        return client.connection, parsed(bytes(line)) if fits else None

    def _clients(self) -> list[_Client]:
        """Return the clients whose requests are not complete, the oldest first."""
        return [key.data for key in self._selector.get_map().values() if key.data is not None]

    def _drop(self, clients: Sequence[_Client]) -> None:
        for client in clients:
            self._selector.unregister(client.connection)
            client.connection.close()
