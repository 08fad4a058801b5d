"""The trials of a search for the largest rate without loss, and its result.

At a rate above what the path carries, packets wait longer and longer: from the first datagram to
the last, the delay grows by the time sent times the excess. A buffer that is not yet full hides the
loss, but not this growth. So a rate passes if nothing was lost and the delay grew by no more than
the resolution of the search times the time sent; it is then above what the path carries by no more
than the resolution, whatever the buffer. Delay may also vary by up to an interval between datagrams
(flows at constant rates wait for each other), by the hold time of aggregators and by the jitter of
hosts. Where these are not small against the growth to be seen, the rate passes, but is not proven.

Where the delay also varies for other reasons (traffic that is not at a constant rate, a link whose
rate or delay changes), a trial fails by losses alone; a rate is proven if the delay did not grow,
and never if the link's delay changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from bentpipe.results.tables import DROP_CAUSES
from bentpipe.simulation.run import Outcome
from bentpipe.units import NS_PER_S

_BITS_PER_BYTE: Final = 8

_OVERLOAD: Final = "processor_overload"
# Nothing was lost yet.
_LINK_QUEUE_GROWTH: Final = "link_queue_growth"
_PROCESSOR_QUEUE_GROWTH: Final = "processor_queue_growth"
_LIMITS: Final[Mapping[str, str]] = {
    _OVERLOAD: "packet rate",
    _PROCESSOR_QUEUE_GROWTH: "packet rate",
    _LINK_QUEUE_GROWTH: "channel",
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


# --- what a run shows ---------------------------------------------------------------------------


def trial_of(outcome: Outcome, rate_bps: int, resolution: float) -> Trial:
    """Return what a run at a rate shows."""
    plan = outcome.job.plan.data
    losses = _losses(outcome)
    flows = [flow for flow in _delays(outcome) if flow is not None]
    slack_ns = _variation_ns(plan)
    floor_ns = max((interval_ns for interval_ns, _, _ in flows), default=0.0)
    delays_known = len(flows) == sum(_is_constant(flow) for flow in plan["flows"])
    proven = delays_known and _delay_is_constant(plan)
    grows = False
    for _, sent_ns, growth_ns in flows:
        allowed_ns = resolution * sent_ns
        proven = proven and growth_ns + slack_ns <= allowed_ns
        grows = grows or growth_ns - slack_ns > max(allowed_ns, floor_ns)
    if not losses and grows and _is_steady(plan):
        losses = (_bottleneck(outcome),)
    return Trial(
        rate_bps=rate_bps,
        losses=losses,
        delay_growth_ns=round(max((growth_ns for _, _, growth_ns in flows), default=0)),
        proven=proven and not losses,
    )


def _is_constant(flow: Mapping[str, Any]) -> bool:
    return bool(flow["workload"]["kind"] == "constant_rate")


def _delay_is_constant(plan: Mapping[str, Any]) -> bool:
    return all(each["delay_ns"]["kind"] == "constant" for each in plan["directions"])


def _is_steady(plan: Mapping[str, Any]) -> bool:
    """Return whether a delay that grows means that a rate is too high."""
    return (
        all(_is_constant(flow) for flow in plan["flows"])
        and _delay_is_constant(plan)
        and all(each["rate_bps"]["kind"] == "constant" for each in plan["directions"])
    )


def _variation_ns(plan: Mapping[str, Any]) -> int:
    """Return how long aggregators and hosts may hold one packet, and not another."""
    functions = (each for gateway in plan["gateways"] for each in gateway["functions"])
    hold_ns = max((each.get("hold_time_ns", 0) for each in functions), default=0)
    jitter_ns = max(each["jitter_ns"] for each in [*plan["hosts"], *plan["directions"]])
    return int(hold_ns + jitter_ns)


def _delays(outcome: Outcome) -> Iterator[tuple[float, float, float] | None]:
    """Yield, for each flow at a constant rate, its interval, the time sent and the delay's growth.

    Up to the last datagram received: the n-th was sent n - 1 intervals after the first, and none
    was lost or overtaken. None if less than two were received.
    """
    first_ns = outcome.column("flows", "first_delivery_ns")
    last_ns = outcome.column("flows", "last_delivery_ns")
    received = outcome.column("flows", "received_segments")
    for number, flow in enumerate(outcome.job.plan.data["flows"]):
        if not _is_constant(flow):
            continue
        if received[number] <= 1:
            yield None
            continue
        workload = flow["workload"]
        interval_ns = _BITS_PER_BYTE * workload["payload_bytes"] * NS_PER_S / workload["rate_bps"]
        sent_ns = (int(received[number]) - 1) * interval_ns
        yield interval_ns, sent_ns, float(last_ns[number] - first_ns[number]) - sent_ns


def _bottleneck(outcome: Outcome) -> Loss:
    """Return the place that was busy for the longest: its queue grew, without a loss."""
    busy = [
        Loss(place=place, cause=cause, packets=0)
        for places, cause in (
            (outcome.raw["names"]["directions"], _LINK_QUEUE_GROWTH),
            (_processor_places(outcome), _PROCESSOR_QUEUE_GROWTH),
        )
        for place in places
    ]
    busy_ns = [*outcome.column("directions", "busy_ns"), *outcome.column("processors", "busy_ns")]
    return busy[int(np.argmax(busy_ns))]


def _processor_places(outcome: Outcome) -> list[str]:
    gateways = outcome.job.plan.data["gateways"]
    numbers = outcome.column("processors", "processor")
    return [f"{gateways[number]['name']}-processor" for number in numbers]


def _losses(outcome: Outcome) -> tuple[Loss, ...]:
    directions = outcome.raw["names"]["directions"]
    found = [
        Loss(place=directions[row], cause=cause, packets=int(dropped[row]))
        for cause in DROP_CAUSES
        for dropped in [outcome.column("directions", f"dropped_{cause}_packets")]
        for row in np.flatnonzero(dropped)
    ]
    places = _processor_places(outcome)
    overload = outcome.column("processors", "dropped_lan_packets") + outcome.column(
        "processors", "dropped_link_packets"
    )
    found += [
        Loss(place=places[row], cause=_OVERLOAD, packets=int(overload[row]))
        for row in np.flatnonzero(overload)
    ]
    return tuple(sorted(found, key=lambda loss: -loss.packets))
