"""The client and the server of requests and responses in real time.

They are run as ``python -m bentpipe.live.exchanges JSON``, each on its side of
the link. A video is a series of exchanges, a segment each. The client prints a line when it is
ready, and starts on SIGUSR1. Its first connection bypasses the link and carries no data, like the
control connection of iperf3; the others are measured. Both draw the sizes of the responses from the
same random stream. When they end, or are interrupted, they print a `FlowReport`.
"""

from __future__ import annotations

import itertools
import json
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from bentpipe import _core
from bentpipe.live.flow_report import FlowReport, Row, SenderWatch
from bentpipe.units import BITS_PER_BYTE, NS_PER_S

_PIECE: Final = bytes(64 * 1024)


def new_socket(settings: Mapping[str, Any]) -> socket.socket:
    """Return a socket with the options of the flow."""
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    made.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, settings["traffic_class"])
    if settings["mss_bytes"] is not None:
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, settings["mss_bytes"])
    name = settings["congestion_control"].encode()
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name)
    return made


def new_listener(settings: Mapping[str, Any]) -> socket.socket:
    """Return a socket that listens on the port of the flow."""
    made = new_socket(settings)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind(("", settings["port"]))
    made.listen()
    return made


def run_until_interrupted(run: Callable[[], object], report: Callable[[], FlowReport]) -> int:
    """Run a program until SIGINT and print its report; return the exit code."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with suppress(KeyboardInterrupt):
        run()
    # The report must be complete even if another SIGINT arrives.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    printed = report()
    print(printed.text(), flush=True)
    return 0 if printed.error is None else 1


def sizes_of(settings: Mapping[str, Any]) -> Iterator[int]:
    """Yield the sizes of the responses in bytes, in the order of the exchanges."""
    workload = settings["workload"]
    if "media" in workload:
        yield from (segment_bytes(workload["media"], number) for number in itertools.count())
    stream = _core.Stream(settings["seed"], f"flow.{settings['name']}.responses")
    distribution = json.dumps(workload["response_bytes"])
    while True:
        yield max(1, stream.draw(distribution))


class Server:
    """Responds to requests, one connection after the other."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings
        self._sizes = sizes_of(settings)
        self._watch = SenderWatch(settings)
        self.report = self._watch.report

    def run(self) -> None:
        """Serve until SIGINT."""
        listener = new_listener(self._settings)
        # Open as long as the process runs: it bypasses the link.
        control, _ = listener.accept()
        with control:
            while True:
                connection, _ = listener.accept()
                self._watch.add(connection)
                # The client may have closed the connection; it opens the next one.
                with suppress(OSError):
                    self._respond(connection)
                self._watch.finish(connection)

    def _respond(self, connection: socket.socket) -> None:
        workload = self._settings["workload"]
        while has_received(connection, workload["request_bytes"]):
            left = next(self._sizes)
            while left:
                left -= connection.send(memoryview(_PIECE)[: min(left, len(_PIECE))])
            if not workload.get("keep_connection", True):
                connection.shutdown(socket.SHUT_WR)


