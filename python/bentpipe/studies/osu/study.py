"""The study: buffers from two round trips down to 1/64, sources from 5 to 100, one configuration.

The grid of cells stands here in code and what the source says is read after the last run, so that
no run can depend on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from bentpipe import _core
from bentpipe.studies.base import tables
from bentpipe.studies.base.comparison import Comparison
from bentpipe.studies.base.outcome import StudyOutcome
from bentpipe.studies.base.provenance import COUNTED, Input, read_inputs
from bentpipe.studies.base.work import Work
from bentpipe.studies.osu import plots
from bentpipe.studies.osu.cells import (
    DISCIPLINES,
    KS,
    ROUTES,
    SELECTIVE,
    Cell,
    base_scenario,
    buffer_cells,
    cells,
    jobs_of,
)
from bentpipe.studies.osu.compare import (
    ENOUGH,
    FAIR,
    FAIRNESS,
    NOISE,
    SENSITIVITY,
    SHARES,
    SMALLEST_FAIR_BUFFER_K,
    Published,
    claims,
    compare,
    efficiency_if_halving,
    filled_buffer_rtt,
    read_published,
    sensitivity_row,
)
from bentpipe.studies.osu.measure import WARM_UP_S, Measurement, figures, mean_over
from bentpipe.studies.osu.tables import DIGITS, columns, curves_table, sensitivity_columns
from bentpipe.studies.osu.variants import BASE, MAX_VARIANT_RUNS, VARIANT_KS, VARIANTS, Variant
from bentpipe.sweeps.executor import Executor

if TYPE_CHECKING:
    from rich.console import RenderableType

DEFAULT_RUNS: Final = 10

_HERE: Final = Path(__file__).parent
_CURVES: Final = {
    "efficiency": "Efficiency in percent after the warm-up, over the buffer (2^-k round trips)",
    "fairness": "Fairness (Jain's index) over the whole run",
}


@dataclass(frozen=True, kw_only=True)
class OsuOutcome(StudyOutcome):
    """All cells, the variants, and what the source says."""

    folder: ClassVar[Path] = _HERE

    measured: Mapping[Cell, Measurement]
    published: Published

    @property
    def facts(self) -> str:
        """The line under the report's title."""
        first, runs = (self.configuration[each] for each in ("first_seed", "runs_of_a_cell"))
        return f"{super().facts}; first seed {first}; {runs} runs of each cell"

    def extras(self) -> dict[str, Any]:
        """Return the claims in words."""
        return {
            "published_claims": list(self.published.claims),
            "claims": claims(self.published),
        }

    def headline(self) -> list[str]:
        """Return the outcome of each claim, by provenance."""
        texts = []
        for name, claim in claims(self.published).items():
            known = [row for row in self.comparisons[name].rows if row.error is not None]
            texts.append(f"{claim}.")
            for provenance in COUNTED:
                if rows := [row for row in known if row.provenance is provenance]:
                    texts[-1] += f" {provenance.value.capitalize()}: {tables.errors_text(rows)}"
            if known:
                row = min(known, key=lambda row: row.error or 0.0)
                mean = tables.margin_text(row.simulated, DIGITS[name])
                texts[-1] += f" Lowest: {mean} {row.unit}, {row.name}."
        return texts

    def terminal(self) -> Iterator[RenderableType]:
        """Yield efficiency and fairness over the buffer and, below them, the claims."""
        for figure, title in _CURVES.items():
            yield curves_table(self.measured, figure, title)
            yield ""
        for name, claim in zip(claims(self.published), self.headline(), strict=True):
            yield claim
            for row in self.comparisons[name].outside:
                text = tables.row_text(row, DIGITS[name])
                yield f"  outside: {row.name}: {text}. {row.reason}"

    def context(self) -> dict[str, Any]:
        """Return figures, columns, and the numbers in the report's prose."""
        fair = {
            each: [
                measured
                for cell, measured in self.measured.items()
                if cell.discipline == each and cell.k <= SMALLEST_FAIR_BUFFER_K
            ]
            for each in DISCIPLINES
        }
        return {
            **self.comparisons,
            "runs": self.configuration["runs_of_a_cell"],
            "published": self.published,
            "efficiency_figure": plots.efficiency_figure(self.measured),
            "fairness_figure": plots.fairness_figure(self.measured),
            "losses_figure": plots.losses_figure(self.measured),
            "margin_text": tables.margin_text,
            "mean_over": {
                each: {figure: mean_over(found, figure) for figure in _CURVES}
                for each, found in fair.items()
            },
            "halving": {
                k: [efficiency_if_halving(filled_buffer_rtt(k), share) for share in SHARES]
                for k in KS
            },
            "columns": columns(self.main, self.comparisons[FAIRNESS]),
            "sensitivity_columns": sensitivity_columns(),
            "tolerances": (ENOUGH, NOISE, FAIR),
        }


