"""Studies: published experiments, run again and compared; a study is imported when it runs."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypedDict

if TYPE_CHECKING:
    from typing import Unpack

    from bentpipe.simulation.executor import Executor
    from bentpipe.studies.base.outcome import StudyOutcome


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

    ``chosen`` names the cells (None: those of ``default_cells``); ``progress`` takes the fraction
    done, 0 to 1, and ``note`` how long the runs take, before the first one.
    """

    chosen: str | None
    seed: int
    parallel: int
    progress: Callable[[float], None]
    note: Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Study:
    """A published experiment that can be run again."""

    name: str
    title: str
    source: str
    default_runs: int | None
    """Runs of each stochastic cell; None: there is no such cell."""
    example_cells: str
    """Cells to run in real time; empty if the study runs in the simulator only."""
    default_cells: str
    """What is run in real time by default, and for how long if not as long as simulated."""

    def run(self, **options: Unpack[RunOptions]) -> StudyOutcome:
        """Run the study and return its outcome.

        Raises:
            UsageError: ``runs`` or ``seed`` is out of range; nothing was run.
        """
        outcome: StudyOutcome = import_module(f"{__name__}.{self.name}.study").run(**options)
        return outcome

    def run_real_time(self, **options: Unpack[RealOptions]) -> StudyOutcome:
        """Run cells in real time and return them with the published and simulated values.

        Raises:
            UsageError: there is no such cell, or the seed is out of range; nothing was run.
            MachineError: the machine lacks something.
        """
        module = import_module(f"{__name__}.{self.name}.real_time")
        outcome: StudyOutcome = module.run_real_time(**options)
        return outcome


def _studies() -> dict[str, Study]:
    text = (Path(__file__).parent / "studies.csv").read_text(encoding="utf-8")
    lines = (line for line in text.splitlines() if not line.startswith("#"))
    rows: Iterable[dict[str, Any]] = csv.DictReader(lines)
    return {
        row["name"]: Study(**row | {"default_runs": int(row["default_runs"] or 0) or None})
        for row in rows
    }


STUDIES: Final[Mapping[str, Study]] = _studies()
