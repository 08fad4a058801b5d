"""Whether both directions of a connection pass a gateway, as far as its own routes tell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bentpipe.gateway import machine

_VERSIONS: Final = (4, 6)


@dataclass(frozen=True, kw_only=True)
class NetworkProblem:
    """What is wrong, as a sentence, and the remedy."""

    found: str
    fix: str


def path_problem(
    lan: Sequence[str], link: Sequence[str], added: Sequence[Mapping[str, Any]] = ()
) -> NetworkProblem | None:
    """Return the first problem of the routes, or None. The daemon adds those of ``added``.

    A PEP must see both directions of a connection. Packets that leave or return on an interface of
    neither side pass it by, and the connection is reset.
    """
    listed = {*lan, *link}
    known = {version: [*machine.routes(version), *added] for version in _VERSIONS}
    for version, routes in known.items():
        for destination, found in _best(routes).items():
            others = sorted(found - listed)
            if destination == "default" and others:
                return _elsewhere(f"The IPv{version} default route", others, link)
            if others and found & listed:
                return _elsewhere(f"A part of the packets to {destination}", others, link)
    used = {
        device for routes in known.values() for each in routes for device in machine.devices(each)
    }
    for name in [*lan, *link]:
        if name not in used:
            return NetworkProblem(
                found=f"No route uses {name}, so no packet leaves on it.",
                fix=f"give {name} an address and the routes to what is behind it (ip route add)",
            )
    return None


def path_summary(link: Sequence[str]) -> str:
    """Return what is known of routes without a problem, and what is not."""
    rules = sum(_is_extra(rule) for rule in machine.routing_rules(4))
    extra = f" {rules} rules of ip rule may choose other routes." if rules else ""
    return (
        "The routes of this machine use the listed interfaces." + extra + " Whether packets "
        f"return on {' or '.join(link)} depends on the routers there, and cannot be checked here."
    )


def _elsewhere(what: str, others: Sequence[str], link: Sequence[str]) -> NetworkProblem:
    names = " and ".join(others)
    return NetworkProblem(
        found=f"{what} uses {names}, on neither side of the gateway: the PEP would see one "
        "direction of a connection only.",
        fix=f"add {names} to the interfaces of lan or link, or route over {' or '.join(link)}",
    )


def _best(routes: Sequence[Mapping[str, Any]]) -> dict[str, set[str]]:
    """Return the interfaces that are used for each destination: those of the smallest metric."""
    metrics: dict[str, int] = {}
    found: dict[str, set[str]] = {}
    for route in _forwarding(routes):
        destination, metric = route["dst"], int(route.get("metric", 0))
        if metric < metrics.get(destination, metric + 1):
            metrics[destination], found[destination] = metric, set()
        if metric == metrics[destination]:
            found[destination] |= set(machine.devices(route))
    return found


def _forwarding(routes: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    for route in routes:
        # A link-local network is on every interface, and a blackhole on none.
        is_local = route["dst"].startswith(("fe80:", "169.254.", "ff00:"))
        if not is_local and route.get("type", "unicast") == "unicast" and route.get("dev") != "lo":
            yield route


def _is_extra(rule: Mapping[str, Any]) -> bool:
    return rule.get("table") not in {"local", "main", "default"} and "fwmark" not in rule
