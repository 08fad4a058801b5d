"""Properties of the lab protocol: any bytes get an error reply or a closed connection."""

from __future__ import annotations

import json
import os
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from conftest import needs_lab
from hypothesis import assume, example, given, strategies as st
from properties import attempt, examples
from test_lab import a_lab

from bentpipe.errors import BentpipeError, UsageError
from bentpipe.live import sockets
from bentpipe.live.changes import link_changes
from bentpipe.plan.presets import link_plan

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)
SETTINGS = st.lists(
    st.builds(
        "{}{}{}".format,
        st.sampled_from(["", "hop.1.", "hop.2.", "hop.9999.", "hop.0."]),
        st.sampled_from(
            [
                f"link.{side}.{field}"
                for side in ("forward", "return", "both")
                for field in ("rate", "delay", "bit_error_rate", "outage", "queue")
            ]
        ),
        st.sampled_from(
            ["=1 Mbit/s", "=5 ms", "=0.5", "=on", "=off", "=-1", "=[]", "={}", "=x", "", "=1e30 h"]
        ),
    )
    | st.text(max_size=20),
    max_size=3,
)
CHANGE: dict[str, Any] = {
    "hop": st.integers(-1, 2),
    "direction": st.sampled_from(["forward", "return", "up"]),
    "rate_bps": JSON | st.integers(-1, 2**65),
    "delay_ns": JSON | st.integers(-1, 2**65),
    "loss_rate": JSON | st.floats(0, 2),
    "outage_ns": JSON | st.integers(-1, 2**65),
    "queue": JSON | st.fixed_dictionaries({}, optional={"discipline": JSON, "limit": JSON}),
}
# Requests that end the lab are not among them.
REQUESTS = st.one_of(
    st.fixed_dictionaries(
        {"do": st.sampled_from(["status", "link", "set", "enter", "dow", ""])},
        optional={"settings": SETTINGS, "host": st.sampled_from(["world", "island", "x", ""])},
    ),
    st.fixed_dictionaries({"do": st.just("set"), "settings": SETTINGS | JSON}),
    st.fixed_dictionaries({"do": st.just("enter"), "host": JSON}),
    st.dictionaries(st.text(max_size=8), JSON, max_size=3),
)
CHANGES = st.fixed_dictionaries(
    {
        "do": st.just("set"),
        "settings": SETTINGS,
        "revision": st.just(0),
        "changes": JSON | st.lists(st.fixed_dictionaries({}, optional=CHANGE), max_size=3),
    }
)
LINES = st.one_of(
    REQUESTS.map(lambda request: json.dumps(request).encode()),
    JSON.map(lambda value: json.dumps(value).encode()),
    st.binary(max_size=200),
    st.integers(0, 3).map(lambda extra: b"x" * (sockets.REQUEST_BYTES_MAX + extra - 1)),
    st.sampled_from(
        [b"[" * 20_000, b"9" * 5_000, b'{"do": 1e999}', b'{"do": "\\ud800"}', b"\xff\xfe"]
    ),
)


def is_request(line: bytes) -> bool:
    """Whether a line of JSON holds a mapping."""
    with suppress(ValueError, RecursionError):
        return isinstance(json.loads(line), dict)
    return False


