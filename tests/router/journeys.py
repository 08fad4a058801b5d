"""The journeys: connections between hosts, and how they end, in one word."""

from __future__ import annotations

import errno
import hashlib
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from routers import Routers

from router import servers
from router.cases import Case
from router.network import PUBLIC, SILENT, UNREACHABLE

# Opened within 0.9 s, so no SYN was lost (RFC 6298: it is retransmitted after 1 s), and all data
# arrived unchanged.
OK: Final = "ok"
LATE: Final = "late"
NO_ANSWER: Final = "no answer"
STALLED: Final = "stalled"
REFUSED: Final = "refused"
UNREACHABLE_HOST: Final = "unreachable"
RESET: Final = "reset"
TRUNCATED: Final = "truncated"
CORRUPTED: Final = "corrupted"
_LATE_S: Final = 0.9
# One retransmission of a SYN, after 1 s.
_CONNECT_S: Final = 2.5
_SILENT_S: Final = 1.5
# For an emulated machine: transfers have `BENTPIPE_SLOW` times as long, fewer journeys are made at
# once, and those of 100 MB last. The limits above are those of TCP's timers, which do not scale.
SLOW: Final = float(os.environ.get("BENTPIPE_SLOW", "1"))
_SMALL: Final = 1_000_000
_LARGE: Final = 100_000_000
_LARGE_S: Final = 60.0 * SLOW
_STREAM_BYTES: Final = 200_000
_EXPEDITED_FORWARDING: Final = 46 << 2
_MANY: Final = 24
_BURST: Final = 1_000
# Below the range of which the kernel gives ports to other sockets of the client.
_REUSED_PORT: Final = 31_000
# While a socket that had the port has not ended, on the client itself.
_PORT_IN_USE: Final = (errno.EADDRINUSE, errno.EADDRNOTAVAIL)
_REUSES: Final = 10
_FAST_OPEN_DATA: Final = 1_300
# linux/in6.h; Python has the option, not the layout: next header, length, PadN of 4 bytes.
_DESTINATION_OPTIONS: Final = bytes([0, 0, 1, 4, 0, 0, 0, 0])


@dataclass(frozen=True)
class Trip:
    """What a journey needs: the network, the case, and the version of IP."""

    routers: Routers
    case: Case
    version: int
    # A file of `_SMALL` bytes, and a larger one.
    folder: Path

    @property
    def stall_s(self) -> float:
        """Return how long a connection may be without progress."""
        return self.case.stall_s * SLOW

    def address(self, journey: str, default: tuple[str, str]) -> str:
        """Return the address of a target in this case."""
        return self.case.targets.get(journey, default)[self.version == 6]

    @contextmanager
    def connected(
        self,
        address: str,
        port: int,
        *,
        source_port: int = 0,
        connect_s: float = _CONNECT_S,
        options: Mapping[str, int | bytes] = MappingProxyType({}),
    ) -> Iterator[tuple[socket.socket, bool]]:
        """Connect from the client; yield the socket, and whether it took too long."""
        family = socket.AF_INET6 if self.version == 6 else socket.AF_INET
        with ExitStack() as opened:
            with self.routers.within("client"):
                made = opened.enter_context(socket.socket(family))
            level = socket.IPPROTO_IPV6 if self.version == 6 else socket.IPPROTO_IP
            for name, value in options.items():
                made.setsockopt(level, getattr(socket, name), value)
            if source_port:
                made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                made.bind(("", source_port))
            made.settimeout(connect_s)
            started_s = time.monotonic()
            try:
                made.connect((address, port))
            except TimeoutError:
                raise _NoAnswerError from None
            took_s = time.monotonic() - started_s
            made.settimeout(self.stall_s)
            yield made, took_s > _LATE_S


_ENDINGS: Final = {
    errno.ECONNREFUSED: REFUSED,
    errno.ECONNRESET: RESET,
    errno.EPIPE: RESET,
    errno.EHOSTUNREACH: UNREACHABLE_HOST,
    errno.ENETUNREACH: UNREACHABLE_HOST,
    errno.EACCES: UNREACHABLE_HOST,
}


