"""What a gateway checks before it starts, on machines that lack one thing each."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bentpipe.cli.options import print_checks
from bentpipe.errors import MachineError
from bentpipe.gateway import (
    GatewayConfig,
    examine,
    machine,
    placeholder_key,
    plan_of,
    summary,
)
from bentpipe.gateway.checks import path_problem
from bentpipe.gateway.machine import require

LINKS = {name: {"ifname": name, "flags": ["UP"]} for name in ("lo", "lan0", "sat0")}
ROUTES = [
    {"dst": "default", "gateway": "10.0.2.2", "dev": "sat0"},
    {"dst": "10.0.1.0/24", "dev": "lan0"},
    {"dst": "10.0.2.0/24", "dev": "sat0"},
]
SYSCTLS = {
    "net.ipv4.ip_forward": "1",
    "net.ipv6.conf.all.forwarding": "0",
    "net.ipv6.conf.lo.disable_ipv6": "0",
    "net.ipv4.tcp_available_congestion_control": "reno cubic",
    "net.ipv4.tcp_mtu_probing": "1",
    "fs.pipe-max-size": "1048576",
}


@pytest.fixture
def healthy(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Make this machine a router on which nothing is missing."""
    for name, value in {
        "missing_capabilities": lambda *_: [],
        "program": lambda name: f"/usr/sbin/{name}",
        "sysctl": SYSCTLS.get,
        "interface_setting": lambda _name, _setting: 0,
        "refused_by_nft": lambda _rules: None,
        "nft_ruleset": list,
        "links": lambda: LINKS,
        "routes": lambda version, table="main": ROUTES if (version, table) == (4, "main") else [],
        "routing_rules": lambda _version: [{"priority": 0, "table": "local"}],
        "run_daemon": lambda _verb, _plan: (0, "at most 10000 connections, with at most 9 MB"),
    }.items():
        monkeypatch.setattr(machine, name, value)
    return monkeypatch


def config(**settings: Any) -> GatewayConfig:
    sides = {"lan": {"interfaces": ["lan0"]}, "link": {"interfaces": ["sat0"]}}
    return GatewayConfig.model_validate({"name": "sat", **sides, **settings})


def failures(found: GatewayConfig | None = None, **options: bool) -> list[str]:
    """Return the lines of the error of `up`."""
    chosen = found or config()
    checks = examine(chosen, plan_of(chosen, Path("/none/sat.toml")), **options)
    if all(check.ok for check in checks):
        require(checks)
        return []
    with pytest.raises(MachineError) as raised:
        require(checks)
    assert raised.value.exit_code == 3
    return str(raised.value).splitlines()


def test_on_a_healthy_router_all_checks_are_passed(healthy: pytest.MonkeyPatch) -> None:
    assert healthy is not None
    checks = examine(config(), plan_of(config(), Path("/none/sat.toml")))
    assert [each.name for each in checks if not each.ok] == []
    assert summary(checks) == "16 checks passed, 0 failed"
    assert checks[-1].found == (
        "The daemon can open its sockets: at most 10000 connections, with at most 9 MB."
    )


def test_a_kernel_that_does_not_probe_the_path_is_advised(healthy: pytest.MonkeyPatch) -> None:
    """Given a router as Linux is by default, expect advice that keeps no gateway from starting."""
    healthy.setattr(machine, "sysctl", (SYSCTLS | {"net.ipv4.tcp_mtu_probing": "0"}).get)
    checks = examine(config(), plan_of(config(), Path("/none/sat.toml")))
    (advice,) = (check for check in checks if not check.ok)
    assert (advice.name, advice.needed) == ("path MTU", False)
    assert advice.fix == "sysctl -w net.ipv4.tcp_mtu_probing=1"
    assert summary(checks) == "16 checks passed, 0 failed"
    require(checks)


def without(name: str) -> Callable[[str], str | None]:
    return lambda each: None if each == name else f"/usr/sbin/{each}"


def lacking(word: str) -> Callable[[str], str | None]:
    error = "Error: Could not process rule: No such file or directory"
    return lambda rules: error if word in rules else None


def sysctls(**changed: str | None) -> Callable[[str], str | None]:
    names = {name.replace("__", "."): value for name, value in changed.items()}
    return {**SYSCTLS, **names}.get


