"""What is compared: the runs of a setting, from results, sweeps or scenarios, and their metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import polars as pl

from bentpipe.errors import InvalidRunError, UsageError
from bentpipe.metrics import metrics_shown
from bentpipe.results.files import kind_of, read_manifest
from bentpipe.results.metric_values import metric_values, unfinished
from bentpipe.results.result import Result
from bentpipe.scenario.metric_ref import HEADINGS, MetricRef
from bentpipe.scenario.schema import Scenario
from bentpipe.sweeps.reader import Sweep
from bentpipe.sweeps.run import sweep
from bentpipe.text import choice

Source = Scenario | Result | Sweep | str | Path | Mapping[str, Any]
Progress = Callable[[int, int], None]
# A cell: the values of the varied fields.
Cell = tuple[Any, ...]

_TABLES: Final = ("flows", "directions")


@dataclass(frozen=True)
class Setting:
    """The runs of one setting: tables with the column ``run``, and what was varied in each run.

    ``runs`` has the columns ``run``, those of ``varied``, and ``seed``. Only the tables that the
    source has are in ``tables``.
    """

    label: str
    runs: pl.DataFrame
    tables: Mapping[str, pl.DataFrame]
    varied: tuple[str, ...] = ()

    def values(self, metric: MetricRef) -> dict[Cell, dict[int, float]]:
        """Return a metric by cell and seed; runs without a finite value are left out.

        Raises:
            UsageError: there is no such flow, direction or table.
        """
        if metric.table not in self.tables:
            raise UsageError(f"{metric}: {self.label} has no table {metric.table}")
        found = metric_values(self.tables[metric.table], metric)
        found = found.filter(pl.col("value").is_finite())
        cells: dict[Cell, dict[int, float]] = {cell: {} for cell in self.cells}
        rows = self.runs.join(found, on="run", maintain_order="left")
        for *cell, seed, value in rows.select(*self.varied, "seed", "value").iter_rows():
            cells[tuple(cell)][seed] = value
        return cells

    @cached_property
    def cells(self) -> dict[Cell, set[int]]:
        """The seeds of the runs of each cell; the only one of a setting is empty."""
        found: dict[Cell, set[int]] = {}
        for *cell, seed in self.runs.select(*self.varied, "seed").iter_rows():
            found.setdefault(tuple(cell), set()).add(seed)
        return found

    def split(self, column: str) -> list[Setting]:
        """Return a setting for each value of a varied column.

        Raises:
            UsageError: the column was not varied.
        """
        if column not in self.varied:
            known = choice(column, self.varied) if self.varied else "nothing was varied"
            raise UsageError(f"{self.label}: by: {known}")
        varied = tuple(name for name in self.varied if name != column)
        settings = []
        for value in self.runs[column].unique(maintain_order=True):
            runs = self.runs.filter(pl.col(column) == value)
            tables = {
                name: table.filter(pl.col("run").is_in(runs["run"].implode()))
                for name, table in self.tables.items()
            }
            settings.append(Setting(f"{column}={value}", runs, tables, varied))
        return settings


def read_settings(
    sources: Sequence[Source], seeds: int, *, threads: int | None, progress: Progress | None
) -> list[Setting]:
    """Return the settings of results, sweeps and scenarios; the latter are simulated.

    All scenarios are simulated with the same seeds, ``seeds`` from that of the first one on.

    Raises:
        UsageError: a source is none of these, or has nothing to compare.
        InvalidRunError: a run is invalid or incomplete.
    """
    opened = [_open(source) for source in sources]
    scenarios = [each for each in opened if isinstance(each, Scenario)]
    total = seeds * len(scenarios)
    done = 0

    def count(finished: int, _of: int) -> None:
        if progress is not None:
            progress(done + finished, total)

    settings: list[Setting] = []
    for source, found in zip(sources, opened, strict=True):
        label = str(source) if isinstance(source, str | Path) else _label_of(found)
        same = sum(each.label == label or each.label.startswith(f"{label} (") for each in settings)
        label = f"{label} ({same + 1})" if same else label
        if isinstance(found, Scenario):
            first = scenarios[0].seed
            simulated = sweep(
                found, seeds=range(first, first + seeds), threads=threads, progress=count
            )
            done += seeds
            settings.append(_of_sweep(label, simulated))
        elif isinstance(found, Sweep):
            settings.append(_of_sweep(label, found))
        else:
            settings.append(_of_result(label, found))
    return settings


def _open(source: Source) -> Scenario | Result | Sweep:
    """Return a source as an object: a folder is read, a file is a scenario."""
    if isinstance(source, Result | Sweep):
        return source
    if isinstance(source, str | Path) and Path(source).is_dir():
        kind = kind_of(read_manifest(Path(source)))
        if kind == "sweep":
            return Sweep.load(source)
        if kind != "run":
            raise UsageError(f"{source}: holds the result of a {kind}; compare runs or sweeps")
        return Result.load(source, events=False)
    return Scenario.of(source)


def _label_of(found: Scenario | Result | Sweep) -> str:
    if isinstance(found, Result):
        return found.manifest["scenario"].get("name") or "a result"
    return (found.name or "a scenario") if isinstance(found, Scenario) else "a sweep"


def _of_sweep(label: str, sweep: Sweep) -> Setting:
    if not sweep.flows.height:
        raise UsageError(f"{label}: has no complete run")
    _require_complete(label, sweep.results)
    run, *fields, seed = sweep.flows.columns[: sweep.flows.columns.index("seed") + 1]
    keys = [run, *fields, seed]
    runs = sweep.flows.select(keys).unique(run, maintain_order=True)
    tables = {name: getattr(sweep, name).select(run, pl.exclude(keys)) for name in _TABLES}
    tables["flows"] = _with_unfinished(tables["flows"])
    # The columns of numbers of a varied field, such as ``..._ns``, say the same.
    pairs = pairwise(["", *fields])
    varied = (name for before, name in pairs if not before or not name.startswith(f"{before}_"))
    return Setting(label, runs, tables, tuple(varied))


def _of_result(label: str, result: Result) -> Setting:
    _require_complete(label, [result])
    run = pl.lit(0, dtype=pl.UInt32).alias("run")
    runs = pl.select(run, pl.lit(result.manifest["seed"], dtype=pl.UInt64).alias("seed"))
    tables = {name: getattr(result, name).select(run, pl.all()) for name in _TABLES}
    tables["flows"] = _with_unfinished(tables["flows"])
    return Setting(label, runs, tables)


def _with_unfinished(flows: pl.DataFrame) -> pl.DataFrame:
    """Return flows with infinite times (`unfinished`); one that has ended shows a size."""
    has_size = pl.col("completion_time_ns").is_not_null().any().over("entry")
    return flows.with_columns(unfinished(has_size))


def _require_complete(label: str, results: Iterable[Result]) -> None:
    """Refuse figures that do not hold.

    Raises:
        InvalidRunError: a run was not completed.
    """
    for each in results:
        if each.state != "completed":
            raise InvalidRunError(
                f"{label}: the run with seed {each.manifest['seed']} is not complete "
                f"({each.ending}); run it again before it is compared",
                result=each,
            )


# A percentile takes so many flows: at least one beyond it.
_PERCENTILES: Final = {"p50": 2, "p95": 20, "p99": 100}


def default_metrics(settings: Sequence[Setting]) -> list[MetricRef]:
    """Return the metrics shown in comparisons that have a value other than 0."""
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
        most = max(own["run"].value_counts()["count"], default=1)
        percentiles = [name for name, needed in _PERCENTILES.items() if most >= needed]
        for metric in metrics_shown("compare", "flows"):
            times = metric.name == "completion_time_ns"
            for statistic in (percentiles if times else []) or ["mean"]:
                own_heading = heading if is_both else None
                yield MetricRef("flows", metric.name, statistic, entry, own_heading)


def _heading() -> pl.Expr:
    """Return the expression of forward or return; each of several terminals has its own return."""
    return pl.col("direction").str.split("-").list.first()


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
