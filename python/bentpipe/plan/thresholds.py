"""Thresholds checked against the flows, directions and processors of a plan, before the run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from bentpipe.metrics import KINDS_OF_ROWS
from bentpipe.plan.errors import PlanningError, PlanningErrors
from bentpipe.scenario.document import FieldPath
from bentpipe.scenario.metric_ref import MetricRef
from bentpipe.scenario.thresholds import read_threshold
from bentpipe.text import choice, nearest

if TYPE_CHECKING:
    from bentpipe.plan.plan import Plan

_NAMES_MAX: Final = 12


# A row that a table of the result will have: its names, and its heading if it has one.
_Row = tuple[tuple[str, ...], str | None]


def check_threshold_names(plan: Plan, errors: PlanningErrors) -> None:
    """Check that each threshold names a row of the result, and a single one without a statistic."""
    for number, text in enumerate(plan.scenario.thresholds):
        metric = read_threshold(text).metric
        errors.call(_check, ("thresholds", number), metric, list(_rows(metric, plan)))


def _check(path: FieldPath, metric: MetricRef, rows: Sequence[_Row]) -> None:
    if not rows:
        raise PlanningError(path, f"{metric}: the scenario has no {metric.table}")
    headed = [names for names, heading in rows if metric.heading in {None, heading}]
    if not headed:
        raise PlanningError(path, f"{metric}: no {metric.table} are {metric.heading}")
    named = [names for names in headed if metric.name is None or metric.name in names]
    if not named:
        names = tuple(dict.fromkeys(name for row in headed for name in row))
        # The nearest of many names says more than all of them.
        near = nearest(metric.name or "", names) if len(names) > _NAMES_MAX else None
        known = (near,) if near else names[:_NAMES_MAX]
        raise PlanningError(path, f"{metric}: name: {choice(metric.name, known)}")
    if metric.statistic is None and (len(named) > 1 or metric.table in KINDS_OF_ROWS):
        number = "many" if metric.table in KINDS_OF_ROWS else str(len(named))
        raise PlanningError(
            path,
            f"{metric}: names {number} {metric.table}; add a statistic, such as {metric}.mean or "
            f"{metric}.p95",
        )


def _rows(metric: MetricRef, plan: Plan) -> Iterator[_Row]:
    """Yield the rows of the table of a metric, as the result will have them."""
    scenario, data = plan.scenario, plan.data
    if metric.table == "flows" or metric.table in KINDS_OF_ROWS:
        for number, flow in zip(plan.entry_of_flow, data["flows"], strict=True):
            entry = scenario.traffic[number].name
            kinds = KINDS_OF_ROWS.get(metric.table)
            if kinds is None or flow["workload"]["kind"] in kinds:
                names = (flow["name"],) if entry is None else (entry, flow["name"])
                yield names, flow["direction"]
    elif metric.table == "directions":
        yield ("forward",), "forward"
        for direction in data["directions"][1:]:
            yield (direction["name"],), "return"
    else:
        for gateway in data["gateways"]:
            if any(function["kind"] == "processor" for function in gateway["functions"]):
                yield (f"{gateway['name']}-processor",), None
