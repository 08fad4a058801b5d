"""UDP: streams to one site and to all, full links, and a conference.

Each participant of a conference sends over ISDN; the carrier takes the streams to the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product, takewhile
from typing import Final

import numpy as np

from bentpipe.scenario import Scenario, frame_bits
from bentpipe.simulation import Outcome
from bentpipe.studies.base.comparison import Samples
from bentpipe.studies.base.work import steady_bps
from bentpipe.studies.hermes import network
from bentpipe.studies.hermes.network import (
    MSS_BYTES,
    SITES,
    STREAM_PAYLOAD_BYTES,
    TUNED_WINDOW_BYTES,
    Case,
    Found,
    direction,
    loss_percent,
    stream,
)
from bentpipe.units import NS_PER_S, UDP_IP_BYTES

_START_S: Final = 20
# Packets in transit when a stream ends still arrive, and those that wait in a full queue.
_DRAIN_S: Final = 2
_QUEUE_DRAIN_S: Final = 5

PARTICIPANTS: Final = tuple(range(2, 9))
RATES_KBPS: Final = (80, 90, 100)
UPSTREAM_KBPS: Final = (*RATES_KBPS, 105, 110, 115, 120, 125)
# A conference fits as long as its worst receiver loses no more than this.
TOLERABLE_LOSS_PERCENT: Final = 1.0

# Assumed: some 25 datagrams a second at these rates. Headers and framing add 12 % on the carrier
# and 9.5 % on ISDN.
PAYLOAD_BYTES: Final = 450
_TIME_S: Final = 60
_DURATION: Final = {"duration": f"{_TIME_S} s"}


@dataclass(frozen=True)
class StreamCase(Case):
    """A stream, from 20 s on, with TCP sessions that have a window of 64 KB.

    ``copies`` go to as many sites. ``floods``: the rate exceeds that of the link, and the run ends
    with the stream.
    """

    name: str
    rate_kbps: int
    sessions: int = 0
    copies: int = 1
    towards: str = "forward"
    duration_s: int = 40
    floods: bool = False

    def scenario(self) -> Scenario:
        """Return the stream and the sessions."""
        end_s = _START_S + self.duration_s
        udp_stream = stream(
            "stream",
            self.rate_kbps,
            STREAM_PAYLOAD_BYTES,
            direction=self.towards,
            terminal=1 if self.copies == 1 else "all",
            start=f"{_START_S} s",
            duration=f"{self.duration_s} s",
        )
        traffic = [
            udp_stream,
            *network.sessions(self.sessions, TUNED_WINDOW_BYTES, MSS_BYTES, end_s),
        ]
        duration_s = end_s + (0 if self.floods else _DRAIN_S)
        return network.scenario(traffic, duration_s=duration_s, sample_s=1)

    def figures(self, outcome: Outcome) -> dict[str, float]:
        """Return what a receiver gets of the stream, and the goodput of TCP meanwhile."""
        received = outcome.column("flows", "received_segments")[: self.copies].astype(np.float64)
        sent = float(outcome.column("flows", "sent_segments")[: self.copies].sum())
        figures = {
            "received_bps": float(received.mean()) * STREAM_PAYLOAD_BYTES * 8 / self.duration_s,
            "loss_percent": loss_percent(sent, float(received.sum())),
        }
        if self.sessions:
            flows = range(self.copies, self.copies + self.sessions)
            end_s = _START_S + self.duration_s
            figures["tcp_goodput_bps"] = steady_bps(outcome, flows, _START_S, end_s)
        if self.floods:
            used = direction(outcome, "sent_bytes", 0 if self.towards == "forward" else 1)
            figures["link_bps"] = used * 8 / self.duration_s
        return figures


STREAM: Final = StreamCase("the stream with one TCP session", 1024, sessions=1)
STREAM_FULL: Final = StreamCase("the stream with eight TCP sessions", 1024, sessions=8)
BUFFERING: Final = StreamCase(
    "the stream while it buffers, with one TCP session", 2000, sessions=1, duration_s=10
)
CLIP: Final = StreamCase("the clip, one copy for all sites", 600)
CLIP_EACH: Final = StreamCase("the clip, a copy for each site", 600, copies=SITES)
FORWARD_FLOOD: Final = StreamCase("more than the carrier's rate", 5000, floods=True)
RETURN_FLOOD: Final = StreamCase("more than the rate of ISDN", 200, towards="return", floods=True)
STREAMS: Final = (STREAM, STREAM_FULL, BUFFERING, CLIP, CLIP_EACH, FORWARD_FLOOD, RETURN_FLOOD)


@dataclass(frozen=True)
class ConferenceCase(Case):
    """Participants that each send at this rate.

    ``copies``: with "each" the reflector sends a copy to every other participant, with "one" each
    stream crosses the carrier once and all sites receive it.
    """

    participants: int
    rate_kbps: int
    copies: str = "each"

    @property
    def stagger(self) -> tuple[str, int]:
        """Each participant starts at random within the interval between two datagrams."""
        return "site", PAYLOAD_BYTES * 8 * NS_PER_S // (self.rate_kbps * 1000)

    def scenario(self) -> Scenario:
        """Return the streams of all participants."""
        if self.copies == "each":
            conference = stream("site", self.rate_kbps, PAYLOAD_BYTES, **_DURATION)
            del conference["direction"]
            traffic = [conference | {"kind": "conference", "participants": self.participants}]
        else:
            places = product(range(1, self.participants + 1), ("return", "forward"))
            traffic = [
                stream(f"site {way} {number}", self.rate_kbps, PAYLOAD_BYTES, **_DURATION)
                | {"direction": way, "terminal": number}
                for number, way in places
            ]
        return network.scenario(traffic, duration_s=_TIME_S + _QUEUE_DRAIN_S)

    def figures(self, outcome: Outcome) -> dict[str, float]:
        """Return what a participant receives of the others, and what is lost."""
        received = outcome.column("flows", "received_segments").astype(np.float64)
        sent = outcome.column("flows", "sent_segments").astype(np.float64)
        expected = sent.sum() - sent
        if self.copies == "one":
            # A stream that arrived at the hub goes out once, to all sites but its sender.
            arrived = (received / sent).reshape(-1, 2).prod(axis=1) * sent[::2]
            received = arrived.sum() - arrived
            expected = sent[::2].sum() - sent[::2]
        loss = 100 * (1 - received / expected)
        received_bps = received * PAYLOAD_BYTES * 8 / _TIME_S
        return {
            "received_bps": float(received_bps.mean()),
            "received_bps_min": float(received_bps.min()),
            "received_bps_a_stream": float(received_bps.mean()) / (self.participants - 1),
            "loss_percent": float(loss.mean()),
            "loss_percent_worst": float(loss.max()),
            "forward_offered_percent": _offered_percent(outcome),
        }


@dataclass(frozen=True)
class UpstreamCase(Case):
    """One participant's stream over ISDN, with nothing else on the line."""

    rate_kbps: int

    def scenario(self) -> Scenario:
        """Return the stream."""
        up = stream("upstream", self.rate_kbps, PAYLOAD_BYTES, direction="return", **_DURATION)
        return network.scenario([up], duration_s=_TIME_S + _QUEUE_DRAIN_S)

    def figures(self, outcome: Outcome) -> dict[str, float]:
        """Return what arrives at the hub."""
        received = float(outcome.column("flows", "received_segments")[0])
        sent = float(outcome.column("flows", "sent_segments")[0])
        return {
            "received_bps": received / sent * self.rate_kbps * 1e3,
            "loss_percent": loss_percent(sent, received),
            "delay_ms_max": float(outcome.column("flows", "one_way_delay_max_ns")[0]) / 1e6,
        }


