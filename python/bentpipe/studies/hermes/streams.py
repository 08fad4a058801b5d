"""UDP streams: with TCP sessions, while buffering, to one site and to all; and full links."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from bentpipe.scenario.schema import Scenario
from bentpipe.simulation.many import Outcome
from bentpipe.studies.hermes.network import (
    MSS_BYTES,
    SITES,
    TUNED_WINDOW_BYTES,
    Case,
    Network,
    direction,
    loss_percent,
    steady_bps,
)

# Assumed. Headers and framing add 6.6 % on the carrier.
STREAM_PAYLOAD_BYTES: Final = 1024
_START_S: Final = 20
# Packets in transit when a stream ends still arrive.
_DRAIN_S: Final = 2


def stream(
    name: str, rate_kbps: int, payload_bytes: int = STREAM_PAYLOAD_BYTES, **more: Any
) -> dict[str, Any]:
    """Return datagrams at a constant rate."""
    return {
        "name": name,
        "kind": "constant_rate",
        "direction": "forward",
        "rate": f"{rate_kbps} kbit/s",
        "payload": f"{payload_bytes} B",
        # Streams to several sites are copies of one.
        "start_jitter": "0 s",
        **more,
    }


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

    def scenario(self, network: Network) -> Scenario:
        """Return the stream and the sessions."""
        end_s = _START_S + self.duration_s
        traffic = [
            stream(
                "stream",
                self.rate_kbps,
                direction=self.towards,
                terminal=1 if self.copies == 1 else "all",
                start=f"{_START_S} s",
                duration=f"{self.duration_s} s",
            )
        ]
        if self.sessions:
            counts = {"count": self.sessions, "start_spacing": "130 ms"}
            traffic.append(
                network.bulk("session", TUNED_WINDOW_BYTES, MSS_BYTES, duration_s=end_s, **counts)
            )
        duration_s = end_s + (0 if self.floods else _DRAIN_S)
        return network.scenario(traffic, duration_s=duration_s, sample_s=1)

    def measure(self, outcome: Outcome) -> dict[str, float]:
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
