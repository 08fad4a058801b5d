"""Checks before a gateway is started: what would keep it from working, each with the fix.

Nothing is changed, but the kernel may load modules that it has.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping, Sequence, Set as AbstractSet
from functools import partial
from ipaddress import ip_interface, ip_network
from typing import TYPE_CHECKING, Any, Final

from bentpipe.errors import MachineError, UsageError
from bentpipe.gateway import machine
from bentpipe.gateway.machine import FIX, Check, advised, failed, mark_count, passed
from bentpipe.text import counted, nearest

if TYPE_CHECKING:
    from bentpipe.gateway.config import DaemonTunnel, GatePlan, GatewayConfig

_CAPABILITIES: Final = ("CAP_SETGID", "CAP_SETUID", "CAP_NET_ADMIN", "CAP_NET_RAW")
_VERSIONS: Final = (4, 6)
_ALL_BITS: Final = 2**32 - 1
# More than the marks of the largest number of workers, and a multiple as theirs.
_STEP: Final = 256
# One expression of the rules for each module of the kernel, and the hook of its chain.
_FILTER: Final = "filter hook prerouting priority mangle"
_EXPRESSIONS: Final = {
    "nft_socket": (_FILTER, "socket transparent 1 accept"),
    "nft_tproxy": (_FILTER, "tproxy ip to 127.0.0.1:1 accept"),
    "nft_fib_inet": (_FILTER, "fib daddr type != local accept"),
    "nft_ct": (_FILTER, "ct zone set 1"),
    "nft_log": (_FILTER, "log group 1"),
    "nft_nat": ("nat hook postrouting priority srcnat", "snat ip to ip saddr"),
}


def examine(
    config: GatewayConfig, plan: GatePlan, *, has_own: bool = False, is_up: bool = False
) -> list[Check]:
    """Return all checks; only the first ones if the others cannot be made.

    ``has_own`` is whether rules of this gateway may exist, which are in nobody's way; ``is_up``
    whether it runs.
    """
    # Only a PEP has rules.
    tools = [name for name in machine.PACKAGES if name != "nft" or plan["pep"] is not None]
    checks = [_installed("daemon", machine.find_binary), _privileges()]
    checks += [_installed(name, partial(machine.require_program, name)) for name in tools]
    if not all(check.ok for check in checks):
        return checks
    checks.append(_forwarding())
    if config.tunnel is not None:
        checks += _of_tunnel(config.tunnel)
    if plan["pep"] is not None:
        checks += _of_pep(config, plan["pep"], plan["name"], has_own=has_own)
    if all(check.passes for check in checks):
        checks += _sockets(plan, is_up=is_up)
    return checks


def _of_pep(
    config: GatewayConfig, plan: Mapping[str, Any], name: str, *, has_own: bool
) -> Iterator[Check]:
    tunnel = config.tunnel
    # The device of the tunnel is made by the daemon.
    listed = [
        interface for interface in config.interfaces if tunnel is None or interface != tunnel.device
    ]
    interfaces = [_interface(interface) for interface in listed]
    yield from (_kernel(), _ipv6(), *interfaces)
    if all(check.ok for check in interfaces):
        yield from (_source_marks(listed), _paths(config))
    yield from (_path_mtu(), _filters(plan, name))
    yield from _congestion_controls(plan)
    yield from (_buffer(plan), _rules(name, plan, has_own=has_own))


def _of_tunnel(tunnel: DaemonTunnel) -> Iterator[Check]:
    if tunnel.fail == "open":
        yield _fails_open()
    yield from (_peers(tunnel), _networks(tunnel), _tunnel_filters(tunnel))


def _installed(name: str, find: Callable[[], object]) -> Check:
    try:
        return passed(name, f"{find()} is installed.")
    except MachineError as error:
        finding, _, fix = str(error).partition(FIX)
        return failed(name, f"{finding}.", fix)


def _privileges() -> Check:
    if missing := machine.missing_capabilities(*_CAPABILITIES):
        finding = f"This process lacks {', '.join(missing)}."
        return failed("privileges", finding, "run it as root, with sudo")
    return passed("privileges", "This process may change rules and routes.")


def _kernel() -> Check:
    for module, (hook, expression) in _EXPRESSIONS.items():
        rules = (
            f"table inet bentpipe_check {{\n chain tried {{\n  type {hook}; policy accept;\n"
            f"  meta l4proto tcp {expression}\n }}\n}}\n"
        )
        reason = machine.refused_by_nft(rules)
        if reason is not None:
            finding = f"The kernel does not take a rule with {expression.split()[0]}: {reason}."
            fix = f"modprobe {module}, or use a kernel with CONFIG_{module.upper()}"
            return failed("kernel", finding, fix)
    return passed("kernel", "The kernel has the modules for the rules.")


def _ipv6() -> Check:
    disabled = machine.sysctl("net.ipv6.conf.lo.disable_ipv6")
    if disabled is None:
        return failed("ipv6", "The kernel has no IPv6.", "start it without ipv6.disable=1")
    if disabled != "0":
        finding = "IPv6 is disabled on lo, where the daemon listens."
        fix = "sysctl -w net.ipv6.conf.lo.disable_ipv6=0"
        return failed("ipv6", finding, fix)
    return passed("ipv6", "IPv6 is enabled on lo.")


def _interface(name: str) -> Check:
    title, links = f"interface {name}", machine.links()
    if name not in links:
        near = nearest(name, tuple(links))
        hint = f' did you mean "{near}"?' if near else f" there are {', '.join(links)}."
        fix = "name one that exists in the configuration"
        return failed(title, f"It does not exist;{hint}", fix)
    if "UP" not in links[name]["flags"]:
        return failed(title, "It is down.", f"ip link set {name} up")
    return passed(title, "It is up.")


def _forwarding() -> Check:
    settings = {"IPv4": "net.ipv4.ip_forward", "IPv6": "net.ipv6.conf.all.forwarding"}
    on = [name for name, setting in settings.items() if machine.sysctl(setting) == "1"]
    if "IPv4" not in on and ("IPv6" not in on or machine.routes(4)):
        finding = "This machine does not forward IPv4 packets, so it is no gateway."
        return failed("forwarding", finding, "sysctl -w net.ipv4.ip_forward=1")
    return passed("forwarding", f"This machine forwards {' and '.join(on)} packets.")


def _fails_open() -> Check:
    finding = (
        "When the tunnel is killed, packets for the networks of its peers leave in clear text."
    )
    return advised("clear text", finding, 'leave out fail = "open" in the configuration')


def _source_marks(listed: list[str]) -> Check:
    name = "source check"
    for interface in listed:
        if machine.interface_setting(interface, "src_valid_mark"):
            finding = (
                f"The kernel checks the sources of packets on {interface} by their marks "
                "(src_valid_mark), and would drop those of the gateway."
            )
            fix = f"sysctl -w net.ipv4.conf.all.src_valid_mark=0 net.ipv4.conf.{interface}."
            return failed(name, finding, f"{fix}src_valid_mark=0")
    return passed(name, "The kernel checks the sources of packets without marks.")


def _path_mtu() -> Check:
    # Of hosts, Windows and macOS look for it by default (RFC 4821), and Linux does not.
    if machine.sysctl("net.ipv4.tcp_mtu_probing") != "0":
        return passed("path MTU", "Legs find a smaller path MTU where ICMP errors are filtered.")
    finding = (
        "Legs do not look for a smaller path MTU: large transfers stall where it is smaller and "
        "ICMP errors are filtered."
    )
    return advised("path MTU", finding, "sysctl -w net.ipv4.tcp_mtu_probing=1")


def _paths(config: GatewayConfig) -> Check:
    lan, link = ([] if side is None else side.interfaces for side in (config.lan, config.link))
    added = [
        {"dst": network, "dev": tunnel.device}
        for tunnel in ([] if config.tunnel is None else [config.tunnel])
        for peer in tunnel.peers
        for network in peer.networks
    ]
    problem = path_problem(lan, link, added) or _policy_problem({*lan, *link})
    if problem is not None:
        return problem
    rules = sum(
        rule.get("table") not in {"local", "main", "default"} and "fwmark" not in rule
        for rule in machine.routing_rules(4)
    )
    extra = f" {rules} rules of ip rule may choose other routes." if rules else ""
    return passed(
        "path",
        f"The routes of this machine use the listed interfaces.{extra} Whether packets return on "
        f"{' or '.join(link)} depends on the routers there, and cannot be checked here.",
    )


def _congestion_controls(plan: Mapping[str, Any]) -> Iterator[Check]:
    legs = (plan["lan"]["tcp"], plan["link"]["tcp"])
    for name in sorted({control for leg in legs if (control := leg["congestion_control"])}):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as tried:
            title = f"congestion control {name}"
            try:
                # The kernel loads the module if it has one.
                tried.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())
            except OSError:
                has = machine.sysctl("net.ipv4.tcp_available_congestion_control") or "none"
                finding = f"The kernel has none of that name; it has {has.replace(' ', ', ')}."
                fix = f"modprobe tcp_{name}, or choose another one"
                yield failed(title, finding, fix)
            else:
                yield passed(title, "The kernel has it.")


def _buffer(plan: Mapping[str, Any]) -> Check:
    asked = plan["buffer_bytes"]
    limit = int(machine.sysctl("fs.pipe-max-size") or 1 << 20)
    if asked > limit:
        finding = (
            f"A pipe holds at most {limit} B here (fs.pipe-max-size), and buffer is {asked} B."
        )
        fix = f"sysctl -w fs.pipe-max-size={asked}, or a smaller buffer"
        return failed("buffer", finding, fix)
    return passed("buffer", f"A pipe may hold {asked} B.")


def _rules(name: str, plan: Mapping[str, Any], *, has_own: bool) -> Check:
    problems = list(_numbers_in_use(name, plan, has_own=has_own))
    if problems:
        finding = " ".join(problem.found for problem in problems)
        fixes = dict.fromkeys(problem.fix for problem in problems)
        return failed("rules", finding, "; ".join(fixes))
    numbers = f"Mark {plan['mark']}, routing table {plan['route_table']}"
    return passed("rules", f"{numbers} and table {name} are free.")


def _sockets(plan: GatePlan, *, is_up: bool) -> Iterator[Check]:
    """Let the program open what a daemon opens; it prints the bounds of its memory.

    Raises:
        UsageError: the configuration names something wrong, such as a key that others may read.
    """
    # The gateway itself uses the port of the metrics, that of its tunnel and its device.
    tried = {**plan, "metrics_listen": None, "tunnel": None} if is_up else {**plan}
    if tried["pep"] is None and tried["tunnel"] is None:
        return
    code, said = machine.run_daemon("check", tried)
    if code == UsageError.exit_code:
        raise UsageError(said)
    if code != 0:
        finding, _, fix = said.partition(FIX)
        fix = fix or "report it with the configuration"
        yield failed("sockets", f"The daemon: {finding}.", fix)
    else:
        yield passed("sockets", f"The daemon can open its sockets: {said}.")


def summary(checks: list[Check]) -> str:
    """Return how many checks are passed, as a sentence."""
    failed = sum(not check.passes for check in checks)
    passed = counted(len(checks) - failed, "check")
    return f"{passed} passed, {failed} failed"


# --- both directions of a connection pass the gateway, as far as its own routes tell -------------


def path_problem(
    lan: Sequence[str], link: Sequence[str], added: Sequence[Mapping[str, Any]] = ()
) -> Check | None:
    """Return the first problem of the routes, or None; the daemon's tunnel adds the ``added`` ones.

    A PEP must see both directions of a connection. Packets that leave or return on an interface of
    neither side pass it by, and the connection is reset.
    """
    listed, tunneled = {*lan, *link}, {route["dst"] for route in added}
    known = {version: [*machine.routes(version), *added] for version in _VERSIONS}
    for version, routes in known.items():
        for destination, interfaces in _best(routes).items():
            others = sorted(interfaces - listed)
            if destination == "default" and others:
                return _elsewhere(f"The IPv{version} default route", others, link)
            if others and interfaces & listed:
                fix = ""
                if destination in tunneled:
                    deleted = (f"ip -{version} route del {destination} dev {o}" for o in others)
                    fix = f"{' && '.join(deleted)}, so that the tunnel alone has this network; or "
                return _elsewhere(f"A part of the packets to {destination}", others, link, fix)
    used = {
        device for routes in known.values() for route in routes for device in machine.devices(route)
    }
    for name in [*lan, *link]:
        if name not in used:
            return failed(
                "path",
                f"No route uses {name}, so no packet leaves on it.",
                f"give {name} an address and the routes to what is behind it (ip route add)",
            )
    return None


def _policy_problem(listed: AbstractSet[str]) -> Check | None:
    """Return a rule of ip rule for the packets of hosts that does not apply to a leg, or None.

    The legs to servers are this machine's own packets, from the addresses of the hosts.
    """
    for version in _VERSIONS:
        rules = machine.routing_rules(version)
        by_source = {rule.get("table") for rule in rules if rule.get("src", "all") != "all"}
        for rule in rules:
            name, table = rule.get("iif"), rule.get("table")
            if name in listed and table not in by_source:
                return failed(
                    "path",
                    f"A rule of ip -{version} rule chooses table {table} for packets from {name}, "
                    "and does not apply to the connections that the gateway opens for them.",
                    f"ip -{version} rule add from NETWORK lookup {table}, with the network behind "
                    f"{name}",
                )
    return None


def _elsewhere(what: str, others: Sequence[str], link: Sequence[str], fix: str = "") -> Check:
    """Return the problem of a route past both sides; ``fix`` is what to try before the others."""
    names = " and ".join(others)
    return failed(
        "path",
        f"{what} uses {names}, on neither side of the gateway: the PEP would see one "
        "direction of a connection only.",
        f"{fix}add {names} to the interfaces of lan or link, or route over {' or '.join(link)}",
    )


def _best(routes: Sequence[Mapping[str, Any]]) -> dict[str, set[str]]:
    """Return the interfaces that are used for each destination: those of the smallest metric."""
    metrics: dict[str, int] = {}
    interfaces: dict[str, set[str]] = {}
    for route in routes:
        destination, metric = route["dst"], int(route.get("metric", 0))
        # A link-local network is on every interface, and a blackhole on none.
        is_local = destination.startswith(("fe80:", "169.254.", "ff00:"))
        if is_local or route.get("type", "unicast") != "unicast" or route.get("dev") == "lo":
            continue
        if metric < metrics.get(destination, metric + 1):
            metrics[destination], interfaces[destination] = metric, set()
        if metric == metrics[destination]:
            interfaces[destination] |= set(machine.devices(route))
    return interfaces


# --- filters of this machine's own packets, which those of split connections are ------------------

# Statements before a verdict that leave it one for all packets, unlike a match or a limit.
_FOR_ALL_PACKETS: Final = {"counter", "log"}
_IS_TRANSPARENT: Final = {"left": {"socket": {"key": "transparent"}}, "right": 1}


def _filters(plan: Mapping[str, Any], name: str) -> Check:
    """Check that INPUT and OUTPUT chains of nftables let the legs of connections pass."""
    for chain, owner, inside in _closed_chains(f"inet {name}"):
        hook = chain["hook"]
        if hook in {"input", "output"} and not any(_accepts_legs(rule, hook) for rule in inside):
            return failed(
                "filters",
                f"Chain {chain['name']} of {owner} in nftables drops or rejects what no rule "
                f"accepts in the hook {hook}: the PEP's own packets.",
                f"nft insert rule {owner} {chain['name']} socket transparent 1 accept",
            )
    return passed("filters", f"Filters of nftables let packets of mark {plan['mark']} pass.")


def _closed_chains(own: str = "") -> Iterator[tuple[Mapping[str, Any], str, list[Any]]]:
    """Yield the filter chains of nftables that drop or reject by policy or by their last rule.

    With each come its table, and the rules of it, of all chains. The table ``own`` is left out.
    """
    ruleset = [entry for entry in machine.nft_ruleset() if _owner(entry) != own]
    rules = [entry["rule"] for entry in ruleset if "rule" in entry]
    for chain in (entry["chain"] for entry in ruleset if "chain" in entry):
        owner = f"{chain['family']} {chain['table']}"
        inside = [rule for rule in rules if f"{rule['family']} {rule['table']}" == owner]
        last: Mapping[str, Any] = next(
            (rule for rule in reversed(inside) if rule["chain"] == chain["name"]), {}
        )
        verdicts = {*chain.get("policy", "").split()}
        statements = {key for part in last.get("expr", []) for key in part} - _FOR_ALL_PACKETS
        verdicts |= statements if len(statements) == 1 else set()
        if chain.get("type") == "filter" and verdicts & {"drop", "reject"}:
            yield chain, owner, inside


def _owner(item: Mapping[str, Any]) -> str:
    """Return the table of an object of nftables."""
    kind = next(iter(item.values()))
    return f"{kind.get('family')} {kind.get('table', kind.get('name'))}"


def _accepts_legs(rule: Mapping[str, Any], hook: str) -> bool:
    """Return whether a rule accepts all legs; in INPUT, those that arrive on lo are enough."""
    statements = rule.get("expr", [])
    matches = [statement["match"] for statement in statements if "match" in statement]
    if not any("accept" in statement for statement in statements):
        return False
    if any(_IS_TRANSPARENT.items() <= match.items() for match in matches):
        return True
    return hook == "input" and any(
        match["left"] in ({"meta": {"key": key}} for key in ("iif", "iifname"))
        and "lo" in [*_parts(match["right"])]
        for match in matches[:1]
    )


# --- the tunnel: its keys, its routes, and filters of its datagrams and of the packets in it ------


# The kernel's metric of a route without one, by version; that of IPv6 is IP6_RT_PRIO_USER.
_METRICS: Final = {4: 0, 6: 1_024}
_EVERYTHING: Final = {4: "0.0.0.0/0", 6: "::/0"}
_HALVES: Final = {4: "0.0.0.0/1 and 128.0.0.0/1", 6: "::/1 and 8000::/1"}
# Of nftables, those of packets of IP.
_FAMILIES: Final = {"ip", "ip6", "inet"}


def _peers(tunnel: DaemonTunnel) -> Check:
    for peer in tunnel.peers:
        if peer.has_placeholder:
            finding = f"The public_key of {peer.name} is the placeholder of an export."
            fix = "write the public key that bentpipe gateway keygen printed on that gateway"
            return failed("peers", finding, fix)
    return passed("peers", "Each peer has a key of its own.")


def _networks(tunnel: DaemonTunnel) -> Check:
    """Check that the tunnel alone has the networks of its peers, and none of its own datagrams."""
    networks = [ip_network(network) for peer in tunnel.peers for network in peer.networks]
    others = [*_other_routes(tunnel)]
    for network, route, device in others:
        version = network.version
        if network in networks and int(route.get("metric", 0)) <= _METRICS[version]:
            text = f"ip -{version} route del {network} dev {device}, or other networks"
            halves = f"networks {_HALVES[version]}, and routes to the endpoints over {device}"
            return failed(
                "networks",
                f"{network} has another route, on {device}: packets would pass the tunnel by.",
                text if network.prefixlen else halves,
            )
        own = [ip_interface(address).network for address in tunnel.addresses]
        # A network behind a gateway may contain that of the tunnel, one of an interface must not.
        if "gateway" not in route and network.prefixlen and any(map(network.overlaps, own)):
            return failed(
                "networks",
                f"The tunnel's addresses are in the network {network} on {device}.",
                "addresses of a network that nothing else has, such as 10.99.0.1/24",
            )
    for name, host in ((peer.name, peer.address) for peer in tunnel.peers if peer.address):
        inside = [network.prefixlen for network in networks if host in network]
        outside = [network.prefixlen for network, *_ in others if host in network]
        if inside and max(inside) >= max(outside, default=-1):
            return failed(
                "networks",
                f"The endpoint of {name}, {host}, is in the networks behind the tunnel, so its own "
                "packets would go into it.",
                f"a route to it over the link: ip -{host.version} route add {host} via GATEWAY",
            )
    return passed("networks", f"{counted(len(networks), 'network')} will be routed to the peers.")


def _other_routes(tunnel: DaemonTunnel) -> Iterator[tuple[Any, Mapping[str, Any], str]]:
    """Yield the routes over other devices than the tunnel's, each with its network and device."""
    for version in _VERSIONS:
        for route in machine.routes(version):
            devices = {*machine.devices(route)} - {tunnel.device, "lo"}
            text = _EVERYTHING[version] if route["dst"] == "default" else route["dst"]
            network = ip_network(text)
            # A link-local network is on every interface.
            if devices and route.get("type", "unicast") == "unicast" and not network.is_link_local:
                yield network, route, min(devices)


