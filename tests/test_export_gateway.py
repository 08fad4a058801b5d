"""Scenarios as files of `bentpipe gateway`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT
from test_export import LINK, SCENARIO, changed

from bentpipe import Plan
from bentpipe.export import sat_toml
from bentpipe.gateway import read_plan

pytestmark = pytest.mark.system

GEO_PEP = ROOT / "scenarios" / "geo-pep.yaml"
TUNNEL = ROOT / "scenarios" / "coded-tunnel.yaml"


def config_of(text: str, folder: Path) -> dict[str, Any]:
    """Return the plan of the daemon for a configuration, which passes the gateway's own check."""
    path = folder / "sat.toml"
    path.write_text(text)
    plan: dict[str, Any] = read_plan(path)["plan"]
    return plan


def test_the_configuration_has_the_pep(tmp_path: Path) -> None:
    """Given a PEP with buffers, expect the daemon's plan to have them."""
    pep = {
        "buffer": "128 KiB",
        "connections": 50,
        "early_accept": True,
        "link_tcp": {"congestion_control": "hybla", "send_buffer": "4 MB"},
    }
    plan = config_of(sat_toml(changed(gateways={"hub": {"pep": pep}})), tmp_path)["pep"]
    assert (plan["buffer_bytes"], plan["connections"]) == (131_072, 50)
    assert plan["early_accept"] is True
    assert plan["link"]["tcp"]["congestion_control"] == "hybla"
    assert plan["link"]["tcp"]["send_buffer_bytes"] == 4_000_000
    assert plan["lan"]["interfaces"] == ["lan0"]


def test_what_the_kernel_refuses_of_a_pep_is_a_comment(tmp_path: Path) -> None:
    """Given an initial window, which belongs to routes, expect the command that sets it."""
    pep = {"link_tcp": {"initial_window": 30, "congestion_control": "bbr"}}
    text = sat_toml(changed(gateways={"hub": {"pep": pep}}))
    assert config_of(text, tmp_path)["pep"]["link"]["tcp"]["congestion_control"] == "bbr"
    (line,) = (each for each in text.splitlines() if "initial_window" in each)
    assert line.startswith("# - gateways.hub.pep.link_tcp.initial_window: read 30; ")
    assert "initcwnd 30" in line


@pytest.mark.parametrize("end", ["hub", "terminal"])
def test_the_daemon_codes_as_the_simulated_tunnel(end: Any, tmp_path: Path) -> None:
    """Given a tunnel with settings, expect those that the simulator has, at each end."""
    settings = {"redundancy": "10 %", "titration": "delayed", "delay": "50 ms", "classes": [0, 1]}
    plan = Plan.resolve(
        {
            **SCENARIO,
            "gateways": {"hub": {"tunnel": settings}, "terminal": {"tunnel": settings}},
        }
    )
    made = config_of(sat_toml(plan, end), tmp_path)["tunnel"]
    number = 0 if end == "hub" else 1
    (function,) = plan.data["gateways"][number]["functions"]
    assert made["settings"] == {name: each for name, each in function.items() if name != "kind"}
    assert len(made["peers"]) == 1


@pytest.mark.parametrize("end", ["hub", "terminal"])
def test_the_daemon_expects_the_reports_of_the_other_end(end: Any, tmp_path: Path) -> None:
    """Given ends with other intervals of their reports, expect the settings of the simulator."""
    tunnels = {
        "hub": {"tunnel": {"feedback_interval": "none"}},
        "terminal": {"tunnel": {"redundancy": "10 %", "feedback_interval": "1 s"}},
    }
    plan = changed(gateways=tunnels)
    made = config_of(sat_toml(plan, end), tmp_path)["tunnel"]["settings"]
    (function,) = plan.data["gateways"][end == "terminal"]["functions"]
    assert {"kind": "tunnel"} | made == function


def test_the_hub_has_a_peer_for_each_terminal(tmp_path: Path) -> None:
    tunnels: dict[str, Any] = {"hub": {"pep": {}, "tunnel": {}}, "terminal": {"tunnel": {}}}
    plan = changed(link=LINK | {"terminals": 3}, gateways=tunnels)
    made = config_of(sat_toml(plan, "hub"), tmp_path)
    peers = made["tunnel"]["peers"]
    assert [peer["name"] for peer in peers] == ["terminal-1", "terminal-2", "terminal-3"]
    assert len({peer["public_key"] for peer in peers}) == 3
    assert made["pep"]["link"]["interfaces"] == ["bp0"]
    many = sat_toml(changed(link=LINK | {"terminals": 70}, gateways=tunnels), "hub")
    assert "# - link.terminals: a tunnel has at most 64 peers: the other 6 terminals" in many