class _NoAnswerError(Exception):
    """A connection did not open in time."""


def _ending(act: Callable[[], str]) -> str:
    """Return what a journey returns, or how it failed."""
    try:
        return act()
    except _NoAnswerError:
        return NO_ANSWER
    except TimeoutError:
        return STALLED
    except OSError as error:
        number = error.errno or 0
        return _ENDINGS.get(number, errno.errorcode.get(number, str(error)))


def _received(connection: socket.socket, size: int) -> bytes:
    """Receive up to ``size`` bytes, fewer before the end of the stream."""
    parts = bytearray()
    while len(parts) < size and (part := connection.recv(size - len(parts))):
        parts += part
    return bytes(parts)


# --- curl -----------------------------------------------------------------------------------------

# The exit codes of curl(1); 7 has several reasons, of which its message names none.
_CURL: Final = {7: REFUSED, 18: TRUNCATED, 52: RESET, 55: RESET, 56: RESET}
_CURL_TIMED_OUT: Final = 28


def _curl(trip: Trip, host: str, address: str, path: str, *, limit_s: float, put: int = 0) -> str:
    """Return how a transfer by curl ends: an upload of ``put`` bytes, or else a download."""
    shown = f"[{address}]" if ":" in address else address
    command = ["curl", "-sS", "--noproxy", "*", "--connect-timeout", str(_CONNECT_S)]
    command += ["--max-time", str(limit_s), "--write-out", "%{stderr}\n%{time_connect}"]
    if put:
        command += ["--upload-file", str(trip.folder / str(put)), "--header", "Expect:"]
    size = put or int(path.rpartition("/")[2])
    command.append(f"http://{shown}:{servers.HTTP_PORT}/{path}")
    with trip.routers.within(host):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with process:
        assert process.stdout is not None
        assert process.stderr is not None
        if put:
            found = process.stdout.read().decode()
        else:
            found = hashlib.sha256(process.stdout.read()).hexdigest()
        connect_s = float(process.stderr.read().splitlines()[-1])
    if process.returncode == _CURL_TIMED_OUT:
        return STALLED if connect_s else NO_ANSWER
    if process.returncode:
        return _CURL.get(process.returncode, f"curl {process.returncode}")
    if found != servers.digest(size):
        return CORRUPTED
    return LATE if connect_s > _LATE_S else OK


def _download(trip: Trip, size: int, limit_s: float) -> str:
    server = trip.address("download", PUBLIC["server"])
    return _curl(trip, "client", server, f"bytes/{size}", limit_s=limit_s)


def _upload(trip: Trip, size: int, limit_s: float) -> str:
    server = trip.address("upload", PUBLIC["server"])
    return _curl(trip, "client", server, "put", limit_s=limit_s, put=size)


def _small_s(trip: Trip) -> float:
    return _CONNECT_S + trip.stall_s


def download(trip: Trip) -> str:
    return _download(trip, _SMALL, _small_s(trip))


def upload(trip: Trip) -> str:
    return _upload(trip, _SMALL, _small_s(trip))


def large_download(trip: Trip) -> str:
    return _download(trip, _LARGE, _LARGE_S)


def large_upload(trip: Trip) -> str:
    return _upload(trip, _LARGE, _LARGE_S)


def stream(trip: Trip) -> str:
    """Download for more than a second, during which ``during`` of the case happens."""
    path = f"stream/{_STREAM_BYTES}"
    return _curl(trip, "client", PUBLIC["server"][trip.version == 6], path, limit_s=_small_s(trip))


def inbound(trip: Trip) -> str:
    """Download from a server of the LAN by a host behind the link."""
    address = trip.address("inbound", PUBLIC["client"])
    return _curl(trip, "server", address, f"bytes/{_SMALL}", limit_s=_small_s(trip))


def inbound_upload(trip: Trip) -> str:
    address = trip.address("inbound", PUBLIC["client"])
    return _curl(trip, "server", address, "put", limit_s=_small_s(trip), put=_SMALL)


