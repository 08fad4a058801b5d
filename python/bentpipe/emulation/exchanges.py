"""The two programs of requests and responses in real time: a client and a server on sockets.

They are run as ``python -m bentpipe.emulation.exchanges server|client JSON``, each on its side of
the link. The client is ready when it has printed a line, and begins when it is told by SIGUSR1. Its
first connection goes past the link and carries nothing, as iperf3's does; the
others are what is measured. Both know the sizes of all responses, from the same random stream. When
they end, or are interrupted, they print what they saw as JSON, in the shape of iperf3's.

Moments are of the machine's monotonic clock, in ns, which both sides share.
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

_PIECE: Final = bytes(64 * 1024)
# struct tcp_info of linux/tcp.h up to tcpi_min_rtt: 8 bytes, 24 words, 4 long words, 4 words.
_TCP_INFO: Final = struct.Struct("=8B24I4Q4I")
_UNKNOWN_SSTHRESH: Final = 0x7FFF_FFFF
_US_PER_S: Final = 1e6


def tcp_info(connection: socket.socket) -> dict[str, int]:
    """Return what the kernel knows of a connection, by the names of linux/tcp.h."""
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


def prepared(asked: dict[str, Any]) -> socket.socket:
    """Return a socket with the options that the flow asks for."""
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    made.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, asked["traffic_class"])
    if asked["mss_bytes"] is not None:
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, asked["mss_bytes"])
    name = asked["congestion_control"].encode()
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name)
    return made


class Sizes:
    """The sizes of the responses, in the order of the exchanges."""

    def __init__(self, asked: dict[str, Any]) -> None:
        self._distribution = asked["workload"]["response_bytes"]
        self._stream = Stream(asked["seed"], f"flow.{asked['name']}.responses")

    def next(self) -> int:
        """Return the size of the next response, in bytes."""
        return max(1, draw(self._distribution, self._stream))


class Server:
    """Answers requests, one connection after the other, and watches the kernel's TCP."""

    def __init__(self, asked: dict[str, Any]) -> None:
        self._asked = asked
        self._sizes = Sizes(asked)
        self._connection: socket.socket | None = None
        self._lock = threading.Lock()
        self._samples: list[dict[str, int | None]] = []
        self._round_trips_us: list[int] = []
        self._acked = self._retransmits = self._sent_bytes = 0
        self._min_rtts_us: list[int] = []

    def run(self) -> None:
        """Serve until somebody interrupts."""
        listener = prepared(self._asked)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("", self._asked["port"]))
        listener.listen()
        threading.Thread(target=self._watch, daemon=True).start()
        # Held as long as we live: it is what goes past the link.
        control, _ = listener.accept()
        with control:
            while True:
                connection, _ = listener.accept()
                with self._lock:
                    self._connection = connection
                # A client that gives up may fare better with its next connection.
                with suppress(OSError):
                    self._converse(connection)
                self.settle()
                connection.close()

    def _converse(self, connection: socket.socket) -> None:
        workload = self._asked["workload"]
        while received(connection, workload["request_bytes"]) is not None:
            left = self._sizes.next()
            while left:
                sent = connection.send(memoryview(_PIECE)[: min(left, len(_PIECE))])
                self._sent_bytes += sent
                left -= sent
            if not workload["keep_connection"]:
                connection.shutdown(socket.SHUT_WR)

    def settle(self) -> None:
        """Take what is known of the connection that is over into the totals."""
        with self._lock:
            if self._connection is None:
                return
            info = tcp_info(self._connection)
            self._connection = None
        self._acked += info["bytes_acked"]
        self._retransmits += info["total_retrans"]
        self._min_rtts_us.append(info["min_rtt"])

    def _watch(self) -> None:
        while True:
            time.sleep(self._asked["interval_s"])
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
                "acked_bytes": self._acked + info["bytes_acked"],
            }
        )

    def report(self) -> dict[str, Any]:
        """Return what was seen, in the shape of iperf3's report."""
        self.settle()
        stream = {"retransmits": self._retransmits}
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
            "sender_tcp_congestion": self._asked["congestion_control"],
        }
        return {"end": end, "samples": self._samples, "acked_bytes": self._acked}


class Client:
    """Asks, takes the responses, thinks, and asks again."""

    def __init__(self, asked: dict[str, Any]) -> None:
        self._asked = asked
        self._sizes = Sizes(asked)
        self._think = Stream(asked["seed"], f"flow.{asked['name']}.think")
        self._exchanges: list[dict[str, int | None]] = []
        self._delivered = 0
        self._progress: list[tuple[int, int]] = []
        self._error: str | None = None

    def run(self) -> None:
        """Ask as often as the flow does, or until somebody interrupts."""
        workload = self._asked["workload"]
        server = (self._asked["address"], self._asked["port"])
        with prepared(self._asked) as control:
            control.connect(server)
            print(flush=True)
            signal.sigwait({signal.SIGUSR1})
            connection: socket.socket | None = None
            try:
                while (count := workload["exchanges"]) is None or len(self._exchanges) < count:
                    if self._exchanges:
                        time.sleep(draw(workload["think_ns"], self._think) / 1e9)
                    connection = self._exchange(connection, server)
            except OSError as error:
                self._error = f"exchange {len(self._exchanges)}: {error.strerror or error}"

    def _exchange(
        self, connection: socket.socket | None, server: tuple[str, int]
    ) -> socket.socket | None:
        workload = self._asked["workload"]
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
            connection = prepared(self._asked)
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
            self._note(now_ns, count)
        exchange["finished_ns"] = time.monotonic_ns()
        if workload["keep_connection"]:
            return connection
        connection.close()
        return None

    def _note(self, now_ns: int, count: int) -> None:
        self._delivered += count
        interval_ns = self._asked["interval_s"] * 1e9 / 4
        if not self._progress or now_ns - self._progress[-1][0] > interval_ns:
            self._progress.append((now_ns, self._delivered))

    def report(self) -> dict[str, Any]:
        """Return what was seen, in the shape of iperf3's report."""
        self._progress.append((time.monotonic_ns(), self._delivered))
        seen = {
            "end": {"sum_received": {"bytes": self._delivered}},
            "exchanges": self._exchanges,
            "progress": self._progress,
        }
        return seen if self._error is None else {**seen, "error": self._error}


def received(connection: socket.socket, count: int) -> int | None:
    """Read so many bytes and return how many; None if the other end closed before."""
    left = count
    while left:
        piece = len(connection.recv(min(left, len(_PIECE))))
        if piece == 0:
            return None
        left -= piece
    return count


def main(role: str, asked: dict[str, Any]) -> int:
    """Run one end, and print what it saw; return the exit code."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    program: Server | Client = Server(asked) if role == "server" else Client(asked)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with suppress(KeyboardInterrupt):
        program.run()
    # What is said now is wanted, however often somebody asks for the end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    report = program.report()
    print(json.dumps(report))
    return 1 if "error" in report else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], json.loads(sys.argv[2])))
