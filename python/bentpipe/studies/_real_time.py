"""What studies in real time share: published, simulated and emulated figures side by side."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bentpipe.report import html as _html
from bentpipe.studies._common import number, write_study

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import RenderableType

    from bentpipe.emulation.pool import EmulatedRun

_FIGURES: Final = ("published", "simulated", "simulated_kernel_hosts", "emulated")


@dataclass(frozen=True, kw_only=True)
class RealCell:
    """One figure of a publication, and what the simulator and the kernel make of it.

    ``labels`` tell it from the others, ``simulated`` is the study's own figure and
    ``simulated_kernel_hosts`` that of hosts set as the kernel was (None where there is no TCP).
    ``invalid`` is why the emulated figure does not count, if so, after ``attempts``.
    """

    labels: Mapping[str, Any]
    unit: str
    published: float
    simulated: float | None
    simulated_kernel_hosts: float | None
    emulated: float | None
    invalid: str | None = None
    attempts: int = 0

    @property
    def name(self) -> str:
        """Return the labels in words."""
        return ", ".join(str(value) for value in self.labels.values())

    @property
    def difference_percent(self) -> float | None:
        """Emulated less simulated, as nearly alike as can be, in percent of the simulated."""
        twin = self.simulated_kernel_hosts
        twin = self.simulated if twin is None else twin
        if twin is None or self.emulated is None or self.invalid is not None:
            return None
        return 100 * (self.emulated / twin - 1)

    def to_json(self) -> dict[str, Any]:
        """Return the cell as plain data."""
        return {
            **self.labels,
            "unit": self.unit,
            **{name: getattr(self, name) for name in _FIGURES},
            "difference_percent": self.difference_percent,
            "attempts": self.attempts,
            "invalid": self.invalid,
        }


@dataclass(frozen=True, kw_only=True)
class RealOutcome:
    """The cells that were run in real time."""

    study: str
    title: str
    label_names: tuple[str, ...]
    cells: tuple[RealCell, ...]
    notes: tuple[str, ...]
    configuration: dict[str, Any]
    interrupted: bool

    def summary(self) -> dict[str, Any]:
        """Return how far emulated and simulated figures are apart, in percent."""
        known = [each.difference_percent for each in self.cells]
        sizes = sorted(abs(each) for each in known if each is not None)
        return {
            "cells": len(sizes),
            "mean_difference_percent": sum(sizes) / len(sizes) if sizes else None,
            "max_difference_percent": sizes[-1] if sizes else None,
            "invalid": [each.name for each in self.cells if each.invalid is not None],
        }

    def to_json(self) -> dict[str, Any]:
        """Return the figures as plain data."""
        return {
            "study": self.study,
            "engine": "emulate",
            "interrupted": self.interrupted,
            "cells": [each.to_json() for each in self.cells],
            "summary": self.summary(),
            "configuration": self.configuration,
        }

    def table(self) -> RenderableType:
        """Return the cells for a terminal."""
        from rich.console import Group
        from rich.table import Table

        table = Table(
            title=self.title,
            title_justify="left",
            box=None,
            pad_edge=False,
            header_style="bold",
        )
        for heading in self.label_names:
            table.add_column(heading)
        for heading in _columns():
            table.add_column(heading, justify="right")
        for each in self.cells:
            table.add_row(*self._texts(each))
        return Group(table, "", self._in_short())

    def _texts(self, each: RealCell) -> list[str]:
        figures = [number(getattr(each, name)) for name in _FIGURES]
        emulated = figures.pop() + (" INVALID" if each.invalid is not None else "")
        difference = number(each.difference_percent, sign=True)
        labels = [str(value) for value in each.labels.values()]
        return [*labels, *figures, emulated, difference, each.unit]

    def _in_short(self) -> str:
        summary = self.summary()
        text = (
            f"Emulated against simulated (hosts alike): {summary['cells']} cells, "
            f"{number(summary['mean_difference_percent'])} % apart in the mean, "
            f"{number(summary['max_difference_percent'])} % at most."
        )
        late = summary["invalid"]
        return f"{text} Late, and so of no account: {'; '.join(late)}." if late else text

    def write(self, out_dir: Path) -> Path:
        """Write report.html, cells.csv, result.json and manifest.json; return the folder.

        Raises:
            UsageError: the folder has other things in it, or cannot be written.
        """
        rows = [each.to_json() for each in self.cells]
        columns = tuple(rows[0]) if rows else ()
        return write_study(
            out_dir,
            result=self.to_json(),
            report=self._report(),
            csv_columns=columns,
            csv_rows=[tuple(row.values()) for row in rows],
        )

    def _report(self) -> str:
        version = self.configuration["bentpipe_version"]
        parts = [
            _html.paragraph(self._in_short()),
            _html.bullets(self.notes),
            _html.figure(
                _plot(self.cells),
                name="beside",
                caption="Published, simulated and emulated, cell by cell.",
            ),
            _html.table(
                "Difference: emulated less simulated with the same hosts.",
                [(name, "") for name in (*self.label_names, *_columns())],
                [self._texts(each) for each in self.cells],
                text_columns=len(self.label_names),
            ),
            _html.heading("What was run"),
            _html.details("Configuration", json.dumps(self.configuration, indent=2)),
        ]
        if self.interrupted:
            text = "The study was interrupted: the figures are of the runs that were done."
            parts.insert(0, _html.paragraph(text, notice=True))
        return _html.page(self.title, f"bentpipe {version}", *parts)


def late(run: EmulatedRun | None) -> dict[str, Any]:
    """Return what a cell says of its run's punctuality."""
    if run is None:
        return {}
    return {"invalid": run.invalid, "attempts": run.attempts}


def _columns() -> tuple[str, ...]:
    return ("published", "simulated", "kernel's hosts", "emulated", "difference [%]", "unit")


def _plot(cells: Sequence[RealCell]) -> Figure:
    from bentpipe.report.style import INK, PALETTE, add_legend, new_figure

    figure, (axes,) = new_figure(1, 1, height_in=max(2.4, 0.8 + 0.22 * len(cells)))
    rows = range(len(cells))
    marks = (
        ("published", "o", INK, "none"),
        ("simulated", "|", PALETTE[0], PALETTE[0]),
        ("simulated_kernel_hosts", "_", PALETTE[1], PALETTE[1]),
        ("emulated", "x", PALETTE[2], PALETTE[2]),
    )
    for name, marker, edge, face in marks:
        found = [(getattr(each, name), row) for row, each in zip(rows, cells, strict=True)]
        known = [(value, row) for value, row in found if value is not None]
        if known:
            values, places = zip(*known, strict=True)
            axes.plot(
                values,
                places,
                marker,
                color=edge,
                markerfacecolor=face,
                label=name.replace("_", " "),
            )
    axes.set_yticks(list(rows), [each.name for each in cells])
    axes.invert_yaxis()
    axes.set_xlabel(cells[0].unit if cells else "")
    add_legend(axes)
    return figure
