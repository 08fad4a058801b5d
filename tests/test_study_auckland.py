"""The study of the Auckland baselines: rules and effects by hand, and a small study of a slow link.

The whole study takes minutes. The small one has 2 Mbit/s instead of 16, which 40 channels fill.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from conftest import Program
from test_plots_report import assert_self_contained

from bentpipe.plan.resolver import load, resolve
from bentpipe.studies.auckland import cells, claims, measure, study
from bentpipe.studies.auckland.cells import Cell
from bentpipe.studies.auckland.claims import TESTS, Claim, Context
from bentpipe.studies.auckland.measure import Measurement
from bentpipe.studies.auckland.study import AucklandOutcome
from bentpipe.studies.auckland.variants import BASE, VARIANTS
from bentpipe.studies.auckland.verdicts import Decision, Effect, Rule, Verdict, area
from bentpipe.studies.base.samples import Samples
from bentpipe.sweeps import Threads

SMALL, LARGE = cells.QUEUES_KB
NO_GAIN = "PEPsal gives no overall gain over the plain link under load"
BADLY = "the transfer fares badly on the plain link and on the PEP link under load"
MARKEDLY = "the PEP gains markedly over the plain link at very low background load"
QUEUE = "no overall gain for the plain link from the larger queue"
EDGE = "the PEP has a clear edge over the plain link"
RATE_MBPS = 2.0


def slow(data: cells.Data) -> None:
    for direction in data["link"].values():
        direction["rate"] = f"{RATE_MBPS:g} Mbit/s"


@pytest.fixture(scope="module")
def small() -> AucklandOutcome:
    """Three runs of three numbers of channels on a slow link, with one variant."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(study, "VARIANT_CHANNELS", (0, 5, 40))
        return study.run(
            runs=3,
            seed=5,
            executor=Threads(1),
            channels=(0, 5, 40),
            variants=[each for each in VARIANTS if each.name == "one server, at the hub"],
            change=slow,
        )


# --- rules ----------------------------------------------------------------------------------------


def rule(bound: Any, percent: float) -> Rule:
    return Rule(bound=bound, percent=percent, effect="gain", reason="for the test")


@pytest.mark.parametrize(
    ("values", "below", "at_least"),
    [
        # Half of the interval of two values is 12.706 times half of their difference.
        ((3.9, 4.1), Verdict.NOT_DECIDED, Verdict.NOT_DECIDED),
        ((3.99, 4.01), Verdict.HOLDS, Verdict.DOES_NOT_HOLD),
        ((6.99, 7.01), Verdict.DOES_NOT_HOLD, Verdict.HOLDS),
        ((5.0, 5.0), Verdict.DOES_NOT_HOLD, Verdict.HOLDS),
        ((9.0,), Verdict.NOT_DECIDED, Verdict.NOT_DECIDED),
        ((), Verdict.NOT_DECIDED, Verdict.NOT_DECIDED),
    ],
)
def test_the_whole_interval_decides(
    values: tuple[float, ...], below: Verdict, at_least: Verdict
) -> None:
    """Given a bound of 5 %, expect a verdict only if the interval is on one side of it."""
    assert rule("below", 5.0).verdict(Samples(values)) is below
    assert rule("at_least", 5.0).verdict(Samples(values)) is at_least


def test_each_effect_must_keep_the_bound() -> None:
    low, wide, high = (
        Effect(name, Samples(values), (1,))
        for name, values in (("low", (1.0, 1.0)), ("wide", (0.0, 9.0)), ("high", (9.0, 9.0)))
    )
    for effects, verdict, decisive in (
        ((low, low), Verdict.HOLDS, "low"),
        ((low, wide), Verdict.NOT_DECIDED, "wide"),
        ((low, wide, high), Verdict.DOES_NOT_HOLD, "high"),
    ):
        decision = Decision(rule("below", 5.0), effects)
        assert (decision.verdict, decision.decisive.of) == (verdict, decisive)
    assert Decision(rule("at_least", 5.0), (low, high)).decisive.of == "low"


