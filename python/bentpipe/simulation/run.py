"""Runs in virtual time: what one is, its outcome, and how a thread does one or many of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, field
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from bentpipe import _core
from bentpipe.errors import (
    InternalError,
    MemoryLimitError,
    Problem,
    RunSizeError,
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

_POLL_S: Final = 0.05
# The tables that a record has: all but samples and events.
_PACKED: Final = tuple(name for name in _core.unpack([]) if name != "runs")


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
        changed = plan.scenario.document.changes
        about = execution(started=started, memory=memory, settings=changed)
        return Result(manifest, self.tables(), about)

    @property
    def _state(self) -> State:
        if self.interrupted:
            return "interrupted"
        return "memory_limit_reached" if self.memory_limit_reached else "completed"


def pack(outcome: Outcome) -> bytes:
    """Return the record of a complete run, in the thread or process of the run.

    It has the tables without samples and events (``crates/sim/src/record/packed.rs``).
    """
    raw = outcome.raw
    columns = [col[1:] for name in _PACKED for col in raw["tables"][name].values()]
    return _core.pack(raw["completed"], raw["end_ns"], raw["packet_hops"], columns)


@dataclass(frozen=True, slots=True)
class SeededRuns:
    """Runs that differ in their seeds only: the job of the first one, and the number of each."""

    job: Job
    indices: Sequence[int]
    seeds: Sequence[int]


def by_plan(jobs: Iterable[tuple[int, Job]]) -> tuple[SeededRuns, ...]:
    """Group consecutive jobs of the same plan: one `SeededRuns` for each group."""
    runs = []
    for _, group in groupby(jobs, key=lambda numbered: (id(numbered[1].plan), numbered[1].name)):
        indices, same = zip(*group, strict=True)
        runs.append(SeededRuns(same[0], indices, [job.seed for job in same]))
    return tuple(runs)


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
            RunSizeError: its hosts and links alone take more than the memory limit.
            InternalError: the run violated an invariant of the simulator.
            OSError: the capture cannot be written.
        """
        limit = self.memory_limit_bytes
        try:
            raw = _core.run(job.plan.text, job.seed, self.monitor, capture, limit)
        except _core.MemoryLimitError as error:
            raise RunSizeError(f"the plan {_memory.too_large(error.args[0], limit)}") from None
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
    """Simulate as `simulate` does, but return what was recorded after Ctrl-C or at the limit.

    The run has a thread; ``progress`` is called from this one with the fraction done (0 to 1).
    """
    if memory_limit is not None and memory_limit < 1:
        raise UsageError(f"memory_limit: read {memory_limit}; must be at least 1 byte")
    check_seed(seed)
    job = Job(plan=plan, seed=plan.scenario.seed if seed is None else seed)
    limit = _memory.limit_for(1, memory_limit)
    batch = Batch(runs=(), memory_limit_bytes=limit, sharing=1)
    started = utc_now()
    with capture_file(capture) as file, ThreadPoolExecutor(max_workers=1) as pool:
        future = pool.submit(batch.run, 0, job, file)
        try:
            while not wait([future], timeout=_POLL_S).done:
                if progress is not None:
                    progress(batch.monitor.fraction)
        except KeyboardInterrupt:
            batch.monitor.cancel()
        except BaseException:
            batch.monitor.cancel()
            raise
        outcome = future.result()
    return outcome.result(started=started)
