"""A scenario resolved into the plan: integers in ns, bytes and bit/s, with every field present.

`bentpipe.scenario` checks each value alone. This package checks the parts together: a rate that
neither the scenario nor its preset gives, a queue smaller than the largest packet, a flow that
starts after the end of the run.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Final

from bentpipe import _core
from bentpipe.errors import ScenarioError, ScenarioWarning
from bentpipe.metrics import KINDS_OF_ROWS
from bentpipe.plan.gateways import gateway_plans
from bentpipe.plan.hosts import HostPlans
from bentpipe.plan.link import directions_plan
from bentpipe.plan.lower import Part, PlanningError, PlanningErrors, origin, part, wrong
from bentpipe.plan.traffic import flow_plans, flows_of_entry
from bentpipe.plan.warnings import warnings_of
from bentpipe.scenario.document import FieldPath
from bentpipe.scenario.metric_ref import MetricRef, read_threshold
from bentpipe.scenario.schema import Scenario
from bentpipe.text import choice, nearest, shown
from bentpipe.units import value_of

PLAN_FORMAT_VERSION: Final = 4

# 10 million rows of samples are about 500 MB.
_MAX_SAMPLE_ROWS: Final = 10_000_000


@dataclass(frozen=True, eq=False)
class Plan:
    """A scenario, and everything that the simulator reads of it.

    ``data`` is plain data, which `crates/sim/src/plan` describes field by field: times in
    nanoseconds, sizes in bytes and rates in bit/s. It is not changed; see `with_values`.
    """

    scenario: Scenario
    data: dict[str, Any]

    @classmethod
    def resolve(cls, source: Scenario | str | Path | Mapping[str, Any]) -> Plan:
        """Return the plan of a scenario: a `Scenario`, the path of a file, or plain data.

        Raises
        ------
        ScenarioError
            A value is wrong, or the parts do not fit together (a queue smaller than a packet, for
            example); it names file, line and field, what was read and what is allowed.

        Examples
        --------
        >>> plan = bentpipe.Plan.resolve("scenarios/geo-bulk.yaml")
        >>> plan.data["directions"][0]["delay_ns"]
        {'kind': 'constant', 'value': 271000000}
        """
        scenario = Scenario.of(source)
        errors = PlanningErrors()
        plan = cls(scenario, _data(scenario, errors))
        if not errors.found:
            _check_plan(plan, errors)
            check_threshold_names(plan, errors)
        if errors.found:
            document = scenario.document
            problems = [document.problem(error.path, error.message) for error in errors.found]
            raise ScenarioError(*sorted(problems, key=lambda problem: problem.line or 0))
        return plan

    @cached_property
    def text(self) -> str:
        """The data as JSON, which the simulator reads."""
        return json.dumps(self.data)

    @cached_property
    def warnings(self) -> tuple[ScenarioWarning, ...]:
        """The warnings about the scenario: of its settings, its traffic and its tunnels."""
        return (*self.scenario.document.warnings, *warnings_of(self))

    @cached_property
    def entry_of_flow(self) -> tuple[int, ...]:
        """The index of the entry of ``traffic`` that each flow came from."""
        return tuple(number for number, flows in enumerate(self.entry_flows) for _ in flows)

    @cached_property
    def entry_flows(self) -> tuple[range, ...]:
        """The flows of each entry of ``traffic``, as indices."""
        ends = accumulate((entry["flows"] for entry in self.entries), initial=0)
        return tuple(range(first, last) for first, last in pairwise(ends))

    @cached_property
    def entries(self) -> list[dict[str, Any]]:
        """The name (None if it has none) and the number of flows of each entry of ``traffic``.

        The flows of a plan are in the order of the entries.
        """
        terminals = self.scenario.link.terminals
        return [
            {"name": entry.name, "flows": flows_of_entry(entry, terminals)}
            for entry in self.scenario.traffic
        ]

    @property
    def is_random(self) -> bool:
        """Whether runs with other seeds may differ."""
        return _is_random(self.data)

    def with_values(self, **values: Any) -> Plan:
        """Return the plan with other values at the top of its data."""
        return replace(self, data={**self.data, **values})


def _data(scenario: Scenario, errors: PlanningErrors) -> Part:
    """Return the data of the plan of a scenario; it is incomplete if there are errors."""
    stop_ns = value_of(scenario.duration)
    hosts = HostPlans(scenario, errors)
    flows = flow_plans(scenario, hosts, stop_ns, errors)
    directions = directions_plan(scenario, flows, errors)
    data = {
        "format_version": PLAN_FORMAT_VERSION,
        "stop_ns": stop_ns,
        "sample_interval_ns": errors.call(_sample_interval, scenario, stop_ns, len(flows)),
        "packet_events": scenario.packet_events,
        "gateways": errors.call(gateway_plans, scenario, directions) or [],
        "directions": directions,
        "hosts": hosts.plans,
        "flows": flows,
    }
    return part((), data, stop_ns="duration", flows="traffic", directions="link")


# What draws random numbers, by the name of a value of a plan: RED drops at random, FQ-CoDel has a
# key for its hash, BBR begins at a random phase of its cycle, and channels draw sizes of downloads.
_RANDOM: Final[Mapping[str, Collection[str]]] = {
    "discipline": ("red", "fq_codel"),
    "congestion_control": ("bbr",),
    "kind": ("exponential", "pareto", "lognormal", "random", "channel"),
}


def _is_random(part: Any) -> bool:
    """Return whether a part of a plan draws random numbers."""
    if isinstance(part, Mapping):
        return any(
            (name == "channel" and value["kind"] != "clear")
            or (name.endswith("jitter_ns") and value)
            or (isinstance(value, str) and value in _RANDOM.get(name, ()))
            or _is_random(value)
            for name, value in part.items()
        )
    return isinstance(part, list) and any(map(_is_random, part))


def _sample_interval(scenario: Scenario, stop_ns: int, flows: int) -> int | None:
    if scenario.sample_interval is None:
        return None
    interval_ns = value_of(scenario.sample_interval)
    directions = 1 + scenario.link.terminals
    rows = (stop_ns // interval_ns + 1) * (flows + directions)
    if rows > _MAX_SAMPLE_ROWS:
        number = f"over {scenario.duration}, {flows} flows and {directions} directions make {rows}"
        limit = f"rows of samples; at most {_MAX_SAMPLE_ROWS} are allowed"
        raise wrong(("sample_interval",), scenario.sample_interval, f"{number} {limit}")
    return interval_ns


def _check_plan(plan: Plan, errors: PlanningErrors) -> None:
    """Let the simulator check a plan; errors are those of the scenario's fields.

    The simulator names the first wrong field. The flows of its entry are left out, and the others
    are checked again.
    """
    numbers = list(range(len(plan.data["flows"])))
    text = plan.text
    while numbers:
        try:
            _core.validate(text)
            return
        except _core.PlanError as error:
            refused = list(error.path)
            if refused[:1] != ["flows"] or len(refused) == 1:
                errors.found.append(error_of(plan, refused, error.reason))
                return
            number = numbers[int(refused[1])]
            refused[1] = str(number)
            errors.found.append(error_of(plan, refused, error.reason))
            of_entry = plan.entry_of_flow
            numbers = [other for other in numbers if of_entry[other] != of_entry[number]]
            flows = [plan.data["flows"][other] for other in numbers]
            text = json.dumps({**plan.data, "flows": flows})


def error_of(plan: Plan, refused: Sequence[str], reason: str) -> PlanningError:
    """Return the error of the field that a refused field of the plan was resolved from.

    ``refused`` is the path of that field in the plan, empty if the whole plan is refused.
    """
    if not refused:
        return PlanningError((), f"the plan is refused: {reason}")
    path = origin(plan.data, refused)
    value: Any = plan.scenario.to_dict()
    for field in path:
        try:
            value = value[field]
        except (KeyError, IndexError, TypeError):
            value = None
    read = f"read {shown(value)}; " if isinstance(value, str | int | float) else ""
    return PlanningError(path, f"{read}{reason} ({refused[-1]})")


# --- thresholds -----------------------------------------------------------------------------------


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
    elif metric.table == "classes":
        yield from _rows_of_classes(data["directions"])
    else:
        for gateway in data["gateways"]:
            if any(function["kind"] == "processor" for function in gateway["functions"]):
                yield (f"{gateway['name']}-processor",), None


def _rows_of_classes(directions: Sequence[Mapping[str, Any]]) -> Iterator[_Row]:
    for direction in directions:
        queue = direction["queue"]
        if queue["discipline"] == "shared_rate":
            for number in range(len(queue["classes"])):
                yield (f"{direction['name']}-{number}",), None
