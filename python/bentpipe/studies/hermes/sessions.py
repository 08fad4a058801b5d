"""Several TCP sessions of one client, alone on the carrier and with background traffic."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

import numpy as np

from bentpipe.scenario.framings import frame_bits
from bentpipe.scenario.schema import Scenario
from bentpipe.simulation.many import Outcome
from bentpipe.studies.hermes.network import (
    DEFAULT_WINDOW_BYTES,
    LARGE_MSS_BYTES,
    MSS_BYTES,
    TCP_IP_HEADER_BYTES,
    TUNED_WINDOW_BYTES,
    Case,
    Found,
    Network,
    path_figures,
    steady_bps,
)
from bentpipe.studies.hermes.streams import stream
from bentpipe.units import NS_PER_S

SESSIONS: Final = (1, 2, 3, 4, 6, 8, 12, 16)
# The numbers that count as "several sessions": a browser of the time opened up to four connections
# at once, two browsers eight.
SEVERAL: Final = (2, 3, 4, 6, 8)
# Background traffic: a UDP stream in kbit/s, or images that all sites fetch, with the mean pause
# between two in s. The source names the services and calls the carrier shared; it gives no load.
NONE: Final = "none"
STREAMS_KBPS: Final = {
    "the clip": 600,
    "the stream": 1024,
    "the clip and the stream": 1624,
    "the stream while it buffers": 2000,
}
THINK_S: Final = {f"images, {think_s} s between two": think_s for think_s in (120, 60, 30, 15)}
LOADS: Final = (NONE, *STREAMS_KBPS, *THINK_S)
_, _, ASSUMED_LOAD, MAX_LOAD = THINK_S

_WARM_UP_S, _TIME_S = 40, 120


@dataclass(frozen=True)
class SessionsCase(Case):
    """Long transfers to one client, with background traffic."""

    sessions: int
    window_bytes: int
    background: str = NONE
    mss_bytes: int = MSS_BYTES

    @property
    def stagger(self) -> tuple[str, int] | None:
        """Sites begin their first image at random within one pause."""
        think_s = THINK_S.get(self.background)
        return None if think_s is None else ("site", think_s * NS_PER_S)

    def scenario(self, network: Network) -> Scenario:
        """Return the sessions and their background."""
        sessions = network.bulk(
            "session",
            self.window_bytes,
            self.mss_bytes,
            duration_s=_TIME_S,
            count=self.sessions,
            start_spacing="130 ms",
        )
        traffic = [sessions, *self._background(network)]
        return network.scenario(traffic, duration_s=_TIME_S, sample_s=1)

    def _background(self, network: Network) -> list[dict[str, Any]]:
        if self.background in THINK_S:
            think = {"exponential": f"{THINK_S[self.background]} s"}
            image = network.image(
                TUNED_WINDOW_BYTES, MSS_BYTES, name="site", terminal="all", think=think
            )
            del image["files"]
            return [image]
        if self.background in STREAMS_KBPS:
            return [stream("stream", STREAMS_KBPS[self.background], terminal=2)]
        return []

    def measure(self, outcome: Outcome) -> dict[str, float]:
        """Return goodput of sessions and background, and the use of the path."""
        own = slice(self.sessions)
        delivered = outcome.column("flows", "delivered_bytes").astype(np.float64)
        rtt_ns = np.mean(outcome.column("flows", "rtt_mean_ns")[own])
        return {
            "goodput_bps": steady_bps(outcome, range(self.sessions), _WARM_UP_S, _TIME_S),
            "background_bps": float(delivered[self.sessions :].sum()) * 8 / _TIME_S,
            "rtt_ms_mean": float(rtt_ns * 1e3 / NS_PER_S),
            "timeouts": float(outcome.column("flows", "timeouts")[own].sum()),
            **path_figures(outcome, _TIME_S),
        }


def session_cases() -> tuple[SessionsCase, ...]:
    """Return both windows alone and with the assumed load, and eight sessions with each load."""
    windows = (DEFAULT_WINDOW_BYTES, TUNED_WINDOW_BYTES)
    large = (SessionsCase(n, TUNED_WINDOW_BYTES, mss_bytes=LARGE_MSS_BYTES) for n in SESSIONS)
    return (
        *(
            SessionsCase(sessions, window, load)
            for load, window, sessions in product((NONE, ASSUMED_LOAD), windows, SESSIONS)
        ),
        *large,
        *(
            SessionsCase(SEVERAL[-1], TUNED_WINDOW_BYTES, load)
            for load in LOADS
            if load not in (NONE, ASSUMED_LOAD)
        ),
    )


def best_of_several(found: Found, background: str, mss_bytes: int = MSS_BYTES) -> SessionsCase:
    """Return the number of sessions, of those that are several, with the largest mean goodput."""
    table = (SessionsCase(n, TUNED_WINDOW_BYTES, background, mss_bytes) for n in SEVERAL)

    def goodput_bps(case: SessionsCase) -> float:
        mean = found.mean(case, "goodput_bps")
        # Without a run of one of them the largest is unknown: that one, which has no figures.
        return math.inf if mean is None else mean

    return max(table, key=goodput_bps)


@dataclass(frozen=True)
class Asymmetry:
    """The two directions compared by packets (RFC 3449, section 2.1).

    ``ratio`` is k: the ratio of the rates over the ratio of the sizes of a data packet and an ACK.
    With an ACK every d segments, k > d means that ACKs fill ISDN before data fill the carrier.
    ``carrier_bps`` and ``isdn_bps`` are the goodputs at which each is full.
    """

    mss_bytes: int
    data_bytes: float
    ack_bytes: float
    ratio: float
    carrier_bps: float
    isdn_bps: float


def asymmetry(network: Network, mss_bytes: int) -> Asymmetry:
    """Return the asymmetry with this MSS, computed from the plan."""
    case = SessionsCase(1, TUNED_WINDOW_BYTES, mss_bytes=mss_bytes)
    plan = case.plan(network, 1).data
    forward, isdn = plan["directions"][0], plan["directions"][1]
    data_bits = frame_bits(forward["framing"], mss_bytes + TCP_IP_HEADER_BYTES)
    ack_bits = frame_bits(isdn["framing"], TCP_IP_HEADER_BYTES)
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
