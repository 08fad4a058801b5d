"""Queues that questions propose: the limits of drop-tail ones, their knee, and settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Self

from bentpipe.answers.question import Assumption, peak_bps
from bentpipe.answers.runs import Values
from bentpipe.plan.link import codel_fields
from bentpipe.plan.plan import Plan
from bentpipe.scenario.link import DirectionName
from bentpipe.units import NS_PER_S, format_size

# A queue holds a few packets at least, or every burst overflows it.
MIN_LIMIT_BYTES: Final = 6_000


class Queues(NamedTuple):
    """The queues of a direction, of which ``wire`` is the plan, at a round-trip propagation."""

    direction: DirectionName
    wire: Mapping[str, Any]
    rtt_ns: int

    @property
    def rate_bps(self) -> int:
        """The largest rate of the direction."""
        return peak_bps(self.wire["rate_bps"])

    @property
    def bdp_bytes(self) -> float:
        """The bandwidth-delay product."""
        return self.rate_bps * self.rtt_ns / NS_PER_S / 8

    def limits(self, shares_bdp: Iterable[float], least_bytes: int) -> dict[str, int]:
        """Return shares of the bandwidth-delay product in bytes, by name."""
        limits = {max(round(share * self.bdp_bytes), least_bytes) for share in shares_bdp}
        return {f"{limit / self.bdp_bytes:.2g} BDP": limit for limit in sorted(limits)}

    def drop_tail(self, limit_bytes: int) -> str:
        """Return the setting of a drop-tail queue."""
        return f"link.{self.direction}.queue={{discipline: drop_tail, limit: {limit_bytes} B}}"

    def fq_codel(self) -> str:
        """Return the setting of a queue with FQ-CoDel."""
        return f"link.{self.direction}.queue={fq_codel(self.rtt_ns, self.wire)}"

    def limit_of(self, plan: Plan) -> dict[str, Any]:
        """Return the limit of the queue of a plan, in units; None without one, or of no size."""
        place = 0 if self.direction == "forward" else 1
        return self.in_units(self._limit_bytes(plan.data["directions"][place]["queue"]))

    @property
    def own_text(self) -> str:
        """The queue of ``wire``, for a sentence: its size, if it has one, or its discipline."""
        size = self._limit_bytes(self.wire["queue"])
        return str(self.wire["queue"]["discipline"]) if size is None else format_size(size)

    def _limit_bytes(self, queue: Mapping[str, Any]) -> int | None:
        unit, value = queue["limit"]["unit"], queue["limit"].get("value")
        if queue["discipline"] != "drop_tail" or unit in {"unlimited", "packets"}:
            return None
        return round(value * self.rate_bps / (8 * NS_PER_S)) if unit == "time_ns" else int(value)

    def in_units(self, limit_bytes: int | None) -> dict[str, Any]:
        """Return a limit in bytes, at the link rate, and in bandwidth-delay products."""
        if limit_bytes is None:
            return {"limit_bytes": None, "limit_ns": None, "bdp": None}
        limit_ns = limit_bytes * 8 * NS_PER_S / self.rate_bps
        bdp = float(f"{limit_bytes / self.bdp_bytes:.2g}")
        return {"limit_bytes": limit_bytes, "limit_ns": limit_ns, "bdp": bdp}

    def scales(self, unit_bytes: float) -> list[tuple[str, float]]:
        """Return further units of an axis in ``unit_bytes``: a label, and how much one of it is."""
        return [
            ("at the link rate [ms]", 8e3 * unit_bytes / self.rate_bps),
            ("in bandwidth-delay products", unit_bytes / self.bdp_bytes),
        ]


class Knee(NamedTuple):
    """The smallest of some queues with a share of the best goodput."""

    name: str
    """That of the mean goodputs."""
    of_runs: Sequence[str]
    """Those of single runs."""
    smaller: str | None
    """The next smaller queue, if there is one."""
    largest: str | None
    """The largest queue, if that is another one."""
    in_order: Sequence[str]
    """Those of single runs, the smallest first."""

    @classmethod
    def of(cls, goodputs: Mapping[str, Values], share: float) -> Self:
        """Return the knee; ``goodputs`` have a value a run for each queue, the smallest first."""
        names, runs = [*goodputs], zip(*goodputs.values(), strict=True)
        cases = [[float(of_queue.mean()) for of_queue in goodputs.values()], *runs]
        place, *places = (
            next(i for i, bps in enumerate(case) if bps >= share * max(case)) for case in cases
        )
        return cls(
            name=names[place],
            of_runs=[names[i] for i in places],
            smaller=names[place - 1] if place else None,
            largest=names[-1] if place < len(names) - 1 else None,
            in_order=[names[i] for i in sorted(places)],
        )


def fq_codel(rtt_ns: int, wire: Mapping[str, Any]) -> str:
    """Return the setting of a queue with FQ-CoDel for a round trip of ``rtt_ns`` of propagation.

    ``wire`` is the plan of its direction. The limit by default, a bandwidth-delay product, may be
    below a packet.
    """
    bdp_bytes = peak_bps(wire["rate_bps"]) * rtt_ns / NS_PER_S / 8
    limit = "" if bdp_bytes >= MIN_LIMIT_BYTES else f", limit: {MIN_LIMIT_BYTES} B"
    return f"{{discipline: fq_codel, {codel_fields(rtt_ns, wire)}{limit}}}"


def with_fq_codel(rtt_ns: int, wire: Mapping[str, Any]) -> Assumption:
    """Return the remedy of FQ-CoDel on the forward link, for this round trip of propagation."""
    setting = f"link.forward.queue={fq_codel(rtt_ns, wire)}"
    return Assumption("with fq_codel on the forward link", "its queue", (setting,), is_remedy=True)


def with_classes(direction: str, wire: Mapping[str, Any]) -> str:
    """Return the setting of a queue with two classes, each with the limit of a direction's queue.

    A queue with strict priority is left as it is. Classes that share the rate are replaced: the
    first of them is not served first.
    """
    queue = wire["queue"]
    if queue["discipline"] == "strict_priority":
        return f"link.{direction}.queue.discipline=strict_priority"
    value, unit = queue["limit"].get("value", 0), queue["limit"]["unit"]
    # A time is a limit of other queues alone.
    time_bytes = value * peak_bps(wire["rate_bps"]) // (8 * NS_PER_S)
    limits = {"unlimited": unit, "packets": f"{value} packets", "time_ns": f"{time_bytes} B"}
    limit = limits.get(unit, f"{value} B")
    return f"link.{direction}.queue={{discipline: strict_priority, classes: 2, limit: {limit}}}"
