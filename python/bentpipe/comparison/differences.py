"""Settings compared metric by metric, with the run as the sample.

Flows that share a link are not independent, so that a metric is reduced to one value for each run
first. Runs with the same seed are a pair: the same seed loses the same packets of a link, so that
their difference varies less than the runs do.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field, replace
from itertools import product
from statistics import NormalDist
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from bentpipe.comparison.settings import (
    Cell,
    Progress,
    Setting,
    Source,
    default_metrics,
    read_settings,
)
from bentpipe.errors import UsageError
from bentpipe.results.confidence import (
    CONFIDENCE,
    MIN_BOOTSTRAP_VALUES,
    Interval,
    bootstrap_interval,
)
from bentpipe.results.views import Column, from_mappings, html_table
from bentpipe.scenario.document import differing
from bentpipe.scenario.metric_ref import MetricRef, read_metric
from bentpipe.text import counted

# The share of experiments that show a difference of the stated size with the stated seeds.
POWER: Final = 0.8
_NORMAL: Final = NormalDist()
# Guenther, Sample size formulas for normal theory t tests, The American Statistician 35 (1981): the
# normal approximation lacks half a squared quantile (paired), or a quarter of one (unpaired).
_GUENTHER: Final = {True: 2, False: 4}

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Summary:
    """Number, mean and standard deviation (None of a single value) of the values of runs."""

    runs: int
    mean: float
    deviation: float | None

    @classmethod
    def of(cls, values: Array) -> Summary:
        """Return the summary of values, at least one."""
        deviation = float(values.std(ddof=1)) if values.size > 1 else None
        return cls(values.size, float(values.mean()), deviation)


@dataclass(frozen=True)
class Estimate:
    """The difference of means, second minus first, with its 95 % interval and effect size.

    ``paired``: each value of the first set has a partner with the same seed in the second. The
    effect size is then Cohen's d_z, the mean of the differences over their standard deviation
    (Cohen, Statistical power analysis for the behavioral sciences, 1988, 2.3.5); otherwise Hedges'
    g, the difference over the pooled standard deviation, corrected for small samples (Hedges, J.
    Educ. Stat. 6 (1981) 107-128). It is None without a deviation.
    """

    paired: bool
    first: Summary
    second: Summary
    difference: float
    interval: Interval | None
    effect: float | None
    spread: float | None

    @property
    def shown(self) -> bool | None:
        """Whether the interval excludes zero; None without an interval."""
        return None if self.interval is None else not self.interval.contains(0.0)

    @property
    def exact(self) -> bool:
        """Whether the difference does not depend on the seed, so that more seeds change nothing."""
        return _is_exact(self.interval)

    def seeds_to_show(self, difference: float) -> int | None:
        """Return the seeds that show a difference of this size with a probability of 80 %.

        None if the spread is not known, or zero. The source of the formula is that of `_GUENTHER`.
        """
        if not self.spread or not difference:
            return None
        quantile = _NORMAL.inv_cdf((1 + CONFIDENCE) / 2)
        total = quantile + _NORMAL.inv_cdf(POWER)
        seeds = (total * self.spread / abs(difference)) ** 2
        seeds += quantile**2 / _GUENTHER[self.paired]
        return max(MIN_BOOTSTRAP_VALUES, math.ceil(seeds))


def paired_estimate(first: Array, second: Array) -> Estimate:
    """Return the difference of values in pairs, at least one."""
    differences = second - first
    _, mean, spread = astuple(Summary.of(differences))
    interval = bootstrap_interval(differences)
    effect = mean / spread if spread and not _is_exact(interval) else None
    return Estimate(True, Summary.of(first), Summary.of(second), mean, interval, effect, spread)


def unpaired_estimate(first: Array, second: Array) -> Estimate:
    """Return the difference of two independent sets of values, at least one each."""
    summaries = Summary.of(first), Summary.of(second)
    difference = summaries[1].mean - summaries[0].mean
    interval = bootstrap_interval(second, first)
    effect = spread = None
    degrees = first.size + second.size - 2
    if degrees > 0:
        squares = sum((summary.runs - 1) * (summary.deviation or 0.0) ** 2 for summary in summaries)
        pooled = math.sqrt(squares / degrees)
        # The deviation of a difference of one value of each set.
        spread = math.sqrt(sum((summary.deviation or 0.0) ** 2 for summary in summaries))
        if pooled and not _is_exact(interval):
            # Hedges' approximation of the correction, J = 1 - 3 / (4 degrees - 1).
            effect = difference / pooled * (1 - 3 / (4 * degrees - 1))
    return Estimate(False, *summaries, difference, interval, effect, spread)


def _is_exact(interval: Interval | None) -> bool:
    return interval is not None and interval.low == interval.high


SEEDS: Final = 30
DIFFERENCE: Final = 0.05


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One metric of a setting minus that of the baseline, in one cell.

    ``baseline`` and ``setting`` are the labels; ``cell`` has the varied values of a sweep.
    ``values`` are those of the runs of both, pair by pair if they are paired. ``missing`` counts
    the runs, or pairs, without a value. ``sought`` is the difference that ``more_seeds`` more seeds
    would show; both are None where that is not known.
    """

    metric: MetricRef
    baseline: str
    setting: str
    cell: Mapping[str, Any]
    values: tuple[Array, Array]
    estimate: Estimate
    missing: int
    sought: float | None
    more_seeds: int | None

    @property
    def verdict(self) -> str:
        """What the interval shows, or why there is none."""
        if self.estimate.shown is None:
            runs = min(self.estimate.first.runs, self.estimate.second.runs)
            count = counted(runs, "pair" if self.estimate.paired else "run")
            return f"no interval: {count}, and an interval takes {MIN_BOOTSTRAP_VALUES}"
        if self.equal:
            return "equal in every run"
        return "difference shown" if self.estimate.shown else "no difference shown"

    @property
    def equal(self) -> bool:
        """Whether both settings have the same value in each pair, or in all runs."""
        interval = self.estimate.interval
        return interval is not None and interval.low == interval.high == 0

    def to_json(self) -> dict[str, Any]:
        """Return the difference as plain data, in the base unit of the metric."""
        estimate, interval = self.estimate, self.estimate.interval
        return {
            "metric": str(self.metric),
            "better": self.metric.better or None,
            "baseline": self.baseline,
            "setting": self.setting,
            "cell": dict(self.cell),
            "paired": estimate.paired,
            "baseline_runs": asdict(estimate.first),
            "setting_runs": asdict(estimate.second),
            "missing": self.missing,
            "difference": estimate.difference,
            "low": None if interval is None else interval.low,
            "high": None if interval is None else interval.high,
            "effect_size": estimate.effect,
            "effect_size_name": "cohen_d_z" if estimate.paired else "hedges_g",
            "exact": estimate.exact,
            "shown": estimate.shown,
            "verdict": self.verdict,
            "sought_difference": self.sought,
            "more_seeds": self.more_seeds,
        }