@contextmanager
def a_server() -> Iterator[tuple[sockets.Clients, str]]:
    """The reader of a daemon's requests, at an address of its own in the abstract namespace."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(b"\0")
        listener.listen()
        yield sockets.Clients(listener), listener.getsockname()


@given(
    lines=st.lists(LINES, min_size=1, max_size=4),
    cuts=st.lists(st.integers(0, 300), max_size=4),
    is_terminated=st.booleans(),
)
@examples(80)
def test_any_bytes_are_a_request_or_none(
    lines: list[bytes], cuts: list[int], is_terminated: bool
) -> None:
    """Given lines sent in pieces over connections at once, expect the mapping of each, or None."""
    found: list[dict[str, Any] | None] = []
    with a_server() as (server, address):
        connections = []
        for line in lines:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.connect(address)
            connections.append(connection)
            pieces = [line, b"\n"] if is_terminated else [line]
            for cut in sorted(cuts):
                pieces[:1] = [pieces[0][:cut], pieces[0][cut:]]
            for piece in pieces:
                # The server closes the connection of a line that is too long.
                with suppress(BrokenPipeError, ConnectionResetError):
                    connection.sendall(piece)
                found += [drain(*request) for request in server.requests(0)]
            with suppress(OSError):
                connection.shutdown(socket.SHUT_WR)
        for _ in range(4 * len(lines) + 4):
            found += [drain(*request) for request in server.requests(0)]
        for connection in connections:
            connection.close()
    ended = [line for line in lines if is_terminated]
    first = [line.partition(b"\n")[0] for line in ended]
    valid = [line for line in first if len(line) <= sockets.REQUEST_BYTES_MAX and is_request(line)]
    requests = [request for request in found if request is not None]
    if all(b"\n" not in line for line in lines):
        assert len(requests) == len(valid)
        for line in valid:
            assert json.dumps(json.loads(line)) in [json.dumps(request) for request in requests]


def drain(connection: socket.socket, request: dict[str, Any] | None) -> dict[str, Any] | None:
    """Close the connection of a request, as the daemon does after its reply."""
    connection.close()
    return request


@given(
    line=LINES | REQUESTS.map(lambda reply: json.dumps({**reply, "error": 1}).encode()),
    ends=st.booleans(),
)
@example(line=b'{"error": "x", "exit_code": 3}', ends=True)
@example(line=b'{"error": null, "exit_code": 10}', ends=True)
@example(line=b'{"error": [], "exit_code": []}', ends=True)
@examples(80)
def test_any_reply_is_a_mapping_or_an_error_with_an_exit_code(line: bytes, ends: bool) -> None:
    """Given any bytes of a daemon, expect its mapping, or an error that the command line prints."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with here, there:
        # A reply of 64 KiB may exceed the buffer of the socket.
        sender = threading.Thread(target=send, args=(there, line + b"\n" * ends), daemon=True)
        sender.start()
        found = attempt(BentpipeError, lambda: sockets.ask(here, {"do": "status"}))
        if isinstance(found, BentpipeError):
            assert found.exit_code in (1, 2, 3, 4, 99)
            assert str(found)
        else:
            assert "error" not in found[0]
            assert found[1] == []
        here.close()
        sender.join()


def send(connection: socket.socket, content: bytes) -> None:
    with suppress(OSError):
        connection.sendall(content)
        connection.shutdown(socket.SHUT_WR)
        # Until the peer closes: unread data would reset the connection.
        while connection.recv(65_536):
            pass


@given(settings=SETTINGS, hops=st.integers(1, 3))
@examples(60)
def test_any_setting_is_a_change_of_the_link_or_refused(settings: list[str], hops: int) -> None:
    changes = attempt(UsageError, lambda: link_changes(settings, [link_plan("geo")] * hops))
    if isinstance(changes, UsageError):
        assert str(changes)
        return
    assert len(changes) <= 2 * hops
    for change in changes:
        assert 0 <= change["hop"] < hops
        numbers = (change["rate_bps"], change["delay_ns"], change["outage_ns"])
        assert all(number is None or 0 <= number < 2**63 for number in numbers)


# -- A running daemon --------------------------------------------------------------------------


def talk(connection: socket.socket, content: bytes) -> bytes:
    """Send bytes to a daemon; return all that it replies until it closes the connection."""
    connection.settimeout(sockets.TIMEOUT_S)
    received = b""
    with suppress(BrokenPipeError, ConnectionResetError):
        connection.sendall(content)
        connection.shutdown(socket.SHUT_WR)
    with suppress(ConnectionResetError):
        while True:
            part, descriptors, _, _ = socket.recv_fds(connection, 65_536, 8)
            for descriptor in descriptors:
                os.close(descriptor)
            if not part:
                return received
            received += part
    return received


@needs_lab
def test_a_daemon_survives_any_requests(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given any bytes, expect one line of JSON or a closed connection, and then a status."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("run")))

    @given(
        line=LINES | CHANGES.map(lambda request: json.dumps(request).encode()),
        is_terminated=st.booleans(),
        is_reset=st.booleans(),
    )
    @examples(60)
    def replies(line: bytes, is_terminated: bool, is_reset: bool) -> None:
        assume(b'"down"' not in line)
        with sockets.connect("sat") as connection:
            if is_reset:
                # The daemon's reply fails: the peer is gone.
                connection.sendall(line[:1000] + b"\n")
                linger = struct.pack("ii", 1, 0)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                return
            received = talk(connection, line + b"\n" * is_terminated)
        if received:
            reply = json.loads(received)
            assert received.count(b"\n") == 1
            assert isinstance(reply, dict)
            assert "internal error" not in str(reply.get("error", "")), reply

    with a_lab("sat", "--link", "leo") as process:
        replies()
        with sockets.connect("sat") as connection:
            content, _ = sockets.ask(connection, {"do": "status"})
        assert content["process"] == process
        assert content["failure"] is None
