"""Cells of a study in real time, with the kernel's TCP, and the simulated ones beside them."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar, Final, TypeVar

from matplotlib.figure import Figure

from bentpipe.errors import UsageError
from bentpipe.live import EmulationJob, check_plan, emulate_as_completed
from bentpipe.report import INK, PALETTE, add_legend, new_figure
from bentpipe.results import Column, Result, View, utc_now
from bentpipe.simulation import Outcome, cores
from bentpipe.studies import STUDIES
from bentpipe.studies.base import tables
from bentpipe.studies.base.comparison import Measurement, Row, Samples
from bentpipe.studies.base.outcome import StudyOutcome
from bentpipe.studies.base.tables import interval_text, number
from bentpipe.studies.base.work import Batches, Cell, Work, check_seeds
from bentpipe.units import NS_PER_S

_MINUTES_FROM_S: Final = 120
Key = TypeVar("Key")


class RealCell(Cell):
    """A cell that can be run in real time, too."""

    @property
    @abstractmethod
    def key(self) -> str:
        """The name in lists of cells, and of the folder of a run."""

    @property
    def expected_s(self) -> float | None:
        """The usual duration of a run in real time; None: until the end of the scenario."""
        return None

    @property
    def load(self) -> float:
        """The approximate share of a processor that a run in real time takes."""
        return 1.0

    @abstractmethod
    def measure(self, result: Result) -> Mapping[str, float | None]:
        """Return the figures of a run in either engine; None is an event that did not happen."""

    def figures(self, outcome: Outcome) -> Mapping[str, float | None]:
        """Return the figures of a simulated run."""
        return self.measure(outcome.result(started=utc_now()))


RealCellT = TypeVar("RealCellT", bound=RealCell)


@dataclass(frozen=True)
class RealRun:
    """The figures of a run in real time; ``invalid`` says why it was late in every attempt."""

    seed: int
    figures: Mapping[str, float | None]
    invalid: str | None = None
    attempts: int = 1


@dataclass(frozen=True)
class RealMeasurement:
    """The runs of a cell in real time, and simulated.

    ``kernel_hosts`` are simulated with the settings that the kernel has, None without such.
    """

    runs: tuple[RealRun, ...] = ()
    simulated: Measurement = field(default_factory=lambda: Measurement({}))
    kernel_hosts: Measurement | None = None

    @property
    def valid(self) -> tuple[RealRun, ...]:
        """The runs that were in time."""
        return tuple(run for run in self.runs if run.invalid is None)

    @property
    def invalid(self) -> str | None:
        """Why the last run was late, if all were."""
        return self.runs[-1].invalid if self.runs and not self.valid else None

    def emulated(self, figure: str) -> float | None:
        """Return the mean of a figure over the valid runs, or else over all."""
        return _mean(run.figures[figure] for run in self.valid or self.runs)

    def same_seeds(self, figure: str) -> float | None:
        """Return the mean of a figure, simulated with the seeds of the valid runs."""
        runs = self.simulated.runs
        return _mean(runs.get(run.seed, {}).get(figure) for run in self.valid)

    def row(self, row: Row, figure: str) -> Row:
        """Return a row with the emulated value of a figure, which is in the unit of the row.

        The difference is emulated less simulated (with the kernel's settings, if any), in percent
        of the simulated value; invalid runs have none.
        """
        hosts = Samples() if self.kernel_hosts is None else self.kernel_hosts[figure]
        simulated = row.simulated.mean if hosts.mean is None else hosts.mean
        emulated = self.emulated(figure)
        difference = None
        if emulated is not None and simulated is not None and self.invalid is None:
            difference = 100 * (emulated / simulated - 1)
        about = {
            "simulated_kernel_hosts": hosts,
            "emulated": emulated,
            "difference_percent": difference,
            "attempts": sum(run.attempts for run in self.runs),
            "invalid": self.invalid,
        }
        return replace(row, more={**row.more, **about})


def _mean(values: Iterable[float | None]) -> float | None:
    """Return the mean of values; None without values, or if one is missing."""
    every = list(values)
    known = [value for value in every if value is not None]
    return fmean(known) if known and len(known) == len(every) else None


@dataclass
class RealWork(Batches):
    """Runs cells in real time, one batch after the other.

    ``chosen`` names the cells (None: those of the study's default); each has ``runs`` runs, with
    the seeds ``seed``, ``seed`` + 1, ..., of ``seconds`` if the study lets that be chosen, up to
    ``parallel`` at a time; 0 is the study's default. Results are saved in ``folder``. ``progress``
    takes the fraction done, 0 to 1, and ``note`` how long the runs take, before the first one.
    ``total`` is the expected number of runs, by default those of the first batch.

    Raises:
        UsageError: ``runs`` or ``seed`` is out of range.
    """

    study: str
    chosen: str | None
    seed: int
    progress: Callable[[float], None]
    note: Callable[[str], None]
    folder: Path
    runs: int = 1
    seconds: float = 0.0
    parallel: int = 0
    total: int = 0
    interrupted: bool = False
    _done: int = 0
    _kernel: str | None = None

    def __post_init__(self) -> None:
        about = STUDIES[self.study]
        self.seconds = float(self.seconds or about.seconds or 0)
        self.parallel = self.parallel or about.parallel or cores()
        check_seeds(self.runs, self.seed)

    def run(self, cells: Mapping[Key, RealCell]) -> dict[Key, tuple[RealRun, ...]]:
        """Run cells with each seed; a cell of which Ctrl-C prevented all runs has none.

        Raises:
            UsageError: a scenario cannot be run in real time.
            MachineError: the machine lacks something.
            BentpipeError: a run failed.
        """
        seeds = range(self.seed, self.seed + self.runs)
        every = [(key, cell, seed) for key, cell in cells.items() for seed in seeds]
        finished: dict[Key, list[RealRun]] = {key: [] for key in cells}
        if every and not self.interrupted:
            jobs = [self._job(cell, seed) for _, cell, seed in every]
            self.total = self.total or len(jobs)
            if not self._done:
                time_s = expected_time_s(jobs, self.total, self.parallel)
                self.note(f"{self.total} runs in real time: about {duration_text(time_s)}")
            runs = emulate_as_completed(
                jobs,
                parallel=self.parallel,
                total=len(jobs),
                progress=lambda share: self._show(share * len(jobs)),
            )
            # Closing the generator ends the runs after Ctrl-C.
            self.interrupted = True
            with suppress(KeyboardInterrupt), closing(runs):
                for run in runs:
                    key, cell, seed = every[run.index]
                    name = f"{self._done + run.index + 1:03} {cell.key} seed {seed}"
                    run.result.save(self.folder / re.sub(r"[^\w.]+", "-", name))
                    figures = cell.measure(run.result)
                    finished[key].append(RealRun(seed, figures, run.invalid, run.attempts))
                    self._kernel = str(run.result.manifest["emulation"]["kernel"])
                self.interrupted = False
            self._done += len(jobs)
        return {key: tuple(of_cell) for key, of_cell in finished.items()}

    def compare(
        self, cells: Mapping[RealCellT, RealCellT], *, runs: int = 1
    ) -> dict[RealCellT, RealMeasurement]:
        """Run cells in real time, and simulate those that were run, stochastic ones ``runs`` times.

        ``cells`` has each cell with the settings that the kernel has, or itself.
        """
        emulated = self.run(cells)
        every = [
            version
            for cell, kernel_cell in cells.items()
            if emulated[cell]
            for version in (cell, kernel_cell)
        ]
        work = Work(self.study, runs=max(runs, self.runs), seed=self.seed)
        simulated = work.measure(every)
        self.interrupted = self.interrupted or work.interrupted
        return {
            cell: RealMeasurement(
                emulated[cell],
                simulated[cell],
                None if kernel_cell == cell else simulated[kernel_cell],
            )
            for cell, kernel_cell in cells.items()
        }

    def about(self) -> dict[str, Any]:
        """Return what is recorded of all runs."""
        return {"seed": self.seed, "parallel": self.parallel, "kernel": self._kernel}

    def _job(self, cell: RealCell, seed: int) -> EmulationJob:
        (job,) = cell.jobs([seed])
        check_plan(job.plan)
        max_s = job.plan.data["stop_ns"] / NS_PER_S
        expected_s = cell.expected_s or max_s
        return EmulationJob(job.plan, seed, max_s=max_s, expected_s=expected_s, load=cell.load)

    def _show(self, done: float) -> None:
        self.progress(min(1.0, (self._done + done) / self.total))


def expected_time_s(jobs: Sequence[EmulationJob], total: int, parallel: int) -> float:
    """Return the time in s of ``total`` runs like ``jobs``, whose loads add up to ``parallel``."""
    weighted_s = [job.expected_s * min(1.0, job.load / parallel) for job in jobs]
    longest_s = max(job.expected_s for job in jobs)
    return max(longest_s, total * sum(weighted_s) / len(jobs))


def duration_text(time_s: float) -> str:
    """Return a time in s, or in minutes from two minutes on."""
    return f"{time_s:.0f} s" if time_s < _MINUTES_FROM_S else f"{time_s / 60:.0f} min"


def cells_by_name(
    study: str, chosen: str | None, names: Mapping[Key, Sequence[str]]
) -> tuple[Key, ...]:
    """Return cells by a list with commas of their names, or of beginnings of these up to a colon.

    None are those of the study's default.

    Raises:
        UsageError: there is no such cell.
    """
    about = STUDIES[study]
    if chosen is None and not about.chosen_cells:
        return tuple(names)
    selected: dict[Key, None] = {}
    for name in (about.chosen_cells if chosen is None else chosen).split(","):
        wanted = f"{name.strip().lower()}:"
        matching = [
            cell
            for cell, of_cell in names.items()
            if any(f"{cell_name.lower()}:".startswith(wanted) for cell_name in of_cell)
        ]
        if not matching:
            raise UsageError(
                f'cells: read "{name.strip()}"; there is no such cell. {about.cells_help}'
            )
        selected.update(dict.fromkeys(matching))
    return tuple(selected)


@dataclass(frozen=True, kw_only=True)
class RealOutcome(StudyOutcome):
    """The rows that were run in real time (`RealMeasurement.row`).

    ``labels`` are their first columns; ``folder`` has the result of each run.
    """

    engine: ClassVar[str] = "emulate"
    template: ClassVar[str] = "real_time.html.j2"

    labels: tuple[Column, ...] = ()
    folder: Path

    def folders(self) -> dict[str, Path]:
        """Return the folder of the runs."""
        return {"runs": self.folder}

    def late(self) -> list[str]:
        """Return the rows that were late in every attempt."""
        return [row.name for row in self.main.rows if row["invalid"] is not None]

    def differences(self) -> Samples:
        """Return the absolute differences of emulated and simulated values, in percent."""
        known = (row.more["difference_percent"] for row in self.main.rows)
        return Samples.of(abs(percent) for percent in known if isinstance(percent, float))

    def summary(self) -> dict[str, Any]:
        """Return the summary of the rows, and the mean and the largest absolute difference."""
        differences = self.differences()
        return {
            **super().summary(),
            **differences.to_json("mean_absolute_difference_percent"),
            "max_absolute_difference_percent": max(differences.values, default=None),
            "invalid": self.late(),
        }

    def headline(self) -> list[str]:
        """Return the mean and the largest absolute difference, and the invalid rows, as text."""
        differences, late = self.differences(), "; ".join(self.late())
        text = (
            f"Emulated vs. simulated (same hosts): {len(differences.values)} rows, mean absolute "
            f"difference {number(differences.mean)} % (95 % interval over the rows: "
            f"{interval_text(differences.interval)}), largest "
            f"{number(max(differences.values, default=None))} %."
        )
        return [f"{text} Invalid, not counted: {late}." if late else text]

    def view(self) -> View:
        """Return the table, without columns of values that no row can have."""
        is_published = any(row.published is not None for row in self.main.rows)
        columns = tables.columns("base", "real_time" if is_published else "unpublished")
        shown = (column for column in columns if self.late() or column.name != "invalid")
        view = tables.view("base", "real_time", self.main.rows, shown=(*self.labels, *shown))
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
        cells = [row.to_json() for row in rows]
        figure, (axes,) = new_figure(1, 1, height_in=max(2.4, 0.8 + 0.22 * len(rows)))
        for name, marker, edge, face in (
            ("published", "o", INK, "none"),
            ("simulated", "|", PALETTE[0], PALETTE[0]),
            ("simulated_kernel_hosts", "_", PALETTE[1], PALETTE[1]),
            ("emulated", "x", PALETTE[2], PALETTE[2]),
        ):
            known = [
                (place, row[name], row.get(f"{name}_low"))
                for place, row in enumerate(cells)
                if row[name] is not None
            ]
            if known:
                places, values, _ = zip(*known, strict=True)
                label = name.replace("_", " ")
                axes.plot(values, places, marker, color=edge, markerfacecolor=face, label=label)
                halves = [0.0 if low is None else value - low for _, value, low in known]
                axes.errorbar(values, places, xerr=halves, fmt="none", ecolor=edge)
        axes.set_yticks(range(len(rows)), [row.name for row in rows])
        axes.invert_yaxis()
        axes.set_xlabel(", ".join(dict.fromkeys(row.unit for row in rows)))
        add_legend(axes)
        return figure
