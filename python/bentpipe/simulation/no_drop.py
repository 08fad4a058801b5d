"""What a run shows of losses, for searches for the largest rate without loss.

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
from bentpipe.units import BITS_PER_BYTE, NS_PER_S

_OVERLOAD: Final = "processor_overload"
# Nothing was lost yet.
_LINK_QUEUE_GROWTH: Final = "link_queue_growth"
_PROCESSOR_QUEUE_GROWTH: Final = "processor_queue_growth"
_LIMITS: Final[Mapping[str, str]] = {
    _OVERLOAD: "packet rate",
    _PROCESSOR_QUEUE_GROWTH: "packet rate",
    _LINK_QUEUE_GROWTH: "channel",
    "queue_full": "channel",
    "bit_error": "random loss",
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
class LossCheck:
    """The losses of a run, the largest first.

    ``delay_growth_ns`` is by how much more the last datagram was delayed than the first, the most
    of all flows. ``proven``: the run passed, and was long enough to show that the rate can last.
    """

    losses: tuple[Loss, ...]
    delay_growth_ns: int
    proven: bool

    @property
    def passed(self) -> bool:
        """Whether nothing was lost, or would be if the rate lasted."""
        return not self.losses

    @property
    def margin(self) -> tuple[bool, int, bool, int]:
        """Whether it passed, and how clearly: the worst check of several runs has the least."""
        return self.passed, -self._lost_packets, self.proven, -self.delay_growth_ns

    @property
    def _lost_packets(self) -> int:
        return sum(loss.packets for loss in self.losses)

    def to_json(self) -> dict[str, Any]:
        """Return the check as plain data: its largest loss, and the packets lost by all flows."""
        loss = self.losses[0] if self.losses else None
        return {
            "limit": loss and loss.limit,
            "place": loss and loss.place,
            "cause": loss and loss.cause,
            "lost_packets": self._lost_packets,
            "delay_growth_ns": self.delay_growth_ns,
            "proven": self.proven,
            "passed": self.passed,
        }


def check_losses(outcome: Outcome, resolution: float) -> LossCheck:
    """Return what a run shows, for a search with this resolution."""
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
    return LossCheck(
        losses=losses,
        delay_growth_ns=round(max((growth_ns for _, _, growth_ns in flows), default=0)),
        proven=proven and not losses,
    )


def _is_constant(flow: Mapping[str, Any]) -> bool:
    return bool(flow["workload"]["kind"] == "constant_rate")


def _delay_is_constant(plan: Mapping[str, Any]) -> bool:
    return all(direction["delay_ns"]["kind"] == "constant" for direction in plan["directions"])


def _is_steady(plan: Mapping[str, Any]) -> bool:
    """Return whether a delay that grows means that a rate is too high."""
    return (
        all(_is_constant(flow) for flow in plan["flows"])
        and _delay_is_constant(plan)
        and all(direction["rate_bps"]["kind"] == "constant" for direction in plan["directions"])
    )


def _variation_ns(plan: Mapping[str, Any]) -> int:
    """Return how much longer aggregators and jitter may delay one packet than another."""
    functions = (function for gateway in plan["gateways"] for function in gateway["functions"])
    hold_ns = max((function.get("hold_time_ns", 0) for function in functions), default=0)
    jitter_ns = max(part["jitter_ns"] for part in [*plan["hosts"], *plan["directions"]])
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
        interval_ns = BITS_PER_BYTE * workload["payload_bytes"] * NS_PER_S / workload["rate_bps"]
        sent_ns = (int(received[number]) - 1) * interval_ns
        yield interval_ns, sent_ns, float(last_ns[number] - first_ns[number]) - sent_ns


def _bottleneck(outcome: Outcome) -> Loss:
    """Return the place that was busy for the longest: its queue grew, without a loss."""
    places = [(name, _LINK_QUEUE_GROWTH) for name in outcome.raw["names"]["directions"]]
    places += [(name, _PROCESSOR_QUEUE_GROWTH) for name in _processor_places(outcome)]
    busy_ns = [*outcome.column("directions", "busy_ns"), *outcome.column("processors", "busy_ns")]
    place, cause = places[int(np.argmax(busy_ns))]
    return Loss(place=place, cause=cause, packets=0)


def _processor_places(outcome: Outcome) -> list[str]:
    gateways = outcome.job.plan.data["gateways"]
    numbers = outcome.column("processors", "processor")
    return [f"{gateways[number]['name']}-processor" for number in numbers]


def _losses(outcome: Outcome) -> tuple[Loss, ...]:
    directions, processors = outcome.raw["names"]["directions"], _processor_places(outcome)
    drops = [
        (directions, cause, outcome.column("directions", f"dropped_{cause}_packets"))
        for cause in DROP_CAUSES
    ]
    lan, link = (
        outcome.column("processors", f"dropped_{side}_packets") for side in ("lan", "link")
    )
    losses = [
        Loss(place=places[row], cause=cause, packets=int(packets[row]))
        for places, cause, packets in [*drops, (processors, _OVERLOAD, lan + link)]
        for row in np.flatnonzero(packets)
    ]
    return tuple(sorted(losses, key=lambda loss: -loss.packets))
