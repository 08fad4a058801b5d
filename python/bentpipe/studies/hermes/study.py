"""The study: files, streams and a conference on one network, then compared with what was published.

Each part has a module with its cases; the published rows are read after the last run, so that no
run can depend on them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bentpipe import _core
from bentpipe.simulation.many import Job, run_many
from bentpipe.studies._common import read_rows, write_study
from bentpipe.studies.hermes import _conference, _fetches, _sessions, _streams, _windows
from bentpipe.studies.hermes._cells import compare, summarize
from bentpipe.studies.hermes._network import LARGE_MSS_BYTES, MSS_BYTES, Case, Found, Network
from bentpipe.studies.hermes._rows import CSV_COLUMNS, Cell, Published, terminal_table
from bentpipe.studies.hermes._sessions import Asymmetry, asymmetry

if TYPE_CHECKING:
    from rich.console import RenderableType

DEFAULT_RUNS: Final = 5
_HERE: Final = Path(__file__).parent


@dataclass(frozen=True, kw_only=True)
class HermesOutcome:
    """The rows of the source beside what was measured, and all figures by part.

    ``parts`` holds the cases of each part in order, ``found`` what their runs gave.
    """

    cells: tuple[Cell, ...]
    found: Found
    parts: dict[str, tuple[Case, ...]]
    asymmetries: tuple[Asymmetry, ...]
    configuration: dict[str, Any]
    interrupted: bool

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain data; each name ends in its unit."""
        return {
            "study": "hermes",
            "interrupted": self.interrupted,
            "cells": [cell.to_json() for cell in self.cells],
            "summary": summarize(self.cells, self.found, self.asymmetries),
            **{
                part: [self.found.row(case) for case in cases] for part, cases in self.parts.items()
            },
            "configuration": self.configuration,
        }

    def table(self) -> RenderableType:
        """Return the table of the rows, and the misses with their reasons, for a terminal."""
        return terminal_table(self.cells)

    def write(self, out_dir: Path) -> Path:
        """Write report.html, cells.csv, result.json and manifest.json; return the folder.

        Raises:
            UsageError: the folder has other things in it, or cannot be written.
        """
        from bentpipe.studies.hermes._report import study_report

        return write_study(
            out_dir,
            result=self.to_json(),
            report=study_report(self),
            csv_columns=CSV_COLUMNS,
            csv_rows=[list(cell.to_json().values()) for cell in self.cells],
        )


def parts() -> dict[str, tuple[Case, ...]]:
    """Return all cases of all parts, in the order of the report."""
    return {
        "round_trip": (_fetches.PingCase(),),
        "windows": _windows.ideal_cases(),
        "windows_on_the_network": _windows.network_cases(),
        "files": _fetches.cases(),
        "sessions": _sessions.cases(),
        "streams": _streams.cases(),
        "upstream": _conference.upstream_cases(),
        "conference": _conference.cases(),
    }


def run(
    *,
    runs: int | None = None,
    seed: int = 1,
    threads: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> HermesOutcome:
    """Simulate all cases, then read the published rows and compare.

    ``runs`` (default 5) is the number of runs of a case with chance, with the seeds ``seed``,
    ``seed`` + 1, ...; a case without runs once.
    """
    count = DEFAULT_RUNS if runs is None else runs
    network = Network()
    all_parts = parts()
    jobs: list[Job] = []
    owners: list[Case] = []
    for cases in all_parts.values():
        for case in cases:
            for each in range(seed, seed + (count if case.chance else 1)):
                jobs.append(Job(plan=case.plan(network, each), seed=each))
                owners.append(case)
    outcomes = run_many(jobs, threads=threads, progress=progress)

    complete = [outcome for outcome in outcomes if not outcome.interrupted]
    found = Found()
    for outcome in complete:
        case = owners[outcome.index]
        found.add(case, case.measure(outcome))
    asymmetries = tuple(asymmetry(network, mss) for mss in (MSS_BYTES, LARGE_MSS_BYTES))
    return HermesOutcome(
        cells=compare(found, asymmetries, read_published()),
        found=found,
        parts=all_parts,
        asymmetries=asymmetries,
        configuration={
            "bentpipe_version": _core.version(),
            "first_seed": seed,
            "runs_of_a_case_with_chance": count,
            "runs_of_a_case_without": 1,
            "scenario": network.data,
        },
        interrupted=len(complete) < len(jobs),
    )


def read_published() -> tuple[Published, ...]:
    """Return the rows of the source, in its order."""
    return tuple(Published.of(row) for row in read_rows(_HERE / "published.csv"))
