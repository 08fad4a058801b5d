"""Points of a validation with split-TCP PEPs in the path."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any, Final, Literal

from bentpipe.validation.points import CONTROLS, MIN_QUEUE_BYTES, Kind, Point

Place = Literal["hub", "both", "terminal"]

# The gateways with a PEP.
_PLACES: Final[tuple[Place, ...]] = ("hub", "both", "terminal")
# Rates and round trips of the link: LEO, medium Earth orbit, GEO.
_LINKS: Final = ((30.0, 40.0), (8.0, 160.0), (20.0, 560.0))
_LOSSES: Final = (0.0, 0.0003, 0.001)
# The server's way to the hub. Its access line spreads what it sends at once: thousands of packets
# at one instant would take a lab longer than the link does.
_SERVER_DELAY_MS: Final = 40.0
_SERVER_MBPS: Final = 100
# Of each of two files, by point.
_SIZES_BYTES: Final = (300_000, 1_000_000, 3_000_000)
_FILES: Final = 2
_MAX_S: Final = 120.0
_GOODPUT_S: Final = 20.0
_BITS_PER_BYTE: Final = 8


@dataclass(frozen=True, kw_only=True)
class PepPoint(Point):
    """A point with PEPs; ``rtt_ms`` is that of the link alone.

    ``control`` is the congestion control of the hosts, ``link_control`` that of the legs over the
    link. The data are for the island, or from it if the direction is return.
    """

    place: Place
    link_control: str
    direction: Literal["forward", "return"] = "forward"

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
        return min(seconds, _GOODPUT_S) if self.size_bytes is None else _MAX_S

    def expected_s(self, seconds: float) -> float:
        """Return the approximate duration of a run."""
        if self.size_bytes is None:
            return self.max_s(seconds)
        round_trips = 2 + math.log2(self.size_bytes / MIN_QUEUE_BYTES)
        sending_s = self.size_bytes * _BITS_PER_BYTE / (self.rate_mbps * 1e6)
        round_trip_s = (self.rtt_ms + 2 * _SERVER_DELAY_MS) / 1e3
        return _FILES * (round_trips * round_trip_s + sending_s)

    def scenario(self, seconds: float) -> dict[str, Any]:
        """Return the point as a scenario; ``seconds`` is the duration of a goodput point."""
        scenario = super().scenario(seconds)
        link = scenario["link"]
        if self.direction == "return":
            link["forward"], link["return"] = link["return"], link["forward"]
        pep = {
            "lan_tcp": {"congestion_control": self.control},
            "link_tcp": {"congestion_control": self.link_control},
        }
        ends = ("hub", "terminal") if self.place == "both" else (self.place,)
        server = {
            "name": "server",
            "delay": f"{_SERVER_DELAY_MS:g} ms",
            "rate": f"{_SERVER_MBPS:g} Mbit/s",
        }
        return {
            **scenario,
            "hosts": {"world": [server]},
            "gateways": {end: {"pep": pep} for end in ends},
        }

    def _traffic(self, length: str) -> list[dict[str, Any]]:
        workload: dict[str, Any] = {"kind": "bulk", "duration": length}
        if self.size_bytes is not None:
            workload = {"kind": "fetch", "size": f"{self.size_bytes} B", "files": _FILES}
        tcp = {"congestion_control": self.control}
        return [{**workload, "direction": self.direction, "world_host": "server", "tcp": tcp}]

    def __str__(self) -> str:
        """Return the configuration as text."""
        return f"{self.label}; {super().__str__()}"


def pep_grid() -> list[PepPoint]:
    """Return the twelve points of goodput, then the same with files.

    The first nine are an orthogonal array of the gateways with a PEP, the congestion control of all
    connections, the link and its losses: any two levels of any two occur together once. The last
    three have different congestion controls for hosts and link, and data from the island.
    """
    plane = itertools.product(range(3), repeat=2)
    rows: list[tuple[Place, str, str, int, int]] = [
        (_PLACES[a], CONTROLS[b], CONTROLS[b], (a + b) % 3, (a + 2 * b) % 3) for a, b in plane
    ]
    mixed = (("reno", "bbr"), ("reno", "cubic"), ("cubic", "bbr"))
    rows += [
        (place, hosts, link, 2, 1) for place, (hosts, link) in zip(_PLACES, mixed, strict=True)
    ]
    kinds: tuple[Kind, ...] = ("pep-goodput", "pep-completion")
    return [
        PepPoint(
            number=number,
            kind=kind,
            control=control,
            link_control=link_control,
            place=place,
            rate_mbps=_LINKS[link][0],
            rtt_ms=_LINKS[link][1],
            queue_bdp=1,
            loss=_LOSSES[loss],
            flows=1,
            size_bytes=_SIZES_BYTES[link] if kind == "pep-completion" else None,
            direction="forward" if control == link_control else "return",
        )
        for number, (kind, (place, control, link_control, link, loss)) in enumerate(
            itertools.product(kinds, rows), start=1
        )
    ]
