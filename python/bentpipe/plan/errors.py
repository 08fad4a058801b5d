"""The error of a scenario whose parts do not fit together."""

from __future__ import annotations

from dataclasses import dataclass

from bentpipe.scenario.document import FieldPath


@dataclass
class PlanningError(Exception):
    """The parts of a scenario do not fit together; ``path`` is the field to change."""

    path: FieldPath
    message: str
