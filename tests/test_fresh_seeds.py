"""Headlines of answers survive other seeds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from fresh_seeds import HEADLINES, SETS, asked, size_of, tally

from bentpipe.answers.question import LinkQuestion
from bentpipe.answers.runs import Measurements, Verdict

S = 1_000_000_000
# A link on which a run takes some milliseconds.
SMALL = [
    "link.forward.rate=2Mbit/s",
    "link.return.rate=500kbit/s",
    "link.*.delay=60ms",
    "duration=30s",
]
LOSSY = [*SMALL, "link.forward.loss=1%"]
# Pages of few objects, of which six users load many in a run.
OBJECTS = ["objects=2", "object=10kB", "document=20kB", "think.exponential=2s"]
# Pages of one response that take some tenths of a second.
PAGES = [*SMALL, "traffic.reader.response.lognormal.median=20kB"]
QUICK: dict[str, dict[str, Any]] = {
    "tcp": {"settings": LOSSY},
    "buffer": {"settings": LOSSY},
    "busy-link": {"settings": PAGES},
    "users": {
        "settings": [*SMALL, *(f"traffic.reader.{each}" for each in OBJECTS)],
        "page_time_ns": 2 * S,
    },
    # Half a second has 25 packets of a call each way.
    "small-packets": {
        "settings": ["traffic.call.duration=500ms", "duration=1s"],
        "packets_per_second": 500,
    },
    # The lecture starts in some 10 s, and an image takes as long.
    "usable": {"settings": [*SMALL, "duration=60s"], "video": "700kbit/s", "image": "300kB"},
    "pep": {"settings": SMALL},
    "coding": {"settings": LOSSY, "loads": [2]},
    "update": {"settings": PAGES, "size": "1MB"},
}
MOST_WRONG = 0.05 * SETS
# Of 95 % intervals 5 % do not have the true value, and of 200 up to 4.5 % more by chance, three
# standard errors.
MOST_OUTSIDE = 0.095 * SETS


def measured(question: LinkQuestion, name: str) -> Any:
    """Return the figures of all seeds; of a search those of each count that a set may run."""

    def counts(entry: str, numbers: Iterable[int], *settings: str) -> dict[int, Measurements]:
        plans = {n: question.plan(*settings, f"traffic.{entry}.count={n}") for n in numbers}
        return question.run(plans)

    if name == "users":
        return counts("reader", range(1, 11))
    if name == "small-packets":
        bundling = [f"gateways.{end}.aggregator.hold_time=5ms" for end in ("hub", "terminal")]
        bundled = counts("call", range(30, 46), *bundling)
        others = {name: {30: bundled[30]} for name in ("hold 20 ms", "other codec")}
        return {"none": counts("call", range(2, 8)), "hold 5 ms": bundled, **others}
    return question.measured()


@pytest.mark.thorough
@pytest.mark.system
@pytest.mark.parametrize("name", HEADLINES)
def test_a_headline_from_fresh_seeds_is_that_of_all_seeds(name: str) -> None:
    """Given 200 disjoint sets of the fewest seeds, expect the headline wrong in at most 5 %."""
    size = size_of(asked(name, 1, **QUICK[name]))
    question = asked(name, SETS * size, **QUICK[name])
    result = tally(question, measured(question, name), size)
    assert result.sets == SETS
    assert result.claiming > 0
    assert result.wrong <= MOST_WRONG, result
    assert result.outside <= MOST_OUTSIDE, result


def verdicts(name: str, seeds: int, first_seed: int) -> dict[Any, Verdict]:
    """Return all comparisons of the question as it is by default, from these seeds.

    A load is a number of channels that these seeds have found; here it is its rank.
    """
    found: dict[Any, Verdict] = asked(name, seeds, first_seed).answer().facts["compared"]
    loads = sorted({load for load, *_ in found})
    return {(loads.index(load), *pair): verdict for (load, *pair), verdict in found.items()}


@pytest.mark.thorough
@pytest.mark.system
@pytest.mark.parametrize("name", ["pep", "coding"])
def test_other_seeds_do_not_turn_a_verdict_round(name: str) -> None:
    """Given seeds 1 to 10, 11 to 20 and 21 to 40, expect equal outcomes where they are decided."""
    found = [verdicts(name, *seeds) for seeds in ((10, 1), (10, 11), (20, 21))]
    for pair in found[0]:
        for changes in zip(*(each[pair].changes for each in found), strict=True):
            outcomes = {each.outcome for each in changes} - {"not decided"}
            assert len(outcomes) <= 1, (pair, changes)


# --- without any effect ---------------------------------------------------------------------------

# How much figures vary from seed to seed, of their mean; goodputs over queues have the same seeds.
DEVIATION = {"buffer": 0.01}


def without_effect(question: LinkQuestion, found: Any) -> Any:
    """Return figures like ``found``, but of cases that differ by chance alone.

    The means of figures with a limit are the limit. Those of counts grow with the fourth power,
    and reach the limit in the middle.
    """
    rng, size = np.random.default_rng(7), SETS * size_of(question)
    limits = {goal.figure: goal.limit for goal in question.goals if goal.limit}
    deviation = DEVIATION.get(question.name, 0.15)

    def drawn(part: Any, share: float = 1.0) -> Any:
        if not isinstance(part, Measurements):
            counts = [case for case in part if isinstance(case, int)]
            return {
                case: drawn(each, (case / np.median(counts)) ** 4 if counts else 1.0)
                for case, each in part.items()
            }
        means = {name: share * limits[name] if name in limits else 100.0 for name in part}
        return Measurements(
            {name: rng.normal(mean, deviation * mean, size) for name, mean in means.items()}
        )

    return drawn(found)


SLOW = {"buffer", "coding", "pep", "small-packets", "tcp", "users"}


@pytest.mark.system
@pytest.mark.parametrize(
    "name",
    [
        # Judging 200 sets takes these seconds.
        pytest.param(name, marks=pytest.mark.thorough if name in SLOW else [])
        for name in HEADLINES
    ],
)
def test_a_headline_of_chance_is_seldom_wrong(name: str) -> None:
    """Given 200 sets of figures that differ by chance alone, expect at most 5 % wrong headlines."""
    question = asked(name, 1, **QUICK[name])
    result = tally(question, without_effect(question, measured(question, name)), size_of(question))
    assert result.sets == SETS
    assert result.wrong <= MOST_WRONG, result
    assert result.outside <= MOST_OUTSIDE, result