LACKING: list[tuple[str, Any, str]] = [
    (
        "missing_capabilities",
        lambda *_: ["CAP_NET_ADMIN", "CAP_NET_RAW"],
        "privileges: This process lacks CAP_NET_ADMIN, CAP_NET_RAW; to fix it: run it as root, "
        "with sudo",
    ),
    ("program", without("nft"), "nft: nft is not installed; to fix it: apt install nftables"),
    ("program", without("ip"), "ip: ip is not installed; to fix it: apt install iproute2"),
    *(
        (
            "refused_by_nft",
            lacking(word),
            f"kernel: The kernel does not take a rule with {word}: Error: Could not process rule: "
            f"No such file or directory; to fix it: modprobe {module}, or use a kernel with "
            f"CONFIG_{module.upper()}",
        )
        for word, module in (
            ("tproxy", "nft_tproxy"),
            ("socket", "nft_socket"),
            ("fib", "nft_fib_inet"),
            ("ct", "nft_ct"),
            ("log", "nft_log"),
            ("snat", "nft_nat"),
        )
    ),
    (
        "sysctl",
        sysctls(net__ipv6__conf__lo__disable_ipv6=None),
        "ipv6: The kernel has no IPv6; to fix it: start it without ipv6.disable=1",
    ),
    (
        "sysctl",
        sysctls(net__ipv6__conf__lo__disable_ipv6="1"),
        "ipv6: IPv6 is disabled on lo, where the daemon listens; to fix it: sysctl -w "
        "net.ipv6.conf.lo.disable_ipv6=0",
    ),
    (
        "sysctl",
        sysctls(net__ipv4__ip_forward="0"),
        "forwarding: This machine does not forward IPv4 packets, so it is no gateway; to fix it: "
        "sysctl -w net.ipv4.ip_forward=1",
    ),
    (
        "links",
        lambda: {name: LINKS[name] for name in ("lo", "lan0")} | {"sat1": LINKS["sat0"]},
        'interface sat0: It does not exist; did you mean "sat1"?; to fix it: name one that exists '
        "in the configuration",
    ),
    (
        "links",
        lambda: {**LINKS, "sat0": {"flags": []}},
        "interface sat0: It is down; to fix it: ip link set sat0 up",
    ),
    (
        "interface_setting",
        lambda name, setting: int((name, setting) == ("sat0", "src_valid_mark")),
        "source check: The kernel checks the sources of packets on sat0 by their marks "
        "(src_valid_mark), and would drop those of the gateway; to fix it: sysctl -w "
        "net.ipv4.conf.all.src_valid_mark=0 net.ipv4.conf.sat0.src_valid_mark=0",
    ),
    (
        "run_daemon",
        lambda _verb, _plan: (3, "10000 connections need 71284 open files; to fix it: fewer"),
        "sockets: The daemon: 10000 connections need 71284 open files; to fix it: fewer",
    ),
    (
        "run_daemon",
        lambda _verb, _plan: (3, "listening for metrics: Address already in use"),
        "sockets: The daemon: listening for metrics: Address already in use; to fix it: report it "
        "with the configuration",
    ),
    (
        "nft_ruleset",
        lambda: [{"table": {"family": "inet", "name": "bentpipe-sat"}}],
        "rules: nftables has a table inet bentpipe-sat, of another owner; to fix it: nft delete "
        "table inet bentpipe-sat, or choose another name in the configuration",
    ),
    (
        "routing_rules",
        lambda _version: [{"priority": 5, "table": "25113"}],
        "rules: A rule of ip -4 rule uses routing table 25113. A rule of ip -6 rule uses routing "
        "table 25113; to fix it: write route_table = 25114 in the configuration, or another free "
        "one",
    ),
    (
        "routing_rules",
        lambda version: (
            [{"fwmark": "0x200", "fwmask": "0x200", "table": "9"}] if version == 4 else []
        ),
        "rules: A rule of ip -4 rule uses mark 0x200; to fix it: write mark = 25344 in the "
        "configuration, or another free one",
    ),
]


@pytest.mark.parametrize(
    ("name", "value", "line"), LACKING, ids=[line[:50] for *_, line in LACKING]
)
def test_what_is_missing_is_one_line_with_the_fix(
    healthy: pytest.MonkeyPatch, name: str, value: Any, line: str
) -> None:
    healthy.setattr(machine, name, value)
    assert failures() == [line]


