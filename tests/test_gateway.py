"""Gateways on a router between a client and a server, in network namespaces."""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from conftest import ROOT
from routers import SERVERS, Routers, counters, daemons_of, new_routers, wait_until

from bentpipe.gateway.program import find_binary

pytestmark = pytest.mark.system

CONFIG = """\
name = "{name}"
functions = ["pep"]

[lan]
interfaces = ["lan0"]

[link]
interfaces = ["sat0"]

[pep]
connections = 100
threads = 1
"""
BASE = Path("/run/bentpipe")
BENTPIPE = f"{sys.executable} -m bentpipe"
# From linux/ptrace.h and linux/wait.h.
_PTRACE_SEIZE: Final = 0x4206
_PTRACE_INTERRUPT: Final = 0x4207
_WALL: Final = 0x4000_0000
# linux/tcp.h: the option, and `struct tcp_md5sig` with the address of the other end.
_TCP_MD5SIG: Final = 14
_MD5_KEY: Final = b"a secret of both ends"
# The same on all machines (linux/unistd.h).
_SYS_PIDFD_GETFD: Final = 438


@pytest.fixture
def routers() -> Iterator[Routers]:
    with new_routers() as made:
        yield made


class Gateway:
    """A gateway with a name of its own on a host of the routers."""

    def __init__(self, routers: Routers, folder: Path, host: str = "a", text: str = "") -> None:
        self.name = f"{routers.prefix}{host}"
        self.routers, self.host = routers, host
        self.config = folder / f"{self.name}.toml"
        self.config.write_text(CONFIG.format(name=self.name) + text)

    def call(self, verb: str, *options: str) -> subprocess.CompletedProcess[str]:
        takes_config = verb in {"up", "check", "unit"}
        chosen = str(self.config) if takes_config else self.name
        return self.routers.bentpipe(self.host, "gateway", verb, chosen, *options)

    def up(self) -> None:
        done = self.call("up")
        assert done.returncode == 0, done.stderr

    def down(self) -> str:
        done = self.call("down")
        assert done.returncode == 0, done.stderr
        return done.stderr

    @property
    def folder(self) -> Path:
        return BASE / self.name

    def workers(self) -> dict[str, Any]:
        """Return how the workers are."""
        return counters(self.name, "pep_workers")

    def wait_for_split(self, connections: int) -> None:
        wait_until(lambda: counters(self.name)["split_connections"] == connections)


@pytest.fixture
def gateway(routers: Routers, tmp_path: Path) -> Iterator[Gateway]:
    made = Gateway(routers, tmp_path)
    yield made
    if made.folder.exists():
        made.call("down")


def test_it_splits_connections_until_down_and_nothing_of_it_is_left(gateway: Gateway) -> None:
    """Given a gateway, expect it to split streams of IPv4 and IPv6, and no trace after `down`."""
    before = gateway.routers.snapshot("a")
    done = gateway.call("up")
    assert done.returncode == 0, done.stderr
    assert f"gateway {gateway.name} is up, kept by process" in done.stderr
    assert "at most 100 TCP connections between lan0 and sat0" in done.stderr
    for address in SERVERS:
        gateway.routers.download(300_000, address)
    gateway.wait_for_split(2)
    status = gateway.call("status", "--json")
    assert status.returncode == 0, status.stderr
    found = json.loads(status.stdout)
    assert found["counters"]["pep"]["to_client_bytes"] == 600_000
    bound = re.search(r"with at most (\d+) MB in a process", done.stderr)
    assert bound is not None
    assert 0 < found["counters"]["pep"]["memory_bytes"] <= int(bound[1]) * 1_000_000
    assert sorted(found["processes"]) == sorted(daemons_of(gateway.name))
    assert len(found["processes"]) == 2
    assert gateway.routers.snapshot("a") != before
    assert "2 connections, 0 B to servers, 600 kB to clients" in gateway.down()
    assert gateway.routers.snapshot("a") == before
    assert daemons_of(gateway.name) == []
    assert not gateway.folder.exists()
    gateway.routers.download(1_000)


