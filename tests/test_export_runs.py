"""Exported scripts as they run: tc(8) on a router between two hosts, and ns-3 if installed."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from conftest import needs, not_installed
from routers import CLIENTS, SERVERS, Routers, new_routers

from bentpipe import Plan, simulate
from bentpipe.export import ns3_script, tc_script
from bentpipe.scenario import frame_bits, plan_framing

pytestmark = pytest.mark.system

TRAFFIC: Final = [{"name": "get", "kind": "bulk", "direction": "forward", "size": "4 MB"}]
# Those of ns-3 in Debian, in its folders for headers and libraries.
NS3: Final = ("applications", "internet", "point-to-point", "traffic-control", "network", "core")
NS3_HEADER: Final = "ns3/core-module.h"
# Of a segment with timestamps in a packet of 1,500 bytes.
PAYLOAD_BITS: Final = 8 * 1_448


def plan_of(forward: dict[str, Any], back: dict[str, Any]) -> Plan:
    link = {"forward": forward, "return": back}
    return Plan.resolve({"link": link, "traffic": TRAFFIC, "duration": "60 s"})


@pytest.fixture
def routers() -> Iterator[Routers]:
    with new_routers() as made:
        # Virtual interfaces pass on super-packets of their peers; those of hardware do not.
        for host, device in (("client", "eth0"), ("server", "eth0"), ("b", "sat0"), ("b", "eth0")):
            made.on(host, "ethtool", "-K", device, "gro", "off", "gso", "off", "tso", "off")
        yield made


def put_on(routers: Routers, plan: Plan, folder: Path) -> None:
    """Make router A the link: the server is behind the hub, the client behind the terminal."""
    script = folder / "tc.sh"
    script.write_text(tc_script(plan))
    routers.on("a", "sh", str(script), "sat0", "lan0")


def sent_bits(routers: Routers, device: str) -> int:
    """Return what the queue of a device has sent, as it counts frames, in bits."""
    (queue,) = json.loads(routers.on("a", "tc", "-s", "-j", "qdisc", "show", "dev", device))
    return 8 * int(queue["bytes"])


@needs("ethtool")
@needs("tc")
@pytest.mark.parametrize("framings", [("none", "none"), ("aal5", "ethernet")], ids="-".join)
def test_the_lines_of_tc_have_the_rates_of_the_link(
    framings: tuple[str, str], routers: Routers, tmp_path: Path
) -> None:
    """Given 4 and 1 Mbit/s, expect frames of the link's size, sent no faster than it does.

    A busy machine can only make a transfer longer, so its time has a lower bound alone.
    """
    forward, back = (
        {"rate": rate, "delay": "0 ms", "framing": framing, "queue": {"limit": "60 kB"}}
        for rate, framing in zip(("4 Mbit/s", "1 Mbit/s"), framings, strict=True)
    )
    put_on(routers, plan_of(forward, back), tmp_path)
    ends = ((SERVERS[0], "server", "client", "lan0"), (CLIENTS[0], "client", "server", "sat0"))
    for rate_bps, framing, (address, server, client, device), size in zip(
        (4e6, 1e6), framings, ends, (1_000_000, 250_000), strict=True
    ):
        sent_before, started_s = sent_bits(routers, device), time.monotonic()
        routers.download(size, address, server=server, client=client)
        taken_s, bits = time.monotonic() - started_s, sent_bits(routers, device) - sent_before
        packet_bits = frame_bits(plan_framing(framing, {}), 1_500)
        assert bits == pytest.approx(8 * size * packet_bits / PAYLOAD_BITS, rel=0.03)
        # tbf sends what its bucket of one packet holds at once.
        assert taken_s > (bits - 2 * packet_bits) / rate_bps * 0.99


@needs("ethtool")
@needs("tc")
def test_the_lines_of_tc_have_the_delays_of_the_link(routers: Routers, tmp_path: Path) -> None:
    """Given 120 and 80 ms, expect a ping of 200 ms, and the rates after slow start."""
    tried = subprocess.run(
        ["unshare", "--net", "tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms"],
        capture_output=True,
        text=True,
        check=False,
    )
    if tried.returncode:
        pytest.skip(f"the kernel has no netem: {tried.stderr.strip()}")
    put_on(
        routers,
        plan_of(
            {"rate": "4 Mbit/s", "delay": "120 ms", "queue": {"limit": "1 bdp"}},
            {"rate": "1 Mbit/s", "delay": "80 ms", "queue": {"limit": "1 bdp"}},
        ),
        tmp_path,
    )
    printed = routers.on("client", "ping", "-c", "5", "-i", "0.2", SERVERS[0])
    shortest_ms = float(re.findall(r"= ([\d.]+)/", printed)[0])
    assert shortest_ms == pytest.approx(200, abs=5)
    started_s = time.monotonic()
    routers.download(1_000_000, SERVERS[0])
    # At the rate of the link, and some RTTs for the handshake and slow start.
    assert time.monotonic() - started_s > 8e6 * 12_000 / (4e6 * PAYLOAD_BITS) + 0.4


@pytest.mark.thorough
@needs("g++")
def test_ns3_runs_the_script_with_the_goodput_of_the_simulator(tmp_path: Path) -> None:
    """Given a transfer over 8 Mbit/s and 50 ms without losses, expect its goodput within 10 %.

    TCP of ns-3 and of the simulator differ in slow start, which is a part of the four seconds. That
    of ns-3.37 fails after losses.
    """
    preprocess = ["g++", "-E", "-include", NS3_HEADER, "-x", "c++", "/dev/null"]
    if subprocess.run(preprocess, capture_output=True, check=False).returncode:
        pytest.skip(not_installed("libns3-dev"))
    plan = plan_of(
        {"rate": "8 Mbit/s", "delay": "25 ms", "queue": {"limit": "unlimited"}},
        {"rate": "2 Mbit/s", "delay": "25 ms", "queue": {"limit": "unlimited"}},
    )
    source, program = tmp_path / "link.cc", tmp_path / "link"
    source.write_text(ns3_script(plan))
    libraries = [f"-lns3-{name}" for name in NS3]
    subprocess.run(["g++", str(source), "-o", str(program), *libraries], check=True)
    done = subprocess.run([str(program)], capture_output=True, text=True, check=True)
    goodput_bps = 1e6 * float(re.findall(r"get: ([\d.]+) Mbit/s, 4000000 bytes", done.stdout)[0])
    (expected_bps,) = simulate(plan.scenario).goodput_bps
    assert goodput_bps == pytest.approx(expected_bps, rel=0.1)