def test_an_installation_without_the_daemon_is_told_so(healthy: pytest.MonkeyPatch) -> None:
    def missing() -> Path:
        raise MachineError("gate: no such file; to fix it: make")

    healthy.setattr("bentpipe.gateway.machine.find_binary", missing)
    assert failures() == ["daemon: gate: no such file; to fix it: make"]


def test_a_congestion_control_that_the_kernel_lacks_is_named(healthy: pytest.MonkeyPatch) -> None:
    class Without(socket.socket):
        def setsockopt(self, *_: Any) -> None:
            raise FileNotFoundError

    healthy.setattr("bentpipe.gateway.checks.socket.socket", Without)
    found = config(pep={"link_tcp": {"congestion_control": "westwood"}})
    assert failures(found) == [
        "congestion control westwood: The kernel has none of that name; it has reno, cubic; to fix "
        "it: modprobe tcp_westwood, or choose another one"
    ]


def test_a_buffer_beyond_that_of_a_pipe_is_refused(healthy: pytest.MonkeyPatch) -> None:
    assert healthy is not None
    assert failures(config(pep={"buffer": "2 MiB"})) == [
        "buffer: A pipe holds at most 1048576 B here (fs.pipe-max-size), and buffer is 2097152 B; "
        "to fix it: sysctl -w fs.pipe-max-size=2097152, or a smaller buffer"
    ]


def test_rules_of_the_gateway_itself_are_in_nobodys_way(healthy: pytest.MonkeyPatch) -> None:
    own = {"fwmark": "0x6200", "fwmask": "0xfffffffe", "table": "25113"}
    healthy.setattr(machine, "routing_rules", lambda _version: [own])
    healthy.setattr(
        machine, "nft_ruleset", lambda: [{"table": {"family": "inet", "name": "bentpipe-sat"}}]
    )
    assert failures(has_own=True) == []
    assert "of another owner" in failures()[0]


def rule(*expressions: Any, table: str = "other") -> list[dict[str, Any]]:
    return [{"rule": {"family": "ip", "table": table, "expr": list(expressions)}}]


ON_LO = {"match": {"op": "==", "left": {"meta": {"key": "iifname"}}, "right": {"set": ["lo"]}}}
ON_LAN = {"match": {"op": "==", "left": {"meta": {"key": "iifname"}}, "right": "lan0"}}
LEGS = {"match": {"op": "==", "left": {"socket": {"key": "transparent"}}, "right": 1}}
ACCEPT, REJECT = {"accept": None}, {"reject": None}
COUNTER, LOG = {"counter": {"packets": 3, "bytes": 180}}, {"log": None}


@pytest.mark.parametrize(
    ("hook", "policy", "rules", "is_refused"),
    [
        ("input", "drop", [[ON_LAN, ACCEPT]], True),
        ("input", "drop", [[ON_LO, ACCEPT]], False),
        ("input", "drop", [[ON_LO, REJECT]], True),
        ("input", "drop", [[LEGS, ACCEPT]], False),
        ("input", "accept", [[ON_LAN, ACCEPT]], False),
        ("input", "accept", [[ON_LAN, ACCEPT], [REJECT]], True),
        ("input", "accept", [[ON_LO, ACCEPT], [REJECT]], False),
        ("input", "accept", [[COUNTER, LOG, REJECT]], True),
        ("input", "accept", [[{"limit": {"rate": 5, "per": "second"}}, REJECT]], False),
        ("output", "drop", [[ON_LO, ACCEPT]], True),
        ("output", "drop", [[LEGS, ACCEPT]], False),
        ("forward", "drop", [], False),
    ],
)
def test_a_filter_that_drops_the_legs_is_refused(
    healthy: pytest.MonkeyPatch, hook: str, policy: str, rules: list[Any], is_refused: bool
) -> None:
    """Given a chain for this machine's own packets, expect one line with the rule that helps."""
    names = {"family": "ip", "table": "other"}
    chain = names | {"name": "own", "type": "filter", "hook": hook, "policy": policy}
    found = [{"rule": names | {"chain": "own", "expr": each}} for each in rules]
    healthy.setattr(machine, "nft_ruleset", lambda: [{"chain": chain}, *found])
    lines = failures()
    assert len(lines) == is_refused
    assert all("nft insert rule ip other own socket transparent 1 accept" in x for x in lines)


