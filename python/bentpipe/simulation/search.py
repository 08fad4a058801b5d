"""Searches for the largest value at which runs pass, such as the largest rate without loss.

A value is doubled until a trial fails or the largest one passes, and is then bisected. This assumes
that what fails at one value fails at every larger one; with random traffic or bit errors, a larger
one may pass by chance.

A trial of a rate is one run of the scenario with the searched flows at that rate. It passes if no
packet of any flow is dropped anywhere, for any cause, until the run ends, and no queue grows all
the time (`bentpipe.simulation.no_drop`).

A trial of a number of calls, pages or users is the scenario with one ``count`` in an entry of
``traffic``, run with several seeds. It passes if every threshold holds with every seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

from bentpipe.errors import RunsInterrupted, UsageError
from bentpipe.plan.plan import Plan
from bentpipe.plan.presets import direction_number, series_values
from bentpipe.plan.traffic import flows_of_entry
from bentpipe.results.files import utc_now
from bentpipe.results.metric_values import ThresholdCheck, check_thresholds
from bentpipe.scenario.schema import Scenario
from bentpipe.scenario.traffic import (
    MAX_FLOWS,
    MAX_PAYLOAD_BYTES,
    Channels,
    Conference,
    ConstantRate,
)
from bentpipe.simulation.executor import Threads, run_jobs
from bentpipe.simulation.no_drop import NoDropRate, NoDropSearch, trial_of
from bentpipe.simulation.run import Job, Outcome
from bentpipe.text import choice
from bentpipe.units import NS_PER_S, check_seed, value_of

DEFAULT_RESOLUTION: Final = 0.005
# Below the minimum, buffers hide more in any run of practical length; above the maximum, doubling
# alone is precise enough.
MIN_RESOLUTION: Final = 1e-4
MAX_RESOLUTION: Final = 0.5

# The packets of the first trial; fewer would not measure a rate.
_FIRST_PACKETS: Final = 10

RunJobs: TypeAlias = Callable[[Sequence[Job]], Sequence[Outcome]]
Progress: TypeAlias = Callable[[int, int], None]


class _Trial(Protocol):
    @property
    def passed(self) -> bool: ...


T = TypeVar("T", bound=_Trial)


@dataclass
class Bracket(Generic[T]):
    """The integers between which the limit of a search is, and the trials so far.

    ``passes`` is the largest value that passed, ``fails`` the smallest that failed. The search has
    converged when they differ by 1, or by ``resolution`` times ``passes``. ``jobs`` returns the
    runs of a trial at a value, and ``judge`` what their outcomes show.
    """

    min: int
    max: int
    jobs: Callable[[int], list[Job]]
    judge: Callable[[int, list[Outcome]], T]
    resolution: float = 0.0
    passes: int | None = None
    fails: int | None = None
    trials: list[T] = field(default_factory=list)

    @property
    def max_trials(self) -> int:
        """The largest number of trials."""
        doublings = math.ceil(math.log2(self.max / self.min))
        return 1 + doublings + math.ceil(math.log2(1 / (self.resolution or 1 / self.max)))

    def next(self) -> int | None:
        """Return the next value to try; None once the search has converged."""
        if self.passes is None:
            return self.min if self.fails is None else None
        if self.fails is None:
            more = min(2 * self.passes, self.max)
            return more if more > self.passes else None
        if self.fails - self.passes <= max(1, self.resolution * self.passes):
            return None
        return (self.passes + self.fails) // 2

    def record(self, value: int, outcomes: list[Outcome]) -> None:
        """Judge the runs of a trial, and narrow the bracket by it."""
        self.trials.append(self.judge(value, outcomes))
        if self.trials[-1].passed:
            self.passes = value
        else:
            self.fails = value


def narrow(brackets: Sequence[Bracket[T]], run: RunJobs, progress: Progress | None) -> bool:
    """Narrow all brackets, one trial of each at a time; return whether Ctrl-C ended that early."""
    total = sum(bracket.max_trials for bracket in brackets)
    interrupted = False
    try:
        while not interrupted:
            proposed = [(bracket, bracket.next()) for bracket in brackets]
            trials = [(bracket, value) for bracket, value in proposed if value is not None]
            if not trials:
                return False
            jobs = [bracket.jobs(value) for bracket, value in trials]
            trial_of_job = [number for number, of_trial in enumerate(jobs) for _ in of_trial]
            try:
                complete = run(list(chain.from_iterable(jobs)))
            except RunsInterrupted as ended:
                complete, interrupted = ended.outcomes, True
            for number, (bracket, value) in enumerate(trials):
                outcomes = [each for each in complete if trial_of_job[each.index] == number]
                if len(outcomes) == len(jobs[number]):
                    bracket.record(value, outcomes)
            if progress is not None and not interrupted:
                done = (len(b.trials) if b.next() is not None else b.max_trials for b in brackets)
                progress(sum(done), total)
    except KeyboardInterrupt:
        pass
    return True


def named_entries(plan: Plan) -> list[tuple[str, range]]:
    """Return the name of each entry of ``traffic``, and the indices of its flows.

    The name is by default that of the first flow.
    """
    names = [entry["name"] for entry in plan.entries]
    return [
        (name or plan.data["flows"][flows.start]["name"], flows)
        for name, flows in zip(names, plan.entry_flows, strict=True)
    ]


def without_records(scenario: Scenario) -> dict[str, Any]:
    """Return a scenario as plain data, without records that no search looks at."""
    return scenario.to_dict() | {"sample_interval": None, "packet_events": False}


# --- the largest rate without loss --------------------------------------------------------------


def no_drop_rate(
    scenario: Scenario,
    sizes: Sequence[int] | None = None,
    *,
    flow: str | None = None,
    resolution: float = DEFAULT_RESOLUTION,
    seed: int | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
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
    run = partial(run_jobs, executor=Threads(threads))
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
    progress: Progress | None = None,
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
    chosen = _payloads(scenario, entries, sizes)
    searches = [_Search(scenario, entries, size, resolution, seed) for size in chosen]
    interrupted = narrow([search.bracket for search in searches], run, progress)
    first = searches[0]
    return NoDropSearch(
        scenario=scenario.name,
        flows=tuple(first.plan.data["flows"][i]["name"] for i in first.searched),
        link_rate_bps=first.bracket.max,
        sending_s=first.sending_ns / NS_PER_S,
        resolution=resolution,
        seed=seed,
        rates=tuple(search.result() for search in searches),
        interrupted=interrupted,
    )


def max_trials(scenario: Scenario, sizes: Sequence[int], resolution: float) -> int:
    """Return the largest number of trials of `no_drop_rate`, for all constant_rate flows."""
    entries = _entries(scenario, None)
    searches = (_Search(scenario, entries, size, resolution, 0) for size in sizes)
    return sum(search.bracket.max_trials for search in searches)


def _entries(scenario: Scenario, name: str | None) -> dict[int, range]:
    """Return the searched entries of the traffic, each with its flows as indices into the plan."""
    named = zip(scenario.traffic, named_entries(Plan.resolve(scenario)), strict=True)
    found = [
        (label, i, flows)
        for i, (entry, (label, flows)) in enumerate(named)
        if isinstance(entry, ConstantRate)
    ]
    if not found:
        kinds = ", ".join(sorted({entry.kind for entry in scenario.traffic}))
        raise UsageError(f"traffic: no flow of kind constant_rate to search with (read: {kinds})")
    chosen = {i: flows for label, i, flows in found if name in {None, label}}
    if not chosen:
        raise UsageError(f"flow: {choice(name, tuple(label for label, _, _ in found))}")
    return chosen


def _payloads(
    scenario: Scenario, entries: Mapping[int, range], sizes: Sequence[int] | None
) -> list[int]:
    """Return the payloads to search with: the given ones, or that of the entries."""
    if sizes is None:
        written = (getattr(scenario.traffic[i], "payload", None) for i in entries)
        own = sorted({value_of(payload) for payload in written})
        if len(own) > 1:
            shown = ", ".join(f"{size} B" for size in own)
            message = f"sizes: the flows differ in payload ({shown}); name the sizes to search"
            raise UsageError(message)
        return own
    if not sizes:
        raise UsageError("sizes: none; name at least one size in bytes of UDP payload")
    for size in sizes:
        if not 1 <= size <= MAX_PAYLOAD_BYTES:
            raise UsageError(
                f"sizes: read {size}; must be 1 to {MAX_PAYLOAD_BYTES} bytes of UDP payload"
            )
    return sorted(set(sizes))


class _Search:
    def __init__(
        self,
        scenario: Scenario,
        entries: Mapping[int, range],
        payload_bytes: int,
        resolution: float,
        seed: int,
    ) -> None:
        data = without_records(scenario)
        for i in entries:
            data["traffic"][i] |= {"payload": f"{payload_bytes} B"}
        self.payload_bytes, self.seed = payload_bytes, seed
        self.plan = Plan.resolve(data)
        self.searched = tuple(i for flows in entries.values() for i in flows)
        flows = [self.plan.data["flows"][i] for i in self.searched]
        directions = self.plan.data["directions"]
        rates = (directions[direction_number(flow)]["rate_bps"] for flow in flows)
        max_bps = max(max(series_values(rate)) for rate in rates)
        stop_ns = self.plan.data["stop_ns"]
        self.sending_ns: int = min(
            min(flow["workload"]["duration_ns"], stop_ns - flow["start_ns"]) for flow in flows
        )
        first_bps = _FIRST_PACKETS * 8 * payload_bytes * NS_PER_S // self.sending_ns
        self.bracket = Bracket(
            min=min(max(1, first_bps), max_bps),
            max=max_bps,
            jobs=self._jobs,
            judge=lambda rate_bps, outcomes: trial_of(outcomes[0], rate_bps, resolution),
            resolution=resolution,
        )

    def _jobs(self, rate_bps: int) -> list[Job]:
        flows = list(self.plan.data["flows"])
        for i in self.searched:
            flows[i] = {**flows[i], "workload": {**flows[i]["workload"], "rate_bps": rate_bps}}
        return [Job(plan=self.plan.with_values(flows=flows), seed=self.seed)]

    def result(self) -> NoDropRate:
        return NoDropRate(
            payload_bytes=self.payload_bytes,
            rate_bps=self.bracket.passes,
            fails_bps=self.bracket.fails,
            flows=len(self.searched),
            converged=self.bracket.next() is None,
            trials=tuple(self.bracket.trials),
        )


# --- the largest count ----------------------------------------------------------------------------


DEFAULT_MAX: Final = 1_000
DEFAULT_SEEDS: Final = 5
MAX_SEEDS: Final = 1_000


@dataclass(frozen=True, kw_only=True)
class CountTrial:
    """One count: of each threshold, the check that came closest to failing over the seeds."""

    count: int
    checks: tuple[ThresholdCheck, ...]

    @property
    def passed(self) -> bool:
        """Return whether every threshold held with every seed."""
        return all(check.passed for check in self.checks)


@dataclass(frozen=True, kw_only=True)
class MaxCount:
    """The largest count that meets the thresholds.

    ``count`` is the largest that passed, None if none did; ``fails`` is the smallest that failed,
    None if the bound ``max_count`` passed. ``interrupted``: Ctrl-C ended the search early.
    """

    scenario: str
    entry: str
    thresholds: tuple[str, ...]
    count: int | None
    fails: int | None
    max_count: int
    seeds: tuple[int, ...]
    trials: tuple[CountTrial, ...]
    interrupted: bool

    @property
    def converged(self) -> bool:
        """Return whether the next larger count failed, or the bound passed."""
        return self.fails == (self.count or 0) + 1 or self.count == self.max_count

    @property
    def reason(self) -> ThresholdCheck | None:
        """Return the first threshold that fails at ``fails``."""
        failed = (trial for trial in self.trials if trial.count == self.fails)
        return next((check for trial in failed for check in trial.checks if not check.passed), None)

    def to_json(self) -> dict[str, Any]:
        """Return the search as plain data."""
        return {
            "scenario": self.scenario,
            "entry": self.entry,
            "thresholds": list(self.thresholds),
            "count": self.count,
            "fails": self.fails,
            "max_count": self.max_count,
            "converged": self.converged,
            "interrupted": self.interrupted,
            "seeds": list(self.seeds),
            "trials": [
                {
                    "count": trial.count,
                    "passed": trial.passed,
                    "checks": [check.to_json() for check in trial.checks],
                }
                for trial in sorted(self.trials, key=lambda trial: trial.count)
            ],
        }


def max_count(
    scenario: Scenario,
    *,
    entry: str | None = None,
    bound: int = DEFAULT_MAX,
    seeds: int = DEFAULT_SEEDS,
    seed: int | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
) -> MaxCount:
    """Find the largest ``count`` of an entry of ``traffic`` that meets the scenario's thresholds.

    ``entry`` names the entry (None: the only one that a count can be varied of, or the only call).
    The search stops at ``bound``. ``seeds`` consecutive seeds are run for each count, from ``seed``
    (None: the scenario's). Results do not depend on ``threads``; ``progress(done, total)`` counts
    trials. After Ctrl-C the result so far is returned, marked interrupted.

    Raises:
        ScenarioError: a count does not fit the scenario.
        UsageError: no thresholds, no such entry, or a bound or seed out of range.
    """
    if not scenario.thresholds:
        raise UsageError(
            "thresholds: the scenario has none; add one, such as --threshold 'flows.mos.p5 >= 3.6'"
        )
    if not 1 <= seeds <= MAX_SEEDS:
        raise UsageError(f"seeds: read {seeds}; must be 1 to {MAX_SEEDS}")
    first = scenario.seed if seed is None else seed
    check_seed(first)
    check_seed(first + seeds - 1)
    index, label = _entry(scenario, entry)
    largest = _largest(scenario, index)
    if not 1 <= bound <= largest:
        raise UsageError(f"max: read {bound}; must be 1 to {largest}, by the number of flows")
    run_seeds = range(first, first + seeds)

    def jobs(count: int) -> list[Job]:
        data = without_records(scenario)
        data["traffic"][index]["count"] = count
        plan = Plan.resolve(data)
        return [Job(plan=plan, seed=seed) for seed in run_seeds]

    search = Bracket(min=1, max=bound, jobs=jobs, judge=_judge)
    interrupted = narrow([search], partial(run_jobs, executor=Threads(threads)), progress)
    return MaxCount(
        scenario=scenario.name,
        entry=label,
        thresholds=tuple(str(text) for text in scenario.thresholds),
        count=search.passes,
        fails=search.fails,
        max_count=bound,
        seeds=tuple(run_seeds),
        trials=tuple(search.trials),
        interrupted=interrupted,
    )


def _entry(scenario: Scenario, name: str | None) -> tuple[int, str]:
    labels = [label for label, _ in named_entries(Plan.resolve(scenario))]
    found = {
        label: i
        for i, (label, entry) in enumerate(zip(labels, scenario.traffic, strict=True))
        if not isinstance(entry, Channels | Conference)
    }
    if name is not None:
        if name not in found:
            raise UsageError(f"entry: {choice(name, tuple(found))}")
        return found[name], name
    written = [n for n, i in found.items() if "count" in scenario.traffic[i].model_fields_set]
    calls = [n for n, i in found.items() if scenario.traffic[i].kind == "voice"]
    for names in (written, calls, list(found)):
        if len(names) == 1:
            return found[names[0]], names[0]
    raise UsageError(f"entry: several can be varied; name one of: {', '.join(found)}")


def _largest(scenario: Scenario, index: int) -> int:
    """Return the largest count of an entry that the limit of flows allows."""
    terminals = scenario.link.terminals
    entry = scenario.traffic[index]
    assert not isinstance(entry, Channels | Conference), "it has no count"
    own = flows_of_entry(entry, terminals)
    others = sum(flows_of_entry(each, terminals) for each in scenario.traffic) - own
    return max(1, (MAX_FLOWS - others) // (own // entry.count))


def _judge(count: int, outcomes: list[Outcome]) -> CountTrial:
    """Return a trial with, of each threshold, the check that came closest to failing."""
    started = utc_now()
    by_seed = [check_thresholds(outcome.result(started=started)) for outcome in outcomes]
    closest = (min(checks, key=lambda check: check.margin) for checks in zip(*by_seed, strict=True))
    return CountTrial(count=count, checks=tuple(closest))
