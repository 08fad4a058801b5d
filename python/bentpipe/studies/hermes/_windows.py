"""A window and a round trip: what one long transfer reaches, and the bound W/RTT."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bentpipe.plan.resolver import from_dict, resolve
from bentpipe.plan.types import Plan
from bentpipe.studies.hermes._network import (
    LARGE_MSS_BYTES,
    MSS_BYTES,
    NS_PER_S,
    TUNED_WINDOW_BYTES,
    Network,
    path_figures,
    steady_bps,
)

if TYPE_CHECKING:
    from bentpipe.simulation.many import Outcome

_KIB: Final = 1024
WINDOWS_BYTES: Final = tuple(
    TUNED_WINDOW_BYTES if size_kib == 64 else size_kib * _KIB  # noqa: PLR2004 - 64 KiB unscaled
    for size_kib in (4, 8, 16, 32, 64, 128, 256)
)
ROUND_TRIPS_MS: Final = (100, 400, 600)

# Slow start to the largest window takes some 20 rounds of growth by half.
_WARM_UP_ROUNDS: Final = 40
_COUNTED_ROUNDS: Final = 100
_WARM_UP_S: Final = 20
_TIME_S: Final = 60


@dataclass(frozen=True)
class WindowCase:
    """A long transfer with this window.

    ``round_trip_ms`` is that of an ideal path, which takes next to no time to send a segment (1
    Gbit/s, no framing, endless queues); None is the network of the study.
    """

    window_bytes: int
    round_trip_ms: int | None
    mss_bytes: int = MSS_BYTES

    @property
    def chance(self) -> bool:
        """No: the same in every run."""
        return False

    @property
    def bound_bps(self) -> float | None:
        """The window over the round trip, on an ideal path."""
        if self.round_trip_ms is None:
            return None
        return self.window_bytes * 8e3 / self.round_trip_ms

    @property
    def bound_whole_segments_bps(self) -> float | None:
        """The same, of the window only what whole segments fill."""
        if self.bound_bps is None:
            return None
        segments = self.window_bytes // self.mss_bytes
        return self.bound_bps * segments * self.mss_bytes / self.window_bytes

    def plan(self, network: Network, seed: int) -> Plan:
        """Return the plan of a bulk transfer, sampled once a round."""
        del seed
        transfer = {
            "name": "transfer",
            "kind": "bulk",
            "direction": "forward",
            **network.hosts(self.window_bytes, self.mss_bytes),
        }
        if self.round_trip_ms is None:
            transfer["duration"] = f"{_TIME_S} s"
            return resolve(network.scenario([transfer], duration_s=_TIME_S, sample_s=1))
        round_s = self.round_trip_ms / 1e3
        time_s = (_WARM_UP_ROUNDS + _COUNTED_ROUNDS) * round_s
        transfer["duration"] = f"{time_s:g} s"
        data = network.with_traffic([transfer], duration_s=time_s, sample_s=round_s)
        hop = {
            "rate": "1 Gbit/s",
            "delay": f"{self.round_trip_ms / 2:g} ms",
            "queue": {"limit": "unlimited"},
        }
        data["link"] = {"forward": hop, "return": hop}
        return resolve(from_dict(data))

    def measure(self, outcome: Outcome) -> dict[str, float]:
        """Return the goodput after slow start, and what bounded it."""
        if self.round_trip_ms is None:
            start_s, until_s = float(_WARM_UP_S), float(_TIME_S)
        else:
            start_s = _WARM_UP_ROUNDS * self.round_trip_ms / 1e3
            until_s = (_WARM_UP_ROUNDS + _COUNTED_ROUNDS) * self.round_trip_ms / 1e3
        figures = {
            "goodput_bps": steady_bps(outcome, [0], start_s, until_s),
            "rtt_ms_mean": float(outcome.column("flows", "rtt_mean_ns")[0]) * 1e3 / NS_PER_S,
        }
        return figures if self.round_trip_ms else {**figures, **path_figures(outcome, until_s)}


def ideal_cases() -> tuple[WindowCase, ...]:
    """Return the windows and round trips against which the formula is held."""
    return tuple(
        WindowCase(window_bytes, round_trip_ms, mss_bytes)
        for mss_bytes in (MSS_BYTES, LARGE_MSS_BYTES)
        for round_trip_ms in ROUND_TRIPS_MS
        for window_bytes in WINDOWS_BYTES
    )


def network_cases() -> tuple[WindowCase, ...]:
    """Return the same windows on the network of the study."""
    return tuple(
        WindowCase(window_bytes, None, mss_bytes)
        for mss_bytes in (MSS_BYTES, LARGE_MSS_BYTES)
        for window_bytes in WINDOWS_BYTES
    )
