"""The scenarios of the study, all made from one file."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from bentpipe.scenario.framings import frame_bits
from bentpipe.scenario.schema import Scenario

# With the modes' own rates (PROCESSOR_PPS) instead of the calibrated one.
MODES: Final = ("bridge", "pass-thru")
NARROW_RATE: Final = "4 Mbit/s"
UDP_IP_HEADER_BYTES: Final = 28
DUPLEX_PAYLOAD_BYTES: Final = 200
LOAD_PAYLOAD_BYTES: Final = 100


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The parameters of the runs: payloads in bytes, loads, windows, durations."""

    # The payloads of the table.
    sizes: tuple[int, ...] = (
        *(58, 68, 82, 100, 138, 178, 200, 218, 300, 400, 500),
        *(700, 800, 1000, 1400),
    )
    # Packets a second that each direction is offered with iperf -d, 200 bytes each.
    offered_pps: tuple[int, ...] = (1000, 2000, 3000, 4000, 5000, 6000, 7000)
    # Receive windows between 8 and 64 KB, as on hosts without tuning: six and twelve full segments,
    # multiples of 8 KiB, and 65,535 bytes, the maximum without window scaling.
    windows_bytes: tuple[int, ...] = (
        *(8_760, 16_384, 17_520, 24_576, 32_768, 49_152, 57_344),
        65_535,
    )
    # Long compared with slow start, which takes up to ten round trips of half a second.
    tcp_duration: str = "60 s"
    terminals: tuple[int, ...] = (1, 2, 4, 8)
    coarse_sizes: tuple[int, ...] = tuple(range(20, 101, 10))
    # Some payloads of the table that share frames.
    aggregated_sizes: tuple[int, ...] = (58, 100, 200, 300, 500)
    # At 100 bytes 110,000 packets; 50 frames of buffer hide up to 0.5 % (at 2,514 frames a second).
    aggregated_duration: str = "4 s"
    # Packets a second. None is a multiple of 1 / hold time: a packet would arrive at the very time
    # at which a frame is sent.
    loads_pps: tuple[int, ...] = (10, 20, 30, 45, 90, 180, 220, 450, 900, 1800, 4500)
    # The loads are also run without aggregation.
    hold_times_ms: tuple[int, ...] = (5, 25)


DEFAULTS: Final = Settings()
_NOTHING: Final[Mapping[str, Any]] = {}


def table_scenario(base: Mapping[str, Any], *, mode: str | None = None) -> Scenario:
    """Return the scenario of the table; ``mode``: with the round packet rate of a mode instead."""
    return _changed(base, mode=mode)


def iperf_scenario(scenario: Scenario, payload_bytes: int, rate_bps: int) -> Scenario:
    """Return the scenario in which iperf sends payloads of this size at this rate."""
    sent = {"payload": f"{payload_bytes} B", "rate": f"{rate_bps} bit/s"}
    return _changed(scenario.to_dict(), traffic=sent)


def duplex_scenario(base: Mapping[str, Any], mode: str | None = None) -> Scenario:
    """Return the scenario with iperf in both directions; ``mode`` replaces the processor's."""
    return _changed(base, traffic={"direction": "both"}, mode=mode)


def narrow_scenario(base: Mapping[str, Any]) -> Scenario:
    """Return the scenario with a modem of 4 Mbit/s."""
    return _changed(base, directions={"rate": NARROW_RATE})


def shared_scenario(base: Mapping[str, Any], terminals: int) -> Scenario:
    """Return the scenario with one flow to each of a number of terminals, all through one hub."""
    return _changed(base, link={"terminals": terminals}, traffic={"terminal": "all"})


def tcp_scenario(
    base: Mapping[str, Any], window_bytes: int, duration: str, delay: str | None = None
) -> Scenario:
    """Return the scenario with one TCP transfer of a bsd-1997 host, over the hop or a delay."""
    transfer = {
        "kind": "bulk",
        "direction": "forward",
        "duration": duration,
        "profile": "bsd-1997",
        "tcp": {"receive_buffer": f"{window_bytes} B", "window_scaling": False},
    }
    changed = {**base, "duration": duration, "traffic": [transfer]}
    return _changed(changed, directions={} if delay is None else {"delay": delay})


def aggregated_scenario(
    base: Mapping[str, Any], duration: str, hold_ms: int | None = None
) -> Scenario:
    """Return the scenario with an aggregator at both ends; 0 ms: without, None: the default."""
    aggregator = {} if hold_ms is None else {"hold_time": f"{hold_ms} ms"}
    functions = {} if hold_ms == 0 else {"aggregator": aggregator}
    return _changed(base, traffic={"duration": duration}, functions=functions)


def is_channel_limited(plan: Mapping[str, Any], payload_bytes: int) -> bool:
    """Return whether the channel, not the processor, limits the rate of packets of this size."""
    (processor,) = plan["gateways"][0]["functions"]
    direction = plan["directions"][0]
    bits = frame_bits(direction["framing"], payload_bytes + UDP_IP_HEADER_BYTES)
    return bool(direction["rate_bps"]["value"] / bits < processor["packets_per_second"])


def _changed(
    base: Mapping[str, Any],
    *,
    mode: str | None = None,
    link: Mapping[str, Any] = _NOTHING,
    directions: Mapping[str, Any] = _NOTHING,
    traffic: Mapping[str, Any] = _NOTHING,
    functions: Mapping[str, Any] = _NOTHING,
) -> Scenario:
    """Return a scenario with values of its link, both directions, first flow and both gateways.

    With a ``mode`` the packet rate of the processor is that of the mode.
    """
    data = copy.deepcopy(dict(base))
    data["link"] |= link
    for direction in ("forward", "return"):
        data["link"][direction] |= directions
    data["traffic"][0] |= traffic
    for gateway in data["gateways"].values():
        gateway.update(copy.deepcopy(dict(functions)))
        if mode is not None:
            del gateway["processor"]["packets_per_second"]
            gateway["processor"]["mode"] = mode
    return Scenario.from_dict(data)