def hairpin(trip: Trip) -> str:
    """Download from a server of the LAN at the outer address of the router."""
    address = trip.address("hairpin", PUBLIC["client"])
    return _curl(trip, "client", address, f"bytes/{_SMALL}", limit_s=_small_s(trip))


def later(trip: Trip) -> str:
    """Download two seconds after ``during`` of the case."""
    time.sleep(2.5)
    return download(trip)


# --- sockets --------------------------------------------------------------------------------------


def dialogue(trip: Trip) -> str:
    """Exchange short lines both ways after a banner, as ssh does, marked EF; close in order."""
    mark = "IPV6_TCLASS" if trip.version == 6 else "IP_TOS"
    address, port = PUBLIC["server"][trip.version == 6], servers.DIALOGUE_PORT
    with trip.connected(address, port, options={mark: _EXPEDITED_FORWARDING}) as (
        connection,
        is_late,
    ):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if _received(connection, len(servers.BANNER)) != servers.BANNER:
            return TRUNCATED
        for number in range(20):
            if number == 10:
                time.sleep(0.3)
            line = f"line {number}\n".encode()
            connection.sendall(line)
            if _received(connection, len(line)) != line:
                return TRUNCATED
        connection.shutdown(socket.SHUT_WR)
        if _received(connection, 1):
            return CORRUPTED
    return LATE if is_late else OK


def many(trip: Trip) -> str:
    """Make short downloads, four at a time; return how the first ended that did not end well."""
    address = PUBLIC["server"][trip.version == 6]
    failed: list[str] = []

    def short(_: int) -> None:
        ending = OK if failed else _ending(lambda: _short_download(trip, address))
        if ending != OK:
            failed.append(ending)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(short, range(_MANY)))
    return failed[0] if failed else OK


def _short_download(trip: Trip, address: str, *, source_port: int = 0) -> str:
    port, size = servers.HTTP_PORT, 20_000
    with trip.connected(address, port, source_port=source_port) as (connection, is_late):
        connection.sendall(f"GET /bytes/{size} HTTP/1.1\r\nHost: router\r\n\r\n".encode())
        # The server closes first.
        answer = _received(connection, 2 * size)
    if hashlib.sha256(answer.partition(b"\r\n\r\n")[2]).hexdigest() != servers.digest(size):
        return TRUNCATED
    return LATE if is_late else OK


def reuse(trip: Trip) -> str:
    """Make short downloads from one port of the client, each at once after the one before."""
    for _ in range(_REUSES):
        if (ending := _download_from_reused_port(trip)) != OK:
            return ending
    return OK


def _download_from_reused_port(trip: Trip) -> str:
    """Make a short download once the client's own socket of the one before has ended."""
    address, port = PUBLIC["server"][trip.version == 6], _REUSED_PORT + trip.version
    deadline_s = time.monotonic() + _CONNECT_S
    while True:
        try:
            return _short_download(trip, address, source_port=port)
        except OSError as error:
            if error.errno not in _PORT_IN_USE or time.monotonic() > deadline_s:
                raise
            time.sleep(0.001)


def refused(trip: Trip) -> str:
    """Connect to a port without a server."""
    started_s = time.monotonic()
    address = PUBLIC["server"][trip.version == 6]
    ending = _ending(lambda: _open(trip, address, servers.CLOSED_PORT))
    return LATE if ending == REFUSED and time.monotonic() - started_s > _LATE_S else ending


def silent(trip: Trip) -> str:
    """Connect to an address of which nobody says anything."""
    return _open(trip, SILENT[trip.version == 6], servers.CLOSED_PORT, connect_s=_SILENT_S)


def unreachable(trip: Trip) -> str:
    """Connect to an address for which a router answers that there is no host."""
    return _open(trip, UNREACHABLE[trip.version == 6], servers.CLOSED_PORT)


def _open(trip: Trip, address: str, port: int, *, connect_s: float = _CONNECT_S) -> str:
    with trip.connected(address, port, connect_s=connect_s):
        return OK