def run(
    *,
    runs: int | None = None,
    seed: int = 1,
    executor: Executor | None = None,
    progress: Callable[[int, int], None] | None = None,
    grid: Sequence[Cell] | None = None,
    variants: Sequence[Variant] = VARIANTS,
) -> OsuOutcome:
    """Simulate all cells and the variants, then read what the source says and compare.

    ``runs`` (default 10) is the number of runs of each cell, with the seeds ``seed``, ``seed`` + 1,
    ...; a variant has at most 3. ``grid`` are the cells to measure, all of them by default; a
    variant takes those with selective drop and a buffer of 1/2 or 1/8 round trip.
    """
    count = DEFAULT_RUNS if runs is None else runs
    few = min(count, MAX_VARIANT_RUNS)
    base = base_scenario()
    grid = tuple(cells() if grid is None else grid)
    varied = [each for each in grid if each.k in VARIANT_KS and each.discipline == SELECTIVE]
    keys = [(BASE, cell, count) for cell in grid]
    keys += [(variant, cell, few) for variant in variants for cell in varied]
    # Long runs first, so that no core is left with one at the end.
    keys.sort(key=lambda key: (key[0].duration_s, -key[1].route.mss_bytes), reverse=True)
    jobs = {
        (variant.name, cell): jobs_of(cell, base, variant, range(seed, seed + repeats))
        for variant, cell, repeats in keys
    }
    work = Work(executor=executor, progress=progress, total=sum(map(len, jobs.values())))
    measured = {
        (name, cell): Measurement(
            cell,
            buffer_cells(cell, base),
            {outcome.job.seed: figures(outcome) for outcome in outcomes},
        )
        for (name, cell), outcomes in work.run(jobs).items()
    }
    # Every run is over: the source's claims may be read.
    published = read_published()
    by_cell = {cell: measured[BASE.name, cell] for cell in grid}
    return OsuOutcome(
        study="osu",
        title="ATM Forum 97-0616: buffers for SACK TCP over satellite UBR",
        inputs=inputs(base),
        comparisons={
            **compare(by_cell, published),
            SENSITIVITY: Comparison(
                (
                    sensitivity_row("nothing", [by_cell[cell].first(few) for cell in varied]),
                    *(
                        sensitivity_row(each.name, [measured[each.name, cell] for cell in varied])
                        for each in variants
                    ),
                )
            ),
        },
        configuration={
            "bentpipe_version": _core.version(),
            "first_seed": seed,
            "runs_of_a_cell": count,
            "runs_of_a_cell_in_a_variant": few,
            "warm_up_s": WARM_UP_S,
            "starts_within_ms": BASE.start_within_ms,
            "scenario": base,
        },
        interrupted=work.interrupted,
        measured=by_cell,
        published=published,
    )


def inputs(base: Mapping[str, Any]) -> tuple[Input, ...]:
    """Return the inputs with their provenance."""
    delays_ms = [route.rtt_ms // 2 for route in ROUTES.values()]
    sources = sorted({each for route in ROUTES.values() for each in route.sources})
    values = {
        "link.*.delay": f"{', '.join(map(str, delays_ms))} ms",
        "sources": ", ".join(map(str, sources)),
        "traffic.0.start": f"0 to {BASE.start_within_ms} ms",
        "traffic.0.tcp.mss": "9180 B, 1024 B",
        "warm-up": f"{WARM_UP_S} s",
    }
    return read_inputs(_HERE / "inputs.csv", base, values)
