"""Steps of a link in real time: the link's clock begins with the set-up, the run's after it."""

from __future__ import annotations

from typing import Any, Final

# What making a lab takes, and starting the programs of a flow, several times over.
_LAB_NS: Final = 1_500_000_000
_FLOW_NS: Final = 250_000_000
_SERIES: Final = ("rate_bps", "delay_ns")


def lead_of(plan: dict[str, Any]) -> int:
    """Return how long the link runs before the run starts, in ns; 0 if it does not matter.

    It matters where the link changes at moments of the run, which are those of its clock.
    """
    if all(series["kind"] == "constant" for series in _series(plan)):
        return 0
    return _LAB_NS + _FLOW_NS * len(plan["flows"])


def later(plan: dict[str, Any], lead_ns: int) -> dict[str, Any]:
    """Return the plan with the steps of its link so much later: what holds first holds longer."""
    link = plan["link"]
    return {
        **plan,
        "link": {
            **link,
            "forward": _direction(link["forward"], lead_ns),
            "returns": [_direction(direction, lead_ns) for direction in link["returns"]],
        },
    }


def _direction(direction: dict[str, Any], lead_ns: int) -> dict[str, Any]:
    return {**direction, **{name: _later(direction[name], lead_ns) for name in _SERIES}}


def _later(series: dict[str, Any], lead_ns: int) -> dict[str, Any]:
    if series["kind"] == "constant":
        return series
    (at_ns, first), *rest = series["steps"]
    steps = [[at_ns, first], *([at_ns + lead_ns, value] for at_ns, value in rest)]
    return {**series, "steps": steps}


def _series(plan: dict[str, Any]) -> list[dict[str, Any]]:
    link = plan["link"]
    return [
        direction[name] for direction in (link["forward"], *link["returns"]) for name in _SERIES
    ]
