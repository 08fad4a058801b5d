"""The runs behind an answer: cases of one scenario, each with the same seeds."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from bentpipe.answers.answer import Estimate
from bentpipe.errors import ScenarioError
from bentpipe.plan.data import series_values
from bentpipe.plan.links import link_document
from bentpipe.plan.plan import Plan
from bentpipe.results.confidence import mean_half_width
from bentpipe.results.result import Result
from bentpipe.scenario.document import Document
from bentpipe.scenario.schema import Scenario
from bentpipe.simulation.many import Job
from bentpipe.simulation.run import run_many
from bentpipe.units import NS_PER_S

Name = TypeVar("Name", bound=Hashable)
Values = npt.NDArray[np.float64]
Figures = Mapping[str, Values]

DEFAULT_SEEDS: Final = 10
MIN_SEEDS: Final = 3
# Two slow cores simulate these in some 10 s.
_BUDGET_PACKETS: Final = 30_000_000
_PACKET_BITS: Final = 12_000
# What a question takes from a scenario file; it has traffic of its own.
_LINK_FIELDS: Final[tuple[str, ...]] = ("link", "gateways", "hosts", "name")


class Experiment:
    """Runs cases and counts them for ``progress(done, total)``.

    Each case runs with the same seeds, so that differences are of pairs. `expect` decides how many
    seeds the time is enough for, unless ``seeds`` says it.
    """

    def __init__(
        self,
        *,
        seeds: int | None = None,
        first_seed: int = 1,
        threads: int | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self._seeds = seeds
        self._first = first_seed
        self._threads = threads
        self._progress = progress
        self._done = self._total = 0

    def expect(self, plan: Mapping[str, Any], cases: int) -> None:
        """Set how many cases like ``plan`` there will be, and from that the number of seeds."""
        if self._seeds is None:
            packets = cases * run_packets(plan)
            self._seeds = int(min(DEFAULT_SEEDS, max(MIN_SEEDS, _BUDGET_PACKETS / packets)))
        self._total = max(self._total, self._done + cases * self._seeds)

    @property
    def seeds(self) -> range:
        """The seeds of every case."""
        count = DEFAULT_SEEDS if self._seeds is None else self._seeds
        return range(self._first, self._first + count)

    def run(
        self, cases: Mapping[Name, Plan], read: Callable[[Result], Mapping[str, float]]
    ) -> dict[Name, Figures]:
        """Run cases; return what ``read`` takes from each result, an array over seeds a figure.

        Raises:
            RunsInterrupted: Ctrl-C.
            MemoryLimitError: a run reached its part of the memory limit.
        """
        found: dict[Name, Figures] = {}
        for name, case in cases.items():
            results = run_many(self._jobs(case), threads=self._threads, progress=self._count)
            self._done += len(results)
            rows = [read(result) for result in results]
            found[name] = {
                figure: np.array([row[figure] for row in rows], dtype=np.float64)
                for figure in rows[0]
            }
        return found

    def run_by_seed(
        self, cases: Mapping[Name, Plan], read: Callable[[Result], Mapping[str, float]]
    ) -> tuple[dict[Name, Figures], bool]:
        """Run cases as `run` does, but all of them with one seed after another.

        Ctrl-C keeps the seeds that are complete. Returns the figures, and whether it was pressed.

        Raises:
            KeyboardInterrupt: Ctrl-C before the first seed was complete.
            MemoryLimitError: a run reached its part of the memory limit.
        """
        jobs = {name: self._jobs(case) for name, case in cases.items()}
        rows: list[list[Mapping[str, float]]] = []
        interrupted = False
        for i in range(len(self.seeds)):
            try:
                results = run_many(
                    [of_case[i] for of_case in jobs.values()],
                    threads=self._threads,
                    progress=self._count,
                )
                rows.append([read(result) for result in results])
            except KeyboardInterrupt:
                if not rows:
                    raise
                interrupted = True
                break
            self._done += len(results)
        found: dict[Name, Figures] = {
            name: {
                figure: np.array([row[j][figure] for row in rows], dtype=np.float64)
                for figure in rows[0][j]
            }
            for j, name in enumerate(jobs)
        }
        return found, interrupted

    def result(self, case: Plan) -> Result:
        """Run a case with the first seed; return its whole result."""
        return run_many(self._jobs(case)[:1])[0]

    def _jobs(self, case: Plan) -> list[Job]:
        return [Job(plan=case, seed=seed) for seed in self.seeds]

    def _count(self, done: int, _total: int) -> None:
        if self._progress is not None:
            total = max(self._total, self._done + len(self.seeds))
            self._progress(self._done + done, total)


def link_scenario(link: str, traffic: Sequence[Mapping[str, Any]], duration: str) -> Document:
    """Return a scenario of the link of a preset or a scenario file, with other traffic.

    Raises:
        ScenarioError: the file cannot be read.
        UsageError: it is neither a preset nor a file.
    """
    of_link = link_document(link)
    data: dict[str, Any] = {
        field: of_link.data[field] for field in _LINK_FIELDS if field in of_link.data
    }
    data |= {"traffic": [dict(entry) for entry in traffic], "duration": duration}
    locations = {
        path: location
        for path, location in of_link.locations.items()
        if path and path[0] in _LINK_FIELDS
    }
    return Document(data=data, source=of_link.source, locations=locations)


def resolved(document: Document, settings: Sequence[str]) -> Plan:
    """Return the plan of a document with settings.

    Raises:
        ScenarioError: naming file, line, field, what was read and what is allowed.
    """
    return Plan.resolve(Scenario.from_document(document, settings))


def variants(
    document: Document, settings: Sequence[str], changes: Mapping[Name, Sequence[str]]
) -> dict[Name, Plan]:
    """Return a document with settings and each list of changes; what does not fit is left out."""
    found = {}
    for name, change in changes.items():
        try:
            found[name] = resolved(document, [*settings, *change])
        except ScenarioError:
            continue
    return found


def estimate(values: Values) -> Estimate:
    """Return mean and 95 % interval (Student's t) of values, one a seed; NaN if one is missing."""
    if values.size > 1 and bool(np.all(values == values[0])):
        return Estimate(float(values[0]), 0.0, values.size)
    return Estimate(float(np.mean(values)), mean_half_width(values.tolist()), values.size)


def change_percent(before: Values, after: Values) -> Estimate:
    """Return the change of the mean in percent of the mean before, by pairs of equal seeds.

    The values vary as the ratio of the means does in the first order (delta method), so the
    interval has the noise of both.
    """
    reference = float(np.mean(before))
    if reference == 0:
        return estimate(np.zeros(before.size))
    times = float(np.mean(after)) / reference
    return estimate(100 * (times - 1 + (after - times * before) / reference))


def run_packets(plan: Mapping[str, Any]) -> float:
    """Return how many full-size packets the link can carry in a run, at most."""
    rates = sum(peak_bps(direction["rate_bps"]) for direction in plan["directions"][:2])
    return max(rates * int(plan["stop_ns"]) / NS_PER_S / _PACKET_BITS, 1.0)


def initial(series: Mapping[str, Any]) -> int:
    """Return the value at the start of a run."""
    return series_values(series)[0]


def peak_bps(rate: Mapping[str, Any]) -> int:
    """Return the largest rate of a direction, in link bit/s."""
    return max(series_values(rate))