def _tunnel_filters(tunnel: DaemonTunnel) -> Check:
    """Look for filters that may drop the tunnel's datagrams, or the packets in it.

    A rule may accept them by what is not looked at, such as a source, so this is advice.
    """
    title, port, device = "tunnel filters", tunnel.port, tunnel.device
    try:
        chains = [*_closed_chains()]
    except MachineError as error:
        finding, _, fix = str(error).partition(FIX)
        return advised(title, f"Filters cannot be checked: {finding}.", fix)
    wanted: dict[str, tuple[int | str, list[str]]] = {
        "input": (port, [f"udp dport {port}"]),
        "output": (port, [f"udp sport {port}"]),
        "forward": (device, [f"iifname {device}", f"oifname {device}"]),
    }
    for chain, owner, inside in chains:
        value, matches = wanted.get(chain["hook"], (0, []))
        if not matches or chain["family"] not in _FAMILIES or value in _accepted(inside):
            continue
        rules = (f"nft insert rule {owner} {chain['name']} {match} accept" for match in matches)
        return advised(
            title,
            f"Chain {chain['name']} of {owner} in nftables drops or rejects what no rule accepts, "
            f"and none names {value}.",
            " && ".join(rules),
        )
    return passed(title, f"No closed chain of nftables lacks a rule for port {port} or {device}.")