def test_it_needs_no_other_program(gateway: Gateway) -> None:
    """Given no program in its path, expect the checks, the start and the end of a gateway."""
    for verb in ("check", "up"):
        run_alone(gateway, verb, str(gateway.config))
    gateway.routers.download(1_000)
    gateway.wait_for_split(1)
    run_alone(gateway, "down", gateway.name)
    assert gateway.routers.on("a", "nft", "list", "ruleset") == ""


def run_alone(gateway: Gateway, *arguments: str) -> None:
    command, path = [str(find_binary()), *arguments], {"PATH": "/nonexistent"}
    with gateway.routers.within("a"):
        subprocess.run(command, env=path, capture_output=True, check=True)


@pytest.mark.parametrize("server", SERVERS)
def test_signed_connections_pass_unsplit(gateway: Gateway, server: str) -> None:
    """Given ends that sign their segments (RFC 2385), expect the gateway to leave them alone.

    Their SYNs are not held: a connection is there long before the first would be repeated.
    """
    gateway.up()
    family = socket.AF_INET6 if ":" in server else socket.AF_INET
    made = {}
    for host in ("client", "server"):
        with gateway.routers.within(host):
            made[host] = socket.socket(family)
    with gateway.routers.within("client"), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((server, 9))
        client = probe.getsockname()[0]
    with made["client"] as connection, made["server"] as listener:
        for end, other in ((connection, server), (listener, client)):
            end.setsockopt(socket.IPPROTO_TCP, _TCP_MD5SIG, md5_signature(family, other))
        listener.bind((server, 0))
        listener.listen()
        connection.settimeout(0.9)
        connection.connect(listener.getsockname()[:2])
        with listener.accept()[0] as accepted:
            accepted.sendall(b"signed")
            assert connection.recv(100) == b"signed"
    gateway.routers.download(1_000, server)
    gateway.wait_for_split(1)
    assert counters(gateway.name)["unsplit_connections"] == 0, "the daemon does not see them"


def md5_signature(family: int, address: str) -> bytes:
    """Return the key for the other end."""
    # The address follows the port, and with IPv6 the flow label, too.
    before = "=H2x" if family == socket.AF_INET else "=H6x"
    other = struct.pack(before, family) + socket.inet_pton(family, address)
    return other.ljust(128, b"\0") + struct.pack("=BBHi80s", 0, 0, len(_MD5_KEY), 0, _MD5_KEY)


def test_a_reload_changes_new_connections_alone(gateway: Gateway) -> None:
    """Given a split connection, and a reload that leaves its client out, expect it to go on.

    New ones pass then; after a reload of the first configuration they are split again at once.
    """
    routers, first = gateway.routers, gateway.config.read_text()
    gateway.up()
    with routers.within("server"):
        listener = socket.create_server((SERVERS[0], 0))
    with routers.within("client"):
        client = socket.create_connection(listener.getsockname(), timeout=20)
    server, _ = listener.accept()
    gateway.wait_for_split(1)
    gateway.config.write_text(first + '[pep.except]\nnetworks = ["10.0.0.0/8"]\n')
    # On one processor, where `threads` would be 1 by default.
    processors = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(processors)})
    try:
        done = gateway.call("reload")
    finally:
        os.sched_setaffinity(0, processors)
    assert (done.returncode, done.stderr) == (
        0,
        f"bentpipe: gateway {gateway.name} has the settings of {gateway.config}\n",
    )
    assert "left out, networks          10.0.0.0/8\n" in gateway.call("status").stdout
    routers.download(1_000)
    client.sendall(b"still")
    assert server.recv(5, socket.MSG_WAITALL) == b"still"
    gateway.config.write_text(first)
    # The privileged part is older than its workers.
    os.kill(daemons_of(gateway.name)[0], signal.SIGHUP)
    wait_until(lambda: "left out" not in gateway.call("status").stdout)
    routers.download(2_000)
    gateway.wait_for_split(2)
    client.close()
    server.close()
    listener.close()
    gateway.config.write_text(first.replace("connections = 100", "connections = 200"))
    done = gateway.call("reload")
    assert (done.returncode, "cannot change pep.connections;" in done.stderr) == (2, True)
    other = gateway.config.with_name("other.toml")
    other.write_text(first)
    kept = gateway.config.rename(gateway.config.with_name("kept.toml"))
    done = gateway.routers.bentpipe(gateway.host, "gateway", "reload", str(other))
    assert (done.returncode, "to fix it: change that file" in done.stderr) == (2, True)
    kept.rename(gateway.config)
    # As a daemon of an earlier version.
    (gateway.folder / "control").unlink()
    done = gateway.call("reload")
    assert (done.returncode, "its version cannot change" in done.stderr) == (3, True)
    assert "2 connections, 5 B to servers, 2 kB to clients" in gateway.down()


