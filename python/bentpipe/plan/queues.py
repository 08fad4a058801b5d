"""The queue of a direction resolved into the plan."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor
from typing import Any, Final

from bentpipe.plan.lower import Part, PlanningError, lower
from bentpipe.scenario.document import FieldPath
from bentpipe.scenario.queues import QUEUES, PerFlowDropTail, Queue, Red
from bentpipe.units import (
    BDP_SCALE,
    LARGEST,
    NS_PER_S,
    LimitUnit,
    format_duration,
    limit_of,
)

_LARGEST_IP_PACKET: Final = 65_535
_LIMIT_NAMES: Final = {
    "bytes": "a size",
    "link_bytes": "cells, a share of the bdp",
    "packets": "packets",
    "time_ns": "a time",
    "unlimited": "unlimited",
}


@dataclass(frozen=True)
class Reference:
    """The sizes and rates that the queue limit of a direction depends on."""

    bdp_bytes: Fraction
    rate_bps: int
    ip_packet_bytes: int
    link_packet_bits: int


def queue_plan(queue: Queue, reference: Reference, path: FieldPath) -> Part:
    """Return the plan of a queue.

    Raises:
        PlanningError: a limit has a unit that the discipline does not support, or cannot hold a
            packet, or thresholds are wrong.
    """
    discipline = queue.named or "drop_tail"
    record = QUEUES[discipline]
    written = record.default_limit if queue.limit is None else queue.limit
    plan = lower(queue, path)
    plan["discipline"] = discipline
    plan["limit"] = _limit(written, discipline, record.limit_units, reference, (*path, "limit"))
    if isinstance(queue, PerFlowDropTail):
        field, units = (*path, "per_flow_limit"), queue.share_units
        share = _limit(queue.per_flow_limit, "a flow's share", units, reference, field)
        plan["per_flow_limit"] = share
    elif isinstance(queue, Red):
        _resolve_red(queue, plan, path)
    return plan


def _resolve_red(queue: Red, plan: Part, path: FieldPath) -> None:
    low = limit_of(queue.min_threshold)
    value = low.value or 0
    # Floyd, 1997: max_th at three times min_th.
    high = 3 * value
    if queue.max_threshold is not None:
        max_threshold = limit_of(queue.max_threshold)
        read, least = f'read "{queue.max_threshold}"', f'min_threshold, "{queue.min_threshold}"'
        if max_threshold.unit != low.unit:
            message = f"{read}; must be in the unit of {least}"
            raise PlanningError((*path, "max_threshold"), message)
        high = max_threshold.value or 0
        if high <= value:
            raise PlanningError((*path, "max_threshold"), f"{read}; must be above {least}")
    plan.rename("mean_packet_size_bytes", "mean_packet_bytes")
    if plan["mean_packet_bytes"] > _LARGEST_IP_PACKET:
        raise PlanningError(
            (*path, "mean_packet_size"),
            f'read "{queue.mean_packet_size}"; must be at most {_LARGEST_IP_PACKET} B, the largest '
            "IP packet",
        )
    plan |= {"unit": low.unit, "min_threshold": value, "max_threshold": high}


def _limit(
    written: str,
    what: str,
    units: tuple[LimitUnit, ...],
    reference: Reference,
    path: FieldPath,
) -> dict[str, Any]:
    limit = limit_of(written)
    unit, value = limit.unit, limit.value
    read = f'read "{written}"'
    if unit == "bdp_millionths":
        unit, value = "link_bytes", floor(reference.bdp_bytes * (value or 0) / BDP_SCALE)
        read = f"{read} ({value} link bytes here)"
    if unit not in units:
        names = ", ".join(_LIMIT_NAMES[each] for each in units)
        raise PlanningError(path, f"{read}; a limit of {what} is one of: {names}")
    if value is None:
        return {"unit": unit}
    # The transmission time of a packet includes its framing.
    sending_ns = ceil(Fraction(reference.link_packet_bits * NS_PER_S, reference.rate_bps))
    link_bytes = ceil(Fraction(reference.link_packet_bits, 8))
    smallest, packet = {
        "bytes": (reference.ip_packet_bytes, f"{reference.ip_packet_bytes} IP bytes"),
        "link_bytes": (link_bytes, f"{link_bytes} link bytes"),
        "packets": (1, "1 packet"),
        "time_ns": (sending_ns, f"{format_duration(sending_ns)} to send"),
    }[unit]
    if value < smallest:
        raise PlanningError(path, f"{read}; smaller than one packet, {packet}")
    if value > LARGEST:
        raise PlanningError(path, f"{read}; beyond 64 bits")
    return {"unit": unit, "value": value}
