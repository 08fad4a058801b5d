"""What all questions share: a link with traffic, cases that run with the same seeds, the effects.

A question is a subclass of `Question`. It has its parameters, traffic and measures, says what may
be otherwise, and judges; `asking` makes the public function of it, and `bentpipe.cli.ask` the
command.
"""

from __future__ import annotations

import copy
import shlex
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, wraps
from inspect import signature
from typing import Any, ClassVar, Final, NamedTuple, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt

from bentpipe.answers.answer import Answer, Effect, Estimate
from bentpipe.errors import ScenarioError, UsageError
from bentpipe.plan.plan import Plan
from bentpipe.plan.presets import link_document, series_values
from bentpipe.quantities import quantity
from bentpipe.results.confidence import mean_half_width
from bentpipe.results.result import Result
from bentpipe.scenario.document import Document
from bentpipe.scenario.schema import Scenario
from bentpipe.simulation.executor import run_many
from bentpipe.simulation.run import Job
from bentpipe.units import NS_PER_S

Name = TypeVar("Name", bound=Hashable)
P = ParamSpec("P")
Values = npt.NDArray[np.float64]
# Functions of gateways by end and name: what makes the settings of one from those of a file.
Functions = Mapping[str, Mapping[str, Callable[[dict[str, Any]], Mapping[str, Any]]]]

DEFAULT_SEEDS: Final = 10
MIN_SEEDS: Final = 3
# Two slow cores simulate these in some 10 s.
_BUDGET_PACKETS: Final = 30_000_000
PACKET_BITS: Final = 12_000
# A change below this is no reason for or against a box in the path of all traffic.
WORTH_PERCENT: Final = 5.0
# Of users, channels or calls.
MAX_COUNT: Final = 2_000
# Of their number, until the load is as asked for.
_ADJUSTMENTS: Final = 4
# What a question takes from a scenario file; it has traffic of its own.
_LINK_FIELDS: Final[tuple[str, ...]] = ("link", "gateways", "hosts", "name")


class Measurements(dict[str, Values]):
    """The figures of a case, by name: an array over seeds each."""

    def of(self, figure: str) -> Estimate:
        """Return mean and 95 % interval (Student's t) of a figure; NaN if one is missing."""
        return _estimate(self[figure])

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

    def estimates(self) -> dict[str, Estimate]:
        """Return all figures."""
        return {figure: self.of(figure) for figure in self}

    def known(self) -> dict[str, Estimate]:
        """Return the figures that are not missing."""
        return {name: each for name, each in self.estimates().items() if not np.isnan(each.mean)}

    def change(self, figure: str, after: Measurements) -> Estimate:
        """Return the change of a mean in percent of the mean before, by pairs of equal seeds.

        The values vary as the ratio of the means does in the first order (delta method), so the
        interval has the noise of both.
        """
        values, others = self[figure], after[figure]
        reference = float(np.mean(values))
        if reference == 0:
            return _estimate(np.zeros(values.size))
        times = float(np.mean(others)) / reference
        return _estimate(100 * (times - 1 + (others - times * values) / reference))


def _estimate(values: Values) -> Estimate:
    if values.size > 1 and bool(np.all(values == values[0])):
        return Estimate(float(values[0]), 0.0, values.size)
    return Estimate(float(np.mean(values)), mean_half_width(values.tolist()), values.size)


class Change(NamedTuple):
    """A figure of two cases, and its change in percent by pairs of equal seeds."""

    figure: str
    before: Estimate
    after: Estimate
    percent: Estimate

    @classmethod
    def of(cls, figure: str, before: Measurements, after: Measurements) -> Change:
        """Return the change of a figure from one case to another."""
        return cls(figure, before.of(figure), after.of(figure), before.change(figure, after))

    @property
    def gain(self) -> Estimate:
        """The change with the sign of its value to a user: less time is a gain."""
        return self.percent.times(-1.0 if self.figure.endswith("_ns") else 1.0)

    @property
    def is_shown(self) -> bool:
        """Whether the interval excludes zero; never with a single run."""
        percent = self.percent
        return percent.half_width is not None and (percent.low > 0 or percent.high < 0)

    @property
    def is_gain(self) -> bool:
        """Whether it is a gain that is shown, and large enough to matter."""
        return self.is_shown and self.gain.mean >= WORTH_PERCENT

    @property
    def is_loss(self) -> bool:
        """Whether it is a loss that is shown, and large enough to matter."""
        return self.is_shown and self.gain.mean <= -WORTH_PERCENT


