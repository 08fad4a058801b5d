"""Thresholds of a run: ``flows.goodput_bps.p5 >= 2 Mbit/s``."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final

from pydantic import AfterValidator, WithJsonSchema

from bentpipe.errors import UnitError, UsageError
from bentpipe.quantities import quantity
from bentpipe.scenario.document import Document, SourceLocation
from bentpipe.scenario.metric_ref import MetricRef, read_metric
from bentpipe.scenario.record import refusal
from bentpipe.text import shown

OPERATORS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    ">": operator.gt,
    "<": operator.lt,
}
_EXAMPLE: Final = "flows.goodput_bps.p5 >= 2 Mbit/s"
_THRESHOLD: Final = re.compile(
    r"\s*(?P<metric>[^<>=!]+?)\s*(?P<operator>>=|<=|==|>|<)\s*(?P<limit>[^<>=!]+?)\s*", re.ASCII
)


@dataclass(frozen=True)
class Threshold:
    """A threshold: a metric, an operator, and the limit in the base unit of the metric."""

    text: str
    metric: MetricRef
    operator: str
    limit: float

    def holds(self, value: float | None) -> bool:
        """Return whether a value meets the threshold; a missing one does not."""
        return value is not None and OPERATORS[self.operator](value, self.limit)


def read_threshold(text: str) -> Threshold:
    """Read a threshold.

    Raises:
        UsageError: it is none: no such metric, operator or unit.
    """
    match = _THRESHOLD.fullmatch(text)
    if match is None:
        raise UsageError(
            f'read {shown(text)}; expected METRIC, >=, <=, >, < or ==, and a value: "{_EXAMPLE}"'
        )
    metric = read_metric(match["metric"])
    try:
        limit = quantity(metric.unit_column).read(match["limit"])
    except UnitError as error:
        raise UnitError(f"{metric}: {error}") from None
    return Threshold(text, metric, match["operator"], float(limit))


def with_thresholds(document: Document, thresholds: Sequence[str]) -> Document:
    """Return a document with thresholds of the command line after its own."""
    own = document.data.get("thresholds")
    if not thresholds or not isinstance(own, list | None):
        return document
    locations = dict(document.locations)
    for i, text in enumerate(thresholds, start=len(own or ())):
        locations["thresholds", i] = SourceLocation(f"--threshold {shown(text)}")
    data = {**document.data, "thresholds": [*(own or ()), *thresholds]}
    return replace(document, data=data, locations=locations)


def _check(text: str) -> str:
    try:
        read_threshold(text)
    except UsageError as error:
        raise refusal(str(error)) from None
    return text


# A record keeps the text.
ThresholdText = Annotated[
    str,
    AfterValidator(_check),
    WithJsonSchema({"type": "string", "examples": [_EXAMPLE]}),
]
