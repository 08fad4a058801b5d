"""Checks before a gateway is started: what would keep it from working, each with the fix.

Nothing is changed, but the kernel may load modules that it has.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

from bentpipe.errors import MachineError, UsageError
from bentpipe.gateway import machine
from bentpipe.gateway.config import GatewayConfig
from bentpipe.gateway.machine import FIX, Check, failed, passed
from bentpipe.gateway.network import numbers_in_use, path_problem, path_summary
from bentpipe.gateway.plan import GatePlan
from bentpipe.text import counted, nearest

_CAPABILITIES: Final = ("CAP_SETGID", "CAP_SETUID", "CAP_NET_ADMIN", "CAP_NET_RAW")
# One expression of the rules for each module of the kernel.
_EXPRESSIONS: Final = {
    "nft_socket": "socket transparent 1 accept",
    "nft_tproxy": "tproxy ip to 127.0.0.1:1 accept",
    "nft_fib_inet": "fib daddr type != local accept",
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
    if plan["pep"] is not None:
        checks += _of_pep(config, plan["pep"], plan["name"], has_own=has_own)
    if all(check.ok for check in checks):
        checks += _sockets(plan, is_up=is_up)
    return checks


def _of_pep(
    config: GatewayConfig, plan: Mapping[str, Any], name: str, *, has_own: bool
) -> Iterator[Check]:
    tunnel = config.tunnel
    # The device of the tunnel is made by the daemon.
    listed = [each for each in config.interfaces if tunnel is None or each != tunnel.device]
    interfaces = [_interface(each) for each in listed]
    yield from (_kernel(), _ipv6(), *interfaces)
    if all(check.ok for check in interfaces):
        yield from (_source_marks(listed), _paths(config))
    yield from _congestion_controls(plan)
    yield from (_buffer(plan), _numbers(name, plan, has_own=has_own))


def _installed(name: str, find: Callable[[], object]) -> Check:
    try:
        return passed(name, f"{find()} is installed.")
    except MachineError as error:
        found, _, fix = str(error).partition(FIX)
        return failed(name, f"{found}.", fix)


def _privileges() -> Check:
    if missing := machine.missing_capabilities(*_CAPABILITIES):
        found = f"This process lacks {', '.join(missing)}."
        return failed("privileges", found, "run it as root, with sudo")
    return passed("privileges", "This process may change rules and routes.")


def _kernel() -> Check:
    for module, expression in _EXPRESSIONS.items():
        rules = (
            "table inet bentpipe_check {\n chain prerouting {\n"
            "  type filter hook prerouting priority mangle; policy accept;\n"
            f"  meta l4proto tcp {expression}\n }}\n}}\n"
        )
        reason = machine.refused_by_nft(rules)
        if reason is not None:
            found = f"The kernel does not take a rule with {expression.split()[0]}: {reason}."
            fix = f"modprobe {module}, or use a kernel with CONFIG_{module.upper()}"
            return failed("kernel", found, fix)
    return passed("kernel", "The kernel has the modules for the rules.")


def _ipv6() -> Check:
    disabled = machine.sysctl("net.ipv6.conf.lo.disable_ipv6")
    if disabled is None:
        return failed("ipv6", "The kernel has no IPv6.", "start it without ipv6.disable=1")
    if disabled != "0":
        found = "IPv6 is disabled on lo, where the daemon listens."
        fix = "sysctl -w net.ipv6.conf.lo.disable_ipv6=0"
        return failed("ipv6", found, fix)
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
        found = "This machine does not forward IPv4 packets, so it is no gateway."
        return failed("forwarding", found, "sysctl -w net.ipv4.ip_forward=1")
    return passed("forwarding", f"This machine forwards {' and '.join(on)} packets.")


def _source_marks(listed: list[str]) -> Check:
    name = "source check"
    for interface in listed:
        if machine.interface_setting(interface, "src_valid_mark"):
            found = (
                f"The kernel checks the sources of packets on {interface} by their marks "
                "(src_valid_mark), and would drop those of the gateway."
            )
            fix = f"sysctl -w net.ipv4.conf.all.src_valid_mark=0 net.ipv4.conf.{interface}."
            return failed(name, found, f"{fix}src_valid_mark=0")
    return passed(name, "The kernel checks the sources of packets without marks.")


def _paths(config: GatewayConfig) -> Check:
    lan, link = ([] if side is None else side.interfaces for side in (config.lan, config.link))
    tunnel = config.tunnel
    added = (
        []
        if tunnel is None
        else [
            {"dst": network, "dev": tunnel.device}
            for peer in tunnel.peers
            for network in peer.networks
        ]
    )
    problem = path_problem(lan, link, added)
    return passed("path", path_summary(link)) if problem is None else failed("path", *problem)


def _congestion_controls(plan: Mapping[str, Any]) -> Iterator[Check]:
    legs = (plan["lan"]["tcp"], plan["link"]["tcp"])
    for name in sorted({each for leg in legs if (each := leg["congestion_control"])}):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as tried:
            title = f"congestion control {name}"
            try:
                # The kernel loads the module if it has one.
                tried.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())
            except OSError:
                has = machine.sysctl("net.ipv4.tcp_available_congestion_control") or "none"
                found = f"The kernel has none of that name; it has {has.replace(' ', ', ')}."
                fix = f"modprobe tcp_{name}, or choose another one"
                yield failed(title, found, fix)
            else:
                yield passed(title, "The kernel has it.")


def _buffer(plan: Mapping[str, Any]) -> Check:
    asked = plan["buffer_bytes"]
    limit = int(machine.sysctl("fs.pipe-max-size") or 1 << 20)
    if asked > limit:
        found = f"A pipe holds at most {limit} B here (fs.pipe-max-size), and buffer is {asked} B."
        fix = f"sysctl -w fs.pipe-max-size={asked}, or a smaller buffer"
        return failed("buffer", found, fix)
    return passed("buffer", f"A pipe may hold {asked} B.")


def _numbers(name: str, plan: Mapping[str, Any], *, has_own: bool) -> Check:
    problems = list(numbers_in_use(name, plan, has_own=has_own))
    if problems:
        found = " ".join(problem.found for problem in problems)
        fixes = dict.fromkeys(problem.fix for problem in problems)
        return failed("rules", found, "; ".join(fixes))
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
        found, _, fix = said.partition(FIX)
        fix = fix or "report it with the configuration"
        yield failed("sockets", f"The daemon: {found}.", fix)
    else:
        yield passed("sockets", f"The daemon can open its sockets: {said}.")


def summary(checks: list[Check]) -> str:
    """Return how many checks are passed, as a sentence."""
    failed = sum(not check.ok for check in checks)
    passed = counted(len(checks) - failed, "check")
    return f"{passed} passed, {failed} failed"
