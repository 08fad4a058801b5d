"""The source's claims about the plain link and the PEP, each as a function of the measured cells.

The rules were written down before the first run of the study. `coding` has those of coded links.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bentpipe.studies.auckland import coding
from bentpipe.studies.auckland.cells import LARGE_KB, SMALL_KB, LinkPath
from bentpipe.studies.auckland.effects import (
    RELEVANT_PERCENT,
    Context,
    Effects,
    Test,
    gain_percent,
)
from bentpipe.studies.auckland.measure import TOTAL, TRANSFER_GOODPUT
from bentpipe.studies.auckland.verdicts import Decision, Effect, Rule
from bentpipe.studies.base.files import read_rows
from bentpipe.studies.base.samples import Samples

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
        """Return whether the claim is about coded links."""
        return self.text in coding.TESTS

    def to_json(self) -> dict[str, Any]:
        """Return the claim as plain data."""
        return {
            "figure": self.figure,
            "queue_kB": self.queue_kb,
            "metric": self.metric,
            "claim": self.text,
        }


def _gain_of_pep(figure: str, queue_kb: int) -> Effects:
    def effects(context: Context, channels: tuple[int, ...]) -> tuple[Effect, ...]:
        plain, pep = (
            context.curve(figure, queue_kb, channels, path)
            for path in (LinkPath.PLAIN, LinkPath.PEP)
        )
        return (Effect("PEP over plain", gain_percent(plain, pep), channels),)

    return effects


def _shares(context: Context, channels: tuple[int, ...]) -> tuple[Effect, ...]:
    """Return the transfer's goodput in percent of the link's largest, for both paths."""
    effects = []
    for path in (LinkPath.PLAIN, LinkPath.PEP):
        curve = context.curve(TRANSFER_GOODPUT, SMALL_KB, channels, path)
        share = (100 * goodput / context.payload_rate_mbps for goodput in curve.values())
        effects.append(Effect(path.value, Samples.of(share, exact=False), channels))
    return tuple(effects)


def _gain_of_queue(context: Context, channels: tuple[int, ...]) -> tuple[Effect, ...]:
    small, large = (
        context.curve(TOTAL, queue_kb, channels, LinkPath.PLAIN)
        for queue_kb in (SMALL_KB, LARGE_KB)
    )
    return (Effect("1,000 kB over 120 kB", gain_percent(small, large), channels),)


TESTS: Final[Mapping[str, Test]] = {
    "PEPsal gives no overall gain over the plain link under load": Test(
        Rule(
            bound="below",
            value=RELEVANT_PERCENT,
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
            value=25.0,
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
            value=20.0,
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
            value=RELEVANT_PERCENT,
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
            value=10.0,
            effect="gain of the PEP in goodput of the transfer, as the area under the curve",
            reason="an edge is clear if it is twice the smallest gain that counts",
        ),
        Context.channels,
        _gain_of_pep(TRANSFER_GOODPUT, LARGE_KB),
    ),
    **coding.TESTS,
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
        decision = self.decision
        return {
            **self.claim.to_json(),
            **decision.to_json(),
            **decision.rule.to_json(),
            "effects": [each.to_json(decision.rule) for each in decision.effects],
            "by_channels": [
                {"channels": number, **each.to_json(), "paths": each.paths_to_json()}
                for number, each in self.by_channels.items()
            ],
            "variants": [
                {
                    "variant": name,
                    **each.to_json(),
                    "channels": list(each.decisive.channels),
                    "paths": each.paths_to_json(),
                }
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
    claims: Sequence[Claim],
    context: Context,
    variants: Mapping[str, Context],
    coded_variants: Mapping[str, Context],
) -> tuple[Decided, ...]:
    """Decide the claims, each also with variants; those about coding with ``coded_variants``."""
    found = []
    for claim in claims:
        test = TESTS[claim.text]
        is_coding = claim.is_about_coding
        channels = context.coded() if is_coding else context.channels()
        by_channels = {each: test.decide(context, (each,)) for each in channels}
        contexts = coded_variants if is_coding else variants
        of_variants = {name: test.decide(each) for name, each in contexts.items()}
        found.append(Decided(claim, test.decide(context), by_channels, of_variants))
    return tuple(found)
