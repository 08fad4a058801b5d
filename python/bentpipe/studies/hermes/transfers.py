"""TCP: long transfers by window, files over HTTP, the round trip, and sessions of one client."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

import numpy as np

from bentpipe.scenario import Scenario, frame_bits
from bentpipe.simulation import Outcome
from bentpipe.studies.base.work import largest_goodput_bps, steady_bps
from bentpipe.studies.hermes import network
from bentpipe.studies.hermes.network import (
    DEFAULT_WINDOW_BYTES,
    IMAGE_BYTES,
    LARGE_MSS_BYTES,
    MSS_BYTES,
    STREAM_PAYLOAD_BYTES,
    TUNED_WINDOW_BYTES,
    Case,
    Found,
    path_figures,
    stream,
)
from bentpipe.units import NS_PER_S, TCP_IP_BYTES

_TUNED_KIB: Final = 64
WINDOWS_BYTES: Final = tuple(
    TUNED_WINDOW_BYTES if size_kib == _TUNED_KIB else size_kib * 1024
    for size_kib in (4, 8, 16, 32, _TUNED_KIB, 128, 256)
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
_WINDOWS: Final = (DEFAULT_WINDOW_BYTES, TUNED_WINDOW_BYTES)
# Slow start to the largest window takes some 20 round trips.
_WARM_UP_ROUNDS, _ROUNDS = 40, 140
_WARM_UP_S, _TIME_S = 20, 60

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

_SESSIONS_WARM_UP_S, _SESSIONS_TIME_S = 40, 120


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

    def scenario(self) -> Scenario:
        """Return the transfer, sampled once a round trip."""
        round_s = self.round_trip_ms / 1e3
        delay = f"{self.round_trip_ms / 2:g} ms"
        hop = {"rate": "1 Gbit/s", "delay": delay, "queue": {"limit": "unlimited"}}
        time_s = _ROUNDS * round_s
        transfer = network.bulk(self.window_bytes, self.mss_bytes, time_s)
        link = {"forward": hop, "return": hop}
        return network.scenario([transfer], duration_s=time_s, sample_s=round_s, link=link)

    def figures(self, outcome: Outcome) -> dict[str, float]:
        """Return the goodput after slow start, and the round-trip time."""
        round_s = self.round_trip_ms / 1e3
        return _steady(outcome, 1, _WARM_UP_ROUNDS * round_s, _ROUNDS * round_s)


@dataclass(frozen=True)
class LongTransferCase(Case):
    """A long transfer on the network of the study."""

    window_bytes: int
    mss_bytes: int = MSS_BYTES

    def scenario(self) -> Scenario:
        """Return the transfer, sampled once a second."""
        transfer = network.bulk(self.window_bytes, self.mss_bytes, _TIME_S)
        return network.scenario([transfer], duration_s=_TIME_S, sample_s=1)

    def figures(self, outcome: Outcome) -> dict[str, float]:
        """Return the goodput after slow start, the round-trip time, and the use of the path."""
        return _steady(outcome, 1, _WARM_UP_S, _TIME_S) | path_figures(outcome, _TIME_S)


@dataclass(frozen=True)
class FetchCase(Case):
    """One file over HTTP: a connection of its own, a request, the file."""

    size_bytes: int
    window_bytes: int
    mss_bytes: int = MSS_BYTES

    def scenario(self) -> Scenario:
        """Return the fetch of the scenario file, with another size and other hosts."""
        size = f"{self.size_bytes} B"
        fetch = network.image(self.window_bytes, self.mss_bytes, name="file", size=size)
        return network.scenario([fetch], duration_s=600)

    def figures(self, outcome: Outcome) -> dict[str, float]:
        """Return time and throughput as the client sees them, from its SYN to the last byte."""
        times_ns = outcome.column("exchanges", "finished_ns").astype(np.float64)
        time_s = float(times_ns[0] - outcome.column("exchanges", "start_ns")[0]) / NS_PER_S
        return {"time_s": time_s, "throughput_bps": self.size_bytes * 8 / time_s}


@dataclass(frozen=True)
class PingCase(Case):
    """Ten small exchanges over an open connection."""

    payload_bytes: int = PING_BYTES

    def scenario(self) -> Scenario:
        """Return the exchanges, a second apart."""
        size = f"{self.payload_bytes} B"
        exchange = {
            "name": "ping",
            "kind": "request_response",
            "direction": "forward",
            "request": size,
            "response": size,
            "think": "1 s",
            "exchanges": 10,
            **network.hosts(DEFAULT_WINDOW_BYTES, MSS_BYTES),
        }
        return network.scenario([exchange], duration_s=60)

    def figures(self, outcome: Outcome) -> dict[str, float]:
        """Return the smallest round-trip time."""
        finished = outcome.column("exchanges", "finished_ns").astype(np.float64)
        times_ns = finished - outcome.column("exchanges", "start_ns")
        return {"round_trip_ms": float(np.nanmin(times_ns)) * 1e3 / NS_PER_S}


def window_error_percent(measured: Found, case: IdealPathCase) -> float | None:
    """Return the error of the goodput against the bound of whole segments."""
    goodput_bps = measured[case]["goodput_bps"].mean
    return None if goodput_bps is None else 100 * (goodput_bps / case.bound_whole_segments_bps - 1)


def largest_window_error_percent(measured: Found, mss_bytes: int) -> float | None:
    """Return the largest of these errors with this MSS."""
    errors = (window_error_percent(measured, case) for case in ideal_cases(mss_bytes))
    return max((error for error in errors if error is not None), key=abs, default=None)


def ideal_cases(*mss_bytes: int) -> tuple[IdealPathCase, ...]:
    """Return all round trips and windows on the ideal path, for both MSS if none is given."""
    return tuple(
        IdealPathCase(window_bytes, round_trip_ms, mss)
        for mss, round_trip_ms, window_bytes in product(
            mss_bytes or _MSS, ROUND_TRIPS_MS, WINDOWS_BYTES
        )
    )


NETWORK_CASES: Final = tuple(
    LongTransferCase(window, mss) for mss, window in product(_MSS, WINDOWS_BYTES)
)
FETCH_CASES: Final = tuple(
    FetchCase(size, window, mss) for mss, window, size in product(_MSS, _WINDOWS, SIZES_BYTES)
)


def _steady(outcome: Outcome, flows: int, from_s: float, until_s: float) -> dict[str, float]:
    """Return the goodput and the mean round-trip time of the first flows."""
    rtts_ns = outcome.column("flows", "rtt_mean_ns")[:flows]
    return {
        "goodput_bps": steady_bps(outcome, range(flows), from_s, until_s),
        "rtt_ms_mean": float(np.mean(rtts_ns) * 1e3 / NS_PER_S),
    }


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

    def scenario(self) -> Scenario:
        """Return the sessions and their background."""
        sessions = network.sessions(
            self.sessions, self.window_bytes, self.mss_bytes, _SESSIONS_TIME_S
        )
        traffic = [*sessions, *self._background()]
        return network.scenario(traffic, duration_s=_SESSIONS_TIME_S, sample_s=1)

    def _background(self) -> list[dict[str, Any]]:
        if self.background in THINK_S:
            think = {"exponential": f"{THINK_S[self.background]} s"}
            changes = {"name": "site", "terminal": "all", "think": think}
            image = network.image(TUNED_WINDOW_BYTES, MSS_BYTES, **changes)
            del image["files"]
            return [image]
        if self.background in STREAMS_KBPS:
            rate_kbps = STREAMS_KBPS[self.background]
            return [stream("stream", rate_kbps, STREAM_PAYLOAD_BYTES, terminal=2)]
        return []

    def figures(self, outcome: Outcome) -> dict[str, float]:
        """Return goodput of sessions and background, and the use of the path."""
        delivered = outcome.column("flows", "delivered_bytes").astype(np.float64)
        steady = _steady(outcome, self.sessions, _SESSIONS_WARM_UP_S, _SESSIONS_TIME_S)
        return {
            "goodput_bps": steady["goodput_bps"],
            "background_bps": float(delivered[self.sessions :].sum()) * 8 / _SESSIONS_TIME_S,
            "rtt_ms_mean": steady["rtt_ms_mean"],
            "timeouts": float(outcome.column("flows", "timeouts")[: self.sessions].sum()),
            **path_figures(outcome, _SESSIONS_TIME_S),
        }


# Both windows alone and with the assumed load, and eight sessions with each load.
SESSION_CASES: Final = (
    *(
        SessionsCase(sessions, window, load)
        for load, window, sessions in product((NONE, ASSUMED_LOAD), _WINDOWS, SESSIONS)
    ),
    *(SessionsCase(n, TUNED_WINDOW_BYTES, mss_bytes=LARGE_MSS_BYTES) for n in SESSIONS),
    *(
        SessionsCase(SEVERAL[-1], TUNED_WINDOW_BYTES, load)
        for load in LOADS
        if load not in (NONE, ASSUMED_LOAD)
    ),
)


def best_of_several(measured: Found, background: str, mss_bytes: int = MSS_BYTES) -> SessionsCase:
    """Return the number of sessions, of those that are several, with the largest mean goodput."""
    table = (SessionsCase(n, TUNED_WINDOW_BYTES, background, mss_bytes) for n in SEVERAL)

    def goodput_bps(case: SessionsCase) -> float:
        mean = measured[case]["goodput_bps"].mean
        # If a case was not run, the largest is unknown: return that case, which has no figures.
        return math.inf if mean is None else mean

    return max(table, key=goodput_bps)


def asymmetry(mss_bytes: int) -> dict[str, float]:
    """Return the two directions compared by packets (RFC 3449, section 2.1), from the plan.

    ``ratio`` is k: the ratio of the rates over the ratio of the sizes of a data packet and an ACK.
    With an ACK every d segments, k > d means that ACKs fill ISDN before data fill the carrier.
    ``carrier_bps`` and ``isdn_bps`` are the goodputs at which each is full.
    """
    (job,) = SessionsCase(1, TUNED_WINDOW_BYTES, mss_bytes=mss_bytes).jobs([1])
    plan = job.plan.data
    forward, isdn, *_ = plan["directions"]
    data_bits = frame_bits(forward["framing"], mss_bytes + TCP_IP_BYTES)
    ack_bits = frame_bits(isdn["framing"], TCP_IP_BYTES)
    forward_bps, isdn_bps = forward["rate_bps"]["value"], isdn["rate_bps"]["value"]
    segments_an_ack = plan["flows"][0]["workload"]["receiver"]["delayed_ack_segments"]
    return {
        "mss_bytes": mss_bytes,
        "data_bytes": data_bits / 8,
        "ack_bytes": ack_bits / 8,
        "ratio": (forward_bps / isdn_bps) / (data_bits / ack_bits),
        "carrier_bps": largest_goodput_bps(plan, plan["flows"][0]),
        "isdn_bps": isdn_bps / ack_bits * segments_an_ack * 8 * mss_bytes,
    }
