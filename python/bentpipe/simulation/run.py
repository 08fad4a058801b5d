"""Runs in virtual time: one with progress, or many on all cores.

A run is one thread and the extension releases the interpreter lock, so a thread pool in this
process uses all cores. Results do not depend on the number of threads: each run has its own random
seed, and outcomes are in the order of the jobs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from itertools import chain, groupby, islice
from pathlib import Path
from queue import SimpleQueue
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from bentpipe import _core
from bentpipe.errors import (
    InternalError,
    MemoryLimitError,
    Problem,
    RunsInterrupted,
    ScenarioError,
    UsageError,
)
from bentpipe.plan.plan import Plan
from bentpipe.results.files import (
    RESULT_FORMAT_VERSION,
    capture_file,
    execution,
    stop_message,
    utc_now,
)
from bentpipe.results.result import Result, State
from bentpipe.results.tables import decode_column, decode_tables
from bentpipe.scenario.schema import Scenario
from bentpipe.simulation import memory as _memory
from bentpipe.units import check_seed

if TYPE_CHECKING:
    import polars as pl

T = TypeVar("T")

_POLL_S: Final = 0.05
# One is running and one is waiting, so that a thread never waits for the next batch.
_BATCHES_A_THREAD: Final = 2
# Python takes some 0.1 ms for a batch. Ctrl-C loses the runs of the batches under way.
_BATCH_S: Final = 0.02
_LARGEST_BATCH: Final = 1_000


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run to do: a plan and a seed, 0 to 2^64-1.

    ``name`` is that of the folder of its result, if it is kept.
    """

    plan: Plan
    seed: int
    name: str = ""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of one job. Columns are decoded when they are read."""

    job: Job
    index: int
    raw: _core.RawRun
    memory_limit_bytes: int

    @property
    def interrupted(self) -> bool:
        """Return whether the run was stopped before its end."""
        return self.raw["interrupted"]

    @property
    def memory_limit_reached(self) -> bool:
        """Return whether the run ended early because it reached ``memory_limit_bytes``."""
        return self.raw["memory_exhausted"]

    def column(self, table: str, name: str) -> npt.NDArray[Any]:
        """Return one column as an array; a nullable one as floats, with NaN for null."""
        values, valid = decode_column(self.raw["tables"][table][name])
        return values if valid is None else np.where(valid, values.astype(np.float64), np.nan)

    def tables(self) -> dict[str, pl.DataFrame]:
        """Return all tables as frames (see `bentpipe.results.tables.TABLES`)."""
        return decode_tables(self.raw["tables"])

    def result(self, *, started: str) -> Result:
        """Return the result of the run; ``started`` is when it began (ISO 8601, UTC)."""
        raw, plan = self.raw, self.job.plan
        manifest = {
            "format_version": RESULT_FORMAT_VERSION,
            "bentpipe_version": _core.version(),
            "scenario": plan.scenario.to_dict(),
            "plan": plan.data,
            "entries": plan.entries,
            "seed": self.job.seed,
            "warnings": [asdict(warning) for warning in plan.warnings],
            "names": {**_core.names(), **raw["names"]},
            "state": self._state,
            "traffic_ended": raw["completed"],
            "end_ns": raw["end_ns"],
            "packet_hops": raw["packet_hops"],
            "engine_calls": raw["engine_calls"],
            "memory": {"counted_bytes_max": raw["memory_bytes_max"]},
        }
        # The default limit is a share of the available memory.
        memory = {"limit_bytes": self.memory_limit_bytes}
        return Result(manifest, self.tables(), execution(started=started, memory=memory))

    @property
    def _state(self) -> State:
        if self.interrupted:
            return "interrupted"
        return "memory_limit_reached" if self.memory_limit_reached else "completed"


@dataclass(frozen=True, slots=True)
class SeededRuns:
    """Runs that differ in their seeds only: the job of the first one, and the number of each."""

    job: Job
    indices: Sequence[int]
    seeds: Sequence[int]

    def jobs(self) -> Iterator[tuple[int, Job]]:
        """Yield the job of each run with its number."""
        for index, seed in zip(self.indices, self.seeds, strict=True):
            yield index, replace(self.job, seed=seed)


def by_plan(jobs: Iterable[tuple[int, Job]]) -> tuple[SeededRuns, ...]:
    """Return jobs, of which those of one plan follow each other, without repeating the plan."""
    found = []
    for _, group in groupby(jobs, key=lambda each: (id(each[1].plan), each[1].name)):
        indices, same = zip(*group, strict=True)
        found.append(SeededRuns(same[0], indices, [job.seed for job in same]))
    return tuple(found)


@dataclass
class BatchSize:
    """The number of runs of the next batch: as many as take ``seconds``, but at most ``largest``.

    It starts with one run, and grows slowly since the next runs may be longer.
    """

    seconds: float
    largest: int
    runs: int = 1

    def adapt(self, runs: int, seconds: float) -> None:
        """Choose it by how long a batch of ``runs`` took."""
        fits = int(self.seconds * max(runs, 1) / max(seconds, 1e-6))
        self.runs = max(1, min(fits, 2 * self.runs, self.largest))


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Runs that one thread does one after the other, and the memory limit of each.

    ``sharing`` is the number of concurrent runs that share the memory.
    """

    runs: Sequence[SeededRuns]
    memory_limit_bytes: int
    sharing: int
    monitor: _core.Monitor = field(default_factory=_core.Monitor)

    def run(self, index: int, job: Job, capture: Path | None = None) -> Outcome:
        """Do one of the runs, and capture packets into the file ``capture``.

        Raises:
            ScenarioError: the plan is not valid.
            UsageError: its hosts and links alone take more than the memory limit.
            InternalError: the run violated an invariant of the simulator.
            OSError: the capture cannot be written.
        """
        limit = self.memory_limit_bytes
        try:
            raw = _core.run(job.plan.text, job.seed, self.monitor, capture, limit)
        except _core.MemoryLimitError as error:
            raise UsageError(f"the plan {_memory.too_large(error.args[0], limit)}") from None
        except _core.PlanError as error:
            raise ScenarioError(Problem(source="plan", field="", message=str(error))) from None
        except _core.RunError as error:
            raise InternalError(
                f"the run with seed {job.seed} violated an invariant of the simulator: {error}"
            ) from None
        return Outcome(job=job, index=index, raw=raw, memory_limit_bytes=limit)

    def memory_message(self, outcome: Outcome) -> str:
        """Return when a run reached its memory limit, and how to change the scenario."""
        reason = stop_message(outcome.raw["end_ns"], self.memory_limit_bytes)
        shared = "" if self.sharing == 1 else f", its part of what {self.sharing} runs share"
        advice = _memory.advice(outcome.job.plan.text)
        return f"the run with seed {outcome.job.seed} {reason}{shared}. {advice}"


