"""The server of web pages in real time: HTTP/1.1 or HTTP/2, with or without TLS.

It is run as ``python -m bentpipe.live.page_server JSON``, on the far side of the link. Its first
connection bypasses the link. On it the server writes the hash of its key (an empty line without
TLS), and the client the number of each page that it has loaded, a line each; then the server closes
the connections of that page. When it is interrupted, it prints a `FlowReport`.

Documents and objects have the sizes that the simulator draws. The document of page P is ``/P/`` and
its object K ``/P/K``. The document refers to its objects at its end, so that a browser requests
them when it has read the whole document, as the simulated one. An object is an image: a browser
requests images as it finds them, and runs nothing. As in the simulator, the sizes of the objects
belong to the connections of a page, in the order of the requests on each, and the connections have
the order of their first requests.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import ssl
import struct
import sys
import tempfile
from asyncio import IncompleteReadError, LimitOverrunError, StreamReader, StreamWriter
from base64 import b64encode
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, Final

from bentpipe._core import Stream
from bentpipe.live.exchanges import new_listener, run_until_interrupted
from bentpipe.live.flow_report import FlowReport, SenderWatch

# Prevents requests for /favicon.ico; the comment is what makes the document as large as it is.
_DOCUMENT: Final = b'<!doctype html><html><head><link rel="icon" href="data:,"></head><body><!--'
_COMMENT_END: Final = b"-->"
# The smallest GIF; a decoder ignores what follows the trailer (GIF89a, section 27).
_IMAGE: Final = bytes.fromhex(
    "47494638396101000100800000000000ffffff21f90401000000002c000000000100010000020144003b"
)
# A document that needs nothing from elsewhere.
FIRST_DOCUMENT: Final = (
    _DOCUMENT + _COMMENT_END + b'<img src="data:image/gif;base64,%s">' % b64encode(_IMAGE)
)
_HEAD_END: Final = b"\r\n\r\n"
_TLS_VERSIONS: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
_NOT_FOUND: Final = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"


class Page:
    """One page: its document, its number of objects, and the sizes of the objects."""

    def __init__(self, document_bytes: int, objects: int, object_bytes: str, seed: int) -> None:
        self.objects, self.connections = objects, 0
        self._document_bytes, self._object_bytes = document_bytes, object_bytes
        self._seed = seed

    def new_connection(self) -> Stream:
        """Return the random stream of the next connection of the page."""
        number = self.connections
        self.connections += 1
        return Stream(self._seed, f"connection.{number}")

    def document(self) -> Content:
        """Return the document."""
        images = b"".join(b"<img src=%d>" % number for number in range(self.objects))
        return Content("text/html", self._document_bytes, _DOCUMENT, _COMMENT_END + images)

    def next_object(self, connection: Stream) -> Content:
        """Return the next object on a connection."""
        size = max(1, connection.draw(self._object_bytes))
        return Content("image/gif", size, _IMAGE, b"")


class Pages:
    """The pages of a flow, in their order."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._workload = settings["workload"]
        name, seed = f"flow.{settings['name']}", settings["seed"]
        self._objects = Stream(seed, f"{name}.objects")
        self._documents = Stream(seed, f"{name}.documents")
        self._seeds = Stream(seed, f"{name}.pages")
        self._pages: list[Page] = []

    def page(self, number: int) -> Page:
        """Return the page with this number, from 0."""
        while len(self._pages) <= number:
            objects = self._objects.draw(json.dumps(self._workload["objects"]))
            size = self._documents.draw(json.dumps(self._workload["document_bytes"]))
            seed = self._seeds.next_u64()
            object_bytes = json.dumps(self._workload["object_bytes"])
            self._pages.append(Page(max(1, size), objects, object_bytes, seed))
        return self._pages[number]


@dataclass(frozen=True)
class Content:
    """A response: its drawn size, and the parts of the body that are not padding."""

    media_type: str
    size_bytes: int
    begin: bytes
    end: bytes

    def body(self, overhead_bytes: int) -> bytes:
        """Return the body that makes the response as large as drawn, with so much overhead.

        It is larger if the size is too small for the header and what the body must have.
        """
        length = max(0, self.size_bytes - overhead_bytes - len(self.end))
        return self.begin.ljust(length) + self.end


# --- the lookup of the host name ----------------------------------------------------------------

# DNS messages over UDP (RFC 1035, RFC 6891). The client program sends them before the browser loads
# the page: Chromium's own resolver would send three queries (A, AAAA and HTTPS); the simulator
# sends one.

