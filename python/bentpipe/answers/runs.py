"""The runs behind an answer: cases with common seeds, their figures, changes and verdicts.

Figures are means with intervals; changes are by pairs of equal seeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain, groupby
from typing import Any, Final, Literal, NamedTuple, TypeVar, get_args

import numpy as np
import numpy.typing as npt

from bentpipe.errors import InternalError, RunsInterrupted, UsageError
from bentpipe.plan.plan import Plan
from bentpipe.plan.presets import series_values
from bentpipe.quantities import quantity
from bentpipe.results.confidence import mean_half_width
from bentpipe.results.result import Result
from bentpipe.simulation.executor import run_many
from bentpipe.simulation.run import Job, cores
from bentpipe.text import counted
from bentpipe.units import NS_PER_S

Name = TypeVar("Name", bound=Hashable)
Values = npt.NDArray[np.float64]
# Of a change: its gain, its loss, or neither is `WORTH_PERCENT` or more, or none of this is shown.
Outcome = Literal["gains", "loses", "equal", "not decided"]
# Of several changes: some gain and others lose, too.
Kind = Literal[Outcome, "mixed"]
# The best first.
_ORDER: Final[tuple[Kind, ...]] = ("gains", "mixed", "not decided", "equal", "loses")
DEFAULT_SEEDS: Final = 10
# With three pairs, Student's t for one of 25 comparisons is 22, with five 7, with ten 4.
MIN_SEEDS: Final = 5
MAX_SEEDS: Final = 10_000
# Of questions with large intervals, such as those of single downloads.
MANY_SEEDS: Final = 20
# Two slow cores simulate these in some 20 s.
_BUDGET_PACKETS: Final = 70_000_000
PACKET_BITS: Final = 12_000
_SPREAD: Final = (5, 50, 95)
# Of a batch: the last ones of a batch leave cores idle, and Ctrl-C loses at most a batch.
_RUNS_A_CORE: Final = 4
# A change below this is no reason for or against a box in the path of all traffic.
WORTH_PERCENT: Final = 5.0
# Beyond, their number says only that the change is near the bound.
_MANY_RUNS: Final = 1_000
_PREDICATES: Final[Mapping[Outcome, str]] = {
    "gains": "gains ({})",
    "loses": "loses ({})",
    "equal": f"changes {{}} by less than {WORTH_PERCENT:g} %",
    "not decided": "leaves {} open",
}


@dataclass(frozen=True)
class Estimate:
    """A mean over runs and the half width of its 95 % confidence interval.

    The half width is None with one run, and 0 if all runs agree. Where it is more than the mean,
    ``spread`` has the 5th, 50th and 95th percentile over the runs: the mean says little then.
    """

    mean: float
    half_width: float | None
    runs: int
    spread: tuple[float, ...] | None = None

    @property
    def low(self) -> float:
        """The lower end of the interval; the mean without one."""
        return self.mean - (self.half_width or 0)

    @property
    def high(self) -> float:
        """The upper end of the interval; the mean without one."""
        return self.mean + (self.half_width or 0)

    @property
    def runs_text(self) -> str:
        """How many runs it has: ``10 runs``."""
        return counted(self.runs, "run")

    def text(self, write: Callable[[float], str]) -> str:
        """Return the mean with its interval, ``12.3 Mbit/s ± 200 kbit/s``, or the spread."""
        if self.spread is not None:
            low, median, high = map(write, self.spread)
            return f"{median} (median; {low} to {high} in 90 % of runs)"
        text = write(self.mean)
        return f"{text} ± {write(self.half_width)}" if self.half_width else text

    def times(self, factor: float) -> Estimate:
        """Return the estimate in another unit."""
        half_width = None if self.half_width is None else self.half_width * abs(factor)
        spread = None if self.spread is None else tuple(sorted(x * factor for x in self.spread))
        return Estimate(self.mean * factor, half_width, self.runs, spread)


@dataclass(frozen=True, eq=False)
class Samples:
    """A figure of a run that has a sample for each of its pages: their mean, or a quantile."""

    values: Values
    quantile: float | None = None

    def value(self) -> float:
        """Return the mean or the quantile; NaN without samples."""
        if not self.values.size:
            return math.nan
        if self.quantile is None:
            return float(np.mean(self.values))
        if not np.all(np.isfinite(self.values)):
            # Nothing can be interpolated next to an infinite value: take one of the samples.
            rank = math.ceil(self.quantile * self.values.size)
            return float(np.sort(self.values)[max(rank, 1) - 1])
        return float(np.quantile(self.values, self.quantile))


# The figures of a run, by name.
Figures = Mapping[str, float | Samples]


class Measurements(dict[str, npt.NDArray[Any]]):
    """The figures of a case, by name: an array over seeds each, of numbers or of `Samples`."""

    def by_run(self, figure: str) -> Values:
        """Return a value for each run, the mean of which is the figure.

        Of `Samples` the figure is pooled, from the samples of all runs together: the mean over runs
        of a high quantile of few samples is too small. The value of a run is the pooled figure plus
        the deviation of the run; of a mean, which is a ratio of sums, the deviation is weighted by
        the number of samples of the run (delta method, first order).
        """
        by_seed: npt.NDArray[Any] = self[figure]
        single = self._single(figure)
        if by_seed.dtype != object:
            return single
        pooled = Samples(
            np.concatenate([samples.values for samples in by_seed]), by_seed[0].quantile
        ).value()
        if not math.isfinite(pooled):
            return np.full(by_seed.size, pooled)
        single = np.where(np.isfinite(single), single, pooled)
        if by_seed[0].quantile is not None:
            shifted: Values = single - np.mean(single) + pooled
            return shifted
        sizes = np.array([samples.values.size for samples in by_seed])
        weighted: Values = pooled + (single - pooled) * sizes / np.mean(sizes)
        return weighted

    def _single(self, figure: str) -> Values:
        """Return the figure of each run by itself."""
        by_seed = self[figure]
        values = [samples.value() for samples in by_seed] if by_seed.dtype == object else by_seed
        return np.asarray(values, dtype=np.float64)

    def of(self, figure: str, comparisons: int = 1) -> Estimate:
        """Return mean and 95 % interval (Student's t) of a figure; NaN if one is missing.

        The interval is one of ``comparisons`` that hold together.
        """
        estimate = _estimate(self.by_run(figure), comparisons)
        if not (estimate.half_width or 0) > abs(estimate.mean):
            return estimate
        single = self._single(figure)
        spread = (Samples(single, percent / 100).value() for percent in _SPREAD)
        return replace(estimate, spread=tuple(spread))

    def mean(self, figure: str) -> float:
        """Return the mean of a figure."""
        return self.of(figure).mean

    def text(self, figure: str) -> str:
        """Return a figure with its interval for a person, by the unit in its name."""
        return self.of(figure).text(quantity(figure).text)

    def means(self) -> dict[str, float | None]:
        """Return the means of all figures; None for those that are missing."""
        means = {figure: self.mean(figure) for figure in self}
        return {figure: None if np.isnan(mean) else mean for figure, mean in means.items()}

    def estimates(self, *figures: str) -> dict[str, Estimate]:
        """Return these figures; all without any."""
        return {figure: self.of(figure) for figure in figures or self}

    def known(self) -> dict[str, Estimate]:
        """Return the figures that are not missing."""
        return {
            name: estimate
            for name, estimate in self.estimates().items()
            if not np.isnan(estimate.mean)
        }

    def change(self, figure: str, after: Measurements, comparisons: int = 1) -> Estimate:
        """Return the change of a mean in percent of the mean before, by pairs of equal seeds.

        If that is 0, it is in percent of the mean after: all of that is new.
        The values vary as the ratio of the means does in the first order (delta method), so the
        interval has the noise of both. It is one of ``comparisons`` that hold together: of so many
        changes a headline chooses.
        """
        values, others = self.by_run(figure), after.by_run(figure)
        reference = float(np.mean(values))
        if reference == 0:
            scale = abs(float(np.mean(others))) or 1.0
            return _estimate(100 * (others - values) / scale, comparisons)
        times = float(np.mean(others)) / reference
        percents = 100 * (times - 1 + (others - times * values) / reference)
        return _estimate(percents, comparisons)


def _estimate(values: Values, comparisons: int = 1) -> Estimate:
    if values.size > 1 and bool(np.all(values == values[0])):
        return Estimate(float(values[0]), 0.0, values.size)
    half_width = mean_half_width(values.tolist(), comparisons)
    return Estimate(float(np.mean(values)), half_width, values.size)


class Change(NamedTuple):
    """A figure of two cases, and its change in percent by pairs of equal seeds."""

    figure: str
    before: Estimate
    after: Estimate
    percent: Estimate

    @classmethod
    def of(
        cls, figure: str, before: Measurements, after: Measurements, comparisons: int = 1
    ) -> Change:
        """Return the change of a figure from one case to another, one of ``comparisons``."""
        percent = before.change(figure, after, comparisons)
        return cls(figure, before.of(figure), after.of(figure), percent)

    @property
    def outcome(self) -> Outcome:
        """What the interval says of `WORTH_PERCENT`: all of it is on one side of it, or not."""
        gain = self.gain
        if gain.half_width is None:
            return "not decided"
        if gain.low >= WORTH_PERCENT:
            return "gains"
        if gain.high <= -WORTH_PERCENT:
            return "loses"
        inside = gain.low > -WORTH_PERCENT and gain.high < WORTH_PERCENT
        return "equal" if inside else "not decided"

    @property
    def runs_to_decide(self) -> int | None:
        """About how many runs would decide; None if that is not known, as with one run.

        Half widths shrink with the square root of the runs, to the distance of the mean from the
        nearer bound.
        """
        distance = abs(abs(self.gain.mean) - WORTH_PERCENT)
        if self.gain.half_width is None or not distance > 0:
            return None
        return math.ceil(self.gain.runs * (self.gain.half_width / distance) ** 2)

    @property
    def gain(self) -> Estimate:
        """The change with the sign of its value to a user: less time is a gain."""
        return self.percent.times(-1.0 if self.figure.endswith("_ns") else 1.0)


def changes_from(
    before: Name, measurements: Mapping[Name, Measurements], figure: str
) -> dict[Name, Change]:
    """Return the changes of a figure to the other cases, the largest first.

    Their intervals hold together.
    """
    changes = {
        name: Change.of(figure, measurements[before], measurements[name], len(measurements) - 1)
        for name in measurements
        if name != before
    }
    return dict(sorted(changes.items(), key=lambda item: -item[1].percent.mean))


class Verdict(NamedTuple):
    """What a variant changes at a load; the first change counts first."""

    load: int
    variant: str
    changes: Sequence[Change]

    @classmethod
    def of(
        cls,
        load: int,
        variant: str,
        before: Measurements,
        after: Measurements,
        figures: Iterable[str],
        comparisons: int,
    ) -> Verdict:
        """Return the changes of figures from one case to another, of ``comparisons`` in all."""
        changes = [Change.of(figure, before, after, comparisons) for figure in figures]
        return cls(load, variant, changes)

    @property
    def total(self) -> Change:
        """The change that counts first."""
        return self.changes[0]

    def having(self, *outcomes: Outcome) -> list[Change]:
        """Return the changes with one of these outcomes."""
        return [change for change in self.changes if change.outcome in outcomes]

    @property
    def kind(self) -> Kind:
        """The outcome of all changes together; a lost total outweighs gains.

        Some that are not decided leave a gain a gain, and a loss a loss.
        """
        gains, losses = self.having("gains"), self.having("loses")
        if self.total in losses or (losses and not gains):
            return "loses"
        if gains:
            return "mixed" if losses else "gains"
        return "not decided" if self.having("not decided") else "equal"

    @property
    def may_gain(self) -> bool:
        """Whether a gain is shown, or not excluded."""
        return any(
            change.gain.half_width is None or not change.gain.high < WORTH_PERCENT
            for change in self.changes
        )

    def runs_to_decide(self, limit: int) -> int:
        """About how many runs would decide what ``limit`` of them can; 0 if they cannot."""
        runs = [change.runs_to_decide or 0 for change in self.having("not decided")]
        return max((count for count in runs if count <= limit), default=0)

    @property
    def percents(self) -> dict[str, Estimate]:
        """The changes in percent, by measure."""
        return {change.figure: change.percent for change in self.changes}

    @property
    def figures(self) -> dict[str, Any]:
        """The outcome of all, and of each figure: before, after, the change and its outcome."""
        names = ("before", "after", "percent", "outcome", "runs_to_decide")
        changes = {
            change.figure: {name: getattr(change, name) for name in names}
            for change in self.changes
        }
        return {"verdict": self.kind, **changes}

    @property
    def net_percent(self) -> float:
        """The gain of the first measure, less the largest loss of one that gains and loses."""
        total = self.total.gain.mean
        if self.kind != "mixed":
            return total
        return total + min(change.gain.mean for change in self.having("loses"))

    def text(self, titles: Mapping[str, str], *outcomes: Outcome) -> str:
        """Return the changes by outcome, such as "gains (goodput +12.1 % (+11.8 to +12.4))".

        ``titles`` are those of figures. Without ``outcomes`` it has all of them.
        """
        texts = []
        for outcome in outcomes or get_args(Outcome):
            some = self.having(outcome)
            names = [f"{titles[change.figure]}{_detail(change)}" for change in some]
            texts += [_PREDICATES[outcome].format(", ".join(names))] if some else []
        return ", ".join(texts)


def _detail(change: Change) -> str:
    if change.outcome in ("gains", "loses"):
        return f" {signed_percent(change.percent)}"
    runs = change.runs_to_decide if change.outcome == "not decided" else None
    if not runs:
        return ""
    text = f"some {runs:,}" if runs <= _MANY_RUNS else f"more than {_MANY_RUNS:,}"
    return f" ({text} runs would decide)"


def decisive(verdicts: Sequence[Verdict]) -> Verdict:
    """Return the verdict that an answer is about.

    It is the one with the best total of those that only gain; else, of those that gain and lose,
    the one whose total exceeds its largest loss the most; else the one with the best total of those
    that are not decided, of those that change nothing, or of those that lose.
    """
    for kind in _ORDER:
        some = [verdict for verdict in verdicts if verdict.kind == kind]
        if some:
            # A gain that is not known (NaN) counts as the worst.
            return max(some, key=lambda verdict: np.nan_to_num(verdict.net_percent, nan=-np.inf))
    raise InternalError("no verdict to decide on")


@dataclass(kw_only=True)
class Experiment:
    """Runs cases and counts them for ``progress(done, total)``.

    Each case runs with the same seeds, so that differences are of pairs. `choose_seeds` decides how
    many seeds the time is enough for, unless ``seeds`` says it; they are consecutive, from
    ``first_seed`` on. ``interrupted``: Ctrl-C ended the runs after some seeds.
    """

    seeds: int | None = None
    first_seed: int = 1
    threads: int | None = None
    progress: Callable[[int, int], None] | None = None
    interrupted: bool = field(default=False, init=False)
    _done: int = field(default=0, init=False)
    _total: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        if self.seeds is not None and not 1 <= self.seeds <= MAX_SEEDS:
            raise UsageError(f"seeds: read {self.seeds}; must be 1 to {MAX_SEEDS}")

    @property
    def seeds_of_cases(self) -> Sequence[int]:
        """The seeds of each case; none until their number is chosen."""
        return range(self.first_seed, self.first_seed + (self.seeds or 0))

    def choose_seeds(
        self,
        plan: Mapping[str, Any],
        cases: int,
        seeds: int | None = None,
        *,
        seeds_max: int = DEFAULT_SEEDS,
    ) -> None:
        """Set how many cases like ``plan`` there will be, and from that the number of seeds.

        ``seeds`` is what a question uses by default, whatever the time, and ``seeds_max`` if
        there is time.
        """
        if self.seeds is None:
            bps = sum(
                max(series_values(direction["rate_bps"])) for direction in plan["directions"][:2]
            )
            packets = cases * max(bps * int(plan["stop_ns"]) / NS_PER_S / PACKET_BITS, 1.0)
            affordable = int(min(seeds_max, max(MIN_SEEDS, _BUDGET_PACKETS / packets)))
            self.seeds = seeds or affordable
        self._total = max(self._total, self._done + cases * self.seeds)

    def run(
        self, cases: Mapping[Name, Plan], measure: Callable[[Result], Figures]
    ) -> dict[Name, Measurements]:
        """Run cases, all with some of the seeds first; return what ``measure`` takes from each run.

        After Ctrl-C that is of the seeds that are complete in all cases, and no further case runs.

        Raises:
            RunsInterrupted: Ctrl-C, and no seed is complete; or Ctrl-C ended earlier runs.
            MemoryLimitError: a run reached its part of the memory limit.
        """
        if not cases:
            return {}
        rows: list[list[Figures]] = []
        by_seed = list(zip(*map(self._jobs, cases.values()), strict=True))
        # Enough runs at a time for all cores.
        step = max(1, _RUNS_A_CORE * cores() // len(cases))
        for first in range(0, len(by_seed), step):
            if self.interrupted:
                break
            try:
                results = self._run(list(chain.from_iterable(by_seed[first : first + step])))
                for _, of_seed in groupby(results, lambda result: result.manifest["seed"]):
                    row = [measure(result) for result in of_seed]
                    if len(row) == len(cases):
                        rows.append(row)
            except KeyboardInterrupt:
                # Between the runs, where it is not an error of them.
                self.interrupted = True
        if not rows:
            raise RunsInterrupted(
                f"none of {counted(len(by_seed), 'seed')} is complete in all cases"
            )
        return {
            name: _measurements(column)
            for name, column in zip(cases, zip(*rows, strict=True), strict=True)
        }

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Note Ctrl-C also while runs are prepared: no further case runs.

        Raises:
            RunsInterrupted: Ctrl-C.
        """
        try:
            yield
        except RunsInterrupted:
            raise
        except KeyboardInterrupt:
            self.interrupted = True
            raise RunsInterrupted("no run of the next case is complete") from None

    def result(self, case: Plan) -> Result:
        """Run a case with the first seed; return its whole result."""
        return run_many(self._jobs(case)[:1])[0]

    def _run(self, jobs: Sequence[Job]) -> Sequence[Result]:
        results: Sequence[Result]
        try:
            results = run_many(jobs, threads=self.threads, progress=self._count)
        except RunsInterrupted as ended:
            results, self.interrupted = ended.results, True
        self._done += len(results)
        return results

    def _jobs(self, case: Plan) -> list[Job]:
        seeds = self.seeds_of_cases or range(self.first_seed, self.first_seed + DEFAULT_SEEDS)
        return [Job(plan=case, seed=seed) for seed in seeds]

    def _count(self, done: int, total: int) -> None:
        if self.progress is not None:
            self.progress(self._done + done, max(self._total, self._done + total))


def _measurements(rows: Sequence[Figures]) -> Measurements:
    return Measurements(
        {
            name: np.array(
                [row[name] for row in rows],
                dtype=object if isinstance(rows[0][name], Samples) else np.float64,
            )
            for name in rows[0]
        }
    )


def signed_percent(percent: Estimate) -> str:
    """Return a change in percent with its interval, such as "+12.1 % (+11.8 to +12.4)"."""
    text = f"{percent.mean:+.1f} %"
    if percent.half_width:
        text += f" ({percent.low:+.1f} to {percent.high:+.1f})"
    return text


def percent_of(part: float, whole: float) -> str:
    """Return a part in percent: ``61.3 %``."""
    return f"{100 * part / whole:.1f} %" if whole else "-"


def percent_text(share: Estimate) -> str:
    """Return a share in percent with its interval, ``61.3 % ± 0.4``, or its spread."""
    if share.spread is not None:
        return share.times(100).text("{:.1f} %".format)
    text = f"{100 * share.mean:.1f} %"
    return f"{text} ± {100 * share.half_width:.1f}" if share.half_width else text
