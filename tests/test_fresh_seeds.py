"""Headlines of answers survive other seeds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fresh_seeds import SETS, changes_of, claims_of, tally

from bentpipe.answers.catalog import class_of
from bentpipe.answers.pep import Pep
from bentpipe.answers.question import LinkQuestion
from bentpipe.answers.runs import MIN_SEEDS, Measurements, Verdict
from bentpipe.answers.variants import Case, VariantQuestion

# A link on which a run takes some milliseconds.
SMALL = [
    "link.forward.rate=2Mbit/s",
    "link.return.rate=500kbit/s",
    "link.*.delay=60ms",
    "duration=30s",
]
QUICK: dict[str, dict[str, Any]] = {
    "pep": {"settings": SMALL},
    "coding": {"settings": [*SMALL, "link.forward.loss=1%"], "loads": [2]},
}


def question(name: str, seeds: int, first_seed: int = 1, **parameters: Any) -> LinkQuestion:
    asked = class_of(name).of(parameters, seeds=seeds, first_seed=first_seed)
    assert isinstance(asked, LinkQuestion)
    return asked


@pytest.mark.thorough
@pytest.mark.system
@pytest.mark.parametrize("name", QUICK)
def test_a_headline_from_fresh_seeds_has_the_sign_of_all_seeds(name: str) -> None:
    """Given 200 disjoint sets of the fewest seeds, expect the wrong sign in at most 5 %."""
    asked = question(name, SETS * MIN_SEEDS, **QUICK[name])
    result = tally(asked, asked.measured(), MIN_SEEDS, claims_of, changes_of)
    assert result.sets == SETS
    assert result.wrong <= 0.05 * SETS, result


def verdicts(name: str, seeds: int, first_seed: int) -> dict[Any, Verdict]:
    """Return all comparisons of the question as it is by default, from these seeds."""
    found: dict[Any, Verdict] = question(name, seeds, first_seed).answer().facts["compared"]
    return found


@pytest.mark.thorough
@pytest.mark.system
@pytest.mark.parametrize("name", QUICK)
def test_other_seeds_do_not_turn_a_verdict_round(name: str) -> None:
    """Given seeds 1 to 10, 11 to 20 and 21 to 40, expect equal outcomes where they are decided."""
    found = [verdicts(name, *seeds) for seeds in ((10, 1), (10, 11), (20, 21))]
    for pair in found[0]:
        for changes in zip(*(each[pair].changes for each in found), strict=True):
            outcomes = {each.outcome for each in changes} - {"not decided"}
            assert len(outcomes) <= 1, (pair, changes)


def without_effect(asked: LinkQuestion) -> dict[Any, Measurements]:
    """Return figures of variants that change nothing; those of seeds vary by 15 %."""
    assert isinstance(asked, VariantQuestion)
    asked.loads = [20]
    more = ["link_loss_percent", "loss_after_percent", "busy", "splittable_share"]
    figures = [*asked.titles, *more]
    cases: list[Case] = [*asked.cases]
    if isinstance(asked, Pep):
        others = ("as asked", "another")
        cases += [(text, name) for text in others for name in ("plain", asked.boxes[0])]
    rng, seeds = np.random.default_rng(7), SETS * MIN_SEEDS
    return {
        case: Measurements({name: rng.normal(100, 15, seeds) for name in figures}) for case in cases
    }


@pytest.mark.system
@pytest.mark.parametrize("name", QUICK)
def test_what_changes_nothing_seldom_has_a_headline(name: str) -> None:
    """Given 200 sets of figures that differ by chance alone, expect claims in at most 5 %."""
    asked = question(name, MIN_SEEDS)
    result = tally(asked, without_effect(asked), MIN_SEEDS, claims_of, changes_of)
    assert result.sets == SETS
    assert result.claiming <= 0.05 * SETS
