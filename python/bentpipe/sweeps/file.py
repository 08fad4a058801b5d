"""A sweep as a file: the scenario, what is varied, and the seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Annotated, Any, Final

from pydantic import Field, PlainValidator

from bentpipe.errors import ScenarioError, UnitError, UsageError
from bentpipe.scenario.document import Document
from bentpipe.scenario.record import Record, refusal
from bentpipe.sweeps.definition import DEFAULT_METRIC, MAX_SEEDS
from bentpipe.sweeps.points import (
    MAX_VALUES,
    Axis,
    Points,
    Range,
    grid_axis,
    identity,
    read_range,
    read_values,
    zip_axis,
)
from bentpipe.text import shown
from bentpipe.units import LARGEST_SEED

_VALUES: Final = "expected a list of values, or a text such as log(10 ms, 300 ms, 4)"
# Unknown fields of a sweep file are told from those of a scenario by this one.
_MARK: Final = "scenario"


def _checked(read: Callable[[Any], Any]) -> Any:
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
        raise UsageError(f"read {shown(value)}; {_VALUES}")
    return read_values(value)


def _sampled(value: object) -> list[Any] | Range:
    found = read_range(value) if isinstance(value, str) else None
    return found if isinstance(found, Range) else _values(value)


Values = Annotated[Any, _checked(_values)]
Sampled = Annotated[Any, _checked(_sampled)]
Group = Annotated[dict[str, Values], Field(min_length=1)]
Seed = Annotated[int, Field(ge=0, le=LARGEST_SEED)]


class LatinHypercube(Record):
    """Points that cover ranges evenly, with fewer runs than a grid."""

    points: Annotated[int, Field(ge=1, le=MAX_VALUES)]
    """The number of points; equal ones, of lists of values, are run once."""
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
    """A scenario, and the values that are varied: all combinations of ``grid``, ``zip`` and so on.

    A field is named by its path, as ``--set`` takes it.
    """

    scenario: str
    """The scenario file, relative to the folder of this file."""
    grid: dict[str, Values] = Field(default_factory=dict)
    """The values of each field by itself."""
    zip: Annotated[tuple[Group, ...], Field(strict=False)] = ()
    """Groups of fields that are varied together, with equal numbers of values."""
    latin_hypercube: LatinHypercube | None = None
    """Fields that are sampled."""
    seeds: int | Annotated[tuple[Seed, ...], Field(strict=False)] | None = None
    """The number of seeds of each combination, from the scenario's on, or the seeds."""
    until_ci: Interval | None = None
    """Add seeds to each combination until the confidence interval of its mean is narrow."""


def is_sweep_file(document: Document) -> bool:
    """Return whether a document names a scenario, instead of being one."""
    return _MARK in document.data


def parse_sweep_file(document: Document) -> tuple[SweepFile, Points]:
    """Check a document against the schema of a sweep file; return it with its points.

    Raises:
        ScenarioError: naming file, line, field, what was read and what is allowed.
        UsageError: it has a Latin hypercube, and scipy is not installed.
    """
    found = SweepFile.of_document(document)
    return found, Points(_axes(found, document))


def _axes(found: SweepFile, document: Document) -> Iterator[Axis]:
    for path, values in found.grid.items():
        yield grid_axis(path, values, document.location(("grid", path)))
    for number, group in enumerate(found.zip):
        yield zip_axis(group, [document.location(("zip", number, path)) for path in group])
    sampled = found.latin_hypercube
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
