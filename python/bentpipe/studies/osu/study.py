"""The study: buffers from two round trips down to 1/64, sources from 5 to 100, one configuration.

The grid of cells stands here in code and what the source says is read after the last run, so that
no run can depend on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from bentpipe.results.views import Column, View
from bentpipe.studies.base import tables
from bentpipe.studies.base.comparison import Comparison
from bentpipe.studies.base.files import read_scenario
from bentpipe.studies.base.outcome import StudyOutcome
from bentpipe.studies.base.provenance import COUNTED, Input, read_inputs
from bentpipe.studies.base.tables import margin_text
from bentpipe.studies.base.work import Work
from bentpipe.studies.osu import compare, plots
from bentpipe.studies.osu.cells import (
    BASE,
    DISCIPLINES,
    KS,
    MAX_VARIANT_RUNS,
    ROUTES,
    SELECTIVE,
    VARIANT_KS,
    VARIANTS,
    Cell,
    Variant,
    buffer_cells,
    cells,
    jobs_of,
)
from bentpipe.studies.osu.compare import (
    EFFICIENCY,
    FAIRNESS,
    RISE,
    SENSITIVITY,
    Published,
    read_published,
)
from bentpipe.studies.osu.measure import WARM_UP_S, Measurement, figures, mean_over

if TYPE_CHECKING:
    from typing import Unpack

    from bentpipe.studies import RunOptions

DIGITS: Final = {EFFICIENCY: 2, RISE: 2, FAIRNESS: 3}
_view: Final = partial(tables.view, "osu")
_TAIL: Final = ", drop-tail"
_CURVES: Final = {
    EFFICIENCY: "Efficiency in percent after the warm-up, over the buffer (2^-k round trips)",
    FAIRNESS: "Fairness (Jain's index) over the whole run",
}


@dataclass(frozen=True, kw_only=True)
class OsuOutcome(StudyOutcome):
    """All cells, the variants, and what the source says."""

    measured: Mapping[Cell, Measurement]
    published: Published

    def extras(self) -> dict[str, Any]:
        """Return the claims in words."""
        claims = compare.claims(self.published)
        return {"published_claims": list(self.published.claims), "claims": claims}

    def headline(self) -> list[str]:
        """Return the outcome of each claim, by provenance."""
        texts = []
        for name, claim in compare.claims(self.published).items():
            known = [row for row in self.comparisons[name].rows if row.error is not None]
            texts.append(f"{claim}.")
            for provenance in COUNTED:
                if rows := [row for row in known if row.provenance is provenance]:
                    texts[-1] += f" {provenance.value.capitalize()}: {tables.errors_text(rows)}"
            if known:
                row = min(known, key=lambda row: row.error or 0.0)
                mean = margin_text(row.simulated, DIGITS[name])
                texts[-1] += f" Lowest: {mean} {row.unit}, {row.name}."
        return texts

    def terminal(self) -> Iterator[View | str]:
        """Yield efficiency and fairness over the buffer and, below them, the claims."""
        for figure, title in _CURVES.items():
            yield curves_view(self.measured, figure, title)
            yield ""
        for name, claim in zip(compare.claims(self.published), self.headline(), strict=True):
            yield claim
            for row in self.comparisons[name].outside:
                text = tables.row_text(row, DIGITS[name])
                yield f"  outside: {row.name}: {text}. {row.reason}"

    def context(self) -> dict[str, Any]:
        """Return figures, tables, and the numbers in the report's prose."""
        fair = {
            discipline: [
                measured
                for cell, measured in self.measured.items()
                if cell.discipline == discipline and cell.k <= compare.SMALLEST_FAIR_BUFFER_K
            ]
            for discipline in DISCIPLINES
        }
        return {
            **self.comparisons,
            "runs": self.configuration["runs_of_a_cell"],
            "published": self.published,
            "efficiency_figure": plots.efficiency_figure(self.measured),
            "fairness_figure": plots.fairness_figure(self.measured),
            "losses_figure": plots.losses_figure(self.measured),
            "margin_text": margin_text,
            "mean_over": {
                each: {figure: mean_over(found, figure) for figure in _CURVES}
                for each, found in fair.items()
            },
            "halving_table": self.halving_view(),
            "cells_table": self.cells_view(),
            "sensitivity_table": _view("sensitivity", self.comparisons[SENSITIVITY].rows),
            "tolerances": (compare.ENOUGH, compare.NOISE, compare.FAIR),
        }

    def halving_view(self) -> View:
        """Return the efficiency of 15 sources on the single hop over LEO, and on paper."""
        found = self.main.where(scenario="LEO single hop", sources=15, discipline=SELECTIVE).rows
        rows = [[row["k"], *compare.halving(row["k"]), row.simulated] for row in found]
        return _view("halving", rows)

    def cells_view(self) -> View:
        """Return every cell with selective drop, and drop-tail beside it."""
        tails = self.main.where(discipline="drop_tail").rows
        beside = {
            "fair": self.comparisons[FAIRNESS],
            "tail": Comparison(tuple(replace(t, title=t.title.removesuffix(_TAIL)) for t in tails)),
        }
        rows = self.main.where(discipline=SELECTIVE).beside(**beside)
        return _view("cells", rows)


