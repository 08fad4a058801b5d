"""What is compared: the runs of a setting, from results, sweeps or scenarios, and their metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import polars as pl

from bentpipe.errors import InvalidRunError, UsageError
from bentpipe.metrics import metrics_shown
from bentpipe.results.files import kind_of, read_manifest
from bentpipe.results.metric_values import metric_values, with_unfinished
from bentpipe.results.result import Result
from bentpipe.scenario.metric_ref import HEADINGS, MetricRef
from bentpipe.scenario.schema import Scenario
from bentpipe.sweeps.definition import check_count
from bentpipe.sweeps.reader import Sweep
from bentpipe.sweeps.run import simulate_together
from bentpipe.sweeps.tables import varied_fields
from bentpipe.text import choice

Source = Scenario | Result | Sweep | str | Path | Mapping[str, Any]
Progress = Callable[[int, int], None]
# A cell: the values of the varied fields.
Cell = tuple[Any, ...]

_TABLES: Final = ("flows", "directions")


@dataclass(frozen=True)
class Setting:
    """The runs of one setting: tables with the column ``run``, and what was varied in each run.

    ``runs`` has the columns ``run``, those of ``varied``, and ``seed``. ``scenario`` is what was
    written, plain data; of a sweep without the varied values.
    """

    label: str
    runs: pl.DataFrame
    tables: Mapping[str, pl.DataFrame]
    varied: tuple[str, ...] = ()
    scenario: Mapping[str, Any] = field(default_factory=dict)

    def values(self, metric: MetricRef, *, required: bool) -> dict[Cell, dict[int, float]]:
        """Return a metric by cell and seed; runs without a finite value are left out.

        Raises:
            UsageError: there is no such flow, direction or table, and the metric is ``required``.
        """
        if metric.table not in self.tables:
            raise UsageError(f"{metric}: {self.label} has no table {metric.table}")
        try:
            values = metric_values(self.tables[metric.table], metric)
        except UsageError:
            if required:
                raise
            return {}
        values = values.filter(pl.col("value").is_finite())
        cells: dict[Cell, dict[int, float]] = {cell: {} for cell in self.cells}
        rows = self.runs.join(values, on="run", maintain_order="left")
        for *cell, seed, value in rows.select(*self.varied, "seed", "value").iter_rows():
            cells[tuple(cell)][seed] = value
        return cells

    @cached_property
    def cells(self) -> dict[Cell, set[int]]:
        """The seeds of the runs of each cell; without varied fields, the only cell is ``()``."""
        seeds: dict[Cell, set[int]] = {}
        for *cell, seed in self.runs.select(*self.varied, "seed").iter_rows():
            seeds.setdefault(tuple(cell), set()).add(seed)
        return seeds

    @property
    def entries(self) -> list[str]:
        """The names of the entries of ``traffic``."""
        names: list[str] = self.tables["flows"]["entry"].unique(maintain_order=True).to_list()
        return names

    @property
    def unfinished(self) -> dict[str, tuple[int, int]]:
        """The transfers of a given size that had not ended with the run, and all, by entry.

        Entries of ``traffic`` whose transfers all ended are left out.
        """
        # Flows are in the order of `traffic`, which may have no names.
        sized = [
            name
            for name, entry in zip(self.entries, self.scenario.get("traffic", ()), strict=False)
            if entry.get("kind") == "bulk" and entry.get("size")
        ]
        time = pl.col("completion_time_ns")
        # A sweep in memory has no scenario: a transfer that ended shows that others have a size.
        has_size = pl.col("entry").is_in(sized) | time.is_not_null().any().over("entry")
        counts = (
            self.tables["flows"]
            .filter(has_size)
            .group_by("entry", maintain_order=True)
            .agg(unfinished=(~time.is_finite().fill_null(value=False)).sum(), transfers=pl.len())
        )
        return {
            entry: (unfinished, transfers)
            for entry, unfinished, transfers in counts.iter_rows()
            if unfinished
        }

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
            scenario = {**self.scenario, column: value}
            settings.append(Setting(f"{column}={value}", runs, tables, varied, scenario))
        return settings


def read_settings(
    sources: Sequence[Source], seeds: int, *, threads: int | None, progress: Progress | None
) -> tuple[list[Setting], bool]:
    """Return the settings of results, sweeps and scenarios; the latter are simulated.

    All scenarios are simulated with the same seeds, ``seeds`` from that of the first one on. Also
    return whether Ctrl-C ended that early: they then have the seeds that are complete in all.

    Raises:
        UsageError: a source is none of these, or has nothing to compare.
        InvalidRunError: a run is invalid or incomplete.
        RunsInterrupted: Ctrl-C, and no seed is complete in all scenarios.
    """
    opened = [_open(source) for source in sources]
    scenarios = [source for source in opened if isinstance(source, Scenario)]
    first = scenarios[0].seed if scenarios else 0
    check_count(seeds)
    chosen = range(first, first + seeds)
    simulated = iter(simulate_together(scenarios, chosen, threads=threads, progress=progress))
    settings: list[Setting] = []
    interrupted = False
    for source, content in zip(sources, opened, strict=True):
        label = str(source) if isinstance(source, str | Path) else _label_of(content)
        same = sum(
            setting.label == label or setting.label.startswith(f"{label} (") for setting in settings
        )
        label = f"{label} ({same + 1})" if same else label
        if isinstance(content, Scenario):
            runs = next(simulated)
            interrupted = interrupted or runs.interrupted
            settings.append(_setting(label, runs, content.to_dict()))
        else:
            settings.append(_setting(label, content, content.manifest.get("scenario", {})))
    return settings, interrupted


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


def _label_of(source: Scenario | Result | Sweep) -> str:
    if isinstance(source, Result):
        return source.manifest["scenario"].get("name") or "a result"
    return (source.name or "a scenario") if isinstance(source, Scenario) else "a sweep"


def _setting(label: str, source: Result | Sweep, scenario: Mapping[str, Any]) -> Setting:
    """Return the setting of a sweep, or of a result as a sweep of one run.

    Raises:
        InvalidRunError: a run was not completed, so that its figures do not hold.
    """
    frames = {name: getattr(source, name) for name in _TABLES}
    if isinstance(source, Result):
        run = pl.lit(0, dtype=pl.UInt32).alias("run")
        seed = pl.lit(source.manifest["seed"], dtype=pl.UInt64).alias("seed")
        frames = {name: frame.select(run, seed, pl.all()) for name, frame in frames.items()}
    elif not source.flows.height:
        raise UsageError(f"{label}: has no complete run")
    for result in [source] if isinstance(source, Result) else source.results:
        if result.state != "completed":
            raise InvalidRunError(
                f"{label}: the run with seed {result.manifest['seed']} is not complete "
                f"({result.ending}); run it again before it is compared",
                result=result,
            )
    columns = frames["directions"].columns
    keys = columns[: columns.index("seed") + 1]
    runs = frames["directions"].select(keys).unique("run", maintain_order=True)
    tables = {name: frame.select("run", pl.exclude(keys)) for name, frame in frames.items()}
    tables["flows"] = with_unfinished(tables["flows"])
    return Setting(label, runs, tables, tuple(varied_fields(keys[1:-1])), scenario)


# A percentile takes so many flows: at least one beyond it.
_PERCENTILES: Final = {"p50": 2, "p95": 20, "p99": 100}


def default_metrics(settings: Sequence[Setting]) -> list[MetricRef]:
    """Return the metrics shown in comparisons that have a value other than 0."""
    flows = settings[0].tables["flows"]
    candidates = [*_flow_metrics(flows), *_fairness(flows)]
    candidates += [
        MetricRef("directions", metric.name, "mean", None, heading)
        for heading in HEADINGS
        for metric in metrics_shown("compare", "directions")
    ]

    def has_values(setting: Setting, metric: MetricRef) -> bool:
        cells = setting.values(metric, required=False).values()
        return any(value for values in cells for value in values.values())

    return [
        metric for metric in candidates if any(has_values(setting, metric) for setting in settings)
    ]


def _flow_metrics(flows: pl.DataFrame) -> Iterator[MetricRef]:
    """Yield the metrics of each entry of ``traffic`` and heading of its data."""
    groups = flows.select(entry="entry", heading=_heading()).unique(maintain_order=True)
    both = groups["entry"].is_duplicated()
    for (entry, heading), is_both in zip(groups.rows(), both, strict=True):
        rows = flows.filter((pl.col("entry") == entry) & (_heading() == heading))
        most = max(rows["run"].value_counts()["count"], default=1)
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
        rows = flows.filter(_heading() == heading)
        if rows["run"].is_duplicated().any() and (rows["kind"] == "bulk").all():
            yield MetricRef("flows", "goodput_bps", "jain", None, heading)
