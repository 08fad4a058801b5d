"""The plans of the presets, resolved beforehand.

Resolving a scenario loads pydantic and every class of a scenario, which takes longer than all else
that sets a lab up. So `preset_plans.json` holds the plans of links that nothing is set on.
`python -m bentpipe.plan.presets` prints what belongs there.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

_FILE: Final = Path(__file__).with_name("preset_plans.json")


def stored_plan(preset: str) -> dict[str, Any] | None:
    """Return the plan of a preset, or None if there is no such preset."""
    plans: dict[str, dict[str, Any]] = json.loads(_FILE.read_text(encoding="utf-8"))
    return plans.get(preset)


def resolved_plans() -> dict[str, dict[str, Any]]:
    """Resolve the plans of all presets, by name."""
    from bentpipe.lab.lab import resolved_plan
    from bentpipe.scenario.presets import PRESETS

    return {name: resolved_plan(name) for name in PRESETS}


if __name__ == "__main__":
    print(json.dumps(resolved_plans(), indent=1))
