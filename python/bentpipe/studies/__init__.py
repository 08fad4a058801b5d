"""Studies: experiments that are run again and compared; a study is imported when it runs."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NotRequired, TypedDict

if TYPE_CHECKING:
    from typing import Unpack

    from bentpipe.studies.base.outcome import StudyOutcome
    from bentpipe.sweeps import Executor


class RunOptions(TypedDict, total=False):
    """How a study is simulated.

    ``runs`` is the number of runs of each stochastic cell, with the seeds ``seed``, ``seed`` + 1,
    ...; None is the study's default. ``executor`` runs them, by default threads, one a core.
    ``progress(done, total)`` counts runs.
    """

    runs: int | None
    seed: int
    executor: Executor | None
    progress: Callable[[int, int], None] | None


class RealOptions(TypedDict):
    """How cells of a study are run in real time, up to ``parallel`` at a time.

    ``chosen`` names the cells (None: those of ``default_cells``); each has ``runs`` runs, with the
    seeds ``seed``, ``seed`` + 1, ..., of ``seconds`` if the study lets that be chosen. Results are
    saved in ``folder``. ``progress`` takes the fraction done, 0 to 1, and ``note`` how long the
    runs take, before the first one.
    """

    chosen: str | None
    seed: int
    runs: NotRequired[int | None]
    seconds: NotRequired[float | None]
    parallel: NotRequired[int | None]
    progress: Callable[[float], None]
    note: Callable[[str], None]
    folder: Path


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

    def run(self, **options: Unpack[RunOptions]) -> StudyOutcome:
        """Run the study and return its outcome.

        Raises:
            UsageError: ``runs`` or ``seed`` is out of range; nothing was run.
        """
        return self._call("run", "work.Work", options)

    def run_real_time(self, **options: Unpack[RealOptions]) -> StudyOutcome:
        """Run cells in real time and return them with the published and simulated values.

        Raises:
            UsageError: there is no such cell, or the seed is out of range; nothing was run.
            MachineError: the machine lacks something.
        """
        return self._call("run_real_time", "real_time.RealWork", options)

    def _call(self, function: str, work: str, options: Mapping[str, Any]) -> StudyOutcome:
        module, _, name = work.partition(".")
        made = getattr(import_module(f"{__name__}.base.{module}"), name)(self.name, **options)
        study = import_module(f"{__name__}.{self.name}.study")
        outcome: StudyOutcome = getattr(study, function)(made)
        return outcome


def _study(row: dict[str, Any]) -> Study:
    titles = {engine: row.pop(engine) for engine in ("simulate", "emulate")}
    row["titles"] = {engine: title for engine, title in titles.items() if title}
    for name, read in (("default_runs", int), ("seconds", float), ("parallel", int)):
        row[name] = read(row[name]) if row[name] else None
    return Study(**row)


def _studies() -> dict[str, Study]:
    text = (Path(__file__).parent / "studies.csv").read_text(encoding="utf-8")
    rows = csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
    return {row["name"]: _study(row) for row in rows}


STUDIES: Final[Mapping[str, Study]] = _studies()