# With a copy for each participant and with one; the upstream rates reach that of the line.
CONFERENCE_CASES: Final = tuple(
    ConferenceCase(participants, rate_kbps, copies)
    for copies, rate_kbps, participants in product(("each", "one"), RATES_KBPS, PARTICIPANTS)
)
UPSTREAM_CASES: Final = tuple(map(UpstreamCase, UPSTREAM_KBPS))


def max_participants(measured: Found, rate_kbps: int, copies: str = "each") -> Samples:
    """Return the largest conference that fits, in each run; nothing if a run is missing."""
    losses = [
        measured[ConferenceCase(count, rate_kbps, copies)]["loss_percent_worst"].values
        for count in PARTICIPANTS
    ]
    if len(set(map(len, losses))) > 1:
        return Samples()

    def largest(run: tuple[float, ...]) -> int:
        fits = takewhile(lambda loss: loss <= TOLERABLE_LOSS_PERCENT, run)
        return 1 + sum(1 for _ in fits)

    return Samples.of(map(largest, zip(*losses, strict=True)))


def max_upstream_kbps(measured: Found) -> int | None:
    """Return the largest rate without a loss on ISDN; None when a run is missing."""
    losses = {case.rate_kbps: measured[case]["loss_percent"].mean for case in UPSTREAM_CASES}
    lossless = [rate_kbps for rate_kbps, loss in losses.items() if loss == 0]
    return None if None in losses.values() else max(lossless, default=None)


def _offered_percent(outcome: Outcome) -> float:
    """Return what is offered to the carrier, framing included, in percent of its rate."""
    forward = outcome.job.plan.data["directions"][0]
    frame = frame_bits(forward["framing"], PAYLOAD_BYTES + UDP_IP_BYTES)
    packets = direction(outcome, "received_packets", 0)
    return 100 * packets * frame / (_TIME_S * float(forward["rate_bps"]["value"]))
