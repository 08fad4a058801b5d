"""What the programs of emulated flows share: sockets, reports on TCP, and how they end."""

from __future__ import annotations

import json
import signal
import socket
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

# struct tcp_info of linux/tcp.h up to tcpi_bytes_retrans, of Linux 4.19: 8 bytes, 24 words, 4 long
# words, 6 words, 4 long words, 2 words, 2 long words.
_TCP_INFO: Final = struct.Struct("=8B24I4Q6I4Q2I2Q")
# linux/tcp.h, TCP_INFINITE_SSTHRESH: no congestion so far.
_UNKNOWN_SSTHRESH: Final = 0x7FFF_FFFF

TcpInfo = dict[str, int]


def tcp_info(connection: socket.socket) -> TcpInfo:
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
        "bytes_sent": 40,
        "bytes_retrans": 41,
    }
    return {name: words[place] for name, place in places.items()}


def run_until_interrupted(run: Callable[[], object], report: Callable[[], dict[str, Any]]) -> int:
    """Run a program until SIGINT and print its report; return the exit code."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with suppress(KeyboardInterrupt):
        run()
    # The report must be complete even if another SIGINT arrives.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    printed = report()
    print(json.dumps(printed))
    return 1 if "error" in printed else 0


def window_sample(info: TcpInfo, srtt_us: int) -> dict[str, int | None]:
    """Return the columns of ``flow_samples`` that the TCP_INFO of a sender gives."""
    mss, ssthresh = info["snd_mss"], info["snd_ssthresh"]
    out = info["unacked"] - info["sacked"] - info["lost"] + info["retrans"]
    return {
        "cwnd_bytes": info["snd_cwnd"] * mss,
        "ssthresh_bytes": None if ssthresh >= _UNKNOWN_SSTHRESH else ssthresh * mss,
        "srtt_ns": srtt_us * 1_000 or None,
        "in_flight_bytes": max(0, out) * mss,
    }


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


class SenderReport:
    """What the connections of a sender did: samples of TCP_INFO, and totals."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._congestion_control = settings["congestion_control"]
        self._samples: list[dict[str, int | None]] = []
        self._round_trips_us: list[int] = []
        self._min_rtts_us: list[int] = []
        self._acked_bytes = self._sent_bytes = self._retransmitted_segments = 0

    def add(self, info: TcpInfo) -> None:
        """Add the last TCP_INFO of a connection to the totals."""
        self._acked_bytes += info["bytes_acked"]
        self._sent_bytes += info["bytes_sent"] - info["bytes_retrans"]
        self._retransmitted_segments += info["total_retrans"]
        self._min_rtts_us.append(info["min_rtt"])

    def sample(self, infos: Sequence[TcpInfo]) -> None:
        """Record the open connections; as in a simulation, the windows are those of the last."""
        if not infos:
            return
        last = infos[-1]
        self._round_trips_us.append(last["rtt"])
        self._samples.append(
            {
                "at_ns": time.monotonic_ns(),
                **window_sample(last, last["rtt"]),
                "acked_bytes": self._acked_bytes + sum(info["bytes_acked"] for info in infos),
            }
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the report on the finished connections."""
        round_trips_us = self._round_trips_us or self._min_rtts_us
        mean_us = sum(round_trips_us) // max(1, len(round_trips_us))
        return {
            "bytes": self._sent_bytes,
            "congestion_control": self._congestion_control,
            "retransmitted_segments": self._retransmitted_segments,
            "rtt_us": (min(self._min_rtts_us), mean_us) if self._min_rtts_us else None,
            "samples": self._samples,
            "acked_bytes": self._acked_bytes,
        }
