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
from bentpipe.studies.auckland import cells, claims, runs, study, views
from bentpipe.studies.auckland.cells import (
    BASE,
    CODED,
    IMMEDIATE,
    TITRATED,
    VARIANTS,
    Cell,
    LinkPath,
    Loads,
)
from bentpipe.studies.auckland.claims import Claim, Verdict
from bentpipe.studies.auckland.study import AucklandOutcome
from bentpipe.studies.base import inputs
from bentpipe.studies.base.inputs import read_scenario
from bentpipe.studies.base.work import Work

# Its cells take half a minute.
pytestmark = [pytest.mark.system, pytest.mark.thorough]

SMALL, LARGE = cells.QUEUES_KB
EDGE = "the PEP has a clear edge over the plain link"
TITRATION = "titration adds about 1 Mbit/s more where traffic saturates the link"
PLAIN, PEP = LinkPath.PLAIN, LinkPath.PEP
RATE_MBPS = 2.0
FEW = Loads(every=(0, 5, 40), coded=(40,), variants=(0, 5, 40), sweep=(40,), mixed=5)
NOTHING_VARIED = Loads(every=(0, 5), coded=(), variants=(), sweep=(), mixed=0)


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
    assert 100 in cells.LOADS.every
    for numbers in (cells.LOADS.every, cells.LOADS.coded):
        assert numbers[0] == 0
        assert max(numbers) > 100
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


@pytest.mark.parametrize("path", CODED)
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
    assert tunnel["titration"]["kind"] == ("titrated" if path in TITRATED else "immediate")
    assert tunnel["delivery"] == terminal[0]["delivery"]


def test_half_of_the_channels_can_go_uncoded() -> None:
    """Given 5 channels, expect 3 of the coded class and 2 of the other, all with downloads."""
    plan = plan_of(Cell(5, SMALL, LinkPath.CODED_10), cells.HALVED)
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
    for path in (PEP, LinkPath.TITRATED_10):
        cell = Cell(5, 120, path)
        chosen = [each for each in VARIANTS if path in each.paths]
        plans = [json.dumps(plan_of(cell, each)) for each in (BASE, *chosen)]
        assert len(set(plans)) == 1 + len(chosen)


@pytest.mark.parametrize(("number", "shape"), [(0, 1.3), (1, 0.9)])
def test_the_tail_of_a_variant_has_its_shape(number: int, shape: float) -> None:
    """P(X >= 100 kB) is 0.5 x 10^-shape, and half of the downloads are small."""
    workload = plan_of(Cell(1, 120, PLAIN), VARIANTS[number])["flows"][0]["workload"]
    total = sum(weight for _, weight in workload["sizes"])
    tail = sum(weight for size, weight in workload["sizes"] if size >= 10_000)
    large = sum(weight for size, weight in workload["sizes"] if size >= 100_000)
    assert tail / total == pytest.approx(0.5, abs=1e-4)
    assert large / tail == pytest.approx(10**-shape, rel=1e-4)


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
        assert [found["channels"] for found in each["by_channels"]] == (
            [40] if about_coding else [0, 5, 40]
        )
        assert [found["variant"] for found in each["variants"]] == (
            ["as described", "window of 128 symbols", "redundancy of 20 %"]
            if about_coding
            else ["as described", "one server, at the hub"]
        )
        if each["claim"] != TITRATION:
            assert each["seeds"] == 2
            assert each["effect_low"] <= each["effect"] <= each["effect_high"]
            (decisive,) = (
                found
                for found in each["effects"]
                if found["decides"] and found["effect"] == each["effect"]
            )
            assert decisive["of"] == each["effect_of"]
    # At 90 % a queue of ten packets is not saturated.
    assert result["channels_that_saturate"]["120"] == []
    assert result["channels_at_very_low_load"]["120"] == [0]
    assert result["channels_under_load"]["120"][-1] == 40
    assert len(result["cells"]) == 3 * 4 + 8
    assert all(cell["simulated_runs"] == 2 for cell in result["cells"])
    assert [each["path"] for each in result["half_uncoded"]] == ["plain", *CODED] * 2


def list_of_claims() -> list[str]:
    return [each.text for each in claims.read_claims()]


def test_a_tunnel_recovers_some_of_what_the_queue_drops(small: AucklandOutcome) -> None:
    """Expect fewer losses after decoding, and at most the repair of the redundancy.

    Of the bytes that reach the queue that is 10 of 110, or 20 of 120, and as much if it is sent at
    once.
    """
    for cell in small.measured:
        if cell.path in CODED:
            before, after, share = (
                mean(small, cell, figure)
                for figure in (runs.LOSS_BEFORE, runs.LOSS_AFTER, runs.REPAIR_SHARE)
            )
            assert 0 <= after < before
            largest = 100 / 11 if "10 %" in cell.path else 100 / 6
            assert 0 < share < 1.05 * largest
            if cell.path in IMMEDIATE:
                assert share > 0.95 * largest


def test_terminal_tables_fit_80_columns(small: AucklandOutcome) -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    for number in views.PUBLISHED:
        console.print(text_table(views.curves_view(small.measured, number), 80))
    text = console.export_text()
    assert "\u2026" not in text
    assert text.count("\u00b1") == 4 * (3 * 2 + 4)


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
