"""The clients of a lab daemon: many connections at a time, none of which holds up another."""

from __future__ import annotations

import resource
import selectors
import socket
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from bentpipe.lab import sockets as _labs

# A client sends its request at once. One that has not sent it after this is disconnected.
_REQUEST_SECONDS: Final = 2.0
# With so many connected, the oldest is disconnected for each new one.
_CLIENTS_MAX: Final = 256
# When even that leaves no descriptor; accept(2), EMFILE and ENFILE.
_BACK_OFF_SECONDS: Final = 0.1

Request = tuple[socket.socket, dict[str, Any] | None]


@dataclass(kw_only=True)
class _Client:
    connection: socket.socket
    until: float
    line: bytearray = field(default_factory=bytearray)


class Clients:
    """Accepts connections and reads one request from each."""

    def __init__(self, listener: socket.socket) -> None:
        """Take a socket that listens."""
        listener.setblocking(False)
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        # The oldest first.
        self._clients: dict[int, _Client] = {}
        # Most descriptors are left to what is asked for.
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        limited = descriptors != resource.RLIM_INFINITY
        self._clients_max = min(_CLIENTS_MAX, descriptors // 4) if limited else _CLIENTS_MAX

    def requests(self, seconds: float) -> list[Request]:
        """Wait for requests, up to so long; None for a line that is no request.

        The connections are the caller's to answer and to close.
        """
        whole: list[Request] = []
        ready = self._selector.select(seconds)
        # Clients before the listener: a new connection may take the number of a closed one.
        for key, _ in ready:
            if key.data is not None and (request := self._read(key.data)) is not None:
                whole.append(request)
        if any(key.data is None for key, _ in ready):
            self._accept()
        now = time.monotonic()
        for client in [client for client in self._clients.values() if client.until < now]:
            self._drop(client)
        return whole

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError:
            if not self._drop_oldest():
                time.sleep(_BACK_OFF_SECONDS)
            return
        if not _labs.is_of_this_user(connection):
            connection.close()
            return
        if len(self._clients) >= self._clients_max:
            self._drop_oldest()
        connection.setblocking(False)
        client = _Client(connection=connection, until=time.monotonic() + _REQUEST_SECONDS)
        self._clients[connection.fileno()] = client
        self._selector.register(connection, selectors.EVENT_READ, client)

    def _read(self, client: _Client) -> Request | None:
        """Return the request of a client if it is whole by now."""
        try:
            part = client.connection.recv(_labs.REQUEST_BYTES_MAX)
        except BlockingIOError:
            return None
        except OSError:
            part = b""
        client.line += part
        line, end, _ = client.line.partition(b"\n")
        if not end and part and len(line) <= _labs.REQUEST_BYTES_MAX:
            return None
        self._forget(client)
        if not line and not end:
            # It asks for nothing: whoever looks whether a lab is up.
            client.connection.close()
            return None
        fits = end and len(line) <= _labs.REQUEST_BYTES_MAX
        return client.connection, _labs.parsed(bytes(line)) if fits else None

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
