"""Runs: one with its progress, or many on all cores.

A run is one thread and the extension releases the interpreter lock, so a thread pool in this
process uses every core. Results do not depend on the number of threads: each run draws its chance
from its own seed, and outcomes come back in the order of the jobs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from bentpipe import _core
from bentpipe.errors import InternalError, Problem, ScenarioError
from bentpipe.results import decode_column, decode_tables

if TYPE_CHECKING:
    import polars as pl

_POLL_S: Final = 0.05


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run to do: a complete plan (`Scenario.plan`) and a seed, 0 to 2^64-1."""

    plan: dict[str, Any]
    seed: int


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What one job gave. Columns stay packed until they are asked for."""

    job: Job
    index: int
    raw: _core.RawRun

    @property
    def interrupted(self) -> bool:
        """Whether the run was stopped before its end."""
        return self.raw["interrupted"]

    def column(self, table: str, name: str) -> npt.NDArray[Any]:
        """Return one column; one that can have nulls as floats, with NaN for null."""
        values, valid = decode_column(self.raw["tables"][table][name])
        return values if valid is None else np.where(valid, values.astype(np.float64), np.nan)

    def tables(self) -> dict[str, pl.DataFrame]:
        """Return all tables as frames (see `bentpipe.results.TABLES`)."""
        return decode_tables(self.raw["tables"])


def run_one(
    job: Job,
    *,
    progress: Callable[[float], None] | None = None,
    capture: Path | None = None,
) -> Outcome:
    """Run one job in a worker thread, reporting the fraction done (0 to 1) from this one.

    Ctrl-C stops the run; its outcome is then marked interrupted and holds what was recorded.
    Packets are captured into the file ``capture``, if there is one.

    Raises:
        ScenarioError: the plan is not valid.
        InternalError: the run broke a promise of the simulator.
        OSError: the capture cannot be written.
    """
    monitor = _core.Monitor()
    with ThreadPoolExecutor(max_workers=1) as pool:
        future = pool.submit(_run, 0, job, monitor, capture)
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


def run_many(
    jobs: Sequence[Job],
    *,
    threads: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Outcome]:
    """Run jobs on ``threads`` threads (None: one a core); outcomes are in the order of the jobs.

    ``progress(done, total)`` is called from this thread. After Ctrl-C the runs under way are
    stopped, the others are not started, and what there is comes back: `Outcome.index` says whose it
    is, and fewer outcomes than jobs or an interrupted one says that it happened.

    Raises:
        ScenarioError: a plan is not valid.
        InternalError: a run broke a promise of the simulator; the message has its seed.
    """
    monitors = [_core.Monitor() for _ in jobs]
    with ThreadPoolExecutor(max_workers=threads or cores()) as pool:
        futures = [pool.submit(_run, i, job, monitors[i]) for i, job in enumerate(jobs)]
        try:
            for done, future in enumerate(as_completed(futures), start=1):
                future.result()
                if progress is not None:
                    progress(done, len(jobs))
        except KeyboardInterrupt:
            _stop(futures, monitors)
        except BaseException:
            _stop(futures, monitors)
            raise
    return [future.result() for future in futures if not future.cancelled()]


def _stop(futures: Sequence[Future[Outcome]], monitors: Sequence[_core.Monitor]) -> None:
    for future in futures:
        future.cancel()
    for monitor in monitors:
        monitor.cancel()


def _run(index: int, job: Job, monitor: _core.Monitor, capture: Path | None = None) -> Outcome:
    try:
        raw = _core.run(json.dumps(job.plan), job.seed, monitor, capture)
    except _core.PlanError as error:
        raise ScenarioError(Problem(source="plan", field="", message=str(error))) from None
    except _core.RunError as error:
        raise InternalError(
            f"the run with seed {job.seed} broke a promise of the simulator: {error}"
        ) from None
    return Outcome(job=job, index=index, raw=raw)


def cores() -> int:
    """Return how many cores this process may use; in a container fewer than the machine's."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