def reset(trip: Trip) -> str:
    """Be reset by the server within a response."""
    address = PUBLIC["server"][trip.version == 6]
    with trip.connected(address, servers.HTTP_PORT) as (connection, _):
        connection.sendall(b"GET /reset/1000 HTTP/1.1\r\nHost: router\r\n\r\n")
        while connection.recv(4_096):
            pass
    return TRUNCATED


def burst(trip: Trip) -> str:
    """Open 1,000 connections at once."""
    address = PUBLIC["server"][trip.version == 6]
    with ExitStack() as opened:
        family = socket.AF_INET6 if trip.version == 6 else socket.AF_INET
        with trip.routers.within("client"):
            made = [opened.enter_context(socket.socket(family)) for _ in range(_BURST)]
        started_s = time.monotonic()
        for each in made:
            each.setblocking(False)
            each.connect_ex((address, servers.ACCEPT_PORT))
        left, ended_s = made, started_s
        while left and ended_s - started_s < _CONNECT_S:
            time.sleep(0.02)
            ended_s = time.monotonic()
            left = [each for each in left if not _is_open(each)]
    if left:
        return NO_ANSWER
    return LATE if ended_s - started_s > _LATE_S else OK


def _is_open(connection: socket.socket) -> bool:
    try:
        connection.getpeername()
    except OSError:
        return False
    return True


def fast_open(trip: Trip) -> str:
    """Send 1,300 B with the SYN (TCP Fast Open, RFC 7413)."""
    family = socket.AF_INET6 if trip.version == 6 else socket.AF_INET
    with trip.routers.within("client"):
        connection = socket.socket(family)
    with connection:
        connection.settimeout(trip.stall_s)
        started_s = time.monotonic()
        data = b"x" * _FAST_OPEN_DATA
        address = (PUBLIC["server"][trip.version == 6], servers.DIALOGUE_PORT)
        connection.sendto(data, socket.MSG_FASTOPEN, address)
        answer = _received(connection, len(servers.BANNER) + len(data))
        is_late = time.monotonic() - started_s > _LATE_S
    return CORRUPTED if answer != servers.BANNER + data else LATE if is_late else OK


def extension_header(trip: Trip) -> str:
    """Connect with a destination options header in each packet; with IPv4, without."""
    options: dict[str, int | bytes] = (
        {"IPV6_DSTOPTS": _DESTINATION_OPTIONS} if trip.version == 6 else {}
    )
    address = PUBLIC["server"][trip.version == 6]
    with trip.connected(address, servers.DIALOGUE_PORT, options=options) as (connection, is_late):
        answer = _received(connection, len(servers.BANNER))
    return TRUNCATED if answer != servers.BANNER else LATE if is_late else OK


@dataclass(frozen=True)
class Journey:
    """A journey, and how it ends on a router without rules."""

    make: Callable[[Trip], str]
    expected: str = OK

    def ending(self, trip: Trip) -> str:
        """Make it; return how it ended."""
        return _ending(lambda: self.make(trip))


# Each case has these; the others, those that name them.
USUAL: Final = {
    "download": Journey(download),
    "upload": Journey(upload),
    "stream": Journey(stream),
    "inbound": Journey(inbound),
    "inbound upload": Journey(inbound_upload),
    "dialogue": Journey(dialogue),
    "many": Journey(many),
    "refused port": Journey(refused, REFUSED),
    "silent host": Journey(silent, NO_ANSWER),
    "no such host": Journey(unreachable, UNREACHABLE_HOST),
    "reset": Journey(reset, RESET),
}
OTHERS: Final = {
    "hairpin": Journey(hairpin),
    "later": Journey(later),
    "reuse": Journey(reuse),
    "burst": Journey(burst),
    "fast open": Journey(fast_open),
    "extension header": Journey(extension_header),
}
LARGE: Final = {
    "100 MB down": Journey(large_download),
    "100 MB up": Journey(large_upload),
}
FILE_SIZES: Final = (_SMALL, _LARGE)