@dataclass(frozen=True, kw_only=True)
class MetricValues:
    """One metric in one cell: the runs of each setting by label, None of one without a value."""

    metric: MetricRef
    cell: Mapping[str, Any]
    settings: Mapping[str, Summary | None]

    def to_json(self) -> dict[str, Any]:
        """Return the values as plain data, in the base unit of the metric."""
        settings = {
            label: None if summary is None else asdict(summary)
            for label, summary in self.settings.items()
        }
        better = self.metric.better or None
        cell = dict(self.cell)
        return {"metric": str(self.metric), "better": better, "cell": cell, "settings": settings}


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Settings compared with the first one, the baseline.

    ``differences`` has one for each other setting, cell and metric, in this order. ``metrics`` has
    all settings beside each other for each cell and metric, and ``changed`` the values of the
    scenarios, by path, that are not the same in all: None where one has no such value. ``sought``
    is the difference, as a share of the baseline's mean, for which the number of seeds is stated.
    """

    labels: tuple[str, ...]
    runs: tuple[int, ...]
    differences: tuple[Difference, ...]
    metrics: tuple[MetricValues, ...]
    changed: Mapping[str, tuple[Any, ...]]
    sought: float
    unmatched: Mapping[str, tuple[list[str], list[str]]] = field(default_factory=dict)
    """By setting: the entries of ``traffic`` that only the baseline has, and that only it has."""
    unfinished: Mapping[str, Mapping[str, tuple[int, int]]] = field(default_factory=dict)
    """By setting and entry of ``traffic``: the transfers without a completion time, and all."""
    interrupted: bool = False
    """Whether Ctrl-C ended the runs early: they have the seeds that are complete in all."""

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as plain data."""
        return {
            "changed_settings": {
                path: dict(zip(self.labels, values, strict=True))
                for path, values in self.changed.items()
            },
            "metrics": [metric.to_json() for metric in self.metrics],
            "settings": [
                {"label": label, "runs": runs}
                for label, runs in zip(self.labels, self.runs, strict=True)
            ],
            "sought_percent": 100 * self.sought,
            "interrupted": self.interrupted,
            "unmatched_entries": {
                label: dict(zip(("baseline_only", "setting_only"), entries, strict=True))
                for label, entries in self.unmatched.items()
            },
            "unfinished_transfers": {
                label: {
                    entry: {"unfinished": unfinished, "transfers": transfers}
                    for entry, (unfinished, transfers) in entries.items()
                }
                for label, entries in self.unfinished.items()
            },
            "differences": [difference.to_json() for difference in self.differences],
        }

    def _repr_html_(self) -> str:
        """Show the differences as a table, for notebooks."""
        columns = [Column(name, name) for name in ("metric", "setting", "difference", "verdict")]
        rows = [difference.to_json() for difference in self.differences]
        return html_table(from_mappings("", columns, rows))


