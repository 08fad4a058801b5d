"""The client and the server of requests and responses in real time.

They are run as ``python -m bentpipe.emulation.exchanges server|client JSON``, each on its side of
the link. A video is a series of exchanges, a segment each. The client prints a line when it is
ready, and starts on SIGUSR1. Its first connection bypasses the link and carries no data, like the
control connection of iperf3; the others are measured. Both draw the sizes of the responses from the
same random stream. When they end, or are interrupted, they print a report as JSON, in the format of
iperf3.

Times are on the machine's monotonic clock, in ns, which both sides share.
"""

from __future__ import annotations

import json
import signal
import socket
import struct
import sys
import threading
import time
from contextlib import suppress
from typing import Any, Final

from bentpipe.emulation.draws import Stream, draw
from bentpipe.emulation.videos import exchanges_of, playback, segment_bytes

_PIECE: Final = bytes(64 * 1024)
# struct tcp_info of linux/tcp.h up to tcpi_min_rtt: 8 bytes, 24 words, 4 long words, 4 words.
_TCP_INFO: Final = struct.Struct("=8B24I4Q4I")
_UNKNOWN_SSTHRESH: Final = 0x7FFF_FFFF


def tcp_info(connection: socket.socket) -> dict[str, int]:
    """Return the TCP_INFO of a connection, by the names of linux/tcp.h."""
    raw = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
    words = _TCP_INFO.unpack(raw.ljust(_TCP_INFO.size, b"\0"))[8:]
    places = {
        "snd_mss": 2,
        "unacked": 4,
        "sacked": 5,
        "lost": 6,
        "retrans": 7,
        "rtt": 15,
        "snd_ssthresh": 17,
        "snd_cwnd": 18,
        "total_retrans": 23,
        "bytes_acked": 26,
        "min_rtt": 31,
    }
    return {name: words[place] for name, place in places.items()}


def new_socket(settings: dict[str, Any]) -> socket.socket:
    """Return a socket with the options of the flow."""
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    made.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, settings["traffic_class"])
    if settings["mss_bytes"] is not None:
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, settings["mss_bytes"])
    name = settings["congestion_control"].encode()
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name)
    return made


class Sizes:
    """The sizes of the responses, in the order of the exchanges."""

    def __init__(self, settings: dict[str, Any]) -> None:
        workload = settings["workload"]
        self._media = workload.get("media")
        self._distribution = workload.get("response_bytes")
        self._count = 0
        self._stream = Stream(settings["seed"], f"flow.{settings['name']}.responses")

    def next(self) -> int:
        """Return the size of the next response, in bytes."""
        self._count += 1
        if self._media is not None:
            return segment_bytes(self._media, self._count - 1)
        return max(1, draw(self._distribution, self._stream))


