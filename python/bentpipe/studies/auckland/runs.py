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
    scenario_of,
)
from bentpipe.studies.auckland.claims import Context
from bentpipe.studies.auckland.measure import Measured, Measurement
from bentpipe.studies.auckland.variants import BASE
from bentpipe.studies.base.work import Work, jobs_of

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


def batches(variant: Variant, loads: Loads, runs: int) -> list[Batch]:
    """Return the runs of a variant.

    Its coded cells are those of the sweep, and have the other curves with them, unless these are
    as described.
    """
    coded = tuple(path for path in variant.paths if path in CODED)
    found = list(cells(loads.sweep, coded))
    if not variant.of_code:
        found += cells(sorted({*loads.variants, *(loads.sweep if coded else ())}), UNCODED)
    return by_load(variant, found, runs)


def by_load(variant: Variant, every: Sequence[Cell], runs: int) -> list[Batch]:
    """Return batches of cells with equal numbers of channels."""
    groups: dict[int, list[Cell]] = {}
    for cell in every:
        groups.setdefault(cell.channels, []).append(cell)
    return [Batch(variant, tuple(group), runs) for group in groups.values()]


def measure(
    work: Work,
    base: Data,
    every: Sequence[Batch],
    figures: Callable[[Outcome], Mapping[str, float]],
) -> dict[str, dict[Cell, Measurement]]:
    """Run batches; return the figures of their cells by variant."""
    measured: dict[str, dict[Cell, Measurement]] = {}
    for batch in every:
        # The outcomes of all cells at once would take gigabytes.
        seeds = work.seeds(batch.runs)
        jobs = {
            cell: jobs_of(scenario_of(cell, base, batch.variant), seeds) for cell in batch.cells
        }
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
) -> tuple[dict[str, Context], dict[str, Context]]:
    """Return what claims about the plain link and the PEP, and about coding, are decided with.

    Both are by variant, those about coding with one redundancy. The first variant is the
    configuration as described, with as many runs as a variant has.
    """
    base = {cell: each.first(few) for cell, each in described.measured.items()}
    uncoded: dict[str, Measured] = {BASE.name: base}
    coded: dict[str, Measured] = {BASE.name: base}
    for variant in variants:
        own = measured.get(variant.name, {})
        if own and not variant.of_code:
            uncoded[variant.name] = own
        if own and set(variant.paths) & set(CODED):
            coded[variant.name] = {**base, **own} if variant.of_code else own
    if len(coded) > 1:
        moved = {
            replace(c, path=_INSTEAD[c.path]): m for c, m in base.items() if c.path in _INSTEAD
        }
        coded[_TWENTY] = {**base, **moved}

    def chosen(
        every: Mapping[str, Measured], channels: Sequence[int], paths: Sequence[LinkPath]
    ) -> dict[str, Context]:
        found = {
            name: {c: m for c, m in own.items() if c.channels in channels and c.path in paths}
            for name, own in (every.items() if len(every) > 1 else ())
        }
        rate_mbps = described.payload_rate_mbps
        return {name: Context(own, rate_mbps) for name, own in found.items() if own}

    all_coded = chosen(coded, loads.sweep, (*UNCODED, *ONE_CODED))
    return chosen(uncoded, loads.variants, UNCODED), all_coded
