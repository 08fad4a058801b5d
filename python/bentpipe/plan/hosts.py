"""Hosts at some distance from their gateway, and the host that each flow runs on."""

from __future__ import annotations

from typing import Final

from bentpipe.plan.errors import PlanningError, PlanningErrors
from bentpipe.plan.types import HostChoice, HostPlan
from bentpipe.scenario.document import FieldPath
from bentpipe.scenario.hosts import MAX_HOSTS, RANDOM, ROUND_ROBIN, Host, Side
from bentpipe.scenario.schema import Scenario
from bentpipe.units import value_of

_SIDES: Final[tuple[Side, ...]] = ("world", "island")


class HostPlans:
    """The hosts of a plan, and the host of each flow of a scenario."""

    def __init__(self, scenario: Scenario, errors: PlanningErrors) -> None:
        """Number the hosts of all gateways.

        It is an error if two hosts have one name, or if there are too many.
        """
        self.plans: list[HostPlan] = []
        self._first: dict[tuple[Side, int], int] = {}
        self._names: dict[Side, list[str]] = {}
        terminals = scenario.link.terminals
        for side in _SIDES:
            hosts: tuple[Host, ...] = getattr(scenario.hosts, side)
            self._names[side] = [host.name for host in hosts]
            errors.call(self._check_names, side)
            gateways = [0] if side == "world" else range(1, 1 + terminals)
            for gateway in gateways:
                self._first[side, gateway] = len(self.plans)
                suffix = f"-{gateway}" if side == "island" and terminals > 1 else ""
                self.plans.extend(_plan(host, gateway, suffix) for host in hosts)
        errors.call(self._check_count)

    def _check_count(self) -> None:
        if len(self.plans) > MAX_HOSTS:
            message = f"make {len(self.plans)} hosts with all terminals; at most {MAX_HOSTS}"
            raise PlanningError(("hosts",), f"{message} are allowed")

    def _check_names(self, side: Side) -> None:
        names = self._names[side]
        other = set(self._names.get("world", ())) if side == "island" else set()
        for number, name in enumerate(names):
            path = ("hosts", side, number, "name")
            if name in (RANDOM, ROUND_ROBIN):
                raise PlanningError(path, f'read "{name}"; flows use this word for a choice')
            if name in names[:number] or name in other:
                raise PlanningError(path, f'read "{name}"; another host has that name')

    def check(self, side: Side, written: str | None, path: FieldPath) -> None:
        """Check the host that an entry of ``traffic`` names.

        Raises:
            PlanningError: no host of that side has the name, or that side has no host.
        """
        names = self._names[side]
        if written is None or (names and written in (*names, RANDOM, ROUND_ROBIN)):
            return
        field = (*path, f"{side}_host")
        if not names:
            message = f'read "{written}"; hosts.{side} lists no host'
            raise PlanningError(field, message)
        known = ", ".join(names[:5])
        message = f'read "{written}"; expected a host of hosts.{side} ({known}), "{RANDOM}" or'
        raise PlanningError(field, f'{message} "{ROUND_ROBIN}"')

    def chosen(self, side: Side, written: str | None, place: tuple[int, int]) -> HostChoice | None:
        """Return the host of a flow that `check` accepts; ``place``: its number and terminal."""
        if written is None:
            return None
        if written == RANDOM:
            return {"kind": "random"}
        number, terminal = place
        names = self._names[side]
        on_side = number % len(names) if written == ROUND_ROBIN else names.index(written)
        first = self._first[side, 0 if side == "world" else 1 + terminal]
        return {"kind": "named", "host": first + on_side}


def _plan(host: Host, gateway: int, suffix: str) -> HostPlan:
    return {
        "name": host.name + suffix,
        "gateway": gateway,
        "delay_ns": value_of(host.delay),
        "jitter_ns": value_of(host.jitter),
        "rate_bps": None if host.rate is None else value_of(host.rate),
    }
