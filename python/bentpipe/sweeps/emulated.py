"""The executor of runs in real time: labs of this machine, with the kernel's TCP."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from bentpipe.emulation.pool import EmulationJob, EmulationTask, processor_share, run_tasks
from bentpipe.errors import InvalidRunError, MachineError
from bentpipe.lab.capacity import largest_value
from bentpipe.results.result import Result
from bentpipe.simulation.executor import Executor, Finished
from bentpipe.simulation.run import Job, Outcome, cores
from bentpipe.sweeps.tables import raw_columns
from bentpipe.units import NS_PER_S

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class EmulatedOutcome(Outcome):
    """The outcome of a run in real time, in the form of a simulated one."""

    emulated: Result

    def result(self, *, started: str) -> Result:  # noqa: ARG002 - it knows when it began
        """Return the result."""
        return self.emulated


class Emulated(Executor):
    """Runs the scenarios of jobs in real time, as many at once as the machine carries in time.

    The runs under way have a load of at most ``processors`` processors (None: all of them). A run
    that was late is repeated twice, at last alone; then it is a failure.
    """

    def __init__(self, processors: int | None = None) -> None:
        self._processors = processors or cores()

    def run(
        self, jobs: Iterable[tuple[int, Job]], reduce: Callable[[Outcome], T]
    ) -> Generator[Finished[T]]:
        """Yield jobs as they finish; see `Executor`.

        Raises:
            MachineError: the machine lacks something; no run has succeeded.
        """
        drawn: dict[int, Job] = {}

        def emulations() -> Generator[tuple[int, EmulationJob]]:
            for index, job in jobs:
                drawn[index] = job
                yield index, _emulation(index, job)

        has_succeeded = False
        with TemporaryDirectory(prefix="bentpipe-") as folder:
            tasks = run_tasks(emulations(), parallel=self._processors, folder=Path(folder))
            with closing(tasks):
                for task in tasks:
                    job = drawn.pop(task.index)
                    if isinstance(task.error, MachineError) and not has_succeeded:
                        raise task.error
                    yield _finished(task, job, reduce)
                    has_succeeded = has_succeeded or task.error is None
                    shutil.rmtree(task.worker.out, ignore_errors=True)


def _emulation(index: int, job: Job) -> EmulationJob:
    plan = job.plan.data
    plan_s = plan["stop_ns"] / NS_PER_S
    rates_bps = [largest_value(each["rate_bps"]) for each in plan["directions"]]
    return EmulationJob(
        job.plan,
        job.seed,
        max_s=plan_s,
        expected_s=plan_s,
        folder=str(index),
        load=processor_share(max(rates_bps)),
    )


def _finished(task: EmulationTask, job: Job, reduce: Callable[[Outcome], T]) -> Finished[T]:
    if task.error is not None:
        return Finished(task.index, None, task.error)
    assert task.result is not None, "the run did not fail"
    if task.result.invalid is not None:
        message = f"invalid in {task.attempts} attempts: {task.result.invalid}"
        return Finished(task.index, None, InvalidRunError(message))
    about = task.result.manifest
    outcome = EmulatedOutcome(
        job=job,
        index=task.index,
        raw={
            "completed": about["traffic_ended"],
            "interrupted": False,
            "end_ns": about["end_ns"],
            "packet_hops": about["packet_hops"],
            "engine_calls": 0,
            "memory_exhausted": False,
            "memory_bytes_max": 0,
            "names": {
                name: about["names"][name] for name in ("directions", "places", "statistics")
            },
            "tables": {name: raw_columns(table) for name, table in task.result.tables.items()},
        },
        memory_limit_bytes=0,
        emulated=task.result,
    )
    return Finished(task.index, reduce(outcome))
