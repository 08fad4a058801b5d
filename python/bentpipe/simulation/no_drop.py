"""The result of a search for the largest rate without loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from bentpipe.results.tables import DROP_CAUSES

OVERLOAD: Final = "processor_overload"
# Nothing was lost yet.
LINK_QUEUE_GROWTH: Final = "link_queue_growth"
PROCESSOR_QUEUE_GROWTH: Final = "processor_queue_growth"
_LIMITS: Final[Mapping[str, str]] = {
    OVERLOAD: "packet rate",
    PROCESSOR_QUEUE_GROWTH: "packet rate",
    LINK_QUEUE_GROWTH: "channel",
    "queue_full": "channel",
    "bit_error": "bit errors",
}


@dataclass(frozen=True, kw_only=True)
class Loss:
    """Packets that one place dropped for one cause; none if its queue would be full later."""

    place: str
    cause: str
    packets: int

    @property
    def limit(self) -> str:
        """Return the bottleneck that this cause means: ``packet rate``, ``channel``, ..."""
        return _LIMITS.get(self.cause, DROP_CAUSES.get(self.cause, self.cause))


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One run: the rate of each searched flow, and the losses, the largest first.

    ``delay_growth_ns`` is by how much more the last datagram was delayed than the first, the most
    of all flows. ``proven``: the run passed, and was long enough to show that the rate can last.
    """

    rate_bps: int
    losses: tuple[Loss, ...]
    delay_growth_ns: int
    proven: bool

    @property
    def passed(self) -> bool:
        """Return whether nothing was lost, or would be if the rate lasted."""
        return not self.losses

    @property
    def lost_packets(self) -> int:
        """Return the packets lost by all flows."""
        return sum(loss.packets for loss in self.losses)


@dataclass(frozen=True, kw_only=True)
class NoDropRate:
    """The largest rate without loss at one packet size.

    ``rate_bps`` is the largest rate that passed, for each of the ``flows`` flows, in payload bits
    per second as ``iperf -b`` counts; None if none passed. ``fails_bps`` is the smallest rate that
    failed; None if the link rate passed. ``converged``: the two differ by no more than the
    resolution. ``proven``: ``rate_bps`` is above what the path carries by no more than the
    resolution; where it is not, buffers or variations of the delay may hide more.
    """

    payload_bytes: int
    rate_bps: int | None
    fails_bps: int | None
    flows: int
    converged: bool
    trials: tuple[Trial, ...]

    @property
    def packets_per_second(self) -> float | None:
        """Return the rate of each flow in packets per second."""
        return None if self.rate_bps is None else self.rate_bps / (8 * self.payload_bytes)

    @property
    def aggregate_packets_per_second(self) -> float | None:
        """Return the rate of all searched flows together in packets per second."""
        each = self.packets_per_second
        return None if each is None else self.flows * each

    @property
    def proven(self) -> bool:
        """Return whether the run at ``rate_bps`` shows that this rate can last."""
        return any(trial.proven for trial in self.trials if trial.rate_bps == self.rate_bps)

    @property
    def first_loss(self) -> Loss | None:
        """Return the largest loss at the smallest rate that failed; None if none failed."""
        failed = [trial for trial in self.trials if trial.rate_bps == self.fails_bps]
        return failed[0].losses[0] if failed else None

    def to_json(self) -> dict[str, Any]:
        """Return the figures as plain data."""
        loss = self.first_loss
        return {
            "payload_bytes": self.payload_bytes,
            "rate_bps": self.rate_bps,
            "fails_bps": self.fails_bps,
            "packets_per_second": self.packets_per_second,
            "aggregate_packets_per_second": self.aggregate_packets_per_second,
            "limit": None if loss is None else loss.limit,
            "first_loss": None if loss is None else {"place": loss.place, "cause": loss.cause},
            "converged": self.converged,
            "proven": self.proven,
            "trials": [
                {
                    "rate_bps": trial.rate_bps,
                    "passed": trial.passed,
                    "lost_packets": trial.lost_packets,
                    "delay_growth_ns": trial.delay_growth_ns,
                }
                for trial in self.trials
            ],
        }


@dataclass(frozen=True, kw_only=True)
class NoDropSearch:
    """A search over packet sizes, and its parameters.

    ``flows`` are the names of the searched flows, ``link_rate_bps`` is the rate of the fastest
    direction that they use, ``sending_s`` the shortest time that one of them sends.
    """

    scenario: str
    flows: tuple[str, ...]
    link_rate_bps: int
    sending_s: float
    resolution: float
    seed: int
    rates: tuple[NoDropRate, ...]
    interrupted: bool

    def rate(self, payload_bytes: int) -> NoDropRate:
        """Return the rate of one payload size that was searched."""
        return next(each for each in self.rates if each.payload_bytes == payload_bytes)

    def to_json(self) -> dict[str, Any]:
        """Return the figures as plain data."""
        return {
            "search": "no-drop",
            "scenario": self.scenario,
            "interrupted": self.interrupted,
            "flows": list(self.flows),
            "link_rate_bps": self.link_rate_bps,
            "sending_s": self.sending_s,
            "resolution": self.resolution,
            "seed": self.seed,
            "sizes": [each.to_json() for each in self.rates],
        }
