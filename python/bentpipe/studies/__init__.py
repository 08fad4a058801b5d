"""Studies: published experiments, run again and compared with what was published.

This module is the registry. It is light to import; a study is imported when it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Final, TypedDict

if TYPE_CHECKING:
    from typing import Unpack

    from bentpipe.studies.base.outcome import StudyOutcome
    from bentpipe.sweeps.executor import Executor


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
    example_cells: str = ""
    """Cells to run in real time; empty if the study runs in the simulator only."""
    default_cells: str = "all"
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


_ALL: Final = (
    Study(
        name="jpl",
        title="TCP channel utilization over satellite delay and bit error rate",
        source="Keith Scott, JPL mobile satellite protocol testbed, tcp-over-satellite list, 1997",
        default_runs=30,
        example_cells="0,1e-7:250",
    ),
    Study(
        name="snip",
        title="UDP rate without loss over packet size, through a modem's interface processor",
        source="SnIP technical note, routing mode, modem at 29.52 Mbit/s, iperf",
        default_runs=None,
        example_cells="58,1400,tcp",
    ),
    Study(
        name="hermes",
        title="Files, streams and a conference over a satellite carrier with ISDN return",
        source="Crudele and Cinque, HERMES and IperSpace measurements, 1999",
        default_runs=5,
    ),
    Study(
        name="osu",
        title="Buffers for persistent SACK TCP sources over satellite UBR",
        source="Goyal, Jain and others (Ohio State University), ATM Forum/97-0616, July 1997",
        default_runs=10,
    ),
    Study(
        name="auckland",
        title="Many TCP downloads and one transfer over GEO: plain, with a PEP, and coded",
        source="Auckland satellite simulator, baselines page",
        default_runs=20,
        example_cells="5,20:1000:PEP",
        default_cells="20 channels with 4 paths and both queues, each for 60 s instead of 600 s",
    ),
)

STUDIES: Final[Mapping[str, Study]] = {study.name: study for study in _ALL}