def run_one(
    job: Job,
    *,
    progress: Callable[[float], None] | None = None,
    capture: Path | None = None,
    memory_limit: int | None = None,
) -> Outcome:
    """Run one job in a worker thread, and report the fraction done (0 to 1) from this thread.

    Ctrl-C stops the run; its outcome is then marked interrupted and holds what was recorded.
    ``capture`` names a file to capture packets into. A run that takes more memory than
    ``memory_limit`` bytes (None: half of the available memory) ends early, and its outcome says so.
    Errors are those of `Batch.run`.
    """
    limit = _memory.limit_for(1, memory_limit)
    batch = Batch(runs=(), memory_limit_bytes=limit, sharing=1)
    with ThreadPoolExecutor(max_workers=1) as pool:
        future = pool.submit(batch.run, 0, job, capture)
        try:
            while not wait([future], timeout=_POLL_S).done:
                if progress is not None:
                    progress(batch.monitor.fraction)
        except KeyboardInterrupt:
            batch.monitor.cancel()
        except BaseException:
            batch.monitor.cancel()
            raise
        return future.result()


def run_as_completed(
    jobs: Iterable[tuple[int, Job]],
    run: Callable[[Batch], Iterable[T]],
    *,
    threads: int | None = None,
    memory_limit: int | None = None,
) -> Generator[T]:
    """Yield what ``run`` returns for each batch, as the batches finish on ``threads`` threads.

    ``jobs``, each with its number, are drawn from this thread when a batch of two a thread can
    start. Batches of short runs have many of them. Concurrent runs share ``memory_limit`` bytes
    (None: half of the available memory) equally. An error of ``run`` is raised here. Closing the
    iterator, or an error in it, cancels the other runs.
    """
    waiting = iter(jobs)
    workers = threads or cores()
    first = list(islice(waiting, workers))
    waiting = chain(first, waiting)
    workers = max(len(first), 1)
    limit = _memory.limit_for(workers, memory_limit)
    size = BatchSize(_BATCH_S, _LARGEST_BATCH)
    finished: SimpleQueue[Future[tuple[list[T], float]]] = SimpleQueue()
    monitors: dict[Future[tuple[list[T], float]], _core.Monitor] = {}
    with ThreadPoolExecutor(max_workers=workers) as pool:
        try:
            while runs := by_plan(islice(waiting, size.runs)):
                batch = Batch(runs=runs, memory_limit_bytes=limit, sharing=workers)
                future = pool.submit(_timed, run, batch)
                monitors[future] = batch.monitor
                future.add_done_callback(finished.put)
                if len(monitors) >= _BATCHES_A_THREAD * workers:
                    yield from _next_of(finished, monitors, size)
            while monitors:
                yield from _next_of(finished, monitors, size)
        finally:
            for future, monitor in monitors.items():
                future.cancel()
                monitor.cancel()


