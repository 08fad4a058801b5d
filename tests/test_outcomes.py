"""What a change is said to be, from pairs of runs with equal seeds, and with which seeds."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bentpipe.answers.answer import plain
from bentpipe.answers.runs import (
    Change,
    Experiment,
    Measurements,
    Verdict,
    decisive,
    percent_text,
)
from bentpipe.answers.usable import Usable

FIGURE = "goodput_bps"
BEFORE = [100.0, 101.0, 99.0, 100.5, 99.5]


def change(percents: list[float], figure: str = FIGURE, comparisons: int = 1) -> Change:
    """Return the change of a figure whose value after, in each run, is so many percent larger."""
    before = np.array(BEFORE[: len(percents)])
    after = before * (1 + np.array(percents) / 100)
    return Change.of(
        figure, Measurements({figure: before}), Measurements({figure: after}), comparisons
    )


@pytest.mark.parametrize(
    ("percents", "outcome"),
    [
        ([12.0, 11.8, 12.2, 12.1, 11.9], "gains"),
        ([-12.0, -11.8, -12.2, -12.1, -11.9], "loses"),
        ([1.0, 0.8, 1.2, 1.1, 0.9], "equal"),
        ([12.0, 2.0, 22.0, 8.0, 16.0], "not decided"),
        ([5.0, 4.8, 5.2, 5.1, 4.9], "not decided"),
        ([12.0], "not decided"),
    ],
)
def test_a_change_is_decided_if_its_interval_is_on_one_side(
    percents: list[float], outcome: str
) -> None:
    """Given changes of runs, expect a gain of 5 % or more, a loss, neither, or no decision."""
    assert change(percents).outcome == outcome


def test_less_time_is_a_gain() -> None:
    assert change([-12.0, -11.8, -12.2], "page_p95_ns").outcome == "gains"


def test_a_headline_that_chooses_from_many_needs_more() -> None:
    """Given 12 % with a half width of 2.78 x 3.2 / sqrt(5) = 3.9 %, expect a gain of 5 % or more.

    As one of 40 the quantile is 6.4 instead of 2.78, and the interval from 2.8 % to 21 % has 5 %.
    """
    percents = [12.0, 8.0, 16.0, 10.0, 14.0]
    assert change(percents).outcome == "gains"
    assert change(percents, comparisons=40).outcome == "not decided"


def test_how_many_runs_would_decide() -> None:
    """Given a half width that is twice the distance to 5 %, expect four times the runs."""
    unsure = change([12.0, 2.0, 22.0, 8.0, 16.0])
    ratio = (unsure.percent.half_width or 0) / (unsure.percent.mean - 5)
    assert unsure.runs_to_decide == pytest.approx(5 * ratio**2, abs=1)
    assert change([12.0]).runs_to_decide is None


def test_the_outcome_of_the_largest_of_many_changes_is_seldom_wrong() -> None:
    """Given 12 variants that change nothing, expect a largest one that gains in 5 % or less.

    Each of 500 experiments has 10 pairs, and their noise is 20 %.
    """
    rng = np.random.default_rng(1)
    wrong = 0
    for _ in range(500):
        before = rng.normal(100, 14, (12, 10))
        after = rng.normal(100, 14, (12, 10))
        changes = [
            Change.of(FIGURE, Measurements({FIGURE: a}), Measurements({FIGURE: b}), 12)
            for a, b in zip(before, after, strict=True)
        ]
        best = max(changes, key=lambda each: each.percent.mean)
        wrong += best.outcome == "gains"
    assert wrong <= 25


def test_a_spread_wider_than_its_mean_is_written_as_percentiles() -> None:
    """Given times of 0, 0, 0 and 8 s, expect no "2 s ± 6.4 s": the 5th, 50th and 95th percentile.

    Between the third and the fourth value, the 95th is at 85 % of the way: 6.8 s.
    """
    found = Measurements(
        full_ns=np.array([0, 0, 0, 8e9]),
        share=np.array([0, 0, 0, 0.08]),
        page_ns=np.array([7e9, 8e9]),
    )
    assert found.text("full_ns") == "0 ns (median; 0 ns to 6.8 s in 90 % of runs)"
    assert percent_text(found.of("share")) == "0.0 % (median; 0.0 % to 6.8 % in 90 % of runs)"
    assert plain(found.of("full_ns"))["spread"] == pytest.approx([0, 0, 6.8e9])
    # Where the interval is narrower, and of changes, which are around 0.
    assert "spread" not in plain(found.of("page_ns"))
    assert found.change("full_ns", found).spread is None


@pytest.mark.parametrize(("rate_bps", "seeds"), [(10**6, 10), (10**10, 5)])
def test_seeds_are_fewer_where_runs_are_long(rate_bps: int, seeds: int) -> None:
    """Given 10 Gbit/s for 60 s, expect the minimum of 5 seeds, and 10 on a slow link."""
    experiment, rate = Experiment(), {"kind": "constant", "value": rate_bps}
    experiment.choose_seeds({"directions": [{"rate_bps": rate}] * 2, "stop_ns": 60 * 10**9}, 10)
    assert experiment.seeds == seeds


def test_seeds_are_consecutive_from_the_first_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Given two seeds from 11 on, expect 11 and 12, so that an answer can be asked for again."""
    seeds: list[int] = []

    def run_many(jobs: Any, **_: Any) -> list[Any]:
        seeds.extend(job.seed for job in jobs)
        return [SimpleNamespace(manifest={"seed": job.seed}) for job in jobs]

    monkeypatch.setattr("bentpipe.answers.runs.run_many", run_many)
    Experiment(seeds=2, first_seed=11).run({"": Usable().base}, lambda _: {"figure": 1.0})
    assert seeds == [11, 12]


def test_what_was_nothing_before_gains_all_of_its_mean() -> None:
    """Given a figure that is 0 with all seeds before, expect a gain of 100 %, and 0 of nothing."""
    nothing = Measurements(total_bps=np.zeros(5))
    some = Measurements(total_bps=np.array([5.0, 6, 7, 6, 6]))
    change = Change.of("total_bps", nothing, some)
    assert change.percent.mean == pytest.approx(100)
    assert change.outcome == "gains"
    assert Change.of("total_bps", some, nothing).outcome == "loses"
    assert Change.of("total_bps", nothing, nothing).outcome == "equal"


def test_a_verdict_without_figures_is_not_the_decisive_one() -> None:
    before = Measurements(total_bps=np.full(5, 10.0))
    verdicts = [
        Verdict.of(0, name, before, Measurements(total_bps=np.array(after)), ["total_bps"], 1)
        for name, after in (("unknown", [math.nan] * 5), ("open", [9.0, 12, 10, 14, 8]))
    ]
    assert [each.kind for each in verdicts] == ["not decided", "not decided"]
    for some in (verdicts, verdicts[::-1]):
        assert decisive(some).variant == "open"
    assert Measurements(total_bps=np.array([1.0, math.nan])).of("total_bps").spread is None
