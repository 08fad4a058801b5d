"""The outcome of a study: plain data, tables for a terminal, and a folder with a report."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from matplotlib.figure import Figure

from bentpipe.errors import UsageError
from bentpipe.live.pool import EmulatedRun
from bentpipe.report.html import Exports, environment
from bentpipe.report.style import INK, PALETTE, add_legend, new_figure
from bentpipe.results.files import REPORT, csv_text, json_text
from bentpipe.results.output import OutputFolder, write_folder
from bentpipe.results.views import Column, View
from bentpipe.studies.base import tables
from bentpipe.studies.base.comparison import Comparison, Row, Samples
from bentpipe.studies.base.inputs import COUNTED, MEANINGS, STUDIES_FOLDER, Input
from bentpipe.studies.base.tables import interval_text, number


@dataclass(frozen=True, kw_only=True)
class StudyOutcome:
    """The compared rows of a study with its inputs.

    ``comparisons`` are by name; the first one is the study's table, and its rows are the ``cells``
    of the JSON. ``about_runs`` says how many runs there are. Each study derives a class with its
    figures, its terminal tables and the variables of its template.
    """

    engine: ClassVar[str] = "simulate"
    template: ClassVar[str] = "report.html.j2"

    study: str
    title: str
    inputs: tuple[Input, ...]
    comparisons: Mapping[str, Comparison]
    configuration: dict[str, Any]
    interrupted: bool
    about_runs: str = ""

    @property
    def main(self) -> Comparison:
        """The study's table."""
        return next(iter(self.comparisons.values()))

    # --- what a study adds -----------------------------------------------------------------------

    def extras(self) -> dict[str, Any]:
        """Return further figures for the JSON, by name."""
        return {}

    def context(self) -> dict[str, Any]:
        """Return the variables of the report's template, in addition to the outcome."""
        return {}

    def terminal(self) -> Iterator[View | str]:
        """Yield tables and lines for a terminal."""
        yield from self.headline()

    # --- what every study does -------------------------------------------------------------------

    def headline(self) -> list[str]:
        """Return the mean errors by provenance, a sentence for each."""
        return [
            f"{provenance.value.capitalize()} rows: {tables.errors_text(rows)}"
            for provenance in COUNTED
            if (rows := self.main.of(provenance))
        ]

    def summary(self) -> dict[str, Any]:
        """Return counts and errors of the study's table by provenance."""
        return self.main.summary()

    def to_json(self) -> dict[str, Any]:
        """Return the figures as plain data."""
        (_, main), *others = self.comparisons.items()
        return {
            "study": self.study,
            "engine": self.engine,
            "interrupted": self.interrupted,
            "inputs": [each.to_json() for each in self.inputs],
            "cells": [row.to_json() for row in main.rows],
            "summary": self.summary(),
            **{
                name: {"cells": [row.to_json() for row in each.rows], "summary": each.summary()}
                for name, each in others
            },
            **self.extras(),
            "configuration": self.configuration,
        }

    def report(self, exports: Exports | None = None) -> str:
        """Return the report as HTML, always the same; ``exports`` gets its figures, linked."""
        folders = (STUDIES_FOLDER / self.study, STUDIES_FOLDER / "base")
        version = self.configuration["bentpipe_version"]
        template = environment(*folders).get_template(self.template)
        return template.render(
            title=self.title,
            facts="; ".join(filter(None, [f"bentpipe {version}", self.about_runs])),
            outcome=self,
            configuration=self.configuration,
            pretty_configuration=json.dumps(self.configuration, indent=2),
            main=self.main,
            inputs=tables.view("base", "inputs", [each.to_json() for each in self.inputs]),
            meanings=MEANINGS,
            number=tables.number,
            errors_text=tables.errors_text,
            row_text=tables.row_text,
            exports=exports,
            **self.context(),
        )

    def write(self, out: Path | OutputFolder) -> Path:
        """Write report.html with its charts, cells.csv, inputs.csv, result.json and the manifest.

        An existing study is replaced. Returns the folder, which is created if missing.

        Raises:
            UsageError: the folder contains other files, or cannot be written.
        """
        inputs = [each.to_json() for each in self.inputs]
        exports = Exports()
        report = self.report(exports)
        return write_folder(
            out,
            kind="study",
            manifest={
                "bentpipe_version": self.configuration["bentpipe_version"],
                "study": self.study,
                "interrupted": self.interrupted,
                "configuration": self.configuration,
            },
            files={
                REPORT: report,
                **exports.files,
                **self.csv_files(),
                "inputs.csv": csv_text(list(inputs[0]), [list(each.values()) for each in inputs]),
                "result.json": json_text(self.to_json()),
            },
        )

    def csv_files(self) -> dict[str, str]:
        """Return the rows of all comparisons as CSV: a file for each set of labels.

        ``cells.csv`` has the study's table, with those that have the same labels.
        """
        files: dict[tuple[str, ...], tuple[str, list[Any]]] = {}
        for name, comparison in self.comparisons.items():
            for row in comparison.rows:
                cell = {"comparison": name, **row.to_json()}
                file = f"{name}.csv" if files else "cells.csv"
                files.setdefault(tuple(cell), (file, []))[1].append(cell.values())
        return {name: csv_text(columns, rows) for columns, (name, rows) in files.items()}


_Cell = TypeVar("_Cell")


