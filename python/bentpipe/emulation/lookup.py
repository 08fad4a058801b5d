"""The lookup of a page's host name over the link: DNS messages over UDP (RFC 1035, RFC 6891).

The client program makes it before the browser loads the page. Chromium's own resolver would send
three queries (A, AAAA and HTTPS), where the simulator sends one.
"""

from __future__ import annotations

import socket
import struct
from typing import Final

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
_MAX_BYTES: Final = 512


def query_of(number: int) -> bytes:
    """Return the query with this number."""
    return _HEADER.pack(number & 0xFFFF, _RECURSION_DESIRED, 1, 0, 0, 1) + _QUESTION + _EDNS


def answer_of(query: bytes, address: str) -> bytes:
    """Return the answer to a query."""
    (number,) = struct.unpack_from("!H", query)
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
                if resolver.recv(_MAX_BYTES)[:2] == query[:2]:
                    return
            except TimeoutError:
                continue
