"""Sockets of the programs that send data in real time, and the report on their TCP."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Sequence
from typing import Any, Final

# struct tcp_info of linux/tcp.h up to tcpi_min_rtt: 8 bytes, 24 words, 4 long words, 4 words.
_TCP_INFO: Final = struct.Struct("=8B24I4Q4I")
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


class SenderReport:
    """What the connections of a sender did: samples of TCP_INFO, and totals."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._congestion_control = settings["congestion_control"]
        self._samples: list[dict[str, int | None]] = []
        self._round_trips_us: list[int] = []
        self._min_rtts_us: list[int] = []
        self._acked_bytes = self._retransmitted_segments = 0

    def add(self, info: TcpInfo) -> None:
        """Add the last TCP_INFO of a connection to the totals."""
        self._acked_bytes += info["bytes_acked"]
        self._retransmitted_segments += info["total_retrans"]
        self._min_rtts_us.append(info["min_rtt"])

    def sample(self, infos: Sequence[TcpInfo]) -> None:
        """Record the open connections: the sums, and the mean of the round trips."""
        if not infos:
            return
        mean_us = sum(info["rtt"] for info in infos) // len(infos)
        self._round_trips_us.append(mean_us)
        is_finite = all(info["snd_ssthresh"] < _UNKNOWN_SSTHRESH for info in infos)
        self._samples.append(
            {
                "at_ns": time.monotonic_ns(),
                "cwnd_bytes": sum(info["snd_cwnd"] * info["snd_mss"] for info in infos),
                "ssthresh_bytes": (
                    sum(info["snd_ssthresh"] * info["snd_mss"] for info in infos)
                    if is_finite
                    else None
                ),
                "srtt_ns": mean_us * 1_000,
                "in_flight_bytes": sum(_in_flight_bytes(info) for info in infos),
                "acked_bytes": self._acked_bytes + sum(info["bytes_acked"] for info in infos),
            }
        )

    def as_dict(self, sent_bytes: int) -> dict[str, Any]:
        """Return the report, in the format of iperf3."""
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
            "sum_sent": {"bytes": sent_bytes},
            "sender_tcp_congestion": self._congestion_control,
        }
        return {"end": end, "samples": self._samples, "acked_bytes": self._acked_bytes}


def _in_flight_bytes(info: TcpInfo) -> int:
    out = info["unacked"] - info["sacked"] - info["lost"] + info["retrans"]
    return max(0, out) * info["snd_mss"]
