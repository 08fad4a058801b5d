"""The source's claims, each decided by changes between measured curves.

A decision has a rule, effects and one of three verdicts. rules.csv has the bounds, effects.csv the
curves. The source says "titration" where it means that, and its "coding" is, since 2018, a code
whose repair is delayed: that curve decides what it says of coding. The other coded curves are
reported with the verdict that each would have alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise
from typing import Any, Final, Literal

from bentpipe.studies.auckland.cells import (
    BASE,
    SMALL_KB,
    TUNNELS,
    UNCODED,
    Cell,
    LinkPath,
    Variant,
    runs_of,
)
from bentpipe.studies.auckland.measure import (
    Curve,
    Measured,
    area,
    gain_percent,
    ratio,
    share_percent,
)
from bentpipe.studies.auckland.runs import BACKGROUND_BUSY
from bentpipe.studies.base.comparison import Samples, difference
from bentpipe.studies.base.inputs import read_rows


class Verdict(StrEnum):
    """What the runs say about a claim."""

    HOLDS = "holds"
    DOES_NOT_HOLD = "does not hold"
    NOT_DECIDED = "not decided"


Unit = Literal["%", "Mbit/s", "times"]


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A bound that the effect must keep; the 95 % interval of the effect decides.

    The claim holds if the whole interval is on the claimed side of the bound, does not hold if the
    whole interval is on the other side, and is not decided otherwise. ``effect`` says what is
    measured, ``reason`` why the bound has this value. ``about_to`` is
    the largest value that a claim with "about" still means; it does not decide.
    """

    bound: Literal["below", "at_least"]
    value: float
    unit: Unit = "%"
    effect: str
    reason: str
    about_to: float | None = None

    def verdict(self, effect: Samples) -> Verdict:
        """Return the verdict on one effect; without an interval it is not decided."""
        interval = effect.interval
        if interval is None or interval.low < self.value <= interval.high:
            return Verdict.NOT_DECIDED
        is_below = interval.high < self.value
        return Verdict.HOLDS if is_below == (self.bound == "below") else Verdict.DOES_NOT_HOLD

    def is_about(self, effect: Samples) -> bool | None:
        """Return whether the whole interval is from the bound to ``about_to``, None without it."""
        interval = effect.interval
        if self.about_to is None or interval is None:
            return None
        return self.value <= interval.low and interval.high <= self.about_to

    def to_json(self) -> dict[str, Any]:
        """Return the rule as plain data."""
        return {
            "effect_measured": self.effect,
            "effect_unit": self.unit,
            "bound": self.bound,
            "bound_value": self.value,
            "bound_reason": self.reason,
            "about_to": self.about_to,
        }


@dataclass(frozen=True)
class Effect:
    """An effect, one value a seed, of the cells ``of`` over numbers of ``channels``.

    ``path`` is the curve that it is of, None for all of them. An effect that does not decide
    is reported only.
    """

    of: str
    values: Samples
    channels: tuple[int, ...]
    path: LinkPath | None = None
    decides: bool = True

    def to_json(self, rule: Rule) -> dict[str, Any]:
        """Return the effect as plain data, with the verdict if it decided alone."""
        return {
            "of": self.of,
            "path": None if self.path is None else self.path.value,
            "decides": self.decides,
            "verdict": rule.verdict(self.values).value,
            "about": rule.is_about(self.values),
            "channels": list(self.channels),
            **self.values.to_json("effect"),
        }