def _timed(run: Callable[[Batch], Iterable[T]], batch: Batch) -> tuple[list[T], float]:
    started_s = perf_counter()
    return list(run(batch)), perf_counter() - started_s


def _next_of(
    finished: SimpleQueue[Future[tuple[list[T], float]]],
    monitors: dict[Future[tuple[list[T], float]], _core.Monitor],
    size: BatchSize,
) -> list[T]:
    future = finished.get()
    del monitors[future]
    values, seconds = future.result()
    size.adapt(len(values), seconds)
    return values


def run_jobs(
    jobs: Sequence[Job],
    *,
    threads: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    memory_limit: int | None = None,
) -> list[Outcome]:
    """Run jobs on ``threads`` threads (None: one a core); outcomes are in the order of the jobs.

    ``progress(done, total)`` is called from this thread. After Ctrl-C the current runs are stopped
    and the others are not started.

    Concurrent runs share ``memory_limit`` bytes (None: half of the available memory) equally.

    Raises:
        MemoryLimitError: a run reached its part and ended early; all outcomes are in the error.
        BentpipeError: another error of `Batch.run`.
        RunsInterrupted: Ctrl-C; the outcomes of the complete runs are in the exception, and
            `Outcome.index` is the index of the job.
    """
    outcomes: list[Outcome] = []
    exhausted: dict[int, str] = {}

    def run(batch: Batch) -> Iterator[Outcome]:
        for index, job in chain.from_iterable(runs.jobs() for runs in batch.runs):
            outcome = batch.run(index, job)
            if outcome.memory_limit_reached:
                exhausted[index] = batch.memory_message(outcome)
            yield outcome

    runs = run_as_completed(enumerate(jobs), run, threads=threads, memory_limit=memory_limit)
    try:
        with closing(runs):
            for outcome in runs:
                outcomes.append(outcome)
                if progress is not None:
                    progress(len(outcomes), len(jobs))
    except KeyboardInterrupt:
        raise RunsInterrupted(
            f"{len(outcomes):,} of {len(jobs):,} runs are complete", outcomes=_in_order(outcomes)
        ) from None
    outcomes = _in_order(outcomes)
    if exhausted:
        raise MemoryLimitError(exhausted[min(exhausted)], outcomes=outcomes)
    return outcomes


