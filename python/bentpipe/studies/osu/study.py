"""The study: buffers from two round trips down to 1/64, sources from 5 to 100, one configuration.

The grid of cells stands here in code and what the source says is read after the last run, so that
no run can depend on it.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from bentpipe import _core
from bentpipe.plan.resolver import from_dict, load, resolve
from bentpipe.results.metrics import jain
from bentpipe.scenario.framings import frame_bits
from bentpipe.scenario.schema import Scenario
from bentpipe.simulation.many import Job, Outcome, run_many
from bentpipe.studies._common import read_rows
from bentpipe.studies.osu._variants import BASE, VARIANTS, Variant
from bentpipe.units import parse_rate

if TYPE_CHECKING:
    from rich.console import RenderableType

    from bentpipe.studies.osu._checks import Check

DEFAULT_RUNS: Final = 10
# A variant shows a direction; three runs a cell do for that.
MAX_VARIANT_RUNS: Final = 3
# Slow start from one segment and what it loses are over by then, in all but the smallest buffers.
WARM_UP_S: Final = 20
KS: Final = (-1, 0, 1, 2, 3, 4, 5, 6)
VARIANT_KS: Final = (1, 3)
DISCIPLINES: Final = ("selective_drop", "drop_tail")

_HERE: Final = Path(__file__).parent
# On each side of the satellite, one way.
_ACCESS_MS: Final = 5
_NS_PER_S: Final = 10**9
_NS_PER_MS: Final = 10**6
_CELL_BITS: Final = 8 * 53
_TCP_IP_HEADER_BYTES: Final = 40


@dataclass(frozen=True)
class Route:
    """One scenario of the source: the satellite's delay, the segments, the numbers of sources."""

    one_way_ms: int
    mss_bytes: int
    sources: tuple[int, ...]

    @property
    def rtt_ms(self) -> int:
        """The round trip without queues: satellite and access links, there and back."""
        return 2 * (self.one_way_ms + 2 * _ACCESS_MS)


# The source lists 50 ms for the multiple hop and draws 100 ms: both are here.
ROUTES: Final[Mapping[str, Route]] = {
    "LEO single hop": Route(5, 1024, (15, 50, 100)),
    "LEO multiple hop, 50 ms": Route(50, 9180, (5, 15, 50)),
    "LEO multiple hop, 100 ms": Route(100, 9180, (5, 15, 50)),
    "GEO single hop": Route(275, 9180, (5, 15, 50)),
}


@dataclass(frozen=True)
class Cell:
    """One cell: a scenario, its sources, and a buffer of 2^-k round trips under a discipline."""

    scenario: str
    sources: int
    k: int
    discipline: str = "selective_drop"

    @property
    def route(self) -> Route:
        """Where the cell's traffic goes."""
        return ROUTES[self.scenario]


@dataclass(frozen=True)
class Figures:
    """What one run gave; efficiencies in percent, fairness as Jain's index."""

    efficiency: float
    efficiency_whole_run: float
    fairness: float
    fairness_after_warm_up: float
    recoveries_per_source: float
    timeouts_per_source: float


@dataclass(frozen=True)
class Measurement:
    """What the runs of one cell gave."""

    cell: Cell
    buffer_cells: int
    runs: tuple[Figures, ...]

    def mean(self, figure: str) -> float | None:
        """Return the mean over the runs; None without a run."""
        return float(np.mean(self._values(figure))) if self.runs else None

    def standard_error(self, figure: str) -> float | None:
        """Return the standard deviation of the mean; None with fewer than two runs."""
        if len(self.runs) <= 1:
            return None
        return float(np.std(self._values(figure), ddof=1) / np.sqrt(len(self.runs)))

    def first(self, runs: int) -> Measurement:
        """Return what the first runs alone gave."""
        return replace(self, runs=self.runs[:runs])

    def _values(self, figure: str) -> list[float]:
        return [getattr(run, figure) for run in self.runs]

    def to_json(self) -> dict[str, Any]:
        """Return the cell as plain data: efficiencies in percent, fairness from 1/n to 1."""
        cell, route = self.cell, self.cell.route
        data = {
            "scenario": cell.scenario,
            "sources": cell.sources,
            "k": cell.k,
            "discipline": cell.discipline,
            "one_way_ms": route.one_way_ms,
            "rtt_ms": route.rtt_ms,
            "mss_bytes": route.mss_bytes,
            "buffer_cells": self.buffer_cells,
        }
        for field in fields(Figures):
            name = field.name.replace("efficiency", "measured")
            data[name] = self.mean(field.name)
            data[f"{name}_standard_error"] = self.standard_error(field.name)
        return {**data, "runs": len(self.runs)}


@dataclass(frozen=True)
class Published:
    """What the source says in text."""

    claims: tuple[str, ...]
    min_efficiency: float
    from_buffer_rtt: float


@dataclass(frozen=True)
class Sensitivity:
    """The cells of a variant beside the same runs of the configuration as described."""

    variant: Variant
    measurements: tuple[Measurement, ...]
    described: tuple[Measurement, ...]