@dataclass(frozen=True)
class Decision:
    """A verdict with its effects: all that decide must keep the bound for the claim to hold."""

    rule: Rule
    effects: tuple[Effect, ...]

    @property
    def deciding(self) -> tuple[Effect, ...]:
        """The effects that decide."""
        return tuple(effect for effect in self.effects if effect.decides)

    @property
    def verdict(self) -> Verdict:
        """The verdict: one effect that breaks the bound is enough for a claim not to hold."""
        verdicts = {self.rule.verdict(effect.values) for effect in self.deciding}
        order = (Verdict.DOES_NOT_HOLD, Verdict.NOT_DECIDED, Verdict.HOLDS)
        return next((verdict for verdict in order if verdict in verdicts), Verdict.NOT_DECIDED)

    @property
    def decisive(self) -> Effect:
        """The effect that is farthest on the wrong side of the bound; without one, no effect."""
        sign = 1 if self.rule.bound == "below" else -1
        none = Effect("no such cells", Samples(), ())
        return max(
            self.deciding, key=lambda effect: sign * (effect.values.mean or 0.0), default=none
        )

    def by_path(self) -> dict[LinkPath, Decision]:
        """Return the decisions as if one path alone decided, of effects that are of one path."""
        deciding = [replace(effect, decides=True) for effect in self.effects]
        return {
            path: Decision(self.rule, tuple(effect for effect in deciding if effect.path is path))
            for path in dict.fromkeys(effect.path for effect in deciding)
            if path is not None
        }

    @property
    def was_tried(self) -> bool:
        """Return whether there are runs that decide."""
        return any(effect.values.values for effect in self.deciding)

    def to_json(self) -> dict[str, Any]:
        """Return verdict, deciding effect and seeds as plain data."""
        effect = self.decisive
        return {
            "verdict": self.verdict.value,
            "seeds": len(effect.values.values),
            "effect_of": effect.of,
            **effect.values.to_json("effect"),
        }

    def with_paths(self, **more: Any) -> dict[str, Any]:
        """Return the same with more, and what each path alone decides."""
        paths = {path.value: decision.to_json() for path, decision in self.by_path().items()}
        return {**self.to_json(), **more, "paths": paths}


# How busy the channels alone keep the plain link, in percent of its rate.
LOADED_PERCENT: Final = 50.0
SATURATED_PERCENT: Final = 90.0
VERY_LOW_PERCENT: Final = 10.0

Channels = tuple[int, ...]


@dataclass(frozen=True)
class Context:
    """What a claim is decided with: the cells of a variant, and the link's largest goodput."""

    measured: Measured
    payload_rate_mbps: float
    # The curves that are not as described.
    changed: frozenset[LinkPath] = frozenset(LinkPath)

    def channels(self) -> Channels:
        """Return the numbers of channels, ascending."""
        return tuple(sorted({cell.channels for cell in self.measured}))

    def paths(self, names: str, after: LinkPath | None = None) -> list[LinkPath]:
        """Return the curves that effects.csv names; a coded curve that was not run has no effect.

        "same" is ``after``, "tunnels" are all coded curves.
        """
        if after is not None and names == "same":
            return [after]
        measured = {cell.path for cell in self.measured}
        named = TUNNELS if names == "tunnels" else map(LinkPath, filter(None, names.split(";")))
        return [path for path in named if path in UNCODED or path in measured]

    def busy_percent(self, queue_kb: int, channels: int) -> float:
        """Return how busy the channels alone keep the plain link with this queue."""
        busy = self.measured[Cell(channels, queue_kb, LinkPath.PLAIN)][BACKGROUND_BUSY].mean
        return 0.0 if busy is None else busy

    def loaded(self, queue_kb: int, percent: float = LOADED_PERCENT) -> Channels:
        """Return the numbers of channels that are called "under load"."""
        return tuple(n for n in self.channels() if self.busy_percent(queue_kb, n) >= percent)

    def saturated(self, queue_kb: int) -> Channels:
        """Return the numbers of channels that saturate the link."""
        return self.loaded(queue_kb, SATURATED_PERCENT)

    def very_low(self, queue_kb: int) -> Channels:
        """Return the numbers of channels that are called "very low background load"."""
        every = (n for n in self.channels() if n)
        return tuple(n for n in every if self.busy_percent(queue_kb, n) < VERY_LOW_PERCENT)

    def curve(self, figure: str, queue_kb: int, channels: Sequence[int], path: LinkPath) -> Curve:
        """Return the area under a curve by seed; nothing if a cell or all channels are missing."""
        cells = [Cell(n, queue_kb, path) for n in channels]
        runs = [self.measured[cell].by_seed(figure) for cell in cells if cell in self.measured]
        if not cells or len(runs) < len(cells):
            return {}
        seeds = [seed for seed in runs[0] if all(seed in by_seed for by_seed in runs)]
        values = [[by_seed[seed] for seed in seeds] for by_seed in runs]
        return dict(zip(seeds, area(channels, values), strict=True)) if seeds else {}


