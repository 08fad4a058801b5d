"""A conference: what each participant sends over ISDN, and what the carrier brings to each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from bentpipe.plan.resolver import resolve
from bentpipe.plan.types import Plan
from bentpipe.scenario.framings import frame_bits
from bentpipe.studies.hermes._network import (
    NS_PER_S,
    Network,
    direction,
    lost_percent,
    stagger,
)

if TYPE_CHECKING:
    from bentpipe.simulation.many import Outcome

PARTICIPANTS: Final = tuple(range(2, 9))
RATES_KBPS: Final = (80, 90, 100)
UPSTREAM_KBPS: Final = (*RATES_KBPS, 105, 110, 115, 120, 125)
# A conference holds as long as the worst receiver loses no more of what is sent to it.
TOLERABLE_LOSS_PERCENT: Final = 1.0

# Some 25 datagrams a second at these rates. The size is ours: with 28 bytes of headers and the
# framing, 12 % are added on the carrier and 9.5 % on ISDN.
PAYLOAD_BYTES: Final = 450
_HEADERS_BYTES: Final = 28
_TIME_S: Final = 60
_DRAIN_S: Final = 5


@dataclass(frozen=True)
class ConferenceCase:
    """So many participants who each send at this rate.

    ``copies``: "each" has the reflector send a copy to every other participant, "one" sends each
    stream over the carrier once, for all to hear.
    """

    participants: int
    rate_kbps: int
    copies: str = "each"

    @property
    def chance(self) -> bool:
        """Yes: participants do not send in step, and who loses depends on how they stand."""
        return True

    def plan(self, network: Network, seed: int) -> Plan:
        """Return the plan; everybody starts within the first interval between two datagrams."""
        stream = {
            "rate": f"{self.rate_kbps} kbit/s",
            "payload": f"{PAYLOAD_BYTES} B",
            "duration": f"{_TIME_S} s",
        }
        if self.copies == "each":
            participants = self.participants
            traffic = [
                {"name": "site", "kind": "conference", "participants": participants, **stream}
            ]
        else:
            traffic = [
                {
                    "name": f"site {way} {number}",
                    "kind": "constant_rate",
                    "direction": way,
                    "terminal": number,
                    **stream,
                }
                for number in range(1, self.participants + 1)
                for way in ("return", "forward")
            ]
        plan = resolve(network.scenario(traffic, duration_s=_TIME_S + _DRAIN_S))
        interval_ns = PAYLOAD_BYTES * 8 * NS_PER_S // (self.rate_kbps * 1000)
        return stagger(plan, "site", interval_ns, seed)

    def measure(self, outcome: Outcome) -> dict[str, float]:
        """Return what a participant receives, and what is lost on the way to it."""
        received = outcome.column("flows", "received_segments").astype(np.float64)
        sent = outcome.column("flows", "sent_segments").astype(np.float64)
        others = self.participants - 1
        if self.copies == "each":
            heard = received
            meant = sent.sum() - sent
        else:
            # A stream that came to the hub goes out once and everybody hears it but its sender.
            arrived = (received / sent).reshape(-1, 2).prod(axis=1) * sent[::2]
            heard = arrived.sum() - arrived
            meant = sent[::2].sum() - sent[::2]
        loss_percent = 100 * (1 - heard / meant)
        heard_bps = heard * PAYLOAD_BYTES * 8 / _TIME_S
        return {
            "received_bps": float(heard_bps.mean()),
            "received_bps_min": float(heard_bps.min()),
            "received_bps_a_stream": float(heard_bps.mean()) / others,
            "loss_percent": float(loss_percent.mean()),
            "loss_percent_worst": float(loss_percent.max()),
            "forward_offered_percent": _offered_percent(outcome),
        }


def _offered_percent(outcome: Outcome) -> float:
    """Return what came to the carrier, framing included, in percent of what it takes."""
    forward = outcome.job.plan["directions"][0]
    frame = frame_bits(forward["framing"], PAYLOAD_BYTES + _HEADERS_BYTES)
    packets = direction(outcome, "received_packets", 0)
    return 100 * packets * frame / (_TIME_S * float(forward["rate_bps"]["value"]))


@dataclass(frozen=True)
class UpstreamCase:
    """One participant's stream up over ISDN, nothing else on the line."""

    rate_kbps: int

    @property
    def chance(self) -> bool:
        """No: the same in every run."""
        return False

    def plan(self, network: Network, seed: int) -> Plan:
        """Return the plan of one stream of datagrams."""
        del seed
        stream = {
            "name": "upstream",
            "kind": "constant_rate",
            "direction": "return",
            "rate": f"{self.rate_kbps} kbit/s",
            "payload": f"{PAYLOAD_BYTES} B",
            "duration": f"{_TIME_S} s",
        }
        return resolve(network.scenario([stream], duration_s=_TIME_S + _DRAIN_S))

    def measure(self, outcome: Outcome) -> dict[str, float]:
        """Return what arrives at the hub."""
        received = float(outcome.column("flows", "received_segments")[0])
        sent = float(outcome.column("flows", "sent_segments")[0])
        return {
            "received_bps": received / sent * self.rate_kbps * 1e3,
            "loss_percent": lost_percent(sent, received),
            "delay_ms_max": float(outcome.column("flows", "one_way_delay_max_ns")[0]) / 1e6,
        }


def cases() -> tuple[ConferenceCase, ...]:
    """Return two to eight participants at three rates, with a copy for each and with one."""
    return tuple(
        ConferenceCase(participants, rate_kbps, copies)
        for copies in ("each", "one")
        for rate_kbps in RATES_KBPS
        for participants in PARTICIPANTS
    )


def upstream_cases() -> tuple[UpstreamCase, ...]:
    """Return the rates from what is published up to what the line has."""
    return tuple(UpstreamCase(rate_kbps) for rate_kbps in UPSTREAM_KBPS)
