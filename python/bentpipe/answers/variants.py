"""What questions compare with the plain link: the TCP of hosts, and functions of gateways.

The remedy without a box, in the hosts' TCP, comes first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple

from bentpipe.answers.question import Functions
from bentpipe.answers.runs import Verdict

# What is advised: a box, or the hosts' TCP; a box, if it is better than that; nothing.
Advice = Literal["box", "hosts", "open", "none"]

# The congestion control of PEPs over the link. PEPsal, for GEO satellites, uses Hybla (Caini,
# Firrincieli and Lacamera, PEPsal, IEEE VTC Spring 2006, abstract). BBR is the one that Linux and
# proxies on it (FortiOS 8.0, "TCP congestion control enhancement with BBR") have beside CUBIC.
PEP_CONTROLS: Final = ("hybla", "bbr")
_LARGE_BUFFER: Final = "64 MiB"


class Variant(NamedTuple):
    """Settings of the hosts' TCP, a PEP at the hub, a tunnel with settings, or none of them.

    ``title`` is for tables, ``name`` for sentences. ``pep`` is the congestion control of the PEP
    over the link, unless the scenario or a setting has one.
    """

    title: str
    name: str
    pep: str | None = None
    tunnel: Mapping[str, Any] | None = None
    tcp: Mapping[str, str] = {}

    @property
    def functions(self) -> Functions:
        """The functions of the gateways, with their settings."""
        tunnel = {} if self.tunnel is None else {"tunnel": self.tunnel}
        pep = {} if self.pep is None else {"pep": {"link_tcp": {"congestion_control": self.pep}}}
        return {"hub": {**pep, **tunnel}, "terminal": tunnel}

    @property
    def settings(self) -> list[str]:
        """The settings of all traffic, which override what was asked for."""
        return [f"traffic.*.tcp.{name}={value}" for name, value in self.tcp.items()]


PLAIN: Final = Variant("plain", "the plain link")
# The cheapest remedy: no box in the path of all traffic, and QUIC has it, too.
HOSTS: Final = Variant(
    "BBR at hosts",
    "BBR at the hosts",
    tcp={
        "congestion_control": "bbr",
        "send_buffer": _LARGE_BUFFER,
        "receive_buffer": _LARGE_BUFFER,
    },
)


def pep(control: str) -> Variant:
    """Return a PEP at the hub with this congestion control over the link."""
    return Variant(f"PEP, {control}", f"a PEP with {control}", pep=control)


def advice(box: Verdict, hosts: Verdict, beside: Verdict) -> Advice:
    """Return what follows from the changes by a box, by the hosts' TCP, and from that to the box.

    The hosts' TCP wins if it gains and the box has no gain over it, or none at all. What loses the
    total gains nothing.
    """
    hosts_gain, box_gains = (each.kind in ("gains", "mixed") for each in (hosts, box))
    if hosts_gain and not (box_gains and beside.may_gain):
        return "hosts"
    if not box_gains:
        return "none"
    return "box" if beside.having("gains") else "open"
