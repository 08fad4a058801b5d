"""Coded tunnels in labs: daemons code real packets; skipped without namespaces."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from conftest import User, measures, needs, needs_lab, not_installed
from late import until_on_time
from test_lab import wait_until
from test_lab_peps import emulated, why_invalid
from test_live import machine, processes

import bentpipe
from bentpipe import Plan, Result, simulate
from bentpipe.errors import ScenarioError
from bentpipe.gateway.machine import program
from bentpipe.live.run import check_plan

KEY = "/dev/shm/bentpipe-gate.key"
# Inner packets of 1,426 B: an outer packet has 74 B more.
LARGEST_PACKET_BYTES = 1_426


def needs_programs() -> pytest.MarkDecorator:
    """Skip a test that lacks its clients, or `ip` for initial windows."""
    missing = (name for name in ("ip", "curl", "ping") if program(name) is None)
    first = next(missing, None)
    return pytest.mark.skipif(first is not None, reason=not_installed(first or ""))


def scenario(**gateways: Any) -> dict[str, Any]:
    """A transfer over a link with 1 % loss, by default with repair of 10 % at both ends."""
    tunnel = {"tunnel": {"redundancy": "10 %"}}
    return {
        "name": "loss",
        "link": {
            "forward": {
                "rate": "10 Mbit/s",
                "delay": "50 ms",
                "loss": "1 %",
                "queue": {"discipline": "drop_tail", "limit": "120 kB"},
            },
            "return": {"rate": "10 Mbit/s", "delay": "50 ms"},
        },
        "gateways": gateways or {"hub": tunnel, "terminal": tunnel},
        "traffic": [{"kind": "bulk", "direction": "forward", "duration": "20 s"}],
        "duration": "25 s",
    }


def statistics(report: dict[str, Any], tunnel: str) -> dict[str, int]:
    found: dict[str, int] = report["functions"][tunnel]["statistics"]
    return found


# --- programs in labs ---------------------------------------------------------------------------


@pytest.mark.thorough
@needs_lab
@pytest.mark.unprivileged
@needs_programs()
def test_packets_between_hosts_are_coded_and_lost_ones_recovered() -> None:
    """Given a tunnel, expect a download through it, and the link between gateways beside it."""
    with bentpipe.Lab(scenario()) as lab:
        assert lab.hosts == ("world", "island", "hub", "terminal-1")
        fetch = ["curl", "-s", "-o", "/dev/null", "-w", "%{size_download}"]
        assert lab.run("island", [*fetch, "http://world/bytes/3000000"]).stdout == "3000000"
        whole = ["ping", "-c", "1", "-M", "do", "-s", str(LARGEST_PACKET_BYTES - 28), "world"]
        assert lab.run("island", whole).returncode == 0
        whole[-2] = str(LARGEST_PACKET_BYTES - 27)
        assert "mtu = 1426" in lab.run("island", whole).stdout

        def both() -> tuple[dict[str, int], dict[str, int]]:
            report = lab.report()
            return statistics(report, "hub-tunnel"), statistics(report, "terminal-1-tunnel")

        # A download of so many bytes has some 2,165 packets, of which 21 are lost.
        wait_until(lambda: both()[0]["sources_sent_packets"] >= 2_100, "nothing was coded")
        wait_until(lambda: both()[1]["recovered_packets"] > 0, "nothing was recovered")

        def sent() -> int:
            return both()[0]["sources_sent_packets"]

        def sent_after_pings(host: str, to: str) -> int:
            """Ping, then ping 20 times between hosts; return how many packets the hub has coded."""
            before, ping = sent(), ["ping", "-c", "20", "-i", "0.05", "-s", "500"]
            for one, other in ((host, to), ("island", "world")):
                assert lab.run(one, [*ping, other]).returncode == 0
            wait_until(lambda: sent() >= before + 20, "pings between hosts are not coded")
            return sent()

        first = sent_after_pings("island", "island")
        more = sent_after_pings("terminal-1", "hub") - first
        assert more < 40, "the gateways are not hosts"


@pytest.mark.thorough
@needs_lab
@needs_programs()
def test_terminals_reach_each_other_by_way_of_the_hub() -> None:
    """Given two terminals and a server, expect all hosts to reach each other through tunnels."""
    given = scenario()
    given["link"]["terminals"] = 2
    given["hosts"] = {"world": [{"name": "server", "delay": "5 ms"}]}
    with bentpipe.Lab(given) as lab:
        for one, other in (("island-1", "island-2"), ("server", "island-2"), ("island-1", "world")):
            pinged = lab.run(one, ["ping", "-c", "5", "-i", "0.2", other])
            assert pinged.returncode == 0, f"{one} to {other}: {pinged.stdout}"


@needs_lab
@needs_programs()
def test_a_pep_splits_the_connections_of_the_tunnel() -> None:
    """Given a PEP beside the end of a tunnel, expect split connections, which are coded."""
    both = {"pep": {"link_tcp": {"initial_window": 32}}, "tunnel": {}}
    with bentpipe.Lab(scenario(hub=both, terminal={"tunnel": {}})) as lab:
        fetch = ["curl", "-s", "-o", "/dev/null", "-w", "%{size_download}"]
        assert lab.run("island", [*fetch, "http://world/bytes/1000000"]).stdout == "1000000"
        routes = lab.run("hub", ["ip", "route", "show", "dev", "bp0"]).stdout
        assert "initcwnd 32" in routes

        def is_counted() -> bool:
            report = lab.report()
            split = statistics(report, "hub-pep")["split_connections"]
            return split == 1 and statistics(report, "hub-tunnel")["sources_sent_packets"] > 700

        wait_until(is_counted, "nothing was split and coded")


@needs_lab
@needs_programs()
def test_a_user_without_privileges_can_use_tunnels_of_which_nothing_is_left(user: User) -> None:
    """Expect a download through the tunnel, and no process, interface or key after the lab."""
    before, mark = machine(), f"bentpipe-tunnel-{os.getpid()}"
    user.environment["MARK"] = mark
    link, report = user.folder / "link.json", user.folder / "report.json"
    link.write_text(json.dumps(scenario()))
    link.chmod(0o644)
    fetch = "curl -s -o /dev/null -w %{http_code} http://world/bytes/1000000"
    ran = user("exec", "--link", link, "--statistics", report, "--", "sh", "-c", fetch)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "200"
    counted = statistics(json.loads(report.read_text()), "hub-tunnel")
    assert counted["sources_sent_packets"] > 700
    report.unlink()
    wait_until(lambda: processes(mark) == [], "something outlived the lab")
    assert machine() == before
    assert not Path(KEY).exists()


# --- runs ---------------------------------------------------------------------------------------


def goodput_bps(result: Result) -> float:
    return float(result.flows["goodput_bps"][0])


def both_bps(given: dict[str, Any]) -> tuple[float, float]:
    """Return the goodput of the kernel's TCP and that of the simulator's."""
    result = until_on_time(partial(emulated, given), why_invalid)
    found = goodput_bps(result), goodput_bps(simulate(given))
    print(f"kernel {found[0] / 1e6:.3f} Mbit/s, simulator {found[1] / 1e6:.3f} Mbit/s")
    return found


@measures
@needs("iperf3")
@needs_programs()
def test_a_transfer_through_a_tunnel_is_as_fast_as_simulated() -> None:
    """Given 1 % loss for 4 s, expect the goodput of a simulation within 10 %."""
    given = scenario()
    given["traffic"][0]["duration"], given["duration"] = "4 s", "6 s"
    kernel_bps, simulated_bps = both_bps(given)
    assert kernel_bps == pytest.approx(simulated_bps, rel=0.1)


@measures
@pytest.mark.thorough
@needs("iperf3")
@needs_programs()
def test_a_tunnel_gains_what_the_simulator_predicts() -> None:
    """Given 1 % loss, expect the goodput of a simulation within 10 %, and far less without."""
    kernel_bps, simulated_bps = both_bps(scenario())
    assert kernel_bps == pytest.approx(simulated_bps, rel=0.1)
    assert both_bps(scenario(hub={}, terminal={}))[0] < kernel_bps / 2


# --- refusals -----------------------------------------------------------------------------------


def refused(given: dict[str, Any]) -> str:
    with pytest.raises(ScenarioError) as raised:
        check_plan(Plan.resolve(given))
    return str(raised.value)


@needs("iperf3")
def test_what_the_daemon_cannot_do_is_refused() -> None:
    """Given settings that depend on the header of outer packets, expect each field."""
    queue = {"discipline": "codel", "ecn": True}
    given = scenario()
    given["link"]["forward"]["queue"] = queue
    assert "link.forward.queue.ecn: read true with a tunnel" in refused(given)
    given = scenario()
    given["gateways"]["hub"]["tunnel"]["classes"] = [0]
    assert "gateways.hub.tunnel.classes: read [0]" in refused(given)


@needs("iperf3")
def test_a_tunnel_is_next_to_the_hosts() -> None:
    functions = {"functions": ["aggregator", "tunnel"]}
    message = refused(scenario(hub=functions, terminal=functions))
    assert "gateways.hub.functions: read aggregator before tunnel" in message
