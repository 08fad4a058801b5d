"""The metrics that are compared unless some are chosen: those with a value other than 0."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import polars as pl

from bentpipe.comparison.settings import Setting
from bentpipe.metrics import metrics_shown
from bentpipe.scenario.metric_ref import HEADINGS, MetricRef

# A percentile takes so many flows: at least one beyond it.
_PERCENTILES: Final = {"p50": 2, "p95": 20, "p99": 100}


def default_metrics(settings: Sequence[Setting]) -> list[MetricRef]:
    """Return the metrics of all entries and directions that the first setting has.

    They are those that the registry (`bentpipe.metrics`) shows in comparisons.

    Metrics without a value, or zero in all runs, are left out.
    """
    flows = settings[0].tables["flows"]
    candidates = [*_flow_metrics(flows), *_fairness(flows)]
    if "directions" in settings[0].tables:
        candidates += [
            MetricRef("directions", metric.name, "mean", None, heading)
            for heading in HEADINGS
            for metric in metrics_shown("compare", "directions")
        ]
    return [metric for metric in candidates if any(_has_values(each, metric) for each in settings)]


def _flow_metrics(flows: pl.DataFrame) -> Iterator[MetricRef]:
    """Yield the metrics of each entry of ``traffic`` and heading of its data."""
    groups = flows.select(entry="entry", heading=_heading()).unique(maintain_order=True)
    both = groups["entry"].is_duplicated()
    for (entry, heading), is_both in zip(groups.rows(), both, strict=True):
        own = flows.filter((pl.col("entry") == entry) & (_heading() == heading))
        largest = own.group_by("run").len()["len"].max()
        for metric in metrics_shown("compare", "flows"):
            for statistic in _statistics(metric.name, largest if isinstance(largest, int) else 1):
                yield MetricRef(
                    "flows", metric.name, statistic, entry, heading if is_both else None
                )


def _heading() -> pl.Expr:
    """Return the expression of forward or return; each of several terminals has its own return."""
    return pl.col("direction").str.split("-").list.first()


def _statistics(column: str, flows: int) -> list[str]:
    if column == "completion_time_ns" and flows > 1:
        return [name for name, needed in _PERCENTILES.items() if flows >= needed]
    return ["mean"]


def _fairness(flows: pl.DataFrame) -> Iterator[MetricRef]:
    """Yield the fairness of each heading whose flows are all bulk, and more than one."""
    for heading in HEADINGS:
        own = flows.filter(_heading() == heading)
        if own["run"].is_duplicated().any() and (own["kind"] == "bulk").all():
            yield MetricRef("flows", "goodput_bps", "jain", None, heading)


def _has_values(setting: Setting, metric: MetricRef) -> bool:
    """Return whether a metric has a value other than zero in some run."""
    if metric.table not in setting.tables:
        return False
    if metric.name is not None and not (setting.tables["flows"]["entry"] == metric.name).any():
        return False
    cells = setting.values(metric).values()
    return any(value for values in cells for value in values.values())
