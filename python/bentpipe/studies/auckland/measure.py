"""The runs of the study in batches, and changes between curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from bentpipe.studies.auckland.cells import BASE, Cell, LinkPath, Variant
from bentpipe.studies.auckland.runs import CODED_HALF, UNCODED_HALF
from bentpipe.studies.base.comparison import Measurement, Samples
from bentpipe.studies.base.work import Work

Measured = Mapping[Cell, Measurement]
# The value of a figure by seed.
Curve = Mapping[int, float]


def measure(work: Work, runs: Mapping[Cell, int], variant: Variant = BASE) -> Measured:
    """Run cells with a variant, each so many times; return the figures of their runs."""
    measured: dict[Cell, Measurement] = {}
    # The outcomes of all cells at once would take gigabytes.
    for channels in dict.fromkeys(cell.channels for cell in runs):
        group = [cell for cell in runs if cell.channels == channels]
        measurements = work.measure(
            {replace(cell, variant=variant.name): runs[cell] for cell in group}
        )
        measured |= zip(group, measurements.values(), strict=True)
    return measured


def shares(measured: Measured) -> list[dict[str, Any]]:
    """Return the labels of each cell, its halves, and their changes from those of plain."""
    rows = []
    for cell in sorted(measured, key=lambda cell: cell.queue_kb):
        plain = measured[replace(cell, path=LinkPath.PLAIN)]
        values = {half: measured[cell][half] for half in (CODED_HALF, UNCODED_HALF)}
        for half in tuple(values):
            change = half.replace("mbps", "change_percent")
            values[change] = gain_percent(plain.by_seed(half), measured[cell].by_seed(half))
        rows.append({**cell.labels, **values})
    return rows


def area(channels: Sequence[int], values: Sequence[Sequence[float]]) -> list[float]:
    """Return the mean over the numbers of channels, for each seed: the area under a curve.

    ``values`` has the values over seeds of each number of channels. The area is that of trapezoids,
    over the range of channels; with one number it is the value itself.
    """
    if len(channels) == 1:
        return list(values[0])
    areas = np.asarray(np.trapezoid(values, channels, axis=0))
    return [float(mean) for mean in areas / (channels[-1] - channels[0])]


def gain_percent(before: Curve, after: Curve) -> Samples:
    """Return the change in percent of the mean before, by pairs of equal seeds, as `ratio`."""
    return Samples.of(100 * (times - 1) for times in ratio(before, after).values)


def share_percent(largest: Curve, after: Curve) -> Samples:
    """Return values in percent of the largest ones."""
    return Samples.of((100 * value / largest[seed] for seed, value in after.items()))


def ratio(before: Curve, after: Curve) -> Samples:
    """Return how many times the mean before the mean after is, by pairs of equal seeds.

    The values vary as the ratio of the means does in the first order (delta method), so their
    interval is that of the ratio.
    """
    seeds = [seed for seed in before if seed in after]
    mean = sum(before[seed] for seed in seeds) / len(seeds) if seeds else 0.0
    if mean == 0:
        return Samples()
    times = sum(after[seed] for seed in seeds) / len(seeds) / mean
    values = (times + (after[seed] - times * before[seed]) / mean for seed in seeds)
    return Samples.of(values)
