"""The study: channels from none to beyond saturation, two queues, without and with a PEP.

The cells stand here in code and what the source says is read after the last run, so that no run can
depend on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from bentpipe import _core
from bentpipe.plan.resolver import resolve
from bentpipe.scenario.channels import DEFAULT_SERVERS, DEFAULT_SIZES
from bentpipe.studies.auckland import plots, tables
from bentpipe.studies.auckland.cells import (
    CHANNELS,
    MAX_VARIANT_RUNS,
    QUEUES_KB,
    VARIANT_CHANNELS,
    Cell,
    Data,
    Variant,
    base_scenario,
    cells,
    jobs_of,
    scenario_of,
    trace_jobs,
)
from bentpipe.studies.auckland.claims import (
    LOADED_PERCENT,
    VERY_LOW_PERCENT,
    Claim,
    Context,
    Decided,
    Measured,
    decide,
    read_claims,
)
from bentpipe.studies.auckland.measure import (
    TOTAL,
    Measurement,
    Trace,
    figures,
    payload_rate_mbps,
    trace,
)
from bentpipe.studies.auckland.variants import BASE, VARIANTS
from bentpipe.studies.base.comparison import Comparison, Row, Tolerance
from bentpipe.studies.base.outcome import StudyOutcome
from bentpipe.studies.base.provenance import Input, Provenance, read_inputs
from bentpipe.studies.base.samples import Samples
from bentpipe.studies.base.work import Work
from bentpipe.sweeps.executor import Executor
from bentpipe.units import value_of

if TYPE_CHECKING:
    from rich.console import RenderableType

DEFAULT_RUNS: Final = 20
CELLS: Final = "cells"
_HERE: Final = Path(__file__).parent
_NOTHING_PUBLISHED: Final = Tolerance(0.0, "points", "the source gives no numbers")


@dataclass(frozen=True, kw_only=True)
class AucklandOutcome(StudyOutcome):
    """All cells, and the claims with their verdicts."""

    folder: ClassVar[Path] = _HERE

    measured: Measured
    decided: tuple[Decided, ...]
    about_coding: tuple[Claim, ...]
    context_of_claims: Context
    traces: Mapping[Cell, Trace]

    @property
    def facts(self) -> str:
        """The line under the report's title."""
        first, runs = (self.configuration[each] for each in ("first_seed", "runs_of_a_cell"))
        return f"{super().facts}; first seed {first}; {runs} runs of each cell"

    def extras(self) -> dict[str, Any]:
        """Return the claims with their verdicts, and those that the study does not have."""
        context = self.context_of_claims
        return {
            "claims": [each.to_json() for each in self.decided],
            "claims_about_coding": [each.to_json() for each in self.about_coding],
            "largest_goodput_mbps": context.payload_rate_mbps,
            "channels_under_load": {
                str(queue_kb): list(context.loaded(queue_kb)) for queue_kb in QUEUES_KB
            },
            "channels_at_very_low_load": {
                str(queue_kb): list(context.very_low(queue_kb)) for queue_kb in QUEUES_KB
            },
        }

    def headline(self) -> list[str]:
        """Return each claim with its verdict."""
        return [tables.claim_text(each) for each in self.decided]

    def terminal(self) -> Iterator[RenderableType]:
        """Yield goodputs over channels and, below them, the claims."""
        for queue_kb in QUEUES_KB:
            yield tables.curves_table(self.measured, queue_kb)
            yield ""
        for each in self.decided:
            yield tables.claim_text(each)
            yield f"  {tables.channels_text(each)}"
            if each.variants:
                yield f"  {tables.variants_text(each)}"

    def context(self) -> dict[str, Any]:
        """Return figures and tables of the report."""
        return {
            "figures": plots.published_figures(self.measured),
            "queue_figure": plots.queue_figure(self.measured),
            "ping_figure": plots.ping_figure(self.measured),
            "download_figure": plots.download_figure(self.measured),
            "trace_figure": plots.trace_figure(self.traces),
            "claims_table": tables.claims_rows(self.decided),
            "channels_table": tables.channels_rows(self.decided),
            "variants_table": tables.variants_rows(self.decided),
            "columns": tables.columns(),
            "loads": {each: self.context_of_claims.loaded(each) for each in QUEUES_KB},
            "very_low": {each: self.context_of_claims.very_low(each) for each in QUEUES_KB},
            "LOADED_PERCENT": LOADED_PERCENT,
            "VERY_LOW_PERCENT": VERY_LOW_PERCENT,
            "runs": self.configuration["runs_of_a_cell"],
            "few": self.configuration["runs_of_a_cell_in_a_variant"],
        }