# From the port of a flow to that of its resolver, which is not counted as traffic of the flow.
PORT_OFFSET: Final = 100
_HEADER: Final = struct.Struct("!6H")
_RECURSION_DESIRED: Final = 0x0100
_RESPONSE: Final = 0x8180
# www.example.com, type A, class IN.
_QUESTION: Final = b"\x03www\x07example\x03com\0" + struct.pack("!2H", 1, 1)
# An EDNS record: the root, type OPT, 1,232 bytes of UDP payload.
_EDNS: Final = b"\0" + struct.pack("!2HIH", 41, 1_232, 0, 0)
# The name of the question, type A, class IN, 60 s, 4 bytes of address.
_RECORD: Final = struct.Struct("!3HIH4s")
_POINTER_TO_QUESTION: Final = 0xC00C
# resolv.conf(5), `timeout`.
_TIMEOUT_S: Final = 5.0
DNS_BYTES_MAX: Final = 512


def query_of(number: int) -> bytes:
    """Return the query with this number."""
    return _HEADER.pack(number & 0xFFFF, _RECURSION_DESIRED, 1, 0, 0, 1) + _QUESTION + _EDNS


def answer_of(query: bytes, address: str) -> bytes:
    """Return the answer to a query."""
    number = int.from_bytes(query[:2], "big")
    record = _RECORD.pack(_POINTER_TO_QUESTION, 1, 1, 60, 4, socket.inet_aton(address))
    return _HEADER.pack(number, _RESPONSE, 1, 1, 0, 1) + _QUESTION + record + _EDNS


def look_up(address: str, port: int, number: int) -> None:
    """Send a query to the resolver of a flow; repeat it when no answer has come for 5 s."""
    query = query_of(number)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as resolver:
        resolver.connect((address, port + PORT_OFFSET))
        resolver.settimeout(_TIMEOUT_S)
        while True:
            resolver.send(query)
            try:
                if resolver.recv(DNS_BYTES_MAX)[:2] == query[:2]:
                    return
            except TimeoutError:
                continue


# --- the server ---------------------------------------------------------------------------------


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
    """Serves pages."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings
        self._tls, self._key_sha256, self._http2 = None, "", None
        if settings["workload"]["tls"] is not None:
            # It imports packages of the extra `web`, which takes a tenth of a second.
            https = import_module("bentpipe.live.https")
            pem, self._key_sha256 = https.new_certificate()
            self._tls = new_tls(settings["workload"], pem)
            self._http2 = https.Http2 if settings["workload"]["http"] == "2" else None
        self._pages = Pages(settings)
        self._open: list[Served] = []
        self._watch = SenderWatch(settings)
        self._page_bytes: Counter[int] = Counter()

    async def run(self) -> None:
        """Serve until the task is cancelled."""
        listener = new_listener(self._settings)
        listener.setblocking(False)
        control, _ = await asyncio.get_running_loop().sock_accept(listener)
        loaded, to_client = await asyncio.open_connection(sock=control)
        to_client.write(f"{self._key_sha256}\n".encode())
        server = await asyncio.start_server(self._serve, sock=listener, ssl=self._tls)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._close_loaded(loaded))
                tasks.create_task(self._resolve())
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
                for served in [served for served in self._open if served.page <= int(line)]:
                    # The client closes its end, too: by then it has acknowledged everything.
                    with suppress(OSError):
                        served.socket.shutdown(socket.SHUT_WR)

    async def _serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        served = Served(writer)
        self._open.append(served)
        self._watch.add(served.socket)
        # The client may close the connection at any time; at SIGINT the tasks are cancelled.
        ends = (OSError, IncompleteReadError, LimitOverrunError, asyncio.CancelledError)
        with suppress(*ends):
            if self._http2 is not None:
                await self._http2(reader, writer, partial(self._content, served)).serve()
            while self._http2 is None and (head := await reader.readuntil(_HEAD_END)):
                content = self._content(served, head.split(b" ", 2)[1].decode("ascii", "replace"))
                writer.write(_NOT_FOUND if content is None else response(content))
                await writer.drain()
        self._open.remove(served)
        self._watch.finish(served.socket)
        writer.transport.abort()

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

    def report(self) -> FlowReport:
        """Return the report."""
        report = self._watch.report()
        for number in range(1 + max(self._page_bytes, default=-1)):
            page = self._pages.page(number)
            counts = {"objects": page.objects, "connections": page.connections}
            report.served.append({**counts, "response_bytes": self._page_bytes[number]})
        return report


def new_tls(workload: dict[str, Any], pem: bytes) -> ssl.SSLContext:
    """Return TLS with a private key and its certificate."""
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
    return context


def main(settings: dict[str, Any]) -> int:
    """Serve until SIGINT, and print the report; return the exit code."""
    server = Server(settings)
    return run_until_interrupted(lambda: asyncio.run(server.run()), server.report)


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
