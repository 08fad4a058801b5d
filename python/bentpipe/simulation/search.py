"""Searches for the largest value of a scenario at which its runs pass, or for the smallest one.

A value is doubled until a trial fails or the largest one passes, and is then bisected. This assumes
that what fails at one value fails at every larger one; with random traffic or bit errors, a larger
one may pass by chance. For the smallest value it is doubled until a trial passes, and what fails at
one value is assumed to fail at every smaller one.

`search` varies a field of the scenario; a trial passes if every threshold holds with every seed.
`search_no_drop` varies the rates of constant_rate flows, for each packet size; a trial passes if no
packet of any flow is dropped anywhere, for any cause, until the run ends, and no queue grows all
the time (`bentpipe.simulation.no_drop`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias, TypedDict, Unpack

from bentpipe.errors import RunsInterrupted, ScenarioError, UnitError, UsageError
from bentpipe.plan.plan import Plan
from bentpipe.plan.presets import direction_number, series_values
from bentpipe.quantities import QUANTITIES
from bentpipe.results.files import utc_now
from bentpipe.results.metric_values import check_thresholds
from bentpipe.scenario.document import Document, SourceLocation
from bentpipe.scenario.schema import Scenario
from bentpipe.scenario.settings import Setting
from bentpipe.scenario.traffic import Channels, Conference, ConstantRate
from bentpipe.simulation.executor import Threads, run_jobs
from bentpipe.simulation.limits import Bracket, Check, Limit, Search
from bentpipe.simulation.no_drop import check_losses
from bentpipe.simulation.run import Job, Outcome
from bentpipe.text import choice, shown
from bentpipe.units import DURATION, LARGEST_SEED, NS_PER_S, RATE, SIZE, check_seed, value_of

DEFAULT_RESOLUTION: Final = 0.005
# Below the minimum, buffers hide more in any run of practical length; above the maximum, doubling
# alone is precise enough.
MIN_RESOLUTION: Final = 1e-4
MAX_RESOLUTION: Final = 0.5
DEFAULT_MAX: Final = 1_000
DEFAULT_SEEDS: Final = 5
MAX_SEEDS: Final = 1_000

# The packets of the first trial; fewer would not measure a rate.
_FIRST_PACKETS: Final = 10
# A quantity is searched from this part of the bound.
_SPAN: Final = 1_000
_MAX: Final = SourceLocation("--max")
_PLAIN_NAME: Final = re.compile(r"[^\W\d][\w-]*")

RunJobs: TypeAlias = Callable[[Sequence[Job]], Sequence[Outcome]]
Progress: TypeAlias = Callable[[int, int], None]


class SearchOptions(TypedDict, total=False):
    """How a search runs.

    ``resolution`` is the relative distance of the values that pass and fail (None: 0.5 %, or 1 for
    an integer). ``seeds`` consecutive seeds are run for each value (None: 5, or 1 in a no-drop
    search), from ``seed`` (None: the scenario's). Results do not depend on ``threads``, nor on
    ``run``, which runs jobs in place of `run_jobs`; ``progress(done, total)`` counts trials.
    """

    resolution: float | None
    seeds: int | None
    seed: int | None
    threads: int | None
    run: RunJobs
    progress: Progress | None


# --- any field ------------------------------------------------------------------------------------


def search(
    scenario: Scenario | str | Path | Mapping[str, Any],
    path: str | None = None,
    *,
    thresholds: Sequence[str] = (),
    bound: int | str | None = None,
    smallest: bool = False,
    **options: Unpack[SearchOptions],
) -> Search:
    """Find the largest or smallest value of a field that meets the scenario's thresholds.

    Parameters
    ----------
    scenario
        A `Scenario`, the path of a scenario file, or a mapping.
    path
        An integer, a rate, a time or a size, named as a setting does, such as
        ``traffic.call.count``; by default the only ``count`` of ``traffic`` that is written, or
        that of the only call.
    thresholds
        Added to those of the scenario.
    bound
        The largest value to try; by default 1,000, or the largest that the field allows below that.
        The first value is 1 or, of a quantity such as ``20 Mbit/s``, a thousandth of the bound; or
        more, if that does not fit. A quantity needs a bound.
    smallest
        Find the smallest value, where larger ones are better, such as that of a rate.
    options
        See `SearchOptions`.

    Returns
    -------
    Search
        The limit with its trials; after Ctrl-C what was found by then, marked interrupted.

    Raises
    ------
    ScenarioError
        There is no such field, or a value does not fit the scenario.
    UsageError
        No thresholds, nothing to search, or an option out of range.

    Examples
    --------
    >>> search = bentpipe.search(
    ...     "scenarios/voice.yaml", thresholds=["flows.mos.p5 >= 3"], bound=4, seeds=1
    ... )
    >>> search.path, search.limits[0].passes
    ('traffic.call.count', 4)
    """
    checked = _with_thresholds(Scenario.of(scenario), thresholds)
    seeds = _seeds(checked, DEFAULT_SEEDS, options)
    varied = path or _only_count(checked)
    largest, column, unit = _integer(_default_bound(checked, varied) if bound is None else bound)
    plan = partial(_plan_with, checked, varied, unit)
    # What does not fit is refused before anything runs.
    largest = _largest(plan, varied) if bound is None else _fitting(plan, largest)
    lowest = _lowest(plan, largest, max(1, largest // _SPAN) if unit else 1)
    precision = _resolution(options, DEFAULT_RESOLUTION if unit else 0.0)
    limit = Limit(min=lowest, max=largest, resolution=precision, smallest=smallest)
    series = [_Series(limit, plan, lambda run: check_thresholds(run.result(started=utc_now())))]
    return Search(
        scenario=checked.name,
        path=varied,
        unit=column,
        seeds=tuple(seeds),
        limits=(limit,),
        interrupted=_narrow(series, seeds, options),
        thresholds=checked.thresholds,
    )


def _with_thresholds(scenario: Scenario, thresholds: Sequence[str]) -> Scenario:
    checked = Scenario.from_document(_document(scenario), thresholds=thresholds)
    if not checked.thresholds:
        raise UsageError(
            "thresholds: the scenario has none; add one, such as --threshold 'flows.mos.p5 >= 3.6'"
        )
    return checked


def _plan_with(scenario: Scenario, path: str, unit: str, value: int) -> Plan:
    """Return the plan of a scenario with a value of a field, in its base unit."""
    written = f"{value} {unit}" if unit else value
    source = f"{path}={written}"
    document = Document(data=scenario.to_dict(), source=source)
    setting = Setting(path, written, SourceLocation(source))
    return Plan.resolve(Scenario.from_document(document, [setting]))


def _default_bound(scenario: Scenario, path: str) -> int:
    """Return the default of the largest value to try.

    Raises:
        UsageError: the field has a unit; the message has an example of a bound.
    """
    for written in (1, *(kind.example for kind in (RATE, DURATION, SIZE))):
        with suppress(ScenarioError):
            Scenario.from_document(_document(scenario), [Setting(path, written, _MAX)])
            if written != 1:
                example = f"name the largest value to try, such as --max '{written}'"
                raise UsageError(f"max: {path} has a unit; {example}")
            break
    return DEFAULT_MAX


def _fitting(plan: Callable[[int], Plan], value: int) -> int:
    plan(value)
    return value


def _largest(plan: Callable[[int], Plan], path: str) -> int:
    """Return the default bound, or the largest value below it that the field allows.

    Raises:
        ScenarioError: something else does not fit, or no value does.
    """
    bracket, refused = Bracket(min=1, max=DEFAULT_MAX), ScenarioError()
    top = path.partition(".")[0]
    value: int | None = DEFAULT_MAX
    while value is not None:
        try:
            plan(value)
            bracket.record(value, passed=True)
        except ScenarioError as error:
            # The limit may be that of a part around the field, such as all flows of the traffic.
            if any(problem.field.partition(".")[0] != top for problem in error.problems):
                raise
            refused = refused if refused.problems else error
            bracket.record(value, passed=False)
        value = bracket.next()
    if bracket.passes is None:
        raise refused
    return bracket.passes


def _lowest(plan: Callable[[int], Plan], largest: int, lowest: int) -> int:
    """Return the first value to try: ``lowest``, doubled until it fits the scenario."""
    while True:
        with suppress(ScenarioError):
            plan(lowest)
            return lowest
        lowest = min(2 * lowest, largest)


def _integer(bound: int | str) -> tuple[int, str, str]:
    """Return a bound in the base unit, the end of the columns of such values, and the base unit."""
    if isinstance(bound, int) and not isinstance(bound, bool):
        return _above_zero(bound, bound), "", ""
    for name, parse, base in QUANTITIES:
        with suppress(UnitError):
            return _above_zero(parse(bound), bound), name, base
    expected = 'expected an integer, a rate, a time or a size, such as 100 or "20 Mbit/s"'
    raise UsageError(f"max: read {shown(bound)}; {expected}")


def _above_zero(largest: int, written: int | str) -> int:
    if largest < 1:
        raise UsageError(f"max: read {shown(written)}; must be above zero")
    return largest


def _only_count(scenario: Scenario) -> str:
    """Return the path of the only written ``count``, else of the only call, else the only one."""
    entries = {
        f"traffic.{name if _PLAIN_NAME.fullmatch(name := entry.name or '') else i}.count": entry
        for i, entry in enumerate(scenario.traffic)
        if not isinstance(entry, Channels | Conference)
    }
    written = [path for path, entry in entries.items() if "count" in entry.model_fields_set]
    calls = [path for path, entry in entries.items() if entry.kind == "voice"]
    for paths in (written, calls, list(entries)):
        if len(paths) == 1:
            return paths[0]
    counts = f"name one of: {', '.join(entries)}" if entries else "there is none"
    raise UsageError(f"path: not the only count of the traffic; {counts}")


# --- the largest rate without loss ----------------------------------------------------------------


def search_no_drop(
    scenario: Scenario | str | Path | Mapping[str, Any],
    sizes: Sequence[int] | None = None,
    *,
    flow: str | None = None,
    **options: Unpack[SearchOptions],
) -> Search:
    """Find the largest rate of the constant_rate flows at which no packet is lost.

    The relative error of a rate that is ``proven`` is at most the ``resolution``.

    Parameters
    ----------
    scenario
        A `Scenario`, the path of a scenario file, or a mapping.
    sizes
        Bytes of UDP payload; by default the payload that the scenario has.
    flow
        One entry of the traffic; by default all that are constant_rate. Its flows get equal rates,
        and the rest of the scenario is unchanged.
    options
        See `SearchOptions`.

    Returns
    -------
    Search
        A limit for each size; after Ctrl-C what was found by then, marked interrupted.

    Raises
    ------
    ScenarioError
        A size is out of range, or a packet of that size fits into no queue.
    UsageError
        Nothing to search, or an option out of range.

    Examples
    --------
    >>> search = bentpipe.search_no_drop("scenarios/snip-duplex.yaml", [1472], resolution=0.05)
    >>> limit = search.limits[0]
    >>> limit.converged, limit.reason.losses[0].limit
    (True, 'channel')
    """
    scenario = Scenario.of(scenario)
    resolution = _resolution(options, DEFAULT_RESOLUTION)
    seeds = _seeds(scenario, 1, options)
    rates = _ConstantRates(scenario, flow)
    series = [rates.series(payload_bytes, resolution) for payload_bytes in rates.payloads(sizes)]
    interrupted = _narrow(series, seeds, options)
    return Search(
        scenario=scenario.name,
        path=", ".join(f"traffic.{name}.rate" for name in rates.entries),
        unit="bps",
        seeds=tuple(seeds),
        limits=tuple(of_size.limit for of_size in series),
        interrupted=interrupted,
        flows=tuple(flow["name"] for flow in rates.flows.values()),
        sending_s=rates.sending_ns / NS_PER_S,
    )


def max_trials(scenario: Scenario, sizes: Sequence[int], resolution: float) -> int:
    """Return the largest number of trials of `search_no_drop`, for all constant_rate flows."""
    rates = _ConstantRates(scenario, None)
    return sum(rates.series(size, resolution).limit.max_trials for size in sizes)


class _ConstantRates:
    """The flows whose rates are varied: those of all entries of constant_rate, or of one."""

    def __init__(self, scenario: Scenario, name: str | None) -> None:
        plan, self._document = Plan.resolve(scenario), _document(scenario)
        flows = plan.data["flows"]
        candidates = [
            (entry.name or flows[numbers.start]["name"], i, entry, numbers)
            for i, (entry, numbers) in enumerate(
                zip(scenario.traffic, plan.entry_flows, strict=True)
            )
            if isinstance(entry, ConstantRate)
        ]
        if not candidates:
            kinds = ", ".join(sorted({entry.kind for entry in scenario.traffic}))
            message = f"no flow of kind constant_rate to search with (read: {kinds})"
            raise UsageError(f"traffic: {message}")
        chosen = [candidate for candidate in candidates if name in {None, candidate[0]}]
        if not chosen:
            raise UsageError(
                f"flow: {choice(name, tuple(candidate[0] for candidate in candidates))}"
            )
        self.entries, self._indices, entries, ranges = zip(*chosen, strict=True)
        self._payloads = sorted({value_of(entry.payload) for entry in entries})
        # The searched flows, by their index in the plan.
        self.flows = {number: flows[number] for number in chain.from_iterable(ranges)}
        directions = map(direction_number, self.flows.values())
        rates = (plan.data["directions"][number]["rate_bps"] for number in directions)
        self.max_bps = max(max(series_values(rate)) for rate in rates)
        self.sending_ns: int = min(
            min(flow["workload"]["duration_ns"], plan.data["stop_ns"] - flow["start_ns"])
            for flow in self.flows.values()
        )

    def payloads(self, sizes: Sequence[int] | None) -> list[int]:
        """Return the payloads to search with: the given ones, or that of the entries."""
        if sizes is None and len(self._payloads) > 1:
            listed = ", ".join(f"{size} B" for size in self._payloads)
            message = f"the flows differ in payload ({listed}); name the sizes to search"
            raise UsageError(f"sizes: {message}")
        chosen = self._payloads if sizes is None else sizes
        if not chosen:
            raise UsageError("sizes: none; name at least one size in bytes of UDP payload")
        return sorted(set(chosen))

    def series(self, payload_bytes: int, resolution: float) -> _Series:
        """Return the trials of a payload."""
        text, location = f"{payload_bytes} B", SourceLocation("sizes")
        settings = [Setting(f"traffic.{i}.payload", text, location) for i in self._indices]
        base = Plan.resolve(Scenario.from_document(self._document, settings))

        def plan(rate_bps: int) -> Plan:
            flows = list(base.data["flows"])
            for i in self.flows:
                flows[i] = {**flows[i], "workload": {**flows[i]["workload"], "rate_bps": rate_bps}}
            return base.with_values(flows=flows)

        first_bps = _FIRST_PACKETS * 8 * payload_bytes * NS_PER_S // self.sending_ns
        limit = Limit(
            min=min(max(1, first_bps), self.max_bps),
            max=self.max_bps,
            resolution=resolution,
            payload_bytes=payload_bytes,
            flows=len(self.flows),
        )
        return _Series(limit, plan, lambda run: [check_losses(run, resolution)])


# --- what both share ------------------------------------------------------------------------------


class _Series(NamedTuple):
    """A limit to find: the plan with a value, and what a run of it shows."""

    limit: Limit
    plan: Callable[[int], Plan]
    checks: Callable[[Outcome], Sequence[Check]]


def _narrow(every: Sequence[_Series], seeds: Sequence[int], options: SearchOptions) -> bool:
    """Narrow all brackets, one trial of each at a time; return whether Ctrl-C ended that early."""
    run = options.get("run") or partial(run_jobs, executor=Threads(options.get("threads")))
    progress = options.get("progress")
    limits = [series.limit for series in every]
    total = sum(limit.max_trials for limit in limits)
    interrupted = False
    try:
        while not interrupted:
            proposed = [(series, series.limit.next()) for series in every]
            trials = [(series, value) for series, value in proposed if value is not None]
            if not trials:
                return False
            plans = [series.plan(value) for series, value in trials]
            try:
                complete = run([Job(plan=plan, seed=seed) for plan in plans for seed in seeds])
            except RunsInterrupted as ended:
                complete, interrupted = ended.outcomes, True
            for number, (series, value) in enumerate(trials):
                outcomes = [
                    outcome for outcome in complete if outcome.index // len(seeds) == number
                ]
                if len(outcomes) == len(seeds):
                    by_seed = zip(*map(series.checks, outcomes), strict=True)
                    worst = (min(checks, key=lambda check: check.margin) for checks in by_seed)
                    series.limit.judge(value, tuple(worst))
            if progress is not None and not interrupted:
                done = (
                    limit.max_trials if limit.converged else len(limit.trials) for limit in limits
                )
                progress(sum(done), total)
    except KeyboardInterrupt:
        pass
    return True


def _document(scenario: Scenario) -> Document:
    """Return a scenario without the records that no search looks at."""
    data = scenario.to_dict() | {"sample_interval": None, "packet_events": False}
    return Document(data=data, source="scenario")


def _seeds(scenario: Scenario, default: int, options: SearchOptions) -> range:
    seeds, seed = options.get("seeds"), options.get("seed")
    first = scenario.seed if seed is None else seed
    check_seed(first)
    count = min(default, LARGEST_SEED - first + 1) if seeds is None else seeds
    if not 1 <= count <= MAX_SEEDS:
        raise UsageError(f"seeds: read {count}; must be 1 to {MAX_SEEDS}")
    check_seed(first + count - 1)
    return range(first, first + count)


def _resolution(options: SearchOptions, default: float) -> float:
    resolution = options.get("resolution")
    if resolution is None:
        return default
    if not MIN_RESOLUTION <= resolution <= MAX_RESOLUTION:
        limits = f"{MIN_RESOLUTION:.2%} to {MAX_RESOLUTION:.0%}"
        raise UsageError(f"resolution: read {resolution:.6%}; must be {limits}")
    return resolution
