"""The PEPs of a lab: on a gateway that has one, the daemon `bentpipe-gate` splits connections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from bentpipe import lab
from bentpipe.errors import Problem, ScenarioError
from bentpipe.gateway import machine
from bentpipe.gateway.binary import find_binary
from bentpipe.lab.gateways import gateway_hosts
from bentpipe.lab.tcp_settings import require_congestion_controls, tcp_settings

SIDES: Final = ("lan_tcp", "link_tcp")


def refuse_peps(plans: Sequence[Mapping[str, Any]], mtu_bytes: int = 1_500) -> None:
    """Check that the daemon and this machine's kernel can do what the PEPs of plans say.

    Raises:
        ScenarioError: they cannot; the error names every unsupported field.
        MachineError: the machine lacks a program or a congestion control.
    """
    peps = [(each.end, pep) for each in gateway_hosts(plans) if (pep := each.function("pep"))]
    if not peps:
        return
    # By way of the package: a lab without a PEP starts without the classes of scenarios.
    found = dict(
        text
        for end, pep in peps
        for text in lab.refused_settings(f"gateways.{end}.pep", pep, mtu_bytes)
    )
    if found:
        problems = (Problem(source="emulate", field=each, message=found[each]) for each in found)
        raise ScenarioError(*problems)
    find_binary()
    for program in machine.PACKAGES:
        machine.require_program(program)
    require_congestion_controls(pep[side] for _, pep in peps for side in SIDES)


def pep_settings(plans: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, str]]:
    """Return the sysctls of the gateways with a PEP, by host."""
    return {
        each.host: tcp_settings(pep["lan_tcp"])
        for each in gateway_hosts(plans)
        if (pep := each.function("pep"))
    }
