"""The rate and the delay that each direction of a running link has now."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from bentpipe.lab.changes import LinkChange

# The ends of outages in ns, by hop and by `forward` or `return`.
OutageEnds = Mapping[tuple[int, str], int]


def link_state(
    plans: Sequence[Mapping[str, Any]], outage_ends: OutageEnds, names: Collection[str], at_ns: int
) -> dict[str, dict[str, Any]]:
    """Return rate, delay and whether there is an outage, of each direction by name.

    ``plans`` are those of the hops, as changed; ``names`` are the directions of all hops. The rate
    is that after an outage that was set, and 0 in one of the plan.
    """
    found = []
    for hop, plan in enumerate(plans):
        for number, direction in enumerate(plan["directions"]):
            rate_bps = _at(direction["rate_bps"], at_ns)
            end_ns = outage_ends.get((hop, "return" if number else "forward"), 0)
            found.append(
                {
                    "rate_bps": rate_bps,
                    "delay_ns": _at(direction["delay_ns"], at_ns),
                    "outage": rate_bps == 0 or at_ns < end_ns,
                }
            )
    # A lab that has just started has not reported its directions yet.
    return dict(zip(names, found, strict=True)) if names else {}


def with_outages(
    outage_ends: OutageEnds, changes: Sequence[LinkChange], at_ns: int
) -> dict[tuple[int, str], int]:
    """Return the ends of outages after changes at ``at_ns``."""
    return {
        **outage_ends,
        **{
            (change["hop"], change["direction"]): at_ns + change["outage_ns"]
            for change in changes
            if change["outage_ns"] is not None
        },
    }


def _at(series: Mapping[str, Any], at_ns: int) -> int:
    """Return the value of a series at a time."""
    if series["kind"] == "constant":
        return int(series["value"])
    begun = [value for start_ns, value in series["steps"] if start_ns <= at_ns]
    return int(begun[-1] if begun else series["steps"][0][1])
