"""Effects between curves: what the claims are decided with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from bentpipe.studies.auckland.cells import CODED, Cell, LinkPath
from bentpipe.studies.auckland.measure import BACKGROUND_BUSY, Measurement
from bentpipe.studies.auckland.verdicts import Decision, Effect, Rule, area
from bentpipe.studies.base.samples import Samples

Measured = Mapping[Cell, Measurement]
Curve = Mapping[int, float]

# How busy the channels alone keep the plain link, in percent of its rate.
LOADED_PERCENT: Final = 50.0
SATURATED_PERCENT: Final = 90.0
VERY_LOW_PERCENT: Final = 10.0
# The smallest gain that counts.
RELEVANT_PERCENT: Final = 5.0


@dataclass(frozen=True)
class Context:
    """What a claim is decided with: the cells of a variant, and the link's largest goodput."""

    measured: Measured
    payload_rate_mbps: float

    def channels(self) -> tuple[int, ...]:
        """Return the numbers of channels, ascending."""
        return tuple(sorted({cell.channels for cell in self.measured}))

    def coded(self, among: Sequence[int] | None = None) -> tuple[int, ...]:
        """Return the numbers of channels, or those among some, at which there are coded cells."""
        found = {cell.channels for cell in self.measured if cell.path in CODED}
        return tuple(
            each for each in (self.channels() if among is None else among) if each in found
        )

    def coded_paths(self, among: Sequence[LinkPath] = CODED) -> tuple[LinkPath, ...]:
        """Return the coded paths of which there are cells."""
        found = {cell.path for cell in self.measured}
        return tuple(path for path in among if path in found)

    def busy_percent(self, queue_kb: int, channels: int) -> float:
        """Return how busy the channels alone keep the plain link with this queue."""
        busy = self.measured[Cell(channels, queue_kb, LinkPath.PLAIN)][BACKGROUND_BUSY].mean
        return 0.0 if busy is None else busy

    def loaded(self, queue_kb: int, percent: float = LOADED_PERCENT) -> tuple[int, ...]:
        """Return the numbers of channels that are called "under load"."""
        every = self.channels()
        return tuple(n for n in every if self.busy_percent(queue_kb, n) >= percent)

    def saturated(self, queue_kb: int) -> tuple[int, ...]:
        """Return the numbers of channels that saturate the link."""
        return self.loaded(queue_kb, SATURATED_PERCENT)

    def very_low(self, queue_kb: int) -> tuple[int, ...]:
        """Return the numbers of channels that are called "very low background load"."""
        every = self.channels()
        return tuple(n for n in every if self.busy_percent(queue_kb, n) < VERY_LOW_PERCENT)

    def curve(self, figure: str, queue_kb: int, channels: Sequence[int], path: LinkPath) -> Curve:
        """Return the area under a curve by seed; nothing if a cell or all channels are missing."""
        cells = [Cell(n, queue_kb, path) for n in channels]
        if not cells or any(cell not in self.measured for cell in cells):
            return {}
        runs = [self.measured[cell].runs for cell in cells]
        seeds = [seed for seed in runs[0] if all(seed in each for each in runs)]
        if not seeds:
            return {}
        values = [[each[seed][figure] for seed in seeds] for each in runs]
        return dict(zip(seeds, area(channels, values), strict=True))


Effects = Callable[[Context, tuple[int, ...]], tuple[Effect, ...]]


@dataclass(frozen=True)
class Test:
    """How a claim is decided: the rule, the numbers of channels that count, and the effects."""

    rule: Rule
    channels: Callable[[Context], tuple[int, ...]]
    effects: Effects

    def decide(self, context: Context, channels: tuple[int, ...] | None = None) -> Decision:
        """Return the decision over the numbers of channels that count, or over these."""
        chosen = self.channels(context) if channels is None else channels
        return Decision(self.rule, self.effects(context, chosen))


def gain_percent(before: Curve, after: Curve) -> Samples:
    """Return the change in percent of the mean before, by pairs of equal seeds, as `ratio`."""
    times = ratio(before, after).values
    return Samples.of((100 * (each - 1) for each in times), exact=False)


def difference(before: Curve, after: Curve) -> Samples:
    """Return the change by pairs of equal seeds."""
    seeds, _ = _pairs(before, after)
    return Samples.of((after[seed] - before[seed] for seed in seeds), exact=False)


def ratio(before: Curve, after: Curve) -> Samples:
    """Return how many times the mean before the mean after is, by pairs of equal seeds.

    The values vary as the ratio of the means does in the first order (delta method), so their
    interval is that of the ratio.
    """
    seeds, mean = _pairs(before, after)
    if mean == 0:
        return Samples()
    times = sum(after[seed] for seed in seeds) / len(seeds) / mean
    values = (times + (after[seed] - times * before[seed]) / mean for seed in seeds)
    return Samples.of(values, exact=False)


def _pairs(before: Curve, after: Curve) -> tuple[list[int], float]:
    """Return the seeds that both curves have, and the mean before."""
    seeds = [seed for seed in before if seed in after]
    return seeds, sum(before[seed] for seed in seeds) / len(seeds) if seeds else 0.0