def cells_by_name(chosen: str, names: Mapping[_Cell, str], how: str) -> tuple[_Cell, ...]:
    """Return cells by a list with commas of names, or of their beginnings up to a colon.

    ``how`` is the rest of the message for a name that no cell has.

    Raises:
        UsageError: there is no such cell.
    """
    found: dict[_Cell, None] = {}
    for name in chosen.split(","):
        wanted = name.strip().lower()
        matching = [
            cell for cell, own in names.items() if f"{own.lower()}:".startswith(f"{wanted}:")
        ]
        if not matching:
            raise UsageError(f'cells: read "{name.strip()}"; there is no such cell. {how}')
        found.update(dict.fromkeys(matching))
    return tuple(found)


def real_row(
    row: Row, run: EmulatedRun | None, emulated: float | None, kernel_hosts: Samples | None = None
) -> Row:
    """Return a row with the value of its run in real time, ``emulated``, in the unit of the row.

    ``kernel_hosts`` are simulations with the kernel's TCP settings, None for a row without TCP. The
    difference is emulated less simulated (with the kernel's settings, if any), in percent of the
    simulated value; an invalid run has none.
    """
    hosts = Samples() if kernel_hosts is None else kernel_hosts
    simulated = row.simulated.mean if hosts.mean is None else hosts.mean
    invalid = None if run is None else run.invalid
    difference = None
    if emulated is not None and simulated is not None and invalid is None:
        difference = 100 * (emulated / simulated - 1)
    about = {
        "simulated_kernel_hosts": hosts,
        "emulated": emulated,
        "difference_percent": difference,
        "attempts": 0 if run is None else run.attempts,
        "invalid": invalid,
    }
    return replace(row, more={**row.more, **about})


@dataclass(frozen=True, kw_only=True)
class RealOutcome(StudyOutcome):
    """The rows that were run in real time (`real_row`); ``labels`` are their first columns."""

    engine: ClassVar[str] = "emulate"
    template: ClassVar[str] = "real_time.html.j2"

    labels: tuple[Column, ...]

    def differences(self) -> Samples:
        """Return the absolute differences of emulated and simulated values, in percent."""
        known = (row.more["difference_percent"] for row in self.main.rows)
        return Samples.of((abs(each) for each in known if isinstance(each, float)), exact=False)

    def summary(self) -> dict[str, Any]:
        """Return the summary of the rows, and the mean and the largest absolute difference."""
        differences = self.differences()
        return {
            **super().summary(),
            **differences.to_json("mean_absolute_difference_percent"),
            "max_absolute_difference_percent": max(differences.values, default=None),
            "invalid": [row.name for row in self.main.rows if row.more["invalid"] is not None],
        }

    def headline(self) -> list[str]:
        """Return the mean and the largest absolute difference, and the invalid rows, as text."""
        differences, summary = self.differences(), self.summary()
        largest, late = summary["max_absolute_difference_percent"], "; ".join(summary["invalid"])
        text = (
            f"Emulated vs. simulated (same hosts): {len(differences.values)} rows, mean absolute "
            f"difference {number(differences.mean)} % (95 % interval over the rows: "
            f"{interval_text(differences.interval)}), largest {number(largest)} %."
        )
        return [f"{text} Invalid, not counted: {late}." if late else text]

    def view(self) -> View:
        """Return the table, without columns of values that no row can have."""
        is_published = any(row.published is not None for row in self.main.rows)
        is_invalid = any(row["invalid"] is not None for row in self.main.rows)
        columns = tables.columns("base", "real_time" if is_published else "unpublished")
        found = (each for each in columns if is_invalid or each.name != "invalid")
        view = tables.view("base", "real_time", self.main.rows, shown=(*self.labels, *found))
        return replace(view, key=len(self.labels))

    def terminal(self) -> Iterator[View | str]:
        """Yield the table and the differences."""
        yield self.title
        yield self.view()
        yield from self.headline()

    def context(self) -> dict[str, Any]:
        """Return further variables of the template."""
        return {"rows": self.view(), "drawing": self._plot()}

    def _plot(self) -> Figure:
        rows = self.main.rows
        figure, (axes,) = new_figure(1, 1, height_in=max(2.4, 0.8 + 0.22 * len(rows)))
        for name, marker, edge, face in (
            ("published", "o", INK, "none"),
            ("simulated", "|", PALETTE[0], PALETTE[0]),
            ("simulated_kernel_hosts", "_", PALETTE[1], PALETTE[1]),
            ("emulated", "x", PALETTE[2], PALETTE[2]),
        ):
            data = [(place, row.to_json()) for place, row in enumerate(rows)]
            known = [(each, place) for place, each in data if each[name] is not None]
            if known:
                values = [each[name] for each, _ in known]
                places = [place for _, place in known]
                label = name.replace("_", " ")
                axes.plot(values, places, marker, color=edge, markerfacecolor=face, label=label)
                halves = [each[name] - (each.get(f"{name}_low") or each[name]) for each, _ in known]
                axes.errorbar(values, places, xerr=halves, fmt="none", ecolor=edge)
        axes.set_yticks(range(len(rows)), [row.name for row in rows])
        axes.invert_yaxis()
        axes.set_xlabel(", ".join(dict.fromkeys(row.unit for row in rows)))
        add_legend(axes)
        return figure
