"""A scenario resolved into the plan: integers in ns, bytes and bit/s, with every field present.

`bentpipe.scenario` checks each value alone. This package checks the parts together: a rate that
neither the scenario nor its preset gives, a queue smaller than the largest packet, a flow that
starts after the end of the run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from bentpipe import _core
from bentpipe.errors import ScenarioError
from bentpipe.plan.errors import PlanningError
from bentpipe.plan.gateways import gateway_plans
from bentpipe.plan.hosts import HostPlans
from bentpipe.plan.link import directions_plan
from bentpipe.plan.refusals import in_scenario
from bentpipe.plan.traffic import flow_plans
from bentpipe.plan.types import Plan
from bentpipe.scenario.document import Document, read_file
from bentpipe.scenario.schema import Scenario, parse
from bentpipe.scenario.settings import with_settings
from bentpipe.units import value_of

PLAN_FORMAT_VERSION: Final = 4

# 10 million rows of samples are about 500 MB.
_MAX_SAMPLE_ROWS: Final = 10_000_000


def resolve(scenario: Scenario) -> Plan:
    """Return the plan of a scenario: ns, bytes and bit/s, with every field present.

    Raises:
        ScenarioError: the parts do not fit together (a queue smaller than a packet, for example).
    """
    return _resolve(scenario, Document(data={}, source="scenario"))


def load(path: str | Path, *, settings: tuple[str, ...] = ()) -> Scenario:
    """Read and check a scenario file, with ``path=value`` settings overriding its values.

    Raises:
        ScenarioError: naming file, line, field, what was read and what is allowed.
    """
    return checked(with_settings(read_file(Path(path)), list(settings)))


def from_dict(data: Mapping[str, Any]) -> Scenario:
    """Build and check a scenario from plain data, as YAML or JSON would give them.

    Raises:
        ScenarioError: naming the field, what was read and what is allowed.
    """
    return checked(Document(data=dict(data), source="scenario"))


def checked(document: Document) -> Scenario:
    """Return the scenario of a document, after a check of its schema and its plan.

    Raises:
        ScenarioError: naming file, line, field, what was read and what is allowed.
    """
    scenario = parse(document)
    _resolve(scenario, document)
    return scenario


def _resolve(scenario: Scenario, document: Document) -> Plan:
    """Return the plan of a scenario; errors point into ``document``."""
    try:
        return _plan(scenario)
    except PlanningError as error:
        raise ScenarioError(document.problem(error.path, error.message)) from None


def _plan(scenario: Scenario) -> Plan:
    stop_ns = value_of(scenario.duration)
    hosts = HostPlans(scenario)
    flows = flow_plans(scenario, hosts, stop_ns)
    plan: Plan = {
        "format_version": PLAN_FORMAT_VERSION,
        "stop_ns": stop_ns,
        "sample_interval_ns": _sample_interval(scenario, stop_ns, len(flows)),
        "packet_events": scenario.packet_events,
        "gateways": gateway_plans(scenario),
        "directions": directions_plan(scenario, flows),
        "hosts": hosts.plans,
        "flows": flows,
    }
    try:
        _core.validate(json.dumps(plan))
    except _core.PlanError as error:
        raise in_scenario(error.path, error.reason, scenario) from None
    return plan


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
