"""The points of a validation: links, congestion controls and traffic for both engines."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal

from bentpipe.errors import UsageError
from bentpipe.live.pool import processor_share
from bentpipe.quantities import quantity

Kind = Literal[
    "goodput", "completion", "two-way", "rate-step", "outage", "pep-goodput", "pep-completion"
]

Place = Literal["hub", "both", "terminal"]

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

# With PEPs: the gateways with one, and rates and round trips of the link (LEO, medium Earth orbit,
# GEO) with the size of each of two files.
_PLACES: Final[tuple[Place, ...]] = ("hub", "both", "terminal")
_LINKS: Final = ((30.0, 40.0), (8.0, 160.0), (20.0, 560.0))
_PEP_SIZES_BYTES: Final = (300_000, 1_000_000, 3_000_000)
_PEP_FILES: Final = 2
_PEP_LOSSES: Final = (0.0, 0.0003, 0.001)
# The server's way to the hub. Its access line spreads what it sends at once: thousands of packets
# at one instant would take a lab longer than the link does.
_SERVER_DELAY_MS: Final = 40.0
_SERVER_MBPS: Final = 100
_PEP_MAX_S: Final = 120.0
_PEP_GOODPUT_S: Final = 20.0


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

    _FILES: ClassVar[Mapping[int, int]] = FILES
    _SERVER_RTT_MS: ClassVar[float] = 0.0

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
    def files(self) -> int:
        """The number of files of a point of completion times."""
        return self._FILES.get(self.size_bytes or 0, 0)

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
        rtt_ms = self.rtt_ms + self._SERVER_RTT_MS
        return self.files * (round_trips * rtt_ms / 1e3 + sending_s)

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
                "return": {**way, "rate": f"{self.rate_mbps:g} Mbit/s", "queue": back},
            },
            "traffic": self._traffic(length),
            "duration": length,
        }

    def _rate(self) -> str | list[dict[str, str]]:
        rate, half = f"{self.rate_mbps:g} Mbit/s", f"{self.rate_mbps / 2:g} Mbit/s"
        changes = {
            "rate-step": {0.0: rate, STEP_AT_S: half},
            "outage": {0.0: rate, OUTAGE_AT_S: "0 bit/s", OUTAGE_AT_S + OUTAGE_S: rate},
        }.get(self.kind)
        if changes is None:
            return rate
        return [{"at": f"{at_s:g} s", "value": value} for at_s, value in changes.items()]

    def _traffic(self, length: str) -> list[dict[str, Any]]:
        tcp = {
            "congestion_control": self.control,
            "send_buffer": _BUFFER,
            "receive_buffer": _BUFFER,
            "receive_buffer_initial": "64 KiB",
            "receive_buffer_counts": "window",
        }
        if self.size_bytes is not None:
            size = {"size": f"{self.size_bytes} B", "files": self.files}
            return [{"kind": "fetch", "direction": "forward", **size, "tcp": tcp}]
        bulk = {"kind": "bulk", "duration": length, "count": self.flows, "tcp": tcp}
        bulk["start_spacing"] = f"{_SPACING_MS} ms"
        back = {**bulk, "direction": "return", "start": f"{_SPACING_MS} ms"}
        return [{**bulk, "direction": "forward"}, *([back] if self.kind == "two-way" else [])]

    def __str__(self) -> str:
        """Return the configuration as text."""
        text = (
            f"{self.control}, {self.rate_mbps:g} Mbit/s, RTT {self.rtt_ms:g} ms, queue "
            f"{self.queue_bdp:g} BDP ({self.queue_bytes:,} B), loss {self.loss:.2%}, "
            f"flows {self.flows}"
        )
        size_bytes = self.size_bytes
        return text if size_bytes is None else f"{text}, {quantity('size_bytes').text(size_bytes)}"


@dataclass(frozen=True, kw_only=True)
class PepPoint(Point):
    """A point with PEPs; ``rtt_ms`` is that of the link alone.

    ``control`` is the congestion control of the hosts, ``link_control`` that of the legs over the
    link. The data are for the island, or from it if the direction is return.
    """

    place: Place
    link_control: str
    direction: Literal["forward", "return"] = "forward"

    _FILES: ClassVar[Mapping[int, int]] = dict.fromkeys(_PEP_SIZES_BYTES, _PEP_FILES)
    _SERVER_RTT_MS: ClassVar[float] = 2 * _SERVER_DELAY_MS

    @property
    def label(self) -> str:
        """The congestion controls of hosts and link, the gateways with a PEP, and the direction."""
        controls = dict.fromkeys((self.control, self.link_control))
        return f"{'/'.join(controls)}, {self.place}, {self.direction}"

    @property
    def load(self) -> float:
        """The approximate share of a processor that a run takes: the legs are two runs."""
        return min(1.0, 2 * super().load)

    def max_s(self, seconds: float) -> float:
        """Return the longest duration of a run."""
        return min(seconds, _PEP_GOODPUT_S) if self.size_bytes is None else _PEP_MAX_S

    def scenario(self, seconds: float) -> dict[str, Any]:
        """Return the point as a scenario; ``seconds`` is the duration of a goodput point."""
        scenario = super().scenario(seconds)
        link = scenario["link"]
        if self.direction == "return":
            link["forward"], link["return"] = link["return"], link["forward"]
        controls = {"lan_tcp": self.control, "link_tcp": self.link_control}
        pep = {leg: {"congestion_control": control} for leg, control in controls.items()}
        ends = ("hub", "terminal") if self.place == "both" else (self.place,)
        rate, delay = f"{_SERVER_MBPS:g} Mbit/s", f"{_SERVER_DELAY_MS:g} ms"
        return {
            **scenario,
            "hosts": {"world": [{"name": "server", "delay": delay, "rate": rate}]},
            "gateways": {end: {"pep": pep} for end in ends},
        }

    def _traffic(self, length: str) -> list[dict[str, Any]]:
        workload: dict[str, Any] = {"kind": "bulk", "duration": length}
        if self.size_bytes is not None:
            workload = {"kind": "fetch", "size": f"{self.size_bytes} B", "files": self.files}
        tcp = {"congestion_control": self.control}
        return [{**workload, "direction": self.direction, "world_host": "server", "tcp": tcp}]

    def __str__(self) -> str:
        """Return the configuration as text."""
        return f"{self.label}; {super().__str__()}"


def grid(name: str) -> Sequence[Point]:
    """Return the points of a grid: ``small`` and ``full`` of links, ``pep`` of links with PEPs.

    Those of goodput come first: 27 in ``small``, 225 in ``full``. Both are fixed orthogonal arrays
    (Rao 1947): any two levels of any two quantities occur together equally often. ``small`` has
    three levels of each of six quantities, by six linear forms over the integers modulo 3, no two
    of which are proportional; ``full`` five levels of four, by forms modulo 5, for each congestion
    control and number of flows. The other kinds follow, the same in both grids, nine points for
    each size of file and each of the rest: three levels of four quantities, by four forms modulo 3.

    Raises:
        UsageError: there is no such grid.
    """
    if name == "pep":
        return pep_grid()
    if name == "small":
        threes = itertools.product(range(3), repeat=3)
        rows = [
            (a, b, c, (a + b + c) % 3, CONTROLS[(b + 2 * c) % 3], FLOWS[(a + 2 * b) % 3])
            for a, b, c in threes
        ]
    elif name == "full":
        whole = itertools.product(CONTROLS, FLOWS, _plane(5))
        rows = [(*levels, control, flows) for control, flows, levels in whole]
    else:
        raise UsageError(f'grid: read "{name}"; allowed are "small", "full" and "pep"')
    rates, rtts, queues, losses = (_SMALL if name == "small" else _FULL).values()
    points = [
        Point(
            number=number,
            control=control,
            rate_mbps=rates[rate],
            rtt_ms=rtts[rtt],
            queue_bdp=queues[queue],
            loss=losses[loss],
            flows=flows,
        )
        for number, (rate, rtt, queue, loss, control, flows) in enumerate(rows, start=1)
    ]
    return [*points, *_other_kinds(first=len(points) + 1)]


def _plane(levels: int) -> list[tuple[int, int, int, int]]:
    """Return the levels of four quantities: any two levels of any two of them occur once."""
    pairs = itertools.product(range(levels), repeat=2)
    return [(a, b, (a + b) % levels, (a + 2 * b) % levels) for a, b in pairs]


def _other_kinds(first: int) -> list[Point]:
    """Return the points of completion times, two-way transfers, rate steps and outages."""
    numbers = itertools.count(first)
    rates, rtts, queues, losses = _SMALL.values()
    kinds: tuple[Kind, ...] = ("two-way", "rate-step", "outage")
    every: list[tuple[Kind, int | None]] = [("completion", size) for size in SIZES_BYTES]
    every += [(kind, None) for kind in kinds]
    return [
        Point(
            number=next(numbers),
            control=CONTROLS[control],
            rate_mbps=rates[rate],
            rtt_ms=rtts[rtt],
            queue_bdp=queues[other] if size_bytes is None else 1,
            loss=0 if size_bytes is None else losses[other],
            flows=1,
            kind=kind,
            size_bytes=size_bytes,
        )
        for (kind, size_bytes), (rate, rtt, other, control) in itertools.product(every, _plane(3))
    ]


def pep_grid() -> list[PepPoint]:
    """Return the twelve points of goodput, then the same with files.

    The first nine are an orthogonal array of the gateways with a PEP, the congestion control of all
    connections, the link and its losses: any two levels of any two occur together once. The last
    three have different congestion controls for hosts and link, and data from the island.
    """
    rows: list[tuple[Place, str, str, int, int]] = [
        (_PLACES[a], CONTROLS[b], CONTROLS[b], link, loss) for a, b, link, loss in _plane(3)
    ]
    mixed = (("reno", "bbr"), ("reno", "cubic"), ("cubic", "bbr"))
    rows += [(place, *controls, 2, 1) for place, controls in zip(_PLACES, mixed, strict=True)]
    numbers = itertools.count(1)
    kinds: tuple[Kind, ...] = ("pep-goodput", "pep-completion")
    return [
        PepPoint(
            number=next(numbers),
            kind=kind,
            control=control,
            link_control=link_control,
            place=place,
            rate_mbps=_LINKS[link][0],
            rtt_ms=_LINKS[link][1],
            queue_bdp=1,
            loss=_PEP_LOSSES[loss],
            flows=1,
            size_bytes=_PEP_SIZES_BYTES[link] if kind == "pep-completion" else None,
            direction="forward" if control == link_control else "return",
        )
        for kind, (place, control, link_control, link, loss) in itertools.product(kinds, rows)
    ]
