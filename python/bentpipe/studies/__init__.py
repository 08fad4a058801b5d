"""Studies: experiments that are run again and compared; a study is imported when it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bentpipe.text import csv_rows

if TYPE_CHECKING:
    from bentpipe.studies.base.outcome import StudyOutcome


@dataclass(frozen=True, kw_only=True)
class Study:
    """An experiment that can be run again."""

    name: str
    title: str
    source: str
    titles: Mapping[str, str]
    """The title of the report of each engine that the study has; the first is the default."""
    default_runs: int | None
    """Runs of each stochastic cell; None: there is no such cell."""
    example_cells: str
    """Cells to run in real time."""
    default_cells: str
    """What is run in real time by default, and for how long if not as long as simulated."""
    chosen_cells: str
    """The same by name; empty: all."""
    cells_help: str
    """How to name cells."""
    seconds: float | None
    """How long a cell runs in real time; None: that cannot be chosen."""
    parallel: int | None
    """How many cells run in real time at a time; None: as many as the processors carry."""

    def run(self, **options: Any) -> StudyOutcome:
        """Run the study with the options of `bentpipe.studies.base.work.Work`; return its outcome.

        Raises:
            UsageError: ``runs`` or ``seed`` is out of range; nothing was run.
        """
        work = import_module(f"{__name__}.base.work").Work(self.name, **options)
        outcome: StudyOutcome = self._module().run(work)
        return outcome

    def run_real_time(self, **options: Any) -> StudyOutcome:
        """Run cells in real time, and return them with the published and simulated values.

        The options are those of `bentpipe.studies.base.real_time.RealWork`.

        Raises:
            UsageError: there is no such cell, or the seed is out of range; nothing was run.
            MachineError: the machine lacks something.
        """
        work = import_module(f"{__name__}.base.real_time").RealWork(self.name, **options)
        outcome: StudyOutcome = self._module().run_real_time(work)
        return outcome

    def _module(self) -> Any:
        return import_module(f"{__name__}.{self.name}.study")


def _study(row: dict[str, Any]) -> Study:
    titles = {engine: row.pop(engine) for engine in ("simulate", "emulate")}
    row["titles"] = {engine: title for engine, title in titles.items() if title}
    for name, read in (("default_runs", int), ("seconds", float), ("parallel", int)):
        row[name] = read(row[name]) if row[name] else None
    return Study(**row)


STUDIES: Final[Mapping[str, Study]] = {
    row["name"]: _study(row) for row in csv_rows(Path(__file__).parent / "studies.csv")
}
