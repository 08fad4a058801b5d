"""The simulated runs of a study: cells and searches, with one progress bar and one Ctrl-C."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import numpy as np

import bentpipe
from bentpipe.errors import RunsInterrupted, UsageError
from bentpipe.plan import Plan
from bentpipe.scenario import Scenario, frame_bits
from bentpipe.simulation import (
    Executor,
    Job,
    Outcome,
    Search,
    max_trials,
    run_jobs,
    search_no_drop,
)
from bentpipe.studies import STUDIES
from bentpipe.studies.base.comparison import Comparison, Measurement, Samples
from bentpipe.studies.base.outcome import StudyOutcome
from bentpipe.units import LARGEST_SEED, NS_PER_S, TCP_IP_BYTES, TIMESTAMPS_BYTES

# All plans are made before the first run: a thousand of the largest study take some 2 GB.
MAX_RUNS: Final = 1000
# The TCP of hosts of the 1990s, as far as the kernel can be configured.
KERNEL_RENO: Final[Mapping[str, Any]] = {
    "congestion_control": "reno",
    "sack": False,
    "timestamps": False,
    "rack_tlp": False,
    "initial_window": 1,
    "receive_buffer_counts": "window",
}


class Cell(ABC):
    """What is run: a frozen dataclass, whose fields tell it from other cells of the study."""

    @property
    def stagger(self) -> tuple[str, int] | None:
        """Which flows start at random, by the beginning of their names, and within how many ns."""
        return None

    @property
    def is_stochastic(self) -> bool:
        """Return whether a run depends on its seed, so that several are needed."""
        return self.stagger is not None

    @abstractmethod
    def scenario(self) -> Scenario:
        """Return the complete scenario."""

    @abstractmethod
    def figures(self, outcome: Outcome) -> Mapping[str, float | None]:
        """Return the figures of a simulated run; their names end in the unit."""

    def jobs(self, seeds: Iterable[int]) -> list[Job]:
        """Return the runs; their plans differ in the random starts only."""
        plan = Plan.resolve(self.scenario())
        return [Job(plan=self._staggered(plan, seed), seed=seed) for seed in seeds]

    def _staggered(self, plan: Plan, seed: int) -> Plan:
        if self.stagger is None:
            return plan
        prefix, within_ns = self.stagger
        rng = np.random.default_rng(seed)
        flows = [
            {**flow, "start_ns": int(rng.integers(within_ns))}
            if flow["name"].startswith(prefix)
            else flow
            for flow in plan.data["flows"]
        ]
        return plan.with_values(flows=flows)


CellT = TypeVar("CellT", bound=Cell)
OutcomeT = TypeVar("OutcomeT", bound=StudyOutcome)


class Measured(dict[CellT, Measurement]):
    """The figures of cells; one that was not run has no values."""

    def __missing__(self, cell: CellT) -> Measurement:
        """Return the measurement of no run."""
        return Measurement({}, exact=not cell.is_stochastic)

    def line(self, cells: Iterable[CellT], figure: str, unit: float = 1.0) -> list[Samples]:
        """Return the values of a figure of several cells, in multiples of ``unit``."""
        return [self[cell].of(figure, unit) for cell in cells]


class Batches(ABC):
    """Runs of a study, one batch after the other; after Ctrl-C it is interrupted."""

    study: str
    seed: int
    interrupted: bool

    @abstractmethod
    def about(self) -> dict[str, Any]:
        """Return what is recorded of all runs."""

    def outcome(
        self,
        of: type[OutcomeT],
        comparisons: Mapping[str, Comparison],
        configuration: Mapping[str, Any],
        **fields: Any,
    ) -> OutcomeT:
        """Return the outcome; ``fields`` are further ones of its class."""
        version = {"bentpipe_version": bentpipe.__version__}
        return of(
            study=self.study,
            comparisons=comparisons,
            configuration={**version, **self.about(), **configuration},
            interrupted=self.interrupted,
            **fields,
        )


class Work(Batches):
    """Simulates cells and searches of a study, one batch after the other.

    ``runs`` is the number of runs of each stochastic cell, with the seeds ``seed``, ``seed`` + 1,
    ...; None is the study's default. ``executor`` runs them, by default threads, one a core.
    ``progress(done, total)`` counts runs up to ``total``, by default those of the first batch.
    After Ctrl-C ``interrupted`` is true and no further batch runs.

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
        self.study, self.seed = study, seed
        self.runs = (STUDIES[study].default_runs or 1) if runs is None else runs
        check_seeds(self.runs, seed)
        self.total = 0
        self.interrupted = False
        self._executor = executor
        self._progress = progress
        self._done = 0

    def seeds(self, runs: int) -> range:
        """Return the seeds of ``runs`` runs."""
        return range(self.seed, self.seed + runs)

    def measure(self, cells: Iterable[CellT] | Mapping[CellT, int]) -> Measured[CellT]:
        """Run cells and return the figures of complete runs.

        Each stochastic cell has the runs of the study or those of a mapping, and any other one.
        """
        runs = cells if isinstance(cells, Mapping) else dict.fromkeys(cells, self.runs)
        by_cell = self.run(
            {
                cell: cell.jobs(self.seeds(n if cell.is_stochastic else 1))
                for cell, n in runs.items()
            }
        )
        return Measured(
            {
                cell: Measurement(
                    {outcome.job.seed: cell.figures(outcome) for outcome in outcomes},
                    exact=not cell.is_stochastic,
                )
                for cell, outcomes in by_cell.items()
            }
        )

    def run(self, jobs: Mapping[CellT, Sequence[Job]]) -> dict[CellT, tuple[Outcome, ...]]:
        """Run the jobs of cells; return the complete outcomes of each, in the order of its jobs."""
        every = [(cell, job) for cell, of_cell in jobs.items() for job in of_cell]
        by_cell: dict[CellT, list[Outcome]] = {cell: [] for cell in jobs}
        if not self.interrupted:
            self.total = self.total or len(every)
            complete: Sequence[Outcome]
            try:
                complete = run_jobs([job for _, job in every], self._executor, progress=self._count)
            except RunsInterrupted as ended:
                complete = ended.outcomes
                self.interrupted = True
            for outcome in complete:
                by_cell[every[outcome.index][0]].append(outcome)
            self._done += len(every)
        return {cell: tuple(outcomes) for cell, outcomes in by_cell.items()}

    def search(
        self, scenario: Scenario, sizes: Sequence[int], *, resolution: float
    ) -> Search | None:
        """Search the largest rate without a loss for payloads in bytes; None after Ctrl-C."""
        if self.interrupted:
            return None
        search = search_no_drop(
            scenario,
            sizes,
            run=partial(run_jobs, executor=self._executor),
            resolution=resolution,
            seed=self.seed,
            progress=self._count,
        )
        self._done += max_trials(scenario, sizes, resolution)
        self.interrupted = search.interrupted
        return search

    def about(self) -> dict[str, Any]:
        """Return what is recorded of all runs."""
        return {"first_seed": self.seed}

    def _count(self, done: int, _total: int) -> None:
        if self._progress is not None:
            self._progress(self._done + done, self.total)