def _in_order(outcomes: Iterable[Outcome]) -> list[Outcome]:
    return sorted(outcomes, key=lambda outcome: outcome.index)


def cores() -> int:
    """Return how many cores this process may use; in a container fewer than the machine's."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def simulate(
    scenario: Scenario | str | Path | Mapping[str, Any],
    *,
    seed: int | None = None,
    capture: str | Path | None = None,
    memory_limit: int | None = None,
) -> Result:
    """Simulate a scenario, packet by packet.

    The same plan, seed and version give identical tables.

    Parameters
    ----------
    scenario
        A `Scenario`, the path of a scenario file, or a mapping.
    seed
        Replaces the scenario's seed, 0 to 2^64-1.
    capture
        The file to capture packets into (pcapng, for Wireshark); an existing one is replaced.
    memory_limit
        In bytes; by default half of the available memory.

    Returns
    -------
    Result
        The tables of the run.

    Raises
    ------
    ScenarioError
        The scenario is wrong; nothing was run.
    UsageError
        The seed is out of range, or hosts and links alone take more than the memory limit, and
        nothing was run; or the capture cannot be written.
    MemoryLimitError
        The memory limit was reached; its ``result`` is what was recorded.
    InternalError
        The run violated an invariant of the simulator.
    KeyboardInterrupt
        Ctrl-C.

    Examples
    --------
    >>> result = bentpipe.simulate("scenarios/geo-bulk.yaml", seed=7)
    >>> result.flows["delivered_bytes"].to_list()
    [10485760]
    """
    plan = Plan.resolve(scenario)
    result = run_simulation(
        plan,
        seed=seed,
        capture=None if capture is None else Path(capture),
        memory_limit=memory_limit,
    )
    if result.interrupted:
        raise KeyboardInterrupt
    if result.memory_limit_reached:
        raise MemoryLimitError(_memory.memory_message(plan, result), result=result)
    return result


def run_simulation(
    plan: Plan,
    *,
    seed: int | None = None,
    progress: Callable[[float], None] | None = None,
    capture: Path | None = None,
    memory_limit: int | None = None,
) -> Result:
    """Simulate as `simulate` does, but return what was recorded after Ctrl-C or at the limit."""
    if memory_limit is not None and memory_limit < 1:
        raise UsageError(f"memory_limit: read {memory_limit}; must be at least 1 byte")
    check_seed(seed)
    job = Job(plan=plan, seed=plan.scenario.seed if seed is None else seed)
    started = utc_now()
    with capture_file(capture) as file:
        outcome = run_one(job, progress=progress, capture=file, memory_limit=memory_limit)
    return outcome.result(started=started)


def run_many(
    jobs: Sequence[Job],
    *,
    threads: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    memory_limit: int | None = None,
) -> list[Result]:
    """Simulate plans on ``threads`` threads (None: one a core); results are in the order of jobs.

    ``progress(done, total)`` is called from this thread. Concurrent runs share ``memory_limit``
    bytes (None: half of the available memory) equally.

    Raises:
        MemoryLimitError: a run reached its part and ended early; all results are in the error.
        RunsInterrupted: Ctrl-C; the results of the complete runs are in the exception.
        BentpipeError: another error of `run_jobs`.
    """
    started = utc_now()

    def results(outcomes: Iterable[Outcome]) -> list[Result]:
        return [outcome.result(started=started) for outcome in outcomes]

    try:
        return results(
            run_jobs(jobs, threads=threads, progress=progress, memory_limit=memory_limit)
        )
    except RunsInterrupted as ended:
        raise RunsInterrupted(str(ended), results=results(ended.outcomes)) from None
    except MemoryLimitError as error:
        raise MemoryLimitError(str(error), results=results(error.outcomes)) from None
