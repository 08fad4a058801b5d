"""The study of the Auckland baselines: its cells, and a small study of a slow link.

The whole study takes long. The small one has 2 Mbit/s instead of 16, which 40 channels fill.
"""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import Program
from rich.console import Console
from test_plots_report import assert_self_contained

from bentpipe import Plan
from bentpipe.results.views import text_table
from bentpipe.simulation import Threads
from bentpipe.studies.auckland import cells, checks, claims, runs, study, views
from bentpipe.studies.auckland.cells import BASE, TUNNELS, VARIANTS, Cell, LinkPath, Loads
from bentpipe.studies.auckland.claims import Claim, Verdict
from bentpipe.studies.auckland.study import AucklandOutcome
from bentpipe.studies.base import inputs
from bentpipe.studies.base.inputs import read_scenario
from bentpipe.studies.base.work import Work

# Its cells take half a minute.
pytestmark = [pytest.mark.system, pytest.mark.thorough]

SMALL, LARGE = cells.QUEUES_KB
EDGE = "the PEP has a clear edge over the plain link"
MARKEDLY = "the PEP gains markedly over the plain link at very low background load"
PLAIN, PEP = LinkPath.PLAIN, LinkPath.PEP
RATE_MBPS = 2.0
FEW = Loads(every=(0, 5, 40), variants=(5, 40), mixed=5)
NOTHING_VARIED = Loads(every=(0, 5), variants=(), mixed=0)


def slow(patch: pytest.MonkeyPatch) -> None:
    """Make the link of all cells slow."""
    data = read_scenario("auckland")
    for direction in data["link"].values():
        direction["rate"] = f"{RATE_MBPS:g} Mbit/s"
    patch.setattr(inputs, "load_scenario", lambda _: data)


@pytest.fixture(scope="module")
def small() -> AucklandOutcome:
    """Two runs of three numbers of channels on a slow link, with two variants."""
    chosen = ("one server, at the hub", "window of 128 symbols")
    with pytest.MonkeyPatch.context() as patch:
        slow(patch)
        return study.run(
            Work("auckland", runs=2, seed=5, executor=Threads(1)),
            loads=FEW,
            variants=[each for each in VARIANTS if each.name in chosen],
        )


# --- cells ----------------------------------------------------------------------------------------


def plan_of(cell: Cell, variant: cells.Variant = BASE) -> Any:
    return Plan.resolve(replace(cell, variant=variant.name).scenario()).data


def test_the_cells_are_those_of_the_source() -> None:
    """Two queues in Ethernet bytes, 500 ms of round trip, 16 Mbit/s, without and with a PEP."""
    assert cells.LOADS.every[0] == 0
    assert max(cells.LOADS.every) > 100
    for queue_kb in (120, 1000):
        for path in (PLAIN, PEP):
            plan = plan_of(Cell(60, queue_kb, path))
            forward, back = plan["directions"]
            limit = {"unit": "link_bytes", "value": queue_kb * 1000}
            assert forward["queue"] == {"discipline": "drop_tail", "limit": limit}
            assert forward["framing"]["header_bytes"] == 18
            assert forward["rate_bps"]["value"] == 16_000_000
            assert forward["delay_ns"]["value"] + back["delay_ns"]["value"] == 500_000_000
            functions = [each["kind"] for each in plan["gateways"][0]["functions"]]
            assert functions == (["pep"] if path is PEP else [])
            names = [flow["name"] for flow in plan["flows"]]
            assert sum(name.startswith("channels") for name in names) == 60
            (transfer,) = (flow for flow in plan["flows"] if flow["name"] == "iperf3")
            assert transfer["workload"]["amount"] == {"unit": "duration_ns", "value": 300 * 10**9}
            assert plan["stop_ns"] == 600 * 10**9
    assert [flow["name"] for flow in plan_of(Cell(0, 120, PLAIN))["flows"]] == [
        "iperf3",
        "ping-forward",
        "ping-return",
    ]


