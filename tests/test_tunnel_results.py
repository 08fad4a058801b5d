"""The statistics of coded tunnels: what is printed, and figures that are derived."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import Program

from bentpipe import simulate
from bentpipe.results.run_views import link_views

# A datagram of 1,028 bytes each 10 ms for 20 s, over a link that loses one packet in a hundred.
LOSSY: dict[str, Any] = {
    "name": "lossy",
    "link": {
        "forward": {"rate": "10 Mbit/s", "delay": "100 ms", "bit_error_rate": 1e-6},
        "return": {"rate": "1 Mbit/s", "delay": "100 ms"},
    },
    "gateways": {end: {"tunnel": {"redundancy": "10 %"}} for end in ("hub", "terminal")},
    "traffic": [
        {
            "kind": "constant_rate",
            "direction": "forward",
            "rate": "800 kbit/s",
            "payload": "1000 B",
            "duration": "20 s",
        }
    ],
    "duration": "30 s",
}


def test_derived_figures_match_hand_calculations() -> None:
    """Given 2,000 datagrams and 10 % of repair, expect 200 repair symbols, and no loss that stays.

    A source symbol has 1,028 + 6 bytes behind 68 bytes of headers, a repair symbol 1,034 behind 68.
    """
    result = simulate(LOSSY)
    hub, terminal = result.functions
    assert (hub["function"], terminal["function"]) == ("hub-tunnel", "terminal-1-tunnel")
    assert hub["sources_sent_packets"] == 2_000
    assert hub["repairs_sent_packets"] == 200
    assert hub["repairs_sent_bytes"] == 200 * (1_034 + 68)
    assert hub["redundancy_percent"] == 10
    assert hub["repair_share_percent"] == pytest.approx(100 * 200 / 2_200)
    assert hub["loss_before_percent"] is hub["order_wait_mean_ns"] is None
    lost = terminal["sources_lost_packets"]
    assert 0 < lost == terminal["recovered_packets"]
    assert terminal["sources_received_packets"] == 2_000 - lost
    assert terminal["loss_before_percent"] == pytest.approx(100 * lost / 2_000)
    assert terminal["loss_after_percent"] == 0
    waited, mean_ns = terminal["order_waited_packets"], terminal["order_wait_mean_ns"]
    assert mean_ns == terminal["order_wait_sum_ns"] / waited <= terminal["order_wait_max_ns"]
    assert result.flows["received_segments"][0] == 2_000
    assert result.flows["lost_bit_error_packets"][0] == 0
    assert result.flows["loss_percent"][0] == 0


def test_without_a_tunnel_the_same_losses_stay() -> None:
    result = simulate(LOSSY | {"gateways": {}})
    assert result.flows["received_segments"][0] < 2_000


def test_the_command_prints_ends_of_tunnels(bentpipe: Program, tmp_path: Path) -> None:
    file = tmp_path / "lossy.json"
    file.write_text(json.dumps(LOSSY))
    printed = bentpipe("run", file).out
    row = next(line for line in printed.splitlines() if line.startswith("hub-tunnel"))
    cells = ["hub-tunnel", "2,000", "0", "200", "9.091", "%", "-", "-", "0", "-", "0", "ns"]
    assert row.split() == cells
    hub = json.loads(bentpipe("run", file, "--json").out)["functions"][0]
    assert hub["redundancy_percent"] == 10


def test_the_ends_of_many_terminals_are_shown_together() -> None:
    traffic = [{**LOSSY["traffic"][0], "terminal": "all", "duration": "1 s"}]
    many = LOSSY | {"link": {**LOSSY["link"], "terminals": 3}, "traffic": traffic}
    table = next(each for each in link_views(simulate(many), 2) if "tunnel" in each.title)
    assert [row[0] for row in table.rows[:2]] == [
        "hub-tunnel",
        "terminal-1-tunnel to terminal-3-tunnel",
    ]
