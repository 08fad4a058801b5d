"""The search for the largest rate without a loss, against limits that can be worked out."""

from __future__ import annotations

import copy
import csv
import json
import math
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, Program
from test_plots_report import assert_self_contained

from bentpipe import Scenario, Search, search_no_drop
from bentpipe.errors import ScenarioError, UsageError
from bentpipe.report.search import search_report, search_tables
from bentpipe.results.views import View, text_table
from bentpipe.simulation import Limit
from bentpipe.simulation.search import max_trials

DUPLEX = ROOT / "scenarios" / "snip-duplex.yaml"

# 1,000 packets a second can be handled. On 2 Mbit/s without framing, datagrams of 222 bytes (250 of
# IP) come to 1,000 a second too: below, the processor binds, above, the link. What the buffers hide
# in ten seconds is 5 of 10,000 packets.
ONE_WAY: dict[str, Any] = {
    "name": "one way",
    "link": {
        "forward": {"rate": "2 Mbit/s", "delay": "20 ms", "queue": {"limit": "5 packets"}},
        "return": {"rate": "2 Mbit/s", "delay": "20 ms", "queue": {"limit": "5 packets"}},
    },
    "gateways": {"hub": {"processor": {"packets_per_second": 1000, "buffer": "5 packets"}}},
    "traffic": [
        {
            "name": "test",
            "kind": "constant_rate",
            "direction": "forward",
            "rate": "64 kbit/s",
            "payload": "100 B",
            "duration": "10 s",
        }
    ],
    "duration": "11 s",
}


def one_way(**changes: Any) -> Scenario:
    """Return the scenario with other fields in its only flow."""
    data = copy.deepcopy(ONE_WAY)
    data["traffic"][0] |= changes
    return Scenario.from_dict(data)


def brackets(found: Limit, limit_bps: float, hidden: float = 0.0006) -> bool:
    """Return whether the limit is in the bracket, extended by the share that buffers hide."""
    assert found.passes is not None
    assert found.fails is not None
    return found.passes <= limit_bps * (1 + hidden) and limit_bps <= found.fails


# --- limits by hand -----------------------------------------------------------------------------


def test_small_packets_are_limited_by_the_processor_and_large_ones_by_the_link() -> None:
    found = search_no_drop(one_way(), [50, 200, 400, 1400], resolution=0.002)
    limits = {each.payload_bytes: each for each in found.limits}
    assert list(limits) == [50, 200, 400, 1400]
    assert (found.criterion, found.path, found.unit) == ("no-drop", "traffic.test.rate", "bps")
    for size in (50, 200):
        limited = limits[size]
        assert brackets(limited, 1000 * 8 * size)
        assert limited.packets_per_second == pytest.approx(1000, rel=0.003)
        assert limited.first_loss is not None
        assert (limited.first_loss.limit, limited.first_loss.place) == (
            "packet rate",
            "hub-processor",
        )
    for size in (400, 1400):
        limited = limits[size]
        # Of 893 packets of 1,428 bytes, 5 are in buffers and one is in transmission at the end.
        assert brackets(limited, 2e6 * size / (size + 28), hidden=0.004)
        assert limited.first_loss is not None
        assert (limited.first_loss.limit, limited.first_loss.place) == ("channel", "forward")


@pytest.mark.parametrize("resolution", [0.1, 0.01, 0.001])
def test_the_rate_has_the_requested_resolution(resolution: float) -> None:
    (found,) = search_no_drop(one_way(), [100], resolution=resolution).limits
    assert found.converged
    assert brackets(found, 800_000)
    assert found.passes is not None
    assert found.fails is not None
    assert found.fails - found.passes <= resolution * found.passes
    # Ten packets in ten seconds first; doubled to 819,200 bit/s or more; then halved.
    rates_bps = [trial.value for trial in found.trials]
    assert rates_bps[:3] == [800, 1600, 3200]
    assert len(rates_bps) <= 11 + math.ceil(math.log2(1 / resolution)) + 1
    assert max(trial.value for trial in found.trials if trial.passed) == found.passes


def test_flows_both_ways_share_one_processor() -> None:
    """Given equal rates both ways, expect each to have half of what the processor handles."""
    found = search_no_drop(one_way(direction="both"), [100], resolution=0.002)
    assert found.flows == ("test-forward", "test-return")
    (both,) = found.limits
    assert both.flows == 2
    assert brackets(both, 400_000, hidden=0.0011)
    assert both.aggregate_packets_per_second == pytest.approx(1000, rel=0.003)