@pytest.mark.parametrize("path", [path for path in TUNNELS if path is not LinkPath.ON_OVERFLOW])
def test_both_ends_of_a_coded_link_have_the_same_tunnel(path: LinkPath) -> None:
    plan = plan_of(Cell(60, SMALL, path))
    hub, terminal = (gateway["functions"] for gateway in plan["gateways"])
    (tunnel,) = hub
    assert tunnel["kind"] == "tunnel"
    assert tunnel["redundancy"] == {
        "kind": "fixed",
        "redundancy_ppm": 100_000 if "10 %" in path else 200_000,
        "window_symbols": 512,
    }
    modes = {LinkPath.AT_ONCE: "immediate", LinkPath.CODED: "delayed"}
    assert tunnel["titration"]["kind"] == modes.get(path, "titrated")
    assert tunnel["delivery"] == terminal[0]["delivery"]


def test_repair_on_overflow_has_a_repair_for_each_drop_and_a_pace() -> None:
    """The hub repairs what its queue drops; the terminal lets packets go at 1.25 times the rate."""
    hub, terminal = (
        gateway["functions"][0]
        for gateway in plan_of(Cell(60, SMALL, LinkPath.ON_OVERFLOW))["gateways"]
    )
    assert hub["overflow"] == {"repair_ppm": 1_000_000, "window_symbols": 128}
    assert terminal["overflow"] is None
    assert terminal["delivery"]["pace_bps"] == 20_000_000


def test_half_of_the_channels_can_go_uncoded() -> None:
    """Given 5 channels, expect 3 of the coded class and 2 of the other, all with downloads."""
    plan = plan_of(Cell(5, SMALL, LinkPath.CODED), cells.HALVED)
    names = [flow["name"] for flow in plan["flows"]]
    assert sum(name.startswith("channels") for name in names) == 3
    assert sum(name.startswith("others") for name in names) == 2
    for gateway in plan["gateways"]:
        assert gateway["functions"][0]["classifier"]["classes"] == [0]


def test_the_scenario_file_is_a_cell() -> None:
    written = Plan.resolve(Path(study.__file__).parent / "scenario.yaml").data
    assert written == plan_of(Cell(20, 120, PLAIN))


def test_full_segments_are_1448_of_1518_bytes() -> None:
    found = runs.payload_rate_mbps(plan_of(Cell(0, 120, PLAIN)))
    assert found == pytest.approx(16 * 1448 / 1518)


def test_each_variant_changes_one_thing() -> None:
    for path in (PEP, LinkPath.CODED, LinkPath.TITRATED_20):
        cell = Cell(5, 120, path)
        chosen = [each for each in VARIANTS if path in each.paths]
        plans = [json.dumps(plan_of(cell, each)) for each in (BASE, *chosen)]
        assert len(set(plans)) == 1 + len(chosen)


def sizes_of(variant: str) -> list[tuple[int, int]]:
    (chosen,) = (each for each in (BASE, *VARIANTS) if each.name == variant)
    plan = plan_of(Cell(2, 120, PLAIN), chosen)
    assert sum("channels" in flow["name"] for flow in plan["flows"]) == 2 * chosen.channels_times
    return [(size, weight) for size, weight in plan["flows"][0]["workload"]["sizes"]]


def test_the_sizes_are_those_of_the_trace_and_3_percent_of_500_kb() -> None:
    """97 % of 235, 591 and 2,120 bytes as 9 : 5 : 13: a mean of 0.97 x 1,208.5 + 15,000 bytes."""
    sizes = sizes_of("as described")
    total = sum(weight for _, weight in sizes)
    assert {size: 27 * weight / total / 0.97 for size, weight in sizes[:3]} == pytest.approx(
        {235: 9, 591: 5, 2120: 13}
    )
    assert (sizes[3][0], sizes[3][1] / total) == (500_000, 0.03)
    mean_bytes = sum(size * weight for size, weight in sizes) / total
    assert mean_bytes == pytest.approx(0.97 * 32_630 / 27 + 15_000)


def test_into_rarotonga_half_of_the_bytes_are_in_flows_of_at_most_ten_packets() -> None:
    sizes = sizes_of("sizes as into Rarotonga")
    total = sum(size * weight for size, weight in sizes)
    small = sum(size * weight for size, weight in sizes if size <= 10 * 1448)
    assert small / total == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("cell", checks.cells(), ids=str)
