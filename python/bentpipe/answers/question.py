"""The framework of all questions: what a question states, and how it is asked.

A question has a module, whose docstring is the help of its command, with a class of the same name:
``busy_link`` has `BusyLink`. It states data and functions without effects: its parameters, the
entries of its traffic, the figures of a run, the cases that are compared, what is assumed, and how
the figures are judged. Its words are in a template, columns of its tables in ``tables.csv``, and
charts of figures over cases in ``charts.csv``. From that come the runs, the effects of assumptions,
the JSON, the page and the command. `bentpipe.answers.catalog.QUESTIONS` lists it.
"""

from __future__ import annotations

import copy
import shlex
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import chain
from sys import modules
from typing import Annotated, Any, ClassVar, Final, NamedTuple, Self

import numpy as np

from bentpipe.answers.answer import Answer, Effect, link_view, read_rows, words
from bentpipe.answers.catalog import Option, options_of, parameters_of
from bentpipe.answers.remedies import Goal, better_commands
from bentpipe.answers.runs import DEFAULT_SEEDS, Experiment, Figures, Measurements, Name
from bentpipe.errors import RunsInterrupted, ScenarioError, UsageError
from bentpipe.plan.plan import Plan
from bentpipe.plan.presets import link_document, preset_plans, series_values
from bentpipe.results.result import Result
from bentpipe.scenario.document import Document
from bentpipe.scenario.schema import Scenario
from bentpipe.text import choice
from bentpipe.units import format_duration, parse_duration

Link = Annotated[
    str,
    Option(
        "A preset, or a scenario file, of which the link is taken.",
        "|".join([*preset_plans(), "FILE"]),
    ),
]
# The settings of functions of gateways, by end and name; None: there is no such setting.
Functions = Mapping[str, Mapping[str, Mapping[str, Any]]]
Entries = Sequence[Mapping[str, Any]]

# Of users, channels or calls.
MAX_COUNT: Final = 2_000
# Of their number, until the load is as asked for.
_ADJUSTMENTS: Final = 4
# What a question takes from a scenario file; it has traffic of its own.
_LINK_FIELDS: Final[tuple[str, ...]] = ("link", "gateways", "hosts", "name")


class Assumption(NamedTuple):
    """What an answer takes for granted: what else may hold, instead of what, by these settings.

    A remedy is a choice of the link's owner. It is suggested if its runs are better (`is_better`).
    """

    text: str
    instead: str
    settings: tuple[str, ...]
    is_remedy: bool = False


@dataclass(kw_only=True, eq=False)
class Question(ABC):
    """A question: its parameters are fields, those of the command with an `Option` each."""

    experiment: Experiment = field(default_factory=Experiment)

    name: ClassVar[str]
    """The question on the command line."""
    examples: ClassVar[Sequence[str]]
    """The options of commands, for their help."""
    can_emulate: ClassVar[bool] = False
    """Whether an answer has a case to compare with a run in real time."""

    def __init_subclass__(cls) -> None:
        cls.name = cls.__module__.rpartition(".")[2].replace("_", "-")

    def __post_init__(self) -> None:
        for parameter in parameters_of(type(self)):
            parameter.check(getattr(self, parameter.name))

    @classmethod
    def of(cls, parameters: Mapping[str, Any], **experiment: Any) -> Self:
        """Return the question with these parameters.

        Raises:
            UsageError: there is no such parameter, or a value is not allowed.
        """
        names = tuple(
            parameter.name
            for parameter in fields(cls)
            if parameter.init and parameter.name != "experiment"
        )
        for name in parameters:
            if name not in names:
                raise UsageError(f"ask {cls.name}: parameter: {choice(name, names)}")
        return cls(**parameters, experiment=Experiment(**experiment))

    @abstractmethod
    def answer(self) -> Answer:
        """Return the answer without words and parameters."""

    def ask(self) -> Answer:
        """Return the answer.

        Raises:
            RunsInterrupted: Ctrl-C.
        """
        answer = self.answer()
        texts = words(self.name, self.facts(answer))
        answer = replace(answer, parameters=self.parameters, command=self.command, **texts)
        return replace(answer, seeds=self.experiment.seeds_of_cases)

    @property
    def command(self) -> str:
        """What asks it again, with as many seeds."""
        seeds = "" if self.experiment.seeds is None else f" --seeds {self.experiment.seeds}"
        return f"bentpipe ask {self.name}{self._options()}{seeds}"

    def _options(self) -> str:
        words = chain.from_iterable((flag, shlex.quote(value)) for flag, value in options_of(self))
        return "".join(f" {word}" for word in words if word)

    def facts(self, answer: Answer) -> dict[str, Any]:
        """Return what the words of an answer are made of: ``q`` is the question."""
        names = vars(modules[self.__module__])
        constants = {name: names[name] for name in names if name.isupper()}
        return {"q": self, **constants, **answer.figures, **answer.facts}

    @property
    def parameters(self) -> dict[str, Any]:
        """What was asked, as plain data."""
        parameters = {
            parameter.name: getattr(self, parameter.name)
            for parameter in fields(self)
            if parameter.init
        }
        del parameters["experiment"]
        return parameters


