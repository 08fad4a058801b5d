"""The runs of a study: jobs by cell and searches, with one progress bar and one Ctrl-C."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from bentpipe import _core
from bentpipe.emulation.pool import EmulatedRun, EmulationJob, emulate_many
from bentpipe.errors import RunsInterrupted, UsageError
from bentpipe.plan.plan import Plan
from bentpipe.scenario.framings import frame_bits
from bentpipe.scenario.schema import Scenario
from bentpipe.simulation.executor import Executor, run_jobs
from bentpipe.simulation.no_drop import NoDropSearch
from bentpipe.simulation.run import Job, Outcome
from bentpipe.simulation.search import max_trials, search_rates
from bentpipe.studies import STUDIES
from bentpipe.units import LARGEST_SEED, NS_PER_S

Cell = TypeVar("Cell", bound=Hashable)
# All plans are made before the first run: a thousand of the largest study take some 2 GB.
MAX_RUNS: Final = 1000
_MINUTES_FROM_S: Final = 120
TCP_IP_HEADER_BYTES: Final = 40
# The TCP of hosts of the 1990s, as far as the kernel can be configured.
KERNEL_RENO: Final[Mapping[str, Any]] = {
    "congestion_control": "reno",
    "sack": False,
    "timestamps": False,
    "rack_tlp": False,
    "initial_window": 1,
    "receive_buffer_counts": "window",
}


class Work:
    """Runs jobs and searches of a study, one batch after the other.

    The options are those of `bentpipe.studies.RunOptions`; ``runs`` and ``seed`` are kept.
    ``total`` is the number of runs that ``progress`` counts up to, by default those of the first
    batch. After Ctrl-C ``interrupted`` is true and no further batch runs.

    Raises:
        UsageError: ``runs`` or ``seed`` is out of range.
    """

    def __init__(
        self,
        study: str,
        *,
        runs: int | None = None,
        seed: int = 1,
        executor: Executor | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self.runs = (STUDIES[study].default_runs or 1) if runs is None else runs
        self.seed = seed
        _check(self.runs, seed)
        self.total = 0
        self.interrupted = False
        self._executor = executor
        self._progress = progress
        self._done = 0

    def seeds(self, runs: int | None = None) -> range:
        """Return the seeds of ``runs`` runs, by default of as many as a stochastic cell has."""
        return range(self.seed, self.seed + (self.runs if runs is None else runs))

    def configuration(self, **others: Any) -> dict[str, Any]:
        """Return what is recorded of the runs: version, first seed and others."""
        return {"bentpipe_version": _core.version(), "first_seed": self.seed, **others}

    def run(self, jobs: Mapping[Cell, Sequence[Job]]) -> dict[Cell, tuple[Outcome, ...]]:
        """Run the jobs of cells; return the complete outcomes of each, in the order of its jobs."""
        cells = [cell for cell, of_cell in jobs.items() for _ in of_cell]
        found: dict[Cell, list[Outcome]] = {cell: [] for cell in jobs}
        if not self.interrupted:
            every = [job for of_cell in jobs.values() for job in of_cell]
            self.total = self.total or len(every)
            complete: Sequence[Outcome]
            try:
                complete = run_jobs(every, self._executor, progress=self._count)
            except RunsInterrupted as ended:
                complete = ended.outcomes
                self.interrupted = True
            for outcome in complete:
                found[cells[outcome.index]].append(outcome)
            self._done += len(every)
        return {cell: tuple(outcomes) for cell, outcomes in found.items()}

    def search(
        self, scenario: Scenario, sizes: Sequence[int], *, resolution: float
    ) -> NoDropSearch | None:
        """Search the largest rate without a loss for payloads in bytes; None after Ctrl-C."""
        if self.interrupted:
            return None
        found = search_rates(
            scenario,
            sizes,
            partial(run_jobs, executor=self._executor),
            resolution=resolution,
            seed=self.seed,
            progress=self._count,
        )
        self._done += max_trials(scenario, sizes, resolution)
        self.interrupted = found.interrupted
        return found

    def _count(self, done: int, _total: int) -> None:
        if self._progress is not None:
            self._progress(self._done + done, self.total)


def jobs_of(scenario: Scenario, seeds: Sequence[int]) -> list[Job]:
    """Return the runs of a scenario, which differ in their seeds only."""
    plan = Plan.resolve(scenario)
    return [Job(plan=plan, seed=seed) for seed in seeds]


@dataclass
class RealWork:
    """Runs jobs in real time, up to ``parallel`` at a time, one batch after the other.

    The options are those of `bentpipe.studies.RealOptions`. ``total`` is the expected number of
    runs, by default those of the first batch.

    Raises:
        UsageError: ``seed`` is out of range.
    """

    chosen: str | None
    seed: int
    parallel: int
    progress: Callable[[float], None]
    note: Callable[[str], None]
    total: int = 0
    interrupted: bool = False
    _done: int = 0
    _kernel: str | None = None

    def __post_init__(self) -> None:
        _check(1, self.seed)

    def configuration(self, **others: Any) -> dict[str, Any]:
        """Return what is recorded of the runs: version, seed, kernel and others."""
        return {
            "bentpipe_version": _core.version(),
            "seed": self.seed,
            "parallel": self.parallel,
            "kernel": self._kernel,
            **others,
        }

    def run(self, jobs: Mapping[Cell, EmulationJob]) -> dict[Cell, EmulatedRun | None]:
        """Run the jobs of cells; a cell that Ctrl-C prevented has None."""
        if self.interrupted or not jobs:
            return dict.fromkeys(jobs)
        total = self.total = self.total or len(jobs)
        if not self._done:
            time_s = expected_time_s(list(jobs.values()), total, self.parallel)
            self.note(f"{total} runs in real time: about {duration_text(time_s)}")

        def count(share: float) -> None:
            self.progress(min(1.0, (self._done + share * len(jobs)) / total))

        runs = emulate_many(list(jobs.values()), parallel=self.parallel, progress=count)
        self._done += len(jobs)
        self.interrupted = None in runs
        for run in runs:
            if run is not None:
                self._kernel = str(run.result.manifest["emulation"]["kernel"])
        return dict(zip(jobs, runs, strict=True))


def _check(runs: int, seed: int) -> None:
    if not 1 <= runs <= MAX_RUNS:
        raise UsageError(f"runs: read {runs}; must be 1 to {MAX_RUNS}")
    # Run i has the seed seed + i.
    largest = LARGEST_SEED - (runs - 1)
    if not 0 <= seed <= largest:
        raise UsageError(f"seed: read {seed}; must be 0 to {largest}")


def real_job(
    scenario: Scenario, seed: int, *, expected_s: float | None = None, load: float = 1.0
) -> EmulationJob:
    """Return one run in real time, expected to take until the end of the scenario by default."""
    plan = Plan.resolve(scenario)
    stop_s = plan.data["stop_ns"] / NS_PER_S
    expected_s = stop_s if expected_s is None else expected_s
    return EmulationJob(plan, seed, max_s=stop_s, expected_s=expected_s, load=load)


def expected_time_s(jobs: Sequence[EmulationJob], total: int, parallel: int) -> float:
    """Return the time in s of ``total`` runs like ``jobs``, whose loads add up to ``parallel``."""
    each_s = [job.expected_s * min(1.0, job.load / parallel) for job in jobs]
    longest_s = max(job.expected_s for job in jobs)
    return max(longest_s, total * sum(each_s) / len(jobs))


def largest_goodput_bps(plan: Mapping[str, Any], flow: Mapping[str, Any]) -> float:
    """Return the application bit/s of a link that only sends full segments of a flow."""
    forward, sender = plan["directions"][0], flow["workload"]["sender"]
    # The timestamps option and its padding (RFC 7323, appendix A).
    payload_bytes = sender["mss_bytes"] - (12 if sender["timestamps"] else 0)
    segment_bits = frame_bits(forward["framing"], sender["mss_bytes"] + TCP_IP_HEADER_BYTES)
    return float(forward["rate_bps"]["value"] * 8 * payload_bytes / segment_bits)


def duration_text(time_s: float) -> str:
    """Return a time in s, or in minutes from two minutes on."""
    return f"{time_s:.0f} s" if time_s < _MINUTES_FROM_S else f"{time_s / 60:.0f} min"