def compare(
    *sources: Source,
    metrics: Sequence[str] | None = None,
    by: str | None = None,
    seeds: int = SEEDS,
    difference: float = DIFFERENCE,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Compare settings with the first one: differences of means, 95 % intervals, effect sizes.

    Runs are paired by seed if five or more seeds are common, and compared cell by cell if fields
    were varied. The interval is by the symmetric studentized bootstrap
    (`bentpipe.results.confidence`).

    Parameters
    ----------
    sources
        A `Result` or `Sweep` each, the folder of one, or a scenario, which is simulated first.
    metrics
        Names such as ``flows.download.goodput_bps.p5``; by default those of each entry of
        ``traffic`` and each direction.
    by
        A varied field of a single sweep: its values are the settings.
    seeds
        The seeds of each scenario.
    difference
        The share of the baseline's mean for which the number of seeds is stated.
    threads
        One for each core by default.
    progress
        Called with the runs that are done, and their number.

    Returns
    -------
    Comparison
        A difference for each metric and each setting but the first.

    Raises
    ------
    ScenarioError
        A scenario is wrong; nothing was run.
    UsageError
        There are no two settings, or they have no metric or cell in common.
    InvalidRunError
        A run is invalid or incomplete.
    RunsInterrupted
        Ctrl-C, and no seed is complete in all scenarios; otherwise the comparison is that of the
        complete seeds, and is marked interrupted.

    Examples
    --------
    >>> files = ("scenarios/lossy-cubic.yaml", "scenarios/lossy-bbr.yaml")
    >>> jitter = "flows.call.forward.jitter_mean_ns.mean"
    >>> found = bentpipe.compare(*files, metrics=[jitter], seeds=10)
    >>> [each.verdict for each in found.differences]
    ['difference shown']
    """
    if seeds < 1 or difference <= 0:
        raise UsageError("seeds and difference: must be above zero")
    chosen = [read_metric(name) for name in metrics or ()]
    if len(sources) < 2 - (by is not None) or (by is not None and len(sources) > 1):
        one = "one sweep, split by a varied field" if by is not None else "two or more settings"
        raise UsageError(f"{len(sources)} sources; compare takes {one}")
    settings, interrupted = read_settings(sources, seeds, threads=threads, progress=progress)
    if by is not None:
        settings = settings[0].split(by)
        if len(settings) < 2:  # noqa: PLR2004 - one value has nothing to compare with
            raise UsageError(f"by: {by} has one value, so there is nothing to compare")
    return replace(_comparison(settings, chosen, difference), interrupted=interrupted)


_Values = dict[MetricRef, dict[Cell, dict[int, float]]]


def _comparison(
    settings: Sequence[Setting], chosen: Sequence[MetricRef], sought: float
) -> Comparison:
    """Compare settings with the first one, in the chosen metrics or in those that have values."""
    cells = _common_cells(settings)
    metrics = chosen or default_metrics(settings)
    # The other setting may have no entry with the name of a default metric.
    values = [
        {metric: setting.values(metric, required=bool(chosen)) for metric in metrics}
        for setting in settings
    ]
    baseline, *others = zip(settings, values, strict=True)
    differences = [
        made
        for other, cell, metric in product(others, cells, metrics)
        if (made := _difference(metric, cell, baseline, other, sought))
    ]
    if not differences:
        raise UsageError("the settings have no metric with values in common")
    scenarios = [setting.scenario for setting in settings]
    return Comparison(
        labels=tuple(setting.label for setting in settings),
        runs=tuple(setting.runs.height for setting in settings),
        differences=tuple(differences),
        metrics=tuple(
            MetricValues(
                metric=metric,
                cell=dict(zip(settings[0].varied, cell, strict=True)),
                settings=_summaries(settings, values, metric, cell),
            )
            for cell, metric in product(cells, metrics)
            if any(by_metric[metric].get(cell) for by_metric in values)
        ),
        # A sweep in memory does not say what its scenario was.
        changed=differing(*scenarios) if all(scenarios) else {},
        sought=sought,
        unmatched={} if chosen else dict(_unmatched(settings)),
        unfinished=_unfinished(settings, chosen),
    )


def _unfinished(
    settings: Sequence[Setting], chosen: Sequence[MetricRef]
) -> dict[str, dict[str, tuple[int, int]]]:
    """Return the transfers that had not ended, if completion times are compared."""
    if chosen and all(metric.column != "completion_time_ns" for metric in chosen):
        return {}
    counts = {setting.label: setting.unfinished for setting in settings}
    return {label: entries for label, entries in counts.items() if entries}


def _unmatched(settings: Sequence[Setting]) -> Iterator[tuple[str, tuple[list[str], list[str]]]]:
    """Yield the settings whose entries of ``traffic`` have other names, with `unmatched`."""
    baseline, *others = (setting.entries for setting in settings)
    for setting, entries in zip(settings[1:], others, strict=True):
        first_only = [name for name in baseline if name not in entries]
        own_only = [name for name in entries if name not in baseline]
        if first_only or own_only:
            yield setting.label, (first_only, own_only)


def _summaries(
    settings: Sequence[Setting], values: Sequence[_Values], metric: MetricRef, cell: Cell
) -> dict[str, Summary | None]:
    """Return the runs of each setting by label; None of one without a value."""
    cell_values = [by_metric[metric].get(cell, {}) for by_metric in values]
    return {
        setting.label: Summary.of(_array(by_seed, by_seed)) if by_seed else None
        for setting, by_seed in zip(settings, cell_values, strict=True)
    }


def _common_cells(settings: Sequence[Setting]) -> list[Cell]:
    """Return the cells that all settings have.

    Raises:
        UsageError: other fields were varied, or no cell is in all.
    """
    first = settings[0]
    for other in settings[1:]:
        if other.varied != first.varied:
            shown = [", ".join(setting.varied) or "nothing" for setting in (first, other)]
            raise UsageError(
                f"{first.label} varies {shown[0]}, {other.label} varies {shown[1]}; compare sweeps "
                "of the same fields, or one sweep by a field"
            )
    cells = [cell for cell in first.cells if all(cell in other.cells for other in settings)]
    if not cells:
        raise UsageError("the sweeps have no cell in common: their varied values differ")
    return cells


def _difference(
    metric: MetricRef,
    cell: Cell,
    baseline: tuple[Setting, _Values],
    other: tuple[Setting, _Values],
    sought: float,
) -> Difference | None:
    """Return the difference in one metric; None if a setting has no value of it."""
    first, second = (values[metric].get(cell, {}) for _, values in (baseline, other))
    if not first or not second:
        return None
    common = [seed for seed in first if seed in second]
    alone = len(first) == len(second) == 1
    seeds = [setting.cells[cell] for setting, _ in (baseline, other)]
    if len(common) >= MIN_BOOTSTRAP_VALUES or (alone and common):
        pairs = _array(first, common), _array(second, common)
        estimate = paired_estimate(*pairs)
        missing = len(seeds[0] & seeds[1]) - len(common)
    else:
        pairs = _array(first, first), _array(second, second)
        estimate = unpaired_estimate(*pairs)
        missing = sum(map(len, seeds)) - len(first) - len(second)
    size = sought * abs(estimate.first.mean)
    needed = estimate.seeds_to_show(size)
    return Difference(
        metric=metric,
        baseline=baseline[0].label,
        setting=other[0].label,
        cell=dict(zip(baseline[0].varied, cell, strict=True)),
        values=pairs,
        estimate=estimate,
        missing=missing,
        sought=size if needed is not None else None,
        more_seeds=None if needed is None else max(0, needed - estimate.first.runs),
    )


def _array(values: Mapping[int, float], seeds: Sequence[int] | Mapping[int, float]) -> Array:
    return np.array([values[seed] for seed in seeds], dtype=np.float64)
