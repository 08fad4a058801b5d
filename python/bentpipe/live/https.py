"""HTTPS of the server of web pages: a certificate that is made for one run, and HTTP/2 (RFC 9113).

Responses over HTTP/2 are sent in the order of the requests, as RFC 9218, section 10, recommends for
those that are not incremental and have one urgency. Only a scenario with TLS imports this module,
which needs the extra ``web``.
"""

from __future__ import annotations

import asyncio
import base64
import datetime as dt
import hashlib
from asyncio import StreamReader, StreamWriter
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import Event, RequestReceived, StreamReset
from h2.exceptions import ProtocolError

if TYPE_CHECKING:
    from bentpipe.live.page_server import Content

_NAME: Final = "*.bentpipe.test"
_SERIAL_NUMBER: Final = 1
_VALID: Final = dt.timedelta(days=1)
# What the simulated handshake has: RSA-2048, and two certificates with 2,540 bytes together
# (`docs/model/web-page.md`). This one alone is as large as both.
_KEY_BITS: Final = 2_048
_SIZE_BYTES: Final = 2_540
# Netscape Certificate Comment, a text of any length that browsers ignore.
_COMMENT: Final = x509.ObjectIdentifier("2.16.840.1.113730.1.13")
# RFC 9113, section 4.1.
FRAME_HEADER_BYTES: Final = 9
_PIECE_BYTES: Final = 1 << 16

Respond = Callable[[str], "Content | None"]


def new_certificate() -> tuple[bytes, str]:
    """Return a new private key with a self-signed certificate (PEM), and the hash of its key."""
    key = rsa.generate_private_key(public_exponent=65_537, key_size=_KEY_BITS)
    # The lengths of the parts are coded in as many bytes as those of a comment of this size.
    filler = _SIZE_BYTES // 2
    size = len(_signed(key, filler).public_bytes(serialization.Encoding.DER))
    certificate = _signed(key, filler + _SIZE_BYTES - size)
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    pem = private + certificate.public_bytes(serialization.Encoding.PEM)
    return pem, base64.b64encode(hashlib.sha256(public).digest()).decode()


def _signed(key: rsa.RSAPrivateKey, comment_bytes: int) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, _NAME)])
    now = dt.datetime.now(dt.UTC)
    # X.690, 8.1: the tag of an IA5String, and its length in two bytes.
    comment = b"\x16\x82" + comment_bytes.to_bytes(2, "big") + b" " * comment_bytes
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(_SERIAL_NUMBER)
        .not_valid_before(now - _VALID)
        .not_valid_after(now + _VALID)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(_NAME)]), critical=False)
        .add_extension(x509.UnrecognizedExtension(_COMMENT, comment), critical=False)
        .sign(key, hashes.SHA256())
    )


class Http2:
    """One connection; ``respond`` makes the responses."""

    def __init__(self, reader: StreamReader, writer: StreamWriter, respond: Respond) -> None:
        self._reader, self._writer, self._respond = reader, writer, respond
        self._connection = H2Connection(H2Configuration(client_side=False))
        self._unsent: deque[tuple[int, memoryview]] = deque()
        self._has_news = asyncio.Event()

    async def serve(self) -> None:
        """Serve until the client closes the connection."""
        self._connection.initiate_connection()
        sending = asyncio.create_task(self._send_bodies())
        try:
            await self._flush()
            while data := await self._reader.read(_PIECE_BYTES):
                for event in self._connection.receive_data(data):
                    self._on_event(event)
                self._has_news.set()
        except ProtocolError:
            await self._flush()
        finally:
            sending.cancel()
            with suppress(asyncio.CancelledError, OSError):
                await sending

    def _on_event(self, event: Event) -> None:
        if isinstance(event, RequestReceived):
            assert event.stream_id is not None
            assert event.headers is not None
            path = next(value for name, value in event.headers if bytes(name) == b":path")
            self._start(event.stream_id, bytes(path).decode("ascii", "replace"))
        elif isinstance(event, StreamReset):
            self._unsent = deque(queued for queued in self._unsent if queued[0] != event.stream_id)

    def _start(self, stream: int, path: str) -> None:
        connection, frame_bytes = self._connection, self._connection.max_outbound_frame_size
        content = self._respond(path)
        if content is None:
            connection.send_headers(stream, [(":status", "404")], end_stream=True)
            return
        # The size of a compressed header is known once it is encoded.
        before = connection.data_to_send()
        headers = [(":status", "200"), ("content-type", content.media_type)]
        connection.send_headers(stream, [*headers, ("cache-control", "no-store")])
        header = connection.data_to_send()
        frames = -(-content.size_bytes // (frame_bytes + FRAME_HEADER_BYTES))
        body = content.body(len(header) + frames * FRAME_HEADER_BYTES)
        self._writer.write(before + header)
        self._unsent.append((stream, memoryview(body)))

    async def _send_bodies(self) -> None:
        while True:
            await self._has_news.wait()
            self._has_news.clear()
            await self._flush()
            while self._unsent and (room := self._room(self._unsent[0][0])) > 0:
                stream, body = self._unsent.popleft()
                piece = body[:room]
                is_last = len(piece) == len(body)
                self._connection.send_data(stream, piece.tobytes(), end_stream=is_last)
                if not is_last:
                    self._unsent.appendleft((stream, body[room:]))
                await self._flush()

    def _room(self, stream: int) -> int:
        """Return how many bytes of a stream may be sent in a frame."""
        window = self._connection.local_flow_control_window(stream)
        return min(window, self._connection.max_outbound_frame_size)

    async def _flush(self) -> None:
        self._writer.write(self._connection.data_to_send())
        await self._writer.drain()
