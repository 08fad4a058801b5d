"""Two routers in network namespaces, for tests of gateways: client - A - B - server.

A has the interfaces ``lan0`` to the client and ``sat0`` to B, as the pages of the docs do.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
from conftest import in_process, not_installed

from bentpipe.gateway import find_binary

SERVERS: Final = ("10.0.3.2", "fd03::2")
CLIENTS: Final = ("10.0.1.1", "fd01::1")
# From, its interface, to, its interface, and the third byte of the network.
Link = tuple[str, str, str, str, int]
# Of a host, to all networks (0) or one, by a network and the number of a host there.
Route = tuple[str, int, int, int]
_LINKS: Final[tuple[Link, ...]] = (
    ("client", "eth0", "a", "lan0", 1),
    ("a", "sat0", "b", "sat0", 2),
    ("b", "eth0", "server", "eth0", 3),
)
_ROUTES: Final[tuple[Route, ...]] = (
    ("client", 0, 1, 2),
    ("a", 0, 2, 2),
    ("b", 1, 2, 1),
    ("server", 0, 3, 1),
)
_CLONE_NEWNET: Final = 0x4000_0000
_NUMBERS: Final = itertools.count()
_SYSCTL: Final = Path("/proc/sys/net")
_SYSCTLS: Final = {
    "ipv4/ip_forward": "1",
    "ipv4/tcp_mtu_probing": "1",
    "ipv4/conf/all/rp_filter": "0",
    "ipv4/conf/default/rp_filter": "0",
    "ipv6/conf/all/forwarding": "1",
    "ipv6/conf/all/accept_dad": "0",
    "ipv6/conf/default/accept_dad": "0",
}


def why_no_routers() -> str | None:
    """Return what keeps this machine from having routers."""
    if os.geteuid() != 0:
        return "needs root, for network namespaces and their rules"
    for program in ("ip", "nft", "unshare"):
        if shutil.which(program) is None:
            return not_installed(program)
    tried = subprocess.run(
        ["unshare", "--net", "true"], capture_output=True, text=True, check=False
    )
    return f"no labs here: {tried.stderr.strip()}" if tried.returncode else None


def run(*command: str, given: str | None = None) -> str:
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
    return done.stdout


@dataclass
class Routers:
    """The network; ``prefix`` begins the names of its namespaces."""

    prefix: str = field(default_factory=lambda: f"bpt{os.getpid()}x{next(_NUMBERS)}")
    links: Sequence[Link] = _LINKS
    routes: Sequence[Route] = _ROUTES

    @property
    def hosts(self) -> list[str]:
        return [
            *dict.fromkeys(host for first, _, second, *_ in self.links for host in (first, second))
        ]

    def namespace(self, host: str) -> str:
        return f"{self.prefix}-{host}"

    def on(self, host: str, *command: str) -> str:
        """Return what a program prints on a host."""
        with self.within(host):
            return run(*command)

    def bentpipe(self, host: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run bentpipe on a host."""
        with self.within(host):
            return in_process(*arguments)

    def start(self, host: str, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        """Start bentpipe on a host, in a process group of its own."""
        command = ["ip", "netns", "exec", self.namespace(host), sys.executable, "-m", "bentpipe"]
        return subprocess.Popen([*command, *arguments], text=True, process_group=0, **options)

    def set_up(self) -> None:
        for host in self.hosts:
            run("ip", "netns", "add", self.namespace(host))
            with self.within(host):
                for setting, value in _SYSCTLS.items():
                    (_SYSCTL / setting).write_text(value)
        batches = {host: ["link set lo up"] for host in self.hosts}
        for first, device, second, other, network in self.links:
            there = self.namespace(second)
            # Linux takes up to a second to announce an interface whose peer has the same index.
            pair = f"link add {device} index 9{network} type veth peer name {other} netns {there}"
            batches[first].append(pair)
            for host, name, number in ((first, device, 1), (second, other, 2)):
                batches[host] += [
                    f"addr add 10.0.{network}.{number}/24 dev {name}",
                    f"addr add fd0{network}::{number}/64 dev {name} nodad",
                    f"link set {name} up",
                ]
        for host, to, network, number in self.routes:
            v4, v6 = (f"10.0.{to}.0/24", f"fd0{to}::/64") if to else ("default", "default")
            batches[host] += [
                f"route add {v4} via 10.0.{network}.{number}",
                f"route add {v6} via fd0{network}::{number}",
            ]
        # A pair is made by the host that is named first.
        for host, lines in batches.items():
            self.batch(host, *lines)
        self.wait_for_link_local()

    def batch(self, host: str, *lines: str) -> None:
        """Run commands of ip(8) on a host."""
        command = ["ip", "-n", self.namespace(host), "-batch", "-"]
        run(*command, given="\n".join(lines))

    def wait_for_link_local(self) -> None:
        """Wait until routers can be found: link-local addresses appear by themselves."""
        wait_until(lambda: not any(self._without_link_local(host) for host in self.hosts))

    def _without_link_local(self, host: str) -> set[str]:
        """Return the interfaces with a global address and none of fe80::/10 that is ready."""
        with self.within(host):
            lines = Path("/proc/thread-self/net/if_inet6").read_text().splitlines()
        found: dict[str, set[str]] = {"00": set(), "20": set()}
        for _, _, _, scope, flags, name in map(str.split, lines):
            # IFA_F_TENTATIVE
            if not int(flags, 16) & 0x40:
                found.setdefault(scope, set()).add(name)
        return found["00"] - found["20"] - {"lo"}

    def remove(self) -> None:
        for host in self.hosts:
            command = ["ip", "netns", "del", self.namespace(host)]
            subprocess.run(command, capture_output=True, check=False)

    @contextmanager
    def within(self, host: str) -> Iterator[None]:
        """Open sockets of this thread on a host."""
        with Path("/proc/thread-self/ns/net").open("rb") as own:
            with Path(f"/run/netns/{self.namespace(host)}").open("rb") as other:
                _set_network(other.fileno())
            try:
                yield
            finally:
                _set_network(own.fileno())

    def download(
        self,
        size: int,
        address: str = SERVERS[0],
        *,
        server: str = "server",
        client: str = "client",
    ) -> bytes:
        """Return what a server on its host sends to a client on its own, over the routers."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with self.within(server):
            listener = socket.create_server((address, 0), family=family)

        def serve() -> None:
            accepted, _ = listener.accept()
            with accepted:
                accepted.sendall(content)

        content = os.urandom(size)
        serving = threading.Thread(target=serve, daemon=True)
        with closing(listener):
            serving.start()
            with self.within(client):
                connection = socket.create_connection((address, listener.getsockname()[1]), 10)
            with closing(connection):
                received = b"".join(iter(lambda: connection.recv(65_536), b""))
            serving.join(10)
        assert received == content
        return received

    def snapshot(self, host: str) -> dict[str, str]:
        """Return the rules, routes, settings, files and processes of a host."""
        commands = {
            "nft": ("nft", "list", "ruleset"),
            "addresses": ("ip", "-oneline", "addr", "show", "scope", "global"),
            **{f"rules {v}": ("ip", f"-{v}", "rule") for v in (4, 6)},
            **{f"routes {v}": ("ip", f"-{v}", "route", "show", "table", "all") for v in (4, 6)},
            "sysctls": ("sysctl", "-a", "--pattern", r"^net\.ipv[46]\.(conf|tcp|ip_forward)"),
            "sockets": ("ss", "-Hantup"),
        }
        found = {name: self.on(host, *command) for name, command in commands.items()}
        # Connections that have ended disappear by themselves.
        found["sockets"] = "".join(
            line for line in found["sockets"].splitlines(True) if "TIME-WAIT" not in line
        )
        return found


def daemons_of(name: str) -> list[int]:
    """Return the processes of the program whose plan names a gateway, the first started first."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (entry / "exe").readlink().name == find_binary().name:
                for each in (entry / "fd").iterdir():
                    # A daemon that has just started closes some.
                    with suppress(OSError):
                        if str(each.readlink()) == f"/run/bentpipe/{name}/gateway.json":
                            found[int(entry.name)] = started_ticks(entry)
    # Numbers alone begin anew at some time.
    return sorted(found, key=lambda process: (found[process], process))


def started_ticks(process: Path) -> int:
    """Return when a process of /proc was started: field 22 of proc(5)'s stat."""
    return int((process / "stat").read_text().rpartition(")")[2].split()[19])


def wait_until(condition: Callable[[], object], timeout_s: float = 15.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "this was waited for in vain"
        time.sleep(0.05)


def counters(name: str, function: str = "pep") -> dict[str, Any]:
    read = json.loads(Path(f"/run/bentpipe/{name}/state.json").read_text())
    counted: dict[str, Any] = read[function]
    return counted


def _set_network(descriptor: int) -> None:
    """Move this thread to a network namespace (setns(2)); Python has it since 3.12."""
    library = ctypes.CDLL(None, use_errno=True)
    if library.setns(descriptor, _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")


@contextmanager
def new_routers(made: Routers | None = None) -> Iterator[Routers]:
    """Set up routers for a test, or skip it where they are impossible."""
    reason = why_no_routers()
    if reason is not None:
        pytest.skip(reason)
    made = made or Routers()
    try:
        made.set_up()
        yield made
    finally:
        made.remove()