def curves_view(measured: Mapping[Cell, Measurement], figure: str, title: str) -> View:
    """Return a figure over the buffer, a row for each curve."""
    columns = [
        *(Column(name, name, text=str) for name in ("scenario", "sources", "discipline")),
        *(
            Column(f"{figure}_{k}", f"k = {k}", text=partial(margin_text, digits=DIGITS[figure]))
            for k in KS
        ),
    ]
    rows: list[list[Any]] = []
    for discipline in DISCIPLINES:
        for scenario, route in ROUTES.items():
            for sources in route.sources:
                curve = [measured.get(Cell(scenario, sources, k, discipline)) for k in KS]
                if any(curve):
                    values = (None if each is None else each[figure] for each in curve)
                    rows.append([scenario, sources, discipline, *values])
    return View(title, columns, rows, key=3)


def run(
    *,
    grid: Sequence[Cell] | None = None,
    variants: Sequence[Variant] = VARIANTS,
    **options: Unpack[RunOptions],
) -> OsuOutcome:
    """Simulate all cells and the variants, then read what the source says and compare.

    A variant has at most 3 runs of a cell. ``grid`` are the cells to measure, all of them by
    default; a variant takes those with selective drop and a buffer of 1/2 or 1/8 round trip.
    """
    work = Work("osu", **options)
    few = min(work.runs, MAX_VARIANT_RUNS)
    base = read_scenario("osu")
    grid = tuple(cells() if grid is None else grid)
    varied = [each for each in grid if each.k in VARIANT_KS and each.discipline == SELECTIVE]
    keys = [(BASE, cell, work.runs) for cell in grid]
    keys += [(variant, cell, few) for variant in variants for cell in varied]
    # Long runs first, so that no core is left with one at the end.
    keys.sort(key=lambda key: (key[0].duration_s, -key[1].route.mss_bytes), reverse=True)
    found = work.run(
        {
            (variant.name, cell): jobs_of(cell, base, variant, work.seeds(repeats))
            for variant, cell, repeats in keys
        }
    )
    measured = {
        (name, cell): Measurement(
            cell, {each.job.seed: figures(each) for each in outcomes}, buffer_cells(cell, base)
        )
        for (name, cell), outcomes in found.items()
    }
    # Every run is over: the source's claims may be read.
    published = read_published()
    by_cell = {cell: measured[BASE.name, cell] for cell in grid}
    sensitivity = [("nothing", [by_cell[cell].first(few) for cell in varied])]
    sensitivity += [(v.name, [measured[v.name, cell] for cell in varied]) for v in variants]
    rows = tuple(compare.sensitivity_row(*each) for each in sensitivity)
    return OsuOutcome(
        study="osu",
        title="ATM Forum 97-0616: buffers for SACK TCP over satellite UBR",
        inputs=inputs(base),
        comparisons={**compare.compare(by_cell, published), SENSITIVITY: Comparison(rows)},
        configuration=work.configuration(
            runs_of_a_cell=work.runs,
            runs_of_a_cell_in_a_variant=few,
            warm_up_s=WARM_UP_S,
            starts_within_ms=BASE.start_within_ms,
            scenario=base,
        ),
        interrupted=work.interrupted,
        about_runs=f"first seed {work.seed}; {work.runs} runs of each cell",
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
    return read_inputs("osu", base, values)
