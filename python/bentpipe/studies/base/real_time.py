"""Cells of a study in real time: published, simulated and emulated figures side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from bentpipe.report.style import INK, PALETTE, add_legend, new_figure
from bentpipe.studies.base.comparison import Row
from bentpipe.studies.base.outcome import StudyOutcome
from bentpipe.studies.base.samples import Samples
from bentpipe.studies.base.tables import (
    PROVENANCE,
    UNIT,
    Column,
    interval_text,
    number,
    spread_text,
    terminal_table,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import RenderableType

    from bentpipe.emulation.pool import EmulatedRun


@dataclass(frozen=True, kw_only=True)
class RealFigure:
    """What a run in real time gave in the unit of its row, beside its simulated counterpart.

    ``kernel_hosts`` are simulations with hosts set as the kernel was, empty where there is no TCP.
    ``invalid`` is why the figure does not count, if so, after ``attempts``.
    """

    kernel_hosts: Samples
    emulated: float | None
    invalid: str | None
    attempts: int

    @classmethod
    def of(
        cls, run: EmulatedRun | None, emulated: float | None, kernel_hosts: Samples
    ) -> RealFigure:
        """Return the figure of a run; None if there was no run."""
        return cls(
            kernel_hosts=kernel_hosts,
            emulated=emulated,
            invalid=None if run is None else run.invalid,
            attempts=0 if run is None else run.attempts,
        )

    def difference_percent(self, row: Row) -> float | None:
        """Emulated less simulated in percent of the simulated, with the same hosts if there are."""
        twin = self.kernel_hosts.mean
        twin = row.simulated.mean if twin is None else twin
        if twin is None or self.emulated is None or self.invalid is not None:
            return None
        return 100 * (self.emulated / twin - 1)

    def to_json(self, row: Row) -> dict[str, Any]:
        """Return the figure as plain data."""
        return {
            **self.kernel_hosts.to_json("simulated_kernel_hosts"),
            "emulated": self.emulated,
            "difference_percent": self.difference_percent(row),
            "attempts": self.attempts,
            "invalid": self.invalid,
        }


@dataclass(frozen=True, kw_only=True)
class RealOutcome(StudyOutcome):
    """The rows that were run in real time; ``figures`` are theirs by name.

    ``label_columns`` are the columns that tell the rows apart.
    """

    engine: ClassVar[str] = "emulate"
    template: ClassVar[str] = "real_time.html.j2"
    folder: ClassVar[Path] = Path(__file__).parent

    figures: Mapping[str, RealFigure]
    label_columns: tuple[Column, ...]
    notes: tuple[str, ...]

    def differences(self) -> Samples:
        """Return how far emulated and simulated figures are apart, in percent of the simulated."""
        known = (self.figures[row.name].difference_percent(row) for row in self.main.rows)
        return Samples.of((None if each is None else abs(each) for each in known), exact=False)

    @property
    def invalid(self) -> list[str]:
        """The names of the rows whose runs were late each time."""
        return [name for name, each in self.figures.items() if each.invalid is not None]

    def to_json(self) -> dict[str, Any]:
        """Return the figures as plain data."""
        data = super().to_json()
        for cell, row in zip(data["cells"], self.main.rows, strict=True):
            cell.update(self.figures[row.name].to_json(row))
        apart = self.differences()
        data["summary"] |= {
            "cells": len(apart.values),
            **apart.to_json("mean_difference_percent"),
            "max_difference_percent": max(apart.values, default=None),
            "invalid": self.invalid,
        }
        return data

    def rows_json(self, name: str) -> list[dict[str, Any]]:
        """Return the rows as the CSV has them."""
        rows = super().rows_json(name)
        for data, row in zip(rows, self.main.rows, strict=True):
            data.update(self.figures[row.name].to_json(row))
        return rows

    def headline(self) -> list[str]:
        """Return how far emulated and simulated figures are apart, in a sentence or two."""
        apart = self.differences()
        text = (
            f"Emulated vs. simulated (same hosts): {len(apart.values)} cells, mean absolute "
            f"difference {number(apart.mean)} % (95 % interval over the cells "
            f"{interval_text(apart.interval)}), largest {number(max(apart.values, default=None))} "
            "%."
        )
        late = self.invalid
        return [f"{text} Invalid, not counted: {'; '.join(late)}." if late else text]

    def columns(self) -> tuple[Column, ...]:
        """Return the columns of the table."""

        def emulated(row: Row) -> str:
            figure = self.figures[row.name]
            return number(figure.emulated) + (" INVALID" if figure.invalid is not None else "")

        def kernel_hosts(row: Row) -> str:
            return number(self.figures[row.name].kernel_hosts.mean)

        def kernel_spread(row: Row) -> str:
            return spread_text(self.figures[row.name].kernel_hosts)

        def difference(row: Row) -> str:
            return number(self.figures[row.name].difference_percent(row), sign=True)

        return (
            *self.label_columns,
            Column(heading="published", text=lambda row: number(row.published)),
            Column(heading="simulated", text=lambda row: number(row.simulated.mean)),
            Column(heading="95 % interval", text=lambda row: spread_text(row.simulated)),
            Column(heading="kernel's hosts", text=kernel_hosts),
            Column(heading="95 % interval", text=kernel_spread),
            Column(heading="emulated", unit="one run", text=emulated),
            Column(heading="difference", unit="%", text=difference),
            UNIT,
            PROVENANCE,
        )

    def terminal(self) -> Iterator[RenderableType]:
        """Yield what a terminal shows."""
        yield terminal_table(self.title, self.columns(), self.main.rows)
        yield ""
        yield from self.headline()

    def context(self) -> dict[str, Any]:
        """Return what the template needs besides."""
        return {"columns": self.columns(), "notes": self.notes, "drawing": self._plot()}

    def _plot(self) -> Figure:
        rows = self.main.rows
        figure, (axes,) = new_figure(1, 1, height_in=max(2.4, 0.8 + 0.22 * len(rows)))
        marks = (
            ("published", "o", INK, "none", lambda row: (row.published, None)),
            ("simulated", "|", PALETTE[0], PALETTE[0], lambda row: _point(row.simulated)),
            (
                "simulated, kernel's hosts",
                "_",
                PALETTE[1],
                PALETTE[1],
                lambda row: _point(self.figures[row.name].kernel_hosts),
            ),
            (
                "emulated",
                "x",
                PALETTE[2],
                PALETTE[2],
                lambda row: (self.figures[row.name].emulated, None),
            ),
        )
        for name, marker, edge, face, point in marks:
            found = [(i, *point(row)) for i, row in enumerate(rows)]
            known = [(value, i, half) for i, value, half in found if value is not None]
            if known:
                values, places, halves = zip(*known, strict=True)
                axes.plot(values, places, marker, color=edge, markerfacecolor=face, label=name)
                errors = [half or 0.0 for half in halves]
                axes.errorbar(values, places, xerr=errors, fmt="none", ecolor=edge)
        axes.set_yticks(range(len(rows)), [row.name for row in rows])
        axes.invert_yaxis()
        axes.set_xlabel(rows[0].unit if rows else "")
        add_legend(axes)
        return figure


def _point(samples: Samples) -> tuple[float | None, float | None]:
    interval = samples.interval
    half = None if interval is None else (interval.high - interval.low) / 2
    return samples.mean, half


def kernel_of(runs: Mapping[Any, EmulatedRun | None]) -> str | None:
    """Return the kernel that the runs were made on."""
    for each in runs.values():
        if each is not None:
            return str(each.result.manifest["emulation"]["kernel"])
    return None