def test_a_rule_for_packets_of_hosts_needs_one_for_the_legs(healthy: pytest.MonkeyPatch) -> None:
    """Given a rule of ip rule by interface, expect it to need another by source."""
    rules = [{"src": "all", "iif": "lan0", "table": "7"}]
    healthy.setattr(machine, "routing_rules", lambda _version: rules)
    assert "ip -4 rule add from NETWORK lookup 7, with the network behind lan0" in failures()[0]
    rules.append({"src": "10.0.1.0", "table": "7"})
    assert failures() == []


MARK = {"meta": {"key": "mark"}}


@pytest.mark.parametrize(
    ("expression", "is_in_use"),
    [
        ({"match": {"op": "==", "left": MARK, "right": 25_089}}, True),
        ({"match": {"op": "==", "left": MARK, "right": {"set": [1, 25_088]}}}, True),
        ({"mangle": {"key": MARK, "value": 25_088}}, True),
        ({"mangle": {"key": {"ct": {"key": "mark"}}, "value": 25_088}}, True),
        ({"match": {"op": "==", "left": MARK, "right": 25_091}}, True),
        ({"match": {"op": "==", "left": MARK, "right": 25_092}}, False),
        ({"counter": {"packets": 25_088, "bytes": 1}}, False),
        ({"match": {"left": {"payload": {"field": "dport"}}, "right": 25_088}}, False),
    ],
    ids=str,
)
def test_marks_in_rules_of_others_are_found(
    healthy: pytest.MonkeyPatch, expression: dict[str, Any], is_in_use: bool
) -> None:
    healthy.setattr(machine, "nft_ruleset", lambda: rule(expression))
    found = failures()
    assert bool(found) == is_in_use
    if found:
        assert found[0].startswith("rules: Table ip other of nftables uses the mark; to fix it: ")


@pytest.mark.parametrize(
    ("routes", "said"),
    [
        (ROUTES, None),
        # A default route that another one replaces is not used.
        ([*ROUTES, {"dst": "default", "dev": "wan1", "metric": 100}], None),
        ([*ROUTES, {"dst": "192.168.0.0/24", "dev": "mgmt0"}], None),
        ([{"dst": "default", "dev": "wan1"}, *ROUTES[1:]], "The IPv4 default route uses wan1, on"),
        (
            [{"dst": "default", "nexthops": [{"dev": "sat0"}, {"dev": "wan1"}]}, *ROUTES[1:]],
            "The IPv4 default route uses wan1, on neither side",
        ),
        (
            [*ROUTES, {"dst": "10.9.0.0/16", "nexthops": [{"dev": "sat0"}, {"dev": "wan1"}]}],
            "A part of the packets to 10.9.0.0/16 uses wan1",
        ),
        ([*ROUTES, {"dst": "10.9.0.0/16", "type": "blackhole"}], None),
        (ROUTES[1:2], "No route uses sat0, so no packet leaves on it."),
    ],
    ids=str,
)
def test_paths_past_the_gateway_are_found(
    healthy: pytest.MonkeyPatch, routes: list[dict[str, Any]], said: str | None
) -> None:
    healthy.setattr(machine, "routes", lambda version: routes if version == 4 else [])
    problem = path_problem(["lan0"], ["sat0"])
    if said is None:
        assert problem is None
    else:
        assert problem is not None
        assert said in problem.found


def tunnel_config(key: str = "another", **settings: Any) -> GatewayConfig:
    """Return a gateway with a tunnel; ``endpoint`` and ``networks`` are those of its peer."""
    peer = {"name": "b", "public_key": placeholder_key(key), "networks": ["10.0.3.0/24"]}
    peer |= {name: settings.pop(name) for name in ("endpoint", "networks") if name in settings}
    tunnel = {"addresses": ["10.99.0.1/24"], "private_key": "key", "titration": "immediate"}
    return GatewayConfig.model_validate(
        {"name": "sat", "functions": ["tunnel"], "tunnel": {**tunnel, **settings, "peers": [peer]}}
    )


