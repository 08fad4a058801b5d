"""Gateways that are hosts of a lab, because they have functions that run as programs there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

# By way of the package: the process that keeps a lab has no classes of scenarios.
from bentpipe import gateway
from bentpipe.errors import Problem, ScenarioError
from bentpipe.gateway import machine
from bentpipe.gateway.kernel_tcp import host_sysctls, require_congestion_controls

LEGS: Final = ("lan_tcp", "link_tcp")
# As `daemon/tunnel_plan.rs`.
_PEERS_MAX: Final = 64
# As `Function::is_program` of the simulator's plans.
PROGRAMS: Final = ("pep", "tunnel")


@dataclass(frozen=True)
class GatewayHost:
    """A gateway with functions that are programs.

    ``host`` is its name in the lab, ``end`` that in a scenario, and ``number`` its index in
    ``plan``, the link next to it. ``prefix`` precedes the names of its functions in results.
    """

    host: str
    end: str
    number: int
    prefix: str
    plan: Mapping[str, Any]

    def function(self, kind: str) -> Mapping[str, Any] | None:
        """Return a function of the plan by its kind; None if the gateway has none."""
        functions = self.plan["gateways"][self.number]["functions"]
        return next((each for each in functions if each["kind"] == kind), None)

    def place(self, kind: str) -> str:
        """Return the name of a function in results."""
        return f"{self.prefix}{self.host}-{kind}"

    def programs(self) -> list[str]:
        """Return the kinds of its functions that are programs."""
        return [kind for kind in PROGRAMS if self.function(kind) is not None]

    def near_hosts(self) -> list[str]:
        """Return the names of the hosts behind it."""
        return hosts_behind(self.plan, self.number)


def gateway_hosts(plans: Sequence[Mapping[str, Any]]) -> list[GatewayHost]:
    """Return the gateways of links in series that are hosts: the first hub, the last terminals."""
    hub, *_ = plans[0]["gateways"]
    prefix = f"{len(plans)}." if len(plans) > 1 else ""
    places = [GatewayHost(hub["name"], "hub", 0, "", plans[0])]
    places += [
        GatewayHost(terminal["name"], "terminal", number, prefix, plans[-1])
        for number, terminal in enumerate(plans[-1]["gateways"][1:], start=1)
    ]
    return [place for place in places if place.programs()]


def hosts_behind(plan: Mapping[str, Any], number: int) -> list[str]:
    """Return the names of the hosts behind a gateway of a plan."""
    names: list[str] = [host["name"] for host in plan["hosts"] if host["gateway"] == number]
    if number == 0:
        return [*names, "world"]
    is_alone = len(plan["gateways"]) <= 1 + 1
    return [*names, "island" if is_alone else f"island-{number}"]


def pep_settings(plans: Sequence[Mapping[str, Any]]) -> dict[str, list[tuple[str, str]]]:
    """Return the sysctls of the gateways with a PEP, by host."""
    return {
        each.host: list(host_sysctls(pep["lan_tcp"]).items())
        for each in gateway_hosts(plans)
        if (pep := each.function("pep"))
    }


def refuse_functions(plans: Sequence[Mapping[str, Any]], mtu_bytes: int = 1_500) -> None:
    """Check that daemons and this machine can do what the PEPs and tunnels of plans say.

    Raises:
        ScenarioError: they cannot; the error names every unsupported field.
        MachineError: the machine lacks a program or a congestion control.
    """
    hosts = gateway_hosts(plans)
    if not hosts:
        return
    tunnels = [each for each in hosts if each.function("tunnel") is not None]
    peps = {each.end: pep for each in hosts if (pep := each.function("pep"))}
    found = dict(text for each in tunnels for text in _refused_tunnel(each))
    found |= {
        f"gateways.{end}.pep.{leg}.{field}": text
        for end, pep in peps.items()
        for leg in LEGS
        for field, text in gateway.refused_tcp("leg", pep[leg], pep["lan_tcp"], mtu_bytes)
    }
    if found:
        problems = (Problem(source="emulate", field=each, message=found[each]) for each in found)
        raise ScenarioError(*problems)
    machine.find_binary()
    for program in machine.PACKAGES if peps else ("ip",):
        machine.require_program(program)
    require_congestion_controls(pep[leg] for pep in peps.values() for leg in LEGS)


def _refused_tunnel(end: GatewayHost) -> Iterator[tuple[str, str]]:
    path = f"gateways.{end.end}"
    functions = end.plan["gateways"][end.number]["functions"]
    kinds = [function["kind"] for function in functions]
    before = [kind for kind in kinds[: kinds.index("tunnel")] if kind != "pep"]
    if before:
        text = f"read {before[0]} before tunnel; in real time the tunnel is next to the hosts"
        yield f"{path}.functions", f"{text}: put tunnel first, or behind pep only"
    for function in functions:
        given = function.get("classifier", function).get("classes")
        if given is not None:
            text = f"read {given}; classes are not supported in real time: leave it out"
            yield f"{path}.{function['kind']}.classes", text
    for direction in end.plan["directions"]:
        name, queue = direction["name"], direction["queue"]
        if (queue.get("classes") or 1) > 1:
            text = f"read {queue['discipline']} with a tunnel; not supported in real time"
            yield f"link.{name}.queue.discipline", f"{text}: choose another discipline"
        if queue.get("ecn"):
            text = "read true with a tunnel; not supported in real time: leave it out"
            yield f"link.{name}.queue.ecn", text
    terminals = len(end.plan["gateways"]) - 1
    if terminals > _PEERS_MAX:
        yield "link.terminals", f"read {terminals} with a tunnel; at most {_PEERS_MAX} in real time"
