"""Servers of a host: HTTP for curl, a dialogue as that of ssh, and a port that only accepts."""

from __future__ import annotations

import hashlib
import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

from routers import Routers

HTTP_PORT: Final = 8080
DIALOGUE_PORT: Final = 2222
ACCEPT_PORT: Final = 9000
CLOSED_PORT: Final = 9999
BANNER: Final = b"SSH-2.0-router\r\n"
# A slow download: parts of 20 kB.
STREAM_PARTS: Final = 10
_STREAM_PAUSE_S: Final = 0.12
_BLOCK: Final = random.Random(1).randbytes(1_000_000)
_BACKLOG: Final = 4_096


def content(size: int) -> Iterator[bytes]:
    """Yield ``size`` bytes in parts."""
    for start in range(0, size, len(_BLOCK)):
        yield _BLOCK[: size - start]


@cache
def digest(size: int) -> str:
    """Return the SHA-256 of `content`."""
    found = hashlib.sha256()
    for part in content(size):
        found.update(part)
    return found.hexdigest()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Print nothing."""

    def do_GET(self) -> None:
        kind, _, size = self.path.strip("/").partition("/")
        self.send_response(200)
        self.send_header("Content-Length", size)
        self.send_header("Connection", "close")
        self.end_headers()
        if kind == "reset":
            reset(self.connection)
            return
        for part in content(int(size)) if kind == "bytes" else _slowly(int(size)):
            self.wfile.write(part)

    def do_PUT(self) -> None:
        found, left = hashlib.sha256(), int(self.headers["Content-Length"])
        while left and (part := self.rfile.read(min(left, 1 << 16))):
            found.update(part)
            left -= len(part)
        text = found.hexdigest().encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


def _slowly(size: int) -> Iterator[bytes]:
    part = size // STREAM_PARTS
    for number in range(STREAM_PARTS):
        time.sleep(_STREAM_PAUSE_S if number else 0)
        yield _BLOCK[number * part : (number + 1) * part]


def reset(connection: socket.socket) -> None:
    """Close a connection by a reset, after what was sent has arrived."""
    time.sleep(0.2)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    # The connection may have other descriptors; a shutdown would send FIN.
    connection.close()


def _converse(connection: socket.socket) -> None:
    """Send a banner, then echo until the client closes."""
    with connection, suppress(OSError):
        connection.settimeout(60)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(BANNER)
        while part := connection.recv(4_096):
            connection.sendall(part)


class _Http(ThreadingHTTPServer):
    address_family = socket.AF_INET6
    daemon_threads = True
    request_queue_size = _BACKLOG

    def handle_error(self, *_: object) -> None:
        """Print nothing: clients see how their connections end."""

    def shutdown_request(self, request: socket.socket | tuple[bytes, socket.socket]) -> None:
        """Close without a shutdown, which would precede a reset by FIN."""
        self.close_request(request)


def _accept(listener: socket.socket, serve: Callable[[socket.socket], None]) -> None:
    with suppress(OSError):
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=serve, args=(connection,), daemon=True).start()


@contextmanager
def serving(routers: Routers, host: str) -> Iterator[None]:
    """Serve IPv4 and IPv6 on a host."""
    with ExitStack() as opened:
        with routers.within(host):
            http = opened.enter_context(_Http(("::", HTTP_PORT), _Handler))
            ports = (DIALOGUE_PORT, ACCEPT_PORT)
            dialogue, _ = (opened.enter_context(_listener(port)) for port in ports)
        # Closing a listener does not wake a thread that waits in accept(2).
        opened.callback(dialogue.shutdown, socket.SHUT_RDWR)
        opened.callback(http.shutdown)
        for target, arguments in ((http.serve_forever, (0.05,)), (_accept, (dialogue, _converse))):
            threading.Thread(target=target, args=arguments, daemon=True).start()
        yield


def _listener(port: int) -> socket.socket:
    return socket.create_server(
        ("::", port), family=socket.AF_INET6, backlog=_BACKLOG, dualstack_ipv6=True
    )
