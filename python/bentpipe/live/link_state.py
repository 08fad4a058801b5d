"""The present state of a running link: changes, rate and delay, and what it delivers.

The lab daemon uses this module: it has integers, no settings of a scenario.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, Literal, TypedDict

from bentpipe.plan.presets import series_values

# A rate over a shorter time has a large error: reports are up to 0.1 s old.
_MIN_INTERVAL_NS: Final = 50_000_000
# The ends of outages in ns, by hop and by `forward` or `return`.
OutageEnds = Mapping[tuple[int, str], int]
_SERIES: Final = ("rate_bps", "delay_ns")


class LinkChange(TypedDict):
    """New values of one direction of a running link; None leaves a value as it is.

    ``hop`` counts the links in series from 0. ``outage_ns`` is how long nothing is sent, 0 to end
    an outage. ``queue`` is as in a plan.
    """

    hop: int
    direction: Literal["forward", "return"]
    rate_bps: int | None
    delay_ns: int | None
    jitter_ns: int | None
    bit_error_rate: float | None
    loss_rate: float | None
    outage_ns: int | None
    queue: Mapping[str, Any] | None


def largest_plans(plans: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the plans of the hops with their largest rates and delays, to resolve settings.

    The return directions of all terminals are equal; the first one stands for them.
    """

    def largest(direction: Mapping[str, Any]) -> Mapping[str, Any]:
        values = {name: max(series_values(direction[name])) for name in _SERIES}
        return {"queue": direction["queue"], **{name: _constant(values[name]) for name in _SERIES}}

    return [
        {"directions": [largest(direction) for direction in plan["directions"][:2]]}
        for plan in plans
    ]


def with_changes(
    plans: Sequence[Mapping[str, Any]], changes: Sequence[LinkChange]
) -> list[Mapping[str, Any]]:
    """Return the plans of the hops with the queues, rates and delays of changes."""
    changed = [{**plan, "directions": [*plan["directions"]]} for plan in plans]
    for change in changes:
        directions = changed[change["hop"]]["directions"]
        values = {name: change.get(name) for name in _SERIES}
        new = {name: _constant(value) for name, value in values.items() if value is not None}
        queue = change.get("queue")
        new |= {} if queue is None else {"queue": queue}
        of_heading = slice(1) if change["direction"] == "forward" else slice(1, None)
        directions[of_heading] = [{**direction, **new} for direction in directions[of_heading]]
    return list(changed)


def _constant(value: Any) -> Any:
    return {"kind": "constant", "value": value}


def link_state(
    plans: Sequence[Mapping[str, Any]], outage_ends: OutageEnds, names: Collection[str], at_ns: int
) -> dict[str, dict[str, Any]]:
    """Return rate, delay and whether there is an outage, of each direction by name.

    ``plans`` are those of the hops, as changed; ``names`` are the directions of all hops. The rate
    is that after an outage that was set, and 0 in one of the plan.
    """
    states = []
    for hop, plan in enumerate(plans):
        for number, direction in enumerate(plan["directions"]):
            rate_bps = _at(direction["rate_bps"], at_ns)
            end_ns = outage_ends.get((hop, "return" if number else "forward"), 0)
            states.append(
                {
                    "rate_bps": rate_bps,
                    "delay_ns": _at(direction["delay_ns"], at_ns),
                    "outage": rate_bps == 0 or at_ns < end_ns,
                }
            )
    return dict(zip(names, states, strict=True))


def with_outages(
    outage_ends: OutageEnds, changes: Sequence[LinkChange], at_ns: int
) -> dict[tuple[int, str], int]:
    """Return the ends of outages after changes at ``at_ns``."""
    ends = {**outage_ends}
    for change in changes:
        if (outage_ns := change.get("outage_ns")) is not None:
            ends[change["hop"], change["direction"]] = at_ns + outage_ns
    return ends


def _at(series: Mapping[str, Any], at_ns: int) -> int:
    """Return the value of a series at a time."""
    if series["kind"] == "constant":
        return int(series["value"])
    begun = [value for start_ns, value in series["steps"] if start_ns <= at_ns]
    return int(begun[-1] if begun else series["steps"][0][1])


class DeliveredRates:
    """IP bit/s by direction since the report before; at first since the lab was set up."""

    def __init__(self) -> None:
        self._at_ns = 0
        self._delivered_bytes: dict[str, int] = {}
        self._rates_bps: dict[str, float] = {}

    def update(self, report: Mapping[str, Any]) -> Mapping[str, float]:
        """Return the rates at a report; those before it if it is not later by 50 ms."""
        directions = report["directions"]
        delivered_bytes = {name: d["delivered_bytes"] for name, d in directions.items()}
        elapsed_ns = report["at_ns"] - self._at_ns
        if elapsed_ns < _MIN_INTERVAL_NS:
            return dict.fromkeys(directions, 0.0) | self._rates_bps
        for name, count in delivered_bytes.items():
            bits = 8 * (count - self._delivered_bytes.get(name, 0))
            self._rates_bps[name] = bits / elapsed_ns * 1e9
        self._at_ns, self._delivered_bytes = report["at_ns"], delivered_bytes
        return self._rates_bps
