"""A finished sweep: its reader, and the means of its cells with their confidence intervals."""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import polars as pl

from bentpipe.errors import UsageError
from bentpipe.metrics import Metric, metrics_shown
from bentpipe.results.confidence import CONFIDENCE, t_quantile
from bentpipe.results.files import kind_of, read_file, read_manifest, read_unchanged, require_format
from bentpipe.results.metric_values import with_unfinished
from bentpipe.results.result import Result
from bentpipe.results.tables import Frame, to_pandas
from bentpipe.sweeps.folder import run_name
from bentpipe.sweeps.journal import Run
from bentpipe.sweeps.tables import FAILURES, RUNS, TABLES


@dataclass(frozen=True)
class Sweep:
    """Many runs of one scenario.

    ``flows`` has a row a flow a run: ``run``, a number from 0, the varied values, ``seed``, and
    then the columns of `Result.flows`; ``directions`` likewise. The runs are in the order of the
    points: the last varied field changes fastest, and the seeds faster still. The column of a
    varied value is named after its path. Where all values are quantities, such as "275 ms", a
    second column has the numbers, and its name ends in the unit: ``link.forward.delay_ns``.

    ``runs`` has a row a run: how it ended, and its work. ``results`` has the result of each run,
    ``results[run]``; a sweep that was loaded has those of ``--keep-runs``, or none. ``failures``
    has a row for each run that failed, with its seed and error. ``interrupted``: the sweep ended
    before all runs were complete.

    Examples
    --------
    >>> swept = bentpipe.sweep("scenarios/geo-bulk.yaml", vary={"traffic.0.size": ["1 MB", "2 MB"]})
    >>> swept.cells.select("traffic.0.size", "runs").rows()
    [('1 MB', 1), ('2 MB', 1)]
    """

    results: tuple[Result, ...]
    flows: pl.DataFrame
    directions: pl.DataFrame
    interrupted: bool
    runs: pl.DataFrame = field(default_factory=pl.DataFrame)
    failures: pl.DataFrame = field(default_factory=pl.DataFrame)
    manifest: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def cells(self) -> pl.DataFrame:
        """Return a row for each combination of varied values: the number of runs, and means.

        A mean is over the runs, and the value of a run is the mean over its flows. ``NAME`` is
        followed by ``NAME_half_width``, half the width of its 95 % confidence interval, and by
        ``NAME_runs``, the number of runs that have a value: one with a transfer that did not end
        has no completion time.
        """
        return Frame(cell_means(self.flows, self.directions))

    @property
    def thresholds(self) -> list[dict[str, Any]]:
        """Return each threshold of the scenario in each cell, for a sweep with a folder.

        Each run of a cell must meet it: ``value`` is that of the run, with ``seed``, that misses it
        most or meets it least, and ``failed_runs`` of ``runs`` miss it.
        """
        return [dict(check) for check in self.manifest.get("thresholds", ())]

    @classmethod
    def load(cls, folder: str | Path, *, results: bool = True) -> Self:
        """Read the result folder of ``bentpipe sweep``; without ``results``, leave the runs out.

        Raises:
            UsageError: not the folder of a sweep, of an unknown format version, or damaged.
        """
        path = Path(folder)
        return read_unchanged(path, lambda: cls._load(path, results))

    @classmethod
    def _load(cls, path: Path, results: bool) -> Self:
        manifest = read_manifest(path)
        if kind_of(manifest) != "sweep":
            raise UsageError(f"{path}: holds the result of a {kind_of(manifest)}, not of a sweep")
        require_format(path, manifest)
        try:
            tables = {
                name: _read_table(path, name, manifest) if manifest["runs"] else pl.DataFrame()
                for name in TABLES
            }
            runs, failures = (read_file(path, name, pl.read_parquet) for name in (RUNS, FAILURES))
        except (OSError, pl.exceptions.PolarsError) as error:
            raise UsageError(f"{path}: cannot be read, the result is damaged: {error}") from None
        # Ctrl-C may leave the folder of a run that has no row.
        folders = [
            path / "runs" / run_name(Run(*row)) for row in runs.select("point", "seed").iter_rows()
        ]
        kept = [folder for folder in folders if folder.is_dir()] if results else []
        return cls(
            results=tuple(Result.load(folder) for folder in kept),
            flows=Frame(tables["flows"]),
            directions=Frame(tables["directions"]),
            interrupted=manifest["state"] != "completed",
            runs=Frame(runs),
            failures=Frame(failures),
            manifest=manifest,
        )

    def to_json(self) -> dict[str, Any]:
        """Return the cells and the failed runs as plain data for JSON."""
        names = ("axes", "seeds", "until_ci", "state", "runs", "failed_runs")
        return {
            "scenario": self.manifest["scenario"].get("name", ""),
            **{name: self.manifest[name] for name in names},
            "cells": self.cells.to_dicts(),
            "failures": self.failures.to_dicts(),
            "thresholds": self.thresholds,
        }

    def to_pandas(self, table: str = "flows") -> Any:
        """Return ``flows``, ``directions``, ``runs`` or ``failures`` as a pandas frame.

        Raises:
            UsageError: there is no such table, or pandas is not installed.
        """
        return to_pandas(self, table, ("flows", "directions", "runs", "failures"))

    def _repr_html_(self) -> str:
        """Show the flows of all runs, for notebooks."""
        table: str = self.flows._repr_html_()
        return table