def test_the_area_is_that_of_trapezoids() -> None:
    """0 at 0, 10 at 10, 20 at 40: (50 + 450) / 40 for the first seed; the second is constant."""
    assert area((0, 10, 40), [[0, 7], [10, 7], [20, 7]]) == pytest.approx([12.5, 7])
    assert area((5,), [[3.0, 4.0]]) == [3.0, 4.0]


# --- claims, on cells made by hand ----------------------------------------------------------------


def made(
    totals: Mapping[tuple[int, bool], Sequence[float]],
    transfers: Mapping[tuple[int, bool], Sequence[float]],
    busy: Mapping[int, float],
) -> Context:
    """Return cells of both paths at 1 and 9 channels; figures by queue and whether with a PEP."""
    measured = {}
    for channels, of_channels in busy.items():
        for queue_kb in (SMALL, LARGE):
            for pep in (False, True):
                total, transfer = totals[queue_kb, pep], transfers[queue_kb, pep]
                cell = Cell(channels, queue_kb, pep)
                runs = {
                    seed: {
                        measure.TOTAL: total[seed],
                        measure.TRANSFER_GOODPUT: transfer[seed],
                        measure.BACKGROUND_BUSY: of_channels,
                    }
                    for seed in range(len(total))
                }
                measured[cell] = Measurement(cell, runs)
    return Context(measured, payload_rate_mbps=10.0)


def test_a_world_like_the_source_s_keeps_its_claims() -> None:
    """Given a PEP that gains 1 % in total, 50 % for the transfer, and 0.1 of 10 Mbit/s under load.

    The larger queue gains 1 %.
    """
    totals = {
        (SMALL, False): (8.0, 10.0),
        (SMALL, True): (8.1, 10.09),
        (LARGE, False): (8.1, 10.09),
        (LARGE, True): (8.1, 10.09),
    }
    transfers = {
        (SMALL, False): (0.1, 0.1),
        (SMALL, True): (0.15, 0.15),
        (LARGE, False): (0.1, 0.1),
        (LARGE, True): (0.15, 0.15),
    }
    context = made(totals, transfers, {1: 3.0, 9: 60.0})
    assert (context.very_low(SMALL), context.loaded(SMALL)) == ((1,), (9,))
    verdicts = {text: test.decide(context).verdict for text, test in TESTS.items()}
    assert set(verdicts.values()) == {Verdict.HOLDS}
    gain = TESTS[NO_GAIN].decide(context).decisive
    # Pairs of equal seeds, in percent of the plain mean of 9.
    assert gain.percent.values == pytest.approx((100 * 0.1 / 9, 100 * 0.09 / 9))
    assert gain.channels == (9,)


def test_a_world_unlike_the_source_s_breaks_its_claims() -> None:
    totals = {
        (SMALL, False): (5.0, 5.01),
        (SMALL, True): (6.0, 6.01),
        (LARGE, False): (6.0, 6.01),
        (LARGE, True): (6.0, 6.01),
    }
    transfers = dict.fromkeys(totals, (4.0, 4.01))
    context = made(totals, transfers, {1: 3.0, 9: 60.0})
    verdicts = {text: test.decide(context).verdict for text, test in TESTS.items()}
    assert set(verdicts.values()) == {Verdict.DOES_NOT_HOLD}


def test_a_claim_about_load_is_not_decided_on_an_idle_link() -> None:
    totals = dict.fromkeys(((SMALL, False), (SMALL, True), (LARGE, False), (LARGE, True)), (5.0, 5))
    context = made(totals, totals, {1: 3.0, 9: 20.0})
    assert TESTS[NO_GAIN].decide(context).verdict is Verdict.NOT_DECIDED
    assert TESTS[BADLY].decide(context).verdict is Verdict.NOT_DECIDED
    assert TESTS[EDGE].decide(context).verdict is Verdict.DOES_NOT_HOLD


def test_every_claim_has_a_rule_or_is_about_coding() -> None:
    found = claims.read_claims()
    assert len(found) == 10
    mine = [each.text for each in found if not each.is_about_coding]
    assert mine == [NO_GAIN, BADLY, MARKEDLY, QUEUE, EDGE]
    assert set(mine) == set(TESTS)


# --- cells ----------------------------------------------------------------------------------------


def plan_of(cell: Cell, variant: cells.Variant = BASE) -> Any:
    return resolve(cells.scenario_of(cell, cells.base_scenario(), variant))


