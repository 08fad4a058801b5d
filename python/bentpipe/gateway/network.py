"""What of this machine's network is in the way of a gateway: routes, rules, marks and tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from bentpipe.gateway import machine

# Marks and tables up to 255 are common in hand-written rules, and docker, cilium, tailscale and
# wg-quick use others than these. The mark is a multiple of 128, for up to 64 workers.
MARK: Final = 25_088
ROUTE_TABLE: Final = 25_113
_VERSIONS: Final = (4, 6)
_ALL_BITS: Final = 2**32 - 1
# The marks of the largest number of workers.
_STEP: Final = 128


def mark_count(workers: int) -> int:
    """Return how many marks a daemon uses; the first one is a multiple of this power of two."""
    return 2 << (workers - 1).bit_length()


class NetworkProblem(NamedTuple):
    """What is wrong, as a sentence, and the remedy."""

    found: str
    fix: str


# --- both directions of a connection pass the gateway, as far as its own routes tell -------------


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
                f"No route uses {name}, so no packet leaves on it.",
                f"give {name} an address and the routes to what is behind it (ip route add)",
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
        f"{what} uses {names}, on neither side of the gateway: the PEP would see one "
        "direction of a connection only.",
        f"add {names} to the interfaces of lan or link, or route over {' or '.join(link)}",
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


# --- marks, routing tables and tables of nftables that others use already ------------------------


def numbers_in_use(
    name: str, plan: Mapping[str, Any], *, has_own: bool
) -> Iterator[NetworkProblem]:
    """Yield what is in use of a PEP's marks and tables, and of the table ``name`` of nftables.

    ``has_own``: rules of this gateway itself are no problem.
    """
    first, table = plan["mark"], plan["route_table"]
    marks = range(first, first + mark_count(plan["workers"]))
    other_mark = f"write mark = {first + _STEP} in the configuration, or another free one"
    other_table = f"write route_table = {table + 1} in the configuration, or another free one"
    for version in _VERSIONS:
        for rule in machine.routing_rules(version):
            has_mark, has_table = _has_mark(rule, marks), str(rule.get("table")) == str(table)
            if has_own and has_mark and has_table:
                continue
            uses = f"A rule of ip -{version} rule uses"
            if has_mark:
                yield NetworkProblem(f"{uses} mark {rule['fwmark']}.", other_mark)
            if has_table:
                yield NetworkProblem(f"{uses} routing table {table}.", other_table)
        routes = machine.routes(version, str(table))
        if routes and not has_own:
            found = f"Routing table {table} has routes (ip -{version} route show table {table})."
            yield NetworkProblem(found, other_table)
    yield from _in_nftables(name, marks, other_mark, has_own=has_own)


def _in_nftables(
    name: str, marks: range, other_mark: str, *, has_own: bool
) -> Iterator[NetworkProblem]:
    seen = set[str]()
    for each in machine.nft_ruleset():
        table = each.get("table", {})
        if (table.get("family"), table.get("name")) == ("inet", name) and not has_own:
            fix = f"nft delete table inet {name}, or choose another name in the configuration"
            yield NetworkProblem(f"nftables has a table inet {name}, of another owner.", fix)
        rule = each.get("rule", {})
        owner = f"{rule.get('family')} {rule.get('table')}"
        if owner == f"inet {name}" or owner in seen:
            continue
        if any(number in marks for number in _marks_in(rule.get("expr", []))):
            seen.add(owner)
            yield NetworkProblem(f"Table {owner} of nftables uses the mark.", other_mark)


def _has_mark(rule: Mapping[str, Any], marks: range) -> bool:
    if "fwmark" not in rule:
        return False
    value, mask = int(rule["fwmark"], 0), int(rule.get("fwmask", str(_ALL_BITS)), 0)
    return any(mark & mask == value for mark in marks)


def _marks_in(expressions: list[Any]) -> Iterator[int]:
    """Yield the numbers in statements about the mark of a packet or a connection."""
    for each in expressions:
        if isinstance(each, Mapping) and _names_mark(each):
            yield from _numbers(each)


def _names_mark(value: Any) -> bool:
    if isinstance(value, Mapping):
        of_mark = any(
            isinstance(value.get(kind), Mapping) and value[kind].get("key") == "mark"
            for kind in ("meta", "ct")
        )
        return of_mark or any(_names_mark(each) for each in value.values())
    return isinstance(value, list) and any(_names_mark(each) for each in value)


def _numbers(value: Any) -> Iterator[int]:
    if isinstance(value, bool):
        return
    if isinstance(value, int):
        yield value
    elif isinstance(value, Mapping | list):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from _numbers(each)