def run(
    *,
    runs: int | None = None,
    seed: int = 1,
    executor: Executor | None = None,
    progress: Callable[[int, int], None] | None = None,
    channels: Sequence[int] | None = None,
    variants: Sequence[Variant] | None = None,
    change: Callable[[Data], None] | None = None,
) -> AucklandOutcome:
    """Simulate all cells and the variants, then read the claims and decide them.

    ``runs`` (default 20) is the number of runs of each cell, with the seeds ``seed``, ``seed`` + 1,
    ...; a variant has at most 3. ``channels`` are the numbers of channels (None: those of the
    study); a variant has those of them that are in `VARIANT_CHANNELS`. ``change`` changes the
    configuration of all cells.
    """
    channels = CHANNELS if channels is None else channels
    variants = VARIANTS if variants is None else variants
    count = DEFAULT_RUNS if runs is None else runs
    few = min(count, MAX_VARIANT_RUNS)
    base = base_scenario()
    if change is not None:
        change(base)
    varied = tuple(each for each in channels if each in VARIANT_CHANNELS)
    keys = [(BASE, number, count) for number in channels]
    keys += [(variant, number, few) for variant in variants for number in varied]
    traced = [each for each in cells(varied) if each.channels > 0]
    total = len(traced) + sum(repeats * len(cells((0,))) for _, _, repeats in keys)
    work = Work(executor=executor, progress=progress, total=total)
    measured = _measured(work, base, keys, seed)
    traces = work.run({cell: trace_jobs(cell, base, seed) for cell in traced})
    # Every run is over: the source's claims may be read.
    claims = read_claims()
    plan = resolve(scenario_of(cells(channels)[0], base, BASE))
    largest_mbps = payload_rate_mbps(plan)
    by_cell = measured.pop(BASE.name)
    described = {cell: by_cell[cell].first(few) for cell in cells(varied)}
    contexts = {
        name: Context(found, largest_mbps)
        for name, found in {BASE.name: described, **measured}.items()
        if found and measured
    }
    context = Context(by_cell, largest_mbps)
    return AucklandOutcome(
        study="auckland",
        title="Auckland satellite simulator: baselines without and with a PEP",
        inputs=inputs(base),
        comparisons={CELLS: Comparison(tuple(_row(each) for each in by_cell.values()))},
        configuration={
            "bentpipe_version": _core.version(),
            "first_seed": seed,
            "runs_of_a_cell": count,
            "runs_of_a_cell_in_a_variant": few,
            "scenario": base,
        },
        interrupted=work.interrupted,
        measured=by_cell,
        decided=decide(claims, context, contexts),
        about_coding=tuple(each for each in claims if each.is_about_coding),
        context_of_claims=context,
        traces={cell: trace(outcomes[0]) for cell, outcomes in traces.items() if outcomes},
    )


def _measured(
    work: Work, base: Data, keys: Sequence[tuple[Variant, int, int]], seed: int
) -> dict[str, dict[Cell, Measurement]]:
    """Run variants at numbers of channels, each with a number of runs; return cells by variant."""
    measured: dict[str, dict[Cell, Measurement]] = {}
    for variant, number, repeats in keys:
        # The outcomes of all cells at once would take gigabytes.
        seeds = range(seed, seed + repeats)
        jobs = {cell: jobs_of(cell, base, variant, seeds) for cell in cells((number,))}
        of_variant = measured.setdefault(variant.name, {})
        for cell, outcomes in work.run(jobs).items():
            runs_of_cell = {outcome.job.seed: figures(outcome) for outcome in outcomes}
            of_variant[cell] = Measurement(cell, runs_of_cell)
    return measured


def inputs(base: Data, of: Sequence[Cell] | None = None) -> tuple[Input, ...]:
    """Return the inputs of cells with their provenance; by default those of the study."""
    table = cells() if of is None else of
    channels, queues_kb = (
        sorted({each.channels for each in table}),
        sorted({each.queue_kb for each in table}),
    )
    values = {
        "traffic.0.channels": ", ".join(map(str, channels)),
        "servers": f"{len(DEFAULT_SERVERS)}, {_delays_text()} of round trip behind the hub",
        "sizes": f"{len(DEFAULT_SIZES)} from {DEFAULT_SIZES[0].size} to {DEFAULT_SIZES[-1].size}, "
        f"mean {_mean_bytes() / 1e3:.1f} kB",
        "link.*.queue.limit": ", ".join(f"{each:,} kB" for each in queues_kb),
        "gateways": "none, or a PEP at the hub that accepts early",
    }
    return read_inputs(_HERE / "inputs.csv", base, values)


def _delays_text() -> str:
    delays_ms = [2 * value_of(server.delay) / 1e6 for server in DEFAULT_SERVERS]
    return f"{min(delays_ms):g} to {max(delays_ms):g} ms"


def _mean_bytes() -> float:
    weights = sum(row.weight for row in DEFAULT_SIZES)
    return sum(row.weight * value_of(row.size) for row in DEFAULT_SIZES) / weights


def listed_row(cell: Cell, simulated: Samples) -> Row:
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


def _row(each: Measurement) -> Row:
    """Return a cell with all its figures."""
    row = listed_row(each.cell, each[TOTAL])
    return replace(row, more={name: each[name] for name in tables.FIGURES})