class Experiment:
    """Runs cases and counts them for ``progress(done, total)``.

    Each case runs with the same seeds, so that differences are of pairs. `choose_seeds` decides how
    many seeds the time is enough for, unless ``seeds`` says it.
    """

    def __init__(
        self,
        *,
        seeds: int | None = None,
        threads: int | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self._seeds = seeds
        self._threads = threads
        self._progress = progress
        self._done = self._total = 0

    def choose_seeds(self, plan: Mapping[str, Any], cases: int, seeds: int | None = None) -> None:
        """Set how many cases like ``plan`` there will be, and from that the number of seeds.

        ``seeds`` is what a question uses by default, whatever the time.
        """
        if self._seeds is None:
            bps = sum(peak_bps(direction["rate_bps"]) for direction in plan["directions"][:2])
            packets = cases * max(bps * int(plan["stop_ns"]) / NS_PER_S / PACKET_BITS, 1.0)
            affordable = int(min(DEFAULT_SEEDS, max(MIN_SEEDS, _BUDGET_PACKETS / packets)))
            self._seeds = seeds or affordable
        self._total = max(self._total, self._done + cases * self._seeds)

    @property
    def seeds(self) -> range:
        """The seeds of every case."""
        count = DEFAULT_SEEDS if self._seeds is None else self._seeds
        return range(1, 1 + count)

    def run(
        self, cases: Mapping[Name, Plan], measure: Callable[[Result], Mapping[str, float]]
    ) -> dict[Name, Measurements]:
        """Run cases; return what ``measure`` takes from each result.

        Raises:
            RunsInterrupted: Ctrl-C.
            MemoryLimitError: a run reached its part of the memory limit.
        """
        return {
            name: _measurements([measure(result) for result in self._run(self._jobs(case))])
            for name, case in cases.items()
        }

    def run_by_seed(
        self, cases: Mapping[Name, Plan], measure: Callable[[Result], Mapping[str, float]]
    ) -> tuple[dict[Name, Measurements], bool]:
        """Run cases as `run` does, but all of them with one seed after another.

        Ctrl-C keeps the seeds that are complete. Returns the figures, and whether it was pressed.

        Raises:
            KeyboardInterrupt: Ctrl-C before the first seed was complete.
            MemoryLimitError: a run reached its part of the memory limit.
        """
        jobs = {name: self._jobs(case) for name, case in cases.items()}
        rows: list[list[Mapping[str, float]]] = []
        interrupted = False
        for i in range(len(self.seeds)):
            try:
                results = self._run([of_case[i] for of_case in jobs.values()])
                rows.append([measure(result) for result in results])
            except KeyboardInterrupt:
                if not rows:
                    raise
                interrupted = True
                break
        of_cases = zip(jobs, zip(*rows, strict=True), strict=True)
        return {name: _measurements(of_case) for name, of_case in of_cases}, interrupted

    def result(self, case: Plan) -> Result:
        """Run a case with the first seed; return its whole result."""
        return run_many(self._jobs(case)[:1])[0]

    def _run(self, jobs: Sequence[Job]) -> Sequence[Result]:
        results = run_many(jobs, threads=self._threads, progress=self._count)
        self._done += len(results)
        return results

    def _jobs(self, case: Plan) -> list[Job]:
        return [Job(plan=case, seed=seed) for seed in self.seeds]

    def _count(self, done: int, _total: int) -> None:
        if self._progress is not None:
            total = max(self._total, self._done + len(self.seeds))
            self._progress(self._done + done, total)


def _measurements(rows: Sequence[Mapping[str, float]]) -> Measurements:
    return Measurements(
        {name: np.array([row[name] for row in rows], dtype=np.float64) for name in rows[0]}
    )


class Assumption(NamedTuple):
    """What an answer takes for granted: what else may hold, instead of what, by these settings."""

    text: str
    instead: str
    settings: tuple[str, ...]


class Option(NamedTuple):
    """How the command asks for a parameter; ``flag`` is its name if not that of the parameter."""

    help: str
    metavar: str | None = None
    flag: str = ""
    min: int | None = None
    max: int | None = None


@dataclass(kw_only=True, eq=False)
class Question(ABC):
    """A question about a link: its parameters, and the runs that answer it.

    The docstring of a question, without its last paragraph, is the help of its command.

    ``link`` is a preset or a scenario file, of which the link and the gateways are taken;
    ``settings`` override values of it, and of the entries of the question's traffic. ``duration``
    is that of a run.

    Raises:
        ScenarioError: the link or a setting is wrong.
        UsageError: there is no such link.
    """

    link: str = field(default="geo", kw_only=False)
    settings: Sequence[str] = ()
    duration: str = field(default="60 s", init=False)
    experiment: Experiment | None = None

    name: ClassVar[str]
    """The question on the command line."""
    examples: ClassVar[Sequence[str]]
    """The options of commands, for their help."""
    seeds: ClassVar[int | None] = None
    """The seeds of a case, if they are not as many as the time allows."""
    can_emulate: ClassVar[bool] = False
    """Whether an answer has a case to compare with a run in real time."""

    def __post_init__(self) -> None:
        self.runs = self.experiment or Experiment()

    @abstractmethod
    def _traffic(self) -> list[dict[str, Any]]:
        """Return the entries of ``traffic``."""

    @abstractmethod
    def _measure(self, result: Result) -> Mapping[str, float]:
        """Return the figures of a run."""

    @abstractmethod
    def _answer(self) -> Answer:
        """Run the cases and judge."""

    def ask(self) -> Answer:
        """Return the answer.

        Raises:
            RunsInterrupted: Ctrl-C.
        """
        return replace(self._answer(), parameters=self.parameters)

    @cached_property
    def document(self) -> Document:
        """The scenario without the settings."""
        return link_scenario(self.link, self._traffic(), self.duration)

    @cached_property
    def base(self) -> Plan:
        """The case as asked for."""
        return self.case()

    @property
    def directions(self) -> list[dict[str, Any]]:
        """The forward and the return direction of the plan."""
        directions: list[dict[str, Any]] = self.base.data["directions"][:2]
        return directions

    @property
    def rtt_ns(self) -> int:
        """The round-trip propagation delay of the link, at the start of a run."""
        return sum(initial(each["delay_ns"]) for each in self.directions)

    def require_constant(self, direction: Mapping[str, Any], *names: str) -> None:
        """Check that values of a direction of the plan do not vary with time.

        Raises:
            UsageError: one does.
        """
        varying = [name for name in names if direction[name]["kind"] != "constant"]
        if varying:
            words = " and ".join(name.partition("_")[0] for name in varying)
            raise UsageError(
                f"ask {self.name}: {words} of this link must not vary with time; set constants, "
                "such as --set link.forward.rate=16Mbit/s"
            )

    def link_rate_bps(self) -> int:
        """Return the largest rate of the forward direction, whatever the traffic."""
        probe = {"kind": "bulk", "direction": "forward", "size": "1 B"}
        document = link_scenario(self.link, [probe], "1 s")
        plan = Plan.resolve(Scenario.from_document(document, self.link_settings))
        return peak_bps(plan.data["directions"][0]["rate_bps"])

    def case(self, *changes: str) -> Plan:
        """Return the scenario with further settings."""
        return Plan.resolve(Scenario.from_document(self.document, [*self.settings, *changes]))

    def case_with(
        self,
        traffic: Sequence[Mapping[str, Any]],
        settings: Sequence[str],
        functions: Functions,
        among: Collection[str],
        hosts: Sequence[Mapping[str, Any]] = (),
    ) -> Plan:
        """Return a scenario with other traffic, ``functions`` of gateways, and hosts of the world.

        The ``functions`` come first, in this order, then all those of the scenario file that are
        not ``among`` those that cases differ in.
        """
        document = link_scenario(self.link, traffic, self.duration)
        data = copy.deepcopy(document.data)
        if hosts:
            data.setdefault("hosts", {}).setdefault("world", []).extend(hosts)
        gateways = data.setdefault("gateways", {})
        for end in {**gateways, **functions}:
            before = gateways.get(end) or {}
            wanted = {
                name: make(before.get(name) or {}) for name, make in functions.get(end, {}).items()
            }
            gateways[end] = {name: before[name] for name in before if name not in among} | wanted
            if before.get("functions") is not None:
                others = [name for name in before["functions"] if name not in among]
                gateways[end]["functions"] = [*wanted, *others]
        return Plan.resolve(Scenario.from_document(replace(document, data=data), settings))

    def cases(self, changes: Mapping[Name, Sequence[str]]) -> dict[Name, Plan]:
        """Return the scenario with each list of settings; what does not fit is left out."""
        found = {}
        for name, settings in changes.items():
            try:
                found[name] = self.case(*settings)
            except ScenarioError:
                continue
        return found

    def choose_seeds(self, cases: int) -> None:
        """Choose how many seeds the cases have, from their number."""
        self.runs.choose_seeds(self.base.data, cases, self.seeds)

    def run(self, cases: Mapping[Name, Plan]) -> dict[Name, Measurements]:
        """Run cases and measure them."""
        return self.runs.run(cases, self._measure)

    def run_case(self, *changes: str) -> Measurements:
        """Run the scenario with further settings."""
        return self.run({"": self.case(*changes)})[""]

    def effects(
        self, assumptions: Iterable[Assumption], before: Measurements, figure: str, *common: str
    ) -> tuple[Effect, ...]:
        """Return how a figure changes with each assumption that fits, the largest change first.

        ``common`` are settings of all cases.
        """
        found = self.run(self.cases({each: (*common, *each.settings) for each in assumptions}))
        effects = [
            Effect(each.text, each.instead, before.change(figure, after))
            for each, after in found.items()
        ]
        shown = [effect for effect in effects if np.isfinite(effect.percent.mean)]
        return tuple(sorted(shown, key=lambda effect: -abs(effect.percent.mean)))

    def adjusted_count(
        self,
        noun: str,
        run: Callable[[int], Measurements],
        *,
        first: int,
        figure: str,
        wanted: float,
        tolerance: float,
    ) -> tuple[int, Measurements]:
        """Return how many users or channels bring a figure near to ``wanted``, and their figures.

        Raises:
            UsageError: there are more than `MAX_COUNT`.
        """
        count = first
        for left in reversed(range(_ADJUSTMENTS)):
            if count > MAX_COUNT:
                raise UsageError(
                    f"ask {self.name}: this load takes {count:,} {noun}, more than {MAX_COUNT:,}; "
                    "ask with a lower rate, such as --set link.forward.rate=100Mbit/s"
                )
            count = max(count, 1)
            found = run(count)
            value = found.mean(figure)
            better = max(round(count * wanted / value), 1)
            if abs(value - wanted) <= tolerance or better == count or left == 0:
                break
            count = better
        return count, found

    @property
    def subject(self) -> str:
        """The link and its settings, for a sentence."""
        return " with ".join([self.link, *([", ".join(self.settings)] if self.settings else [])])

    @property
    def link_settings(self) -> list[str]:
        """The settings that are not of the traffic of this question."""
        return [each for each in self.settings if each.startswith("link.")]

    def ask_command(self, question: str, *options: str, settings: Sequence[str] = ()) -> str:
        """Return the command that asks a question about this link, with further settings.

        Another question has other traffic, so that it gets the settings of the link alone.
        """
        own = self.settings if question == self.name else self.link_settings
        words = ["bentpipe ask", question, self._shell([*own, *settings]), *options]
        return " ".join(words)

    def exec_command(self, *settings: str) -> str:
        """Return the command that downloads a page over this link, with further settings."""
        link = self._shell([*self.link_settings, *settings])
        return f"bentpipe exec {link} -- curl -o page http://world/bytes/10000000"

    def _shell(self, settings: Sequence[str]) -> str:
        sets = "".join(f" --set {shlex.quote(each)}" for each in settings)
        return f"--link {shlex.quote(self.link)}{sets}"

    @property
    def parameters(self) -> dict[str, Any]:
        """What was asked, as plain data."""
        found = {each.name: getattr(self, each.name) for each in fields(self) if each.init}
        del found["experiment"]
        return {"link": found.pop("link"), "set": list(found.pop("settings")), **found}


def asking(question: Callable[P, Question]) -> Callable[P, Answer]:
    """Return the function that asks a question."""

    @wraps(question, assigned=("__module__", "__doc__"), updated=())
    def ask(*args: P.args, **kwargs: P.kwargs) -> Answer:
        return question(*args, **kwargs).ask()

    name: str = vars(question)["name"].replace("-", "_")
    ask.__name__ = ask.__qualname__ = name
    vars(ask)["__signature__"] = signature(question).replace(return_annotation="Answer")
    return ask


def link_scenario(link: str, traffic: Sequence[Mapping[str, Any]], duration: str) -> Document:
    """Return a scenario of the link of a preset or a scenario file, with other traffic.

    Raises:
        ScenarioError: the file cannot be read.
        UsageError: it is neither a preset nor a file.
    """
    of_link = link_document(link)
    data: dict[str, Any] = {
        field: of_link.data[field] for field in _LINK_FIELDS if field in of_link.data
    }
    data |= {"traffic": [dict(entry) for entry in traffic], "duration": duration}
    locations = {
        path: location
        for path, location in of_link.locations.items()
        if path and path[0] in _LINK_FIELDS
    }
    return Document(data=data, source=of_link.source, locations=locations)


def initial(series: Mapping[str, Any]) -> int:
    """Return the value at the start of a run."""
    return series_values(series)[0]


def peak_bps(rate: Mapping[str, Any]) -> int:
    """Return the largest rate of a direction, in link bit/s."""
    return max(series_values(rate))


def largest(
    passes: Callable[[int], bool], *, guess: int, limit: int, tolerance: float = 0.0
) -> int:
    """Return the largest count from 1 to ``limit`` that passes, or 0 if 1 does not.

    It is exact if no count passes above one that fails. The search doubles or halves from
    ``guess`` until it has one count of each kind, and bisects between them, until they are no
    further apart than ``tolerance`` times the larger one.
    """
    low, high = 0, limit + 1
    count = min(max(guess, 1), limit)
    while high - low > max(1, int(tolerance * high)):
        if passes(count):
            low = count
        else:
            high = count
        if high == limit + 1:
            count = min(2 * low, limit)
        elif low == 0:
            count = max(high // 2, 1)
        else:
            count = (low + high) // 2
    return low
