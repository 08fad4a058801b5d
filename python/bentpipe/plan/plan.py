"""A scenario resolved into the plan: integers in ns, bytes and bit/s, with every field present.

`bentpipe.scenario` checks each value alone. This package checks the parts together: a rate that
neither the scenario nor its preset gives, a queue smaller than the largest packet, a flow that
starts after the end of the run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Final

from bentpipe import _core
from bentpipe.errors import ScenarioError, ScenarioWarning
from bentpipe.plan.errors import PlanningError, PlanningErrors
from bentpipe.plan.gateways import gateway_plans
from bentpipe.plan.hosts import HostPlans
from bentpipe.plan.link import directions_plan
from bentpipe.plan.lower import Part, origin, part
from bentpipe.plan.thresholds import check_threshold_names
from bentpipe.plan.traffic import flow_plans, flows_of_entry
from bentpipe.plan.warnings import warnings_of
from bentpipe.scenario.schema import Scenario
from bentpipe.text import shown
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

        Raises:
            ScenarioError: a value is wrong, or the parts do not fit together (a queue smaller than
                a packet, for example); it names file, line and field, what was read and what is
                allowed.
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


def _sample_interval(scenario: Scenario, stop_ns: int, flows: int) -> int | None:
    if scenario.sample_interval is None:
        return None
    interval_ns = value_of(scenario.sample_interval)
    directions = 1 + scenario.link.terminals
    rows = (stop_ns // interval_ns + 1) * (flows + directions)
    if rows > _MAX_SAMPLE_ROWS:
        raise PlanningError(
            ("sample_interval",),
            f'read "{scenario.sample_interval}"; over {scenario.duration}, {flows} flows and '
            f"{directions} directions make {rows} rows of samples; at most {_MAX_SAMPLE_ROWS} "
            "are allowed",
        )
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
        except _core.PlanError as error:
            refused = list(error.path)
            if refused[:1] != ["flows"] or len(refused) == 1:
                errors.found.append(error_of(plan, refused, error.reason))
                return
            number = numbers[int(refused[1])]
            refused[1] = str(number)
            errors.found.append(error_of(plan, refused, error.reason))
            of_entry = plan.entry_of_flow
            numbers = [each for each in numbers if of_entry[each] != of_entry[number]]
            flows = [plan.data["flows"][each] for each in numbers]
            text = json.dumps({**plan.data, "flows": flows})
        else:
            return


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
