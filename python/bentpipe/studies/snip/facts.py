"""The simulated values of the note's other figures; facts.csv has method and provenance."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from bentpipe.studies.snip.measure import Measured
from bentpipe.studies.snip.scenarios import MODES

OVERLOAD_PPS: Final = 5000
_TCP: Final = "TCP throughput over one satellite hop without acceleration"
TCP_LOW: Final = f"{_TCP}; low"
CROSSOVER: Final = "packet size from which a 4 Mbit/s modem is channel limited"
# The note does not state its windows. Each of these is the one of the tried windows that comes
# nearest to one of its three figures, so all three are fitted.
FITTED_WINDOWS: Final[Mapping[str, int]] = {
    TCP_LOW: 17_520,
    f"{_TCP}; high": 57_344,
    f"{_TCP}; highest seen": 65_535,
}


def _bridge(measured: Measured) -> float | None:
    found = [measured.limits_pps[mode] for mode in MODES if mode in measured.limits_pps]
    return sum(found) / len(found) if len(found) == len(MODES) else None


def _split(measured: Measured) -> float | None:
    overload = [each for each in measured.duplex if each.offered_pps == OVERLOAD_PPS]
    return overload[0].forward_percent if overload else None


def _crossover(measured: Measured) -> float | None:
    return None if measured.crossover is None else measured.crossover.link_bytes


def _tcp_kbps(window_bytes: int) -> Callable[[Measured], float | None]:
    def value(measured: Measured) -> float | None:
        bps = measured.tcp_bps.get(window_bytes)
        return None if bps is None else bps / 1e3

    return value


# None: not run.
FACTS: Final[Mapping[str, Callable[[Measured], float | None]]] = {
    "packet rate limit; routing; both directions together": lambda measured: (
        measured.limits_pps.get("route")
    ),
    "packet rate limit; bridging and pass-thru; both directions together": _bridge,
    "TCP efficiency on the channel with large packets and no delay": (
        lambda measured: measured.efficiency_percent
    ),
    "one-way satellite delay": lambda measured: measured.one_way_delay_ms,
    "split of the packet rate when both directions are offered the same load": _split,
    CROSSOVER: _crossover,
    **{quantity: _tcp_kbps(window) for quantity, window in FITTED_WINDOWS.items()},
}