class Client:
    """Sends requests, receives the responses, and waits between them."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings
        self._sizes = sizes_of(settings)
        self._think = _core.Stream(settings["seed"], f"flow.{settings['name']}.think")
        self._exchanges: list[Row] = []
        self._received_bytes = 0
        self._progress: list[tuple[int, int]] = []
        self._error: str | None = None

    def run(self) -> None:
        """Make the exchanges of the flow, or until SIGINT."""
        workload = self._settings["workload"]
        server = (self._settings["address"], self._settings["port"])
        with new_socket(self._settings) as control:
            control.connect(server)
            print(flush=True)
            signal.sigwait({signal.SIGUSR1})
            connection: socket.socket | None = None
            try:
                limit = exchanges_of(workload)
                while limit is None or len(self._exchanges) < limit:
                    if self._exchanges:
                        self._pause("next_request_ns")
                    connection = self._exchange(connection, server)
                if "media" in workload:
                    self._pause("last_frame_ns")
            except OSError as error:
                self._error = f"exchange {len(self._exchanges)}: {error.strerror or error}"

    def _pause(self, until: str) -> None:
        """Think, or wait until a player has room for a segment or has played the last one."""
        workload = self._settings["workload"]
        if "media" not in workload:
            time.sleep(self._think.draw(json.dumps(workload["think_ns"])) / 1e9)
            return
        arrived_ns = self._exchanges[-1]["finished_ns"] or 0
        due_ns = playback(workload["media"], self._exchanges, arrived_ns)[until]
        time.sleep(max(0, (due_ns or 0) - time.monotonic_ns()) / 1e9)

    def _exchange(
        self, connection: socket.socket | None, server: tuple[str, int]
    ) -> socket.socket | None:
        workload = self._settings["workload"]
        exchange: Row = {
            "start_ns": time.monotonic_ns(),
            **dict.fromkeys(("established_ns", "first_byte_ns", "finished_ns")),
            "request_bytes": workload["request_bytes"],
            "response_bytes": next(self._sizes),
        }
        self._exchanges.append(exchange)
        if connection is None:
            connection = new_socket(self._settings)
            connection.connect(server)
            exchange["established_ns"] = time.monotonic_ns()
        connection.sendall(bytes(workload["request_bytes"]))
        left = exchange["response_bytes"] or 0
        while left:
            count = len(connection.recv(min(left, len(_PIECE))))
            now_ns = time.monotonic_ns()
            if count == 0:
                raise ConnectionError("the server closed the connection")
            exchange["first_byte_ns"] = exchange["first_byte_ns"] or now_ns
            left -= count
            self._count(now_ns, count)
        exchange["finished_ns"] = time.monotonic_ns()
        if workload.get("keep_connection", True):
            return connection
        connection.close()
        return None

    def _count(self, now_ns: int, count: int) -> None:
        self._received_bytes += count
        interval_ns = self._settings["interval_s"] * 1e9 / 4
        if not self._progress or now_ns - self._progress[-1][0] > interval_ns:
            self._progress.append((now_ns, self._received_bytes))

    def report(self) -> FlowReport:
        """Return the report."""
        self._progress.append((time.monotonic_ns(), self._received_bytes))
        return FlowReport(
            error=self._error,
            received_bytes=self._received_bytes,
            exchanges=self._exchanges,
            progress=self._progress,
        )


def has_received(connection: socket.socket, count: int) -> bool:
    """Read ``count`` bytes; return False if the peer closed the connection before."""
    while count and (piece := len(connection.recv(min(count, len(_PIECE))))):
        count -= piece
    return not count


def exchanges_of(workload: Mapping[str, Any]) -> int | None:
    """Return the number of exchanges of a flow: those of the plan, or the segments of a video."""
    if "media" not in workload:
        count: int | None = workload["exchanges"]
        return count
    media = workload["media"]
    return -(-int(media["duration_ns"]) // int(media["segment_ns"]))


def segment_bytes(media: Mapping[str, int], number: int) -> int:
    """Return the size of a segment, rounded up; the last one may be shorter than the others."""
    left_ns = media["duration_ns"] - number * media["segment_ns"]
    bits_ns = min(media["segment_ns"], left_ns) * media["rate_bps"]
    return -(-bits_ns // (BITS_PER_BYTE * NS_PER_S))


def playback(
    media: Mapping[str, int], exchanges: Sequence[Mapping[str, int | None]], end_ns: int
) -> dict[str, int | None]:
    """Return what the viewer has seen at ``end_ns``, on the clock of the exchanges.

    The moments in it, ``next_request_ns`` and ``last_frame_ns``, are on that clock, too.
    """
    start_ns = exchanges[0]["start_ns"] or 0
    arrived = [exchange["finished_ns"] for exchange in exchanges]
    columns = _core.video_playback(
        (media["duration_ns"], media["segment_ns"], media["buffer_ns"], media["start_up_ns"]),
        [at_ns - start_ns for at_ns in arrived if at_ns is not None],
        end_ns - start_ns,
    )
    seen = dict(columns)
    for moment in ("next_request_ns", "last_frame_ns"):
        if (at_ns := seen[moment]) is not None:
            seen[moment] = start_ns + at_ns
    return seen


def main(settings: dict[str, Any]) -> int:
    """Run one end and print its report; return the exit code."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    program = Server(settings) if settings["role"] == "server" else Client(settings)
    return run_until_interrupted(program.run, program.report)


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
