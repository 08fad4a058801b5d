"""Packet aggregation at the gateways: its gain, its added delay, and the load at which it begins.

Nothing in this module depends on a published figure. The figures "on paper" follow from the
equations of docs/model/aggregation.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from bentpipe.scenario.framings import frame_bits
from bentpipe.scenario.schema import Scenario
from bentpipe.simulation.many import Outcome
from bentpipe.simulation.no_drop import NoDropSearch
from bentpipe.studies.snip.scenarios import (
    LOAD_PAYLOAD_BYTES,
    UDP_IP_HEADER_BYTES,
    Settings,
    aggregated_scenario,
    iperf_scenario,
)

# "above about 40 times the packet size": bytes a second, so as many packets a second.
PUBLISHED_LOAD_PPS: Final = 40

_SHORT_PACKET_BYTES: Final = 127
_SHORT_FIRST_PACKET_BYTES: Final = 63
_LONG_PACKET_BYTES: Final = 8191
_FRAME_HEADER_BYTES: Final = 28
_NS_PER_MS: Final = 1e6
# The last packet of a run may be alone in its frame.
_PAYS_BELOW: Final = 0.99

# Hold time in ms (0: no aggregation) and packets a second.
LoadKey = tuple[str | int, int]


@dataclass(frozen=True, kw_only=True)
class LoadPoint:
    """The result of one load with one hold time: rates a second, and the added mean delay."""

    hold_ms: int
    offered_pps: int
    frames_per_second: float
    packets_per_frame: float
    added_delay_ms: float


@dataclass(frozen=True, kw_only=True)
class Size:
    """The largest rate without a loss of one payload: without, with, and on paper."""

    payload_bytes: int
    without_pps: float | None
    with_pps: float | None
    gain: float | None
    packets_per_frame: int
    paper_pps: float
    paper_limit: str
    error_percent: float | None


def load_scenarios(base: Mapping[str, Any], settings: Settings) -> dict[LoadKey, Scenario]:
    """Return all loads, without aggregation and with each hold time."""
    scenarios: dict[LoadKey, Scenario] = {}
    for hold_ms in (0, *settings.hold_times_ms):
        scenario = aggregated_scenario(base, settings.aggregated_duration, hold_ms)
        for pps in settings.loads_pps:
            rate_bps = 8 * LOAD_PAYLOAD_BYTES * pps
            scenarios[hold_ms, pps] = iperf_scenario(scenario, LOAD_PAYLOAD_BYTES, rate_bps)
    return scenarios


def loads_of(outcomes: Mapping[LoadKey, Outcome]) -> tuple[LoadPoint, ...]:
    """Return the results of the loads, each compared with the same load without aggregation."""
    found = []
    for (hold_ms, offered_pps), run in outcomes.items():
        alone = outcomes.get((0, offered_pps))
        if alone is None:
            continue
        packets = float(alone.column("directions", "received_packets")[0])
        frames = offered_pps * float(run.column("directions", "received_packets")[0]) / packets
        found.append(
            LoadPoint(
                hold_ms=int(hold_ms),
                offered_pps=offered_pps,
                frames_per_second=frames,
                packets_per_frame=offered_pps / frames,
                added_delay_ms=delay_ms(run) - delay_ms(alone),
            )
        )
    return tuple(found)


def begins_at(loads: tuple[LoadPoint, ...], hold_ms: int) -> int | None:
    """Return the smallest load of those tried at which fewer frames than packets are sent."""
    paying = (
        each.offered_pps
        for each in loads
        if each.hold_ms == hold_ms and each.frames_per_second < _PAYS_BELOW * each.offered_pps
    )
    return min(paying, default=None)


def size_of(
    plan: Mapping[str, Any],
    payload_bytes: int,
    without: NoDropSearch | None,
    aggregated: NoDropSearch | None,
) -> Size:
    """Return one payload with and without aggregation, and the result of the equations."""
    packets, paper_pps, limit = on_paper(plan, payload_bytes)
    alone, shared = converged_pps(without, payload_bytes), converged_pps(aggregated, payload_bytes)
    return Size(
        payload_bytes=payload_bytes,
        without_pps=alone,
        with_pps=shared,
        gain=None if alone is None or shared is None else shared / alone,
        packets_per_frame=packets,
        paper_pps=paper_pps,
        paper_limit=limit,
        error_percent=None if shared is None else 100 * (shared / paper_pps - 1),
    )


def on_paper(plan: Mapping[str, Any], payload_bytes: int) -> tuple[int, float, str]:
    """Return what processor and forward link can carry in full frames.

    It is the packets of a frame, packets a second, and which of the two is the limit.
    """
    functions = {each["kind"]: each for each in plan["gateways"][0]["functions"]}
    direction = plan["directions"][0]
    packet = payload_bytes + UDP_IP_HEADER_BYTES
    first = packet + 2 + (packet > _SHORT_FIRST_PACKET_BYTES) + (packet > _LONG_PACKET_BYTES)
    later = packet + 1 + (packet > _SHORT_PACKET_BYTES)
    room = functions["aggregator"]["frame_size_bytes"] - _FRAME_HEADER_BYTES - first
    more = room // later
    frame = _FRAME_HEADER_BYTES + first + more * later
    by_processor = functions["processor"]["packets_per_second"]
    by_link = direction["rate_bps"]["value"] / frame_bits(direction["framing"], frame)
    limit = "packet rate" if by_processor < by_link else "channel"
    return 1 + more, (1 + more) * min(by_processor, by_link), limit


def converged_pps(found: NoDropSearch | None, payload_bytes: int) -> float | None:
    """Return the packets a second of one payload; None if its search did not converge."""
    for each in () if found is None else found.rates:
        if each.payload_bytes == payload_bytes and each.converged:
            return each.packets_per_second
    return None


def delay_ms(run: Outcome) -> float:
    """Return the mean delay of the first flow."""
    return float(run.column("flows", "one_way_delay_mean_ns")[0]) / _NS_PER_MS