def test_a_named_flow_is_searched_and_the_others_are_unchanged() -> None:
    """Given another flow of 300 of the processor's 1,000 packets a second, expect 700."""
    data = copy.deepcopy(ONE_WAY)
    data["traffic"].append({**data["traffic"][0], "name": "call", "rate": "240 kbit/s"})
    found = search_no_drop(Scenario.from_dict(data), [50], flow="test", resolution=0.002)
    assert found.flows == ("test",)
    assert found.limits[0].packets_per_second == pytest.approx(700, rel=0.004)


def test_without_sizes_the_payload_of_the_scenario_is_searched() -> None:
    assert [each.payload_bytes for each in search_no_drop(one_way()).limits] == [100]
    data = copy.deepcopy(ONE_WAY)
    data["traffic"].append({**data["traffic"][0], "name": "call", "payload": "60 B"})
    with pytest.raises(UsageError, match=r"differ in payload \(60 B, 100 B\)"):
        search_no_drop(Scenario.from_dict(data))
    assert search_no_drop(Scenario.from_dict(data), flow="call").limits[0].payload_bytes == 60


def test_an_unlimited_queue_does_not_raise_the_rate() -> None:
    """Given 2 Mbit/s and 28 bytes of headers, expect the channel's limit, without a loss."""
    data = copy.deepcopy(ONE_WAY)
    del data["gateways"]
    data["link"]["forward"]["queue"] = {"limit": "unlimited"}
    (found,) = search_no_drop(Scenario.from_dict(data), [1000]).limits
    assert brackets(found, 2e6 * 1000 / 1028, hidden=0.005)
    assert (found.converged, found.proven) == (True, True)
    assert found.first_loss is not None
    assert (found.first_loss.limit, found.first_loss.place) == ("channel", "forward")
    assert {
        check.to_json()["lost_packets"] for trial in found.trials for check in trial.checks
    } == {0}


def test_no_rate_passes_if_every_packet_is_lost() -> None:
    """Given an error in every second bit, expect the first trial to lose its ten packets."""
    data = copy.deepcopy(ONE_WAY)
    data["link"]["forward"]["bit_error_rate"] = 0.5
    (found,) = search_no_drop(Scenario.from_dict(data), [100]).limits
    assert (found.passes, found.packets_per_second, found.converged) == (None, None, True)
    assert found.first_loss is not None
    assert (found.first_loss.limit, found.first_loss.packets) == ("random loss", 10)


def test_a_processor_with_a_large_buffer_is_found_too() -> None:
    data = copy.deepcopy(ONE_WAY)
    data["gateways"]["hub"]["processor"]["buffer"] = "5000 packets"
    (found,) = search_no_drop(Scenario.from_dict(data), [100]).limits
    assert brackets(found, 800_000, hidden=0.005)
    assert found.proven
    assert found.first_loss is not None
    assert (found.first_loss.limit, found.first_loss.place) == ("packet rate", "hub-processor")
    assert found.first_loss.packets == 0


def test_a_rate_is_not_proven_by_too_short_a_run() -> None:
    """Given half a second, in which an interval is 0.2 %, expect a rate within that, marked."""
    (short,) = search_no_drop(one_way(duration="500 ms"), [100], resolution=0.001).limits
    (long,) = search_no_drop(one_way(), [100], resolution=0.001).limits
    assert short.passes is not None
    assert long.passes is not None
    assert 1.001 < short.passes / 800_000 < 1.003
    assert 0.999 <= long.passes / 800_000 < 1.001
    assert (short.proven, long.proven) == (False, True)


def test_a_run_that_ends_before_a_delivery_proves_nothing() -> None:
    """Given a stop after 10 ms of a link of 20 ms, expect the link's rate, marked."""
    (found,) = search_no_drop(Scenario.from_dict({**ONE_WAY, "duration": "10 ms"}), [1000]).limits
    assert not found.proven
    assert not found.to_json()["proven"]


@pytest.mark.system
@pytest.mark.parametrize("framing", ["none", "ethernet"])
@pytest.mark.parametrize("limit", ["10 packets", "100 packets", "1 bdp"])
@pytest.mark.parametrize("seconds", [0.2, pytest.param(2, marks=pytest.mark.thorough)])
def test_each_rate_is_that_on_paper_whatever_the_buffer(
    framing: str, limit: str, seconds: float
) -> None:
    """Given 10 Mbit/s, expect each rate within 1 %, at most 0.5 % above, or marked.

    Ethernet adds 14 bytes of header and 4 of check to at least 46 bytes of IP (IEEE 802.3).
    """
    direction = {"rate": "10 Mbit/s", "delay": "250 ms", "framing": framing}
    link = {"forward": {**direction, "queue": {"limit": limit}}, "return": direction}
    flow = {**ONE_WAY["traffic"][0], "duration": f"{seconds} s"}
    scenario = Scenario.from_dict({"link": link, "traffic": [flow], "duration": f"{seconds + 2} s"})
    sizes = [18, 58, 100, 200, 512, 1000, 1472]
    rates = search_no_drop(scenario, sizes).limits
    for each in rates:
        ip_bytes = each.payload_bytes + 28
        link_bytes = ip_bytes if framing == "none" else max(ip_bytes, 46) + 18
        assert each.passes is not None
        share = each.passes / (10e6 * each.payload_bytes / link_bytes)
        assert not each.proven or 0.99 <= share <= 1.005, each.payload_bytes
        # What is not proven is near, too: an interval is at most 0.75 % of 0.2 s.
        assert 0.99 <= share <= 1.01
    assert sum(each.proven for each in rates) >= 6


