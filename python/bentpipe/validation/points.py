"""The points of a validation: links, congestion controls and traffic for both engines."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal

from bentpipe.emulation.pool import processor_share
from bentpipe.errors import UsageError

Kind = Literal[
    "goodput", "completion", "two-way", "rate-step", "outage", "pep-goodput", "pep-completion"
]

CONTROLS: Final = ("reno", "cubic", "bbr")
FLOWS: Final = (1, 2, 8)
SIZES_BYTES: Final = (10_000, 100_000, 1_000_000)
# The ends of each range and the geometric mean between them.
_SMALL: Final[dict[str, tuple[float, ...]]] = {
    "rate_mbps": (1, 7, 50),
    "rtt_ms": (20, 110, 600),
    "queue_bdp": (0.1, 0.45, 2),
    "loss": (0, 0.001, 0.01),
}
# Five levels each, evenly spaced on a logarithmic scale (loss: decades).
_FULL: Final[dict[str, tuple[float, ...]]] = {
    "rate_mbps": (1, 2.7, 7, 19, 50),
    "rtt_ms": (20, 47, 110, 260, 600),
    "queue_bdp": (0.1, 0.21, 0.45, 0.95, 2),
    "loss": (0, 0.0001, 0.0003, 0.001, 0.01),
}
# Queues of real devices hold at least an initial window.
MIN_QUEUE_BYTES: Final = 15_000
PACKET_BYTES: Final = 1_500
# Of a packet: 20 bytes are the IP header, 32 the TCP header with timestamps.
PAYLOAD_BYTES: Final = 1_448
# Above rate x RTT plus the queue of every point, so that no buffer limits a flow.
_BUFFER: Final = "64 MiB"
# Flows that start at the same time would be synchronized.
_SPACING_MS: Final = 100
_BITS_PER_BYTE: Final = 8
# The durations of the other measures, in seconds. BBR enters ProbeRTT 10 s after the start: steps
# and outages come well after that, so that a few milliseconds do not change their order.
TWO_WAY_S: Final = 20.0
STEP_AT_S: Final = 12.0
STEP_WINDOW_S: Final = 8.0
OUTAGE_AT_S: Final = 12.0
OUTAGE_S: Final = 2.0
OUTAGE_WINDOW_S: Final = 6.0
# Samples are 100 ms apart, so the last sample is after the end of the last window.
_MARGIN_S: Final = 0.5
# A run ends with its last file, or at this time.
_COMPLETION_MAX_S: Final = 180.0
# Short transfers are repeated more often, so that runs take about the same time.
FILES: Final = {10_000: 6, 100_000: 3, 1_000_000: 2}


@dataclass(frozen=True, kw_only=True)
class Point:
    """One point of the grid.

    ``loss`` is the probability that a full packet is lost in the forward direction. ``queue_bdp``
    is in units of rate x RTT; the queue holds at least `MIN_QUEUE_BYTES`. ``size_bytes`` is the
    size of each file of a point of completion times.
    """

    number: int
    control: str
    rate_mbps: float
    rtt_ms: float
    queue_bdp: float
    loss: float
    flows: int
    kind: Kind = "goodput"
    size_bytes: int | None = None

    @property
    def label(self) -> str:
        """The congestion control, for tables."""
        return self.control

    @property
    def queue_bytes(self) -> int:
        """The limit of the queue, in bytes at the IP layer."""
        product_bytes = self.rate_mbps * 1e3 * self.rtt_ms / _BITS_PER_BYTE
        return max(MIN_QUEUE_BYTES, round(self.queue_bdp * product_bytes))

    @property
    def possible_bps(self) -> float:
        """The largest possible goodput at the link's rate, in application bit/s."""
        return self.rate_mbps * 1e6 * PAYLOAD_BYTES / PACKET_BYTES

    @property
    def load(self) -> float:
        """The approximate share of a processor that a run in real time takes."""
        both_ways = 1.3 if self.kind == "two-way" else 1.0
        return min(1.0, both_ways * processor_share(self.rate_mbps * 1e6))

    def max_s(self, seconds: float) -> float:
        """Return the longest duration of a run; ``seconds`` is that of a goodput point."""
        return {
            "goodput": seconds,
            "completion": _COMPLETION_MAX_S,
            "two-way": TWO_WAY_S,
            "rate-step": STEP_AT_S + STEP_WINDOW_S + _MARGIN_S,
            "outage": OUTAGE_AT_S + OUTAGE_S + OUTAGE_WINDOW_S + _MARGIN_S,
        }[self.kind]

    def expected_s(self, seconds: float) -> float:
        """Return the approximate duration of a run."""
        if self.size_bytes is None:
            return self.max_s(seconds)
        # The handshake, the request and slow start, then transmission at the rate.
        round_trips = 2 + max(0.0, math.log2(self.size_bytes / MIN_QUEUE_BYTES))
        sending_s = self.size_bytes * _BITS_PER_BYTE / (self.rate_mbps * 1e6)
        return FILES[self.size_bytes] * (round_trips * self.rtt_ms / 1e3 + sending_s)

    def scenario(self, seconds: float) -> dict[str, Any]:
        """Return the point as a scenario; ``seconds`` is the duration of a goodput point."""
        bits = PACKET_BYTES * _BITS_PER_BYTE
        errors = -math.expm1(math.log1p(-self.loss) / bits) if self.loss else 0.0
        way = {"delay": f"{self.rtt_ms / 2:g} ms", "framing": "0 B"}
        limit = {"limit": f"{self.queue_bytes} B"}
        back = limit if self.kind == "two-way" else {"limit": "1 MB"}
        length = f"{self.max_s(seconds) * 1e3:g} ms"
        return {
            "name": f"validation point {self.number}, {self.kind}",
            "link": {
                "forward": {**way, "rate": self._rate(), "queue": limit, "bit_error_rate": errors},
                "return": {**way, "rate": _mbps(self.rate_mbps), "queue": back},
            },
            "traffic": self._traffic(length),
            "duration": length,
        }

    def _rate(self) -> str | list[dict[str, str]]:
        rate = _mbps(self.rate_mbps)
        if self.kind == "rate-step":
            return [
                {"at": "0 s", "value": rate},
                {"at": f"{STEP_AT_S:g} s", "value": _mbps(self.rate_mbps / 2)},
            ]
        if self.kind == "outage":
            return [
                {"at": "0 s", "value": rate},
                {"at": f"{OUTAGE_AT_S:g} s", "value": "0 bit/s"},
                {"at": f"{OUTAGE_AT_S + OUTAGE_S:g} s", "value": rate},
            ]
        return rate

    def _traffic(self, length: str) -> list[dict[str, Any]]:
        buffers = {
            "send_buffer": _BUFFER,
            "receive_buffer": _BUFFER,
            "receive_buffer_initial": "64 KiB",
            "receive_buffer_counts": "window",
        }
        tcp = {"congestion_control": self.control, **buffers}
        if self.size_bytes is not None:
            files = FILES[self.size_bytes]
            size = f"{self.size_bytes} B"
            fetch = {"kind": "fetch", "direction": "forward", "size": size, "files": files}
            return [{**fetch, "tcp": tcp}]
        bulk = {"kind": "bulk", "duration": length, "count": self.flows, "tcp": tcp}
        bulk["start_spacing"] = f"{_SPACING_MS} ms"
        there = {**bulk, "direction": "forward"}
        if self.kind == "two-way":
            return [there, {**bulk, "direction": "return", "start": f"{_SPACING_MS} ms"}]
        return [there]

    def __str__(self) -> str:
        """Return the configuration as text."""
        size = "" if self.size_bytes is None else f", {size_text(self.size_bytes)}"
        return (
            f"{self.control}, {self.rate_mbps:g} Mbit/s, RTT {self.rtt_ms:g} ms, queue "
            f"{self.queue_bdp:g} BDP ({self.queue_bytes:,} B), loss {self.loss:.2%}, "
            f"flows {self.flows}{size}"
        )


