"""Packet aggregation at the gateways: what it gives, what it costs, and from which load on.

Nothing here knows a published figure. The figures on paper follow from the equations of
docs/model/aggregation.md.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from bentpipe.plan.resolver import from_dict, resolve
from bentpipe.scenario.framings import frame_bits
from bentpipe.scenario.schema import Scenario
from bentpipe.simulation.many import Job, Outcome
from bentpipe.simulation.no_drop import NoDropSearch

# Some payloads of the table that join frames.
AGGREGATED_SIZES: Final = (58, 100, 200, 300, 500)
# At 100 bytes 110,000 packets; 50 frames of buffer hide up to 0.5 % (at 2,514 frames a second).
AGGREGATED_DURATION: Final = "4 s"

# What the loads are tried with: no aggregation, and two hold times.
HOLD_TIMES_MS: Final = (0, 5, 25)
LOAD_PAYLOAD: Final = 100
# Packets a second. None is a multiple of 1 / hold time, where a packet comes just when a frame
# leaves.
LOADS: Final = (10, 20, 30, 45, 90, 180, 220, 450, 900, 1800, 4500)

_UDP_IP_HEADER_BYTES: Final = 28
_SHORT_PACKET_BYTES: Final = 127
_SHORT_FIRST_PACKET_BYTES: Final = 63
_LONG_PACKET_BYTES: Final = 8191
_FRAME_HEADER_BYTES: Final = 28
_NS_PER_MS: Final = 1e6
# A run's last packet may leave alone: that is no difference.
_PAYS_BELOW: Final = 0.99

LoadKey = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class Paper:
    """What the equations give for one payload, with aggregation."""

    packets_per_frame: int
    packets_per_second: float
    limit: str


@dataclass(frozen=True, kw_only=True)
class Load:
    """What one load gave with one hold time: rates a second, and the delay that it adds."""

    hold_ms: int
    offered: int
    frames: float
    added_delay_ms: float

    @property
    def packets_per_frame(self) -> float:
        """How many packets shared what crossed the link as one."""
        return self.offered / self.frames


@dataclass(frozen=True, kw_only=True)
class Aggregation:
    """The search with aggregation, and the loads; what Ctrl-C left out is None or missing."""

    search: NoDropSearch | None
    paper: Mapping[int, Paper]
    loads: tuple[Load, ...]

    def begins_at(self, hold_ms: int) -> int | None:
        """Return the smallest load of those tried at which fewer frames than packets are sent."""
        paying = (
            each.offered
            for each in self.loads
            if each.hold_ms == hold_ms and each.frames < _PAYS_BELOW * each.offered
        )
        return min(paying, default=None)

    def to_json(self, table: NoDropSearch | None) -> dict[str, Any]:
        """Return the figures as plain data, beside those of the table, without aggregation."""
        return {
            "sizes": self.sizes(table),
            "loads": [
                {
                    "hold_ms": each.hold_ms,
                    "offered_pps": each.offered,
                    "frames_per_second": each.frames,
                    "packets_per_frame": each.packets_per_frame,
                    "added_delay_ms": each.added_delay_ms,
                }
                for each in self.loads
            ],
            "begins_at_pps_by_hold_ms": {
                str(hold_ms): self.begins_at(hold_ms) for hold_ms in HOLD_TIMES_MS if hold_ms
            },
        }

    def sizes(self, table: NoDropSearch | None) -> list[dict[str, Any]]:
        """Return a row for each payload: without, with, and on paper."""
        rows = []
        for size, paper in self.paper.items():
            alone, shared = _settled_pps(table, size), _settled_pps(self.search, size)
            rows.append(
                {
                    "payload_bytes": size,
                    "without_pps": alone,
                    "with_pps": shared,
                    "gain": None if alone is None or shared is None else shared / alone,
                    "packets_per_frame": paper.packets_per_frame,
                    "paper_pps": paper.packets_per_second,
                    "paper_limit": paper.limit,
                    "error_percent": None
                    if shared is None
                    else 100 * (shared / paper.packets_per_second - 1),
                }
            )
        return rows


def aggregated_scenario(base: Mapping[str, Any], hold_ms: int | None = None) -> Scenario:
    """Return the scenario with an aggregator at both ends, shorter than that of the table."""
    data = _short(base)
    for gateway in data["gateways"].values():
        gateway["aggregator"] = {} if hold_ms is None else {"hold_time": f"{hold_ms} ms"}
    return from_dict(data)


def load_jobs(base: Mapping[str, Any], seed: int) -> dict[LoadKey, Job]:
    """Return the runs of all loads, without aggregation and with each hold time."""
    jobs = {}
    for hold_ms in HOLD_TIMES_MS:
        for offered in LOADS:
            data = (
                aggregated_scenario(base, hold_ms) if hold_ms else from_dict(_short(base))
            ).to_dict()
            rate = f"{8 * LOAD_PAYLOAD * offered} bit/s"
            data["traffic"][0] |= {"payload": f"{LOAD_PAYLOAD} B", "rate": rate}
            jobs[hold_ms, offered] = Job(plan=resolve(from_dict(data)), seed=seed)
    return jobs


def aggregation(
    base: Mapping[str, Any],
    search: NoDropSearch | None,
    outcomes: Mapping[LoadKey, Outcome | None],
) -> Aggregation:
    """Return what search and runs gave."""
    plan = resolve(aggregated_scenario(base))
    whole = search is not None and not search.interrupted
    return Aggregation(
        search=search if whole else None,
        paper={size: on_paper(plan, size) for size in AGGREGATED_SIZES},
        loads=tuple(_loads(outcomes)),
    )


def on_paper(plan: Mapping[str, Any], payload_bytes: int) -> Paper:
    """Return what processor and forward link can carry, in frames as full as can be."""
    functions = {each["kind"]: each for each in plan["gateways"][0]["functions"]}
    direction = plan["directions"][0]
    packet = payload_bytes + _UDP_IP_HEADER_BYTES
    first = packet + 2 + (packet > _SHORT_FIRST_PACKET_BYTES) + (packet > _LONG_PACKET_BYTES)
    later = packet + 1 + (packet > _SHORT_PACKET_BYTES)
    room = functions["aggregator"]["frame_size_bytes"] - _FRAME_HEADER_BYTES - first
    more = room // later
    frame = _FRAME_HEADER_BYTES + first + more * later
    by_processor = functions["processor"]["packets_per_second"]
    by_link = direction["rate_bps"]["value"] / frame_bits(direction["framing"], frame)
    return Paper(
        packets_per_frame=1 + more,
        packets_per_second=(1 + more) * min(by_processor, by_link),
        limit="packet rate" if by_processor < by_link else "channel",
    )


def _short(base: Mapping[str, Any]) -> dict[str, Any]:
    data = copy.deepcopy(dict(base))
    data["traffic"][0]["duration"] = AGGREGATED_DURATION
    return data


def _loads(outcomes: Mapping[LoadKey, Outcome | None]) -> list[Load]:
    found = []
    for (hold_ms, offered), run in outcomes.items():
        alone = outcomes.get((0, offered))
        if run is None or alone is None:
            continue
        packets = float(alone.column("directions", "received_packets")[0])
        frames = float(run.column("directions", "received_packets")[0])
        found.append(
            Load(
                hold_ms=hold_ms,
                offered=offered,
                frames=offered * frames / packets,
                added_delay_ms=_delay_ms(run) - _delay_ms(alone),
            )
        )
    return found


def _delay_ms(run: Outcome) -> float:
    return float(run.column("flows", "one_way_delay_ns_mean")[0]) / _NS_PER_MS


def _settled_pps(found: NoDropSearch | None, size: int) -> float | None:
    rates = () if found is None else found.rates
    for each in rates:
        if each.payload_bytes == size and each.converged:
            return each.packets_per_second
    return None
