"""`FlowReport`: what the programs of an emulated flow did, and what fills it."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

from bentpipe.units import NS_PER_S, NS_PER_US

# struct tcp_info of linux/tcp.h up to tcpi_bytes_retrans, of Linux 4.19: 8 bytes, 24 words, 4 long
# words, 6 words, 4 long words, 2 words, 2 long words; and the places after the bytes.
_TCP_INFO: Final = struct.Struct("=8B24I4Q6I4Q2I2Q")
_PLACES: Final = {
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
# linux/tcp.h, TCP_INFINITE_SSTHRESH: no congestion so far.
_UNKNOWN_SSTHRESH: Final = 0x7FFF_FFFF

TcpInfo = dict[str, int]
Row = dict[str, int | None]


@dataclass(kw_only=True)
class FlowReport:
    """What the programs of a flow did: its sender, its receiver, or both.

    What is None was not reported. Bytes are those of the application. ``samples`` are rows of
    ``flow_samples``; ``progress`` has times, each with the bytes that were received by then;
    ``exchanges`` and ``pages`` are rows of these tables, and ``served`` the columns of ``pages``
    that the server knows; ``failures`` counts failed connections by cause. Times are in ns on the
    machine's monotonic clock; those of iperf3 are from the start of the data.
    """

    error: str | None = None
    congestion_control: str | None = None
    sent_bytes: int | None = None
    acked_bytes: int | None = None
    retransmitted_segments: int | None = None
    timeouts: int | None = None
    rtt_min_us: int | None = None
    rtt_mean_us: float | None = None
    samples: list[Row] = field(default_factory=list)
    received_bytes: int | None = None
    end_ns: int | None = None
    progress: list[tuple[int, int]] = field(default_factory=list)
    exchanges: list[Row] = field(default_factory=list)
    pages: list[Row] = field(default_factory=list)
    served: list[Row] = field(default_factory=list)
    failures: dict[str, int] = field(default_factory=dict)

    def text(self) -> str:
        """Return what a program prints of itself; `read` reads it."""
        reported = {
            name: value for name, value in vars(self).items() if value not in (None, [], {})
        }
        return json.dumps(reported)

    @classmethod
    def read(cls, sender: Mapping[str, Any], receiver: Mapping[str, Any]) -> Self:
        """Return what our programs report as JSON."""
        return cls(**{**sender, **receiver})

    @classmethod
    def read_iperf3(cls, sender: Mapping[str, Any], receiver: Mapping[str, Any]) -> Self:
        """Return what the two programs of iperf3 report as JSON, of one stream.

        On a busy machine an interval may lack the sum of its streams, or the streams.
        """
        made = cls(error=sender.get("error") or receiver.get("error"))
        if (end := sender.get("end")) is not None:
            made.sent_bytes = int(end.get("sum_sent", {}).get("bytes", 0))
            made.congestion_control = end.get("sender_tcp_congestion")
            (stream,) = end.get("streams", [])[:1] or [{}]
            tcp = stream.get("sender", {})
            made.retransmitted_segments = tcp.get("retransmits")
            if tcp.get("max_rtt"):
                made.rtt_min_us, made.rtt_mean_us = tcp["min_rtt"], tcp["mean_rtt"]
            for interval in sender["intervals"]:
                for sample in interval["streams"][:1]:
                    row = {
                        "time_ns": round(sample["end"] * NS_PER_S),
                        "cwnd_bytes": sample.get("snd_cwnd"),
                        "srtt_ns": sample.get("rtt", 0) * NS_PER_US or None,
                    }
                    made.samples.append(row)
        if (end := receiver.get("end")) is not None:
            total = end.get("sum_received", {})
            made.received_bytes = int(total.get("bytes", 0))
            if "end" in total:
                made.end_ns = round(total["end"] * NS_PER_S)
            made.progress.append((0, 0))
            for interval in receiver["intervals"]:
                for sample in interval["streams"][:1]:
                    received = made.progress[-1][1] + sample["bytes"]
                    made.progress.append((round(sample["end"] * NS_PER_S), received))
        return made


def tcp_info(connection: socket.socket) -> TcpInfo:
    """Return the TCP_INFO of a connection, by the names of linux/tcp.h."""
    raw = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
    words = _TCP_INFO.unpack(raw.ljust(_TCP_INFO.size, b"\0"))[8:]
    return {name: words[place] for name, place in _PLACES.items()}


def window_sample(info: TcpInfo, srtt_us: int) -> Row:
    """Return the columns of ``flow_samples`` that the TCP_INFO of a sender gives."""
    mss, ssthresh = info["snd_mss"], info["snd_ssthresh"]
    out = info["unacked"] - info["sacked"] - info["lost"] + info["retrans"]
    return {
        "cwnd_bytes": info["snd_cwnd"] * mss,
        "ssthresh_bytes": None if ssthresh >= _UNKNOWN_SSTHRESH else ssthresh * mss,
        "srtt_ns": srtt_us * NS_PER_US or None,
        "in_flight_bytes": max(0, out) * mss,
    }


class SenderWatch:
    """The connections of a sender: samples of TCP_INFO, from a thread, and totals."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = settings
        # In the order of their opening.
        self._open: list[socket.socket] = []
        self._lock = threading.Lock()
        self._samples: list[Row] = []
        self._round_trips_us: list[int] = []
        self._min_rtts_us: list[int] = []
        self._totals: Counter[str] = Counter()
        threading.Thread(target=self._run, daemon=True).start()

    def add(self, connection: socket.socket) -> None:
        """Watch a new connection."""
        with self._lock:
            self._open.append(connection)

    def finish(self, connection: socket.socket) -> None:
        """Add a connection to the totals, and close it."""
        with self._lock:
            if connection not in self._open:
                return
            self._open.remove(connection)
            info = tcp_info(connection)
            self._totals.update(info)
            self._min_rtts_us.append(info["min_rtt"])
            connection.close()

    def _run(self) -> None:
        while True:
            time.sleep(self._settings["interval_s"])
            with self._lock:
                self._sample([tcp_info(connection) for connection in self._open])

    def _sample(self, infos: Sequence[TcpInfo]) -> None:
        """Record the open connections; as in a simulation, the windows are those of the last.

        Before its handshake the kernel has defaults for a connection.
        """
        last = next((info for info in reversed(infos) if info["rtt"]), None)
        if last is None:
            return
        self._round_trips_us.append(last["rtt"])
        acked_bytes = self._totals["bytes_acked"] + sum(info["bytes_acked"] for info in infos)
        row = {"time_ns": time.monotonic_ns(), **window_sample(last, last["rtt"])}
        self._samples.append({**row, "acked_bytes": acked_bytes})

    def report(self) -> FlowReport:
        """Return the report on all connections, and close them."""
        for connection in list(self._open):
            self.finish(connection)
        totals, round_trips_us = self._totals, self._round_trips_us or self._min_rtts_us
        return FlowReport(
            congestion_control=self._settings["congestion_control"],
            sent_bytes=totals["bytes_sent"] - totals["bytes_retrans"],
            acked_bytes=totals["bytes_acked"],
            retransmitted_segments=totals["total_retrans"],
            rtt_min_us=min(self._min_rtts_us, default=None),
            rtt_mean_us=sum(round_trips_us) // len(round_trips_us) if self._min_rtts_us else None,
            samples=self._samples,
        )