@pytest.mark.thorough
@pytest.mark.parametrize("killed", ["daemon", "both"])
def test_down_removes_what_a_killed_gateway_has_left(gateway: Gateway, killed: str) -> None:
    """Given a killed daemon, expect new connections to pass, and `down` to leave nothing.

    `down` runs in another network namespace than the gateway.
    """
    before = gateway.routers.snapshot("a")
    gateway.up()
    parent, worker = daemons_of(gateway.name)
    for pid in {"daemon": [parent], "both": [parent, worker]}[killed]:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: daemons_of(gateway.name) == [])
    done = gateway.call("status")
    assert done.returncode == 3
    assert "connections pass without it" in done.stderr
    gateway.routers.download(1_000)
    done = gateway.routers.bentpipe("server", "gateway", "down", gateway.name)
    assert done.returncode == 0, done.stderr
    assert gateway.routers.snapshot("a") == before
    assert not gateway.folder.exists()


def test_a_killed_worker_is_replaced(gateway: Gateway) -> None:
    """Given a killed worker, expect another one that splits connections, and the reason logged."""
    before = gateway.routers.snapshot("a")
    gateway.up()
    parent, worker = daemons_of(gateway.name)
    os.kill(worker, signal.SIGKILL)
    gateway.routers.download(1_000)
    wait_until(lambda: gateway.workers()["failures"] == 1 and gateway.workers()["is_splitting"])
    # The new worker may have split the download before, and not reported it yet.
    split = counters(gateway.name)["split_connections"]
    gateway.routers.download(1_000)
    wait_until(lambda: counters(gateway.name)["split_connections"] > split)
    assert worker not in daemons_of(gateway.name)
    assert daemons_of(gateway.name)[0] == parent
    assert "workers replaced            1\n" in gateway.call("status").stdout
    logged = (gateway.folder / "log").read_text()
    assert "the worker of the PEP: it has ended (signal: 9 (SIGKILL)); its connect" in logged
    gateway.down()
    assert gateway.routers.snapshot("a") == before


def test_a_worker_without_a_supply_of_sockets_is_replaced(gateway: Gateway) -> None:
    """Given nonsense in place of a request for sockets, expect another worker.

    It ends the thread that opens them. The worker would let all connections pass from then on.
    """
    gateway.up()
    _, worker = daemons_of(gateway.name)
    # A copy of its standard output, the channel (pidfd_getfd(2)).
    process = os.pidfd_open(worker)
    copy = ctypes.CDLL(None).syscall(_SYS_PIDFD_GETFD, process, 1, 0)
    os.close(process)
    with socket.socket(fileno=copy) as channel:
        channel.send(b"nonsense")
    wait_until(lambda: gateway.workers()["failures"] == 1 and gateway.workers()["is_splitting"])
    gateway.routers.download(1_000)
    gateway.wait_for_split(1)
    logged = (gateway.folder / "log").read_text()
    assert "the thread that opens its sockets has ended: it has returned; its connect" in logged


