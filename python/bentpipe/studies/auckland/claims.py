"""The source's claims about the plain link and the PEP, each as a function of the measured cells.

The rules were written down before the first run of the study.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bentpipe.studies.auckland.cells import LARGE_KB, SMALL_KB, Cell
from bentpipe.studies.auckland.measure import (
    BACKGROUND_BUSY,
    TOTAL,
    TRANSFER_GOODPUT,
    Measurement,
)
from bentpipe.studies.auckland.verdicts import Decision, Effect, Rule, area
from bentpipe.studies.base.files import read_rows
from bentpipe.studies.base.samples import Samples

Measured = Mapping[Cell, Measurement]

# How busy the channels alone keep the plain link, in percent of its rate.
LOADED_PERCENT: Final = 50.0
VERY_LOW_PERCENT: Final = 10.0
_RELEVANT_PERCENT: Final = 5.0
_ABOUT_CODING: Final = ("coding", "coded", "titration")
_HERE: Final = Path(__file__).parent


@dataclass(frozen=True)
class Claim:
    """What the source says about a figure of its page."""

    figure: int
    queue_kb: int
    metric: str
    text: str

    @property
    def is_about_coding(self) -> bool:
        """Return whether the claim is about coded links, which this study does not have."""
        return self.text.startswith(_ABOUT_CODING)

    def to_json(self) -> dict[str, Any]:
        """Return the claim as plain data."""
        return {
            "figure": self.figure,
            "queue_kB": self.queue_kb,
            "metric": self.metric,
            "claim": self.text,
        }


@dataclass(frozen=True)
class Context:
    """What a claim is decided with: the cells of a variant, and the link's largest goodput."""

    measured: Measured
    payload_rate_mbps: float

    def channels(self) -> tuple[int, ...]:
        """Return the numbers of channels, ascending."""
        return tuple(sorted({cell.channels for cell in self.measured}))

    def busy_percent(self, queue_kb: int, channels: int) -> float:
        """Return how busy the channels alone keep the plain link with this queue."""
        busy = self.measured[Cell(channels, queue_kb, pep=False)][BACKGROUND_BUSY].mean
        return 0.0 if busy is None else busy

    def loaded(self, queue_kb: int) -> tuple[int, ...]:
        """Return the numbers of channels that are called "under load"."""
        every = self.channels()
        return tuple(n for n in every if self.busy_percent(queue_kb, n) >= LOADED_PERCENT)

    def very_low(self, queue_kb: int) -> tuple[int, ...]:
        """Return the numbers of channels that are called "very low background load"."""
        every = self.channels()
        return tuple(n for n in every if self.busy_percent(queue_kb, n) < VERY_LOW_PERCENT)

    def curve(
        self, figure: str, queue_kb: int, channels: Sequence[int], *, pep: bool
    ) -> dict[int, float]:
        """Return the area under a curve by seed; nothing if a cell or all channels are missing."""
        runs = [self.measured[Cell(n, queue_kb, pep)].runs for n in channels]
        seeds = [seed for seed in runs[0] if all(seed in each for each in runs)] if runs else []
        if not seeds:
            return {}
        values = [[each[seed][figure] for seed in seeds] for each in runs]
        return dict(zip(seeds, area(channels, values), strict=True))


@dataclass(frozen=True)
class Test:
    """How a claim is decided: the rule, the numbers of channels that count, and the effects."""

    rule: Rule
    channels: Callable[[Context], tuple[int, ...]]
    effects: Callable[[Context, tuple[int, ...]], tuple[Effect, ...]]

    def decide(self, context: Context, channels: tuple[int, ...] | None = None) -> Decision:
        """Return the decision over the numbers of channels that count, or over these."""
        chosen = self.channels(context) if channels is None else channels
        return Decision(self.rule, self.effects(context, chosen))


def gain_percent(before: Mapping[int, float], after: Mapping[int, float]) -> Samples:
    """Return the change in percent of the mean before, by pairs of equal seeds."""
    seeds = [seed for seed in before if seed in after]
    mean = sum(before[seed] for seed in seeds) / len(seeds) if seeds else 0.0
    if mean == 0:
        return Samples()
    return Samples.of((100 * (after[seed] - before[seed]) / mean for seed in seeds), exact=False)


def _gain_of_pep(
    figure: str, queue_kb: int
) -> Callable[[Context, tuple[int, ...]], tuple[Effect, ...]]:
    def effects(context: Context, channels: tuple[int, ...]) -> tuple[Effect, ...]:
        plain, pep = (context.curve(figure, queue_kb, channels, pep=pep) for pep in (False, True))
        return (Effect("PEP over plain", gain_percent(plain, pep), channels),)

    return effects