def _accepted(rules: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Return all values that are matched by rules that accept."""
    whole = [rule.get("expr", []) for rule in rules]
    accepting = [expr for expr in whole if any("accept" in each for each in expr)]
    matches = (each["match"]["right"] for expr in accepting for each in expr if "match" in each)
    return [part for right in matches for part in _parts(right) if isinstance(part, int | str)]


# --- marks, routing tables and tables of nftables that others use already ------------------------


def _numbers_in_use(name: str, plan: Mapping[str, Any], *, has_own: bool) -> Iterator[Check]:
    """Yield a failed check for each mark, routing table or nftables table that is in use already.

    ``has_own``: rules of this gateway itself are no problem.
    """
    first, table = plan["mark"], plan["route_table"]
    marks = range(first, first + mark_count(plan["workers"]) + 2)
    other_mark = f"write mark = {first + _STEP} in the configuration, or another free one"
    other_table = f"write route_table = {table + 1} in the configuration, or another free one"
    for version in _VERSIONS:
        for rule in machine.routing_rules(version):
            has_mark, has_table = _has_mark(rule, marks), str(rule.get("table")) == str(table)
            if has_own and has_mark and has_table:
                continue
            uses = f"A rule of ip -{version} rule uses"
            if has_mark:
                yield failed("rules", f"{uses} mark {rule['fwmark']}.", other_mark)
            if has_table:
                yield failed("rules", f"{uses} routing table {table}.", other_table)
        routes = machine.routes(version, str(table))
        if routes and not has_own:
            finding = f"Routing table {table} has routes (ip -{version} route show table {table})."
            yield failed("rules", finding, other_table)
    yield from _in_nftables(name, marks, other_mark, has_own=has_own)


def _in_nftables(name: str, marks: range, other_mark: str, *, has_own: bool) -> Iterator[Check]:
    seen = set[str]()
    for entry in machine.nft_ruleset():
        table = entry.get("table", {})
        if (table.get("family"), table.get("name")) == ("inet", name) and not has_own:
            fix = f"nft delete table inet {name}, or choose another name in the configuration"
            yield failed("rules", f"nftables has a table inet {name}, of another owner.", fix)
        rule = entry.get("rule", {})
        owner = f"{rule.get('family')} {rule.get('table')}"
        if owner == f"inet {name}" or owner in seen:
            continue
        # The numbers in statements about the mark of a packet or a connection.
        statements = ([*_parts(statement)] for statement in rule.get("expr", []))
        if any(
            any(isinstance(part, Mapping) and part.get("key") == "mark" for part in parts)
            and any(type(part) is int and part in marks for part in parts)
            for parts in statements
        ):
            seen.add(owner)
            yield failed("rules", f"Table {owner} of nftables uses the mark.", other_mark)


def _has_mark(rule: Mapping[str, Any], marks: range) -> bool:
    if "fwmark" not in rule:
        return False
    value, mask = int(rule["fwmark"], 0), int(rule.get("fwmask", str(_ALL_BITS)), 0)
    return any(mark & mask == value for mark in marks)


def _parts(statement: Any) -> Iterator[Any]:
    """Yield a statement of nftables, and all values in it."""
    yield statement
    if isinstance(statement, Mapping | list):
        for part in statement.values() if isinstance(statement, Mapping) else statement:
            yield from _parts(part)
