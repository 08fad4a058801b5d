"""The network of a case: client - inner - a - b - server, with ``a`` the router with the gateway.

The namespaces of one kernel share the secret of TCP's initial sequence numbers (ISN), which are a
hash of addresses and ports plus a clock (RFC 6528). Both legs of a split connection have the same
addresses and ports, so their sequence numbers would be nearly equal, and a firewall could not tell
them apart. No two real hosts have that in common. Therefore client and server compute theirs with
other addresses, which they translate to those of the network themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from string import Template
from typing import Final

from routers import Link, Route, Routers, new_routers, run

from router.cases import Case

VERSIONS: Final = (4, 6)
_LINKS: Final[tuple[Link, ...]] = (
    ("client", "eth0", "inner", "eth0", 1),
    ("inner", "up0", "a", "lan0", 4),
    ("a", "sat0", "b", "sat0", 2),
    ("b", "eth0", "server", "eth0", 3),
)
_ROUTES: Final[tuple[Route, ...]] = (
    ("client", 0, 1, 2),
    ("inner", 0, 4, 2),
    ("a", 0, 2, 2),
    ("a", 1, 4, 1),
    ("b", 1, 2, 1),
    ("b", 4, 2, 1),
    ("server", 0, 3, 1),
)
# Addresses of the network, and those that the sockets of the host have.
PUBLIC: Final = {"client": ("10.0.1.1", "fd01::1"), "server": ("10.0.3.2", "fd03::2")}
_PRIVATE: Final = {"client": ("10.1.1.1", "fd11::1"), "server": ("10.1.3.2", "fd13::2")}
# To networks of which b knows that nobody is there, and those of which it says nothing.
UNREACHABLE: Final = ("10.0.9.1", "fd09::1")
SILENT: Final = ("10.0.8.1", "fd08::1")
_BEHIND_B: Final = (
    "route add unreachable 10.0.9.0/24",
    "route add unreachable fd09::/64",
    "route add blackhole 10.0.8.0/24",
    "route add blackhole fd08::/64",
)
_TRANSLATION: Final = Template("""
table inet isn {
  chain postrouting {
    type nat hook postrouting priority srcnat; policy accept;
    ip saddr $private4 snat ip to $public4
    ip6 saddr $private6 snat ip6 to $public6
  }
  chain prerouting {
    type nat hook prerouting priority dstnat; policy accept;
    ip daddr $public4 dnat ip to $private4
    ip6 daddr $public6 dnat ip6 to $private6
  }
}
""")


@contextmanager
def new_network(case: Case) -> Iterator[Routers]:
    """Set up the network of a case, without a gateway."""
    with new_routers(Routers(links=_LINKS, routes=_ROUTES)) as routers:
        routers.batch("b", *_BEHIND_B)
        names = {host: routers.namespace(host) for host in routers.hosts}
        for host, commands in case.commands.items():
            for command in commands:
                routers.on(host, "sh", "-c", Template(command).substitute(names))
        routers.wait_for_link_local()
        for host, rules in case.rules.items():
            add_rules(routers, host, rules)
        yield routers


def separate_sequence_numbers(routers: Routers) -> None:
    """Let client and server compute initial sequence numbers of their own; see the module."""
    for host, (public4, public6) in PUBLIC.items():
        private4, private6 = _PRIVATE[host]
        lines = [f"addr add {private4}/32 dev lo", f"addr add {private6}/128 dev lo nodad"]
        for number, source in (("4", private4), ("6", private6)):
            route = routers.on(host, "ip", f"-{number}", "route", "show", "default").strip()
            hop = route.split(" dev ")[0]
            lines.append(f"route change {hop} src {source}")
        routers.batch(host, *lines)
        values = {"private4": private4, "private6": private6}
        rules = _TRANSLATION.substitute(values, public4=public4, public6=public6)
        add_rules(routers, host, rules)
        # Else what this host takes for invalid would leave with its private address.
        for setting in ("be_liberal", "ignore_invalid_rst"):
            routers.on(host, "sysctl", "-qw", f"net.netfilter.nf_conntrack_tcp_{setting}=1")


def add_rules(routers: Routers, host: str, rules: str) -> None:
    """Add rules of nftables on a host."""
    with routers.within(host):
        run("nft", "-f", "-", given=rules)