def test_checks_are_transfers_of_a_size_over_the_plain_link(cell: checks.CheckCell) -> None:
    """A queue of 100 kB, and a transfer that ends when it is complete."""
    plan = Plan.resolve(cell.scenario()).data
    assert plan["directions"][0]["queue"]["limit"]["value"] == 100_000
    (transfer,) = (flow for flow in plan["flows"] if flow["name"] == "iperf3")
    assert transfer["workload"]["amount"]["unit"] == "bytes"
    channels = [flow for flow in plan["flows"] if flow["name"].startswith("channels")]
    assert len(channels) == cell.channels
    if cell.sizes == "small":
        assert max(size for size, _ in channels[0]["workload"]["sizes"]) == 2120


# --- a small study --------------------------------------------------------------------------------


def mean(outcome: AucklandOutcome, cell: Cell, figure: str) -> float:
    value = outcome.measured[cell][figure].mean
    assert value is not None
    return value


def test_figures_keep_to_the_link(small: AucklandOutcome) -> None:
    """Goodputs stay below the payload of full segments; the queue delays a ping by its limit."""
    largest = RATE_MBPS * 1448 / 1518
    for cell in small.measured:
        total, transfer = (
            mean(small, cell, figure) for figure in (runs.TOTAL, runs.TRANSFER_GOODPUT)
        )
        assert 0 < transfer <= largest
        assert 0 < total <= largest
        # 0.12 and 1 times 500 ms of queue, and packets of 1,518 and 110 bytes to send.
        ping_ms = mean(small, cell, runs.PING_MEAN)
        queue_ms = 500 * cell.queue_kb / 1000
        assert 500 < ping_ms <= 500 + queue_ms + (1518 + 2 * 110) * 8 / RATE_MBPS / 1e3
        idle = mean(small, cell, runs.QUEUE_IDLE)
        full = mean(small, cell, runs.QUEUE_FULL)
        assert 0 <= full <= 100 - idle <= 100


def test_forty_channels_fill_two_mbit_s_and_starve_the_transfer(small: AucklandOutcome) -> None:
    for queue_kb in cells.QUEUES_KB:
        alone, loaded = (Cell(channels, queue_kb, PLAIN) for channels in (0, 40))
        assert mean(small, alone, runs.BACKGROUND_BUSY) < 1
        # The small queue, ten packets, leaves some of the link to no one.
        assert mean(small, loaded, runs.BACKGROUND_BUSY) > (75 if queue_kb == SMALL else 90)
        goodputs = [mean(small, cell, runs.TRANSFER_GOODPUT) for cell in (alone, loaded)]
        assert goodputs[1] < 0.5 * goodputs[0]
        assert mean(small, loaded, runs.QUEUE_IDLE) < mean(small, alone, runs.QUEUE_IDLE)


def test_larger_downloads_take_longer(small: AucklandOutcome) -> None:
    for cell in small.measured:
        if cell.channels:
            times = [
                mean(small, cell, runs.download_time(name)) for name in ("1-10 kB", "0.1-1 MB")
            ]
            assert 0.5 < times[0] < times[1]


def test_json_has_each_claim_with_verdict_seeds_and_effect(small: AucklandOutcome) -> None:
    result = json.loads(json.dumps(small.to_json(), allow_nan=False))
    assert [each["claim"] for each in result["claims"]] == list_of_claims()
    for each in result["claims"]:
        about_coding = claims.TESTS[each["claim"]].is_about_coding
        assert each["verdict"] in set(Verdict)
        assert each["mechanism"]
        assert [found["channels"] for found in each["by_channels"]] == [0, 5, 40]
        varied = "window of 128 symbols" if about_coding else "one server, at the hub"
        # 5 channels keep the slow link too busy for very low load.
        tried = ["as described", varied] if each["claim"] != MARKEDLY else []
        assert [found["variant"] for found in each["variants"]] == tried
        if tried:
            assert each["seeds"] == 2
            assert each["effect_low"] <= each["effect"] <= each["effect_high"]
            (decisive,) = (
                found
                for found in each["effects"]
                if found["decides"] and found["effect"] == each["effect"]
            )
            assert decisive["of"] == each["effect_of"]
    assert result["channels_that_saturate"]["120"] == [40]
    assert result["channels_at_very_low_load"]["120"] == []
    assert result["channels_under_load"]["120"][-1] == 40
    assert len(result["cells"]) == 3 * 2 * len(LinkPath)
    for found in result["cells"]:
        cell = Cell(found["channels"], found["queue_kB"], LinkPath(found["path"]))
        # Uncoded cells with few channels are cheap, and vary most.
        is_cheap = cell.path in {PLAIN, PEP} and cell.channels < 40
        assert found["simulated_runs"] == cells.runs_of(cell, 2) == (10 if is_cheap else 2)
    assert [each["path"] for each in result["half_uncoded"]] == ["plain", *TUNNELS] * 2


