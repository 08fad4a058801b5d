"""The study: channels from none to beyond saturation, two queues, six curves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Unpack

from bentpipe.plan.plan import Plan
from bentpipe.results.views import View
from bentpipe.scenario.traffic import DEFAULT_SERVERS, DEFAULT_SIZES
from bentpipe.studies import RunOptions
from bentpipe.studies.auckland import cells, claims, measure, views
from bentpipe.studies.base import tables
from bentpipe.studies.base.comparison import (
    Array,
    Comparison,
    Row,
    Samples,
    Tolerance,
    values_to_json,
)
from bentpipe.studies.base.inputs import Input, Provenance, read_inputs, read_scenario
from bentpipe.studies.base.outcome import StudyOutcome
from bentpipe.studies.base.work import Work, jobs_of
from bentpipe.units import value_of

CELLS: Final = "cells"
_NOTHING_PUBLISHED: Final = Tolerance(0.0, "points", "the source gives no numbers")


@dataclass(frozen=True, kw_only=True)
class AucklandOutcome(StudyOutcome):
    """All cells, and the claims with their verdicts."""

    loads: cells.Loads
    measured: measure.Measured
    decided: tuple[claims.Decided, ...]
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
        return {name: {each: of(each) for each in cells.QUEUES_KB} for name, of in named.items()}

    def extras(self) -> dict[str, Any]:
        """Return the claims with their verdicts, and the loads that they name."""
        return {
            "claims": [each.to_json() for each in self.decided],
            "half_uncoded": [values_to_json(each) for each in self.mixed],
            "largest_goodput_mbps": self.context_of_claims.payload_rate_mbps,
            **{
                name: {str(queue_kb): list(numbers) for queue_kb, numbers in found.items()}
                for name, found in self.channels_by_queue().items()
            },
        }

    def headline(self) -> list[str]:
        """Return each claim with its verdict."""
        return [views.claim_text(each) for each in self.decided]

    def terminal(self) -> Iterator[View | str]:
        """Yield goodputs over channels and, below them, the claims."""
        for number in views.PUBLISHED:
            yield views.curves_view(self.measured, number)
            yield ""
        for each in self.decided:
            yield views.claim_text(each)
            at = views.verdicts_text(each.by_channels, "at")
            yield f"  By the number of channels: {at}."
            if each.variants:
                yield f"  With few runs: {views.verdicts_text(each.variants, 'with')}."

    def context(self) -> dict[str, Any]:
        """Return figures and tables of the report."""
        by_channels, by_variant = [], []
        for about, is_coding in (("the plain link and the PEP", False), ("coding", True)):
            title = f"The same bounds at each number of channels alone, claims about {about}: "
            title += "where along the load each claim holds."
            tests = claims.TESTS
            chosen = [d for d in self.decided if tests[d.claim.text].is_about_coding is is_coding]
            found: list[Mapping[Any, claims.Decision]] = [each.by_channels for each in chosen]
            by_channels.append(views.decisions_view(title, "channels", chosen, found))
            title = f"Verdict and the effect that decides it, claims about {about}."
            found = [each.variants for each in chosen]
            by_variant.append(views.decisions_view(title, "instead", chosen, found))
        mixed = [each | {"runs": len(each[measure.CODED_HALF].values)} for each in self.mixed]
        return {
            **views.figures(self.measured, self.traces),
            **self.channels_by_queue(),
            "tolerances": (),
            "claims_table": views.claims_view(self.decided),
            "channels_tables": by_channels,
            "variants_tables": by_variant,
            "mixed_table": tables.view("auckland", "mixed", mixed),
            "cells_table": tables.view("auckland", "cells", self.main.rows),
            "claim_rules": claims,
            "loads_of_sweep": ", ".join(map(str, self.loads.sweep)),
            "runs": self.configuration["runs_of_a_cell"],
            "few": self.configuration["runs_of_a_cell_in_a_variant"],
        }


def run(
    *,
    loads: cells.Loads | None = None,
    variants: Sequence[cells.Variant] | None = None,
    change: Callable[[cells.Data], None] | None = None,
    **options: Unpack[RunOptions],
) -> AucklandOutcome:
    """Simulate all cells and the variants, then read the claims and decide them.

    A variant has at most 3 runs. ``loads`` are the numbers of channels (None: those of the study).
    ``change`` changes the configuration of all cells.
    """
    work = Work("auckland", **options)
    loads = cells.LOADS if loads is None else loads
    variants = cells.VARIANTS if variants is None else variants
    few = min(work.runs, cells.MAX_VARIANT_RUNS)
    base = read_scenario("auckland")
    if change is not None:
        change(base)
    main = cells.main_cells(loads)
    varied = [(variant, measure.variant_cells(variant, loads)) for variant in variants]
    halved = cells.cells((loads.mixed,) if loads.mixed else (), measure.MIXED_PATHS)
    halved_runs = min(work.runs, measure.MAX_MIXED_RUNS)
    traced = cells.cells([each for each in loads.variants if each], cells.UNCODED)
    work.total = len(traced) + len(main) * work.runs + len(halved) * halved_runs
    work.total += sum(len(own) for _, own in varied) * few
    by_cell = measure.measure(work, base, main, work.runs)
    measured = {v.name: measure.measure(work, base, own, few, v) for v, own in varied}
    mixed = measure.measure(work, base, halved, halved_runs, measure.HALVED, measure.halves)
    # One run of each, whose queue is sampled each second.
    sampled = {**base, "sample_interval": "1 s"}
    traces = work.run(
        {
            cell: jobs_of(cells.scenario_of(cell, sampled, cells.BASE), work.seeds(1))
            for cell in traced
        }
    )
    # Every run is over: the source's claims may be read.
    published = claims.read_claims()
    largest_mbps = measure.payload_rate_mbps(
        Plan.resolve(cells.scenario_of(next(iter(by_cell)), base, cells.BASE)).data
    )
    context = claims.Context(by_cell, largest_mbps)
    return AucklandOutcome(
        study="auckland",
        title="Auckland satellite simulator: plain, with a PEP, and coded",
        inputs=inputs(base, cells.main_cells(loads)),
        comparisons={CELLS: Comparison(tuple(_row(each) for each in by_cell.values()))},
        configuration=work.configuration(
            runs_of_a_cell=work.runs,
            runs_of_a_cell_in_a_variant=few,
            tunnels={path.value: settings for path, settings in cells.TUNNELS.items()},
            scenario=base,
        ),
        interrupted=work.interrupted,
        about_runs=f"first seed {work.seed}; {work.runs} runs of each cell",
        loads=loads,
        measured=by_cell,
        decided=claims.decide(
            published, context, *claims.contexts(context, variants, measured, loads, few)
        ),
        mixed=measure.shares(mixed),
        context_of_claims=context,
        traces={cell: measure.trace(outcomes[0]) for cell, outcomes in traces.items() if outcomes},
    )


def inputs(base: cells.Data, of: Sequence[cells.Cell] | None = None) -> tuple[Input, ...]:
    """Return the inputs of cells with their provenance; by default those of the study."""
    table = cells.main_cells() if of is None else of
    channels = sorted({each.channels for each in table})
    queues_kb = sorted({each.queue_kb for each in table})
    delays_ms = [2 * value_of(server.delay) / 1e6 for server in DEFAULT_SERVERS]
    weights = sum(row.weight for row in DEFAULT_SIZES)
    mean_bytes = sum(row.weight * value_of(row.size) for row in DEFAULT_SIZES) / weights
    values = {
        "traffic.0.channels": ", ".join(map(str, channels)),
        "servers": f"{len(DEFAULT_SERVERS)}, {min(delays_ms):g} to {max(delays_ms):g} ms of round "
        "trip behind the hub",
        "sizes": f"{len(DEFAULT_SIZES)} from {DEFAULT_SIZES[0].size} to {DEFAULT_SIZES[-1].size}, "
        f"mean {mean_bytes / 1e3:.1f} kB",
        "link.*.queue.limit": ", ".join(f"{each:,} kB" for each in queues_kb),
        "gateways": "none, a PEP at the hub that accepts early, or a tunnel",
        **{
            f"tunnel.{name}": ", ".join(
                dict.fromkeys(str(each[name]) for each in cells.TUNNELS.values())
            )
            for name in cells.TUNNELS[cells.CODED[0]]
        },
    }
    return read_inputs("auckland", base, values)


def listed_row(cell: cells.Cell, simulated: Samples) -> Row:
    """Return a cell with its total goodput; nothing is published for it."""
    return Row(
        labels=cell.labels,
        title=cell.title,
        unit="Mbit/s",
        published=None,
        simulated=simulated,
        provenance=Provenance.ASSUMED,
        tolerance=_NOTHING_PUBLISHED,
    )


def _row(each: measure.Measurement) -> Row:
    """Return a cell with all its figures."""
    row = listed_row(each.cell, each[measure.TOTAL])
    return replace(row, more={name: each[name] for name in views.FIGURES})
