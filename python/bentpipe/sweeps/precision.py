"""Seeds added to cells until a confidence interval is narrow (``--until-ci``)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from bentpipe.errors import UsageError
from bentpipe.results.confidence import mean_half_width
from bentpipe.text import choice

DEFAULT_METRIC: Final = "goodput_bps"
MAX_SEEDS: Final = 1_000
# A cell at most doubles its seeds at a time: the first few tell little about the variance.
_GROWTH: Final = 2


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

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {"width": self.width, "metric": self.metric, "max_seeds": self.max_seeds}

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
        values = run_values(flows, self.metric)
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


def check_metric(metric: str, schema: Mapping[str, pl.DataType]) -> None:
    """Check that flows have a column of numbers with this name.

    Raises:
        UsageError: they have not.
    """
    numeric = tuple(name for name, dtype in schema.items() if dtype.is_numeric())
    if metric not in numeric:
        raise UsageError(f"metric: {choice(metric, numeric)}")


def run_values(flows: pl.DataFrame, metric: str) -> Sequence[float]:
    """Return the value of each run that has one: the mean of a column over its flows."""
    values = flows.group_by("run", maintain_order=True).agg(pl.col(metric).cast(pl.Float64).mean())
    return values[metric].drop_nulls().to_list()
