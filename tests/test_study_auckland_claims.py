"""The claims of the study of the Auckland baselines: rules and effects, on cells made by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from conftest import ROOT

from bentpipe.studies.auckland import cells, claims, measure, runs
from bentpipe.studies.auckland.cells import TUNNELS, Cell, LinkPath
from bentpipe.studies.auckland.claims import (
    TESTS,
    Context,
    Decided,
    Decision,
    Effect,
    Rule,
    Verdict,
)
from bentpipe.studies.auckland.measure import area
from bentpipe.studies.auckland.views import bound_text
from bentpipe.studies.base.comparison import Measurement, Samples
from bentpipe.studies.base.inputs import read_rows
from bentpipe.studies.base.tables import columns

SMALL, LARGE = cells.QUEUES_KB
NO_GAIN = "PEPsal gives no overall gain over the plain link under load"
BADLY = "the transfer fares badly on the plain link and on the PEP link under load"
MARKEDLY = "the PEP gains markedly over the plain link at very low background load"
QUEUE = "no overall gain for the plain link from the larger queue"
EDGE = "the PEP has a clear edge over the plain link"
CODING = "coding gains over the plain link under load"
TITRATION = "titration adds about 1 Mbit/s more where traffic saturates the link"
TEN_TIMES = "coded results are almost 10 times the baseline where saturation sets in"
CODED_QUEUE = "coding benefits from the larger queue at the cost of a higher maximum RTT"
BEATS = "coding beats both the PEP and the plain link over the entire load range"
PLAIN, PEP = LinkPath.PLAIN, LinkPath.PEP
CODING_TESTS = {text: test for text, test in TESTS.items() if test.is_about_coding}


# --- rules ----------------------------------------------------------------------------------------


def rule(bound: Any, value: float) -> Rule:
    return Rule(bound=bound, value=value, effect="gain", reason="for the test")


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
    for chosen, verdict, decisive in (
        ((low, low), Verdict.HOLDS, "low"),
        ((low, wide), Verdict.NOT_DECIDED, "wide"),
        ((low, wide, high), Verdict.DOES_NOT_HOLD, "high"),
    ):
        decision = Decision(rule("below", 5.0), chosen)
        assert (decision.verdict, decision.decisive.of) == (verdict, decisive)
    assert Decision(rule("at_least", 5.0), (low, high)).decisive.of == "low"


@pytest.mark.parametrize(
    ("values", "answer"), [((1.4, 1.4), "yes"), ((2.4, 2.4), "no"), ((1.4,), "not decided")]
)
def test_one_run_does_not_decide_what_is_about_a_value(
    values: tuple[float, ...], answer: str
) -> None:
    """Given "about", from 1 to 2, expect an answer only with an interval."""
    near = Rule(bound="at_least", value=1, about_to=2, effect="gain", reason="for the test")
    decision = Decision(near, (Effect("gain", Samples(values), (1,)),))
    decided = Decided(claims.read_claims()[0], decision, claims.Mechanism("", ""), {}, {})
    assert bound_text(decided).endswith(f"all within 1 to 2: {answer}")


def test_the_area_is_that_of_trapezoids() -> None:
    """0 at 0, 10 at 10, 20 at 40: (50 + 450) / 40 for the first seed; the second is constant."""
    assert area((0, 10, 40), [[0, 7], [10, 7], [20, 7]]) == pytest.approx([12.5, 7])
    assert area((5,), [[3.0, 4.0]]) == [3.0, 4.0]


# --- claims, on cells made by hand ----------------------------------------------------------------


def made(
    totals: Mapping[tuple[int, LinkPath], Sequence[float]],
    transfers: Mapping[tuple[int, LinkPath], Sequence[float]],
    busy: Mapping[int, float],
    pings: Mapping[int, float] | None = None,
) -> Context:
    """Return cells at 1 and 9 channels; goodputs by queue and path, the maximum RTT by queue."""
    measured = {}
    for channels, of_channels in busy.items():
        for queue_kb, path in totals:
            total, transfer = totals[queue_kb, path], transfers[queue_kb, path]
            cell = Cell(channels, queue_kb, path)
            of_cell = {
                seed: {
                    runs.TOTAL: total[seed],
                    runs.TRANSFER_GOODPUT: transfer[seed],
                    runs.BACKGROUND_BUSY: of_channels,
                    runs.PING_MAX: (pings or {}).get(queue_kb, 500.0),
                }
                for seed in range(len(total))
            }
            measured[cell] = Measurement(of_cell)
    return Context(measured, payload_rate_mbps=10.0)


def uncoded_verdicts(context: Context) -> set[Verdict]:
    return {test.decide(context).verdict for test in TESTS.values() if not test.is_about_coding}


def test_a_world_like_the_source_s_keeps_its_claims() -> None:
    """Given a PEP that gains 1 % in total, 50 % for the transfer, and 0.1 of 10 Mbit/s under load.

    The larger queue gains 1 %.
    """
    totals = {
        (SMALL, PLAIN): (8.0, 10.0),
        (SMALL, PEP): (8.1, 10.09),
        (LARGE, PLAIN): (8.1, 10.09),
        (LARGE, PEP): (8.1, 10.09),
    }
    transfers = {
        (SMALL, PLAIN): (0.1, 0.1),
        (SMALL, PEP): (0.15, 0.15),
        (LARGE, PLAIN): (0.1, 0.1),
        (LARGE, PEP): (0.15, 0.15),
    }
    context = made(totals, transfers, {1: 3.0, 9: 60.0})
    assert (context.very_low(SMALL), context.loaded(SMALL)) == ((1,), (9,))
    assert uncoded_verdicts(context) == {Verdict.HOLDS}
    gain = TESTS[NO_GAIN].decide(context).decisive
    # Means of 9 and 9.095, and the rest of each pair: (8.1 - 8 x 9.095 / 9) / 9 and its negative.
    assert gain.values.values == pytest.approx((1.2284, 0.8827), abs=1e-4)
    assert gain.channels == (9,)


def test_a_world_unlike_the_source_s_breaks_its_claims() -> None:
    totals = {
        (SMALL, PLAIN): (5.0, 5.01),
        (SMALL, PEP): (6.0, 6.01),
        (LARGE, PLAIN): (6.0, 6.01),
        (LARGE, PEP): (6.0, 6.01),
    }
    transfers = dict.fromkeys(totals, (4.0, 4.01))
    context = made(totals, transfers, {1: 3.0, 9: 60.0})
    assert uncoded_verdicts(context) == {Verdict.DOES_NOT_HOLD}


def test_a_claim_about_load_is_not_decided_on_an_idle_link() -> None:
    totals = dict.fromkeys(((SMALL, PLAIN), (SMALL, PEP), (LARGE, PLAIN), (LARGE, PEP)), (5.0, 5))
    context = made(totals, totals, {1: 3.0, 9: 20.0})
    assert TESTS[NO_GAIN].decide(context).verdict is Verdict.NOT_DECIDED
    assert TESTS[BADLY].decide(context).verdict is Verdict.NOT_DECIDED
    assert TESTS[EDGE].decide(context).verdict is Verdict.DOES_NOT_HOLD


def coded_world(
    totals: Sequence[float], transfers: Sequence[float], pings: tuple[float, float]
) -> Context:
    """Return a world of all paths: goodputs of plain, PEP, coded and titrated, of both queues.

    The large queue has twice the total goodput. Two equal seeds, at 1 and 9 channels, 9 of which
    saturate the link.
    """
    titrated = tuple(path for path in TUNNELS if path is not LinkPath.CODED)
    kinds = (PLAIN,), (PEP,), (LinkPath.CODED,), titrated
    of_total, of_transfer = (
        {path: value for paths, value in zip(kinds, values, strict=True) for path in paths}
        for values in (totals, transfers)
    )
    every = [(queue_kb, path) for queue_kb in (SMALL, LARGE) for path in LinkPath]
    factor = {SMALL: 1, LARGE: 2}
    return made(
        {key: (factor[key[0]] * of_total[key[1]],) * 2 for key in every},
        {key: (of_transfer[key[1]],) * 2 for key in every},
        {1: 3.0, 9: 95.0},
        dict(zip((SMALL, LARGE), pings, strict=True)),
    )


def coding_verdicts(context: Context) -> list[Verdict]:
    return [test.decide(context).verdict for test in CODING_TESTS.values()]


def test_a_world_like_the_source_s_keeps_the_claims_about_coding() -> None:
    """Coding gains 20 %, titration 1 Mbit/s more; the coded transfer has nine times the plain one.

    The maximum RTT rises from 560 to 1,000 ms.
    """
    context = coded_world((5.0, 5.0, 6.0, 7.0), (0.1, 0.2, 0.9, 0.9), (560.0, 1000.0))
    assert coding_verdicts(context) == [Verdict.HOLDS] * 5
    gain, titration, times, queue, beats = (test.decide(context) for test in CODING_TESTS.values())
    assert gain.decisive.values.mean == pytest.approx(20)
    assert titration.decisive.values.mean == pytest.approx(1)
    assert [titration.rule.is_about(each.values) for each in titration.effects] == [True]
    assert times.decisive.values.mean == pytest.approx(9)
    assert {round(each.values.mean or 0, 1) for each in queue.effects} == {100.0, 78.6}
    # At each number of channels, over both others, for each coded path, of which one decides.
    assert len(beats.effects) == 2 * 2 * len(TUNNELS)
    assert len(beats.deciding) == 2 * 2


@pytest.mark.parametrize(
    ("totals", "transfers", "pings", "broken"),
    [
        ((5.0, 5.0, 5.1, 6.1), (0.1, 0.2, 0.9, 0.9), (560.0, 1000.0), CODING),
        ((5.0, 5.0, 6.0, 6.2), (0.1, 0.2, 0.9, 0.9), (560.0, 1000.0), TITRATION),
        ((5.0, 5.0, 6.0, 7.0), (0.1, 0.2, 0.7, 0.9), (560.0, 1000.0), TEN_TIMES),
        ((5.0, 5.0, 6.0, 7.0), (0.1, 0.2, 0.9, 0.9), (560.0, 570.0), CODED_QUEUE),
        ((5.0, 5.0, 6.0, 7.0), (0.1, 0.95, 0.9, 1.0), (560.0, 1000.0), BEATS),
    ],
)
def test_each_claim_about_coding_can_be_broken_alone(
    totals: Sequence[float], transfers: Sequence[float], pings: tuple[float, float], broken: str
) -> None:
    """Titrated curves that would keep a claim do not decide it."""
    found = dict(
        zip(CODING_TESTS, coding_verdicts(coded_world(totals, transfers, pings)), strict=True)
    )
    assert [text for text, each in found.items() if each is Verdict.DOES_NOT_HOLD] == [broken]
    assert list(found.values()).count(Verdict.HOLDS) == 4


def test_a_curve_that_is_reported_does_not_decide() -> None:
    """Delayed repair loses 20 %, titrated gains 20 %: expect that the claim does not hold."""
    goodputs = {PLAIN: 5.0, LinkPath.CODED: 4.0, LinkPath.TITRATED_20: 6.0}
    totals = {(SMALL, path): (value, value) for path, value in goodputs.items()}
    decision = TESTS[CODING].decide(made(totals, totals, {9: 95.0}))
    assert decision.verdict is Verdict.DOES_NOT_HOLD
    assert {path: each.verdict for path, each in decision.by_path().items()} == {
        LinkPath.CODED: Verdict.DOES_NOT_HOLD,
        LinkPath.TITRATED_20: Verdict.HOLDS,
    }


def test_the_load_at_which_a_claim_turns_skips_what_is_not_decided() -> None:
    """Verdicts along the load: holds, not decided, does not hold, holds."""
    gains = {1: (9.0, 9.0), 2: (0.0, 9.0), 3: (1.0, 1.0), 4: (9.0, 9.0)}
    by_channels = {
        n: Decision(rule("at_least", 5.0), (Effect("gain", Samples(values), (n,)),))
        for n, values in gains.items()
    }
    mechanism = claims.Mechanism("for the test", "")
    decided = Decided(claims.read_claims()[0], by_channels[1], mechanism, by_channels, {})
    assert decided.turns_at == (3, 4)


def test_each_claim_has_a_mechanism_and_evidence_that_was_measured() -> None:
    context = coded_world((5.0, 5.0, 6.0, 7.0), (0.1, 0.2, 0.9, 0.9), (560.0, 1000.0))
    for claim in claims.read_claims():
        mechanism = claims.mechanism_of(claim, context)
        assert mechanism.text
        rows = [row for row in read_rows("auckland", "evidence.csv") if row["claim"] == claim.text]
        assert len(mechanism.evidence) == len(rows) >= 2
        figures = {column.name for column in columns("auckland", "figures")}
        assert {figure for _, figure, _ in mechanism.evidence} <= figures


def test_a_variant_decides_only_claims_about_curves_that_it_changes() -> None:
    """Given a variant of the PEP, and one of a code that is reported, expect no other verdicts."""
    context = coded_world((5.0, 5.0, 6.0, 7.0), (0.1, 0.2, 0.9, 0.9), (560.0, 1000.0))
    changed = {"a PEP": LinkPath.PEP, "a threshold": LinkPath.TITRATED_20}
    chosen = [cells.Variant(name, paths=(path,)) for name, path in changed.items()]
    measured = {
        name: {cell: found for cell, found in context.measured.items() if cell.path is path}
        for name, path in changed.items()
    }
    uncoded, coded = claims.contexts(context, chosen, measured, few=2)
    decided = claims.decide(claims.read_claims(), context, uncoded, coded)
    tried = {each.claim.text: set(each.variants) - {"as described"} for each in decided}
    of_pep = {text for text, names in tried.items() if names == {"a PEP"}}
    assert of_pep == {NO_GAIN, BADLY, MARKEDLY, EDGE}
    assert {text for text, names in tried.items() if names} == of_pep


def test_two_numbers_of_channels_are_decided_each_alone() -> None:
    """A gain of 20 % at one and none at the other: an area would be 10 % and keep the bound."""
    measured = {
        Cell(channels, queue, PLAIN): Measurement(
            {
                seed: {runs.TOTAL: 5.0 * (1.2 if (channels, queue) == (9, LARGE) else 1.0)}
                for seed in (1, 2)
            }
        )
        for channels in (1, 9)
        for queue in (SMALL, LARGE)
    }
    decision = TESTS[QUEUE].decide(Context(measured, payload_rate_mbps=10.0))
    assert [round(each.values.mean or 0.0) for each in decision.effects] == [0, 20]
    assert decision.verdict is Verdict.DOES_NOT_HOLD


def test_claims_about_coding_without_coded_cells_are_not_decided() -> None:
    totals = {(queue, path): (5.0, 5.0) for queue in (SMALL, LARGE) for path in (PLAIN, PEP)}
    assert coding_verdicts(made(totals, totals, {1: 3.0, 9: 95.0})) == [Verdict.NOT_DECIDED] * 5


def test_the_interval_of_a_ratio_is_that_of_its_means() -> None:
    """Runs that are twice the plain ones have a ratio of 2 without spread, also if both vary."""
    doubled = measure.ratio({1: 1.0, 2: 3.0}, {1: 2.0, 2: 6.0})
    assert doubled.values == pytest.approx((2, 2))
    assert measure.ratio({1: 1.0, 2: 1.0}, {1: 7.0, 2: 9.0}).values == pytest.approx((7, 9))
    assert measure.ratio({1: 0.0}, {1: 7.0}).values == ()


def test_every_claim_has_a_rule() -> None:
    found = claims.read_claims()
    assert len(found) == 10
    assert {each.text for each in found} == set(TESTS)
    about = [each.text for each in found if TESTS[each.text].is_about_coding]
    assert about == [CODING, TITRATION, TEN_TIMES, CODED_QUEUE, BEATS] == list(CODING_TESTS)


# --- the page -------------------------------------------------------------------------------------


def test_the_page_has_each_claim_with_its_verdict_and_its_mechanism() -> None:
    """What benches/auckland_page.py wrote is of the claims and mechanisms that there are."""
    page = (ROOT / "docs" / "how-to" / "rerun-a-study.md").read_text(encoding="utf-8")
    context = coded_world((5.0, 5.0, 6.0, 7.0), (0.1, 0.2, 0.9, 0.9), (560.0, 1000.0))
    for claim in claims.read_claims():
        start = f"| {claim.figure} | {claim.text} |"
        (row,) = (line for line in page.splitlines() if line.startswith(start))
        assert row.split(" | ")[2] in set(Verdict)
        mechanism = claims.mechanism_of(claim, context)
        open_text = f" Open: {mechanism.open}." if mechanism.open else ""
        assert f" *{claim.text}*: {mechanism.text}.{open_text}\n" in page
