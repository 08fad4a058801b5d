"""The study: channels from none to a full link, two queues, seven curves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Final

from bentpipe.plan import Plan
from bentpipe.results import View
from bentpipe.studies.auckland import cells, checks, claims, measure, runs, views
from bentpipe.studies.base import tables
from bentpipe.studies.base.comparison import (
    Array,
    Comparison,
    Measurement,
    Row,
    Samples,
    Tolerance,
    values_to_json,
)
from bentpipe.studies.base.inputs import Provenance
from bentpipe.studies.base.outcome import StudyOutcome
from bentpipe.studies.base.real_time import RealMeasurement, RealOutcome, RealWork, cells_by_name
from bentpipe.studies.base.work import Work

CELLS: Final = "cells"
CHECKS: Final = "checks"
_NOTHING_PUBLISHED: Final = Tolerance(0.0, "points", "the source gives no numbers")


@dataclass(frozen=True, kw_only=True)
class AucklandOutcome(StudyOutcome):
    """All cells, and the claims with their verdicts."""

    loads: cells.Loads
    measured: measure.Measured
    decided: tuple[claims.Decided, ...]
    # How busy the channels alone keep the plain link with the small queue, by their number.
    busy_of_variants: Mapping[str, Mapping[int, float]]
    mixed: Sequence[dict[str, Any]]
    context_of_claims: claims.Context
    traces: Mapping[cells.Cell, tuple[Array, Array]]

    def channels_by_queue(self) -> dict[str, dict[int, tuple[int, ...]]]:
        """Return the numbers of channels that claims name, by queue."""
        context = self.context_of_claims
        named = {
            "channels_under_load": context.loaded,
            "channels_that_saturate": context.saturated,
            "channels_at_very_low_load": context.very_low,
        }
        return {
            name: {queue_kb: of(queue_kb) for queue_kb in cells.QUEUES_KB}
            for name, of in named.items()
        }

    def extras(self) -> dict[str, Any]:
        """Return the claims with their verdicts, and the loads that they name."""
        return {
            "claims": [decided_claim.to_json() for decided_claim in self.decided],
            "half_uncoded": [values_to_json(row) for row in self.mixed],
            "busy_percent_of_variants": [
                {"variant": name, "channels": n, "busy_percent": busy}
                for name, by_channels in self.busy_of_variants.items()
                for n, busy in by_channels.items()
            ],
            "largest_goodput_mbps": self.context_of_claims.payload_rate_mbps,
            **{
                name: {str(queue_kb): list(numbers) for queue_kb, numbers in by_queue.items()}
                for name, by_queue in self.channels_by_queue().items()
            },
        }

    def missed(self) -> list[str]:
        """Return the published numbers that are not kept, or were not tried."""
        return checks.missed(self.comparisons[CHECKS])

    def headline(self) -> list[str]:
        """Return each claim with its verdict."""
        return [views.claim_text(decided_claim) for decided_claim in self.decided]

    def terminal(self) -> Iterator[View | str]:
        """Yield the checks, goodputs over channels and, below them, the claims."""
        yield tables.view("auckland", "checks", self.comparisons[CHECKS].rows)
        yield ""
        for number in views.PUBLISHED:
            yield views.curves_view(self.measured, number)
            yield ""
        for decided_claim in self.decided:
            yield views.claim_text(decided_claim)
            yield f"  {views.mechanism_text(decided_claim.mechanism)}"
            at = views.verdicts_text(decided_claim.by_channels, "at")
            yield f"  By the number of channels: {at}."
            if decided_claim.variants:
                yield f"  With few runs: {views.verdicts_text(decided_claim.variants, 'with')}."

    def context(self) -> dict[str, Any]:
        """Return figures and tables of the report."""
        by_channels, by_variant = [], []
        for about, is_coding in (("the plain link and the PEP", False), ("coding", True)):
            title = f"The same bounds at each number of channels alone, claims about {about}: "
            title += "where along the load each claim holds."
            tests = claims.TESTS
            chosen = [d for d in self.decided if tests[d.claim.text].is_about_coding is is_coding]
            of_channels = {d.claim: d.by_channels for d in chosen}
            by_channels.append(views.decisions_view(title, "channels", of_channels))
            title = f"Verdict and the effect that decides it, claims about {about}."
            of_variants = {d.claim: d.variants for d in chosen}
            by_variant.append(views.decisions_view(title, "instead", of_variants))
        mixed = [row | {"runs": len(row[runs.CODED_HALF].values)} for row in self.mixed]
        return {
            **views.figures(self.measured, self.traces),
            **self.channels_by_queue(),
            "tolerances": (),
            "checks_table": tables.view("auckland", "checks", self.comparisons[CHECKS].rows),
            "claims_table": views.claims_view(self.decided),
            "mechanisms_table": views.mechanisms_view(self.decided),
            "channels_tables": by_channels,
            "variants_tables": by_variant,
            "mixed_table": tables.view("auckland", "mixed", mixed),
            "cells_table": tables.view("auckland", "cells", self.main.rows),
            "claim_rules": claims,
            "loads_of_variants": ", ".join(map(str, self.loads.variants)),
            "runs": self.configuration["runs_of_a_cell"],
            "few": self.configuration["runs_of_a_cell_in_a_variant"],
        }


def run(
    work: Work,
    *,
    loads: cells.Loads | None = None,
    variants: Sequence[cells.Variant] | None = None,
) -> AucklandOutcome:
    """Simulate all cells, the checks and the variants, then read the claims and decide them.

    A variant has at most 3 runs. ``loads`` are the numbers of channels (None: those of the study).
    """
    loads = cells.LOADS if loads is None else loads
    variants = cells.VARIANTS if variants is None else variants
    few = min(work.runs, cells.MAX_VARIANT_RUNS)
    main = {cell: cells.runs_of(cell, work.runs) for cell in cells.cells(loads.every)}
    varied = [
        (v, {cell: cells.runs_of(cell, few) for cell in cells.cells(loads.variants, v.paths)})
        for v in variants
    ]
    halved_cells = cells.cells((loads.mixed,) if loads.mixed else (), cells.MIXED_PATHS)
    halved = dict.fromkeys(halved_cells, min(work.runs, cells.MAX_MIXED_RUNS))
    traced = cells.cells([number for number in loads.variants if number], cells.UNCODED)
    checked = checks.cells()
    work.total = len(traced) + len(checked) * work.runs + sum(main.values())
    work.total += sum(sum(each.values()) for each in (halved, *(each for _, each in varied)))
    by_cell = measure.measure(work, main)
    by_check = work.measure(checked)
    measured = {v.name: measure.measure(work, of_variant, v) for v, of_variant in varied}
    mixed = measure.measure(work, halved, cells.HALVED)
    # One run of each, whose queue is sampled each second.
    sampled = {cell: replace(cell, variant=cells.SAMPLED.name) for cell in traced}
    traces = work.run(
        {cell: sampled_cell.jobs(work.seeds(1)) for cell, sampled_cell in sampled.items()}
    )
    # Every run is over: the source's claims may be read.
    published = claims.read_claims()
    largest_mbps = runs.payload_rate_mbps(Plan.resolve(next(iter(main)).scenario()).data)
    context = claims.Context(by_cell, largest_mbps)
    uncoded, coded = claims.contexts(context, variants, measured, few)
    return work.outcome(
        AucklandOutcome,
        {
            CELLS: Comparison(tuple(_row(*pair) for pair in by_cell.items())),
            CHECKS: checks.comparison(by_check),
        },
        {
            "runs_of_a_cell": work.runs,
            "runs_of_a_cell_in_a_variant": few,
            "tunnels": {
                path.value: dict(zip(("hub", "terminal"), ends, strict=True))
                for path, ends in cells.TUNNELS.items()
            },
            "scenario": cells.configuration(),
        },
        about_runs=f"first seed {work.seed}; {work.runs} runs of each cell",
        values=_values(tuple(main)),
        loads=loads,
        measured=by_cell,
        decided=claims.decide(published, context, uncoded, coded),
        busy_of_variants={
            name: {n: of_variant.busy_percent(cells.SMALL_KB, n) for n in of_variant.channels()}
            for name, of_variant in uncoded.items()
        },
        mixed=measure.shares(mixed),
        context_of_claims=context,
        traces={cell: runs.trace(outcomes[0]) for cell, outcomes in traces.items() if outcomes},
    )


def run_real_time(work: RealWork) -> RealOutcome:
    """Run cells with real channels, the PEP's daemon and the kernel's TCP, and simulate them.

    Both engines have the same plan and seed; the transfer is in the middle half of a cell.
    """
    table = [replace(cell, seconds=work.seconds) for cell in cells_named(work.chosen)]
    measurements = work.compare(dict(zip(table, table, strict=True)))
    rows = (_real_row(*pair) for pair in product(runs.UNITS, measurements.items()))
    seconds = int(work.seconds) if work.seconds.is_integer() else work.seconds
    return work.outcome(
        RealOutcome,
        {CELLS: Comparison(tuple(rows))},
        {"duration_s": seconds, "scenario": cells.configuration(work.seconds)},
        values=_values(table),
        labels=tables.columns("auckland", "real"),
        folder=work.folder,
    )


def cells_named(chosen: str | None) -> tuple[cells.Cell, ...]:
    """Return cells by `CHANNELS[:QUEUE_KB[:PATH]]`, as `cells_by_name` does."""
    names = {cell: (cell.key,) for cell in cells.cells(cells.LOADS.every)}
    return cells_by_name("auckland", chosen, names)


def _values(of: Sequence[cells.Cell]) -> dict[str, str]:
    """Return the numbers of channels and the queues of cells, as texts for inputs.csv."""
    return {
        "channels": ", ".join(map(str, sorted({cell.channels for cell in of}))),
        "queues": ", ".join(
            f"{queue_kb:,} kB" for queue_kb in sorted({cell.queue_kb for cell in of})
        ),
    }


def _listed_row(cell: cells.Cell, simulated: Samples) -> Row:
    """Return a cell with its total goodput; nothing is published for it."""
    return Row(
        labels=cell.labels,
        title=cell.title,
        unit="Mbit/s",
        published=None,
        simulated=simulated,
        provenance=Provenance.CALIBRATED,
        tolerance=_NOTHING_PUBLISHED,
    )


def _row(cell: cells.Cell, measurement: Measurement) -> Row:
    """Return a cell with all its figures."""
    row = _listed_row(cell, measurement[runs.TOTAL])
    return replace(row, more={name: measurement[name] for name in views.FIGURES})


def _real_row(figure: str, measured_cell: tuple[cells.Cell, RealMeasurement]) -> Row:
    """Return a figure of a cell in both engines."""
    cell, measurement = measured_cell
    row = replace(
        _listed_row(cell, measurement.simulated[figure]),
        labels={"figure": figure, **cell.labels},
        title=f"{figure}, {cell.title}",
        unit=runs.UNITS[figure],
    )
    return measurement.row(row, figure)