# By name in rules.csv.
_EACH: Final = "each"
# Of a range.
_ENDS: Final = 2
_CHANNELS: Final[Mapping[str, Callable[[Context], Channels]]] = {
    "all": Context.channels,
    "very low load": lambda context: context.very_low(SMALL_KB),
    "under load": lambda context: context.loaded(SMALL_KB),
    "the first load": lambda context: context.loaded(SMALL_KB)[:1],
    "saturated": lambda context: context.saturated(SMALL_KB),
    _EACH: Context.channels,
}
_CHANGES: Final[Mapping[str, Callable[[Curve, Curve], Samples]]] = {
    "gain": gain_percent,
    "share": share_percent,
    "difference": difference,
    "ratio": ratio,
}


@dataclass(frozen=True)
class Test:
    """How a claim is decided: the rule, the numbers of channels that count, and the effects.

    ``lines`` are the rows of effects.csv.
    """

    rule: Rule
    channels: str
    lines: tuple[Mapping[str, str], ...]

    @property
    def is_about_coding(self) -> bool:
        """Return whether the effects are of coded links."""
        return all(line["after"] in TUNNELS for line in self.lines)

    @property
    def curves(self) -> frozenset[LinkPath]:
        """The curves that decide."""
        lists = (line[key] for line in self.lines for key in ("before", "after"))
        names = {name for of_line in lists for name in of_line.split(";")} - {"", "same"}
        return frozenset(map(LinkPath, names))

    def decide(self, context: Context, channels: Channels | None = None) -> Decision:
        """Return the decision over the numbers of channels that count, or over these."""
        chosen = _CHANNELS[self.channels](context) if channels is None else channels
        effects = (effect for line in self.lines for effect in self._effects(line, context, chosen))
        return Decision(self.rule, tuple(effects))

    def _effects(
        self, line: Mapping[str, str], context: Context, channels: Channels
    ) -> Iterator[Effect]:
        before_kb, after_kb = int(line["before_queue_kB"]), int(line["after_queue_kB"])
        change = _CHANGES[line["change"]]
        # An effect at each number of channels: a gain at one must not hide a loss at another, and
        # two numbers say nothing of what is between them.
        is_each = self.channels == _EACH or len(channels) == _ENDS
        parts = [(n,) for n in channels] if is_each else [channels]
        decides = context.paths(line["after"])
        others = [path for path in context.paths(line["reported"]) if path not in decides]
        for after in (*decides, *others):
            # Without a curve before it is a share; one that was not run leaves nothing to compare.
            befores: list[LinkPath | None] = [*context.paths(line["before"], after)]
            for before in befores if line["before"] else [None]:
                for part in parts:
                    values = context.curve(line["figure"], after_kb, part, after)
                    first: Curve = dict.fromkeys(values, context.payload_rate_mbps)
                    if before is not None:
                        first = context.curve(line["figure"], before_kb, part, before)
                    yield Effect(
                        line["of"].format(after=after, before=before),
                        change(first, values),
                        part,
                        after if self.is_about_coding else None,
                        decides=after in decides,
                    )


def _read_tests() -> dict[str, Test]:
    effects = read_rows("auckland", "effects.csv")
    tests = {}
    for row in read_rows("auckland", "rules.csv"):
        rule: dict[str, Any] = dict(row)
        claim, channels = rule.pop("claim"), rule.pop("channels")
        rule["value"], rule["about_to"] = float(row["value"]), float(row["about_to"] or 0) or None
        lines = tuple(line for line in effects if line["claim"] == claim)
        tests[claim] = Test(Rule(**rule), channels, lines)
    return tests


TESTS: Final[Mapping[str, Test]] = _read_tests()


@dataclass(frozen=True)
class Claim:
    """What the source says about a figure of its page."""

    figure: int
    queue_kb: int
    metric: str
    text: str


