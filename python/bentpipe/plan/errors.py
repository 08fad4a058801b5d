"""The errors of a scenario whose parts do not fit together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from bentpipe.scenario.document import FieldPath

P = ParamSpec("P")
T = TypeVar("T")


@dataclass
class PlanningError(Exception):
    """The parts of a scenario do not fit together; ``path`` is the field to change."""

    path: FieldPath
    message: str


class PlanningErrors:
    """Collects the errors of parts that are resolved independently of each other."""

    def __init__(self) -> None:
        self.found: list[PlanningError] = []

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """Return the result of a function; if it raises a `PlanningError`, keep that."""
        try:
            return function(*args, **kwargs)
        except PlanningError as error:
            if error not in self.found:
                self.found.append(error)
            return None
