"""Steps of a link in real time: the clock of the link starts before that of the run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

# Several times the set-up time of a lab, and of the programs of a flow.
_LAB_NS: Final = 1_500_000_000
_FLOW_NS: Final = 250_000_000
# The longest wait for the sessions of a tunnel.
_TUNNEL_NS: Final = 7_000_000_000
_BROWSER_NS: Final = 6_000_000_000
_SERIES: Final = ("rate_bps", "delay_ns")


def lead_time_ns(plan: Mapping[str, Any]) -> int:
    """Return how long the link runs before the run starts, in ns.

    It is 0 for a link that does not change.
    """
    channels = (direction["channel"]["kind"] for direction in plan["directions"])
    if "error_series" not in channels and all(
        series["kind"] == "constant" for series in _series(plan)
    ):
        return 0
    functions = (function for gateway in plan["gateways"] for function in gateway["functions"])
    has_tunnel = any(function["kind"] == "tunnel" for function in functions)
    return (
        _LAB_NS
        + _TUNNEL_NS * has_tunnel
        + sum(
            _BROWSER_NS if flow["workload"]["kind"] == "web_page" else _FLOW_NS
            for flow in plan["flows"]
        )
    )


def delayed_plan(plan: Mapping[str, Any], lead_ns: int) -> dict[str, Any]:
    """Return the plan with the steps of its link later by ``lead_ns``; the first lasts longer."""
    directions = [_direction(direction, lead_ns) for direction in plan["directions"]]
    return {**plan, "directions": directions}


def _direction(direction: Mapping[str, Any], lead_ns: int) -> dict[str, Any]:
    changed = {name: _delayed(direction[name], lead_ns) for name in _SERIES}
    channel = direction["channel"]
    if channel["kind"] == "error_series":
        first, *rest = channel["steps"]
        steps = [first, *({**step, "at_ns": step["at_ns"] + lead_ns} for step in rest)]
        changed["channel"] = {**channel, "steps": steps}
    return {**direction, **changed}


def _delayed(series: Mapping[str, Any], lead_ns: int) -> Mapping[str, Any]:
    if series["kind"] == "constant":
        return series
    (at_ns, first), *rest = series["steps"]
    steps = [[at_ns, first], *([at_ns + lead_ns, value] for at_ns, value in rest)]
    return {**series, "steps": steps}


def _series(plan: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [direction[name] for direction in plan["directions"] for name in _SERIES]
