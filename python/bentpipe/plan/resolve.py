"""A scenario resolved into the plan: integers in ns, bytes and bit/s, with every field present.

What can only be judged when the parts are seen together is judged here and in `_resolve_link` and
`_resolve_traffic`: a rate that neither the scenario nor its preset gives, a queue smaller than the
largest packet, a flow that starts after the end. Values that each are legal alone were checked when
the scenario was made.
"""

from __future__ import annotations

import json
from typing import Any, Final

from bentpipe import _core
from bentpipe.plan.link import directions_plan
from bentpipe.plan.refusals import PlanningError, in_scenario
from bentpipe.plan.traffic import flow_plans
from bentpipe.scenario.gateways import gateways_plan
from bentpipe.scenario.hosts import HostPlans
from bentpipe.scenario.schema import Scenario
from bentpipe.units import parse_duration

PLAN_FORMAT_VERSION: Final = 3

# 10 million rows of samples are about 500 MB; more is a slip of the interval.
_MAX_SAMPLE_ROWS: Final = 10_000_000


def resolve(scenario: Scenario) -> dict[str, Any]:
    """Return the plan of a scenario, which the simulator has accepted.

    Raises:
        PlanningError: the parts do not fit together, or the simulator has a bound on one of them.
    """
    stop_ns = parse_duration(scenario.duration)
    hosts = HostPlans(scenario)
    flows = flow_plans(scenario, hosts, stop_ns)
    plan = {
        "format_version": PLAN_FORMAT_VERSION,
        "stop_ns": stop_ns,
        "sample_interval_ns": _sample_interval(scenario, stop_ns, len(flows)),
        "packet_events": scenario.packet_events,
        "gateways": gateways_plan(scenario),
        "directions": directions_plan(scenario, flows),
        "hosts": hosts.plans,
        "flows": flows,
    }
    try:
        _core.validate(json.dumps(plan))
    except _core.PlanError as error:
        raise in_scenario(str(error), scenario) from None
    return plan


def _sample_interval(scenario: Scenario, stop_ns: int, flows: int) -> int | None:
    if scenario.sample_interval is None:
        return None
    interval_ns = parse_duration(scenario.sample_interval)
    directions = 1 + scenario.link.terminals
    rows = (stop_ns // interval_ns + 1) * (flows + directions)
    if rows > _MAX_SAMPLE_ROWS:
        raise PlanningError(
            ("sample_interval",),
            f'read "{scenario.sample_interval}"; over {scenario.duration}, {flows} flows and '
            f"{directions} directions that is {rows} rows of samples; at most {_MAX_SAMPLE_ROWS} "
            "are allowed",
        )
    return interval_ns
