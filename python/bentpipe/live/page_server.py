"""The server of web pages in real time: HTTP/1.1 or HTTP/2, with or without TLS.

It is run as ``python -m bentpipe.live.page_server JSON``, on the far side of the link. Its
first connection bypasses the link. On it the server writes the hash of its key (an empty line
without TLS), and the client the number of each page that it has loaded, a line each; then the
server closes the connections of that page. When it is interrupted, it prints a report as JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import ssl
import sys
import tempfile
from asyncio import IncompleteReadError, LimitOverrunError, StreamReader, StreamWriter
from collections import Counter
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Any, Final

from bentpipe._core import Stream
from bentpipe.live.page_content import DNS_BYTES_MAX, PORT_OFFSET, Content, Pages, answer_of
from bentpipe.live.sender import SenderReport, new_socket, run_until_interrupted, tcp_info

_HEAD_END: Final = b"\r\n\r\n"
_TLS_VERSIONS: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
_NOT_FOUND: Final = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"


def head_of(media_type: str, body_bytes: int) -> bytes:
    """Return the header of a response over HTTP/1.1; its length does not depend on the body's."""
    return (
        f"HTTP/1.1 200 OK\r\nContent-Type: {media_type}\r\nContent-Length: {body_bytes:010}\r\n"
        "Cache-Control: no-store\r\n\r\n"
    ).encode()


def response(content: Content) -> bytes:
    """Return a whole response over HTTP/1.1."""
    body = content.body(len(head_of(content.media_type, 0)))
    return head_of(content.media_type, len(body)) + body


class Served:
    """An open connection, and the last page that was requested on it."""

    def __init__(self, writer: StreamWriter) -> None:
        self.page = -1
        # Of the sizes of the objects on it.
        self.sizes: Stream | None = None
        # TCP_INFO is read until the end, and asyncio gives its own socket up before.
        self.socket = socket.socket(fileno=os.dup(writer.get_extra_info("socket").fileno()))


class Server:
    """Serves pages, and samples TCP_INFO."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings
        # The module imports a package of the extra `web`; it takes a tenth of a second.
        has_http2 = settings["workload"]["http"] == "2"
        self._http2 = import_module("bentpipe.live.http2").Http2 if has_http2 else None
        self._tls, self._key_sha256 = None, ""
        if settings["workload"]["tls"] is not None:
            self._tls, self._key_sha256 = new_tls(settings["workload"])
        self._pages = Pages(settings)
        # In the order of their opening.
        self._open: dict[Served, None] = {}
        self._report = SenderReport(settings)
        self._page_bytes: Counter[int] = Counter()

    async def run(self) -> None:
        """Serve until the task is cancelled."""
        listener = new_socket(self._settings)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("", self._settings["port"]))
        listener.listen()
        listener.setblocking(False)
        control, _ = await asyncio.get_running_loop().sock_accept(listener)
        loaded, to_client = await asyncio.open_connection(sock=control)
        to_client.write(f"{self._key_sha256}\n".encode())
        server = await asyncio.start_server(self._serve, sock=listener, ssl=self._tls)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._close_loaded(loaded))
                tasks.create_task(self._resolve())
                tasks.create_task(self._watch())
        finally:
            # Not `async with`, which waits for the end of all connections since CPython 3.12.
            server.close()

    async def _resolve(self) -> None:
        """Answer queries for the names of the servers."""
        address, loop = self._settings["address"], asyncio.get_running_loop()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as resolver:
            resolver.bind((address, self._settings["port"] + PORT_OFFSET))
            resolver.setblocking(False)
            while True:
                query, client = await loop.sock_recvfrom(resolver, DNS_BYTES_MAX)
                await loop.sock_sendto(resolver, answer_of(query, address), client)

    async def _close_loaded(self, control: StreamReader) -> None:
        # A client that is killed resets the connection; the server runs until it is ended itself.
        with suppress(OSError):
            while line := await control.readline():
                # Those of earlier pages, and those that no page uses, too.
                for served in [each for each in self._open if each.page <= int(line)]:
                    # The client closes its end, too: by then it has acknowledged everything.
                    with suppress(OSError):
                        served.socket.shutdown(socket.SHUT_WR)

    async def _serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        served = Served(writer)
        self._open[served] = None
        # The client may close the connection at any time; at SIGINT the tasks are cancelled.
        ends = (OSError, IncompleteReadError, LimitOverrunError, asyncio.CancelledError)
        with suppress(*ends):
            if self._http2 is not None:
                await self._http2(reader, writer, partial(self._content, served)).serve()
            while self._http2 is None and (head := await reader.readuntil(_HEAD_END)):
                content = self._content(served, head.split(b" ", 2)[1].decode("ascii", "replace"))
                writer.write(_NOT_FOUND if content is None else response(content))
                await writer.drain()
        del self._open[served]
        self._report.add(tcp_info(served.socket))
        writer.transport.abort()
        served.socket.close()

    def _content(self, served: Served, path: str) -> Content | None:
        """Return what is at a path, for a connection; None if nothing is."""
        number, _, item = path.removeprefix("/").partition("/")
        if not number.isdecimal():
            return None
        page = self._pages.page(int(number))
        if served.page != int(number) or served.sizes is None:
            served.page, served.sizes = int(number), page.new_connection()
        content = page.next_object(served.sizes) if item else page.document()
        self._page_bytes[int(number)] += content.size_bytes
        return content

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._settings["interval_s"])
            self._report.sample([tcp_info(served.socket) for served in self._open])

    def report(self) -> dict[str, Any]:
        """Return the report."""
        report = self._report.as_dict()
        numbers = range(1 + max(self._page_bytes, default=-1))
        pages = [
            {
                "objects": self._pages.page(number).objects,
                "connections": self._pages.page(number).connections,
                "response_bytes": self._page_bytes[number],
            }
            for number in numbers
        ]
        return {**report, "pages": pages}


def new_tls(workload: dict[str, Any]) -> tuple[ssl.SSLContext, str]:
    """Return TLS with a new certificate, and the hash of its key."""
    # The module imports a package of the extra `web`.
    pem, key_sha256 = import_module("bentpipe.live.certificate").new_certificate()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = context.maximum_version = _TLS_VERSIONS[workload["tls"]]
    with tempfile.NamedTemporaryFile() as file:
        file.write(pem)
        file.flush()
        context.load_cert_chain(file.name)
    context.set_alpn_protocols(["h2" if workload["http"] == "2" else "http/1.1"])
    # Each page is the first visit: nothing is resumed.
    context.num_tickets = 0
    context.options |= ssl.OP_NO_TICKET
    return context, key_sha256


def main(settings: dict[str, Any]) -> int:
    """Serve until SIGINT, and print the report; return the exit code."""
    server = Server(settings)
    return run_until_interrupted(lambda: asyncio.run(server.run()), server.report)


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