BESIDE = [*ROUTES, {"dst": "10.0.3.0/24", "dev": "wan1"}]
IPV6_ROUTES = [
    {"dst": "2001:db8:1::/64", "dev": "lan0", "metric": 256},
    {"dst": "2001:db8:3::/64", "gateway": "2001:db8:2::2", "dev": "sat0", "metric": 1024},
    {"dst": "2001:db8:4::/64", "gateway": "2001:db8:2::2", "dev": "sat0", "metric": 2000},
    {"dst": "fe80::/64", "dev": "lan0", "metric": 256},
    {"dst": "default", "gateway": "2001:db8:2::2", "dev": "sat0", "metric": 1024},
]
NO_TUNNEL: list[tuple[dict[str, Any], list[dict[str, Any]], str | None]] = [
    ({}, ROUTES, None),
    ({"key": "b"}, ROUTES, "peers: The public_key of b is the placeholder of an export; to fix it"),
    ({}, BESIDE, "ip -4 route del 10.0.3.0/24 dev wan1, or other networks"),
    # What is used after the tunnel's own route, what closes it after a kill, and that route itself.
    ({}, [*ROUTES, {**BESIDE[-1], "metric": 50}], None),
    ({}, [*ROUTES, {"dst": "10.0.3.0/24", "type": "unreachable", "protocol": "98"}], None),
    ({}, [*ROUTES, {"dst": "10.0.3.0/24", "dev": "bp0"}], None),
    ({"networks": ["10.0.1.0/24"]}, ROUTES, "10.0.1.0/24 has another route, on lan0"),
    ({"networks": ["0.0.0.0/0"]}, ROUTES, "0.0.0.0/0 has another route, on sat0"),
    ({"networks": ["0.0.0.0/0"]}, ROUTES, "networks 0.0.0.0/1 and 128.0.0.0/1, and routes to the"),
    ({"addresses": ["10.0.1.9/25"]}, ROUTES, "are in the network 10.0.1.0/24 on lan0; to fix it"),
    # What contains it behind a router does not take its packets.
    ({}, [*ROUTES, {"dst": "10.0.0.0/8", "gateway": "10.0.2.2", "dev": "sat0"}], None),
    ({"endpoint": "10.0.3.9:51871"}, ROUTES, "The endpoint of b, 10.0.3.9, is in the networks"),
    ({"endpoint": "10.0.3.9:51871"}, [*ROUTES, {"dst": "10.0.3.9", "dev": "sat0"}], None),
    ({"networks": ["0.0.0.0/1"], "endpoint": "10.0.2.2:51871"}, ROUTES, None),
    ({"addresses": ["10.99.0.1/24", "fe80::1/64"]}, ROUTES, None),
    ({"networks": ["2001:db8:1::/64"]}, ROUTES, "ip -6 route del 2001:db8:1::/64 dev lan0, or"),
    ({"networks": ["2001:db8:3::/64"]}, ROUTES, "ip -6 route del 2001:db8:3::/64 dev sat0, or"),
    ({"networks": ["2001:db8:4::/64"]}, ROUTES, None),
    ({"networks": ["::/0"]}, ROUTES, "networks ::/1 and 8000::/1, and routes to the endpoints"),
    (
        {"networks": ["2001:db8:9::/48"], "endpoint": "[2001:db8:9::5]:51871"},
        ROUTES,
        "-6 route add",
    ),
    ({"networks": ["0.0.0.0/1"], "endpoint": "9.9.9.9:51871"}, ROUTES, "add 9.9.9.9 via GATEWAY"),
]


@pytest.mark.parametrize(("settings", "routes", "said"), NO_TUNNEL, ids=str)
def test_what_keeps_a_tunnel_from_carrying_is_one_line(
    healthy: pytest.MonkeyPatch,
    settings: dict[str, Any],
    routes: list[dict[str, Any]],
    said: str | None,
) -> None:
    """Given keys, routes and addresses, expect the one that is in the way, with the fix."""
    healthy.setattr(machine, "routes", lambda version: routes if version == 4 else IPV6_ROUTES)
    found = failures(tunnel_config(**settings))
    assert len(found) == (said is not None)
    assert (said or "") in "".join(found)


