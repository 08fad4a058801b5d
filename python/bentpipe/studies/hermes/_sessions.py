"""Several TCP sessions of one client: alone on the carrier, and beside what others do there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from bentpipe.plan.resolver import resolve
from bentpipe.plan.types import Plan
from bentpipe.scenario.framings import frame_bits
from bentpipe.studies.hermes._network import (
    DEFAULT_WINDOW_BYTES,
    LARGE_MSS_BYTES,
    MSS_BYTES,
    NS_PER_S,
    STREAM_PAYLOAD_BYTES,
    TUNED_WINDOW_BYTES,
    Network,
    path_figures,
    stagger,
    steady_bps,
)

if TYPE_CHECKING:
    from bentpipe.simulation.many import Outcome

SESSIONS: Final = (1, 2, 3, 4, 6, 8, 12, 16)
# What "several" means where the largest figure is looked for: a browser of the day opened up to
# four connections at once, and two of them eight.
SEVERAL: Final = (2, 3, 4, 6, 8)
NOBODY: Final = "nobody"
# What else is on the carrier: UDP streams in kbit/s, or a mean time in s between two images that
# each of the 20 sites fetches. Which of these there were, the source does not say: it names the
# services, and calls the carrier shared.
STREAMS_BESIDE_KBPS: Final = {
    "the clip": 600,
    "the stream": 1024,
    "the clip and the stream": 1624,
    "the stream while it buffers": 2000,
}
THINK_S: Final = {f"images, {think_s} s at each": think_s for think_s in (120, 60, 30, 15)}
# Half a minute to look at an image: a guess of ours, made before the first run.
ASSUMED: Final = "images, 30 s at each"
MIN_BESIDE: Final = "images, 120 s at each"
MAX_BESIDE: Final = "images, 15 s at each"

_WARM_UP_S: Final = 40
_TIME_S: Final = 120
_HEADERS_BYTES: Final = 40


@dataclass(frozen=True)
class SessionsCase:
    """So many long transfers to one client, beside what others do."""

    sessions: int
    window_bytes: int
    beside: str = NOBODY
    mss_bytes: int = MSS_BYTES

    @property
    def chance(self) -> bool:
        """Whether others fetch images, at times that are drawn."""
        return self.beside in THINK_S

    def plan(self, network: Network, seed: int) -> Plan:
        """Return the plan; sites begin their first image within one time to think."""
        sessions = {
            "name": "session",
            "kind": "bulk",
            "direction": "forward",
            "duration": f"{_TIME_S} s",
            "count": self.sessions,
            "start_spacing": "130 ms",
            **network.hosts(self.window_bytes, self.mss_bytes),
        }
        traffic = [sessions, *self._others(network)]
        plan = resolve(network.scenario(traffic, duration_s=_TIME_S, sample_s=1))
        if self.beside in THINK_S:
            stagger(plan, "site", THINK_S[self.beside] * NS_PER_S, seed)
        return plan

    def _others(self, network: Network) -> list[dict[str, Any]]:
        if self.beside in THINK_S:
            think = {"exponential": f"{THINK_S[self.beside]} s"}
            image = network.image(TUNED_WINDOW_BYTES, name="site", terminal="all", think=think)
            del image["files"]
            return [image]
        if self.beside in STREAMS_BESIDE_KBPS:
            stream = {
                "name": "stream",
                "kind": "constant_rate",
                "direction": "forward",
                "terminal": 2,
                "rate": f"{STREAMS_BESIDE_KBPS[self.beside]} kbit/s",
                "payload": f"{STREAM_PAYLOAD_BYTES} B",
            }
            return [stream]
        return []

    def measure(self, outcome: Outcome) -> dict[str, float]:
        """Return what the sessions reach together, what others have, and what became of ACKs."""
        sessions = range(self.sessions)
        figures = {"goodput_bps": steady_bps(outcome, sessions, _WARM_UP_S, _TIME_S)}
        others = outcome.column("flows", "delivered_bytes")[self.sessions :].astype(np.float64)
        return {
            **figures,
            "others_bps": float(others.sum()) * 8 / _TIME_S,
            "rtt_ms_mean": float(
                np.mean(outcome.column("flows", "rtt_mean_ns")[: self.sessions]) * 1e3 / NS_PER_S
            ),
            "timeouts": float(outcome.column("flows", "timeouts")[: self.sessions].sum()),
            **path_figures(outcome, _TIME_S),
        }


def cases() -> tuple[SessionsCase, ...]:
    """Return both windows alone and beside the assumed others, and eight sessions beside each."""
    windows = (DEFAULT_WINDOW_BYTES, TUNED_WINDOW_BYTES)
    found = [
        SessionsCase(sessions, window_bytes, beside)
        for beside in (NOBODY, ASSUMED)
        for window_bytes in windows
        for sessions in SESSIONS
    ]
    found += [
        SessionsCase(sessions, TUNED_WINDOW_BYTES, mss_bytes=LARGE_MSS_BYTES)
        for sessions in SESSIONS
    ]
    found += [
        SessionsCase(SEVERAL[-1], TUNED_WINDOW_BYTES, beside)
        for beside in (*STREAMS_BESIDE_KBPS, *THINK_S)
        if beside != ASSUMED
    ]
    return tuple(found)


@dataclass(frozen=True)
class Asymmetry:
    """The two directions compared by packets, after RFC 3449, section 2.1.

    ``ratio`` is k: the ratio of the rates over the ratio of the sizes of a data packet and an ACK.
    With an ACK every d segments, k > d means that ISDN is full of ACKs before the carrier is full.
    """

    mss_bytes: int
    data_bytes: float
    ack_bytes: float
    ratio: float
    carrier_bps: float
    isdn_bps: float


def asymmetry(network: Network, mss_bytes: int) -> Asymmetry:
    """Return k, and the goodputs at which the carrier and ISDN are full, an ACK every 2nd segment.

    All of it is arithmetic on the plan.
    """
    case = SessionsCase(1, TUNED_WINDOW_BYTES, mss_bytes=mss_bytes)
    plan: Mapping[str, Any] = case.plan(network, 1)
    forward, isdn = plan["directions"][0], plan["directions"][1]
    data_bits = frame_bits(forward["framing"], mss_bytes + _HEADERS_BYTES)
    ack_bits = frame_bits(isdn["framing"], _HEADERS_BYTES)
    forward_bps, isdn_bps = forward["rate_bps"]["value"], isdn["rate_bps"]["value"]
    segments_an_ack = plan["flows"][0]["workload"]["receiver"]["delayed_ack_segments"]
    return Asymmetry(
        mss_bytes=mss_bytes,
        data_bytes=data_bits / 8,
        ack_bytes=ack_bits / 8,
        ratio=(forward_bps / isdn_bps) / (data_bits / ack_bits),
        carrier_bps=forward_bps * 8 * mss_bytes / data_bits,
        isdn_bps=isdn_bps / ack_bits * segments_an_ack * 8 * mss_bytes,
    )
