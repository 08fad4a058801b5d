"""The cells of a sweep: one scenario for each point, resolved, and the jobs of its seeds."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from bentpipe.errors import ScenarioWarning, UsageError
from bentpipe.plan.plan import Plan
from bentpipe.scenario.document import Document
from bentpipe.scenario.schema import Scenario
from bentpipe.simulation.run import Job
from bentpipe.sweeps.points import Points
from bentpipe.units import check_seed


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


def cells_of(
    base: Scenario, points: Points, progress: Callable[[int, int], None] | None = None
) -> list[Cell]:
    """Return the cells of a sweep, in the order of the points; ``progress`` counts them.

    Raises:
        ScenarioError: a value is wrong, or does not fit to the others; nothing was run.
    """
    document = Document(data=base.to_dict(), source="scenario")
    cells = []
    for number in range(len(points)):
        plan = Plan.resolve(Scenario.from_document(document, points.settings(number)))
        cells.append(Cell(plan.scenario, plan.text, plan.warnings))
        if progress is not None:
            progress(len(cells), len(points))
    return cells


def plan_hash(cells: Iterable[Cell]) -> str:
    """Return the SHA-256 of the plans of all cells, in hexadecimal."""
    found = hashlib.sha256()
    for cell in cells:
        found.update(cell.plan_json.encode())
    return found.hexdigest()


def seeds_of(base: Scenario, seeds: int | Iterable[int] | None) -> list[int]:
    """Return the seeds of each cell: their number, from the scenario's on, or the seeds themselves.

    Raises:
        UsageError: there are none, one is out of range, or one is there twice.
    """
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
