"""Values over runs with 95 % intervals, and published vs. simulated rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final, Literal, Self

import numpy as np
import numpy.typing as npt

from bentpipe.results import (
    CONFIDENCE,
    MIN_BOOTSTRAP_VALUES,
    Interval,
    mean_half_width,
    resampled,
)
from bentpipe.studies.base.inputs import COUNTED, Provenance, read_quantities, read_rows

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Samples:
    """The values of one figure over the runs of a cell.

    ``exact``: the cell is deterministic. All runs give the same value, so one run is enough and the
    mean has no interval.
    """

    values: tuple[float, ...] = ()
    exact: bool = False

    @classmethod
    def of(cls, values: Iterable[float | None], *, exact: bool = False) -> Samples:
        """Return the samples of values; None is a run without a value."""
        return cls(tuple(float(value) for value in values if value is not None), exact)

    @property
    def mean(self) -> float | None:
        """The mean; None without a run."""
        return float(np.mean(self.values)) if self.values else None

    @property
    def interval(self) -> Interval | None:
        """The interval of the mean by Student's t; None if it is exact or there is one run."""
        mean, half = self.mean, mean_half_width(self.values)
        if mean is None or self.exact or half is None:
            return None
        return Interval(mean - half, mean + half)

    def to_json(self, name: str) -> dict[str, Any]:
        """Return mean, interval and number of runs, as columns that begin with ``name``."""
        return {
            **with_interval(name, self.mean, self.interval),
            f"{name}_runs": len(self.values),
            f"{name}_exact": self.exact,
        }