@pytest.mark.parametrize(
    ("hook", "expression", "fix"),
    [
        ("input", ON_LAN, "nft insert rule ip other own udp dport 51871 accept"),
        ("input", {"match": {"left": {"payload": {}}, "right": {"set": [53, 51871]}}}, None),
        (
            "forward",
            ON_LAN,
            "nft insert rule ip other own iifname bp0 accept && nft insert rule ip other own "
            "oifname bp0 accept",
        ),
        ("forward", {"match": {"left": {"meta": {"key": "iifname"}}, "right": "bp0"}}, None),
        # A counter is no match.
        ("input", {"counter": {"packets": 51871}}, "nft insert rule ip other own udp dport"),
        ("output", ON_LAN, "nft insert rule ip other own udp sport 51871 accept"),
        ("prerouting", ON_LAN, None),
    ],
    ids=str,
)
def test_a_filter_that_does_not_name_the_tunnel_is_pointed_out(
    healthy: pytest.MonkeyPatch, hook: str, expression: dict[str, Any], fix: str | None
) -> None:
    """Given a closed chain, expect advice: what it accepts may contain the tunnel's packets."""
    names = {"family": "ip", "table": "other"}
    chain = names | {"name": "own", "type": "filter", "hook": hook, "policy": "drop"}
    own = names | {"chain": "own", "expr": [expression, ACCEPT]}
    healthy.setattr(machine, "nft_ruleset", lambda: [{"chain": chain}, {"rule": own}])
    found = tunnel_config()
    checks = examine(found, plan_of(found, Path("/none/sat.toml")))
    advice = [check.fix for check in checks if not check.ok]
    assert len(advice) == (fix is not None)
    assert all(each.startswith(fix or "") for each in advice)
    assert all(check.passes for check in checks)


def test_filters_that_cannot_be_listed_keep_no_tunnel_from_starting(
    healthy: pytest.MonkeyPatch,
) -> None:
    """Given an nft without JSON, which a tunnel does not need, expect advice."""

    def refused() -> list[Any]:
        raise MachineError("nft: no JSON support; to fix it: update nft")

    healthy.setattr(machine, "nft_ruleset", refused)
    found = tunnel_config()
    (advice,) = (
        check for check in examine(found, plan_of(found, Path("/none/sat.toml"))) if not check.ok
    )
    assert (advice.needed, advice.fix) == (False, "update nft")
    assert advice.found == "Filters cannot be checked: nft: no JSON support."


def test_a_tunnel_that_fails_open_is_advised_against(
    healthy: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Given fail = "open", expect advice that keeps nothing from starting; by default, none."""
    assert healthy is not None
    for mode, expected in (("closed", []), ("open", ["clear text"])):
        found = tunnel_config(fail=mode)
        checks = examine(found, plan_of(found, Path("/none/sat.toml")))
        assert [check.name for check in checks if not check.ok] == expected
        assert all(check.passes for check in checks)
    print_checks(checks)
    lines = capsys.readouterr().out.splitlines()
    (line,) = (line for line in lines if line.startswith("-  "))
    assert line.endswith("packets for the networks of its peers leave in clear text.")
    healthy.setenv("COLUMNS", "80")
    print_checks(checks)
    on_terminal = capsys.readouterr().out
    assert max(map(len, on_terminal.splitlines())) <= 80
    assert on_terminal.split() == "\n".join(lines).split()


def test_a_route_beside_that_of_the_tunnel_is_to_be_deleted_first(
    healthy: pytest.MonkeyPatch,
) -> None:
    """Given a PEP before a tunnel, and a plain route to the network of its peer, expect the fix."""
    plain = [*ROUTES, {"dst": "10.0.3.0/24", "dev": "wan1"}]
    healthy.setattr(machine, "routes", lambda version: plain if version == 4 else [])
    tunneled = [{"dst": "10.0.3.0/24", "dev": "bp0"}]
    problem = path_problem(["lan0"], ["sat0", "bp0"], tunneled)
    assert problem is not None
    fix = "ip -4 route del 10.0.3.0/24 dev wan1, so that the tunnel alone has this network; or add "
    assert problem.fix.startswith(fix)
    # The tunnel's own route of a gateway that is up is no obstacle.
    healthy.setattr(machine, "routes", lambda version: [*ROUTES, *tunneled] * (version == 4))
    assert path_problem(["lan0"], ["sat0", "bp0"], tunneled) is None