class Server:
    """Responds to requests, one connection after the other, and samples TCP_INFO."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings
        self._sizes = Sizes(settings)
        self._connection: socket.socket | None = None
        self._lock = threading.Lock()
        self._samples: list[dict[str, int | None]] = []
        self._round_trips_us: list[int] = []
        self._acked_bytes = self._retransmitted_segments = self._sent_bytes = 0
        self._min_rtts_us: list[int] = []

    def run(self) -> None:
        """Serve until SIGINT."""
        listener = new_socket(self._settings)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("", self._settings["port"]))
        listener.listen()
        threading.Thread(target=self._watch, daemon=True).start()
        # Open as long as the process runs: it bypasses the link.
        control, _ = listener.accept()
        with control:
            while True:
                connection, _ = listener.accept()
                with self._lock:
                    self._connection = connection
                # The client may have closed the connection; it opens the next one.
                with suppress(OSError):
                    self._respond(connection)
                self.add_to_totals()
                connection.close()

    def _respond(self, connection: socket.socket) -> None:
        workload = self._settings["workload"]
        while received(connection, workload["request_bytes"]) is not None:
            left = self._sizes.next()
            while left:
                sent = connection.send(memoryview(_PIECE)[: min(left, len(_PIECE))])
                self._sent_bytes += sent
                left -= sent
            if not workload.get("keep_connection", True):
                connection.shutdown(socket.SHUT_WR)

    def add_to_totals(self) -> None:
        """Add the TCP_INFO of the finished connection to the totals."""
        with self._lock:
            if self._connection is None:
                return
            info = tcp_info(self._connection)
            self._connection = None
        self._acked_bytes += info["bytes_acked"]
        self._retransmitted_segments += info["total_retrans"]
        self._min_rtts_us.append(info["min_rtt"])

    def _watch(self) -> None:
        while True:
            time.sleep(self._settings["interval_s"])
            with self._lock:
                if self._connection is not None:
                    self._sample(tcp_info(self._connection))

    def _sample(self, info: dict[str, int]) -> None:
        mss, ssthresh = info["snd_mss"], info["snd_ssthresh"]
        out = info["unacked"] - info["sacked"] - info["lost"] + info["retrans"]
        self._round_trips_us.append(info["rtt"])
        self._samples.append(
            {
                "at_ns": time.monotonic_ns(),
                "cwnd_bytes": info["snd_cwnd"] * mss,
                "ssthresh_bytes": None if ssthresh >= _UNKNOWN_SSTHRESH else ssthresh * mss,
                "srtt_ns": info["rtt"] * 1_000,
                "in_flight_bytes": max(0, out) * mss,
                "acked_bytes": self._acked_bytes + info["bytes_acked"],
            }
        )

    def report(self) -> dict[str, Any]:
        """Return the report, in the format of iperf3."""
        self.add_to_totals()
        stream = {"retransmits": self._retransmitted_segments}
        if self._min_rtts_us:
            times = self._round_trips_us or self._min_rtts_us
            stream |= {
                "min_rtt": min(self._min_rtts_us),
                "mean_rtt": sum(times) // len(times),
                "max_rtt": max(times),
            }
        end = {
            "streams": [{"sender": stream}],
            "sum_sent": {"bytes": self._sent_bytes},
            "sender_tcp_congestion": self._settings["congestion_control"],
        }
        return {"end": end, "samples": self._samples, "acked_bytes": self._acked_bytes}


class Client:
    """Sends requests, receives the responses, and waits between them."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings
        self._sizes = Sizes(settings)
        self._think = Stream(settings["seed"], f"flow.{settings['name']}.think")
        self._exchanges: list[dict[str, int | None]] = []
        self._delivered_bytes = 0
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
                while (count := exchanges_of(workload)) is None or len(self._exchanges) < count:
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
            time.sleep(draw(workload["think_ns"], self._think) / 1e9)
            return
        arrived_ns = self._exchanges[-1]["finished_ns"] or 0
        due_ns = playback(workload["media"], self._exchanges, arrived_ns)[until]
        time.sleep(max(0, (due_ns or 0) - time.monotonic_ns()) / 1e9)

    def _exchange(
        self, connection: socket.socket | None, server: tuple[str, int]
    ) -> socket.socket | None:
        workload = self._settings["workload"]
        exchange: dict[str, int | None] = {
            "start_ns": time.monotonic_ns(),
            "established_ns": None,
            "first_byte_ns": None,
            "finished_ns": None,
            "request_bytes": workload["request_bytes"],
            "response_bytes": self._sizes.next(),
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
        self._delivered_bytes += count
        interval_ns = self._settings["interval_s"] * 1e9 / 4
        if not self._progress or now_ns - self._progress[-1][0] > interval_ns:
            self._progress.append((now_ns, self._delivered_bytes))

    def report(self) -> dict[str, Any]:
        """Return the report, in the format of iperf3."""
        self._progress.append((time.monotonic_ns(), self._delivered_bytes))
        report = {
            "end": {"sum_received": {"bytes": self._delivered_bytes}},
            "exchanges": self._exchanges,
            "progress": self._progress,
        }
        return report if self._error is None else {**report, "error": self._error}


def received(connection: socket.socket, count: int) -> int | None:
    """Read ``count`` bytes and return ``count``; None if the peer closed the connection before."""
    left = count
    while left:
        piece = len(connection.recv(min(left, len(_PIECE))))
        if piece == 0:
            return None
        left -= piece
    return count


def main(role: str, settings: dict[str, Any]) -> int:
    """Run one end and print its report; return the exit code."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    program: Server | Client = Server(settings) if role == "server" else Client(settings)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with suppress(KeyboardInterrupt):
        program.run()
    # The report must be complete even if another SIGINT arrives.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    report = program.report()
    print(json.dumps(report))
    return 1 if "error" in report else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], json.loads(sys.argv[2])))
