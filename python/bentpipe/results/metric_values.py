"""The values of metrics (`bentpipe.scenario.metric_ref`) in the tables of runs, and thresholds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any

import polars as pl

from bentpipe.errors import UsageError
from bentpipe.metrics import KEYS, KINDS_OF_ROWS
from bentpipe.quantities import quantity
from bentpipe.results.measures import names_of_entries
from bentpipe.results.views import Cell, Column, View
from bentpipe.scenario.metric_ref import MetricRef, Threshold, read_threshold
from bentpipe.text import choice

if TYPE_CHECKING:
    from bentpipe.results.result import Result


def of_runs(
    frame: pl.DataFrame, table: str, plan: Mapping[str, Any], entries: Sequence[Mapping[str, Any]]
) -> pl.DataFrame:
    """Return the rows of a table of one or more runs of a plan for `metric_values`.

    Those of transfers and videos are as `unfinished` has them.
    """
    if table in KINDS_OF_ROWS:
        names = pl.Series(names_of_entries(plan, entries), dtype=pl.String)
        return frame.with_columns(entry=names.gather(frame["flow"]))
    if table == "flows":
        amounts = [flow["workload"].get("amount", {}) for flow in plan["flows"]]
        sized = pl.Series([amount.get("unit") == "bytes" for amount in amounts], dtype=pl.Boolean)
        return frame.with_columns(unfinished(pl.lit(sized.gather(frame["flow"]))))
    return frame


def unfinished(has_size: pl.Expr) -> list[pl.Expr]:
    """Return completion and start-up times, infinite for what did not end or did not start.

    Otherwise flows that end fewer transfers, or start fewer videos, would look faster. ``has_size``
    says which flows are transfers of a given size.
    """
    is_of = {"completion_time_ns": has_size, "start_up_time_ns": pl.col("played_ns").is_not_null()}
    return [
        pl.when(condition).then(pl.col(name).cast(pl.Float64).fill_null(float("inf"))).alias(name)
        for name, condition in is_of.items()
    ]


def with_unfinished(flows: pl.DataFrame) -> pl.DataFrame:
    """Return flows of many runs with the times of what did not end as `unfinished` has them.

    A transfer that has ended shows that those of its entry of ``traffic`` have a size.
    """
    return flows.with_columns(
        unfinished(pl.col("completion_time_ns").is_not_null().any().over("entry"))
    )


def metric_value(result: Result, metric: MetricRef) -> float | None:
    """Return a metric of a run; None if it has no value, such as the loss of TCP.

    Raises:
        UsageError: no flow or direction has the name, or several rows need a statistic.
    """
    rows = getattr(result, metric.table).select(pl.lit(0, dtype=pl.UInt32).alias("run"), pl.all())
    entries = result.manifest.get("entries", [])
    values = metric_values(of_runs(rows, metric.table, result.plan, entries), metric)
    return float(values["value"][0]) if values.height else None


def metric_values(frame: pl.DataFrame, metric: MetricRef) -> pl.DataFrame:
    """Return a metric of each run of a frame: ``run`` and ``value``; runs without one are left out.

    ``frame`` has the rows of a table for one or more runs, and their column ``run``.

    Raises:
        UsageError: no row has the name, or several rows of a run need a statistic.
    """
    if metric.column not in frame.columns:
        raise UsageError(f"{metric}: these results have no column {metric.column}")
    rows = _selected(frame, metric)
    values = rows.select("run", pl.col(metric.column).cast(pl.Float64).alias("value")).drop_nulls()
    if metric.statistic is None and values["run"].is_duplicated().any():
        raise UsageError(
            f"{metric}: has several values in a run; add a statistic, such as {metric}.mean"
        )
    by_run = values.group_by("run", maintain_order=True).agg(
        reduced(pl.col("value"), metric).alias("value")
    )
    # A percentile between a finite and an infinite value.
    return by_run.with_columns(pl.col("value").fill_nan(float("inf")))


def _selected(frame: pl.DataFrame, metric: MetricRef) -> pl.DataFrame:
    # The first column with the name counts.
    columns = [name for name in ("entry", "name") if name in frame.columns] or KEYS[metric.table]
    if metric.heading is not None:
        if "direction" not in frame.columns:
            raise UsageError(f"{metric}: the table {metric.table} has no directions")
        # Each of several terminals has a return of its own: return-1.
        direction = pl.col("direction")
        matches = (direction == metric.heading) | direction.str.starts_with(f"{metric.heading}-")
        frame = frame.filter(matches)
    if metric.name is None or frame.height == 0:
        return frame
    for column in columns:
        rows = frame.filter(pl.col(column) == metric.name)
        if rows.height:
            return rows
    names = (str(name) for column in columns for name in frame[column].unique(maintain_order=True))
    raise UsageError(f"{metric}: name: {choice(metric.name, tuple(dict.fromkeys(names)))}")


def reduced(value: pl.Expr, ref: MetricRef) -> pl.Expr:
    """Return the expression that reduces values, none of them null, by a statistic."""
    if ref.quantile is not None:
        return value.quantile(ref.quantile, interpolation="linear")
    if ref.statistic == "jain":
        # As `results.measures.jain`: 1 if all are zero.
        squares = (value * value).sum()
        fairness = value.sum().pow(2) / (value.count() * squares)
        return pl.when(squares > 0).then(fairness).otherwise(1.0)
    # The other statistics have the names of polars; without one there is a single value.
    statistic: pl.Expr = getattr(value, ref.statistic or "first")()
    return statistic


# --- thresholds -----------------------------------------------------------------------------------


_COLUMNS = (
    Column("threshold", "threshold"),
    Column("limit", "limit"),
    Column("value", "value"),
    Column("missed_by", "missed by"),
    Column("passed", "result", text=lambda passed: "passed" if passed else "FAILED"),
)


@dataclass(frozen=True)
class ThresholdCheck:
    """A threshold and its value in a run, in the base unit; None if the run has no such value.

    The completion time of a transfer that did not end is infinite.
    """

    threshold: Threshold
    value: float | None

    @property
    def passed(self) -> bool:
        """Whether the value meets the threshold; a missing value does not."""
        return self.threshold.holds(self.value)

    @property
    def margin(self) -> tuple[bool, float]:
        """Whether the value meets the threshold, and by how much: the worst check has the least."""
        if self.value is None:
            return False, float("-inf")
        distance = self.value - self.threshold.limit
        if self.threshold.operator in {"<", "<="}:
            distance = -distance
        elif self.threshold.operator == "==":
            distance = -abs(distance)
        return self.passed, distance

    @property
    def value_text(self) -> str:
        """The value with its unit."""
        if self.value is None:
            return "no value"
        return self._text(self.value) if isfinite(self.value) else "did not end"

    @property
    def missed_by(self) -> str:
        """How far the value is from the limit, with the share of the limit; empty if it passed."""
        limit = self.threshold.limit
        if self.passed or self.value in {None, limit} or not isfinite(self.value or 0):
            return ""
        distance = abs((self.value or 0) - limit)
        share = f" ({100 * distance / abs(limit):.3g} %)" if limit else ""
        return f"{quantity(self.threshold.metric.unit_column).difference(distance)}{share}"

    @property
    def message(self) -> str:
        """The threshold and its value, in a line."""
        missed = f", missed by {self.missed_by}" if self.missed_by else ""
        return f"{self.threshold.text}: {self.value_text}{missed}"

    def cells(self) -> list[Any]:
        """Return the row of a table."""
        return [
            f"{self.threshold.metric.title} {self.threshold.operator}",
            Cell(self.threshold.limit, self._text(self.threshold.limit)),
            Cell(self.value, self.value_text),
            Cell(self.missed_by, self.missed_by or "-"),
            self.passed,
        ]

    def to_json(self) -> dict[str, Any]:
        """Return the check as plain data; a value that is not finite is None."""
        value = self.value if self.value is not None and isfinite(self.value) else None
        return {
            "threshold": self.threshold.text,
            "metric": str(self.threshold.metric),
            "operator": self.threshold.operator,
            "limit": self.threshold.limit,
            "value": value,
            "passed": self.passed,
            "message": self.message,
        }

    def _text(self, value: float) -> str:
        return quantity(self.threshold.metric.unit_column).text(value)


def check_thresholds(result: Result, thresholds: Sequence[str] = ()) -> list[ThresholdCheck]:
    """Return the thresholds of the result's scenario, and further ones, with their values.

    Parameters
    ----------
    result
        A run.
    thresholds
        Further ones, written as in a scenario.

    Returns
    -------
    list[ThresholdCheck]
        The value of each threshold, and whether it is met.

    Raises
    ------
    UsageError
        A threshold names what the result does not have.

    Examples
    --------
    >>> result = bentpipe.simulate("scenarios/geo-bulk.yaml")
    >>> (check,) = bentpipe.check_thresholds(result, ["flows.goodput_bps.min >= 1 Mbit/s"])
    >>> check.passed
    True
    """
    texts = [*result.manifest["scenario"].get("thresholds", ()), *thresholds]
    read = [read_threshold(text) for text in texts]
    return [ThresholdCheck(threshold, metric_value(result, threshold.metric)) for threshold in read]


def threshold_view(result: Result) -> View | None:
    """Return the thresholds of a run as a table; None without some, or if it did not complete."""
    checks = check_thresholds(result) if result.state == "completed" else []
    return View("Thresholds", _COLUMNS, [check.cells() for check in checks]) if checks else None
