"""Checks before a run in real time, and the privileges that it needs.

No module that starts threads (numpy, polars) is imported here: a process with several threads
cannot create a user namespace.
"""

from __future__ import annotations

from bentpipe.emulation.flows import programs
from bentpipe.emulation.kernel import kernel_of, mtu_bytes, refuse
from bentpipe.lab.capacity import refuse_beyond_capacity
from bentpipe.lab.peps import refuse_peps
from bentpipe.lab.privileges import gain_privileges
from bentpipe.lab.tunnels import refuse_tunnels
from bentpipe.plan.plan import Plan


def check_plan(plan: Plan) -> None:
    """Refuse the plan of a scenario that cannot be run in real time on this machine.

    Raises:
        ScenarioError: the scenario cannot be run in real time.
        MachineError: the machine lacks something.
    """
    data = plan.data
    refuse(plan)
    programs(data, plan.scenario.seed)
    kernel_of(data)
    refuse_tunnels([data])
    refuse_peps([data], mtu_bytes(data))
    refuse_beyond_capacity([data])


def prepare(plan: Plan) -> None:
    """Check a plan as `check_plan` does, and gain the privileges to run it.

    The process must have one thread, unless it runs as root.

    Raises:
        ScenarioError: the scenario cannot be run in real time.
        MachineError: the machine lacks something, or does not allow it.
    """
    check_plan(plan)
    gain_privileges()