def stop_thread(process: int, name: str) -> None:
    """Stop one thread of a process until the process is killed, as a debugger does."""
    tasks = Path(f"/proc/{process}/task").iterdir()
    (thread,) = (int(task.name) for task in tasks if (task / "comm").read_text() == f"{name}\n")
    stopped = threading.Event()

    def trace() -> None:
        library = ctypes.CDLL(None, use_errno=True)
        for request in (_PTRACE_SEIZE, _PTRACE_INTERRUPT):
            if library.ptrace(request, thread, None, None) != 0:
                raise OSError(ctypes.get_errno(), "ptrace")
        os.waitpid(thread, _WALL)
        stopped.set()
        # A thread that ends while it is traced ends once the tracer knows.
        os.waitpid(thread, _WALL)

    threading.Thread(target=trace, daemon=True).start()
    assert stopped.wait(5)


@pytest.mark.parametrize(
    "thread", ["syn-holder", pytest.param("relay-0", marks=pytest.mark.thorough)]
)
def test_a_worker_whose_thread_hangs_is_replaced(gateway: Gateway, thread: str) -> None:
    """Given a thread that hangs, expect new connections to pass, and then another worker."""
    gateway.up()
    gateway.routers.download(1_000)
    gateway.wait_for_split(1)
    parent, worker = daemons_of(gateway.name)
    stop_thread(worker, thread)
    # It reports for at most 0.75 s, and the rules hold connections for 1.8 s after that.
    wait_until(lambda: not gateway.workers()["is_splitting"], timeout_s=4)
    status = gateway.call("status").stdout
    assert "new connections             pass without the PEP: 1 worker missing\n" in status
    gateway.routers.download(1_000)
    # It may go on, and has 10 s for it.
    assert daemons_of(gateway.name) == [parent, worker]
    wait_until(lambda: gateway.workers()["is_splitting"], timeout_s=25)
    assert gateway.workers() == {
        "is_splitting": True,
        "workers": 1,
        "missing": 0,
        "failures": 1,
    }
    assert worker not in daemons_of(gateway.name)
    gateway.routers.download(1_000)
    gateway.wait_for_split(2)


def test_a_killed_gateway_is_started_again_by_up(gateway: Gateway) -> None:
    gateway.up()
    for pid in daemons_of(gateway.name):
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: daemons_of(gateway.name) == [])
    gateway.up()
    gateway.routers.download(1_000)
    gateway.wait_for_split(1)