def test_the_cells_are_those_of_the_source() -> None:
    """Two queues in Ethernet bytes, 500 ms of round trip, 16 Mbit/s, without and with a PEP."""
    assert cells.CHANNELS[0] == 0
    assert 100 in cells.CHANNELS
    assert max(cells.CHANNELS) > 100
    for queue_kb in (120, 1000):
        for pep in (False, True):
            plan = plan_of(Cell(60, queue_kb, pep))
            forward, back = plan["directions"]
            limit = {"unit": "link_bytes", "value": queue_kb * 1000}
            assert forward["queue"] == {"discipline": "drop_tail", "limit": limit}
            assert forward["framing"]["header_bytes"] == 18
            assert forward["rate_bps"]["value"] == 16_000_000
            assert forward["delay_ns"]["value"] + back["delay_ns"]["value"] == 500_000_000
            functions = [each["kind"] for each in plan["gateways"][0]["functions"]]
            assert functions == (["pep"] if pep else [])
            names = [flow["name"] for flow in plan["flows"]]
            assert sum(name.startswith("channels") for name in names) == 60
            (transfer,) = (flow for flow in plan["flows"] if flow["name"] == "iperf3")
            assert transfer["workload"]["amount"] == {"unit": "duration_ns", "value": 300 * 10**9}
            assert plan["stop_ns"] == 600 * 10**9
    assert [flow["name"] for flow in plan_of(Cell(0, 120, pep=False))["flows"]] == [
        "iperf3",
        "ping-forward",
        "ping-return",
    ]


def test_the_scenario_file_is_a_cell() -> None:
    written = resolve(load(Path(study.__file__).parent / "scenario.yaml"))
    assert written == plan_of(Cell(20, 120, pep=False))


def test_full_segments_are_1448_of_1518_bytes() -> None:
    found = measure.payload_rate_mbps(plan_of(Cell(0, 120, pep=False)))
    assert found == pytest.approx(16 * 1448 / 1518)


def test_each_variant_changes_one_thing() -> None:
    cell = Cell(5, 120, pep=True)
    plans = [json.dumps(plan_of(cell, each)) for each in (BASE, *VARIANTS)]
    assert len(set(plans)) == 1 + len(VARIANTS)


@pytest.mark.parametrize(("number", "shape"), [(0, 1.3), (1, 0.9)])
def test_the_tail_of_a_variant_has_its_shape(number: int, shape: float) -> None:
    """P(X >= 100 kB) is 0.5 x 10^-shape, and half of the downloads are small."""
    workload = plan_of(Cell(1, 120, pep=False), VARIANTS[number])["flows"][0]["workload"]
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
            mean(small, cell, figure) for figure in (measure.TOTAL, measure.TRANSFER_GOODPUT)
        )
        assert 0 < transfer <= largest
        assert 0 < total <= largest
        # 0.12 and 1 times 500 ms of queue, and packets of 1,518 and 110 bytes to send.
        ping_ms = mean(small, cell, measure.PING_MEAN)
        queue_ms = 500 * cell.queue_kb / 1000
        assert 500 < ping_ms <= 500 + queue_ms + (1518 + 2 * 110) * 8 / RATE_MBPS / 1e3
        idle = mean(small, cell, measure.QUEUE_IDLE)
        full = mean(small, cell, measure.QUEUE_FULL)
        assert 0 <= full <= 100 - idle <= 100


def test_forty_channels_fill_two_mbit_s_and_starve_the_transfer(small: AucklandOutcome) -> None:
    for queue_kb in cells.QUEUES_KB:
        alone, loaded = (Cell(channels, queue_kb, pep=False) for channels in (0, 40))
        assert mean(small, alone, measure.BACKGROUND_BUSY) < 1
        # The small queue, ten packets, leaves some of the link to no one.
        assert mean(small, loaded, measure.BACKGROUND_BUSY) > (75 if queue_kb == SMALL else 90)
        goodputs = [mean(small, cell, measure.TRANSFER_GOODPUT) for cell in (alone, loaded)]
        assert goodputs[1] < 0.5 * goodputs[0]
        assert mean(small, loaded, measure.QUEUE_IDLE) < mean(small, alone, measure.QUEUE_IDLE)