@dataclass(frozen=True, kw_only=True)
class OsuOutcome:
    """All cells, the variants, and what the source says."""

    measurements: tuple[Measurement, ...]
    sensitivities: tuple[Sensitivity, ...]
    published: Published
    configuration: dict[str, Any]
    interrupted: bool

    @property
    def checks(self) -> tuple[Check, ...]:
        """What the source claims, held against the cells."""
        from bentpipe.studies.osu._checks import checks

        return checks(self.measurements, self.published)

    def curve(self, scenario: str, sources: int, discipline: str) -> tuple[Measurement, ...]:
        """Return the cells of one curve over the buffer, the largest buffer first."""
        found = (
            each
            for each in self.measurements
            if (each.cell.scenario, each.cell.sources) == (scenario, sources)
            and each.cell.discipline == discipline
        )
        return tuple(sorted(found, key=lambda each: each.cell.k))

    def to_json(self) -> dict[str, Any]:
        """Return the figures as plain data."""
        from bentpipe.studies.osu._checks import sensitivity_json

        checks = self.checks
        reasons: dict[Cell, list[str]] = {}
        for check in checks:
            for miss in check.misses:
                reasons.setdefault(miss.cell, []).append(f"{check.name}: {miss.reason}")
        return {
            "study": "osu",
            "interrupted": self.interrupted,
            "cells": [
                {**each.to_json(), "miss": reasons.get(each.cell)} for each in self.measurements
            ],
            "summary": {
                "published_claims": list(self.published.claims),
                "checks": [check.to_json() for check in checks],
                "sensitivities": [sensitivity_json(each) for each in self.sensitivities],
            },
            "configuration": self.configuration,
        }

    def table(self) -> RenderableType:
        """Return the figures and the checks for a terminal."""
        from bentpipe.studies.osu._tables import terminal_table

        return terminal_table(self)

    def write(self, out_dir: Path) -> Path:
        """Write report.html, cells.csv, result.json and manifest.json; return the folder.

        Raises:
            UsageError: the folder has other things in it, or cannot be written.
        """
        from bentpipe.studies.osu._tables import write_folder

        return write_folder(self, out_dir)


def cells() -> tuple[Cell, ...]:
    """Return all cells, in the order of the source."""
    return tuple(
        Cell(scenario, sources, k, discipline)
        for scenario, route in ROUTES.items()
        for sources in route.sources
        for k in KS
        for discipline in DISCIPLINES
    )


def scenario_of(cell: Cell, seed: int, variant: Variant = BASE) -> Scenario:
    """Return the complete scenario of one run, as `run` simulates it."""
    return _scenario_of(cell, _base(), seed, variant)