def _read_table(path: Path, table: str, manifest: Mapping[str, Any]) -> pl.DataFrame:
    """Return the rows of a table, its runs and columns in order."""
    types = {name: getattr(pl, dtype) for name, dtype in manifest["columns"][table]}
    partitions = {name: types[name] for name in manifest["partitions"]}

    def read(folder: Path) -> pl.DataFrame:
        files = sorted(folder.rglob("part-*.parquet"))
        if not files:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(folder))
        return pl.scan_parquet(
            files, hive_partitioning=bool(partitions), hive_schema=partitions or None
        ).collect()

    rows = read_file(path, table, read).select(list(types))
    return rows if rows["run"].is_sorted() else rows.sort("run", maintain_order=True)


def cell_metrics() -> dict[str, Metric]:
    """Return the metrics that a cell has means of, by the name of the column.

    They are the metrics of flows and, with ``forward_`` in front, of the forward direction.
    """
    of_flows = {metric.name: metric for metric in metrics_shown("sweep", "flows")}
    directions = metrics_shown("sweep", "directions")
    return of_flows | {f"forward_{metric.name}": metric for metric in directions}


def cell_means(flows: pl.DataFrame, directions: pl.DataFrame) -> pl.DataFrame:
    """Return `Sweep.cells`, of the metrics `cell_metrics`.

    The intervals are by Student's t distribution; null with less than two runs.
    """
    if not flows.height:
        return pl.DataFrame()
    keys, metrics = flows.columns[1 : flows.columns.index("seed")], cell_metrics()
    of_flows = [name for name, metric in metrics.items() if metric.table == "flows"]
    of_directions = {name: metric.name for name, metric in metrics.items() if name not in of_flows}
    forward = directions.filter(pl.col("direction") == "forward").select("run", **of_directions)
    of_runs = (
        with_unfinished(flows)
        .group_by("run", maintain_order=True)
        .agg(pl.col(keys).first(), pl.col(of_flows).cast(pl.Float64).mean())
        .join(forward, on="run", how="left", maintain_order="left")
    )
    # Without varied values there is one cell.
    of_runs = of_runs.with_columns(cell=pl.lit(0)) if not keys else of_runs
    names = pl.col(list(metrics))
    of_runs = of_runs.with_columns(pl.when(names.is_finite()).then(names))
    cells = of_runs.group_by(keys or ["cell"], maintain_order=True).agg(
        pl.len().alias("runs"),
        names.mean(),
        names.std().name.suffix("_deviation"),
        names.count().name.suffix("_runs"),
    )
    columns = ((name, _half_width(cells, name), f"{name}_runs") for name in metrics)
    return cells.select(*keys, "runs", *(column for of_metric in columns for column in of_metric))


def _half_width(cells: pl.DataFrame, name: str) -> pl.Series:
    pairs = zip(cells[f"{name}_runs"], cells[f"{name}_deviation"], strict=True)
    widths = [
        None if d is None else t_quantile((1 + CONFIDENCE) / 2, count - 1) * d / math.sqrt(count)
        for count, d in pairs
    ]
    return pl.Series(f"{name}_half_width", widths, dtype=pl.Float64)
