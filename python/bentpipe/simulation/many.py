"""Runs of plans: one with progress, or many on all cores.

A run is one thread and the extension releases the interpreter lock, so a thread pool in this
process uses all cores. Results do not depend on the number of threads: each run has its own random
seed, and outcomes are in the order of the jobs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from bentpipe import _core
from bentpipe.errors import (
    InternalError,
    MemoryLimitError,
    Problem,
    RunsInterrupted,
    ScenarioError,
    ScenarioWarning,
    UsageError,
)
from bentpipe.results.columns import decode_column, decode_tables
from bentpipe.results.execution import execution
from bentpipe.results.files import RESULT_FORMAT_VERSION
from bentpipe.results.result import Result, State, stop_message
from bentpipe.simulation import memory as _memory

if TYPE_CHECKING:
    import polars as pl

_POLL_S: Final = 0.05


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run to do: a complete plan (`bentpipe.resolve`) and a seed, 0 to 2^64-1.

    ``scenario`` is what the plan is of, ``entries`` are those of its ``traffic``
    (`plan.entries.traffic_entries`), and ``warnings`` are about it: the manifest has them.
    """

    plan: Mapping[str, Any]
    seed: int
    scenario: Mapping[str, Any] = field(default_factory=dict)
    entries: Sequence[Mapping[str, Any]] = ()
    warnings: Sequence[ScenarioWarning] = ()


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
        raw = self.raw
        manifest = {
            "format_version": RESULT_FORMAT_VERSION,
            "bentpipe_version": _core.version(),
            "scenario": dict(self.job.scenario),
            "plan": self.job.plan,
            "entries": [dict(entry) for entry in self.job.entries],
            "seed": self.job.seed,
            "warnings": [asdict(warning) for warning in self.job.warnings],
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

    Raises:
        ScenarioError: the plan is not valid.
        UsageError: its hosts and links alone take more than the memory limit; nothing was run.
        InternalError: the run violated an invariant of the simulator.
        OSError: the capture cannot be written.
    """
    monitor = _core.Monitor()
    with ThreadPoolExecutor(max_workers=1) as pool:
        limit = _memory.limit_for(1, memory_limit)
        future = pool.submit(_run, 0, job, monitor, limit, capture)
        try:
            while not wait([future], timeout=_POLL_S).done:
                if progress is not None:
                    progress(monitor.fraction)
        except KeyboardInterrupt:
            monitor.cancel()
        except BaseException:
            monitor.cancel()
            raise
        return future.result()


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
        ScenarioError: a plan is not valid.
        UsageError: the hosts and links of a plan alone take more than its part of the memory limit.
        MemoryLimitError: a run reached its part and ended early; all outcomes are in the error.
        InternalError: a run violated an invariant of the simulator; the message has its seed.
        RunsInterrupted: Ctrl-C; the outcomes of the complete runs are in the exception, and
            `Outcome.index` is the index of the job.
    """
    monitors = [_core.Monitor() for _ in jobs]
    workers = max(min(threads or cores(), len(jobs)), 1)
    limit = _memory.limit_for(workers, memory_limit)
    interrupted = False
    with ThreadPoolExecutor(max_workers=workers) as pool:
        futures = [pool.submit(_run, i, job, monitors[i], limit) for i, job in enumerate(jobs)]
        try:
            for done, future in enumerate(as_completed(futures), start=1):
                future.result()
                if progress is not None:
                    progress(done, len(jobs))
        except KeyboardInterrupt:
            interrupted = True
            _stop(futures, monitors)
        except BaseException:
            _stop(futures, monitors)
            raise
    outcomes = [future.result() for future in futures if not future.cancelled()]
    if interrupted:
        complete = [outcome for outcome in outcomes if not outcome.interrupted]
        raise RunsInterrupted(
            f"{len(complete):,} of {len(jobs):,} runs are complete", outcomes=complete
        )
    for outcome in outcomes:
        if outcome.memory_limit_reached:
            reason = stop_message(outcome.raw["end_ns"], limit)
            shared = "" if workers == 1 else f", its part of what {workers} runs share"
            advice = _memory.advice(_core.memory_estimate(json.dumps(outcome.job.plan)))
            raise MemoryLimitError(
                f"the run with seed {outcome.job.seed} {reason}{shared}. {advice}",
                outcomes=outcomes,
            )
    return outcomes


def _stop(futures: Sequence[Future[Outcome]], monitors: Sequence[_core.Monitor]) -> None:
    for future in futures:
        future.cancel()
    for monitor in monitors:
        monitor.cancel()


def _run(
    index: int, job: Job, monitor: _core.Monitor, limit: int, capture: Path | None = None
) -> Outcome:
    try:
        raw = _core.run(json.dumps(job.plan), job.seed, monitor, capture, limit)
    except _core.MemoryLimitError as error:
        raise UsageError(f"the plan {_memory.too_large(error.args[0], limit)}") from None
    except _core.PlanError as error:
        raise ScenarioError(Problem(source="plan", field="", message=str(error))) from None
    except _core.RunError as error:
        raise InternalError(
            f"the run with seed {job.seed} violated an invariant of the simulator: {error}"
        ) from None
    return Outcome(job=job, index=index, raw=raw, memory_limit_bytes=limit)


def cores() -> int:
    """Return how many cores this process may use; in a container fewer than the machine's."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
