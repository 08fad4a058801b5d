"""The TCP of a host resolved into the plan."""

from __future__ import annotations

from bentpipe.plan.errors import PlanningError
from bentpipe.plan.lower import Part, lower
from bentpipe.scenario.document import FieldPath
from bentpipe.scenario.profiles import PROFILES
from bentpipe.scenario.tcp import MAX_MSS_BYTES, ProfileName, Tcp


def host_plan(profile: ProfileName, written: Tcp, path: FieldPath) -> Part:
    """Return the plan of a TCP host with ``written`` settings, whose field is ``path``.

    Raises:
        PlanningError: the MSS is larger than a packet.
    """
    tcp = written.over(PROFILES[profile])
    plan = lower(tcp, path)
    if plan["mss_bytes"] > MAX_MSS_BYTES:
        message = f'read "{tcp.mss}"; must be at most {MAX_MSS_BYTES} B (one IP packet)'
        raise PlanningError((*path, "mss"), message)
    if written.hystart is None and tcp.stack == "linux":
        # As in Linux, with CUBIC only.
        plan["hystart"] = tcp.congestion_control == "cubic"
    if tcp.receive_buffer_initial is None:
        plan["receive_buffer_initial_bytes"] = plan["receive_buffer_bytes"]
    elif written.receive_buffer_initial is None:
        # A maximum from the scenario also bounds the initial size from the profile.
        plan["receive_buffer_initial_bytes"] = min(
            plan["receive_buffer_initial_bytes"], plan["receive_buffer_bytes"]
        )
    return plan
