"""The verdict of ``ask coding``: which tunnel pays at which load, by intervals of paired runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple

from bentpipe.answers.answer import Estimate, signed_percent
from bentpipe.answers.cases import Figures, change_percent, estimate
from bentpipe.answers.coding_runs import CODED, PLAIN, VARIANTS, Case
from bentpipe.errors import InternalError
from bentpipe.text import counted

# A change below this is no reason for or against a box in the path of all traffic, as in `pep`.
WORTH_PERCENT: Final = 5.0
# Figures that are compared, and what a change of them is called; the first one counts first.
MEASURES: Final[Mapping[str, str]] = {
    "total_bps": "total goodput",
    "transfer_bps": "goodput of the long transfer",
    "small_p50_ns": "median time of small downloads",
    "small_p95_ns": "95 % time of small downloads",
}
Kind = Literal["pays", "mixed", "loses", "unclear"]
# The best first.
_ORDER: Final[tuple[Kind, ...]] = ("pays", "mixed", "unclear", "loses")


class Change(NamedTuple):
    """A figure of two cases, and its change in percent by pairs of equal seeds."""

    measure: str
    before: Estimate
    after: Estimate
    percent: Estimate

    @property
    def gain(self) -> Estimate:
        """The change with the sign of its value to a user: less time is a gain."""
        sign = -1.0 if self.measure.endswith("_ns") else 1.0
        return Estimate(sign * self.percent.mean, self.percent.half_width, self.percent.runs)

    @property
    def is_shown(self) -> bool:
        """Whether the interval excludes zero; never with a single run."""
        return self.percent.half_width is not None and (
            self.percent.low > 0 or self.percent.high < 0
        )

    @property
    def is_gain(self) -> bool:
        """Whether it is a gain that is shown, and large enough to matter."""
        return self.is_shown and self.gain.mean >= WORTH_PERCENT

    @property
    def is_loss(self) -> bool:
        """Whether it is a loss that is shown, and large enough to matter."""
        return self.is_shown and self.gain.mean <= -WORTH_PERCENT

    def __str__(self) -> str:
        """Return a part of a sentence, such as "total goodput +12.1 % (+11.8 to +12.4)"."""
        return f"{MEASURES[self.measure]} {signed_percent(self.percent)}"


class Verdict(NamedTuple):
    """What a variant changes at a load."""

    case: Case
    changes: Sequence[Change]

    @property
    def gains(self) -> list[Change]:
        """The changes that are gains."""
        return [each for each in self.changes if each.is_gain]

    @property
    def losses(self) -> list[Change]:
        """The changes that are losses."""
        return [each for each in self.changes if each.is_loss]

    @property
    def kind(self) -> Kind:
        """Whether it gains, loses, does both, or shows neither; a lost total outweighs gains."""
        if self.changes[0].is_loss:
            return "loses"
        if self.gains:
            return "mixed" if self.losses else "pays"
        return "loses" if self.losses else "unclear"

    @property
    def name(self) -> str:
        """The name of the variant, for sentences."""
        return VARIANTS[self.case.variant].name

    @property
    def finding(self) -> str:
        """What is found, as a predicate with the first changes that show it."""
        if self.changes[0].percent.half_width is None:
            return f"has {self.changes[0]}"
        if self.kind == "mixed":
            return f"gains ({self.gains[0]}) and loses ({self.losses[0]})"
        if self.kind == "unclear":
            return f"shows no {_small_or_none(self.changes)}"
        if self.kind == "pays":
            return f"gains ({self.gains[0]})"
        also = f", but gains {self.gains[0]}" if self.gains else ""
        return f"loses ({self.losses[0]}{also})"

    def __str__(self) -> str:
        """Return the name of the variant and what is found."""
        return f"{VARIANTS[self.case.variant].title} {self.finding}"


def compare(before: Figures, after: Figures, case: Case) -> Verdict:
    """Return what changes from the runs of one case to those of another, ``case``."""
    changes = [
        Change(
            measure,
            estimate(before[measure]),
            estimate(after[measure]),
            change_percent(before[measure], after[measure]),
        )
        for measure in MEASURES
    ]
    return Verdict(case, changes)


def verdicts(found: Mapping[Case, Figures], loads: Sequence[int]) -> list[Verdict]:
    """Return the verdicts on all coded variants over the plain link, load by load."""
    return [
        compare(found[Case(load, PLAIN)], found[Case(load, variant)], Case(load, variant))
        for load in loads
        for variant in CODED
    ]


def decisive(found: Sequence[Verdict]) -> Verdict:
    """Return the verdict that the answer is about.

    It is the one with the best total of those that only gain; else, of those that gain and lose,
    the one whose total exceeds its largest loss the most; else the one with the best total of those
    that show nothing, or of those that lose.
    """
    for kind in _ORDER:
        some = [each for each in found if each.kind == kind]
        if some:
            return max(some, key=_net_percent)
    raise InternalError("no verdict to decide on")


def _net_percent(verdict: Verdict) -> float:
    total = verdict.changes[0].gain.mean
    if verdict.kind != "mixed":
        return total
    return total + min(each.gain.mean for each in verdict.losses)


def headline(found: Sequence[Verdict]) -> str:
    """Return the answer as one sentence."""
    best = decisive(found)
    total = best.changes[0]
    at = counted(best.case.load, "channel")
    if total.percent.half_width is None:
        return f"One run has no interval, so nothing is decided: {best.name} has {total} at {at}"
    losing, paying = _loads(found, "loses"), _loads(found, "pays", "mixed")
    # Loads at which some variant loses and none gains.
    lost = [load for load in losing if load not in paying]
    if best.kind == "pays":
        text = (
            f"Coding pays at {_channels(_loads(found, 'pays'))}; most gains {best.name} at {at}: "
        )
        text += str(best.gains[0])
    elif best.kind == "mixed":
        text = f"Coding gains and loses: {best.name} has {best.gains[0]} at {at}, but "
        text += str(best.losses[0])
    elif best.kind == "loses":
        return f"Coding loses at {_channels(lost)}; least {best.name}, {best.losses[0]} at {at}"
    elif losing:
        worst = min(
            (each for each in found if each.kind == "loses"),
            key=lambda verdict: verdict.changes[0].gain.mean,
        )
        text = f"Coding shows no gain: its best is {best.name}, {total} at {at}; most loses "
        return f"{text}{worst.name}, {worst.losses[0]} at {counted(worst.case.load, 'channel')}"
    else:
        small = _small_or_none([change for each in found for change in each.changes])
        loads = [*dict.fromkeys(each.case.load for each in found)]
        return (
            f"No {small} that these runs show between coding and the plain link, at "
            + _channels(loads)
        )
    return text + (f". At {_channels(lost)} it gains nothing, and loses" if lost else "")


def _small_or_none(changes: Sequence[Change]) -> str:
    """Return what is not shown: a difference, or one that is large enough to matter."""
    small = any(each.is_shown for each in changes)
    return f"gain or loss of {WORTH_PERCENT:g} % or more" if small else "difference"


def _loads(found: Sequence[Verdict], *kinds: Kind) -> list[int]:
    return list(dict.fromkeys(each.case.load for each in found if each.kind in kinds))


def _channels(loads: Sequence[int]) -> str:
    """Return loads as text: ``0, 20 and 60 channels``."""
    *first, last = loads
    return " and ".join(
        [*([", ".join(map(str, first))] if first else []), counted(last, "channel")]
    )
