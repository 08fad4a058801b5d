"""A scenario resolved into the plan: integers in ns, bytes and bit/s, with every field present.

`bentpipe.scenario` checks each value alone. This package checks the parts together: a rate that
neither the scenario nor its preset gives, a queue smaller than the largest packet, a flow that
starts after the end of the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from bentpipe.errors import ScenarioError, ScenarioWarning
from bentpipe.plan.errors import PlanningError, PlanningErrors
from bentpipe.plan.gateways import gateway_plans
from bentpipe.plan.hosts import HostPlans
from bentpipe.plan.link import directions_plan
from bentpipe.plan.refusals import check_plan
from bentpipe.plan.thresholds import check_threshold_names
from bentpipe.plan.traffic import flow_plans
from bentpipe.plan.types import Plan
from bentpipe.plan.warnings import changed_queues, has_bdp_limit, warnings_of
from bentpipe.scenario.document import Document, read_file, read_stdin
from bentpipe.scenario.schema import Scenario, parse
from bentpipe.scenario.settings import Setting, with_settings
from bentpipe.scenario.thresholds import with_thresholds
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


class Loaded(NamedTuple):
    """A scenario with its plan, and the warnings about it."""

    scenario: Scenario
    plan: Plan
    warnings: tuple[ScenarioWarning, ...]


def read(
    source: str | Path, settings: Sequence[str] = (), *, thresholds: Sequence[str] = ()
) -> Loaded:
    """Read and check a scenario file, or standard input for ``-``, with settings.

    ``thresholds`` are added to those of the scenario.

    Raises:
        ScenarioError: naming file, line, field, what was read and what is allowed.
    """
    document = read_stdin() if str(source) == "-" else read_file(Path(source))
    return loaded(document, settings, thresholds=thresholds)


def loaded(
    document: Document, settings: Sequence[str | Setting] = (), *, thresholds: Sequence[str] = ()
) -> Loaded:
    """Return the scenario of a document with settings, its plan, and the warnings about it.

    Raises:
        ScenarioError: naming file, line, field, what was read and what is allowed.
    """
    changed = with_thresholds(with_settings(document, settings), thresholds)
    scenario = parse(changed)
    plan = _resolve(scenario, changed)
    warnings = [*changed.warnings, *warnings_of(scenario, plan)]
    if settings and has_bdp_limit(scenario.link):
        # A document can need its settings to be valid.
        with suppress(ScenarioError):
            before = parse(document)
            warnings += changed_queues((before, _resolve(before, document)), (scenario, plan))
    return Loaded(scenario, plan, tuple(warnings))


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
    errors = PlanningErrors()
    plan = _plan(scenario, errors)
    if errors.found:
        problems = [document.problem(error.path, error.message) for error in errors.found]
        raise ScenarioError(*sorted(problems, key=lambda problem: problem.line or 0))
    return plan


def _plan(scenario: Scenario, errors: PlanningErrors) -> Plan:
    """Return the plan of a scenario; it is incomplete if there are errors."""
    stop_ns = value_of(scenario.duration)
    hosts = HostPlans(scenario, errors)
    flows = flow_plans(scenario, hosts, stop_ns, errors)
    directions = directions_plan(scenario, flows, errors)
    plan: Plan = {
        "format_version": PLAN_FORMAT_VERSION,
        "stop_ns": stop_ns,
        "sample_interval_ns": errors.call(_sample_interval, scenario, stop_ns, len(flows)),
        "packet_events": scenario.packet_events,
        "gateways": errors.call(gateway_plans, scenario, directions) or [],
        "directions": directions,
        "hosts": hosts.plans,
        "flows": flows,
    }
    if not errors.found:
        check_plan(plan, scenario, errors)
        check_threshold_names(scenario, plan, errors)
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
