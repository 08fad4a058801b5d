"""What stands beside each other figure of the note, and what the agreement is worth."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from bentpipe.studies.base.provenance import Provenance
from bentpipe.studies.snip.measure import Measured
from bentpipe.studies.snip.scenarios import MODES, Settings

OVERLOAD: Final = 5000

ROUTE_LIMIT: Final = "packet rate limit; routing; both directions together"
BRIDGE_LIMIT: Final = "packet rate limit; bridging and pass-thru; both directions together"
EFFICIENCY: Final = "TCP efficiency on the channel with large packets and no delay"
TCP_LOW: Final = "TCP throughput over one satellite hop without acceleration; low"
TCP_HIGH: Final = "TCP throughput over one satellite hop without acceleration; high"
TCP_HIGHEST: Final = "TCP throughput over one satellite hop without acceleration; highest seen"
DELAY: Final = "one-way satellite delay"
SPLIT: Final = "split of the packet rate when both directions are offered the same load"
CROSSOVER: Final = "packet size from which a 4 Mbit/s modem is channel limited"

# The note gives no windows. Of those tried, these come nearest to its three figures: one each, so
# every one of them is fitted.
FITTED_WINDOWS: Final[Mapping[str, int]] = {
    TCP_LOW: 17_520,
    TCP_HIGH: 57_344,
    TCP_HIGHEST: 65_535,
}


@dataclass(frozen=True)
class Fact:
    """How a figure of the note is simulated (None: not run), and what its agreement is worth."""

    provenance: Provenance
    value: Callable[[Measured], float | None]
    how: Callable[[Measured, Settings], str]


def tcp_how(window: int) -> Callable[[Measured, Settings], str]:
    """Return how a TCP figure is simulated."""
    return lambda _, settings: (
        f"Goodput of {settings.tcp_duration} with a window of {window:,} bytes, slow start "
        "included. The source gives no windows; of those tried this comes nearest."
    )


def _tcp(window: int) -> Fact:
    def value(measured: Measured) -> float | None:
        bps = measured.tcp_bps.get(window)
        return None if bps is None else bps / 1e3

    return Fact(Provenance.FITTED, value, tcp_how(window))


def _bridge(measured: Measured) -> float | None:
    found = [measured.limits[mode] for mode in MODES if mode in measured.limits]
    return sum(found) / len(found) if len(found) == len(MODES) else None


def _bridge_how(measured: Measured, _: Settings) -> str:
    modes = ", ".join(f"{mode} {measured.limits.get(mode, 0):,.0f}" for mode in MODES)
    figures = f" {modes};" if _bridge(measured) is not None else ""
    return (
        f"Mean of two searches, both directions together:{figures} gives back the default rate of "
        "these modes, which is the note's."
    )


def _split(measured: Measured) -> float | None:
    overload = [each for each in measured.duplex if each.offered_pps == OVERLOAD]
    return overload[0].forward_percent if overload else None


def _crossover_how(measured: Measured, _: Settings) -> str:
    crossover = measured.crossover
    layers = ""
    if crossover is not None:
        layers = (
            f" Simulated: {crossover.payload_bytes} bytes of UDP payload, {crossover.ip_bytes} of "
            f"IP, {crossover.link_bytes:g} on the link."
        )
    return (
        "Counted on the link, framing included; the source does not say at which layer. 80 bytes "
        "at 6,250 packets a second, which its table has, fill 4 Mbit/s exactly: then they are all "
        f"that a packet takes on the link.{layers}"
    )


FACTS: Final[Mapping[str, Fact]] = {
    ROUTE_LIMIT: Fact(
        Provenance.CALIBRATED,
        lambda measured: measured.limits.get("route"),
        lambda _measured, _settings: (
            "Both directions together, equal rates, small packets. It gives back the constant that "
            "the table's mean calibrates; the note rounds its own table down here."
        ),
    ),
    BRIDGE_LIMIT: Fact(Provenance.STATED, _bridge, _bridge_how),
    EFFICIENCY: Fact(
        Provenance.PREDICTED,
        lambda measured: measured.efficiency_percent,
        lambda _measured, settings: (
            f"Goodput over the modem's rate, {settings.tcp_duration} from the start, no delay, "
            "segments of 1,460 bytes: 1,460 of 1,509 bytes on the link are 96.8 %, less the start. "
            "ACKs go the other way. The source does not give the segment size; 1,460 bytes with "
            "HDLC stuffing of random data would be 95.2 %."
        ),
    ),
    **{quantity: _tcp(window) for quantity, window in FITTED_WINDOWS.items()},
    DELAY: Fact(
        Provenance.STATED,
        lambda measured: measured.one_way_delay_ms,
        lambda _measured, _settings: (
            "The link has the note's delay; two processors and the time to send 1,400 bytes come "
            "on top."
        ),
    ),
    SPLIT: Fact(
        Provenance.FITTED,
        _split,
        lambda _measured, _settings: (
            f"Forward direction's share of what arrives when both are offered {OVERLOAD:,} packets "
            "a second (iperf -d). The processor takes turns: the plainest rule with an even split."
        ),
    ),
    CROSSOVER: Fact(
        Provenance.FITTED,
        lambda measured: None if measured.crossover is None else measured.crossover.link_bytes,
        _crossover_how,
    ),
}
