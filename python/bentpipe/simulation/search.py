"""The largest rate at which nothing is lost, for each payload size, by bisection.

A trial is one run of the scenario with the searched flows at one rate. It passes if no packet of
any flow is dropped anywhere, for any cause, until the run ends, and no queue grows all the time
(`bentpipe.simulation.trials`). The rate is doubled, from a few packets per run, until a trial fails
or the link rate passes, and is then bisected. With bit errors, whether a trial passes is random.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeAlias

from bentpipe.errors import RunsInterrupted, UsageError
from bentpipe.plan.data import direction_number, series_values
from bentpipe.plan.plan import Plan
from bentpipe.scenario.schema import Scenario
from bentpipe.scenario.seeds import check_seed
from bentpipe.scenario.traffic import MAX_PAYLOAD_BYTES, ConstantRate
from bentpipe.simulation.many import Job, Outcome, run_jobs
from bentpipe.simulation.no_drop import NoDropRate, NoDropSearch, Trial
from bentpipe.simulation.trials import trial_of
from bentpipe.text import choice
from bentpipe.units import NS_PER_S, parse_size

DEFAULT_RESOLUTION: Final = 0.005
# Below the minimum, buffers hide more in any run of practical length; above the maximum, doubling
# alone is precise enough.
MIN_RESOLUTION: Final = 1e-4
MAX_RESOLUTION: Final = 0.5

RunJobs: TypeAlias = Callable[[Sequence[Job]], Sequence[Outcome]]

# The packets of the first trial; fewer would not measure a rate.
_FIRST_PACKETS: Final = 10


def no_drop_rate(
    scenario: Scenario,
    sizes: Sequence[int] | None = None,
    *,
    flow: str | None = None,
    resolution: float = DEFAULT_RESOLUTION,
    seed: int | None = None,
    threads: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> NoDropSearch:
    """Find the largest rate of the constant_rate flows at which no packet is lost.

    ``sizes`` are bytes of UDP payload (None: the payload that the scenario has). ``flow`` names one
    entry of the traffic (None: all that are constant_rate); its flows get equal rates, and the rest
    of the scenario is unchanged. The relative error of a rate that is ``proven`` is at most
    ``resolution``. Results do not depend on ``threads``; ``progress(done, total)`` counts trials.
    After Ctrl-C the rates found so far are returned, marked interrupted.

    Raises:
        ScenarioError: a packet of one of the sizes fits into no queue.
        UsageError: nothing to search, or a size, the resolution or the seed out of range.
    """
    run = partial(run_jobs, threads=threads)
    return search_rates(
        scenario, sizes, run, flow=flow, resolution=resolution, seed=seed, progress=progress
    )


def search_rates(
    scenario: Scenario,
    sizes: Sequence[int] | None,
    run: RunJobs,
    *,
    flow: str | None = None,
    resolution: float = DEFAULT_RESOLUTION,
    seed: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> NoDropSearch:
    """Find the largest rate as `no_drop_rate` does; ``run`` runs jobs as `run_jobs` does."""
    if not MIN_RESOLUTION <= resolution <= MAX_RESOLUTION:
        raise UsageError(
            f"resolution: read {resolution:.6%}; must be {MIN_RESOLUTION:.2%} to "
            f"{MAX_RESOLUTION:.0%}"
        )
    seed = scenario.seed if seed is None else seed
    check_seed(seed)
    entries = _entries(scenario, flow)
    chosen = _own_sizes(scenario, entries) if sizes is None else _checked_sizes(sizes)
    brackets = [_bracket(scenario, entries, size, resolution) for size in chosen]
    interrupted = _narrow(brackets, seed, run, progress)
    plan, searched = brackets[0].plan, brackets[0].searched
    return NoDropSearch(
        scenario=scenario.name,
        flows=tuple(plan.data["flows"][i]["name"] for i in searched),
        link_rate_bps=brackets[0].max_bps,
        sending_s=_sending_ns(plan.data, searched) / NS_PER_S,
        resolution=resolution,
        seed=seed,
        rates=tuple(bracket.result() for bracket in brackets),
        interrupted=interrupted,
    )


def max_trials(scenario: Scenario, sizes: Sequence[int], resolution: float) -> int:
    """Return the largest number of trials of `no_drop_rate`, for all constant_rate flows."""
    entries = _entries(scenario, None)
    return sum(_bracket(scenario, entries, size, resolution).max_trials for size in sizes)


def _entries(scenario: Scenario, name: str | None) -> dict[int, range]:
    """Return the searched entries of the traffic, each with its flows as indices into the plan."""
    plan = Plan.resolve(scenario)
    found: list[tuple[str, int, range]] = []
    first = 0
    for i, entry in enumerate(scenario.traffic):
        flows = range(first, first + plan.entries[i]["flows"])
        first = flows.stop
        if isinstance(entry, ConstantRate):
            # An entry without a name has the name of its first flow.
            found.append((entry.name or plan.data["flows"][flows.start]["name"], i, flows))
    if not found:
        kinds = ", ".join(sorted({entry.kind for entry in scenario.traffic}))
        raise UsageError(f"traffic: no flow of kind constant_rate to search with (read: {kinds})")
    chosen = {i: flows for label, i, flows in found if name in {None, label}}
    if not chosen:
        raise UsageError(f"flow: {choice(name, tuple(label for label, _, _ in found))}")
    return chosen


def _own_sizes(scenario: Scenario, entries: Mapping[int, range]) -> list[int]:
    payloads = [getattr(scenario.traffic[i], "payload", "") for i in entries]
    sizes = sorted({parse_size(payload) for payload in payloads})
    if len(sizes) > 1:
        shown = ", ".join(f"{size} B" for size in sizes)
        raise UsageError(f"sizes: the flows differ in payload ({shown}); name the sizes to search")
    return sizes


def _checked_sizes(sizes: Sequence[int]) -> list[int]:
    if not sizes:
        raise UsageError("sizes: none; name at least one size in bytes of UDP payload")
    for size in sizes:
        if not 1 <= size <= MAX_PAYLOAD_BYTES:
            raise UsageError(
                f"sizes: read {size}; must be 1 to {MAX_PAYLOAD_BYTES} bytes of UDP payload"
            )
    return sorted(set(sizes))


@dataclass
class _Bracket:
    """The rates between which the limit of one packet size is, and the trials so far."""

    plan: Plan
    searched: tuple[int, ...]
    payload_bytes: int
    min_bps: int
    max_bps: int
    resolution: float
    passes_bps: int | None = None
    fails_bps: int | None = None
    trials: list[Trial] = field(default_factory=list)

    @property
    def max_trials(self) -> int:
        """Return the largest number of trials."""
        doublings = math.ceil(math.log2(self.max_bps / self.min_bps))
        return 1 + doublings + math.ceil(math.log2(1 / self.resolution))

    def next_bps(self) -> int | None:
        """Return the next rate to try; None once the search has converged."""
        if self.passes_bps is None:
            return self.min_bps if self.fails_bps is None else None
        if self.fails_bps is None:
            more = min(2 * self.passes_bps, self.max_bps)
            return more if more > self.passes_bps else None
        if self.fails_bps - self.passes_bps <= max(1, self.resolution * self.passes_bps):
            return None
        return (self.passes_bps + self.fails_bps) // 2

    def job(self, rate_bps: int, seed: int) -> Job:
        flows = list(self.plan.data["flows"])
        for i in self.searched:
            flows[i] = {**flows[i], "workload": {**flows[i]["workload"], "rate_bps": rate_bps}}
        return Job(plan=self.plan.with_values(flows=flows), seed=seed)

    def record(self, trial: Trial) -> None:
        self.trials.append(trial)
        if trial.passed:
            self.passes_bps = trial.rate_bps
        else:
            self.fails_bps = trial.rate_bps

    def result(self) -> NoDropRate:
        return NoDropRate(
            payload_bytes=self.payload_bytes,
            rate_bps=self.passes_bps,
            fails_bps=self.fails_bps,
            flows=len(self.searched),
            converged=self.next_bps() is None,
            trials=tuple(self.trials),
        )


def _bracket(
    scenario: Scenario, entries: Mapping[int, range], size: int, resolution: float
) -> _Bracket:
    data = scenario.to_dict()
    # Samples and events take time and memory, and do not change the losses.
    data |= {"sample_interval": None, "packet_events": False}
    for i in entries:
        data["traffic"][i] |= {"payload": f"{size} B"}
    plan = Plan.resolve(data)
    resolved = plan.data
    searched = tuple(i for flows in entries.values() for i in flows)
    max_bps = max(
        max(
            series_values(
                resolved["directions"][direction_number(resolved["flows"][i])]["rate_bps"]
            )
        )
        for i in searched
    )
    first_bps = _FIRST_PACKETS * 8 * size * NS_PER_S // _sending_ns(resolved, searched)
    return _Bracket(
        plan=plan,
        searched=searched,
        payload_bytes=size,
        min_bps=min(max(1, first_bps), max_bps),
        max_bps=max_bps,
        resolution=resolution,
    )


def _sending_ns(plan: Mapping[str, Any], searched: Sequence[int]) -> int:
    flows = [plan["flows"][i] for i in searched]
    spans_ns = (
        min(flow["workload"]["duration_ns"], plan["stop_ns"] - flow["start_ns"]) for flow in flows
    )
    return int(min(spans_ns))


def _narrow(
    brackets: Sequence[_Bracket],
    seed: int,
    run: RunJobs,
    progress: Callable[[int, int], None] | None,
) -> bool:
    """Narrow all brackets, one trial of each at a time; return whether Ctrl-C ended that early."""
    total = sum(bracket.max_trials for bracket in brackets)
    try:
        while True:
            proposed = [(bracket, bracket.next_bps()) for bracket in brackets]
            trials = [(bracket, rate) for bracket, rate in proposed if rate is not None]
            if not trials:
                return False
            jobs = [bracket.job(rate_bps, seed) for bracket, rate_bps in trials]
            outcomes, interrupted = _run(jobs, run)
            for outcome in outcomes:
                bracket, rate_bps = trials[outcome.index]
                bracket.record(trial_of(outcome, rate_bps, bracket.resolution))
            if interrupted:
                return True
            if progress is not None:
                done = sum(
                    bracket.max_trials if bracket.next_bps() is None else len(bracket.trials)
                    for bracket in brackets
                )
                progress(done, total)
    except KeyboardInterrupt:
        return True


def _run(jobs: Sequence[Job], run: RunJobs) -> tuple[Sequence[Outcome], bool]:
    """Return the outcomes of jobs, and whether Ctrl-C ended some of them."""
    try:
        return run(jobs), False
    except RunsInterrupted as ended:
        return ended.outcomes, True