@dataclass(kw_only=True, eq=False)
class LinkQuestion(Question):
    """A question about a link, which runs with traffic answer.

    ``link`` is a preset or a scenario file, of which the link and the gateways are taken;
    ``settings`` override values of it, and of the entries of the question's traffic. ``duration``
    is that of a run.
    """

    link: Link = "geo"
    settings: Annotated[
        Sequence[str],
        Option(
            "Override a value of the link or the traffic, such as link.forward.rate=4Mbit/s; "
            "repeatable.",
            "PATH=VALUE",
            "--set",
        ),
    ] = ()
    duration: str = field(default="60 s", init=False)
    remedies: list[str] = field(default_factory=list, init=False)
    """The commands with the remedies that are better, once the runs are done."""

    seeds: ClassVar[int | None] = None
    """The seeds of a case, if they are not as many as the time allows."""
    seeds_max: ClassVar[int] = DEFAULT_SEEDS
    """The seeds of a case if there is time for them."""
    searched: ClassVar[int] = 0
    """About how many cases `_find` runs beside those of `_cases`."""
    figure: ClassVar[str] = ""
    """The figure that is shown for other assumptions."""
    figure_text: ClassVar[str] = ""
    """That figure in a sentence, where the texts of assumptions lack it."""
    goals: ClassVar[Sequence[Goal]] = ()
    """By what remedies are judged."""
    constants: ClassVar[Sequence[str]] = ()
    """The values of the direction `wire` that must not vary with time."""
    differs: ClassVar[Mapping[str, Collection[str]]] = {}
    """The functions of gateways in which cases differ, and in which of their settings."""
    entries: ClassVar[Collection[str]] = ()
    """The entries of traffic that not all cases have."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for setting in self.settings:
            end, *path = _path(setting)
            if end == "gateways" and any(
                function in path and path[-1] in names for function, names in self.differs.items()
            ):
                raise UsageError(
                    f"--set {setting}: the cases differ in {path[-1]}; leave it out, or compare "
                    "two runs with bentpipe compare"
                )

    @abstractmethod
    def _traffic(self) -> list[dict[str, Any]]:
        """Return the entries of ``traffic`` as asked for."""

    def _amend(self, data: dict[str, Any]) -> None:
        """Change the scenario of all cases."""

    @abstractmethod
    def _measure(self, result: Result) -> Figures:
        """Return the figures of a run."""

    def _cases(self) -> Mapping[Any, Plan]:
        """Return the cases that are compared, but for those that `_find` searches."""
        return {} if self.searched else {"as asked": self.base}

    def _assumptions(self) -> Sequence[Assumption]:
        """Return what the answer takes for granted, and may be otherwise."""
        rows = read_rows("assumed.csv", self.name)
        return [Assumption(row["text"], row["instead"], (row["setting"],)) for row in rows]

    def _find(self, cases: Mapping[Any, Plan]) -> Any:
        """Run the cases, and those that depend on the figures of others."""
        return self.run(cases)

    def _basis(self, measurements: Any) -> tuple[Measurements, Sequence[str]]:
        """Return the figures that are compared with those for other assumptions, and settings."""
        return next(iter(measurements.values())), ()

    @abstractmethod
    def _judge(self, measurements: Any) -> Answer:
        """Return what the figures say; effects of assumptions are added."""

    def answer(self) -> Answer:
        """Run the cases, and judge."""
        measurements = self.measured()
        answer = self.judge(measurements)
        effects = [*answer.effects, *self._effects(self._assumptions(), measurements)]
        effects.sort(key=lambda effect: -abs(effect.percent.mean))
        tables = [*answer.tables, link_view(self.directions)]
        warnings = [str(each) for each in self.base.warnings if each.field.startswith("link.")]
        interrupted = self.experiment.interrupted
        return replace(
            answer, effects=effects, tables=tables, warnings=warnings, interrupted=interrupted
        )

    def measured(self) -> Any:
        """Run the cases that are compared; return their figures, which `judge` takes."""
        self._require_constants()
        count = self.searched + len(self.cases) + len(self._assumptions())
        self.experiment.choose_seeds(self.base.data, count, self.seeds, seeds_max=self.seeds_max)
        return self._find(self.cases)

    def judge(self, measurements: Any) -> Answer:
        """Return what figures say, also those of some of the seeds, without effects and words."""
        return self._judge(measurements)

    def run(self, cases: Mapping[Name, Plan]) -> dict[Name, Measurements]:
        """Run cases and measure them."""
        return self.experiment.run(cases, self._measure)

    def run_case(self, *settings: str, traffic: Entries | None = None) -> Measurements:
        """Run the scenario with further settings or other traffic."""
        with self.experiment.interruptible():
            return self.run({"": self.plan(*settings, traffic=traffic)})[""]

    def _effects(self, assumptions: Sequence[Assumption], measurements: Any) -> list[Effect]:
        """Return how the figure changes with each assumption that fits."""
        if not assumptions:
            return []
        before, common = self._basis(measurements)
        settings = {assumption: [*common, *assumption.settings] for assumption in assumptions}
        changed: Mapping[Assumption, Measurements] = {}
        with suppress(RunsInterrupted), self.experiment.interruptible():
            changed = self.run(self.fitting(settings))
        if self.experiment.interrupted:
            return []
        self.remedies = [*better_commands(self._comparable(), before, changed)]
        figure, figure_text = self._shown(before)
        # The answer names the largest of them.
        count = max(len(changed), 1)
        effects = [
            Effect(
                assumption.text,
                assumption.instead,
                before.change(figure, after, count),
                figure_text,
            )
            for assumption, after in changed.items()
        ]
        return [effect for effect in effects if np.isfinite(effect.percent.mean)]

    def _comparable(self) -> Self:
        """Return what to ask with a remedy, so that its answer can be compared with this one."""
        return self

    def _shown(self, _before: Measurements) -> tuple[str, str]:
        """Return the figure that is shown for other assumptions, and its words."""
        return self.figure, self.figure_text

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

        After Ctrl-C they are those of the last number that was run.

        Raises:
            RunsInterrupted: Ctrl-C before the first number was run.
            UsageError: there are more than `MAX_COUNT`.
        """
        count, last = first, (first, Measurements())
        for left in reversed(range(_ADJUSTMENTS)):
            self.check_count("this load takes", count, noun)
            count = max(count, 1)
            try:
                last = count, run(count)
            except RunsInterrupted:
                if not last[1]:
                    raise
                break
            value = last[1].mean(figure)
            better = max(round(count * wanted / value), 1)
            if abs(value - wanted) <= tolerance or better == count or left == 0:
                break
            count = better
        return last

    def check_count(self, subject: str, count: int, noun: str) -> None:
        """Check that a number of users or channels can be run.

        Raises:
            UsageError: there are more than `MAX_COUNT`.
        """
        if count > MAX_COUNT:
            raise UsageError(
                f"ask {self.name}: {subject} {count:,} {noun}, more than {MAX_COUNT:,}; ask with "
                "a lower rate, such as --set link.forward.rate=100Mbit/s"
            )

    @cached_property
    def cases(self) -> Mapping[Any, Plan]:
        """The cases that are compared, but for those that are searched."""
        return self._cases()

    @cached_property
    def base(self) -> Plan:
        """The case as asked for."""
        return self.plan()

    def plan(
        self, *settings: str, traffic: Entries | None = None, functions: Functions | None = None
    ) -> Plan:
        """Return the scenario with further settings, other traffic and functions of gateways.

        A setting of what a case does not have is left out.
        """
        traffic, functions = traffic or self._traffic(), functions or {}
        document = link_scenario(self.link, traffic, self.duration)
        data = copy.deepcopy(document.data)
        if self.differs:
            self._put(functions, data.setdefault("gateways", {}))
        self._amend(data)
        missing = {*self.entries} - {entry["name"] for entry in traffic}
        kept = [setting for setting in self.settings if self._applies(setting, missing, functions)]
        scenario = Scenario.from_document(replace(document, data=data), [*kept, *settings])
        return Plan.resolve(scenario)

    def fitting(self, settings: Mapping[Name, Sequence[str]]) -> dict[Name, Plan]:
        """Return the scenario with each list of settings; what does not fit is left out."""
        plans = {}
        for name, overrides in settings.items():
            try:
                plans[name] = self.plan(*overrides)
            except ScenarioError:
                continue
        return plans

    def _put(self, functions: Functions, gateways: dict[str, Any]) -> None:
        """Put functions first, in this order, and keep those in which no cases differ."""
        for end in {**gateways, **functions}:
            before = gateways.get(end) or {}
            wanted = {}
            for name, settings in functions.get(end, {}).items():
                of_file = before.get(name) or {}
                wanted[name] = {
                    key: of_file[key] for key in of_file if key not in self.differs[name]
                }
                for key, value in settings.items():
                    if isinstance(value, Mapping):
                        # Defaults of a part, such as the TCP of a leg.
                        wanted[name][key] = {**value, **(of_file.get(key) or {})}
                    elif value is None:
                        wanted[name].pop(key, None)
                    else:
                        wanted[name][key] = value
            kept = {name: before[name] for name in before if name not in self.differs}
            gateways[end] = kept | wanted
            if before.get("functions") is not None:
                others = [name for name in before["functions"] if name not in self.differs]
                gateways[end]["functions"] = [*wanted, *others]

    def _applies(self, setting: str, missing: Collection[str], functions: Functions) -> bool:
        path = _path(setting)
        if path[0] == "traffic":
            return not {*path[1:2]} & {*missing}
        for name in self.differs if path[0] == "gateways" else ():
            if name in path:
                of_case = [of_end[name] for of_end in functions.values() if name in of_end]
                return bool(of_case) and of_case[0].get(path[-1], "") is not None
        return True

    def _require_constants(self) -> None:
        # A packet travels both ways, but only the data of one direction fill it.
        wires = {"delay_ns": self.directions}
        varying = [
            name
            for name in self.constants
            if any(wire[name]["kind"] != "constant" for wire in wires.get(name, [self.wire]))
        ]
        if varying:
            words = " and ".join(name.partition("_")[0] for name in varying)
            example = "forward.rate=16Mbit/s" if "rate_bps" in varying else "*.delay=20ms"
            raise UsageError(
                f"ask {self.name}: {words} of this link must not vary with time; set constants, "
                f"such as --set link.{example}"
            )

    @property
    def directions(self) -> list[dict[str, Any]]:
        """The forward and the return direction of the plan."""
        directions: list[dict[str, Any]] = self.base.data["directions"][:2]
        return directions

    @property
    def wire(self) -> Mapping[str, Any]:
        """The direction of the plan that the question is about."""
        return self.directions[0]

    @property
    def rate_bps(self) -> int:
        """The largest rate of this direction."""
        return peak_bps(self.wire["rate_bps"])

    @property
    def terminals(self) -> int:
        """How many terminals the link has, with a return each."""
        return len(self.base.data["directions"]) - 1

    @property
    def return_bps(self) -> int:
        """The largest rate of the return of each terminal."""
        return peak_bps(self.directions[1]["rate_bps"])

    @property
    def rtt_ns(self) -> int:
        """The round-trip propagation delay of the link, at the start of a run."""
        return sum(initial(direction["delay_ns"]) for direction in self.directions)

    @property
    def stop_ns(self) -> int:
        """The duration of a run, which a setting may override."""
        durations = [
            setting.partition("=")[2]
            for setting in self.settings
            if setting.startswith("duration=")
        ]
        return parse_duration([self.duration, *durations][-1])

    @property
    def length(self) -> str:
        """The length of a run, and so of a transfer without a duration of its own."""
        return format_duration(self.base.data["stop_ns"])

    @cached_property
    def link_rate_bps(self) -> int:
        """The largest rate of the forward direction, whatever the traffic."""
        probe = {"kind": "bulk", "direction": "forward", "size": "1 B"}
        document = link_scenario(self.link, [probe], "1 s")
        plan = Plan.resolve(Scenario.from_document(document, self.link_settings))
        return peak_bps(plan.data["directions"][0]["rate_bps"])

    def seconds_of(self, bits: int, min_s: int, max_s: int) -> int:
        """Return the seconds of a run with so many bits at the link rate, within bounds.

        A fast link takes fewer seconds for as many downloads.
        """
        return max(min(bits // self.link_rate_bps, max_s), min_s)

    @property
    def link_settings(self) -> list[str]:
        """The settings that are not of the traffic of this question."""
        return [setting for setting in self.settings if setting.startswith("link.")]

    @property
    def other_settings(self) -> list[str]:
        """The settings that are not of the link, its gateways or hosts."""
        return [setting for setting in self.settings if _path(setting)[0] not in _LINK_FIELDS]

    @property
    def subject(self) -> str:
        """The link and its settings, for a sentence."""
        return " with ".join([self.link, *([", ".join(self.settings)] if self.settings else [])])

    def ask_command(self, question: str, *options: str, settings: Sequence[str] = ()) -> str:
        """Return the command that asks a question about this link, with further settings.

        Another question has other traffic, so that it gets the settings of the link alone.
        """
        kept = self.settings if question == self.name else self.link_settings
        words = ["bentpipe ask", question, self._shell([*kept, *settings]), *options]
        return " ".join(words)

    def exec_command(self, *settings: str) -> str:
        """Return the command that sends TCP in this direction; ``settings`` are of the link."""
        link = self._shell([*self.link_settings, *settings])
        is_forward = self.wire["name"] == "forward"
        command = "curl -o page http://world/bytes/10000000" if is_forward else "iperf3 -c world"
        return f"bentpipe exec {link} -- {command}"

    def _options(self) -> str:
        return f" {self._shell(self.settings)}{super()._options()}"

    def _shell(self, settings: Sequence[str]) -> str:
        sets = "".join(f" --set {shlex.quote(setting)}" for setting in settings)
        return f"--link {shlex.quote(self.link)}{sets}"

    @property
    def parameters(self) -> dict[str, Any]:
        """What was asked, as plain data."""
        parameters = super().parameters
        return {
            "link": parameters.pop("link"),
            "set": list(parameters.pop("settings")),
            **parameters,
        }


def link_scenario(link: str, traffic: Entries, duration: str) -> Document:
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


def _path(setting: str) -> list[str]:
    return setting.split("=", maxsplit=1)[0].split(".")


def initial(series: Mapping[str, Any]) -> int:
    """Return the value at the start of a run."""
    return series_values(series)[0]


def peak_bps(rate: Mapping[str, Any]) -> int:
    """Return the largest rate of a direction, in link bit/s."""
    return max(series_values(rate))
