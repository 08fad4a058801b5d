"""A gateway of a scenario as the configuration of its daemon: see `crates/gate/src/config`."""

from __future__ import annotations

import json
from collections.abc import Container, Iterator
from typing import Any, Final

from bentpipe import gateway
from bentpipe.errors import UsageError
from bentpipe.export.common import gaps, render
from bentpipe.plan import Plan
from bentpipe.plan.gateways import EndName, uplink_of
from bentpipe.scenario.document import FieldPath, dotted
from bentpipe.scenario.gateways import Pep, Tunnel
from bentpipe.scenario.record import Record
from bentpipe.text import counted

# What the daemon has, in the order of the file.
_FUNCTIONS: Final = ("pep", "tunnel")
_ENDS: Final[tuple[EndName, ...]] = ("hub", "terminal")
# The addresses of docs/how-to/run-a-coded-tunnel.md; those of further terminals follow.
_HUB: Final = 1
_ADDRESSES_MAX: Final = 253
# What a real gateway has beside the settings of a scenario.
_KEEPALIVE: Final = "25 s"
_UNITS: Final = {
    "ns": (("s", 10**9), ("ms", 10**6), ("us", 10**3), ("ns", 1)),
    "bps": (("Gbit/s", 10**9), ("Mbit/s", 10**6), ("kbit/s", 10**3), ("bit/s", 1)),
}


def sat_toml(plan: Plan, end: EndName | None = None) -> str:
    """Return the configuration of one end for ``bentpipe gateway``, as TOML.

    Names of interfaces, addresses and keys are examples, which the file says. What the daemon lacks
    is in comments, each with its consequence. Without ``end`` it is the only one with functions
    that the daemon has.

    Raises:
        UsageError: no end has such functions, or not this one, or both and none is chosen.
    """
    chosen = _chosen(plan, end)
    functions = _functions(plan, chosen)
    names = [name for name in _FUNCTIONS if name in functions]
    missing = gaps(plan, "sat.toml", chosen)
    pep, tunnel = functions.get("pep"), functions.get("tunnel")
    return render(
        "sat.toml.j2",
        plan,
        end=chosen,
        names=json.dumps(names),
        has_pep="pep" in names,
        has_tunnel="tunnel" in names,
        pep=list(_pep_lines(pep, chosen, missing)) if isinstance(pep, Pep) else [],
        tunnel=list(_tunnel_lines(plan, tunnel, chosen)) if isinstance(tunnel, Tunnel) else [],
        peers=_peers(plan, chosen, missing) if "tunnel" in names else [],
        address=_address(_HUB if chosen == "hub" else _HUB + 1),
        gaps=missing,
    )


def _functions(plan: Plan, end: EndName) -> dict[str, Record]:
    return dict(getattr(plan.scenario.gateways, end).in_order())


def _chosen(plan: Plan, end: EndName | None) -> EndName:
    having = [name for name in _ENDS if not _functions(plan, name).keys().isdisjoint(_FUNCTIONS)]
    if not having:
        raise UsageError(
            "--as sat.toml: no gateway of the scenario has a PEP or a tunnel, which are what "
            "bentpipe gateway runs; write gateways.hub.functions: [pep], or take --as tc"
        )
    if end is None:
        if len(having) > 1:
            raise UsageError(
                "--as sat.toml: both gateways have functions; write --end hub or --end terminal"
            )
        return having[0]
    if end not in having:
        raise UsageError(
            f"--end: read {end}, whose gateway has neither PEP nor tunnel; write --end {having[0]}"
        )
    return end


# --- settings ------------------------------------------------------------------------------------


def _pep_lines(pep: Pep, end: EndName, missing: list[str]) -> Iterator[str]:
    """Yield what is written of a PEP, without what a kernel refuses for single connections."""
    refused = _refused(pep)
    missing += [f"gateways.{end}.pep.{dotted(path)}: {text}" for path, text in refused.items()]
    for name, value in _written(pep):
        if (name,) in refused or name == "profile":
            continue
        if line := _line(name, value, refused):
            yield line