def test_down_works_where_the_namespace_is_gone(gateway: Gateway) -> None:
    """Given a killed gateway whose network namespace is gone, expect its files to be removed."""
    gateway.up()
    for pid in daemons_of(gateway.name):
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: daemons_of(gateway.name) == [])
    gateway.routers.remove()
    command = [sys.executable, "-m", "bentpipe", "gateway", "down", gateway.name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not gateway.folder.exists()


def test_a_gateway_that_is_up_is_not_started_twice(gateway: Gateway) -> None:
    gateway.up()
    processes = daemons_of(gateway.name)
    done = gateway.call("up")
    assert done.returncode == 3
    assert f"gateway {gateway.name} is up already; to fix it: end it with" in done.stderr
    assert daemons_of(gateway.name) == processes
    done = gateway.call("check")
    assert done.returncode == 0, done.stdout + done.stderr
    gateway.routers.download(1_000)
    gateway.wait_for_split(1)


@pytest.mark.thorough
def test_two_gateways_in_two_namespaces_do_not_meet(routers: Routers, tmp_path: Path) -> None:
    """Given two with the same marks and tables, expect both to split a connection each.

    One ends alone.
    """
    first = Gateway(routers, tmp_path)
    second = Gateway(routers, tmp_path, "b")
    text = second.config.read_text()
    text = text.replace("lan0", "eth0")
    second.config.write_text(text)
    before = routers.snapshot("b")
    try:
        first.up()
        second.up()
        for address in SERVERS:
            routers.download(100_000, address)
        for each in (first, second):
            each.wait_for_split(2)
        done = routers.bentpipe("a", "gateway", "status")
        assert done.returncode == 2
        assert "several are up; name one of" in done.stderr
        second.down()
        assert routers.snapshot("b") == before
        routers.download(1_000)
        first.wait_for_split(3)
    finally:
        for each in (first, second):
            if each.folder.exists():
                each.down()


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_in_the_foreground_a_signal_ends_it_and_nothing_is_left(
    gateway: Gateway, sent: signal.Signals
) -> None:
    """Given Ctrl-C, which the terminal sends to all its processes, or SIGTERM, expect code 0."""
    before = gateway.routers.snapshot("a")
    command = ("gateway", "up", str(gateway.config), "--foreground")
    with gateway.routers.start("a", *command, stderr=subprocess.PIPE) as process:
        wait_until((gateway.folder / "state.json").exists)
        gateway.routers.download(1_000)
        assert gateway.call("status").returncode == 0
        if sent == signal.SIGINT:
            os.killpg(process.pid, sent)
        else:
            process.send_signal(sent)
        assert process.wait(10) == 0
    assert gateway.routers.snapshot("a") == before
    assert not gateway.folder.exists()


def test_a_full_run_folder_is_one_message_and_nothing_starts(gateway: Gateway) -> None:
    script = (
        "mount -t tmpfs -o size=4k none /run && "
        "(head -c 9000 /dev/zero > /run/full || true) 2> /dev/null && "
        f"exec {BENTPIPE} gateway up {gateway.config}"
    )
    namespace = gateway.routers.namespace("a")
    command = ["ip", "netns", "exec", namespace, "unshare", "--mount", "sh", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert "No space left on device; to fix it:" in done.stderr
    assert done.stderr.count("\n") == 1
    assert gateway.routers.on("a", "nft", "list", "ruleset") == ""


@pytest.mark.thorough
def test_a_run_folder_that_fills_does_not_end_a_gateway(gateway: Gateway) -> None:
    """Given no space for the counters, expect connections to be split as before."""
    script = (
        "mount -t tmpfs -o size=64k none /run && "
        f"{BENTPIPE} gateway up {gateway.config} && "
        "(head -c 90000 /dev/zero > /run/full || true) 2> /dev/null && sleep 3 && "
        f"{BENTPIPE} gateway status {gateway.name} && {BENTPIPE} gateway down {gateway.name}"
    )
    namespace = gateway.routers.namespace("a")
    command = ["ip", "netns", "exec", namespace, "unshare", "--mount", "sh", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert gateway.routers.on("a", "nft", "list", "ruleset") == ""


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            "nft add table inet other; nft add chain inet other c; "
            "nft add rule inet other c meta mark 0x6201 accept",
            "rules: Table inet other of nftables uses the mark; to fix it: write mark = 25344 in",
        ),
        (
            "ip rule add fwmark 0x6200 lookup 77",
            "rules: A rule of ip -4 rule uses mark 0x6200; to fix it: write mark = 25344 in",
        ),
        (
            "ip -6 route add local default dev lo table 25113",
            "rules: Routing table 25113 has routes (ip -6 route show table 25113); to fix it: "
            "write route_table = 25114 in",
        ),
        (
            "sysctl -qw net.ipv4.conf.all.src_valid_mark=1",
            "source check: The kernel checks the sources of packets on lan0 by their marks",
        ),
        (
            "sysctl -qw net.ipv4.ip_forward=0",
            "forwarding: This machine does not forward IPv4 packets, so it is no gateway; to fix "
            "it: sysctl -w net.ipv4.ip_forward=1",
        ),
        (
            "sysctl -qw net.ipv6.conf.lo.disable_ipv6=1",
            "ipv6: IPv6 is disabled on lo, where the daemon listens; to fix it: sysctl -w",
        ),
        ("ip link set sat0 down", "interface sat0: It is down; to fix it: ip link set sat0 up"),
        (
            "ip link add wan1 type veth peer name wan2; ip addr add 10.9.0.1/24 dev wan1; "
            "ip link set wan1 up; ip link set wan2 up; "
            "ip route replace default via 10.9.0.2",
            "path: The IPv4 default route uses wan1, on neither side of the gateway: the PEP "
            "would see one direction of a connection only; to fix it: add wan1 to the",
        ),
    ],
    ids=lambda value: value.split(";")[0][:40],
)
def test_where_it_would_break_connections_it_does_not_start(
    gateway: Gateway, change: str, said: str
) -> None:
    """Given a router that a gateway would break, expect one line with the fix and no change."""
    gateway.routers.on("a", "sh", "-c", change)
    before = gateway.routers.snapshot("a")
    done = gateway.call("up")
    assert done.returncode == 3
    assert said in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    checked = gateway.call("check")
    assert checked.returncode == 3
    assert checked.stdout.count("NO ") == 1
    assert gateway.routers.snapshot("a") == before
    assert not gateway.folder.exists()


