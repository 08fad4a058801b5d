"""How often the headline of an answer is wrong: the answer again, from many disjoint sets of seeds.

All seeds run once. A set of some of them is judged as if a person had asked with these seeds; the
truth is what all seeds say. Where the runs have a number of users, it is the one of all seeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

from bentpipe import Answer
from bentpipe.answers.buffer import BUFFERS_BDP
from bentpipe.answers.catalog import class_of
from bentpipe.answers.question import LinkQuestion
from bentpipe.answers.runs import MIN_SEEDS, WORTH_PERCENT, Change, Estimate, Measurements
from bentpipe.answers.usable import NEEDS
from bentpipe.answers.variants import PLAIN

SETS = 200


class Range(NamedTuple):
    """The values of which a headline says that one is the true one."""

    low: float
    high: float


class Interval(Range):
    """A 95 % confidence interval: of many, 5 % do not have the true value."""


Claims = Mapping[Hashable, Range]
# What all seeds say, by the name of a claim.
Truths = Mapping[Hashable, float]


class Headline(NamedTuple):
    """What the headline of an answer claims, and all that it may claim as all seeds have it."""

    claims: Callable[[Answer], Claims]
    truths: Callable[[Answer], Truths]


class Tally(NamedTuple):
    """Sets of seeds: of how many a headline claims something, and of how many wrongly.

    ``outside`` are those of which an interval does not have the true value.
    """

    sets: int
    claiming: int
    wrong: int
    outside: int


def asked(name: str, seeds: int, first_seed: int = 1, **parameters: Any) -> LinkQuestion:
    """Return a question with these seeds."""
    question = class_of(name).of(parameters, seeds=seeds, first_seed=first_seed)
    assert isinstance(question, LinkQuestion)
    return question


def size_of(question: LinkQuestion) -> int:
    """Return the fewest seeds of an answer."""
    return question.seeds or MIN_SEEDS


def tally(question: LinkQuestion, found: Any, size: int) -> Tally:
    """Judge the figures of each ``size`` seeds, and compare the claims with what all seeds say."""
    headline = HEADLINES[question.name]
    truth = headline.truths(question.judge(found))
    claimed = [headline.claims(question.judge(each)) for each in sets_of(found, size)]
    wrong = [
        {
            isinstance(claim, Interval)
            for name, claim in claims.items()
            if not claim.low <= truth[name] <= claim.high
        }
        for claims in claimed
    ]
    counts = (sum(kind in kinds for kinds in wrong) for kind in (False, True))
    return Tally(len(claimed), sum(map(bool, claimed)), *counts)


def sets_of(found: Any, size: int) -> Iterator[Any]:
    """Yield the figures of each ``size`` seeds, of all cases."""
    for first in range(0, _seeds(found) - size + 1, size):
        yield _part(found, slice(first, first + size))


def _seeds(found: Any) -> int:
    if isinstance(found, Measurements):
        return min(values.size for values in found.values())
    return min(map(_seeds, found.values()))


def _part(found: Any, seeds: slice) -> Any:
    if isinstance(found, Measurements):
        return Measurements({name: values[seeds] for name, values in found.items()})
    return {name: _part(each, seeds) for name, each in found.items()}


# --- what headlines claim -------------------------------------------------------------------------


# The gains in percent that outcomes of changes claim.
GAINS = {
    "gains": Range(WORTH_PERCENT, math.inf),
    "loses": Range(-math.inf, -WORTH_PERCENT),
    "equal": Range(-WORTH_PERCENT, WORTH_PERCENT),
}


def _shown(changes: Mapping[Hashable, Change], *others: Literal["equal"]) -> dict[Hashable, Range]:
    """Return what gains and losses claim, and ``others``."""
    named = ("gains", "loses", *others)
    return {name: GAINS[each.outcome] for name, each in changes.items() if each.outcome in named}


def _gains(changes: Mapping[Hashable, Change]) -> dict[Hashable, float]:
    """Return the gains in percent."""
    return {name: each.gain.mean for name, each in changes.items()}


def _interval(estimate: Estimate) -> Interval:
    return Interval(estimate.low, estimate.high)


def _compared(answer: Answer, *pairs: Any) -> dict[Hashable, Change]:
    """Return the changes between variants of ``ask pep`` and ``ask coding``."""
    compared = answer.facts["compared"]
    return {
        (pair, change.figure): change
        for pair in pairs or compared
        for change in compared[pair].changes
    }


def _claimed(answer: Answer) -> list[Any]:
    """Return the pairs of which the first line of ``ask pep`` and ``ask coding`` tells."""
    facts, best = answer.facts, answer.facts["best"]
    remedy = facts["remedy"]
    chosen = [remedy] if answer.figures["advice"] == "remedy" else facts["boxes"]
    pairs = [(each.load, each.variant, PLAIN) for each in chosen]
    return [*pairs, (best.load, best.variant, remedy.variant)]


def _queues(answer: Answer) -> dict[Hashable, Change]:
    """Return the changes from the knee to the managed queue."""
    return {name: answer.facts[name] for name in ("goodput", "wait")}


def _bdp(knee: str) -> float:
    return float(knee.removesuffix(" BDP"))


def _knees(answer: Answer) -> dict[Hashable, Range]:
    """Return between which sizes a knee is: next to those of single runs it is not resolved."""
    knee = answer.facts["at"]
    knees = [_bdp(each) for each in (knee.name, *knee.of_runs)]
    smaller = [each for each in BUFFERS_BDP if each < min(knees)]
    larger = [each for each in BUFFERS_BDP if each > max(knees)]
    return {"knee": Range(max(smaller, default=0.0), min(larger, default=math.inf))}


def _numbers(*figures: str) -> Headline:
    """Return the headline of an answer that has a range for each of these numbers."""
    return Headline(
        lambda answer: {name: Interval(*answer.figures[f"{name}_range"]) for name in figures},
        lambda answer: {name: answer.figures[name] for name in figures},
    )


def _usable(answer: Answer) -> dict[Hashable, Range]:
    usable = answer.figures["usable"]
    return {name: Range(good, good) for name, good in usable.items() if good is not None}


def _means_usable(answer: Answer) -> dict[Hashable, float]:
    base = answer.facts["base"]
    return {name: all(goal.holds(base) for goal in goals) for name, goals in NEEDS.items()}


def _ways(answer: Answer) -> dict[Hashable, Range]:
    """Return the hours of the way that is recommended, and what each way does to pages."""
    best, ways = answer.facts["best"], answer.figures["ways"]
    pages = {(way["way"], "pages"): way["pages"] for way in ways if way["pages"] in GAINS}
    return {
        best["way"]: Interval(*best["hours_range"]),
        **{name: GAINS[outcome] for name, outcome in pages.items()},
    }


def _of_ways(answer: Answer) -> dict[Hashable, float]:
    ways = answer.figures["ways"]
    return {
        **{way["way"]: way["hours"] for way in ways},
        **{(way["way"], "pages"): -way["page_change_percent"].mean for way in ways},
    }


HEADLINES: Mapping[str, Headline] = {
    "tcp": Headline(
        lambda answer: _shown(answer.facts["changes"]),
        lambda answer: _gains(answer.facts["changes"]),
    ),
    "buffer": Headline(
        lambda answer: _knees(answer) | _shown(_queues(answer), "equal"),
        lambda answer: {"knee": _bdp(answer.facts["at"].name), **_gains(_queues(answer))},
    ),
    "busy-link": Headline(
        lambda answer: {"full": _interval(answer.figures["full"])},
        lambda answer: {"full": answer.figures["full"].mean},
    ),
    "users": _numbers("users"),
    "small-packets": _numbers("calls", "calls_aggregated"),
    "usable": Headline(_usable, _means_usable),
    "update": Headline(_ways, _of_ways),
    **dict.fromkeys(
        ("pep", "coding"),
        Headline(
            lambda answer: _shown(_compared(answer, *_claimed(answer))),
            lambda answer: _gains(_compared(answer)),
        ),
    ),
}
