"""Studies: published experiments, run again and compared with what was published.

This module is the registry. It is light to import; a study is imported when it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from bentpipe.errors import UsageError
from bentpipe.scenario.seeds import LARGEST_SEED

if TYPE_CHECKING:
    from rich.console import RenderableType

    from bentpipe.results.output import OutputFolder
    from bentpipe.sweeps.executor import Executor

# All plans are made before the first run: a thousand of the largest study take some 2 GB.
MAX_RUNS: Final = 1000


class StudyOutcome(Protocol):
    """The outcome of a study: published vs. simulated."""

    @property
    def interrupted(self) -> bool:
        """Return whether runs are missing because the study was stopped."""

    def to_json(self) -> dict[str, Any]:
        """Return the figures as plain data."""

    def table(self) -> RenderableType:
        """Return the figures for a terminal."""

    def write(self, out: Path | OutputFolder) -> Path:
        """Write report and data into a folder, created if missing; return the folder."""


class RunStudy(Protocol):
    """Runs a study.

    ``runs`` is the number of runs of each stochastic cell (None: the study's default),
    ``seed`` the first seed. ``executor`` runs them, by default threads, one a core.
    ``progress(done, total)`` counts runs.

    Raises:
        UsageError: ``runs`` or ``seed`` is out of range; nothing was run.
    """

    def __call__(
        self,
        *,
        runs: int | None = None,
        seed: int = 1,
        executor: Executor | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> StudyOutcome:
        """Run the study and return its outcome."""


class RunRealTime(Protocol):
    """Runs cells of a study in real time, up to ``parallel`` at a time.

    ``chosen`` names them (None: those of ``default_cells``); ``progress`` takes the fraction done,
    0 to 1, and ``note`` how long the runs take, before the first one.

    Raises:
        UsageError: there is no such cell; nothing was run.
        MachineError: the machine lacks something.
    """

    def __call__(
        self,
        *,
        chosen: str | None,
        seed: int,
        parallel: int,
        progress: Callable[[float], None],
        note: Callable[[str], None],
    ) -> StudyOutcome:
        """Run the cells and return them with the published and simulated values."""


@dataclass(frozen=True, kw_only=True)
class Study:
    """A published experiment that can be run again."""

    name: str
    title: str
    source: str
    run: RunStudy
    default_runs: int | None
    """Runs of each stochastic cell; None: there is no such cell."""
    run_real_time: RunRealTime | None = None
    """Runs cells of the study with the kernel's TCP; None if the study does not support it."""
    example_cells: str = ""
    default_cells: str = "all"
    """What is run in real time by default, and for how long if not as long as simulated."""


def _study(
    name: str,
    title: str,
    source: str,
    *,
    default_runs: int | None,
    example_cells: str = "",
    default_cells: str = "all",
) -> Study:
    """Return a study; its module is imported when it runs, with ``runs`` and ``seed`` in range."""

    def run(
        *,
        runs: int | None = None,
        seed: int = 1,
        executor: Executor | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> StudyOutcome:
        _check(default_runs if runs is None else runs, seed)
        module = import_module(f"bentpipe.studies.{name}.study")
        study: RunStudy = module.run
        return study(runs=runs, seed=seed, executor=executor, progress=progress)

    def run_real_time(
        *,
        chosen: str | None,
        seed: int,
        parallel: int,
        progress: Callable[[float], None],
        note: Callable[[str], None],
    ) -> StudyOutcome:
        _check(1, seed)
        module = import_module(f"bentpipe.studies.{name}.real_time")
        real: RunRealTime = module.run_real_time
        return real(chosen=chosen, seed=seed, parallel=parallel, progress=progress, note=note)

    return Study(
        name=name,
        title=title,
        source=source,
        run=run,
        default_runs=default_runs,
        run_real_time=run_real_time if example_cells else None,
        example_cells=example_cells,
        default_cells=default_cells,
    )


def _check(runs: int | None, seed: int) -> None:
    count = 1 if runs is None else runs
    if not 1 <= count <= MAX_RUNS:
        raise UsageError(f"runs: read {count}; must be 1 to {MAX_RUNS}")
    # Run i has the seed seed + i.
    largest = LARGEST_SEED - (count - 1)
    if not 0 <= seed <= largest:
        raise UsageError(f"seed: read {seed}; must be 0 to {largest}")


_ALL: Final = (
    _study(
        "jpl",
        "TCP channel utilization over satellite delay and bit error rate",
        "Keith Scott, JPL mobile satellite protocol testbed, tcp-over-satellite list, 1997",
        default_runs=30,
        example_cells="0,1e-7:250",
    ),
    _study(
        "snip",
        "UDP rate without loss over packet size, through a modem's interface processor",
        "SnIP technical note, routing mode, modem at 29.52 Mbit/s, iperf",
        default_runs=None,
        example_cells="58,1400,tcp",
    ),
    _study(
        "hermes",
        "Files, streams and a conference over a satellite carrier with ISDN return",
        "Crudele and Cinque, HERMES and IperSpace measurements, 1999",
        default_runs=5,
    ),
    _study(
        "osu",
        "Buffers for persistent SACK TCP sources over satellite UBR",
        "Goyal, Jain and others (Ohio State University), ATM Forum/97-0616, July 1997",
        default_runs=10,
    ),
    _study(
        "auckland",
        "Many TCP downloads and one transfer over GEO: plain, with a PEP, and coded",
        "Auckland satellite simulator, baselines page",
        default_runs=20,
        example_cells="5,20:1000:PEP",
        default_cells="20 channels with 4 paths and both queues, each for 60 s instead of 600 s",
    ),
)

STUDIES: Final[Mapping[str, Study]] = {study.name: study for study in _ALL}
