"""Means over runs with their 95 % confidence intervals, as a frame."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from bentpipe.errors import UsageError
from bentpipe.results.confidence import mean_half_width
from bentpipe.text import choice


def mean_intervals(frame: pl.DataFrame, column: str, by: str | Sequence[str] = ()) -> pl.DataFrame:
    """Return the mean of a column over runs with its 95 % confidence interval, by groups.

    ``frame`` has rows of many runs, such as `Sweep.flows`. The result has a row for each
    combination of the values of ``by``, sorted: these values, ``mean``, ``low``, ``high`` and the
    number of ``runs``. The rows of one run are averaged first, because flows that share a link are
    not independent: the interval, by Student's t, is that of the means of runs. A group of one run
    has no interval; rows without a value are left out.

    Raises:
        UsageError: no such column, the column is no number, or runs of a group differ in more than
            their seeds.
    """
    groups = [by] if isinstance(by, str) else list(by)
    for name in (column, *groups):
        if name not in frame.columns:
            raise UsageError(f"column: {choice(name, tuple(frame.columns))}")
    if "run" not in frame.columns:
        raise UsageError("the frame has no column run; take the flows of a sweep")
    if not frame.schema[column].is_numeric():
        raise UsageError(f"{column}: not a number, so it has no mean")
    known = frame.filter(pl.col(column).is_not_null() & pl.col(column).is_not_nan())
    keys = [*groups, *(["seed"] if "seed" in frame.columns else []), "run"]
    runs = known.group_by(*dict.fromkeys(keys)).agg(pl.col(column).cast(float).mean())
    _require_replicates(runs, groups)
    rows = []
    for values, own in runs.sort("run").group_by(groups) if groups else [((), runs)]:
        samples = own[column].to_list()
        mean, half = float(np.mean(samples)), mean_half_width(samples)
        low, high = (None, None) if half is None else (mean - half, mean + half)
        rows.append((*values, mean, low, high, len(samples)))
    schema = {name: frame.schema[name] for name in groups} | {
        "mean": pl.Float64(),
        "low": pl.Float64(),
        "high": pl.Float64(),
        "runs": pl.UInt32(),
    }
    found = pl.DataFrame(rows, schema=schema, orient="row")
    return found.sort(groups) if groups else found


def _require_replicates(runs: pl.DataFrame, groups: Sequence[str]) -> None:
    """Refuse a group with a seed twice: its runs differ in a varied value that is not in it.

    Raises:
        UsageError: naming the seed.
    """
    if "seed" not in runs.columns or "seed" in groups:
        return
    counts = runs.group_by(*groups, "seed").len().filter(pl.col("len") > 1).sort("seed")
    if counts.height > 0:
        seed = counts["seed"].to_list()[0]
        raise UsageError(
            f"seed {seed} is in several runs of one group: their scenarios differ; group by every "
            "varied column, or filter the frame"
        )