def size_text(size_bytes: int) -> str:
    """Return a file size as text: ``10 kB``, ``1 MB``."""
    return f"{size_bytes // 10**6} MB" if size_bytes >= 10**6 else f"{size_bytes // 10**3} kB"


def _mbps(rate: float) -> str:
    return f"{rate:g} Mbit/s"


def grid(name: str) -> list[Point]:
    """Return the points of a grid, of all kinds.

    Those of goodput come first: 27 in ``small``, 225 in ``full``. Both are fixed orthogonal arrays
    (Rao 1947): any two levels of any two quantities occur together equally often. ``small`` has
    three levels of each of six quantities, by six linear forms over the integers modulo 3, no two
    of which are proportional; ``full`` five levels of four, by forms modulo 5, for each congestion
    control and number of flows. The other kinds follow, the same in both grids, nine points for
    each size of file and each of the rest: three levels of four quantities, by four forms modulo 3.

    Raises:
        UsageError: there is no such grid.
    """
    if name == "small":
        rows = [
            (a, b, c, (a + b + c) % 3, (a + 2 * b) % 3, (b + 2 * c) % 3)
            for a, b, c in itertools.product(range(3), repeat=3)
        ]
        points = [
            _point(number, _SMALL, levels, CONTROLS[control], FLOWS[flows])
            for number, (*levels, flows, control) in enumerate(rows, start=1)
        ]
    elif name == "full":
        plane = [
            (a, b, (a + b) % 5, (a + 2 * b) % 5) for a, b in itertools.product(range(5), repeat=2)
        ]
        whole = itertools.product(CONTROLS, FLOWS, plane)
        points = [
            _point(number, _FULL, levels, control, flows)
            for number, (control, flows, levels) in enumerate(whole, start=1)
        ]
    else:
        raise UsageError(f'grid: read "{name}"; allowed are "small", "full" and "pep"')
    return [*points, *_other_kinds(first=len(points) + 1)]


