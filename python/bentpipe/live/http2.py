"""The server's end of an HTTP/2 connection (RFC 9113), on asyncio streams.

Responses are sent in the order of the requests, as RFC 9218, section 10, recommends for those that
are not incremental and have one urgency.
"""

from __future__ import annotations

import asyncio
from asyncio import StreamReader, StreamWriter
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

# The extra `web`; only a server with HTTP/2 imports this module.
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import Event, RequestReceived, StreamReset
from h2.exceptions import ProtocolError

from bentpipe.live.page_content import Content

# RFC 9113, section 4.1.
FRAME_HEADER_BYTES: Final = 9
_PIECE_BYTES: Final = 1 << 16

Respond = Callable[[str], Content | None]


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
            self._unsent = deque(each for each in self._unsent if each[0] != event.stream_id)

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
