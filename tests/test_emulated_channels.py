"""Channels in real time: the simulator's downloads on kernel sockets."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from conftest import measures, needs_lab
from test_emulate import emulated

from bentpipe import Plan, simulate
from bentpipe.errors import ScenarioError
from bentpipe.live.requirements import refuse
from bentpipe.results.measures import aggregate_goodput_bps

MS = 1_000_000
LINK = {
    "forward": {"rate": "16 Mbit/s", "delay": "250 ms", "queue": {"limit": "1000 kB"}},
    "return": {"rate": "16 Mbit/s", "delay": "250 ms"},
}
KEYS = ["name", "exchange"]


def scenario(channels: int, seconds: int, **fields: Any) -> dict[str, Any]:
    entry = {"kind": "channels", "name": "users", "channels": channels, **fields}
    return {"duration": f"{seconds} s", "link": LINK, "traffic": [entry]}


@measures
def test_fifty_channels_have_the_simulated_downloads_and_goodput(tmp_path: Path) -> None:
    """Given 50 default channels for 15 s, expect the simulated sizes and servers, and goodput.

    Some 400 connections carry 8 MB, of which single ones of 1 MB and more are a third: one round of
    slow start more or less at the end of such a download is up to 5 %. The tolerance is twice that.
    """
    data = scenario(50, 15)
    run = emulated(data, tmp_path).result
    expected = simulate(data, seed=run.manifest["seed"])
    columns = [*KEYS, "response_bytes", "host", "start_ns", "finished_ns"]
    both = run.exchanges.select(columns).join(
        expected.exchanges.select(columns), on=KEYS, suffix="_simulated"
    )
    assert both.height > 300
    for column in ("response_bytes", "host"):
        assert both[column].equals(both[f"{column}_simulated"], check_names=False)
    goodputs = [aggregate_goodput_bps(each, range(50)) for each in (run, expected)]
    assert goodputs[0] == pytest.approx(goodputs[1], rel=0.1)
    took = both.select(
        (pl.col("finished_ns") - pl.col("start_ns"))
        - (pl.col("finished_ns_simulated") - pl.col("start_ns_simulated"))
    ).to_series()
    # A connection takes some 1.5 s; other programs delay the threads of clients and servers.
    assert abs(float(np.median(took.drop_nulls().to_numpy()))) < 75 * MS
    assert run.manifest["emulation"]["failed_connections"] == {
        "reset": 0,
        "timed_out": 0,
        "truncated": 0,
        "other": 0,
    }
    finished = run.exchanges.filter(pl.col("finished_ns").is_not_null())
    assert run.flows["exchanges"].sum() == finished.height
    assert run.flows["delivered_bytes"].sum() >= finished["response_bytes"].sum()
    assert (run.flows["sent_bytes"] >= run.flows["delivered_bytes"]).all()
    assert (run.flows["rtt_min_ns"] >= 500 * MS).all()


@needs_lab
@pytest.mark.thorough
def test_three_hundred_channels_hold(tmp_path: Path) -> None:
    """Given 300 channels of small downloads for 12 s, expect each to go on, and none to fail.

    A connection takes at least two round trips of 500 ms. Punctuality does not matter here, so the
    run may be late.
    """
    fields = {"sizes": [{"size": "600 B", "weight": 1}], "start_jitter": "1 s"}
    run = emulated(scenario(300, 12, **fields), tmp_path, valid=False)
    flows = run.result.flows
    assert flows.height == 300
    assert sum(run.result.manifest["emulation"]["failed_connections"].values()) == 0
    assert (flows["exchanges"] >= 3).all()
    assert (flows["exchanges"] <= 11).all()
    assert (flows["delivered_bytes"] >= 600 * flows["exchanges"]).all()
    assert flows["lost_queue_full_packets"].sum() == 0


@pytest.mark.thorough
@measures
def test_a_connection_takes_two_round_trips_in_real_time(tmp_path: Path) -> None:
    """Given one size and one server at 50 ms, expect 1.2 s per connection and 9 packets.

    The limit of 3 connections is reached at 3.6 s. The 8 packets of TCP's handshake and end and the
    data are those of the simulator, but for the ACK that the kernel may save or add at the end.
    """
    data = scenario(
        1,
        8,
        servers=[{"name": "far", "delay": "50 ms"}],
        sizes=[{"size": "1 kB", "weight": 1}],
        connections=3,
        client_jitter="0 ms",
        server_jitter="0 ms",
        start_jitter="0 s",
    )
    result = emulated(data, tmp_path).result
    starts = [row / MS for row in result.exchanges["start_ns"]]
    gaps = [later - earlier for earlier, later in pairwise(starts)]
    assert len(starts) == 3
    assert all(1_200 <= gap <= 1_260 for gap in gaps)
    assert result.flows["finished_ns"][0] is not None
    sent = result.directions["sent_packets"].sum()
    assert 3 * 8 <= sent <= 3 * 10


def test_more_channels_than_a_lab_holds_are_refused() -> None:
    plan = Plan.resolve(scenario(1_001, 10))
    with pytest.raises(ScenarioError, match="has 1001 channels; in real time at most 1000"):
        refuse(plan)
