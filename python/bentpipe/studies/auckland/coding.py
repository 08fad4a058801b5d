"""The source's claims about coded links, each as a function of the measured cells.

The rules were written down before the runs that decide them. The source says "titration" where it
means that, so "coding" is a code whose repair is sent at once, and it has no settings, so a claim
about coding must not depend on the redundancy: both immediate curves decide, and the titrated ones
are reported with the verdict that each would have alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from bentpipe.studies.auckland.cells import (
    IMMEDIATE,
    LARGE_KB,
    SMALL_KB,
    TITRATED,
    LinkPath,
)
from bentpipe.studies.auckland.effects import (
    RELEVANT_PERCENT,
    Context,
    Test,
    difference,
    gain_percent,
    ratio,
)
from bentpipe.studies.auckland.measure import PING_MAX, TOTAL, TRANSFER_GOODPUT
from bentpipe.studies.auckland.verdicts import Effect, Rule

_COMPARED: Final = (LinkPath.PLAIN, LinkPath.PEP)


def _gains_in_total(context: Context, channels: tuple[int, ...]) -> tuple[Effect, ...]:
    plain = context.curve(TOTAL, SMALL_KB, channels, LinkPath.PLAIN)
    return tuple(
        Effect(
            f"{path.value} over plain",
            gain_percent(plain, context.curve(TOTAL, SMALL_KB, channels, path)),
            channels,
            path,
            decides=path in IMMEDIATE,
        )
        for path in context.coded_paths()
    )


def _gains_of_titration(context: Context, channels: tuple[int, ...]) -> tuple[Effect, ...]:
    found = context.coded_paths()
    return tuple(
        Effect(
            f"{titrated.value} over {at_once.value}",
            difference(
                *(context.curve(TOTAL, SMALL_KB, channels, path) for path in (at_once, titrated))
            ),
            channels,
            titrated,
        )
        for at_once, titrated in zip(IMMEDIATE, TITRATED, strict=True)
        if {at_once, titrated} <= set(found)
    )


def _ratios(context: Context, channels: tuple[int, ...]) -> tuple[Effect, ...]:
    plain = context.curve(TRANSFER_GOODPUT, SMALL_KB, channels, LinkPath.PLAIN)
    return tuple(
        Effect(
            f"{path.value} over plain",
            ratio(plain, context.curve(TRANSFER_GOODPUT, SMALL_KB, channels, path)),
            channels,
            path,
            decides=path in IMMEDIATE,
        )
        for path in context.coded_paths()
    )


def _effects_of_queue(context: Context, channels: tuple[int, ...]) -> tuple[Effect, ...]:
    effects = []
    for figure, name in ((TOTAL, "total goodput"), (PING_MAX, "maximum RTT")):
        for path in context.coded_paths():
            small, large = (
                context.curve(figure, queue_kb, channels, path) for queue_kb in (SMALL_KB, LARGE_KB)
            )
            of = f"{name}, {path.value}, 1,000 kB over 120 kB"
            gain = gain_percent(small, large)
            effects.append(Effect(of, gain, channels, path, decides=path in IMMEDIATE))
    return tuple(effects)


def _gains_over_each(context: Context, channels: tuple[int, ...]) -> tuple[Effect, ...]:
    """Return the gains at each number of channels alone: none may be made up for by others."""
    effects = []
    for path in context.coded_paths():
        for other in _COMPARED:
            for number in channels:
                before, after = (
                    context.curve(TRANSFER_GOODPUT, LARGE_KB, (number,), each)
                    for each in (other, path)
                )
                of = f"{path.value} over {other.value}"
                gain = gain_percent(before, after)
                effects.append(Effect(of, gain, (number,), path, decides=path in IMMEDIATE))
    return tuple(effects)


def _where_saturation_sets_in(context: Context) -> tuple[int, ...]:
    return context.coded(context.loaded(SMALL_KB))[:1]


TESTS: Final[Mapping[str, Test]] = {
    "coding gains over the plain link under load": Test(
        Rule(
            bound="at_least",
            value=RELEVANT_PERCENT,
            effect="gain of coding in total goodput, as the area under the curve under load",
            reason="as for the PEP in this figure: less does not show in it",
        ),
        lambda context: context.coded(context.loaded(SMALL_KB)),
        _gains_in_total,
    ),
    "titration adds about 1 Mbit/s more where traffic saturates the link": Test(
        Rule(
            bound="at_least",
            value=0.5,
            unit="Mbit/s",
            about_to=1.5,
            effect="total goodput of titrated less that of immediate repair with equal redundancy, "
            "as the area under the curve where the channels saturate the link",
            reason="about 1 Mbit/s is 0.5 to 1.5; more would not contradict that titration adds it",
        ),
        lambda context: context.coded(context.saturated(SMALL_KB)),
        _gains_of_titration,
    ),
    "coded results are almost 10 times the baseline where saturation sets in": Test(
        Rule(
            bound="at_least",
            value=8.0,
            unit="times",
            effect="goodput of the coded transfer over that of the plain one, at the smallest "
            "number of channels under load",
            reason="almost 10 is rounded from no less than 8",
        ),
        _where_saturation_sets_in,
        _ratios,
    ),
    "coding benefits from the larger queue at the cost of a higher maximum RTT": Test(
        Rule(
            bound="at_least",
            value=RELEVANT_PERCENT,
            effect="gain of coding in total goodput and increase of the ping's maximum RTT from "
            "120 to 1,000 kB, as areas under the curves; both must be there",
            reason="as for coding in figure 1; 5 % of the maximum RTT are 25 ms or more",
        ),
        Context.coded,
        _effects_of_queue,
    ),
    "coding beats both the PEP and the plain link over the entire load range": Test(
        Rule(
            bound="at_least",
            value=0.0,
            effect="gain of coding in goodput of the transfer over the PEP and over the plain "
            "link, at each number of channels",
            reason="the source says nothing of the size of the gain, but claims it for every load",
        ),
        Context.coded,
        _gains_over_each,
    ),
}
