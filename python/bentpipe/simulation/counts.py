"""The largest number of calls, pages or users that meets the thresholds of a scenario.

A trial is the scenario with one ``count`` in an entry of ``traffic``, run with several seeds. It
passes if every threshold holds with every seed. The count is doubled from 1 until a trial fails or
the bound passes, and is then bisected. This assumes that what fails at one count fails at every
larger one; with random traffic or errors, a larger count may pass by chance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from bentpipe.errors import RunsInterrupted, UsageError
from bentpipe.plan.plan import Plan
from bentpipe.plan.traffic import flows_of_entry
from bentpipe.results.execution import utc_now
from bentpipe.results.thresholds import ThresholdCheck, check_thresholds
from bentpipe.scenario.schema import Scenario
from bentpipe.scenario.seeds import check_seed
from bentpipe.scenario.traffic import MAX_FLOWS, Channels, Conference
from bentpipe.simulation.many import Job, Outcome, run_jobs
from bentpipe.text import choice

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
    progress: Callable[[int, int], None] | None = None,
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
    search = _Search(scenario, index, range(first, first + seeds), threads, bound)
    interrupted = search.run(progress)
    return MaxCount(
        scenario=scenario.name,
        entry=label,
        thresholds=tuple(str(text) for text in scenario.thresholds),
        count=search.passes or None,
        fails=search.fails,
        max_count=bound,
        seeds=tuple(search.seeds),
        trials=tuple(search.trials),
        interrupted=interrupted,
    )


def _entry(scenario: Scenario, name: str | None) -> tuple[int, str]:
    """Return the index and the name of the entry to vary."""
    plan = Plan.resolve(scenario)
    flows = plan.data["flows"]
    found: dict[str, int] = {}
    first = 0
    for i, entry in enumerate(scenario.traffic):
        if not isinstance(entry, Channels | Conference):
            # An entry without a name has the name of its first flow.
            found[entry.name or flows[first]["name"]] = i
        first += plan.entries[i]["flows"]
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


@dataclass
class _Search:
    """The counts between which the limit is, and the trials so far."""

    scenario: Scenario
    index: int
    seeds: range
    threads: int | None
    bound: int
    passes: int = 0
    fails: int | None = None
    trials: list[CountTrial] = field(default_factory=list)

    def run(self, progress: Callable[[int, int], None] | None) -> bool:
        """Run trials until the search has converged; return whether Ctrl-C ended it early."""
        total = 2 * self.bound.bit_length() + 1
        try:
            while (count := self._next()) is not None:
                trial = self._trial(count)
                self.trials.append(trial)
                if trial.passed:
                    self.passes = count
                else:
                    self.fails = count
                if progress is not None:
                    progress(total if self._next() is None else len(self.trials), total)
        except (KeyboardInterrupt, RunsInterrupted):
            return True
        return False

    def _next(self) -> int | None:
        """Return the next count to try; None once the search has converged."""
        if self.fails is None:
            more = min(max(1, 2 * self.passes), self.bound)
            return more if more > self.passes else None
        return None if self.fails - self.passes <= 1 else (self.passes + self.fails) // 2

    def _trial(self, count: int) -> CountTrial:
        data = self.scenario.to_dict()
        # Samples and events take time and memory, and no threshold is about them.
        data |= {"sample_interval": None, "packet_events": False}
        data["traffic"][self.index]["count"] = count
        plan = Plan.resolve(data)
        jobs = [Job(plan=plan, seed=seed) for seed in self.seeds]
        started = utc_now()
        outcomes = run_jobs(jobs, threads=self.threads)
        return CountTrial(count=count, checks=_closest(outcomes, started))


def _closest(outcomes: Sequence[Outcome], started: str) -> tuple[ThresholdCheck, ...]:
    """Return, of each threshold, the check of the seed that misses it most, or meets it least."""
    by_seed = [check_thresholds(outcome.result(started=started)) for outcome in outcomes]
    return tuple(
        min(checks, key=lambda check: check.margin) for checks in zip(*by_seed, strict=True)
    )
