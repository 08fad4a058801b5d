"""One TCP connection: long transfers by window, files over HTTP by size, and the round trip."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Final

import numpy as np

from bentpipe.scenario.schema import Scenario
from bentpipe.simulation.many import Outcome
from bentpipe.studies.hermes.network import (
    DEFAULT_WINDOW_BYTES,
    IMAGE_BYTES,
    LARGE_MSS_BYTES,
    MSS_BYTES,
    TUNED_WINDOW_BYTES,
    Case,
    Found,
    Network,
    path_figures,
    steady_bps,
)
from bentpipe.units import NS_PER_S

_KIB: Final = 1024
WINDOWS_BYTES: Final = (
    *(size_kib * _KIB for size_kib in (4, 8, 16, 32)),
    TUNED_WINDOW_BYTES,
    *(size_kib * _KIB for size_kib in (128, 256)),
)
ROUND_TRIPS_MS: Final = (100, 400, 600)
SIZES_BYTES: Final = (
    *(10_000, 30_000, 100_000, 200_000),
    IMAGE_BYTES,
    *(1_000_000, 2_000_000, 5_000_000),
)
# What ping of the time sent.
PING_BYTES: Final = 32

_MSS: Final = (MSS_BYTES, LARGE_MSS_BYTES)
# Slow start to the largest window takes some 20 round trips.
_WARM_UP_ROUNDS, _ROUNDS = 40, 140
_WARM_UP_S, _TIME_S = 20, 60


@dataclass(frozen=True)
class IdealPathCase(Case):
    """A long transfer on a path of 1 Gbit/s without framing, with unlimited queues."""

    window_bytes: int
    round_trip_ms: int
    mss_bytes: int = MSS_BYTES

    @property
    def bound_bps(self) -> float:
        """The window over the round trip."""
        return self.window_bytes * 8e3 / self.round_trip_ms

    @property
    def bound_whole_segments_bps(self) -> float:
        """The same for the whole segments that fit into the window."""
        segments = self.window_bytes // self.mss_bytes
        return self.bound_bps * segments * self.mss_bytes / self.window_bytes

    def scenario(self, network: Network) -> Scenario:
        """Return the transfer, sampled once a round trip."""
        round_s = self.round_trip_ms / 1e3
        hop = {
            "rate": "1 Gbit/s",
            "delay": f"{self.round_trip_ms / 2:g} ms",
            "queue": {"limit": "unlimited"},
        }
        time_s = _ROUNDS * round_s
        transfer = network.bulk("transfer", self.window_bytes, self.mss_bytes, duration_s=time_s)
        link = {"forward": hop, "return": hop}
        return network.scenario([transfer], duration_s=time_s, sample_s=round_s, link=link)

    def measure(self, outcome: Outcome) -> dict[str, float]:
        """Return the goodput after slow start, and the round-trip time."""
        round_s = self.round_trip_ms / 1e3
        goodput_bps = steady_bps(outcome, [0], _WARM_UP_ROUNDS * round_s, _ROUNDS * round_s)
        return {"goodput_bps": goodput_bps, "rtt_ms_mean": _rtt_ms(outcome)}


@dataclass(frozen=True)
class LongTransferCase(Case):
    """A long transfer on the network of the study."""

    window_bytes: int
    mss_bytes: int = MSS_BYTES

    def scenario(self, network: Network) -> Scenario:
        """Return the transfer, sampled once a second."""
        transfer = network.bulk("transfer", self.window_bytes, self.mss_bytes, duration_s=_TIME_S)
        return network.scenario([transfer], duration_s=_TIME_S, sample_s=1)

    def measure(self, outcome: Outcome) -> dict[str, float]:
        """Return the goodput after slow start, the round-trip time, and the use of the path."""
        goodput_bps = steady_bps(outcome, [0], _WARM_UP_S, _TIME_S)
        figures = {"goodput_bps": goodput_bps, "rtt_ms_mean": _rtt_ms(outcome)}
        return {**figures, **path_figures(outcome, _TIME_S)}


@dataclass(frozen=True)
class FetchCase(Case):
    """One file over HTTP: a connection of its own, a request, the file."""

    size_bytes: int
    window_bytes: int
    mss_bytes: int = MSS_BYTES

    def scenario(self, network: Network) -> Scenario:
        """Return the fetch of the scenario file, with another size and other hosts."""
        size = f"{self.size_bytes} B"
        fetch = network.image(self.window_bytes, self.mss_bytes, name="file", size=size)
        return network.scenario([fetch], duration_s=600)

    def measure(self, outcome: Outcome) -> dict[str, float]:
        """Return time and throughput as the client sees them, from its SYN to the last byte."""
        times_ns = outcome.column("exchanges", "finished_ns").astype(np.float64)
        time_s = float(times_ns[0] - outcome.column("exchanges", "start_ns")[0]) / NS_PER_S
        return {"time_s": time_s, "throughput_bps": self.size_bytes * 8 / time_s}


@dataclass(frozen=True)
class PingCase(Case):
    """Ten small exchanges over an open connection."""

    payload_bytes: int = PING_BYTES

    def scenario(self, network: Network) -> Scenario:
        """Return the exchanges, a second apart."""
        exchange = {
            "name": "ping",
            "kind": "request_response",
            "direction": "forward",
            "request": f"{self.payload_bytes} B",
            "response": f"{self.payload_bytes} B",
            "think": "1 s",
            "exchanges": 10,
            **network.hosts(DEFAULT_WINDOW_BYTES, MSS_BYTES),
        }
        return network.scenario([exchange], duration_s=60)

    def measure(self, outcome: Outcome) -> dict[str, float]:
        """Return the smallest round-trip time."""
        finished = outcome.column("exchanges", "finished_ns").astype(np.float64)
        times_ns = finished - outcome.column("exchanges", "start_ns")
        return {"round_trip_ms": float(np.nanmin(times_ns)) * 1e3 / NS_PER_S}


def window_error_percent(found: Found, case: IdealPathCase) -> float | None:
    """Return the error of the goodput against the bound of whole segments."""
    goodput_bps = found.mean(case, "goodput_bps")
    return None if goodput_bps is None else 100 * (goodput_bps / case.bound_whole_segments_bps - 1)


def largest_window_error_percent(found: Found, mss_bytes: int) -> float | None:
    """Return the largest of these errors with this MSS."""
    errors = (window_error_percent(found, case) for case in ideal_cases(mss_bytes))
    return max((each for each in errors if each is not None), key=abs, default=None)


def ideal_cases(*mss_bytes: int) -> tuple[IdealPathCase, ...]:
    """Return all round trips and windows on the ideal path, for both MSS if none is given."""
    return tuple(
        IdealPathCase(window_bytes, round_trip_ms, mss)
        for mss, round_trip_ms, window_bytes in product(
            mss_bytes or _MSS, ROUND_TRIPS_MS, WINDOWS_BYTES
        )
    )


def network_cases() -> tuple[LongTransferCase, ...]:
    """Return all windows on the network of the study, for both MSS."""
    return tuple(LongTransferCase(window, mss) for mss, window in product(_MSS, WINDOWS_BYTES))


def fetch_cases() -> tuple[FetchCase, ...]:
    """Return all sizes with both windows and both MSS."""
    windows = (DEFAULT_WINDOW_BYTES, TUNED_WINDOW_BYTES)
    return tuple(
        FetchCase(size, window, mss) for mss, window, size in product(_MSS, windows, SIZES_BYTES)
    )


def _rtt_ms(outcome: Outcome) -> float:
    return float(outcome.column("flows", "rtt_mean_ns")[0]) * 1e3 / NS_PER_S