def _point(
    number: int,
    ranges: dict[str, tuple[float, ...]],
    levels: Iterable[int],
    control: str,
    flows: int,
) -> Point:
    rate, rtt, queue, loss = levels
    return Point(
        number=number,
        control=control,
        rate_mbps=ranges["rate_mbps"][rate],
        rtt_ms=ranges["rtt_ms"][rtt],
        queue_bdp=ranges["queue_bdp"][queue],
        loss=ranges["loss"][loss],
        flows=flows,
    )


def _other_kinds(first: int) -> list[Point]:
    """Return the points of completion times, two-way transfers, rate steps and outages."""
    plane = [(a, b, (a + b) % 3, (a + 2 * b) % 3) for a, b in itertools.product(range(3), repeat=2)]
    kinds: tuple[Kind, ...] = ("two-way", "rate-step", "outage")
    numbers = itertools.count(first)

    def point(rate: int, rtt: int, control: int, **others: Any) -> Point:
        return Point(
            number=next(numbers),
            control=CONTROLS[control],
            rate_mbps=_SMALL["rate_mbps"][rate],
            rtt_ms=_SMALL["rtt_ms"][rtt],
            flows=1,
            **others,
        )

    completion = [
        point(
            rate,
            rtt,
            control,
            queue_bdp=1,
            loss=_SMALL["loss"][loss],
            kind="completion",
            size_bytes=size_bytes,
        )
        for size_bytes, (rate, rtt, loss, control) in itertools.product(SIZES_BYTES, plane)
    ]
    others = [
        point(rate, rtt, control, queue_bdp=_SMALL["queue_bdp"][queue], loss=0, kind=kind)
        for kind, (rate, rtt, queue, control) in itertools.product(kinds, plane)
    ]
    return completion + others
