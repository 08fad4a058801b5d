"""The hosts on which the programs of a flow run, and the traffic class of its packets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from bentpipe.emulation.draws import Stream
from bentpipe.scenario.hosts import Side

# The largest precedence: the three highest bits of the traffic class (RFC 2474, section 4.2.2).
_PRECEDENCE_MAX: Final = 7
_PRECEDENCE_SHIFT: Final = 5
CLASSES_MAX: Final = 8


def hosts_of(plan: Mapping[str, Any], flow: Mapping[str, Any], seed: int) -> dict[Side, str]:
    """Return the hosts of the two ends of a flow of the plan.

    A random choice is the same as in a simulation with the same seed.
    """
    terminal: int = flow["terminal"]
    is_alone = len(plan["gateways"]) <= 1 + 1
    island = "island" if is_alone else f"island-{1 + terminal}"
    return {
        "world": _host(plan, flow, ("world", 0), seed) or "world",
        "island": _host(plan, flow, ("island", 1 + terminal), seed) or island,
    }


def _host(
    plan: Mapping[str, Any], flow: Mapping[str, Any], place: tuple[Side, int], seed: int
) -> str | None:
    side, gateway = place
    choice = flow[f"{side}_host"]
    if choice is None:
        return None
    if choice["kind"] == "named":
        name: str = plan["hosts"][choice["host"]]["name"]
        return name
    names = [host["name"] for host in plan["hosts"] if host["gateway"] == gateway]
    stream = Stream(seed, f"flow.{flow['name']}.{side}_host")
    chosen: str = names[stream.below(len(names))]
    return chosen


def start_of(flow: Mapping[str, Any], seed: int) -> int:
    """Return when a flow of the plan starts, in ns: as in a simulation with the same seed."""
    start_ns, range_ns = int(flow["start_ns"]), int(flow["start_jitter_ns"])
    return start_ns + (
        Stream(seed, f"flow.{flow['name']}.start").below(range_ns) if range_ns else 0
    )


def classes(plan: Mapping[str, Any]) -> int:
    """Return how many classes of packets the queues and functions of a plan distinguish."""
    of_queues: list[int] = [each["queue"].get("classes") or 1 for each in plan["directions"]]
    functions = [function for gateway in plan["gateways"] for function in gateway["functions"]]
    of_functions: list[int] = [1 + max(function.get("classes") or [0]) for function in functions]
    return max([1, *of_queues, *of_functions])


def traffic_class(plan: Mapping[str, Any], flow: Mapping[str, Any]) -> int:
    """Return the traffic class (DSCP, ECN) that marks the class of the flow's packets in a lab."""
    count, priority = classes(plan), int(flow["priority"])
    if count == 1:
        return 0
    last = min(count, CLASSES_MAX) - 1
    precedence = (_PRECEDENCE_MAX * (last - min(priority, last)) + last // 2) // last
    return precedence << _PRECEDENCE_SHIFT