def values_to_json(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values by name as plain data; samples have several names."""
    data: dict[str, Any] = {}
    for name, value in values.items():
        data |= value.to_json(name) if isinstance(value, Samples) else {name: value}
    return data


def with_interval(name: str, value: float | None, interval: Interval | None) -> dict[str, Any]:
    """Return a value and the ends of its interval, as columns that begin with ``name``."""
    low, high = (None, None) if interval is None else (interval.low, interval.high)
    return {name: value, f"{name}_low": low, f"{name}_high": high}


@dataclass(frozen=True)
class Measurement:
    """The figures of the runs of one cell, by seed; ``exact`` as in `Samples`."""

    runs: Mapping[int, Mapping[str, float | None]]
    exact: bool = False

    def __getitem__(self, figure: str) -> Samples:
        """Return the values of a figure; a run without a value has none."""
        return self.of(figure)

    def of(self, figure: str, unit: float = 1.0) -> Samples:
        """Return the values of a figure in multiples of ``unit``."""
        values = self.by_seed(figure).values()
        return Samples.of((value / unit for value in values), exact=self.exact)

    def by_seed(self, figure: str) -> dict[int, float]:
        """Return the values of a figure by seed, of the runs that have one."""
        pairs = ((seed, run.get(figure)) for seed, run in self.runs.items())
        return {seed: value for seed, value in pairs if value is not None and not np.isnan(value)}

    def first(self, runs: int) -> Self:
        """Return the measurement with its first runs alone."""
        return replace(self, runs=dict(list(self.runs.items())[:runs]))


def difference(before: Mapping[int, float], after: Mapping[int, float]) -> Samples:
    """Return the change of a figure by seed, by pairs of the same seed."""
    seeds = (seed for seed in before if seed in after)
    return Samples.of(after[seed] - before[seed] for seed in seeds)


@dataclass(frozen=True)
class Estimate:
    """A statistic of several cells, and its interval where there is one."""

    value: float
    interval: Interval | None


def estimate(samples: Sequence[Samples], statistic: Callable[[Array], Array]) -> Estimate | None:
    """Return a statistic of the means of several cells, with its interval by bootstrap.

    ``statistic`` reduces the last axis, which has the cells. The bootstrap resamples the runs of
    each cell (Efron and Tibshirani 1993, percentile method); None without cells.
    """
    if not samples:
        return None
    means = np.array([cell.mean for cell in samples], dtype=np.float64)
    value = float(statistic(means))
    random = [cell for cell in samples if not cell.exact]
    if not random or min(len(cell.values) for cell in random) < MIN_BOOTSTRAP_VALUES:
        return Estimate(value, None)
    rng = np.random.default_rng(0)
    drawn = np.column_stack([resampled(np.array(s.values), rng).mean(axis=1) for s in samples])
    low, high = np.quantile(statistic(drawn), [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Estimate(value, Interval(float(low), float(high)))


_PERCENT: Final = 100.0

Label = str | int | float


class Agreement(StrEnum):
    """The agreement of a row; all studies have the same three values."""

    WITHIN_INTERVAL = "within_interval"
    """The published value lies in the 95 % interval of the simulated mean."""
    WITHIN_TOLERANCE = "within_tolerance"
    """It does not, but the error is no larger than the study's tolerance, or the bound is kept."""
    OUTSIDE = "outside"
    """The error is larger than the tolerance."""

    @property
    def words(self) -> str:
        """The name as tables and reports print it."""
        return self.value.replace("_", " ")


@dataclass(frozen=True)
class Tolerance:
    """The largest error that counts as agreement, and the reason for its size.

    Errors are in ``points`` of the row's own unit, or in ``%`` of the published value.
    """

    value: float
    unit: Literal["points", "%"]
    reason: str

    def __str__(self) -> str:
        """Return the value with its unit."""
        unit = "point" if (self.value, self.unit) == (1, "points") else self.unit
        return f"{self.value:g} {unit}"


def read_tolerances(study: str) -> tuple[Tolerance, ...]:
    """Return the tolerances of a study in tolerances.csv."""
    rows: list[Any] = [*read_rows(study, "tolerances.csv")]
    return tuple(Tolerance(float(row["value"]), row["unit"], row["reason"]) for row in rows)


@dataclass(frozen=True, kw_only=True)
class Row:
    """A published value vs. the simulated samples of its cell.

    ``labels`` identify the row, ``title`` is its name for readers. ``bound`` is the kind of
    the published value: the value itself, its maximum (``at_most``) or its minimum (``at_least``).
    ``how`` describes the simulation of the row, ``reason`` why it may be outside. A row that is not
    ``judged`` is compared with a value that was published for other settings: it has a difference,
    but no agreement. ``more`` holds further values of the cell by name. A row without a published
    value (None) is listed only.
    """

    labels: Mapping[str, Label]
    unit: str
    published: float | None
    simulated: Samples
    provenance: Provenance
    tolerance: Tolerance
    bound: Literal["equal", "at_most", "at_least"] = "equal"
    title: str = ""
    how: str = ""
    reason: str = ""
    judged: bool = True
    more: Mapping[str, Samples | Label | Row | None] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:
        """Return a label, a further value or an attribute; ``a.b`` is b of the row ``a``."""
        known: dict[str, Any] = {**self.labels, **self.more}
        head, _, last = name.rpartition(".")
        if name in known or not head:
            return known[name] if name in known else getattr(self, name)
        return None if known[head] is None else known[head][last]

    @property
    def name(self) -> str:
        """The title, or else the labels, separated by commas."""
        return self.title or ", ".join(map(str, self.labels.values()))

    @property
    def error(self) -> float | None:
        """Simulated less published, in points or in percent of the published value."""
        mean = self.simulated.mean
        return None if mean is None else self._error_of(mean)

    @property
    def error_interval(self) -> Interval | None:
        """The interval of the error."""
        interval = self.simulated.interval
        if interval is None:
            return None
        low, high = self._error_of(interval.low), self._error_of(interval.high)
        return None if low is None or high is None else Interval(low, high)

    @property
    def agreement(self) -> Agreement | None:
        """The agreement; None if the row was not run or is not judged."""
        error, interval = self.error, self.error_interval
        if error is None or not self.judged:
            return None
        excess = {"equal": abs(error), "at_most": error, "at_least": -error}[self.bound]
        is_kept = self.bound != "equal" and excess <= 0
        if interval is not None and interval.contains(0) and not is_kept:
            return Agreement.WITHIN_INTERVAL
        is_close = is_kept or excess <= self.tolerance.value
        return Agreement.WITHIN_TOLERANCE if is_close else Agreement.OUTSIDE

    @property
    def is_outside(self) -> bool:
        """Whether the error is larger than the tolerance."""
        return self.agreement is Agreement.OUTSIDE

    def to_json(self) -> dict[str, Any]:
        """Return the row as plain data; a row of cells.csv has the same names."""
        return {
            **self.labels,
            "unit": self.unit,
            "published": self.published,
            **self.simulated.to_json("simulated"),
            **with_interval("error", self.error, self.error_interval),
            "error_unit": self.tolerance.unit,
            "bound": self.bound,
            "provenance": self.provenance,
            "agreement": self.agreement,
            "how": self.how or None,
            "reason": (self.reason or None) if self.is_outside else None,
            **values_to_json(self.more),
        }

    def _error_of(self, simulated: float) -> float | None:
        if self.published is None:
            return None
        if self.tolerance.unit == "points":
            return simulated - self.published
        return _PERCENT * (simulated / self.published - 1)


@dataclass(frozen=True)
class Comparison:
    """The compared rows of one table."""

    rows: tuple[Row, ...]

    def of(self, *provenances: Provenance) -> tuple[Row, ...]:
        """Return the rows of these provenances."""
        return tuple(row for row in self.rows if row.provenance in provenances)

    def where(self, **labels: Label) -> Comparison:
        """Return the rows that have these labels."""
        return Comparison(tuple(row for row in self.rows if labels.items() <= row.labels.items()))

    def beside(self, **others: Comparison) -> tuple[Row, ...]:
        """Return the rows; their further values have the row of the same name of each other one."""
        by_name = {name: {row.name: row for row in other.rows} for name, other in others.items()}
        return tuple(
            replace(
                row, more={**row.more, **{n: rows.get(row.name) for n, rows in by_name.items()}}
            )
            for row in self.rows
        )

    @property
    def outside(self) -> tuple[Row, ...]:
        """The rows with an error larger than the tolerance."""
        return tuple(row for row in self.rows if row.is_outside)

    def summary(self) -> dict[str, Any]:
        """Return counts and errors by provenance as plain data.

        Only predicted and calibrated rows have errors here, each kind by itself. Rows that are not
        judged are summarised as differences, all together.
        """
        compared = [row for row in self.rows if row.published is not None]
        judged = [row for row in compared if row.judged]
        others = [row for row in compared if not row.judged]
        summary: dict[str, Any] = {"rows": len(self.rows)}
        if judged:
            summary["by_provenance"] = {
                kind.value: errors_of(rows) if kind in COUNTED else {"rows": len(rows)}
                for kind in Provenance
                if (rows := [row for row in judged if row.provenance is kind])
            }
            summary["outside"] = [row.name for row in self.outside]
            summary["tolerances"] = {str(row.tolerance): row.tolerance.reason for row in judged}
        if others:
            summary["difference"] = errors_of(others)
        return summary


def quantity_rows(
    study: str, published: str, simulated: Callable[[str], Samples], **settings: Any
) -> tuple[Row, ...]:
    """Return the rows of a study's published quantities.

    ``published`` is the name of the file with their values, ``simulated`` returns the samples of a
    quantity, ``settings`` are further fields of all rows. facts.csv says how each is simulated,
    what its agreement is worth, why it may be outside, and whether the value is a bound.
    """
    facts = {row.pop("quantity"): row for row in read_rows(study, "facts.csv")}

    def row(quantity: str, value: float, unit: str) -> Row:
        fields: dict[str, Any] = {name: text for name, text in facts[quantity].items() if text}
        fields |= {"provenance": Provenance(fields["provenance"]), **settings}
        samples = simulated(quantity)
        labels = {"quantity": quantity}
        return Row(labels=labels, unit=unit, published=value, simulated=samples, **fields)

    return tuple(row(name, *value) for name, value in read_quantities(study, published).items())


def errors_of(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the mean and the largest absolute error of rows, and how many agree.

    A bound has no error: its rows count in the agreement only.
    """
    mean = mean_error(rows)
    value, interval = (None, None) if mean is None else (mean.value, mean.interval)
    errors = [abs(error) for row in rows if (error := row.error) is not None]
    exact = [abs(row.error or 0.0) for row in _with_errors(rows)]
    summary: dict[str, Any] = {
        "rows": len(rows),
        "simulated": len(errors),
        "bounds": len(errors) - len(exact),
        **with_interval("mean_absolute_error", value, interval),
        "max_absolute_error": max(exact, default=None),
        "error_unit": rows[0].tolerance.unit if rows else None,
    }
    if any(row.judged for row in rows):
        for agreement in Agreement:
            summary[agreement.value] = sum(row.agreement is agreement for row in rows)
    return summary


def mean_error(rows: Sequence[Row], *, absolute: bool = True) -> Estimate | None:
    """Return the mean (absolute) error of the rows that were run, with its bootstrap interval."""
    known = _with_errors(rows)
    published = np.array([row.published for row in known])
    relative = np.array([row.tolerance.unit == "%" for row in known], dtype=bool)

    def mean(simulated: Array) -> Array:
        differences = simulated - published
        errors = np.where(relative, _PERCENT * differences / published, differences)
        return np.asarray((np.abs(errors) if absolute else errors).mean(axis=-1))

    return estimate([row.simulated for row in known], mean)


def _with_errors(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row.error is not None and row.bound == "equal"]
