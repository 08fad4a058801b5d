"""The plans of links: those of presets are stored, so that a lab starts without resolving.

Resolving a scenario loads pydantic and every class of a scenario, which takes longer than
everything else that sets a lab up. `preset_plans.json` holds the plans of presets without
settings; ``python -m bentpipe.plan.links`` prints its content.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bentpipe import plan

_FILE: Final = Path(__file__).with_name("preset_plans.json")


def link_plan(link: str | Mapping[str, Any], settings: Sequence[str] = ()) -> dict[str, Any]:
    """Return the plan of a link alone: a preset by name, or that of a scenario file or mapping.

    Raises:
        ScenarioError: naming the field, what was read and what is allowed.
        UsageError: it is neither a preset nor a file.
    """
    stored = stored_plan(link) if isinstance(link, str) and not settings else None
    return plan.resolved_plan(link, settings) if stored is None else stored


def stored_plan(preset: str) -> dict[str, Any] | None:
    """Return the plan of a preset, or None if there is no such preset."""
    return _stored_plans().get(preset)


def preset_names() -> tuple[str, ...]:
    """Return the names of the presets."""
    return tuple(_stored_plans())


@functools.cache
def _stored_plans() -> dict[str, dict[str, Any]]:
    plans: dict[str, dict[str, Any]] = json.loads(_FILE.read_text(encoding="utf-8"))
    return plans
