"""UDP: a stream beside TCP, a stream that buffers, a multicast clip, and full links."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from bentpipe.plan.resolver import resolve
from bentpipe.plan.types import Plan
from bentpipe.studies.hermes._network import (
    SITES,
    STREAM_PAYLOAD_BYTES,
    TUNED_WINDOW_BYTES,
    Network,
    direction,
    lost_percent,
    steady_bps,
)

if TYPE_CHECKING:
    from bentpipe.simulation.many import Outcome

_START_S: Final = 20
# What is under way when a stream ends still arrives.
_DRAIN_S: Final = 2


@dataclass(frozen=True)
class StreamCase:
    """Datagrams at a constant rate, beside so many TCP sessions with a window of 64 KB.

    ``copies`` go to as many sites. ``floods`` means that the link is to be full, so that the run
    ends while the stream still plays.
    """

    name: str
    rate_kbps: int
    sessions: int = 0
    copies: int = 1
    towards: str = "forward"
    duration_s: int = 40
    floods: bool = False

    @property
    def chance(self) -> bool:
        """No: the same in every run."""
        return False

    def plan(self, network: Network, seed: int) -> Plan:
        """Return the plan: TCP alone for 20 s, then the stream too."""
        del seed
        end_s = _START_S + self.duration_s
        stream = {
            "name": "stream",
            "kind": "constant_rate",
            "direction": self.towards,
            "terminal": 1 if self.copies == 1 else "all",
            "start": f"{_START_S} s",
            "rate": f"{self.rate_kbps} kbit/s",
            "payload": f"{STREAM_PAYLOAD_BYTES} B",
            "duration": f"{self.duration_s} s",
        }
        traffic = [stream]
        if self.sessions:
            sessions = {
                "name": "session",
                "kind": "bulk",
                "direction": "forward",
                "duration": f"{end_s} s",
                "count": self.sessions,
                "start_spacing": "130 ms",
                **network.hosts(TUNED_WINDOW_BYTES),
            }
            traffic.append(sessions)
        duration_s = end_s + (0 if self.floods else _DRAIN_S)
        return resolve(network.scenario(traffic, duration_s=duration_s, sample_s=1))

    def measure(self, outcome: Outcome) -> dict[str, float]:
        """Return what a receiver has of the stream, and what TCP has beside it."""
        received = outcome.column("flows", "received_segments")[: self.copies].astype(np.float64)
        sent = float(outcome.column("flows", "sent_segments")[: self.copies].sum())
        figures = {
            "received_bps": float(received.mean()) * STREAM_PAYLOAD_BYTES * 8 / self.duration_s,
            "loss_percent": lost_percent(sent, float(received.sum())),
        }
        if self.sessions:
            flows = range(self.copies, self.copies + self.sessions)
            end_s = _START_S + self.duration_s
            figures["tcp_goodput_bps"] = steady_bps(outcome, flows, _START_S, end_s)
        if self.floods:
            used = direction(outcome, "sent_bytes", 0 if self.towards == "forward" else 1)
            figures["link_bps"] = used * 8 / self.duration_s
        return figures


STREAM: Final = StreamCase("the stream beside one TCP session", 1024, sessions=1)
STREAM_FULL: Final = StreamCase("the stream beside eight TCP sessions", 1024, sessions=8)
BUFFERING: Final = StreamCase(
    "the stream while it buffers, beside one TCP session", 2000, sessions=1, duration_s=10
)
CLIP: Final = StreamCase("the clip, one copy for all sites", 600)
CLIP_EACH: Final = StreamCase("the clip, a copy for each site", 600, copies=SITES)
FORWARD_FLOOD: Final = StreamCase("more than the carrier takes", 5000, floods=True)
RETURN_FLOOD: Final = StreamCase("more than ISDN takes", 200, towards="return", floods=True)


def cases() -> tuple[StreamCase, ...]:
    """Return all streams."""
    return (STREAM, STREAM_FULL, BUFFERING, CLIP, CLIP_EACH, FORWARD_FLOOD, RETURN_FLOOD)
