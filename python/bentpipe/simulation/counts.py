"""The largest number of calls, pages or users that meets the thresholds of a scenario.

A trial is the scenario with one ``count`` in an entry of ``traffic``, run with several seeds. It
passes if every threshold holds with every seed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from bentpipe.errors import UsageError
from bentpipe.plan.plan import Plan
from bentpipe.plan.traffic import flows_of_entry
from bentpipe.results.execution import utc_now
from bentpipe.results.thresholds import ThresholdCheck, check_thresholds
from bentpipe.scenario.schema import Scenario
from bentpipe.scenario.seeds import check_seed
from bentpipe.scenario.traffic import MAX_FLOWS, Channels, Conference
from bentpipe.simulation.many import Job, Outcome, run_jobs
from bentpipe.simulation.search import Bracket, Progress, named_entries, narrow, without_records
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
    interrupted = narrow([search], partial(run_jobs, threads=threads), progress)
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
    """Return the index and the name of the entry to vary."""
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
