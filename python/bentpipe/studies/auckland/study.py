"""The study: channels from none to beyond saturation, two queues, six curves.

The cells stand here in code and what the source says is read after the last run, so that no run can
depend on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from bentpipe import _core
from bentpipe.plan.plan import Plan
from bentpipe.scenario.channels import DEFAULT_SERVERS, DEFAULT_SIZES
from bentpipe.studies.auckland import mixed, plots, tables
from bentpipe.studies.auckland.cells import (
    LOADS,
    MAX_VARIANT_RUNS,
    QUEUES_KB,
    TUNNELS,
    UNCODED,
    Cell,
    Data,
    Loads,
    Variant,
    base_scenario,
    cells,
    main_cells,
    scenario_of,
    trace_jobs,
)
from bentpipe.studies.auckland.claims import Decided, decide, read_claims
from bentpipe.studies.auckland.effects import (
    LOADED_PERCENT,
    SATURATED_PERCENT,
    VERY_LOW_PERCENT,
    Context,
    Measured,
)
from bentpipe.studies.auckland.measure import (
    TOTAL,
    Measurement,
    Trace,
    figures,
    payload_rate_mbps,
    trace,
)
from bentpipe.studies.auckland.runs import (
    Batch,
    batches,
    by_load,
    coded_contexts,
    contexts,
    measure,
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

    loads: Loads
    measured: Measured
    decided: tuple[Decided, ...]
    mixed: Sequence[mixed.Share]
    context_of_claims: Context
    traces: Mapping[Cell, Trace]

    @property
    def facts(self) -> str:
        """The line under the report's title."""
        first, runs = (self.configuration[each] for each in ("first_seed", "runs_of_a_cell"))
        return f"{super().facts}; first seed {first}; {runs} runs of each cell"

    def extras(self) -> dict[str, Any]:
        """Return the claims with their verdicts, and the loads that they name."""
        context = self.context_of_claims
        return {
            "claims": [each.to_json() for each in self.decided],
            "half_uncoded": [each.to_json() for each in self.mixed],
            "largest_goodput_mbps": context.payload_rate_mbps,
            "channels_under_load": {
                str(queue_kb): list(context.loaded(queue_kb)) for queue_kb in QUEUES_KB
            },
            "channels_that_saturate": {
                str(queue_kb): list(context.saturated(queue_kb)) for queue_kb in QUEUES_KB
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
        for number in (1, 2, 3, 4):
            yield tables.curves_table(self.measured, number)
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
            "idle_figure": plots.idle_figure(self.measured),
            "full_figure": plots.full_figure(self.measured),
            "ping_figure": plots.ping_figure(self.measured),
            "loss_figure": plots.loss_figure(self.measured),
            "download_figure": plots.download_figure(self.measured),
            "trace_figure": plots.trace_figure(self.traces),
            "claims_table": tables.claims_rows(self.decided),
            "by_claims": [
                (
                    heading,
                    tables.channels_rows(chosen),
                    tables.variants_rows(chosen),
                )
                for heading, chosen in self._by_kind()
            ],
            "mixed_table": tables.mixed_rows(self.mixed),
            "columns": tables.columns(),
            "loads": {each: self.context_of_claims.loaded(each) for each in QUEUES_KB},
            "very_low": {each: self.context_of_claims.very_low(each) for each in QUEUES_KB},
            "saturated": {each: self.context_of_claims.saturated(each) for each in QUEUES_KB},
            "LOADED_PERCENT": LOADED_PERCENT,
            "SATURATED_PERCENT": SATURATED_PERCENT,
            "VERY_LOW_PERCENT": VERY_LOW_PERCENT,
            "loads_of_sweep": ", ".join(map(str, self.loads.sweep)),
            "runs": self.configuration["runs_of_a_cell"],
            "few": self.configuration["runs_of_a_cell_in_a_variant"],
        }

    def _by_kind(self) -> list[tuple[str, list[Decided]]]:
        """Return the claims about the plain link and the PEP, and those about coding."""
        kinds = (("the plain link and the PEP", False), ("coding", True))
        return [
            (heading, [each for each in self.decided if each.claim.is_about_coding is about])
            for heading, about in kinds
        ]


def run(
    *,
    runs: int | None = None,
    seed: int = 1,
    executor: Executor | None = None,
    progress: Callable[[int, int], None] | None = None,
    loads: Loads | None = None,
    variants: Sequence[Variant] | None = None,
    change: Callable[[Data], None] | None = None,
) -> AucklandOutcome:
    """Simulate all cells and the variants, then read the claims and decide them.

    ``runs`` (default 20) is the number of runs of each cell, with the seeds ``seed``, ``seed`` + 1,
    ...; a variant has at most 3. ``loads`` are the numbers of channels (None: those of the study).
    ``change`` changes the configuration of all cells.
    """
    loads = LOADS if loads is None else loads
    variants = VARIANTS if variants is None else variants
    count = DEFAULT_RUNS if runs is None else runs
    few = min(count, MAX_VARIANT_RUNS)
    base = base_scenario()
    if change is not None:
        change(base)
    main = [Batch(BASE, cells_of, count) for cells_of in by_load(main_cells(loads))]
    varied = [each for variant in variants for each in batches(variant, loads, few)]
    halved_cells = cells((loads.mixed,) if loads.mixed else (), mixed.PATHS)
    halved = Batch(mixed.HALVED, halved_cells, min(count, mixed.MAX_MIXED_RUNS))
    traced = cells([each for each in loads.variants if each], UNCODED)
    total = len(traced) + sum(each.total for each in (*main, *varied, halved))
    work = Work(executor=executor, progress=progress, total=total)
    by_cell = measure(work, base, main, seed, figures)[BASE.name]
    measured = measure(work, base, varied, seed, figures)
    halves = measure(work, base, [halved], seed, mixed.halves)[mixed.HALVED.name]
    traces = work.run({cell: trace_jobs(cell, base, seed) for cell in traced})
    # Every run is over: the source's claims may be read.
    claims = read_claims()
    largest_mbps = payload_rate_mbps(
        Plan.resolve(scenario_of(next(iter(by_cell)), base, BASE)).data
    )
    context = Context(by_cell, largest_mbps)
    return AucklandOutcome(
        study="auckland",
        title="Auckland satellite simulator: plain, with a PEP, and coded",
        inputs=inputs(base, main_cells(loads)),
        comparisons={CELLS: Comparison(tuple(_row(each) for each in by_cell.values()))},
        configuration={
            "bentpipe_version": _core.version(),
            "first_seed": seed,
            "runs_of_a_cell": count,
            "runs_of_a_cell_in_a_variant": few,
            "tunnels": {path.value: settings for path, settings in TUNNELS.items()},
            "scenario": base,
        },
        interrupted=work.interrupted,
        loads=loads,
        measured=by_cell,
        decided=decide(
            claims,
            context,
            contexts(context, variants, measured, loads, few),
            coded_contexts(context, variants, measured, loads, few),
        ),
        mixed=mixed.shares(halves),
        context_of_claims=context,
        traces={cell: trace(outcomes[0]) for cell, outcomes in traces.items() if outcomes},
    )


def inputs(base: Data, of: Sequence[Cell] | None = None) -> tuple[Input, ...]:
    """Return the inputs of cells with their provenance; by default those of the study."""
    table = main_cells() if of is None else of
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
        "gateways": "none, a PEP at the hub that accepts early, or a tunnel",
        **_tunnel_inputs(),
    }
    return read_inputs(_HERE / "inputs.csv", base, values)


def _tunnel_inputs() -> dict[str, str]:
    """Return the settings of the tunnels, each with its values over the curves."""
    found: dict[str, dict[str, None]] = {}
    for settings in TUNNELS.values():
        for name, value in settings.items():
            found.setdefault(f"tunnel.{name}", {})[str(value)] = None
    return {name: ", ".join(values) for name, values in found.items()}


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