def test_a_link_that_changes_is_searched_by_losses_alone() -> None:
    """Given a delay that rises by 200 ms, expect no failure from that, and no proof."""
    data = copy.deepcopy(ONE_WAY)
    del data["gateways"]
    steps = [{"at": "0 s", "value": "20 ms"}, {"at": "5 s", "value": "220 ms"}]
    data["link"]["forward"]["delay"] = steps
    (found,) = search_no_drop(Scenario.from_dict(data), [1000]).limits
    assert brackets(found, 2e6 * 1000 / 1028, hidden=0.004)
    assert not found.proven
    assert found.first_loss is not None
    assert found.first_loss.cause == "queue_full"


# --- promises -----------------------------------------------------------------------------------


def test_threads_do_not_change_the_rates() -> None:
    alone, together = (
        search_no_drop(one_way(), [50, 100, 400, 1400], threads=threads) for threads in (1, 4)
    )
    assert alone == together
    assert search_report(alone) == search_report(together)


def test_each_size_has_runs_of_its_own() -> None:
    """Given two sizes with two seeds, expect the limits that each has alone."""
    both = search_no_drop(one_way(), [50, 400], resolution=0.1, seeds=2)
    alone = [search_no_drop(one_way(), [size], resolution=0.1).limits[0] for size in (50, 400)]
    assert both.seeds == (1, 2)
    assert list(both.limits) == alone


def test_progress_counts_up_to_its_total() -> None:
    seen: list[tuple[int, int]] = []
    search_no_drop(one_way(), [50, 400], progress=lambda done, total: seen.append((done, total)))
    (total,) = {total for _, total in seen}
    counts = [done for done, _ in seen]
    assert counts == sorted(counts)
    assert counts[-1] == total
    assert total == max_trials(one_way(), [50, 400], 0.005)


def interrupted_after(rounds: int) -> Search:
    calls = 0

    def interrupt(_done: int, _total: int) -> None:
        nonlocal calls
        calls += 1
        if calls == rounds:
            raise KeyboardInterrupt

    return search_no_drop(one_way(), [100, 400], progress=interrupt)


def test_ctrl_c_keeps_the_rates_that_passed() -> None:
    early = interrupted_after(3)
    assert early.interrupted
    assert [each.passes for each in early.limits] == [3200, 12_800]
    assert not any(each.converged for each in early.limits)
    json.dumps(early.to_json(), allow_nan=False)
    assert "The search was interrupted" in search_report(early)
    # The last bracket is worth something as well.
    late = interrupted_after(13).limits[0]
    assert late.passes is not None
    assert late.fails is not None
    assert late.passes <= 801_000 <= late.fails


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"sizes": []}, "sizes: none"),
        ({"sizes": [0]}, r"sizes: traffic.0.payload: .*above zero"),
        ({"sizes": [65_508]}, r'sizes: traffic.0.payload: read "65508 B"; must be at most 65507 B'),
        ({"seeds": 1_001}, "seeds: read 1001; must be 1 to 1000"),
        ({"resolution": 0.0}, r"resolution: read 0.000000%; must be 0.01% to 50%"),
        ({"resolution": 0.6}, "resolution: read 60"),
        ({"resolution": math.nan}, "resolution"),
        ({"seed": -1}, "seed: read -1"),
        ({"flow": "tset"}, 'flow: read "tset"; allowed: test; did you mean "test"'),
    ],
)
def test_what_cannot_be_searched_is_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        search_no_drop(one_way(), **{"sizes": [100], **arguments})


def test_a_scenario_needs_a_flow_of_constant_rate() -> None:
    data = copy.deepcopy(ONE_WAY)
    data["traffic"] = [{"kind": "bulk", "direction": "forward", "size": "1 MB"}]
    with pytest.raises(UsageError, match=r"no flow of kind constant_rate.*\(read: bulk\)"):
        search_no_drop(Scenario.from_dict(data), [100])


