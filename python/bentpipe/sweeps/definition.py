"""What a sweep runs: its cells, one scenario for each point, resolved, and their seeds."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from itertools import islice
from typing import Annotated, Any, Final, Self

import polars as pl
from pydantic import Field, PlainValidator

from bentpipe import _core
from bentpipe.errors import ScenarioError, ScenarioWarning, UnitError, UsageError
from bentpipe.plan.plan import Plan
from bentpipe.results.confidence import mean_half_width
from bentpipe.results.metric_values import with_unfinished
from bentpipe.scenario.document import Document
from bentpipe.scenario.record import Record, refusal
from bentpipe.scenario.schema import Scenario
from bentpipe.simulation.run import Job
from bentpipe.sweeps.points import (
    MAX_VALUES,
    Axis,
    Points,
    Range,
    axis,
    identity,
    read_range,
    read_values,
)
from bentpipe.text import shown
from bentpipe.units import LARGEST_SEED, check_seed

DEFAULT_METRIC: Final = "goodput_bps"
# Of a cell with `UntilCi`: its half width is 6 % of the standard deviation by then.
MAX_SEEDS: Final = 1_000
# They are in memory.
CELL_SEEDS_MAX: Final = 1_000_000
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
        """Return the plan. It is kept as JSON: many plans as Python objects take much memory."""
        return Plan(self.scenario, json.loads(self.plan_json))

    @property
    def identity_of_flows(self) -> str:
        """Return a text that is equal for cells whose runs can be decoded and checked together.

        Their tables have the same names in the same places, and their thresholds are the same.
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

    ``width`` is that half width as a share of the mean. The value of a run is the mean of
    ``metric``, a column of `Result.flows`, over the flows that have one. No cell gets more than
    ``max_seeds`` seeds.

    Raises:
        UsageError: the width is not above 0.
    """

    width: float
    metric: str = DEFAULT_METRIC
    max_seeds: int = MAX_SEEDS

    def __post_init__(self) -> None:
        if self.width <= 0:
            raise UsageError("until_ci: the width must be above 0 %")

    def missing_seeds(self, flows: pl.DataFrame, seeds: int) -> int | None:
        """Return how many seeds to add to a cell, from the flows of its complete runs.

        ``seeds`` is how many it has, failed runs included; the caller applies ``max_seeds``. None:
        no run has a value, since no flow has the metric or none ends, and more runs would not
        change that. The interval is by Student's t distribution. Its width shrinks with the square
        root of the runs, so that their number for the wanted width is known approximately.
        """
        of_run = pl.col(self.metric).cast(pl.Float64).mean()
        runs = with_unfinished(flows).group_by("run", maintain_order=True).agg(of_run)
        values = runs.filter(pl.col(self.metric).is_finite())[self.metric].to_list()
        if not values:
            return None
        half_width = mean_half_width(values)
        if half_width is None:
            return seeds * (_GROWTH - 1)
        mean = abs(sum(values) / len(values))
        if half_width <= self.width * mean:
            return 0
        wanted = seeds * _GROWTH
        if mean > 0:
            # Of ``seeds``, not of the values: of the new runs as many are likely to fail.
            wanted = min(wanted, math.ceil(seeds * (half_width / (self.width * mean)) ** 2))
        return max(wanted - seeds, 1)


@dataclass(frozen=True)
class Definition:
    """What a sweep runs: everything but the executor.

    ``seeds`` are those of each cell at first; ``until_ci`` is how more are added. ``keep_runs``
    keeps the result of each run, too. ``engine`` is ``simulate`` or ``emulate``. ``sources`` are
    the files of sweep and scenario with their hashes: a sweep is not resumed if one has changed.
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

        ``seeds`` are their number, from the scenario's on, or the seeds themselves; by default the
        scenario's alone. ``progress`` counts cells, and ``more`` are other fields.

        Raises:
            ScenarioError: a value is wrong, or does not fit to the others; nothing was run.
            UsageError: there are no seeds, one is out of range, or one is there twice.
        """
        chosen = seeds_of(scenario, seeds)
        document = Document(data=scenario.to_dict(), source="scenario")
        cells: list[Cell] = []
        for number in range(len(points)):
            plan = Plan.resolve(Scenario.from_document(document, points.settings(number)))
            cells.append(Cell(plan.scenario, plan.text, plan.warnings))
            if progress is not None:
                progress(len(cells), len(points))
        return cls(scenario, points, chosen, cells, **more)

    @property
    def plan_sha256(self) -> str:
        """The SHA-256 of the plans of all cells; a sweep is resumed only if it is the same."""
        digest = hashlib.sha256()
        for cell in self.cells:
            digest.update(cell.plan_json.encode())
        return digest.hexdigest()

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


def check_count(seeds: int) -> None:
    """Check a number of seeds, before so many are in memory.

    Raises:
        UsageError: there are more than `CELL_SEEDS_MAX`.
    """
    if seeds > CELL_SEEDS_MAX:
        raise UsageError(f"seeds: more than {CELL_SEEDS_MAX:,}; ask for fewer of each combination")


def seeds_of(base: Scenario, seeds: int | Iterable[int] | None) -> list[int]:
    """Return the seeds of each cell; see `Definition.of`."""
    if seeds is None:
        return [base.seed]
    if isinstance(seeds, int):
        check_count(seeds)
        chosen = list(range(base.seed, base.seed + seeds))
    else:
        chosen = list(islice(seeds, CELL_SEEDS_MAX + 1))
        check_count(len(chosen))
    if not chosen:
        raise UsageError("seeds: none are given; give a number of seeds, or the seeds")
    for seed in chosen:
        check_seed(seed, "seeds")
    if len(set(chosen)) < len(chosen):
        raise UsageError("seeds: one is given twice")
    return chosen


# --- sweep files ----------------------------------------------------------------------------------

_EXPECTED_VALUES: Final = "expected a list of values, or a text such as log(10 ms, 300 ms, 4)"


def _checked(read: Callable[[Any], Any]) -> Any:
    """Return a validator that raises the errors of ``read`` as those of pydantic."""

    def check(value: object) -> Any:
        try:
            return read(value)
        except ScenarioError as error:
            raise refusal(error.problems[0].message) from None
        except (UsageError, UnitError) as error:
            raise refusal(str(error)) from None

    return PlainValidator(check)


def _values(value: object) -> list[Any]:
    if isinstance(value, list):
        return value
    if not isinstance(value, str):
        raise UsageError(f"read {shown(value)}; {_EXPECTED_VALUES}")
    return read_values(value)


def _sampled(value: object) -> list[Any] | Range:
    parsed = read_range(value) if isinstance(value, str) else None
    sampled = parsed if isinstance(parsed, Range) else _values(value)
    if sampled == []:
        raise UsageError("has no values; give at least one")
    return sampled


Values = Annotated[Any, _checked(_values)]
Sampled = Annotated[Any, _checked(_sampled)]
Group = Annotated[dict[str, Values], Field(min_length=1)]
Seed = Annotated[int, Field(ge=0, le=LARGEST_SEED)]


class LatinHypercube(Record):
    """Points that cover ranges evenly, with fewer runs than a grid."""

    points: Annotated[int, Field(ge=1, le=MAX_VALUES)]
    """The number of points; equal ones, of lists or after rounding, are run once."""
    seed: Seed = 1
    """The seed of the points."""
    fields: dict[str, Sampled] = Field(min_length=1)
    """The values by path: a range without points, such as log(1e-8, 1e-5), or a list."""


class Interval(Record):
    """When no more seeds are added to a cell."""

    width: str
    """Half the width of the 95 % confidence interval, in percent of the mean: 2%."""
    metric: str = DEFAULT_METRIC
    """A column of flows."""
    max_seeds: Annotated[int, Field(ge=2)] = MAX_SEEDS
    """The most seeds of a cell."""


class SweepFile(Record):
    """A scenario and values to vary: all combinations of ``grid``, ``zip``, ``latin_hypercube``.

    A field is named by its path, as ``--set`` takes it.
    """

    scenario: str
    """The scenario file, relative to the folder of this file."""
    grid: dict[str, Values] = Field(default_factory=dict)
    """The values of each field that is varied on its own."""
    zip: Annotated[tuple[Group, ...], Field(strict=False)] = ()
    """Groups of fields that are varied together, with equal numbers of values."""
    latin_hypercube: LatinHypercube | None = None
    """Fields that are sampled."""
    seeds: int | Annotated[tuple[Seed, ...], Field(strict=False)] | None = None
    """The number of seeds of each combination, from the scenario's on, or the seeds."""
    until_ci: Interval | None = None
    """Add seeds to each combination until the confidence interval of its mean is narrow."""