def _shares(context: Context, channels: tuple[int, ...]) -> tuple[Effect, ...]:
    """Return the transfer's goodput in percent of the link's largest, for both paths."""
    effects = []
    for name, pep in (("plain", False), ("PEP", True)):
        curve = context.curve(TRANSFER_GOODPUT, SMALL_KB, channels, pep=pep)
        share = (100 * goodput / context.payload_rate_mbps for goodput in curve.values())
        effects.append(Effect(name, Samples.of(share, exact=False), channels))
    return tuple(effects)


def _gain_of_queue(context: Context, channels: tuple[int, ...]) -> tuple[Effect, ...]:
    small, large = (
        context.curve(TOTAL, queue_kb, channels, pep=False) for queue_kb in (SMALL_KB, LARGE_KB)
    )
    return (Effect("1,000 kB over 120 kB", gain_percent(small, large), channels),)


TESTS: Final[Mapping[str, Test]] = {
    "PEPsal gives no overall gain over the plain link under load": Test(
        Rule(
            bound="below",
            percent=_RELEVANT_PERCENT,
            effect="gain of the PEP in total goodput, as the area under the curve under load",
            reason="5 % is the smallest gain that a figure with goodputs from 0 to 16 Mbit/s shows "
            "(0.8 Mbit/s), and less would hardly pay for a PEP",
        ),
        lambda context: context.loaded(SMALL_KB),
        _gain_of_pep(TOTAL, SMALL_KB),
    ),
    "the transfer fares badly on the plain link and on the PEP link under load": Test(
        Rule(
            bound="below",
            percent=25.0,
            effect="goodput of the transfer in percent of the largest goodput of the link, as the "
            "area under the curve under load",
            reason="under load the channels leave at most half of the link; badly is less than "
            "half of what they leave",
        ),
        lambda context: context.loaded(SMALL_KB),
        _shares,
    ),
    "the PEP gains markedly over the plain link at very low background load": Test(
        Rule(
            bound="at_least",
            percent=20.0,
            effect="gain of the PEP in goodput of the transfer, as the area under the curve at "
            "very low load",
            reason="a curve that is a fifth higher is seen at once in a figure, and it is four "
            "times the smallest gain that counts",
        ),
        lambda context: context.very_low(SMALL_KB),
        _gain_of_pep(TRANSFER_GOODPUT, SMALL_KB),
    ),
    "no overall gain for the plain link from the larger queue": Test(
        Rule(
            bound="below",
            percent=_RELEVANT_PERCENT,
            effect="gain of the plain link in total goodput from 120 to 1,000 kB, as the area "
            "under the curve",
            reason="as for the PEP in figure 1",
        ),
        Context.channels,
        _gain_of_queue,
    ),
    "the PEP has a clear edge over the plain link": Test(
        Rule(
            bound="at_least",
            percent=10.0,
            effect="gain of the PEP in goodput of the transfer, as the area under the curve",
            reason="an edge is clear if it is twice the smallest gain that counts",
        ),
        Context.channels,
        _gain_of_pep(TRANSFER_GOODPUT, LARGE_KB),
    ),
}


@dataclass(frozen=True)
class Decided:
    """A claim with its decision, and where it holds.

    ``by_channels`` has the decisions with the same bound at each number of channels alone,
    ``variants`` those with other values of what the source does not give.
    """

    claim: Claim
    decision: Decision
    by_channels: Mapping[int, Decision]
    variants: Mapping[str, Decision]

    def to_json(self) -> dict[str, Any]:
        """Return the claim, its verdict, the effect that decides and its seeds as plain data."""
        return {
            **self.claim.to_json(),
            **self.decision.to_json(),
            **self.decision.rule.to_json(),
            "effects": [each.to_json() for each in self.decision.effects],
            "by_channels": [
                {"channels": number, **each.to_json()} for number, each in self.by_channels.items()
            ],
            "variants": [
                {"variant": name, **each.to_json(), "channels": list(each.decisive.channels)}
                for name, each in self.variants.items()
            ],
        }


def read_claims() -> tuple[Claim, ...]:
    """Return the source's claims, in its order."""
    return tuple(
        Claim(int(row["figure"]), int(row["queue_kB"]), row["metric"], row["claim"])
        for row in read_rows(_HERE / "claims.csv")
    )


def decide(
    claims: Sequence[Claim], context: Context, variants: Mapping[str, Context]
) -> tuple[Decided, ...]:
    """Decide the claims that are not about coding."""
    found = []
    for claim in claims:
        if not claim.is_about_coding:
            test = TESTS[claim.text]
            by_channels = {each: test.decide(context, (each,)) for each in context.channels()}
            of_variants = {name: test.decide(each) for name, each in variants.items()}
            found.append(Decided(claim, test.decide(context), by_channels, of_variants))
    return tuple(found)