def test_a_packet_that_fits_into_no_queue_is_the_scenario_s_error() -> None:
    data = copy.deepcopy(ONE_WAY)
    data["link"]["forward"]["queue"] = {"limit": "1000 B"}
    with pytest.raises(ScenarioError, match="smaller than one packet"):
        search_no_drop(Scenario.from_dict(data), [973])


# --- the command --------------------------------------------------------------------------------


def test_the_command_prints_a_table(bentpipe: Program) -> None:
    called = bentpipe("search", DUPLEX, "--no-drop", "--sizes", "58, 1400")
    assert (called.code, called.err) == (0, "")
    assert "flows: iperf-forward, iperf-return" in called.out
    small, large = (line for line in called.out.splitlines() if " B " in line and "Mbit/s" in line)
    assert ("packet rate" in small, "channel" in large) == (True, True)


@pytest.mark.parametrize("width", [50, 80, 160])
def test_the_table_shortens_no_place(width: int) -> None:
    found = search_no_drop(Scenario.load(DUPLEX), [58, 1400], resolution=0.05)
    _, view, *_ = search_tables(found)
    assert isinstance(view, View)
    text = text_table(view, width)
    assert "hub-processor" in text
    assert max(map(len, text.splitlines())) <= width


@pytest.mark.system
def test_the_command_prints_json_and_writes_a_folder(bentpipe: Program, tmp_path: Path) -> None:
    out = tmp_path / "found"
    arguments = ("--sizes", "58,1400", "--resolution", "1 %", "--seed", "3", "--out", out, "--json")
    called = bentpipe("search", DUPLEX, "--no-drop", "--set", "duration=2.5s", *arguments)
    assert called.code == 0
    assert f"wrote {out}" in called.err
    printed = json.loads(called.out)
    assert json.loads((out / "search.json").read_text(encoding="utf-8")) == printed
    searched = (printed["criterion"], printed["seeds"], printed["limits"][0]["resolution"])
    assert searched == ("no-drop", [3], 0.01)
    assert [limit["payload_bytes"] for limit in printed["limits"]] == [58, 1400]
    assert {path.name for path in out.iterdir()} == {
        "charts",
        "execution.json",
        "manifest.json",
        "report.html",
        "search.json",
        "sizes.csv",
    }
    page = assert_self_contained((out / "report.html").read_text(encoding="utf-8"))
    assert page.tags.count("svg") == 1
    with (out / "sizes.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["rate_bps"]) for row in rows] == [each["passes"] for each in printed["limits"]]
    # A search may be made again into its folder, and a run may not.
    assert bentpipe("search", DUPLEX, "--no-drop", "--sizes", "58", "--out", out).code == 0
    refused = bentpipe("run", DUPLEX, "--out", out)
    assert refused.code == 2
    assert "holds the result of a search" in refused.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--sizes", "58,x"], '--sizes: read "x"'),
        (["--sizes", ""], "--sizes: has no value"),
        (["--sizes", "58,,68"], '--sizes: read ""'),
        (["--sizes", "99999"], 'read "99999 B"; must be at most 65507 B'),
        (["--max", "9"], "--max: not with --no-drop"),
        (["--threshold", "flows.mos.p5 > 3"], "--threshold: not with --no-drop"),
        (["--resolution", "0.5"], '--resolution: read "0.5"; expected a percentage'),
        (["--resolution", "0%"], "resolution: read 0.000000%"),
        (["--resolution", "80%"], "must be 0.01% to 50%"),
        (["--flow", "ping"], 'flow: read "ping"; allowed: iperf'),
        (["--set", "traffic.0.rate=fast"], "rate"),
    ],
)
def test_a_wrong_search_is_one_message_and_exit_code_2(
    arguments: list[str], words: str, bentpipe: Program
) -> None:
    called = bentpipe("search", DUPLEX, "--no-drop", *arguments)
    assert (called.code, called.out) == (2, "")
    assert words in called.err
    assert len(called.err.splitlines()) == 1


def test_a_scenario_without_a_constant_rate_flow_is_exit_code_2(bentpipe: Program) -> None:
    called = bentpipe("search", ROOT / "scenarios" / "geo-bulk.yaml", "--no-drop")
    assert (called.code, called.out) == (2, "")
    assert "no flow of kind constant_rate" in called.err


def test_an_interrupted_search_is_exit_code_130(
    bentpipe: Program, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = interrupted_after(13)
    monkeypatch.setattr("bentpipe.search_no_drop", lambda *_, **__: found)
    called = bentpipe("search", DUPLEX, "--no-drop", "--out", tmp_path / "cut")
    assert called.code == 130
    assert "interrupted" in called.err
    assert "(rate not converged)" in called.out
    written = json.loads((tmp_path / "cut" / "search.json").read_text(encoding="utf-8"))
    assert written["interrupted"]