def run(
    *,
    runs: int | None = None,
    seed: int = 1,
    threads: int | None = None,
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
    base = _base()
    measured = tuple(cells() if grid is None else grid)
    varied = tuple(
        cell for cell in measured if cell.k in VARIANT_KS and cell.discipline == "selective_drop"
    )
    keys = [(BASE, cell, count) for cell in measured]
    keys += [
        (variant, cell, min(count, MAX_VARIANT_RUNS)) for variant in variants for cell in varied
    ]
    # Long runs first, so that no core is left with one at the end.
    keys.sort(key=lambda key: (key[0].duration_s, -key[1].route.mss_bytes), reverse=True)
    jobs: list[Job] = []
    owners: list[tuple[str, Cell]] = []
    for variant, cell, repeats in keys:
        jobs += _jobs(cell, base, variant, range(seed, seed + repeats))
        owners += [(variant.name, cell)] * repeats
    outcomes = run_many(jobs, threads=threads, progress=progress)

    complete = [outcome for outcome in outcomes if not outcome.interrupted]
    found: dict[tuple[str, Cell], list[Figures]] = {owner: [] for owner in owners}
    for outcome in complete:
        found[owners[outcome.index]].append(figures(outcome))

    def measure(variant: Variant, cell: Cell) -> Measurement:
        buffer_cells = _buffer_cells(cell, base)
        return Measurement(cell, buffer_cells, tuple(found[variant.name, cell]))

    sensitivities = []
    for variant in variants:
        changed = tuple(measure(variant, cell) for cell in varied)
        described = tuple(measure(BASE, cell).first(MAX_VARIANT_RUNS) for cell in varied)
        sensitivities.append(Sensitivity(variant, changed, described))
    return OsuOutcome(
        measurements=tuple(measure(BASE, cell) for cell in measured),
        sensitivities=tuple(sensitivities),
        published=read_published(),
        configuration={
            "bentpipe_version": _core.version(),
            "first_seed": seed,
            "runs_of_a_cell": count,
            "runs_of_a_cell_in_a_variant": min(count, MAX_VARIANT_RUNS),
            "warm_up_s": WARM_UP_S,
            "starts_within_ms": BASE.start_within_ms,
            "scenario": base,
        },
        interrupted=len(complete) < len(jobs),
    )


def figures(outcome: Outcome) -> Figures:
    """Return what a run gave, over all of it and after the warm-up."""
    plan = outcome.job.plan
    warm_up_ns = WARM_UP_S * _NS_PER_S
    stop_ns = plan["stop_ns"]
    largest_bps = largest_goodput_bps(plan)
    delivered_bytes = outcome.column("flows", "delivered_bytes").astype(np.float64)
    is_warm = outcome.column("flow_samples", "time_ns") == warm_up_ns
    early_bytes = np.zeros_like(delivered_bytes)
    early_bytes[outcome.column("flow_samples", "flow")[is_warm]] = outcome.column(
        "flow_samples", "delivered_bytes"
    )[is_warm]
    late_bytes = delivered_bytes - early_bytes

    def efficiency(size_bytes: npt.NDArray[np.float64], elapsed_ns: int) -> float:
        goodput_bps = float(size_bytes.sum()) * 8 * _NS_PER_S / elapsed_ns
        return 100 * goodput_bps / largest_bps

    return Figures(
        efficiency=efficiency(late_bytes, stop_ns - warm_up_ns),
        efficiency_whole_run=efficiency(delivered_bytes, stop_ns),
        fairness=jain(delivered_bytes),
        fairness_after_warm_up=jain(late_bytes),
        recoveries_per_source=float(outcome.column("flows", "fast_recoveries").mean()),
        timeouts_per_source=float(outcome.column("flows", "timeouts").mean()),
    )


def largest_goodput_bps(plan: Mapping[str, Any]) -> float:
    """Return the application bit/s of a link that sends full segments and nothing else."""
    forward = plan["directions"][0]
    mss_bytes = plan["flows"][0]["workload"]["sender"]["mss_bytes"]
    segment_bits = frame_bits(forward["framing"], mss_bytes + _TCP_IP_HEADER_BYTES)
    return float(forward["rate_bps"]["value"] * 8 * mss_bytes / segment_bits)


def starts_ns(sources: int, seed: int, within_ms: int = BASE.start_within_ms) -> list[int]:
    """Return when the sources start: drawn from the seed, evenly over the first ``within_ms``."""
    draws = np.random.default_rng(seed).integers(0, within_ms * _NS_PER_MS, size=sources)
    return [int(start_ns) for start_ns in draws]


def read_published() -> Published:
    """Return what the source says in text.

    Raises:
        ValueError: the claim on the efficiency is not there.
    """
    path = _HERE / "published.csv"
    lines = path.read_text(encoding="utf-8").splitlines()
    claims = tuple(line.removeprefix("# claim: ") for line in lines if line.startswith("# claim: "))
    pattern = re.compile(r"buffer >= ([0-9.]+) RTT gives efficiency >= ([0-9.]+) %")
    (buffer, efficiency) = next(
        found.groups() for claim in claims if (found := pattern.search(claim))
    )
    return Published(claims, float(efficiency), float(buffer))


def published_sources() -> dict[tuple[str, int], tuple[int, ...]]:
    """Return the numbers of sources by the scenario's name and satellite delay in the source."""
    return {
        (row["scenario"], int(row["satellite_one_way_ms"])): tuple(
            int(number) for number in row["sources"].split(";")
        )
        for row in read_rows(_HERE / "published.csv")
    }


def _base() -> dict[str, Any]:
    return load(_HERE / "scenario.yaml").to_dict()


def _jobs(cell: Cell, base: dict[str, Any], variant: Variant, seeds: range) -> list[Job]:
    """Return the runs of a cell. They share all of their plan but the starts."""
    plan = resolve(_scenario_of(cell, base, seeds[0], variant))
    jobs = []
    for seed in seeds:
        starts = starts_ns(cell.sources, seed, variant.start_within_ms)
        flows = [
            {**flow, "start_ns": start} for flow, start in zip(plan["flows"], starts, strict=True)
        ]
        jobs.append(Job(plan={**plan, "flows": flows}, seed=seed))
    return jobs


def _scenario_of(cell: Cell, base: dict[str, Any], seed: int, variant: Variant) -> Scenario:
    data = copy.deepcopy(base)
    data["name"] = f"OSU: {cell.scenario}, {cell.sources} sources, k = {cell.k}, {cell.discipline}"
    forward = data["link"]["forward"]
    for direction in ("forward", "return"):
        data["link"][direction]["delay"] = f"{cell.route.rtt_ms // 2} ms"
    limit = {"limit": f"{_buffer_cells(cell, base)} cells"}
    if cell.discipline == "drop_tail":
        forward["queue"] = {"discipline": "drop_tail"}
    forward["queue"] |= limit
    (source,) = data["traffic"]
    source["tcp"]["mss"] = f"{cell.route.mss_bytes} B"
    starts = starts_ns(cell.sources, seed, variant.start_within_ms)
    data["traffic"] = [
        {**copy.deepcopy(source), "name": f"source-{i}", "start": f"{start} ns"}
        for i, start in enumerate(starts, start=1)
    ]
    data["seed"] = seed
    return from_dict(variant.apply(data))


def _buffer_cells(cell: Cell, base: dict[str, Any]) -> int:
    """Return round trip x rate x 2^-k in cells, rounded to the nearest."""
    rate_bps = parse_rate(base["link"]["forward"]["rate"])
    bits = rate_bps * cell.route.rtt_ms / 1000 * 2.0**-cell.k
    return round(bits / _CELL_BITS)
