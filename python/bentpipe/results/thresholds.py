"""The thresholds of a run: the value of each, whether it is met, and by how much it is missed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any

from bentpipe.quantities import quantity
from bentpipe.results.metric_values import metric_value
from bentpipe.results.views import Cell, Column, View
from bentpipe.scenario.thresholds import Threshold, read_threshold

if TYPE_CHECKING:
    from bentpipe.results.result import Result

_COLUMNS = (
    Column("threshold", "threshold"),
    Column("limit", "limit"),
    Column("value", "value"),
    Column("missed_by", "missed by"),
    Column("passed", "result", text=lambda passed: "passed" if passed else "FAILED"),
)


@dataclass(frozen=True)
class ThresholdCheck:
    """A threshold and its value in a run, in the base unit; None if the run has no such value.

    The completion time of a transfer that did not end is infinite.
    """

    threshold: Threshold
    value: float | None

    @property
    def passed(self) -> bool:
        """Whether the value meets the threshold; a missing value does not."""
        return self.threshold.holds(self.value)

    @property
    def margin(self) -> tuple[bool, float]:
        """Whether the value meets the threshold, and by how much: the worst check has the least."""
        if self.value is None:
            return False, float("-inf")
        distance = self.value - self.threshold.limit
        if self.threshold.operator in {"<", "<="}:
            distance = -distance
        elif self.threshold.operator == "==":
            distance = -abs(distance)
        return self.passed, distance

    @property
    def value_text(self) -> str:
        """The value with its unit."""
        if self.value is None:
            return "no value"
        return self._text(self.value) if isfinite(self.value) else "did not end"

    @property
    def missed_by(self) -> str:
        """How far the value is from the limit, with the share of the limit; empty if it passed."""
        limit = self.threshold.limit
        if self.passed or self.value in {None, limit} or not isfinite(self.value or 0):
            return ""
        distance = abs((self.value or 0) - limit)
        share = f" ({100 * distance / abs(limit):.3g} %)" if limit else ""
        return f"{self._text(distance)}{share}"

    @property
    def message(self) -> str:
        """The threshold and its value, in a line."""
        missed = f", missed by {self.missed_by}" if self.missed_by else ""
        return f"{self.threshold.text}: {self.value_text}{missed}"

    def cells(self) -> list[Any]:
        """Return the row of a table."""
        return [
            f"{self.threshold.metric.title} {self.threshold.operator}",
            Cell(self.threshold.limit, self._text(self.threshold.limit)),
            Cell(self.value, self.value_text),
            Cell(self.missed_by, self.missed_by or "-"),
            self.passed,
        ]

    def to_json(self) -> dict[str, Any]:
        """Return the check as plain data; a value that is not finite is None."""
        value = self.value if self.value is not None and isfinite(self.value) else None
        return {
            "threshold": self.threshold.text,
            "metric": str(self.threshold.metric),
            "operator": self.threshold.operator,
            "limit": self.threshold.limit,
            "value": value,
            "passed": self.passed,
            "message": self.message,
        }

    def _text(self, value: float) -> str:
        return quantity(self.threshold.metric.unit_column).text(value)


def check_thresholds(result: Result, thresholds: Sequence[str] = ()) -> list[ThresholdCheck]:
    """Return the thresholds of the result's scenario, and further ones, with their values.

    Raises:
        UsageError: a threshold names what the result does not have.
    """
    texts = [*result.manifest["scenario"].get("thresholds", ()), *thresholds]
    read = [read_threshold(text) for text in texts]
    return [ThresholdCheck(each, metric_value(result, each.metric)) for each in read]


def threshold_view(result: Result) -> View | None:
    """Return the thresholds of a run as a table; None without some, or if it did not complete."""
    checks = check_thresholds(result) if result.state == "completed" else []
    return View("Thresholds", _COLUMNS, [check.cells() for check in checks]) if checks else None