def test_a_strict_check_of_sources_is_no_obstacle(gateway: Gateway) -> None:
    """Given rp_filter=1, as distributions have it, expect connections to be split."""
    settings = [f"net.ipv4.conf.{name}.rp_filter=1" for name in ("all", "lan0", "sat0", "lo")]
    gateway.routers.on("a", "sysctl", "-qw", *settings)
    gateway.up()
    gateway.routers.download(50_000)
    gateway.wait_for_split(1)


@pytest.mark.thorough
def test_the_watched_status_goes_into_a_pipe_until_the_gateway_ends(gateway: Gateway) -> None:
    gateway.up()
    command = ("gateway", "status", gateway.name, "--watch")
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with gateway.routers.start("a", *command, **options) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        assert first.startswith(f"{gateway.name}: pep, lan0 to sat0, up for ")
        gateway.down()
        _, said = process.communicate(timeout=20)
        assert said == f"bentpipe: gateway {gateway.name} has ended\n"
        assert process.returncode == 0


PAGE = ROOT / "docs/how-to/put-a-pep-on-a-gateway.md"


def normalized(line: str) -> str:
    """Return a line without its numbers."""
    return re.sub(r"\d[\d,.]*", "N", line.strip())


def test_the_page_puts_a_pep_on_a_router_and_takes_it_off(routers: Routers, tmp_path: Path) -> None:
    """Given a router, expect the commands of the page to print what it says, and no trace."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "sudo").write_text('#!/bin/sh\nexec "$@"\n')
    (folder / "sudo").chmod(0o755)
    path = f"{folder}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    before = routers.snapshot("a")
    # Other gateways on this machine may have the name of the page.
    name, ran = f"{routers.prefix}sat", 0
    page = re.sub(r"\bsat\b", name, PAGE.read_text())
    for kind, text in re.findall(r"^```(toml|console)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        if kind == "toml":
            (tmp_path / f"{name}.toml").write_text(text)
            continue
        for command, shown in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", text, re.MULTILINE):
            within = ["ip", "netns", "exec", routers.namespace("a"), "sh", "-c", command]
            done = subprocess.run(
                within,
                cwd=tmp_path,
                env=os.environ | {"PATH": path},
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
            printed = {normalized(line) for line in (done.stdout + done.stderr).splitlines()}
            for line in shown.splitlines():
                assert normalized(line) in printed, f"{command}\n{done.stdout}{done.stderr}"
            ran += 1
            if command.startswith("sudo bentpipe gateway up"):
                assert routers.snapshot("a") != before
    assert ran >= 8
    assert (tmp_path / f"bentpipe-{name}.service").read_text().startswith("# Made by bentpipe")
    assert routers.snapshot("a") == before
    assert not (BASE / name).exists()
