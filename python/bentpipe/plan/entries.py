"""Which flows of a plan belong to which entry of ``traffic``."""

from __future__ import annotations

from typing import Any

from bentpipe.plan.traffic import flows_of_entry
from bentpipe.scenario.schema import Scenario


def traffic_entries(scenario: Scenario) -> list[dict[str, Any]]:
    """Return the name (None if it has none) and the number of flows of each entry of ``traffic``.

    The flows of a plan are in the order of the entries.
    """
    terminals = scenario.link.terminals
    return [
        {"name": entry.name, "flows": flows_of_entry(entry, terminals)}
        for entry in scenario.traffic
    ]
