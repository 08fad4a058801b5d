"""The runs of the study in batches, and the cells that each claim is decided with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from bentpipe.simulation.many import Outcome
from bentpipe.studies.auckland.cells import (
    CODED,
    ONE_CODED,
    UNCODED,
    Cell,
    Data,
    LinkPath,
    Loads,
    Variant,
    cells,
    jobs_of,
)
from bentpipe.studies.auckland.effects import Context, Measured
from bentpipe.studies.auckland.measure import Measurement
from bentpipe.studies.auckland.variants import BASE
from bentpipe.studies.base.work import Work

# The main cells have this redundancy, too; its variant has the same runs.
_TWENTY: Final = "redundancy of 20 %"
_INSTEAD: Final = {
    LinkPath.CODED_20: LinkPath.CODED_10,
    LinkPath.TITRATED_20: LinkPath.TITRATED_10,
}


@dataclass(frozen=True)
class Batch:
    """Cells with one variant, and the number of runs of each."""

    variant: Variant
    cells: tuple[Cell, ...]
    runs: int

    @property
    def total(self) -> int:
        """The number of runs."""
        return len(self.cells) * self.runs


def by_load(every: Sequence[Cell]) -> list[tuple[Cell, ...]]:
    """Return cells in groups of equal numbers of channels."""
    groups: dict[int, list[Cell]] = {}
    for cell in every:
        groups.setdefault(cell.channels, []).append(cell)
    return [tuple(group) for group in groups.values()]


def batches(variant: Variant, loads: Loads, runs: int) -> list[Batch]:
    """Return the runs of a variant.

    Its coded cells are those of the sweep, and have the other curves with them, unless these are
    as described.
    """
    coded = tuple(path for path in variant.paths if path in CODED)
    found = list(cells(loads.sweep, coded))
    if not variant.of_code:
        numbers = sorted({*loads.variants, *(loads.sweep if coded else ())})
        found += cells(numbers, UNCODED)
    return [Batch(variant, group, runs) for group in by_load(found)]


def measure(
    work: Work,
    base: Data,
    every: Sequence[Batch],
    seed: int,
    figures: Callable[[Outcome], Mapping[str, float]],
) -> dict[str, dict[Cell, Measurement]]:
    """Run batches; return the figures of their cells by variant."""
    measured: dict[str, dict[Cell, Measurement]] = {}
    for batch in every:
        # The outcomes of all cells at once would take gigabytes.
        seeds = range(seed, seed + batch.runs)
        jobs = {cell: jobs_of(cell, base, batch.variant, seeds) for cell in batch.cells}
        of_variant = measured.setdefault(batch.variant.name, {})
        for cell, outcomes in work.run(jobs).items():
            runs_of_cell = {outcome.job.seed: figures(outcome) for outcome in outcomes}
            of_variant[cell] = Measurement(cell, runs_of_cell)
    return measured


def contexts(
    described: Context,
    variants: Sequence[Variant],
    measured: Mapping[str, Measured],
    loads: Loads,
    few: int,
) -> dict[str, Context]:
    """Return what the claims about the plain link and the PEP are decided with, by variant.

    The first one is the configuration as described, with as many runs as a variant has.
    """
    found = {
        variant.name: measured[variant.name]
        for variant in variants
        if not variant.of_code and variant.name in measured
    }
    every = {BASE.name: _first(described, few), **found} if found else {}
    return _contexts(described, every, loads.variants, UNCODED)


def coded_contexts(
    described: Context,
    variants: Sequence[Variant],
    measured: Mapping[str, Measured],
    loads: Loads,
    few: int,
) -> dict[str, Context]:
    """Return what the claims about coding are decided with, by variant, with one redundancy."""
    base = _first(described, few)
    found = {}
    for variant in variants:
        if variant.name in measured and set(variant.paths) & set(CODED):
            own = measured[variant.name]
            found[variant.name] = {**base, **own} if variant.of_code else own
    if not found:
        return {}
    twenty = {
        replace(cell, path=_INSTEAD[cell.path]): each
        for cell, each in base.items()
        if cell.path in _INSTEAD
    }
    every = {BASE.name: base, **found, _TWENTY: {**base, **twenty}}
    return _contexts(described, every, loads.sweep, (*UNCODED, *ONE_CODED))


def _first(described: Context, runs: int) -> Measured:
    return {cell: each.first(runs) for cell, each in described.measured.items()}


def _contexts(
    described: Context,
    every: Mapping[str, Measured],
    channels: Sequence[int],
    paths: Sequence[LinkPath],
) -> dict[str, Context]:
    chosen = {
        name: {
            cell: each
            for cell, each in measured.items()
            if cell.channels in channels and cell.path in paths
        }
        for name, measured in every.items()
    }
    return {
        name: Context(found, described.payload_rate_mbps) for name, found in chosen.items() if found
    }