def check_seeds(runs: int, seed: int) -> None:
    """Refuse numbers of runs and first seeds that are out of range.

    Raises:
        UsageError: naming the number that is out of range.
    """
    if not 1 <= runs <= MAX_RUNS:
        raise UsageError(f"seeds: read {runs}; must be 1 to {MAX_RUNS}")
    # Run i has the seed seed + i.
    largest = LARGEST_SEED - (runs - 1)
    if not 0 <= seed <= largest:
        raise UsageError(f"seed: read {seed}; must be 0 to {largest}")


def steady_bps(outcome: Outcome, flows: Sequence[int], from_s: float, until_s: float) -> float:
    """Return what TCP flows delivered together between two samples, in application bit/s."""
    time_ns = outcome.column("flow_samples", "time_ns")
    ours = np.isin(outcome.column("flow_samples", "flow"), flows)
    delivered = outcome.column("flow_samples", "delivered_bytes").astype(np.float64)

    def so_far(at_s: float) -> float:
        return float(delivered[ours & (time_ns == round(at_s * NS_PER_S))].sum())

    return (so_far(until_s) - so_far(from_s)) * 8 / (until_s - from_s)


def largest_goodput_bps(plan: Mapping[str, Any], flow: Mapping[str, Any]) -> float:
    """Return the application bit/s of a link that only sends full segments of a flow."""
    forward, sender = plan["directions"][0], flow["workload"]["sender"]
    payload_bytes = sender["mss_bytes"] - (TIMESTAMPS_BYTES if sender["timestamps"] else 0)
    segment_bits = frame_bits(forward["framing"], sender["mss_bytes"] + TCP_IP_BYTES)
    return float(forward["rate_bps"]["value"] * 8 * payload_bytes / segment_bits)
