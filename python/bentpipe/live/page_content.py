"""What the server of web pages sends: documents and objects of the sizes that the simulator draws.

The document of page P is ``/P/`` and its object K ``/P/K``. The document refers to its objects at
its end, so that a browser requests them when it has read the whole document, as the simulated one.
An object is an image: a browser requests images as it finds them, and runs nothing.

As in the simulator, the sizes of the objects belong to the connections of a page, in the order of
the requests on each, and the connections have the order of their first requests.
"""

from __future__ import annotations

import json
import socket
import struct
from base64 import b64encode
from dataclasses import dataclass
from typing import Any, Final

from bentpipe._core import Stream

# Prevents requests for /favicon.ico; the comment is what makes the document as large as it is.
_DOCUMENT: Final = b'<!doctype html><html><head><link rel="icon" href="data:,"></head><body><!--'
_COMMENT_END: Final = b"-->"
# The smallest GIF; a decoder ignores what follows the trailer (GIF89a, section 27).
_IMAGE: Final = bytes.fromhex(
    "47494638396101000100800000000000ffffff21f90401000000002c000000000100010000020144003b"
)
_SPACE: Final = b" "
# A document that needs nothing from elsewhere.
FIRST_DOCUMENT: Final = (
    _DOCUMENT + _COMMENT_END + b'<img src="data:image/gif;base64,%s">' % b64encode(_IMAGE)
)

Draw = dict[str, Any]


class Page:
    """One page: its document, its number of objects, and the sizes of the objects."""

    def __init__(self, document_bytes: int, objects: int, object_bytes: Draw, seed: int) -> None:
        self.objects, self.connections = objects, 0
        self._document_bytes, self._object_bytes = document_bytes, json.dumps(object_bytes)
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
            self._pages.append(Page(max(1, size), objects, self._workload["object_bytes"], seed))
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
        return self.begin.ljust(length, _SPACE) + self.end


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
