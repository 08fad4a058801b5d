"""Marks, routing tables and tables of nftables that others use already."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from bentpipe.gateway import machine
from bentpipe.gateway.paths import NetworkProblem
from bentpipe.gateway.plan import PepPlan, mark_count

_ALL_BITS: Final = 2**32 - 1
# The marks of the largest number of workers.
_STEP: Final = 128


def numbers_in_use(name: str, plan: PepPlan, *, has_own: bool) -> Iterator[NetworkProblem]:
    """Yield what is in use of a PEP's marks and tables, and of the table ``name`` of nftables.

    ``has_own``: rules of this gateway itself are no problem.
    """
    first, table = plan["mark"], plan["route_table"]
    marks = range(first, first + mark_count(plan["workers"]))
    other_mark = f"write mark = {first + _STEP} in the configuration, or another free one"
    other_table = f"write route_table = {table + 1} in the configuration, or another free one"
    for version in (4, 6):
        for rule in machine.routing_rules(version):
            is_ours = has_own and str(rule.get("table")) == str(table) and _has_mark(rule, marks)
            if is_ours:
                continue
            if _has_mark(rule, marks):
                found = f"A rule of ip -{version} rule uses mark {rule['fwmark']}."
                yield NetworkProblem(found=found, fix=other_mark)
            if str(rule.get("table")) == str(table):
                found = f"A rule of ip -{version} rule uses routing table {table}."
                yield NetworkProblem(found=found, fix=other_table)
        routes = machine.routes(version, str(table))
        if routes and not has_own:
            found = f"Routing table {table} has routes (ip -{version} route show table {table})."
            yield NetworkProblem(found=found, fix=other_table)
    yield from _in_nftables(name, marks, other_mark, has_own=has_own)


def _in_nftables(
    name: str, marks: range, other_mark: str, *, has_own: bool
) -> Iterator[NetworkProblem]:
    seen = set[str]()
    for each in machine.nft_ruleset():
        table = each.get("table", {})
        if (table.get("family"), table.get("name")) == ("inet", name) and not has_own:
            fix = f"nft delete table inet {name}, or choose another name in the configuration"
            yield NetworkProblem(
                found=f"nftables has a table inet {name}, of another owner.", fix=fix
            )
        rule = each.get("rule", {})
        owner = f"{rule.get('family')} {rule.get('table')}"
        if owner == f"inet {name}" or owner in seen:
            continue
        if any(number in marks for number in _marks_in(rule.get("expr", []))):
            seen.add(owner)
            yield NetworkProblem(found=f"Table {owner} of nftables uses the mark.", fix=other_mark)


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
