"""The outcome of a study: plain data, tables for a terminal, and a folder with a report."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from bentpipe.report import Exports, environment
from bentpipe.results import (
    REPORT,
    OutputFolder,
    View,
    csv_text,
    json_text,
    write_folder,
)
from bentpipe.studies import STUDIES
from bentpipe.studies.base import tables
from bentpipe.studies.base.comparison import Comparison
from bentpipe.studies.base.inputs import (
    COUNTED,
    MEANINGS,
    STUDIES_FOLDER,
    Input,
    read_inputs,
    read_scenario,
)


@dataclass(frozen=True, kw_only=True)
class StudyOutcome:
    """The compared rows of a study with its inputs.

    ``comparisons`` are by name; the first one is the study's table, and its rows are the ``cells``
    of the JSON. ``about_runs`` says how many runs there are, ``values`` are inserted in the values
    of inputs. Each study derives a class with its figures, its terminal tables and the variables of
    its template.
    """

    engine: ClassVar[str] = "simulate"
    template: ClassVar[str] = "report.html.j2"

    study: str
    comparisons: Mapping[str, Comparison]
    configuration: Mapping[str, Any]
    interrupted: bool
    about_runs: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)

    @property
    def main(self) -> Comparison:
        """The study's table."""
        return next(iter(self.comparisons.values()))

    @property
    def title(self) -> str:
        """The title of the report."""
        return STUDIES[self.study].titles[self.engine]

    @cached_property
    def inputs(self) -> tuple[Input, ...]:
        """The inputs with their provenance."""
        scenario = self.configuration.get("scenario") or read_scenario(self.study)
        return read_inputs(self.study, scenario, self.values, engine=self.engine)

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

    def missed(self) -> list[str]:
        """Return what a check reports: the rows outside their tolerance."""
        return [row.name for row in self.main.outside]

    def late(self) -> list[str]:
        """Return the rows that were late in every attempt, in real time."""
        return []

    def folders(self) -> dict[str, Path]:
        """Return the folders to copy to that of the outcome, by name."""
        return {}

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
            "inputs": [asdict(entry) for entry in self.inputs],
            "cells": [row.to_json() for row in main.rows],
            "summary": self.summary(),
            **{
                name: {
                    "cells": [row.to_json() for row in comparison.rows],
                    "summary": comparison.summary(),
                }
                for name, comparison in others
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
            inputs=tables.view("base", "inputs", [asdict(entry) for entry in self.inputs]),
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
        inputs = [asdict(entry) for entry in self.inputs]
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
                "inputs.csv": csv_text(list(inputs[0]), [list(row.values()) for row in inputs]),
                "result.json": json_text(self.to_json()),
            },
            folders=self.folders(),
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
