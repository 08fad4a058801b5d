"""Which measurement stands beside which figure of the note, and what the comparison is worth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from bentpipe.studies.snip._measure import OVERLOAD, TCP_DURATION, Measured

# How much a figure that agrees says of the model:
# "input" is what the note's own number, put in, gives back; "calibrated" likewise with the one
# constant of the table; "fitted" has a setting or a rule chosen for it, which the note leaves open;
# "predicted" has none of these.
Basis = Literal["input", "calibrated", "fitted", "predicted"]

ROUTE_LIMIT: Final = "packet rate limit; routing; both directions together"
BRIDGE_LIMIT: Final = "packet rate limit; bridging and pass-thru; both directions together"
EFFICIENCY: Final = "TCP efficiency on the channel with large packets and no delay"
TCP_LOW: Final = "TCP throughput over one satellite hop without acceleration; low"
TCP_HIGH: Final = "TCP throughput over one satellite hop without acceleration; high"
TCP_HIGHEST: Final = "TCP throughput over one satellite hop without acceleration; highest seen"
DELAY: Final = "one-way satellite delay"
SPLIT: Final = "split of the packet rate when both directions are offered the same load"
CROSSOVER: Final = "packet size from which a 4 Mbit/s modem is channel limited"

# The note tells no windows. These are the ones of `WINDOWS` that come nearest to its three figures.
FITTED_WINDOWS: Final[Mapping[str, int]] = {
    TCP_LOW: 17_520,
    TCP_HIGH: 57_344,
    TCP_HIGHEST: 65_535,
}


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A measured figure in the note's unit (None: not measured), its basis, and the reason.

    The reason says what was measured, and why it may differ from what was published.
    """

    measured: float | None
    basis: Basis
    reason: str


def findings(measured: Measured) -> dict[str, Finding]:
    """Return what stands beside each figure of the note, by its quantity."""
    found = {
        ROUTE_LIMIT: _route(measured),
        BRIDGE_LIMIT: _bridge(measured),
        EFFICIENCY: Finding(
            measured=measured.efficiency_percent,
            basis="predicted",
            reason=(
                f"Goodput over the modem's rate, {TCP_DURATION} from the start, no delay, segments "
                "of 1,460 bytes: 1,460 of 1,509 bytes on the link are 96.8 %, less the start. "
                "ACKs go the other way. The source does not tell the segment size; 1,460 bytes "
                "with HDLC stuffing of random data would be 95.2 %."
            ),
        ),
        DELAY: Finding(
            measured=measured.one_way_delay_ms,
            basis="input",
            reason=(
                "The link has the note's delay; two processors and the time to send 1,400 bytes "
                "come on top."
            ),
        ),
        SPLIT: _split(measured),
        CROSSOVER: _crossover(measured),
    }
    return {**found, **{quantity: _tcp(measured, quantity) for quantity in FITTED_WINDOWS}}


def _route(measured: Measured) -> Finding:
    return Finding(
        measured=measured.limits.get("route"),
        basis="calibrated",
        reason=(
            "Both directions together, equal rates, small packets. It gives back the constant that "
            "the table's mean calibrates; the note rounds its own table down here."
        ),
    )


def _bridge(measured: Measured) -> Finding:
    bridge, pass_through = (measured.limits.get(mode) for mode in ("bridge", "pass-thru"))
    both = None
    if bridge is not None and pass_through is not None:
        both = (bridge + pass_through) / 2
    figures = "" if both is None else f" bridging {bridge:,.0f}, pass-thru {pass_through:,.0f};"
    return Finding(
        measured=both,
        basis="input",
        reason=(
            f"Mean of two searches, both directions together:{figures} gives back the default rate "
            "of these modes, which is the note's."
        ),
    )


def _tcp(measured: Measured, quantity: str) -> Finding:
    window = FITTED_WINDOWS[quantity]
    goodput_bps = measured.tcp_bps.get(window)
    return Finding(
        measured=None if goodput_bps is None else goodput_bps / 1e3,
        basis="fitted",
        reason=(
            f"Goodput of {TCP_DURATION} with a window of {window:,} bytes, slow start included. "
            "The source tells no windows; of those tried this comes nearest."
        ),
    )


def _split(measured: Measured) -> Finding:
    overload = [each for each in measured.duplex if each.offered == OVERLOAD]
    return Finding(
        measured=overload[0].split_percent if overload else None,
        basis="fitted",
        reason=(
            f"Forward direction's share of what arrives when both are offered {OVERLOAD:,} packets "
            "a second (iperf -d). The processor takes turns: the plainest rule with an even split."
        ),
    )


def _crossover(measured: Measured) -> Finding:
    crossover = measured.crossover
    layers = ""
    if crossover is not None:
        layers = (
            f" Measured: {crossover.payload_bytes} bytes of UDP payload, {crossover.ip_bytes} of "
            f"IP, {crossover.link_bytes:g} on the link."
        )
    return Finding(
        measured=None if crossover is None else crossover.link_bytes,
        basis="fitted",
        reason=(
            "Counted on the link, framing included; the source does not say at which layer. 80 "
            "bytes at 6,250 packets a second, which its table has, fill 4 Mbit/s exactly: then "
            f"they are all that a packet takes on the link.{layers}"
        ),
    )
