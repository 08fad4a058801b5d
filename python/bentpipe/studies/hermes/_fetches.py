"""Files over HTTP: a connection each, a request, the file; and the smallest exchange there is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from bentpipe.plan.resolver import resolve
from bentpipe.plan.types import Plan
from bentpipe.studies.hermes._network import (
    DEFAULT_WINDOW_BYTES,
    IMAGE_BYTES,
    LARGE_MSS_BYTES,
    MSS_BYTES,
    NS_PER_S,
    TUNED_WINDOW_BYTES,
    Network,
)

if TYPE_CHECKING:
    from bentpipe.simulation.many import Outcome

SIZES_BYTES: Final = (
    10_000,
    30_000,
    100_000,
    200_000,
    IMAGE_BYTES,
    1_000_000,
    2_000_000,
    5_000_000,
)
# As much as the ping of those days carried.
_PING_BYTES: Final = 32
_PINGS: Final = 10


@dataclass(frozen=True)
class FetchCase:
    """One file of this size, fetched with this window."""

    size_bytes: int
    window_bytes: int
    mss_bytes: int = MSS_BYTES

    @property
    def chance(self) -> bool:
        """No: the same in every run."""
        return False

    def plan(self, network: Network, seed: int) -> Plan:
        """Return the plan of the scenario file, with another file and other hosts."""
        del seed
        size = f"{self.size_bytes} B"
        fetch = network.image(self.window_bytes, self.mss_bytes, name="file", size=size)
        return resolve(network.scenario([fetch], duration_s=600))

    def measure(self, outcome: Outcome) -> dict[str, float]:
        """Return time and throughput as the client sees them, from opening the connection on."""
        times_ns = outcome.column("exchanges", "finished_ns").astype(np.float64)
        time_s = float(times_ns[0] - outcome.column("exchanges", "start_ns")[0]) / NS_PER_S
        return {"time_s": time_s, "throughput_bps": self.size_bytes * 8 / time_s}


@dataclass(frozen=True)
class PingCase:
    """A few bytes there and back over a connection that is open."""

    payload_bytes: int = _PING_BYTES

    @property
    def chance(self) -> bool:
        """No: the same in every run."""
        return False

    def plan(self, network: Network, seed: int) -> Plan:
        """Return the plan of ten exchanges, a second apart."""
        del seed
        size = f"{self.payload_bytes} B"
        exchange = {
            "name": "ping",
            "kind": "request_response",
            "direction": "forward",
            "request": size,
            "response": size,
            "think": "1 s",
            "exchanges": _PINGS,
            **network.hosts(DEFAULT_WINDOW_BYTES),
        }
        return resolve(network.scenario([exchange], duration_s=60))

    def measure(self, outcome: Outcome) -> dict[str, float]:
        """Return the smallest round-trip time."""
        finished = outcome.column("exchanges", "finished_ns").astype(np.float64)
        times_ns = finished - outcome.column("exchanges", "start_ns")
        return {"round_trip_ms": float(np.nanmin(times_ns)) * 1e3 / NS_PER_S}


def cases() -> tuple[FetchCase, ...]:
    """Return all sizes with both windows and both lengths of segments."""
    return tuple(
        FetchCase(size_bytes, window_bytes, mss_bytes)
        for mss_bytes in (MSS_BYTES, LARGE_MSS_BYTES)
        for window_bytes in (DEFAULT_WINDOW_BYTES, TUNED_WINDOW_BYTES)
        for size_bytes in SIZES_BYTES
    )
