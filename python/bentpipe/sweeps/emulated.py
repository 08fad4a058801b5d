"""The executor of runs in real time: labs of this machine, with the kernel's TCP."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from dataclasses import dataclass
from typing import TypeVar

from bentpipe.errors import BentpipeError, InvalidRunError, MachineError
from bentpipe.live.pool import EmulatedRun, EmulationJob, emulate_as_completed, processor_share
from bentpipe.plan.presets import series_values
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
        drawn: list[tuple[int, Job]] = []

        def emulations() -> Generator[EmulationJob]:
            for index, job in jobs:
                drawn.append((index, job))
                yield _emulation(job)

        has_succeeded = False
        with closing(emulate_as_completed(emulations(), parallel=self._processors)) as runs:
            for run in runs:
                index, job = drawn[run.index]
                if isinstance(run.outcome, MachineError) and not has_succeeded:
                    raise run.outcome
                yield _finished(run, index, job, reduce)
                has_succeeded = has_succeeded or isinstance(run.outcome, Result)


def _emulation(job: Job) -> EmulationJob:
    plan = job.plan.data
    plan_s = plan["stop_ns"] / NS_PER_S
    rates_bps = [max(series_values(direction["rate_bps"])) for direction in plan["directions"]]
    return EmulationJob(
        job.plan,
        job.seed,
        max_s=plan_s,
        expected_s=plan_s,
        load=processor_share(max(rates_bps)),
    )


def _finished(
    run: EmulatedRun, index: int, job: Job, reduce: Callable[[Outcome], T]
) -> Finished[T]:
    if isinstance(run.outcome, BentpipeError):
        return Finished(index, None, run.outcome)
    if run.invalid is not None:
        message = f"invalid in {run.attempts} attempts: {run.invalid}"
        return Finished(index, None, InvalidRunError(message))
    about = run.result.manifest
    outcome = EmulatedOutcome(
        job=job,
        index=index,
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
            "tables": {name: raw_columns(table) for name, table in run.result.tables.items()},
        },
        memory_limit_bytes=0,
        emulated=run.result,
    )
    return Finished(index, reduce(outcome))
