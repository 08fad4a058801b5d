"""Checks before a run in real time, and the privileges that it needs.

No module that starts threads (numpy, polars) is imported here: a process with several threads
cannot create a user namespace.
"""

from __future__ import annotations

from bentpipe.emulation.flows import programs
from bentpipe.emulation.kernel import kernel_of, mtu_bytes, refuse
from bentpipe.lab.capacity import refuse_beyond_capacity
from bentpipe.lab.gateways import refuse_functions
from bentpipe.lab.privileges import gain_privileges
from bentpipe.plan.resolver import resolve
from bentpipe.scenario.schema import Scenario


def check_scenario(scenario: Scenario) -> None:
    """Refuse a scenario that cannot be run in real time on this machine.

    Raises:
        ScenarioError: the scenario cannot be run in real time.
        MachineError: the machine lacks something.
    """
    plan = resolve(scenario)
    refuse(scenario, plan)
    programs(plan, scenario.seed)
    kernel_of(plan)
    refuse_functions([plan], mtu_bytes(plan))
    refuse_beyond_capacity([plan])


def prepare(scenario: Scenario) -> None:
    """Check a scenario as `check_scenario` does, and gain the privileges to run it.

    The process must have one thread, unless it runs as root.

    Raises:
        ScenarioError: the scenario cannot be run in real time.
        MachineError: the machine lacks something, or does not allow it.
    """
    check_scenario(scenario)
    gain_privileges()
