"""Links without traffic, resolved: presets by name, and the links of scenario files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bentpipe.errors import UsageError
from bentpipe.plan.plan import Plan
from bentpipe.scenario.document import Document, read_file
from bentpipe.scenario.presets import PRESETS
from bentpipe.scenario.schema import Scenario
from bentpipe.text import choice

# How long the events of a preset repeat in a lab; its values stay as they are from then on.
_EVENTS_LAST: Final = "1 h"


def resolved_plan(link: str | Mapping[str, Any], settings: Sequence[str] = ()) -> dict[str, Any]:
    """Resolve the plan of a link, as `link_plan` returns it.

    Raises:
        ScenarioError: naming the field, what was read and what is allowed.
        UsageError: it is neither a preset nor a file.
    """
    return Plan.resolve(Scenario.from_document(link_document(link), settings)).data


def resolved_plans() -> dict[str, dict[str, Any]]:
    """Resolve the plans of all presets, by name."""
    return {name: resolved_plan(name) for name in PRESETS}


def link_document(link: str | Mapping[str, Any]) -> Document:
    """Return a whole scenario with a link: a preset by name, or that of a scenario file or mapping.

    Raises:
        ScenarioError: the file cannot be read.
        UsageError: it is neither a preset nor a file.
    """
    if isinstance(link, Mapping):
        document = Document(data=dict(link), source="scenario")
    elif link in PRESETS:
        document = Document(data={"link": {"preset": link}}, source=link)
    elif Path(link).exists():
        document = read_file(Path(link))
    else:
        raise UsageError(f"link: there is no such file; {choice(link, tuple(PRESETS))}")
    # Programs make the traffic of a lab; these fields only complete the scenario.
    whole = {
        "traffic": [{"kind": "bulk", "direction": "forward", "size": "1 B"}],
        "duration": _EVENTS_LAST if _has_events(link) else "1 s",
    }
    document.data.update({key: value for key, value in whole.items() if key not in document.data})
    return document


def _has_events(link: str | Mapping[str, Any]) -> bool:
    """Return whether a preset has events that repeat."""
    preset = PRESETS[link].link if isinstance(link, str) and link in PRESETS else {}
    return any("outage" in direction for direction in preset.values())


if __name__ == "__main__":
    # A line a preset: steps would be thousands of lines.
    plans = [f"{json.dumps(name)}: {json.dumps(plan)}" for name, plan in resolved_plans().items()]
    print("{\n" + ",\n".join(plans) + "\n}")
