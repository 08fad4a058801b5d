"""The clients of a lab daemon: many connections at a time, none of which blocks another."""

from __future__ import annotations

import resource
import selectors
import socket
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from bentpipe.lab import sockets

# A client that has not sent its request after this time is disconnected.
_REQUEST_TIMEOUT_S: Final = 2.0
# Above this number the oldest client is disconnected for each new one.
_CLIENTS_MAX: Final = 256
# Wait before the next accept(2) that fails for lack of descriptors (EMFILE, ENFILE).
_BACK_OFF_S: Final = 0.1

Request = tuple[socket.socket, dict[str, Any] | None]


@dataclass(kw_only=True)
class _Client:
    connection: socket.socket
    deadline_s: float
    line: bytearray = field(default_factory=bytearray)


class Clients:
    """Accepts connections and reads one request from each."""

    def __init__(self, listener: socket.socket) -> None:
        """Take the listening socket."""
        listener.setblocking(False)
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        # By descriptor, the oldest first.
        self._clients: dict[int, _Client] = {}
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
        for client in [client for client in self._clients.values() if client.deadline_s < now]:
            self._drop(client)
        return complete

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError:
            if not self._drop_oldest():
                time.sleep(_BACK_OFF_S)
            return
        if not sockets.is_of_this_user(connection):
            connection.close()
            return
        if len(self._clients) >= self._clients_max:
            self._drop_oldest()
        connection.setblocking(False)
        client = _Client(connection=connection, deadline_s=time.monotonic() + _REQUEST_TIMEOUT_S)
        self._clients[connection.fileno()] = client
        self._selector.register(connection, selectors.EVENT_READ, client)

    def _read(self, client: _Client) -> Request | None:
        """Return the request of a client if it is complete."""
        try:
            part = client.connection.recv(sockets.REQUEST_BYTES_MAX)
        except BlockingIOError:
            return None
        except OSError:
            part = b""
        client.line += part
        line, end, _ = client.line.partition(b"\n")
        if not end and part and len(line) <= sockets.REQUEST_BYTES_MAX:
            return None
        self._forget(client)
        if not line and not end:
            # A caller that only tests whether the lab runs.
            client.connection.close()
            return None
        fits = end and len(line) <= sockets.REQUEST_BYTES_MAX
        return client.connection, sockets.parsed(bytes(line)) if fits else None

    def _drop_oldest(self) -> bool:
        oldest = next(iter(self._clients.values()), None)
        if oldest is not None:
            self._drop(oldest)
        return oldest is not None

    def _drop(self, client: _Client) -> None:
        self._forget(client)
        client.connection.close()

    def _forget(self, client: _Client) -> None:
        with suppress(KeyError):
            self._selector.unregister(client.connection)
        self._clients.pop(client.connection.fileno(), None)
