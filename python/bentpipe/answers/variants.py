"""What questions compare with the plain link: the TCP of hosts, and functions of gateways.

Remedies without a box, in the hosts' TCP or a queue, come first: a box has to do better.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Final, Literal, NamedTuple, Self

import numpy as np

from bentpipe.answers.answer import Answer, Chart, columns, read_rows
from bentpipe.answers.question import Entries, Functions, LinkQuestion
from bentpipe.answers.queues import MIN_LIMIT_BYTES
from bentpipe.answers.remedies import command_with
from bentpipe.answers.runs import (
    MANY_SEEDS,
    Change,
    Measurements,
    Verdict,
    decisive,
)
from bentpipe.answers.trial import Trial
from bentpipe.errors import RunsInterrupted, UsageError
from bentpipe.plan.link import codel_fields
from bentpipe.plan.plan import Plan
from bentpipe.results.result import Result
from bentpipe.results.views import View
from bentpipe.text import counted
from bentpipe.units import format_size

# What is advised: a box, or a remedy without one; a box, if it is better than that; nothing.
Advice = Literal["box", "remedy", "open", "none"]

# The congestion control of PEPs over the link. PEPsal, for GEO satellites, uses Hybla (Caini,
# Firrincieli and Lacamera, PEPsal, IEEE VTC Spring 2006, abstract). BBR is the one that Linux and
# proxies on it (FortiOS 8.0, "TCP congestion control enhancement with BBR") have beside CUBIC.
PEP_CONTROLS: Final = ("hybla", "bbr")
_LARGE_BUFFER: Final = "64 MiB"
# Queues whose limits differ by less count as equal.
_NEAR: Final = 0.1
# More runs of a case take minutes, and are not suggested.
_MAX_RUNS: Final = 100
# Channels are adjusted until the load is this near to the one asked for.
_TOLERANCE: Final = 0.02
_FIRST_CHANNELS: Final = 10
_AS_ASKED: Final = "as asked"
# Channels have filled the link by then; what is measured beside them starts.
WARM_UP_S: Final = 10
BESIDE: Final[Mapping[str, Any]] = {"direction": "forward", "start": f"{WARM_UP_S} s"}
_OTHERWISE: Final = "One assumption changed at a time"

# A number of channels, or what else the cases that are compared have in common; and a variant.
Case = tuple[int | str, str]
Cases = Mapping[Case, Measurements]


class Variant(NamedTuple):
    """Settings of the hosts' TCP, a queue, a PEP at the hub, a tunnel, or none of them.

    ``title`` is for tables, ``name`` for sentences. ``pep`` is the congestion control of the PEP
    over the link, unless the scenario or a setting has one. ``queue`` is the setting of a queue.
    """

    title: str
    name: str
    pep: str | None = None
    tunnel: Mapping[str, Any] | None = None
    tcp: Mapping[str, str] = {}
    queue: str = ""

    @classmethod
    def of(cls, title: str, name: str, pep: str, order: str, **tunnel: str) -> Variant:
        """Return a variant from the texts of a table; an empty one is not set."""
        # Without order there is no time to hold packets for it.
        others = {"order": False, "order_hold_time": None} if order == "none" else {}
        settings = {**tunnel, **others} if any(tunnel.values()) else None
        return cls(title, name, pep or None, settings)

    @property
    def functions(self) -> Functions:
        """The functions of the gateways, with their settings."""
        tunnel = {} if self.tunnel is None else {"tunnel": self.tunnel}
        pep = {} if self.pep is None else {"pep": {"link_tcp": {"congestion_control": self.pep}}}
        return {"hub": {**pep, **tunnel}, "terminal": tunnel}

    @property
    def settings(self) -> list[str]:
        """The settings of all traffic and of the link, which override what was asked for."""
        of_traffic = [f"traffic.*.tcp.{name}={value}" for name, value in self.tcp.items()]
        return [*of_traffic, self.queue] if self.queue else of_traffic


# What every question compares, by name.
PLAIN, HOSTS = "plain", "hosts"
PLAIN_LINK: Final = Variant("plain", "the plain link")
# No box in the path of all traffic, and QUIC has it, too.
BBR_AT_HOSTS: Final = Variant(
    "BBR at hosts",
    "BBR at the hosts",
    tcp={
        "congestion_control": "bbr",
        "send_buffer": _LARGE_BUFFER,
        "receive_buffer": _LARGE_BUFFER,
    },
)


def pep(control: str) -> Variant:
    """Return a PEP at the hub with this congestion control over the link."""
    return Variant(f"PEP, {control}", f"a PEP with {control}", pep=control)


def queue_remedies(question: LinkQuestion) -> dict[str, Variant]:
    """Return other queues of the forward link, of one bandwidth-delay product: plain, and FQ-CoDel.

    What is the link's own queue, or does not fit the link, is left out; a queue with classes is
    left as it is.
    """
    wire, rtt_ns = question.directions[0], question.rtt_ns
    own = wire["queue"]
    if "classes" in own:
        return {}
    limit = "limit: 1bdp"
    settings = {
        "one_bdp": f"link.forward.queue={{discipline: drop_tail, {limit}}}",
        "fq_codel": "link.forward.queue="
        f"{{discipline: fq_codel, {codel_fields(rtt_ns, wire)}, {limit}}}",
    }
    variants = {}
    for name, plan in question.fitting({name: [settings[name]] for name in settings}).items():
        queue = plan.data["directions"][0]["queue"]
        is_own = queue["discipline"] == own["discipline"] and _has_limit_near(own, queue)
        if queue["limit"].get("value", 0) < MIN_LIMIT_BYTES or is_own:
            continue
        size = f"{format_size(queue['limit']['value'])} (one BDP)"
        texts = {
            "one_bdp": ("queue of 1 BDP", f"a queue of {size}"),
            "fq_codel": ("FQ-CoDel", f"FQ-CoDel with {size}"),
        }
        variants[name] = Variant(*texts[name], queue=settings[name])
    return variants


def _has_limit_near(own: Mapping[str, Any], queue: Mapping[str, Any]) -> bool:
    """Return whether a queue has nearly the limit of another one, in bytes, and the same target."""
    if own.get("target_ns") != queue.get("target_ns") or "bytes" not in own["limit"]["unit"]:
        return False
    return math.isclose(own["limit"]["value"], queue["limit"]["value"], rel_tol=_NEAR)


def advice(box: Verdict, remedy: Verdict, beside: Verdict) -> Advice:
    """Return what follows from the changes by a box, by a remedy, and from that to the box.

    The remedy wins if it gains and the box has no gain over it, or none at all. What loses the
    total gains nothing.
    """
    remedy_gains, box_gains, is_better = (
        verdict.kind in ("gains", "mixed") for verdict in (remedy, box, beside)
    )
    may_be_better = beside.may_gain and beside.kind != "loses"
    if remedy_gains and not (box_gains and may_be_better):
        return "remedy"
    if not box_gains:
        return "none"
    return "box" if is_better else "open"


def _strongest(
    box: Verdict, remedies: Mapping[str, Verdict], to_box: Mapping[str, Verdict]
) -> Verdict:
    """Return the remedy that a box is compared with: it has to do better than each of them.

    ``to_box`` are the changes from each remedy to the box.
    """
    winners = [
        remedy for name, remedy in remedies.items() if advice(box, remedy, to_box[name]) == "remedy"
    ]
    if winners:
        return decisive(winners)
    gains = {name: to_box[name].net_percent for name in remedies}
    return remedies[min(gains, key=lambda name: np.nan_to_num(gains[name], nan=math.inf))]


@dataclass(kw_only=True, eq=False)
class VariantQuestion(LinkQuestion):
    """A question that compares boxes with the plain link, and with remedies without a box.

    It states the boxes, the traffic of the runs at a load, and their figures. ``tables.csv`` names
    the figures that are compared, the first of which counts first.
    """

    duration: str = field(default="", init=False)
    loads: Sequence[int] = field(default=(0,), init=False)
    """The numbers of channels beside which variants are compared."""

    can_emulate = True
    seeds_max = MANY_SEEDS
    run_length: ClassVar[tuple[int, int, int]]
    """The bits of a run at the link rate, and the bounds of its length in seconds."""
    charted: ClassVar[Collection[str]] = ()
    """The figures whose changes are drawn, if not all."""
    tried: ClassVar[Collection[str]]
    """The figures that runs in real time can be compared by."""
    tries_queues: ClassVar = False
    """Whether other queues are remedies."""
    more_pairs: ClassVar[Sequence[tuple[str, str]]] = ()
    """Variants that are compared, too, each with another one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.duration = f"{self.seconds} s"

    @property
    def seconds(self) -> int:
        """The length of a run, unless a setting has another one."""
        return self.seconds_of(*self.run_length)

    @cached_property
    def titles(self) -> dict[str, str]:
        """The figures that are compared, and what a change of them is called."""
        rows = read_rows("tables.csv", f"{self.name} compared")
        return {row["name"]: row["title"] for row in rows}

    @cached_property
    def without_box(self) -> Mapping[str, Variant]:
        """The remedies without a box, by name, the cheapest first."""
        return {**(queue_remedies(self) if self.tries_queues else {}), HOSTS: BBR_AT_HOSTS}

    @cached_property
    def variants(self) -> Mapping[str, Variant]:
        """What is compared, by name: the plain link, remedies, and boxes, here PEPs.

        ``variants.csv`` may have others. There is one PEP if settings have its congestion control
        over the link.

        Raises:
            UsageError: the settings leave no PEP.
        """
        variants = {PLAIN: PLAIN_LINK, **self.without_box}
        rows = read_rows("variants.csv", self.name)
        if rows:
            return variants | {row.pop("case"): Variant.of(**row) for row in rows}
        for made in map(pep, PEP_CONTROLS):
            hub = self.plan(functions=made.functions).data["gateways"][0]["functions"]
            legs = [function["link_tcp"] for function in hub if function["kind"] == "pep"]
            if not legs:
                raise UsageError(
                    f"ask {self.name}: the settings leave no PEP at the hub to compare; leave "
                    "gateways.hub out"
                )
            control = legs[0]["congestion_control"]
            variants[f"pep_{control}"] = pep(control)
        return variants

    @property
    def boxes(self) -> Sequence[str]:
        """The variants from which the first line chooses."""
        return [name for name in self.variants if name not in {PLAIN, *self.without_box}]

    @abstractmethod
    def _traffic(self, load: int = 0) -> list[dict[str, Any]]:
        """Return the entries of ``traffic`` beside so many channels."""

    def parts(self, load: int) -> Sequence[Entries]:
        """Return the traffic of each run of a case: what must not disturb each other is apart."""
        return [self._traffic(load)]

    def _others(self) -> Mapping[str, tuple[Self, Entries]]:
        """Return what may be otherwise: by its name the question and the traffic."""
        return {}

    def _trial_traffic(self, load: int, _figure: str) -> Entries:
        """Return the traffic with which a figure is measured in real time."""
        return self._traffic(load)

    @abstractmethod
    def _measure_flows(self, result: Result) -> dict[str, float]:
        """Return the figures of a run that one in real time has, too."""

    def _measure(self, result: Result) -> Mapping[str, float]:
        return self._measure_flows(result)

    def case_plan(self, name: str, traffic: Entries) -> Plan:
        """Return the scenario with a variant, and traffic."""
        variant = self.variants[name]
        return self.plan(*variant.settings, traffic=traffic, functions=variant.functions)

    @property
    def asked_cases(self) -> list[tuple[int, str]]:
        """The cases as asked: load and variant."""
        return [(load, name) for load in self.loads for name in self.variants]

    def _cases(self) -> dict[tuple[Case, int], Plan]:
        """Return the runs of all cases, each a part of a case, with its number."""
        return {
            ((load, name), part): self.case_plan(name, traffic)
            for load, name in self.asked_cases
            for part, traffic in enumerate(self.parts(load))
        }

    def _find(self, cases: Mapping[tuple[Case, int], Plan]) -> Cases:
        """Run cases; a figure of one is that of the first part that has it.

        What may be otherwise is run with the plain link and the best box, and is missing after
        Ctrl-C.
        """
        measurements: dict[Case, Measurements] = {}
        for (case, _), measured in self.run(cases).items():
            of_case = measurements.setdefault(case, Measurements())
            of_case.update({name: measured[name] for name in measured if name not in of_case})
        names = (PLAIN, self.best(self._of_boxes(measurements)).variant)
        varied: dict[Case, Measurements] = {}
        with suppress(RunsInterrupted), self.experiment.interruptible():
            others: dict[Case, Plan] = {
                (text, name): other.case_plan(name, traffic)
                for text, (other, traffic) in self._others().items()
                for name in names
            }
            varied = self.run(others)
        if varied:
            measurements |= {(_AS_ASKED, name): measurements[self.loads[0], name] for name in names}
        return {**measurements, **varied}

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """The comparisons at a load from which the first line chooses: after, before."""
        of_remedies = [(remedy, PLAIN) for remedy in self.without_box]
        others = (PLAIN, *self.without_box)
        return [*of_remedies, *((box, before) for box in self.boxes for before in others)]

    def verdict(self, measurements: Cases, load: int, variant: str, before: str = PLAIN) -> Verdict:
        """Return what changes from a variant to another at the same load.

        The intervals of all comparisons from which the first line chooses hold together.
        """
        cases = measurements[load, before], measurements[load, variant]
        figures = [figure for figure in self.titles if figure in cases[1]]
        count = len(self.loads) * len(self.pairs) * len(figures)
        return Verdict.of(load, variant, *cases, figures, count)

    def _varied(self, measurements: Cases) -> dict[str, Any]:
        """Return the box that ran with other assumptions, its gains, and where they differ most."""
        boxes = {text: box for text, box in measurements if isinstance(text, str) and box != PLAIN}
        if not boxes:
            return {}
        gains = {
            text: Change.of(self.figure, measurements[text, PLAIN], measurements[text, box]).gain
            for text, box in boxes.items()
        }
        asked = gains[_AS_ASKED].mean
        most = max(gains, key=lambda text: abs(gains[text].mean - asked))
        return {"box": boxes[most], "gains": gains, "most": most}

    def channels_for(self, load: float, traffic: Callable[[int], Entries]) -> int:
        """Return how many channels keep the plain link this busy (0 to 1), from their traffic."""
        count, _ = self.adjusted_count(
            "channels",
            lambda count: self.run_case(traffic=traffic(count)),
            first=_FIRST_CHANNELS,
            figure="busy",
            wanted=load,
            tolerance=_TOLERANCE,
        )
        return count

    def _of_boxes(self, measurements: Cases) -> list[Verdict]:
        return [self.verdict(measurements, load, box) for load in self.loads for box in self.boxes]

    def best(self, boxes: Sequence[Verdict]) -> Verdict:
        """Return the verdict of the box that the answer is about."""
        return decisive(boxes)

    def _judge(self, measurements: Cases) -> Answer:
        alone = [(name, PLAIN) for name in self.variants if name != PLAIN]
        changes = {
            (load, *pair): self.verdict(measurements, load, *pair)
            for load in self.loads
            for pair in dict.fromkeys([*alone, *self.pairs, *self.more_pairs])
        }
        compared = {key: verdict for key, verdict in changes.items() if key[1:] in self.pairs}
        boxes = self._of_boxes(measurements)
        best = self.best(boxes)
        remedies = {name: compared[best.load, name, PLAIN] for name in self.without_box}
        to_box = {name: compared[best.load, best.variant, name] for name in remedies}
        remedy = _strongest(best, remedies, to_box)
        beside = to_box[remedy.variant]
        advised = advice(best, remedy, beside)
        chosen = remedy if advised == "remedy" else best
        queue = self.variants[chosen.variant].queue
        self.remedies = [command_with(self, [queue])] if queue else []
        runs = max(verdict.runs_to_decide(_MAX_RUNS) for verdict in (chosen, beside))
        varied = self._varied(measurements)
        gains = varied.get("gains", {})
        return Answer(
            facts={
                "found": measurements,
                "compared": compared,
                "comparisons": sum(len(verdict.changes) for verdict in compared.values()),
                "boxes": boxes,
                "best": best,
                "remedies": [*remedies.values()],
                "remedy": remedy,
                "beside": beside,
                "chosen": chosen,
                "varied": varied,
                "runs": runs if runs > best.total.percent.runs else None,
            },
            figures={
                "advice": advised,
                "best": {"channels": best.load, "case": best.variant, "verdict": best.kind},
                "remedy": {"case": remedy.variant, "verdict": remedy.kind},
                "cases": [
                    {"channels": load, "case": name, **measurements[load, name].known()}
                    for load, name in self.asked_cases
                ],
                "changes": [
                    {"channels": load, "case": name, "compared_with": before, **verdict.figures}
                    for (load, name, before), verdict in changes.items()
                ],
                **({"assumptions": gains} if gains else {}),
            },
            tables=[View(_OTHERWISE, columns(f"{self.name} assumptions"), [*gains.items()])],
            charts=[
                self._chart(change.figure, measurements)
                for change in best.changes
                if not self.charted or change.figure in self.charted
            ],
            trial=self.trial(chosen),
        )

    def rows(self, measurements: Cases) -> list[dict[str, Any]]:
        """Return the cases with means, and the changes and gains from the plain link in percent."""
        rows: list[dict[str, Any]] = []
        for load, name in self.asked_cases:
            means = measurements[load, name].means()
            rows.append({"channels": load, "case": self.variants[name].title, **means})
            for change in self.verdict(measurements, load, name).changes if name != PLAIN else ():
                rows[-1][f"{change.figure}_change_percent"] = change.percent
                rows[-1][f"{change.figure}_gain_percent"] = change.gain
        return rows

    def _chart(self, figure: str, measurements: Cases) -> Chart:
        changes = {
            f"{counted(load, 'channel')}, {self.variants[name].title}": self.verdict(
                measurements, load, name
            ).percents[figure]
            for load, name in self.asked_cases
            if name != PLAIN
        }
        better = "less" if figure.endswith("_ns") else "more"
        title = f"Change of the {self.titles[figure]} from the plain link; {better} is better"
        return Chart.bars(title, "Change [%]", changes)

    def trial(self, chosen: Verdict) -> Trial:
        """Return what can be tried in real time: the plain link and what is chosen.

        It is by the figure that changes most, of those that gain or lose if there are some. If a
        machine lacks something for the box that is chosen, another one is tried.
        """
        changes = [change for change in chosen.changes if change.figure in self.tried]
        shown = chosen.having("gains", "loses")
        changes = [change for change in changes if change in shown] or changes
        figure = max(changes, key=lambda change: abs(change.percent.mean)).figure
        others = [] if chosen.variant in self.without_box else [*self.boxes]
        names = {self.variants[name].title: name for name in (PLAIN, chosen.variant, *others)}
        return Trial(
            figure=figure,
            measure=lambda result: self._measure_flows(result)[figure],
            names=[*names],
            plan=lambda title: self.case_plan(
                names[title], self._trial_traffic(chosen.load, figure)
            ),
            simulate=self.run,
        )