def list_of_claims() -> list[str]:
    return [each.text for each in claims.read_claims()]


def test_a_tunnel_recovers_some_of_what_the_queue_drops(small: AucklandOutcome) -> None:
    """Expect fewer losses after decoding, and at most the repair of the redundancy.

    Of the bytes that reach the queue that is 10 of 110, or 20 of 120, and as much if it is sent at
    once.
    """
    for cell in small.measured:
        if cell.path in TUNNELS and cell.path is not LinkPath.ON_OVERFLOW:
            before, after, share = (
                mean(small, cell, figure)
                for figure in (runs.LOSS_BEFORE, runs.LOSS_AFTER, runs.REPAIR_SHARE)
            )
            # With 40 channels the queue of ten packets has no room for titrated repair.
            assert 0 <= after <= before
            if cell.path in {LinkPath.AT_ONCE, LinkPath.CODED}:
                assert after < before
            largest = 100 / 11 if "10 %" in cell.path else 100 / 6
            assert 0 < share < 1.05 * largest
            if cell.path is LinkPath.AT_ONCE:
                assert share > 0.95 * largest


def test_terminal_tables_fit_80_columns(small: AucklandOutcome) -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    for number in views.PUBLISHED:
        console.print(text_table(views.curves_view(small.measured, number), 80))
    text = console.export_text()
    assert "\u2026" not in text
    assert text.count("\u00b1") == 4 * 3 * len(LinkPath)
    assert text.count("What the channels leave") == 2


def test_the_model_reads_no_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    """With other claims in the source the measured figures are the same."""
    slow(monkeypatch)
    options: dict[str, Any] = {"loads": replace(NOTHING_VARIED, every=(5,)), "variants": ()}
    honest = study.run(Work("auckland", runs=1), **options)
    bent = Claim(9, 120, "total goodput", EDGE)
    monkeypatch.setattr(claims, "read_claims", lambda: (bent,))
    changed = study.run(Work("auckland", runs=1), **options)
    assert changed.measured == honest.measured
    assert [each.claim for each in changed.decided] == [bent]


def test_the_report_is_self_contained_and_has_the_verdicts(small: AucklandOutcome) -> None:
    text = small.report()
    # Cells that are not folded fit on paper.
    assert max(map(len, re.findall(r"<td>([^<]*)", text))) < 30
    page = assert_self_contained(text)
    assert page.tags.count("svg") == 7
    for each in small.decided:
        assert each.claim.text in text
        assert each.decision.verdict.value in text
    for words in (
        "quick look",
        "Not stated in the source",
        "Losses and repair",
        "40 MB beside 20 channels",
        "Repair in proportion to the sources",
        "Coded beside uncoded flows",
        "one server, at the hub",
    ):
        assert words in text


def test_the_command_prints_json_and_verdicts(
    bentpipe: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cells, "LOADS", replace(NOTHING_VARIED, every=(0,)))
    monkeypatch.setattr(cells, "VARIANTS", ())
    called = bentpipe("study", "auckland", "--seeds", "2", "--json")
    assert called.code == 0
    assert len(json.loads(called.out)["claims"]) == 10
    called = bentpipe("study", "auckland", "--seeds", "1")
    assert called.code == 0
    assert "NOT DECIDED" in called.out
    refused = bentpipe("study", "auckland", "--engine", "emulate", "--cells", "21")
    assert refused.code == 2
    assert 'cells: read "21"' in refused.err
