"""What a sweep runs: its cells, one scenario for each point, resolved, and their seeds."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

import polars as pl

from bentpipe import _core
from bentpipe.errors import ScenarioWarning, UsageError
from bentpipe.plan.plan import Plan
from bentpipe.results.confidence import mean_half_width
from bentpipe.scenario.document import Document
from bentpipe.scenario.schema import Scenario
from bentpipe.simulation.run import Job
from bentpipe.sweeps.points import Points
from bentpipe.units import check_seed

DEFAULT_METRIC: Final = "goodput_bps"
MAX_SEEDS: Final = 1_000
# A cell at most doubles its seeds at a time: the first few tell little about the variance.
_GROWTH: Final = 2


@dataclass(frozen=True)
class Cell:
    """A scenario with the values of one point, its plan as JSON, and the warnings about it."""

    scenario: Scenario
    plan_json: str
    warnings: tuple[ScenarioWarning, ...]

    @property
    def plan(self) -> Plan:
        """Return the plan; a thousand of them as Python objects would take much memory."""
        return Plan(self.scenario, json.loads(self.plan_json))

    @property
    def identity_of_flows(self) -> str:
        """Return a text that is equal for cells whose tables differ in their numbers only.

        They also have the same thresholds.
        """
        plan, thresholds = self.plan, list(self.scenario.thresholds)
        names = [direction["name"] for direction in plan.data["directions"]]
        return json.dumps([plan.data["flows"], names, plan.entries, thresholds])

    def jobs(self, seeds: Iterable[int], *, samples: bool = True) -> Iterable[Job]:
        """Return a job for each seed, all with the same plan.

        Without samples and events a run is faster; the other tables are the same.
        """
        plan = self.plan
        if not samples:
            plan = plan.with_values(sample_interval_ns=None, packet_events=False)
        for seed in seeds:
            yield Job(plan=plan, seed=seed)


@dataclass(frozen=True)
class UntilCi:
    """The half width of the 95 % interval of a cell's mean at which no more seeds are added.

    ``width`` is a share of the mean. The value of a run is the mean of ``metric``, a column of
    `Result.flows`, over the flows that have one. No cell gets more than ``max_seeds`` seeds.

    Raises:
        UsageError: the width is not above 0.
    """

    width: float
    metric: str = DEFAULT_METRIC
    max_seeds: int = MAX_SEEDS

    def __post_init__(self) -> None:
        if self.width <= 0:
            raise UsageError("until_ci: the width must be above 0 %")

    def missing_seeds(self, flows: pl.DataFrame, seeds: int) -> int:
        """Return how many seeds to add to a cell, from the flows of its complete runs.

        ``seeds`` is how many it has, failed runs included. The interval is by Student's t
        distribution. Its width shrinks with the square root of the runs, so that their number for
        the wanted width is known approximately.
        """
        left = self.max_seeds - seeds
        if left <= 0:
            return 0
        of_run = pl.col(self.metric).cast(pl.Float64).mean()
        runs = flows.group_by("run", maintain_order=True).agg(of_run)
        values = runs[self.metric].drop_nulls().to_list()
        half_width = mean_half_width(values)
        if half_width is None:
            return min(seeds, left)
        mean = abs(sum(values) / len(values))
        if half_width <= self.width * mean:
            return 0
        wanted = seeds * _GROWTH
        if mean > 0:
            wanted = min(wanted, math.ceil(seeds * (half_width / (self.width * mean)) ** 2))
        return min(max(wanted - seeds, 1), left)


@dataclass(frozen=True)
class Definition:
    """What a sweep runs: everything but the executor.

    ``seeds`` are those of each cell at first; ``until_ci`` is how more are added. ``sources``
    are the files of sweep and scenario, with their hashes.
    """

    scenario: Scenario
    points: Points
    seeds: Sequence[int]
    cells: Sequence[Cell]
    until_ci: UntilCi | None = None
    keep_runs: bool = False
    engine: str = "simulate"
    sources: Sequence[tuple[str, str]] = ()

    @classmethod
    def of(
        cls,
        scenario: Scenario,
        points: Points,
        seeds: int | Iterable[int] | None = None,
        *,
        progress: Callable[[int, int], None] | None = None,
        **more: Any,
    ) -> Self:
        """Return the definition of a sweep, with its cells in the order of the points.

        ``seeds`` are their number, from the scenario's on, or the seeds themselves. ``progress``
        counts cells, and ``more`` are other fields.

        Raises:
            ScenarioError: a value is wrong, or does not fit to the others; nothing was run.
            UsageError: there are no seeds, one is out of range, or one is there twice.
        """
        chosen = seeds_of(scenario, seeds)
        return cls(scenario, points, chosen, _cells_of(scenario, points, progress), **more)

    @property
    def plan_sha256(self) -> str:
        """The SHA-256 of the plans of all cells, in hexadecimal."""
        found = hashlib.sha256()
        for cell in self.cells:
            found.update(cell.plan_json.encode())
        return found.hexdigest()

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data, for the manifest."""
        return {
            "bentpipe_version": _core.version(),
            "axes": self.points.to_json(),
            "points": len(self.points),
            "scenario": self.scenario.to_dict(),
            "seeds": list(self.seeds),
            "plan_sha256": self.plan_sha256,
            "until_ci": asdict(self.until_ci) if self.until_ci else None,
            "keep_runs": self.keep_runs,
            "engine": self.engine,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any], source: str) -> Self:
        """Return the definition that `to_json` describes; ``source`` names it in errors."""
        until = data["until_ci"]
        return cls.of(
            Scenario.from_dict(data["scenario"]),
            Points.from_json(data["axes"], source),
            data["seeds"],
            until_ci=None if until is None else UntilCi(**until),
            keep_runs=data["keep_runs"],
            engine=data["engine"],
        )


def _cells_of(
    base: Scenario, points: Points, progress: Callable[[int, int], None] | None = None
) -> list[Cell]:
    document = Document(data=base.to_dict(), source="scenario")
    cells: list[Cell] = []
    for number in range(len(points)):
        plan = Plan.resolve(Scenario.from_document(document, points.settings(number)))
        cells.append(Cell(plan.scenario, plan.text, plan.warnings))
        if progress is not None:
            progress(len(cells), len(points))
    return cells


def seeds_of(base: Scenario, seeds: int | Iterable[int] | None) -> list[int]:
    """Return the seeds of each cell; see `Definition.of`."""
    if seeds is None:
        return [base.seed]
    chosen = list(range(base.seed, base.seed + seeds)) if isinstance(seeds, int) else list(seeds)
    if not chosen:
        raise UsageError("seeds: none are given; give a number of seeds, or the seeds")
    for seed in chosen:
        check_seed(seed, "seeds")
    if len(set(chosen)) < len(chosen):
        raise UsageError("seeds: one is given twice")
    return chosen