@dataclass(frozen=True)
class Mechanism:
    """Why a claim holds or does not, and what would decide what the source leaves open.

    ``evidence`` are measured figures of cells that show it.
    """

    text: str
    open: str
    evidence: tuple[tuple[Cell, str, Samples], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the sentences and the figures as plain data."""
        return {
            "mechanism": self.text,
            "open": self.open,
            "evidence": [
                {**cell.labels, "figure": figure, **values.to_json("value")}
                for cell, figure, values in self.evidence
            ],
        }


@dataclass(frozen=True)
class Decided:
    """A claim with its decision, the mechanism, and where it holds.

    ``by_channels`` has the decisions with the same bound at each number of channels alone,
    ``variants`` those with other values of what the source does not give.
    """

    claim: Claim
    decision: Decision
    mechanism: Mechanism
    by_channels: Mapping[int, Decision]
    variants: Mapping[str, Decision]

    @property
    def turns_at(self) -> Channels:
        """The numbers of channels at which the verdict is another than at the last decided one."""
        verdicts = [(n, decision.verdict) for n, decision in self.by_channels.items()]
        decided = [(n, verdict) for n, verdict in verdicts if verdict is not Verdict.NOT_DECIDED]
        return tuple(n for (_, last), (n, verdict) in pairwise(decided) if verdict is not last)

    def to_json(self) -> dict[str, Any]:
        """Return the claim, its verdict, the effect that decides and its seeds as plain data."""
        claim, decision = self.claim, self.decision
        return {
            "figure": claim.figure,
            "queue_kB": claim.queue_kb,
            "metric": claim.metric,
            "claim": claim.text,
            **decision.to_json(),
            **decision.rule.to_json(),
            "effects": [effect.to_json(decision.rule) for effect in decision.effects],
            "turns_at_channels": list(self.turns_at),
            **self.mechanism.to_json(),
            "by_channels": [
                {"channels": number, **alone.with_paths()}
                for number, alone in self.by_channels.items()
            ],
            "variants": [
                {"variant": name, **varied.with_paths(channels=list(varied.decisive.channels))}
                for name, varied in self.variants.items()
            ],
        }


def read_claims() -> tuple[Claim, ...]:
    """Return the source's claims, in its order."""
    return tuple(
        Claim(int(row["figure"]), int(row["queue_kB"]), row["metric"], row["claim"])
        for row in read_rows("auckland", "claims.csv")
    )


def mechanism_of(claim: Claim, context: Context) -> Mechanism:
    """Return why the claim holds or does not, with the measured figures of evidence.csv."""
    (about,) = (
        row for row in read_rows("auckland", "mechanisms.csv") if row["claim"] == claim.text
    )
    evidence = tuple(
        (cell, row["figure"], context.measured[cell][row["figure"]])
        for row in read_rows("auckland", "evidence.csv")
        if row["claim"] == claim.text
        for channels in _CHANNELS[row["channels"]](context)[:1]
        if (cell := Cell(channels, int(row["queue_kB"]), LinkPath(row["path"]))) in context.measured
    )
    return Mechanism(about["mechanism"], about["open"], evidence)


def decide(
    claims: Sequence[Claim],
    context: Context,
    variants: Mapping[str, Context],
    coded_variants: Mapping[str, Context],
) -> tuple[Decided, ...]:
    """Decide the claims, each also with variants; those about coding with ``coded_variants``."""
    decided = []
    for claim in claims:
        test = TESTS[claim.text]
        by_channels = {number: test.decide(context, (number,)) for number in context.channels()}
        contexts = coded_variants if test.is_about_coding else variants
        of_variants = {
            name: decision
            for name, varied in contexts.items()
            if test.curves & varied.changed and (decision := test.decide(varied)).was_tried
        }
        mechanism = mechanism_of(claim, context)
        decided.append(Decided(claim, test.decide(context), mechanism, by_channels, of_variants))
    return tuple(decided)


def contexts(
    described: Context, variants: Sequence[Variant], measured: Mapping[str, Measured], few: int
) -> tuple[dict[str, Context], dict[str, Context]]:
    """Return what claims about the plain link and the PEP, and about coding, are decided with.

    Both are by variant, at the numbers of channels that it has. The first variant is the
    configuration as described, with as many runs as a variant has. The curves that a variant
    does not change are as described.
    """
    numbers = {cell.channels for of_variant in measured.values() for cell in of_variant}
    base: Measured = {
        cell: measurement.first(runs_of(cell, few))
        for cell, measurement in described.measured.items()
        if cell.channels in numbers
    }
    if not base:
        return {}, {}
    described = replace(described, measured=base)
    uncoded, coded = {BASE.name: described}, {BASE.name: described}
    others = {cell: measurement for cell, measurement in base.items() if cell.path in UNCODED}
    for variant in variants:
        of_variant = measured.get(variant.name, {})
        changed = frozenset(variant.paths)
        varied = replace(described, measured={**others, **of_variant}, changed=changed)
        if of_variant and changed.intersection(UNCODED):
            uncoded[variant.name] = varied
        if of_variant and changed.intersection(TUNNELS):
            coded[variant.name] = varied
    return uncoded, coded
