"""Tunnels between two routers in network namespaces: client - A - B - server."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, needs
from routers import SERVERS, Routers, counters, daemons_of, new_routers, wait_until

pytestmark = pytest.mark.system

# The hosts with a gateway: the address on the link, that in the tunnel, and the networks behind.
ENDS = {
    "a": ("10.0.2.1", "10.99.0.1", '"10.0.1.0/24", "fd01::/64"'),
    "b": ("10.0.2.2", "10.99.0.2", '"10.0.3.0/24", "fd03::/64"'),
}
BASE = Path("/run/bentpipe")
LOSS = (
    "add table inet loss; add chain inet loss input { type filter hook input priority 0; }; "
    "add rule inet loss input udp dport 51871 numgen random mod 100 < 3 drop"
)


CLEAR_TEXT = (
    "add table inet clear; "
    "add chain inet clear arriving { type filter hook prerouting priority -300; }; "
    "add rule inet clear arriving iifname sat0 ip daddr 10.0.3.0/24 counter"
)


@pytest.fixture
def routers() -> Iterator[Routers]:
    with new_routers() as made:
        # The tunnel has the routes to the client.
        made.on("b", "ip", "route", "del", "10.0.1.0/24")
        made.on("b", "ip", "-6", "route", "del", "fd01::/64")
        yield made


class Tunnels:
    """A gateway on A and on B, with a tunnel between them."""

    def __init__(self, routers: Routers, folder: Path) -> None:
        self.routers, self.folder = routers, folder
        self.keys = {}
        for host in ENDS:
            done = routers.bentpipe(host, "gateway", "keygen", str(folder / f"{host}.key"))
            assert done.returncode == 0, done.stderr
            self.keys[host] = done.stdout.strip()
        for host in ENDS:
            self.write(host)

    def name(self, host: str) -> str:
        return f"{self.routers.prefix}{host}"

    def config(self, host: str) -> Path:
        return self.folder / f"{self.name(host)}.toml"

    def write(
        self, host: str, settings: str = "", *, top: str = "", endpoint: str | None = None
    ) -> None:
        """Write the configuration of a host.

        ``top`` comes before [tunnel]; an empty ``endpoint`` is that of a peer that begins.
        """
        other = "b" if host == "a" else "a"
        address, _, networks = ENDS[other]
        endpoint = f"{address}:51871" if endpoint is None else endpoint
        line = f'endpoint = "{endpoint}"\n' if endpoint else ""
        functions = top or 'functions = ["tunnel"]'
        self.config(host).write_text(
            f'name = "{self.name(host)}"\n{functions}\n[tunnel]\n'
            f'addresses = ["{ENDS[host][1]}/24"]\nprivate_key = "{host}.key"\n'
            f'rate = "100 Mbit/s"\nqueue = "1 MB"\nround_trip = "20 ms"\n{settings}\n'
            f'[[tunnel.peers]]\nname = "{other}"\npublic_key = "{self.keys[other]}"\n'
            f"{line}networks = [{networks}]\n"
        )

    def call(self, host: str, verb: str, *options: str) -> subprocess.CompletedProcess[str]:
        takes_config = verb in {"up", "check", "unit"}
        chosen = str(self.config(host)) if takes_config else self.name(host)
        return self.routers.bentpipe(host, "gateway", verb, chosen, *options)

    def up(self, *hosts: str) -> None:
        for host in hosts or ENDS:
            done = self.call(host, "up")
            assert done.returncode == 0, done.stderr

    def down(self, *hosts: str) -> None:
        for host in hosts or ENDS:
            done = self.call(host, "down")
            assert done.returncode == 0, done.stderr

    def peer(self, host: str) -> dict[str, Any]:
        found: dict[str, Any] = counters(self.name(host), "tunnel")["peers"][0]
        return found

    def wait_for_session(self) -> None:
        wait_until(lambda: all(self.peer(host)["session_age_ns"] is not None for host in ENDS))

    def closed(self, host: str) -> list[str]:
        """Return the networks with an unreachable route of the gateway."""
        show = ("route", "show", "type", "unreachable", "proto", "98")
        shown = [self.routers.on(host, "ip", version, *show) for version in ("-4", "-6")]
        return [line.split()[1] for text in shown for line in text.splitlines()]

    def devices(self, host: str) -> str:
        return self.routers.on(host, "ip", "-oneline", "link")


@pytest.fixture
def tunnels(routers: Routers, tmp_path: Path) -> Iterator[Tunnels]:
    made = Tunnels(routers, tmp_path)
    try:
        yield made
    finally:
        for host in ENDS:
            made.call(host, "down")


def pings(tunnels: Tunnels, count: int) -> subprocess.Popen[str]:
    namespace = tunnels.routers.namespace("client")
    command = ["ip", "netns", "exec", namespace, "ping", "-n", "-c", str(count), "-i", "0.01"]
    return subprocess.Popen([*command, "-s", "1000", SERVERS[0]], stdout=subprocess.PIPE, text=True)


@pytest.mark.thorough
@needs("ping")
def test_it_carries_packets_over_losses_and_nothing_of_it_is_left(tunnels: Tunnels) -> None:
    """Given a link that drops 3 %, expect whole downloads, and recovered losses.

    Of 1,000 answers 30 are lost, one by one. Downloads lose whole super-packets. The link of the
    test is faster than the rate in the file, at which titrated repair would wait.
    """
    routers = tunnels.routers
    before = {host: routers.snapshot(host) for host in ENDS}
    for host in ENDS:
        tunnels.write(host, 'titration = "immediate"')
    tunnels.up()
    for host in ENDS:
        routers.on(host, "nft", LOSS)
    tunnels.wait_for_session()
    pings(tunnels, 1_000).communicate()
    wait_until(lambda: tunnels.peer("a")["sources_recovered"] > 5)
    here, there = tunnels.peer("a"), tunnels.peer("b")
    assert here["sources_recovered"] > 2 * here["sources_lost"]
    assert there["loss_ppb"] > 5_000_000
    assert there["redundancy_ppm"] > 20_000
    for address in SERVERS:
        routers.download(3_000_000, address)
    wait_until(lambda: tunnels.peer("a")["received_bytes"] >= 6_000_000)
    # Nothing passes the link without the tunnel.
    wait_until(lambda: tunnels.peer("b")["sent_bytes"] >= 6_000_000)
    for host in ENDS:
        routers.on(host, "nft", "delete", "table", "inet", "loss")
    tunnels.down()
    assert {host: routers.snapshot(host) for host in ENDS} == before
    assert not (BASE / tunnels.name("a")).exists()


def test_a_peer_that_begins_needs_no_endpoint_here(tunnels: Tunnels) -> None:
    """Given A without an endpoint, and a link of IPv6, expect A to learn it from a packet."""
    tunnels.write("a", 'listen = "[::]:51871"', endpoint="")
    tunnels.write("b", "outer_mtu = 1400", endpoint="[fd02::1]:51871")
    tunnels.up()
    tunnels.wait_for_session()
    tunnels.routers.download(100_000)
    assert tunnels.peer("a")["endpoint"] == "[fd02::2]:51871"
    mtus = [counters(tunnels.name(host), "tunnel")["mtu_bytes"] for host in ENDS]
    # 1500 and 1400, less 40 + 8 + 29 + 11 + 6 bytes.
    assert mtus == [1_406, 1_306]


@pytest.mark.thorough
def test_the_watched_status_shows_the_rates_of_the_peer(tunnels: Tunnels) -> None:
    tunnels.up()
    with tunnels.routers.start(
        "a", "gateway", "status", tunnels.name("a"), "--watch", stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        assert first.startswith(f"{tunnels.name('a')}: tunnel, bp0 to 1 peer, up for ")
        rates = next(line for line in process.stdout if line.startswith("now, b"))
        assert rates.split()[-1] == "received"
        tunnels.down("a")
        process.communicate(timeout=20)
    assert process.returncode == 0


def test_the_worker_has_no_privileges(tunnels: Tunnels) -> None:
    tunnels.up("a")
    privileged, worker = daemons_of(tunnels.name("a"))
    status = Path(f"/proc/{worker}/status").read_text()
    found = dict(line.split(":\t", 1) for line in status.splitlines())
    assert (found["CapEff"], found["CapPrm"], found["NoNewPrivs"]) == ("0" * 16, "0" * 16, "1")
    assert (found["Seccomp"], found["Uid"].split()) == ("2", ["65534"] * 4)
    assert "Seccomp:\t0" in Path(f"/proc/{privileged}/status").read_text()


def kill(tunnels: Tunnels, killed: str) -> None:
    """Kill the privileged part of A, or its worker, too, and wait until all of it has ended."""
    privileged, worker = daemons_of(tunnels.name("a"))
    for pid in {"daemon": [privileged], "both": [privileged, worker]}[killed]:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: "bp0" not in tunnels.devices("a"))
    wait_until(lambda: not daemons_of(tunnels.name("a")))


@pytest.mark.thorough
@pytest.mark.parametrize("killed", ["daemon", "both"])
def test_a_killed_gateway_leaves_its_networks_closed(tunnels: Tunnels, killed: str) -> None:
    """Given a process that was killed, expect unreachable routes alone, and no packet past them.

    A ping each 10 ms goes on until the next `up` has taken them over; `down` removes them.
    """
    routers = tunnels.routers
    before = routers.snapshot("a")
    tunnels.up()
    routers.download(10_000)
    assert "bp0" in tunnels.devices("a")
    routers.on("b", "nft", CLEAR_TEXT)
    with pings(tunnels, 3_000) as process:
        kill(tunnels, killed)
        assert tunnels.closed("a") == ["10.0.3.0/24", "fd03::/64"]
        status = tunnels.call("a", "status")
        assert status.returncode == 3
        assert f"gateway {tunnels.name('a')} has ended: " in status.stderr
        assert "; packets for the networks of its tunnel are refused; to fix it: " in status.stderr
        tunnels.up("a")
        routers.download(10_000)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)
    assert "counter packets 0 " in routers.on("b", "nft", "list", "table", "inet", "clear")
    tunnels.down("a")
    assert routers.snapshot("a") == before


def test_a_killed_worker_is_replaced(tunnels: Tunnels) -> None:
    """Given a killed worker, expect another one that carries packets, none past it, and the reason.

    Its counters go on.
    """
    routers, name = tunnels.routers, tunnels.name("a")
    before = routers.snapshot("a")
    tunnels.up()
    routers.download(10_000)
    wait_until(lambda: tunnels.peer("a")["sent_packets"] > 0)
    sent = tunnels.peer("a")["sent_packets"]
    routers.on("b", "nft", CLEAR_TEXT)
    parent, worker = daemons_of(name)
    os.kill(worker, signal.SIGKILL)
    wait_until(lambda: counters(name, "tunnel_worker") == {"missing": 0, "failures": 1})
    routers.download(10_000)
    assert "counter packets 0 " in routers.on("b", "nft", "list", "table", "inet", "clear")
    assert worker not in daemons_of(name)
    assert daemons_of(name)[0] == parent
    wait_until(lambda: tunnels.peer("a")["sent_packets"] > sent)
    assert "tunnel worker replaced      1\n" in tunnels.call("a", "status").stdout
    logged = (BASE / name / "log").read_text()
    assert "has ended (signal: 9 (SIGKILL)); the networks of its peers are unreachable; " in logged
    tunnels.down("a")
    assert routers.snapshot("a") == before


def test_a_start_after_a_kill_opens_no_network_that_it_has(tunnels: Tunnels) -> None:
    """Given a killed gateway, expect a start that fails to leave its networks closed.

    Given another network in its file after that, expect `up` to close it and to open the one that
    is not there any more, and `down` to leave nothing.
    """
    routers = tunnels.routers
    before = routers.snapshot("a")
    tunnels.up("a")
    kill(tunnels, "both")
    (tunnels.folder / "a.key").chmod(0o644)
    assert tunnels.call("a", "up").returncode == 2
    assert tunnels.closed("a") == ["10.0.3.0/24", "fd03::/64"]
    (tunnels.folder / "a.key").chmod(0o600)
    text = tunnels.config("a").read_text()
    tunnels.config("a").write_text(text.replace("fd03::/64", "10.0.7.0/24"))
    tunnels.up("a")
    assert tunnels.closed("a") == ["10.0.3.0/24", "10.0.7.0/24"]
    kill(tunnels, "both")
    tunnels.down("a")
    assert routers.snapshot("a") == before
    assert not (BASE / tunnels.name("a")).exists()


@needs("ping")
def test_settings_are_reloaded_without_a_lost_packet(tunnels: Tunnels) -> None:
    """Given pings, expect each change of the redundancy in the status, and no ping lost."""
    tunnels.up()
    tunnels.wait_for_session()
    process = pings(tunnels, 500)
    for percent, ppm in ((10, 100_000), (30, 300_000), (5, 50_000)):
        tunnels.write("a", f'redundancy = "{percent} %"\nwindow = 64\nclasses = [0]')
        done = tunnels.call("a", "reload")
        assert (done.returncode, done.stdout) == (0, ""), done.stderr
        assert done.stderr.endswith(f" has the settings of {tunnels.config('a')}\n")
        wait_until(lambda: tunnels.peer("a")["redundancy_ppm"] == ppm)  # noqa: B023
    said, _ = process.communicate(timeout=60)
    assert " 500 received, 0% packet loss" in said
    record = json.loads((BASE / tunnels.name("a") / "gateway.json").read_text())
    assert record["plan"]["tunnel"]["settings"]["redundancy"]["redundancy_ppm"] == 50_000


def test_other_changes_are_refused_by_name(tunnels: Tunnels) -> None:
    """Given a change that is possible beside others that are not, expect nothing to change."""
    tunnels.up("a")
    top = 'functions = ["tunnel"]\nmetrics.listen = "127.0.0.1:9464"'
    tunnels.write("a", 'redundancy = "30 %"\nlisten = 4000\norder = false', top=top)
    done = tunnels.call("a", "reload")
    assert done.returncode == 2
    listed = done.stderr.partition(" cannot change ")[2].partition(";")[0]
    assert set(listed.split(", ")) == {"metrics_listen", "tunnel.listen", "tunnel.order"}
    time.sleep(1)
    assert tunnels.peer("a")["redundancy_ppm"] != 300_000
    tunnels.config("a").write_text("name = ")
    done = tunnels.call("a", "reload")
    assert (done.returncode, "TOML syntax" in done.stderr) == (2, True)


@pytest.mark.thorough
def test_a_pep_splits_the_connections_of_the_tunnel(tunnels: Tunnels) -> None:
    """Given both functions on A, expect split connections whose legs are in the tunnel."""
    top = 'functions = ["pep", "tunnel"]\nlan.interfaces = ["lan0"]\nlink.interfaces = ["bp0"]'
    top += "\npep.connections = 100\npep.threads = 1"
    # The PEP sees both directions only if no other route leaves the gateway.
    tunnels.routers.on("a", "ip", "route", "del", "default")
    tunnels.routers.on("a", "ip", "-6", "route", "del", "default")
    for order in ('["pep", "tunnel"]', '["tunnel", "pep"]'):
        tunnels.write("a", top=top.replace('["pep", "tunnel"]', order))
        checked = tunnels.call("a", "check")
        assert checked.returncode == 0, checked.stdout
        tunnels.up()
        again = tunnels.call("a", "check")
        assert again.returncode == 0, again.stdout
        name = tunnels.name("a")
        for address in SERVERS:
            tunnels.routers.download(1_000_000, address)
        wait_until(lambda: counters(tunnels.name("a"))["split_connections"] == 2)
        wait_until(lambda: tunnels.peer("a")["received_bytes"] >= 2_000_000)
        said = tunnels.call("a", "status").stdout
        first = said.splitlines()[0]
        assert first.startswith(f"{name}: ")
        assert first.count("lan0 to bp0, bp0 to 1 peer, up for ") == 1
        assert "connections split           2" in said
        assert "peer b " in said
        tunnels.down()
        assert "bentpipe" not in tunnels.routers.on("a", "nft", "list", "ruleset")


@pytest.mark.thorough
def test_metrics_have_both_functions_and_the_peer(tunnels: Tunnels) -> None:
    """Given a tunnel with and without a PEP, expect its metrics on the loopback interface."""
    sides = 'lan.interfaces = ["lan0"]\nlink.interfaces = ["bp0", "sat0"]\npep.connections = 9\n'
    for functions in ('functions = ["tunnel"]\n', f'functions = ["tunnel", "pep"]\n{sides}'):
        tunnels.write("a", top=f'{functions}metrics.listen = "127.0.0.1:9464"')
        tunnels.up()
        tunnels.wait_for_session()
        tunnels.routers.download(100_000)

        def metrics() -> str:
            url = "http://127.0.0.1:9464/metrics"
            program = f"import urllib.request as r; print(r.urlopen('{url}').read().decode())"
            return tunnels.routers.on("a", sys.executable, "-c", program)

        found = r'^bentpipe_tunnel_received_bytes_total\{peer="b"\} 1\d{5}$'
        wait_until(lambda: re.search(found, metrics(), re.MULTILINE))  # noqa: B023
        text = metrics()
        assert 'bentpipe_tunnel_session_age_seconds{peer="b"} ' in text
        assert ("bentpipe_pep_split_connections_total" in text) == ("pep" in functions)
        tunnels.down()


WRONG_KEYS = [
    ("chmod 644 {folder}/a.key", "others than its owner may use this private key (mode 644)"),
    ("chown 1234 {folder}/a.key", "user 1234 owns this private key, and could read and change it"),
    ("rm {folder}/a.key", "a.key: No such file or directory"),
    ("cp /dev/null {folder}/a.key", "a.key: "),
]


@pytest.mark.thorough
@pytest.mark.parametrize(("command", "said"), WRONG_KEYS, ids=[each[1] for each in WRONG_KEYS])
def test_a_wrong_key_is_bad_input(tunnels: Tunnels, command: str, said: str) -> None:
    """Given a file that holds no key of this user alone, expect one line that names it."""
    tunnels.write("a", "")
    subprocess.run(command.format(folder=tunnels.folder).split(), check=True)
    for verb in ("up", "check"):
        done = tunnels.call("a", verb)
        assert done.returncode == 2, done.stderr
        assert f"{tunnels.folder}/" in done.stderr
        assert said in done.stderr
        fix = done.stderr.partition("to fix it: ")[2]
        assert fix.startswith(("chmod 600 ", "chown 0 ", "the name of", "bentpipe gateway keygen"))
        assert len(done.stderr.splitlines()) == 1
    assert not (BASE / tunnels.name("a")).exists()


WRONG = [
    ("ip link add bp0 type veth", "", "making the TUN device bp0: File exists"),
    ("ip route add 10.0.3.0/24 via 10.0.2.2", "", "networks: 10.0.3.0/24 has another route, on"),
    (
        "true",
        "outer_mtu = 600",
        "outer_mtu: 600 B leave less than the 1280 B for a packet that IPv6",
    ),
    ("true", 'listen = "10.0.77.7:51871"', "listen: listening on 10.0.77.7:51871 (UDP): Cannot"),
    ("true", 'listen = "[::]:51871"', 'peers: b: endpoint: "10.0.2.2:51871" has no IPv6 address'),
]


@pytest.mark.parametrize(("command", "settings", "said"), WRONG, ids=[each[2] for each in WRONG])
def test_where_it_cannot_work_it_does_not_start(
    tunnels: Tunnels, command: str, settings: str, said: str
) -> None:
    tunnels.write("a", settings)
    tunnels.routers.on("a", *command.format(folder=tunnels.folder).split())
    before = tunnels.routers.snapshot("a")
    done = tunnels.call("a", "up")
    assert done.returncode == 3, done.stderr
    assert said in done.stderr
    assert "to fix it: " in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert tunnels.routers.snapshot("a") == before
    assert not (BASE / tunnels.name("a")).exists()


def test_the_key_of_this_gateway_is_no_peer(tunnels: Tunnels) -> None:
    """Given a peer with the key of the gateway itself, expect one line that names the peer."""
    tunnels.write("a", "")
    text = tunnels.config("a").read_text()
    tunnels.config("a").write_text(text.replace(tunnels.keys["b"], tunnels.keys["a"]))
    done = tunnels.call("a", "up")
    assert done.returncode == 2, done.stderr
    assert "tunnel.peers: b: public_key: it is the key of this gateway; to fix it: " in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_an_endpoint_behind_its_own_tunnel_is_refused(tunnels: Tunnels) -> None:
    """Given networks that contain the endpoint, expect a refusal unless a route leads to it."""
    tunnels.routers.on("a", "ip", "route", "add", "10.0.2.2/32", "dev", "sat0")
    text = tunnels.config("a").read_text()
    tunnels.config("a").write_text(text.replace('"10.0.3.0/24"', '"10.0.2.0/23"'))
    tunnels.up("a")
    tunnels.down("a")
    tunnels.routers.on("a", "ip", "route", "del", "10.0.2.2/32")
    tunnels.routers.on("a", "ip", "route", "del", "10.0.2.0/24")
    tunnels.config("a").write_text(text.replace('"10.0.3.0/24"', '"10.0.2.0/23"'))
    done = tunnels.call("a", "up")
    assert done.returncode == 3
    assert "10.0.2.2, is in the networks behind the tunnel" in done.stderr
    assert "bp0" not in tunnels.devices("a")


PAGE = ROOT / "docs/how-to/run-a-coded-tunnel.md"
HOSTS = {"hub": "a", "terminal": "b"}


def normalized(line: str) -> str:
    """Return a line without its numbers, paths and columns."""
    return " ".join(re.sub(r"\S*/", "", re.sub(r"\d[\d,.]*", "N", line)).split())


@pytest.fixture
def ended(routers: Routers) -> Iterator[None]:
    """End the gateways of the page, if a step of it failed."""
    yield
    for name, host in HOSTS.items():
        routers.bentpipe(host, "gateway", "down", f"{routers.prefix}{name}")


@needs("ping")
@pytest.mark.usefixtures("ended")
def test_the_page_runs_a_tunnel_between_two_routers(routers: Routers, tmp_path: Path) -> None:
    """Given two routers, expect the commands of the page to print what it says, and no trace.

    The keys of the page become those that are printed.
    """
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "sudo").write_text('#!/bin/sh\nexec "$@"\n')
    (folder / "sudo").chmod(0o755)
    path = f"{folder}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    before = {host: routers.snapshot(host) for host in HOSTS.values()}
    # Other gateways on this machine may have the names of the page.
    page = re.sub(r"\b(hub|terminal)(?!\$)\b", rf"{routers.prefix}\1", PAGE.read_text())
    keys: dict[str, str] = {}
    ran = 0
    for kind, text in re.findall(r"^```(toml|console)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        if kind == "toml":
            config = re.sub("|".join(map(re.escape, keys)), lambda found: keys[found[0]], text)
            name = re.match(r'name = "(.*)"', config)
            if name is not None:
                (tmp_path / f"{name[1]}.toml").write_text(config)
            continue
        steps = re.findall(r"^(\w+)\$ (.*)\n((?:(?!\w+\$ ).*\n)*)", text, re.MULTILINE)
        for host, command, shown in steps:
            within = ["ip", "netns", "exec", routers.namespace(HOSTS[host]), "sh", "-c", command]
            done = subprocess.run(
                within,
                cwd=tmp_path,
                env=os.environ | {"PATH": path},
                capture_output=True,
                text=True,
                check=False,
            )
            said = done.stdout + done.stderr
            assert done.returncode == 0, f"{command}\n{said}"
            if " keygen " in command:
                keys[shown.strip()] = done.stdout.strip()
            else:
                printed = {normalized(line) for line in said.splitlines()}
                for line in shown.splitlines():
                    assert normalized(line) in printed, f"{command}\n{said}"
            ran += 1
    assert ran >= 12
    assert len(keys) == len(HOSTS)
    assert {host: routers.snapshot(host) for host in HOSTS.values()} == before
    assert not (BASE / f"{routers.prefix}hub").exists()
