"""Gateways that are hosts of a lab, because they have functions that run as programs there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

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