def test_larger_downloads_take_longer(small: AucklandOutcome) -> None:
    for cell in small.measured:
        if cell.channels:
            times = [
                mean(small, cell, measure.download_time(name)) for name in ("1-10 kB", "0.1-1 MB")
            ]
            assert 0.5 < times[0] < times[1]


def test_json_has_each_claim_with_verdict_seeds_and_effect(small: AucklandOutcome) -> None:
    result = json.loads(json.dumps(small.to_json(), allow_nan=False))
    assert [each["claim"] for each in result["claims"]] == [NO_GAIN, BADLY, MARKEDLY, QUEUE, EDGE]
    for each in result["claims"]:
        assert each["verdict"] in set(Verdict)
        assert each["seeds"] == 3
        assert each["effect_percent_low"] <= each["effect_percent"] <= each["effect_percent_high"]
        assert [found["channels"] for found in each["by_channels"]] == [0, 5, 40]
        assert [found["variant"] for found in each["variants"]] == [
            "as described",
            "one server, at the hub",
        ]
        assert each["variants"][0]["effect_percent"] == pytest.approx(each["effect_percent"])
    assert len(result["claims_about_coding"]) == 5
    assert result["channels_at_very_low_load"]["120"] == [0]
    assert result["channels_under_load"]["120"][-1] == 40
    assert len(result["cells"]) == 3 * 4
    assert all(cell["simulated_runs"] == 3 for cell in result["cells"])


def test_the_model_reads_no_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    """With other claims in the source the measured figures are the same."""
    options: dict[str, Any] = {"runs": 1, "channels": (5,), "variants": (), "change": slow}
    honest = study.run(**options)
    bent = Claim(9, 120, "total goodput", EDGE)
    monkeypatch.setattr(study, "read_claims", lambda: (bent,))
    changed = study.run(**options)
    assert changed.measured == honest.measured
    assert [each.claim for each in changed.decided] == [bent]


def test_threads_do_not_change_the_figures(small: AucklandOutcome) -> None:
    both = study.run(runs=1, seed=5, executor=Threads(2), channels=(0, 5), variants=(), change=slow)
    for cell, found in both.measured.items():
        assert found.runs[5] == small.measured[cell].runs[5]


def test_ctrl_c_leaves_the_cells_that_were_done() -> None:
    def interrupt(done: int, _total: int) -> None:
        if done == 6:
            raise KeyboardInterrupt

    outcome = study.run(
        runs=1,
        executor=Threads(1),
        progress=interrupt,
        channels=(0, 5),
        variants=(),
        change=slow,
    )
    assert outcome.interrupted
    result = outcome.to_json()
    json.dumps(result, allow_nan=False)
    assert result["cells"][0]["simulated_runs"] == 1
    assert result["cells"][-1]["simulated"] is None
    assert "The study was interrupted" in outcome.report()


def test_the_report_is_self_contained_and_has_the_verdicts(
    small: AucklandOutcome, tmp_path: Path
) -> None:
    folder = small.write(tmp_path / "auckland")
    assert json.loads((folder / "result.json").read_text(encoding="utf-8")) == small.to_json()
    text = (folder / "report.html").read_text(encoding="utf-8")
    page = assert_self_contained(text)
    assert page.tags.count("svg") == 5
    for each in small.decided:
        assert each.claim.text in text
        assert each.decision.verdict.value in text
    for words in (
        "quick look",
        "Not stated in the source",
        "coded links",
        "one server, at the hub",
    ):
        assert words in text


def test_the_command_prints_json_and_verdicts(
    bentpipe: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study, "CHANNELS", (0,))
    monkeypatch.setattr(study, "VARIANTS", ())
    called = bentpipe("study", "auckland", "--runs", "2", "--json")
    assert called.code == 0
    assert len(json.loads(called.out)["claims"]) == 5
    called = bentpipe("study", "auckland", "--runs", "1")
    assert called.code == 0
    assert "NOT DECIDED" in called.out
    refused = bentpipe("study", "auckland", "--engine", "emulate", "--cells", "21")
    assert refused.code == 2
    assert 'cells: read "21"' in refused.err
