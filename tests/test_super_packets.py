"""Super-packets: an option of `exec`, under which the link still sees packets."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from conftest import measures, needs

from bentpipe.errors import MachineError
from bentpipe.live.capacity import refuse_beyond_capacity
from bentpipe.live.changes import change_link
from bentpipe.plan.presets import link_plan

SIZE = 5_000_000


@measures
@needs("curl")
def test_the_link_carries_packets_while_kernels_pass_larger_segments(tmp_path: Path) -> None:
    """Given 5 MB over 100 Mbit/s, expect packets of 1,500 bytes at most at that rate.

    The world's kernel must have passed fewer segments than the packets on the link.
    """
    report = tmp_path / "report.json"
    fetched, sent = tmp_path / "fetched", tmp_path / "sent"
    # Read the counters of the world's device at the end.
    look = f"until test -e {fetched}; do sleep 0.05; done; grep link: /proc/net/dev > {sent}.part"
    ran = subprocess.run(
        [
            *(sys.executable, "-m", "bentpipe", "exec", "--link", "leo", "--super-packets"),
            *("--set", "link.forward.rate=100Mbit/s", "--statistics", str(report)),
            *("--world", f"{look}; mv {sent}.part {sent}", "--", "sh", "-c"),
            "curl -s -o /dev/null -w '%{size_download} %{time_total}' "
            f"http://world/bytes/{SIZE}; touch {fetched}; until test -e {sent}; do sleep 0.1; done",
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    size, seconds = (float(word) for word in ran.stdout.split())
    assert size == SIZE, ran.stderr
    assert seconds >= SIZE * 8 / 100e6
    measured = json.loads(report.read_text())
    forward = measured["directions"]["forward"]
    assert forward["delivered_packets"] >= SIZE / 1_460
    assert forward["delivered_bytes"] <= 1_500 * forward["delivered_packets"]
    assert measured["unsegmented_packets"] == measured["rejected_packets"] == 0
    passed = int(sent.read_text().split(":")[1].split()[9])
    assert passed < forward["delivered_packets"] / 2


def test_a_rate_beyond_the_capacity_for_super_packets_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    kept = tmp_path / "bentpipe" / "capacity.json"
    kept.parent.mkdir()
    plans = [link_plan("geo", ["link.forward.rate=5Gbit/s"])]
    kept.write_text('{"tcp_bits_per_second": 1e9}')
    refuse_beyond_capacity(plans, super_packets=True)  # it was not measured
    capacities = {"tcp_bits_per_second": 1e9, "tcp_super_packets_bits_per_second": 6e9}
    kept.write_text(json.dumps(capacities))
    refuse_beyond_capacity(plans, super_packets=True)
    with pytest.raises(MachineError, match=r"5,000 Mbit/s is above .* 1,000 Mbit/s"):
        refuse_beyond_capacity(plans)
    capacities["tcp_super_packets_bits_per_second"] = 4e9
    kept.write_text(json.dumps(capacities))
    with pytest.raises(MachineError, match=r"5,000 Mbit/s is above .* 4,000 Mbit/s"):
        refuse_beyond_capacity(plans, super_packets=True)


def test_a_running_lab_takes_rates_up_to_its_own_capacity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a rate beyond the capacity for single packets, expect the lab's reply to decide."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    kept = tmp_path / "bentpipe" / "capacity.json"
    kept.parent.mkdir()
    kept.write_text('{"tcp_bits_per_second": 1e9, "tcp_super_packets_bits_per_second": 6e9}')
    plans = [link_plan("geo")]

    def ask(action: str, *, super_packets: bool, **_: Any) -> dict[str, Any]:
        if action == "link":
            return {"revision": 0, "plans": plans, "super_packets": super_packets}
        return {"at_ns": 5}

    faster = ["link.forward.rate=5Gbit/s"]
    assert change_link(partial(ask, super_packets=True), faster) == {"at_ns": 5}
    with pytest.raises(MachineError, match=r"5,000 Mbit/s is above .* 1,000 Mbit/s"):
        change_link(partial(ask, super_packets=False), faster)
