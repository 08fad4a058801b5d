"""How often the headline of an answer is wrong: the answer again, from many disjoint sets of seeds.

All seeds run once. A set of some of them is judged as if a person had asked with these seeds; the
truth is the mean over all seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any, NamedTuple

from bentpipe import Answer
from bentpipe.answers.question import LinkQuestion
from bentpipe.answers.runs import Change, Measurements
from bentpipe.answers.variants import HOSTS, PLAIN

# What is claimed, such as the figure of a variant: the change that shows it.
Claims = Mapping[Hashable, Change]
Found = Mapping[Any, Measurements]
SETS = 200


class Tally(NamedTuple):
    """Sets of seeds: of how many a headline claims something, and of how many wrongly."""

    sets: int
    claiming: int
    wrong: int


def tally(
    question: LinkQuestion,
    found: Found,
    size: int,
    claims: Callable[[Answer], Claims],
    truths: Callable[[Answer], Claims],
) -> Tally:
    """Judge the figures of each ``size`` seeds, and compare the claims with those of all seeds.

    ``claims`` are those of a headline; ``truths`` has all changes from which a headline chooses.
    """
    truth = truths(question.judge(found))
    claimed = [claims(question.judge(each)) for each in sets_of(found, size)]
    wrong = [
        any(truth[name].gain.mean * each.gain.mean < 0 for name, each in some.items())
        for some in claimed
    ]
    return Tally(len(claimed), sum(map(bool, claimed)), sum(wrong))


def sets_of(found: Found, size: int) -> Iterator[dict[Any, Measurements]]:
    """Yield the figures of each ``size`` seeds."""
    seeds = min(values.size for each in found.values() for values in each.values())
    for first in range(0, seeds - size + 1, size):
        yield {
            case: Measurements({name: each[name][first : first + size] for name in each})
            for case, each in found.items()
        }


def claims_of(answer: Answer) -> dict[Hashable, Change]:
    """Return what the first line of ``ask pep`` and ``ask coding`` claims."""
    facts, best = answer.facts, answer.facts["best"]
    claimed = [facts["hosts"]] if answer.figures["advice"] == "hosts" else facts["boxes"]
    keys = [(each.load, each.variant, PLAIN) for each in claimed]
    return {
        (key, change.figure): change
        for key in (*keys, (best.load, best.variant, HOSTS))
        for change in facts["compared"][key].having("gains", "loses")
    }


def changes_of(answer: Answer) -> dict[Hashable, Change]:
    """Return all changes from which the first line of these answers chooses."""
    return {
        (pair, change.figure): change
        for pair, verdict in answer.facts["compared"].items()
        for change in verdict.changes
    }