def parse_sweep_file(document: Document) -> tuple[SweepFile, Points] | None:
    """Check a document against the schema of a sweep file; return it with its points.

    None if the document is a scenario itself: it names no other.

    Raises:
        ScenarioError: naming file, line, field, what was read and what is allowed.
        UsageError: it has a Latin hypercube, and scipy is not installed.
    """
    if "scenario" not in document.data:
        return None
    sweep_file = SweepFile.of_document(document)
    return sweep_file, Points(_axes(sweep_file, document))


def _axes(sweep_file: SweepFile, document: Document) -> Iterator[Axis]:
    for path, values in sweep_file.grid.items():
        yield axis({path: values}, [document.location(("grid", path))])
    for number, group in enumerate(sweep_file.zip):
        locations = [document.location(("zip", number, path)) for path in group]
        yield axis(group, locations, "zip")
    sampled = sweep_file.latin_hypercube
    if sampled is not None:
        where = ("latin_hypercube", "fields")
        yield Axis(
            paths=tuple(sampled.fields),
            rows=_samples(sampled),
            locations=tuple(document.location((*where, path)) for path in sampled.fields),
            kind="latin_hypercube",
        )


def _samples(sampled: LatinHypercube) -> tuple[tuple[Any, ...], ...]:
    """Return the points of a Latin hypercube: in each dimension, one in each of equal intervals.

    Raises:
        UsageError: scipy is not installed.
    """
    try:
        qmc = import_module("scipy.stats.qmc")
    except ModuleNotFoundError:
        raise UsageError(
            "latin_hypercube: scipy is not installed; pip install 'bentpipe[sweep]'"
        ) from None
    shares = qmc.LatinHypercube(d=len(sampled.fields), rng=sampled.seed).random(sampled.points)
    columns = [
        values.at(column.tolist())
        if isinstance(values, Range)
        else [values[int(share * len(values))] for share in column.tolist()]
        for values, column in zip(sampled.fields.values(), shares.T, strict=True)
    ]
    rows = zip(*columns, strict=True)
    return tuple({identity(row): row for row in rows}.values())