def _refused(pep: Pep) -> dict[FieldPath, str]:
    """Return the settings that a PEP on a router cannot have: the path in it, and the reason."""
    lines = (_line(name, value) for name, value in _written(pep))
    written = "".join(f"pep.{line}\n" for line in lines if line)
    sides = 'lan.interfaces = ["lan0"]\nlink.interfaces = ["sat0"]\n'
    read = gateway.read_plan("/dev/stdin", f'name = "sat"\n{sides}{written}')
    return {
        tuple(problem["field"].split(".")[1:]): problem["message"]
        for problem in read.get("problems", ())
    }


def _line(name: str, value: Any, refused: Container[FieldPath] = ()) -> str:
    """Return a setting as a line of TOML without what is refused; empty if nothing is left."""
    if not isinstance(value, Record):
        return f"{name} = {_toml(value)}"
    fields = ((field, each) for field, each in _written(value) if (name, field) not in refused)
    kept = ", ".join(f"{field} = {_toml(each)}" for field, each in fields)
    return f"{name} = {{{kept}}}" if kept else ""


def _tunnel_lines(plan: Plan, tunnel: Tunnel, end: EndName) -> Iterator[str]:
    """Yield what is written of a tunnel, and what a gateway cannot see of the link and its peer."""
    uplink = uplink_of(plan.data["directions"], end)
    peer = _functions(plan, "terminal" if end == "hub" else "hub")["tunnel"]
    assert isinstance(peer, Tunnel), "a scenario without one is refused"
    differs = peer.feedback_interval != tunnel.feedback_interval
    link = {
        "rate": _quantity(uplink.rate_bps, "bps"),
        "queue": f"{uplink.capacity_bytes} B",
        # One without delay has that of the daemon's default.
        **({"round_trip": _quantity(uplink.round_trip_ns, "ns")} if uplink.round_trip_ns else {}),
        "packet_overhead": f"{uplink.packet_overhead_bytes} B",
        **({"peer_feedback_interval": peer.feedback_interval} if differs else {}),
    }
    for name, value in (link | dict(_written(tunnel))).items():
        yield f"{name} = {_toml(value)}"


def _written(record: Record) -> Iterator[tuple[str, Any]]:
    for name in type(record).model_fields:
        value = getattr(record, name)
        if name in record.model_fields_set and value is not None:
            yield name, value


def _toml(value: Any) -> str:
    """Return a setting as TOML: strings of ASCII, booleans, numbers and lists are those of JSON."""
    return json.dumps(list(value) if isinstance(value, tuple) else value)


def _quantity(value: int, kind: str) -> str:
    """Return a value in the largest unit in which it is an integer."""
    unit, factor = next(candidate for candidate in _UNITS[kind] if value % candidate[1] == 0)
    return f"{value // factor} {unit}"


# --- the ends of a tunnel ------------------------------------------------------------------------


def _peers(plan: Plan, end: EndName, missing: list[str]) -> list[dict[str, str]]:
    """Return the gateways at the other ends, with addresses that are examples."""
    terminals = plan.scenario.link.terminals
    if end == "terminal":
        if terminals > 1:
            missing.append(
                "link.terminals: this is the first terminal: each other one needs a name, an "
                "address and a key of its own"
            )
        (key,) = gateway.placeholder_keys(["hub"])
        return [_peer("hub", _HUB, key) | {"keepalive": _KEEPALIVE}]
    count = min(terminals, gateway.PEERS_MAX, _ADDRESSES_MAX)
    if count < terminals:
        missing.append(
            f"link.terminals: a tunnel has at most {counted(count, 'peer')}: the other "
            f"{terminals - count} terminals are left out"
        )
    names = ["terminal"] if count == 1 else [f"terminal-{n}" for n in range(1, count + 1)]
    numbers = range(_HUB + 1, _HUB + 1 + count)
    return list(map(_peer, names, numbers, gateway.placeholder_keys(names)))


def _peer(name: str, number: int, key: str) -> dict[str, str]:
    # Behind the hub is 10.0.1.0/24, behind the first terminal 10.0.3.0/24.
    behind = f"10.0.{1 if number == _HUB else number + 1}.0/24"
    return {
        "name": name,
        "public_key": key,
        "endpoint": f"10.0.2.{number}:{gateway.PORT}",
        "networks": json.dumps([behind, f"{_address(number)}/32"]),
    }


def _address(number: int) -> str:
    return f"10.99.0.{number}"
