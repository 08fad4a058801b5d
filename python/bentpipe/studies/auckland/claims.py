"""The source's claims, each decided by changes between measured curves.

A decision has a rule, effects and one of three verdicts. rules.csv and effects.csv were written
down before the runs that decide them. The source says "titration" where it means that, so "coding"
is a code whose repair is sent at once, and it has no settings, so a claim about coding must not
depend on the redundancy: both immediate curves decide, and the titrated ones are reported with the
verdict that each would have alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final, Literal

from bentpipe.studies.auckland.cells import (
    BASE,
    CODED,
    IMMEDIATE,
    ONE_CODED,
    SMALL_KB,
    TITRATED,
    UNCODED,
    Cell,
    LinkPath,
    Loads,
    Variant,
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
        by_path: dict[LinkPath, tuple[Effect, ...]] = {}
        for effect in self.effects:
            if effect.path is not None:
                by_path[effect.path] = (
                    *by_path.get(effect.path, ()),
                    replace(effect, decides=True),
                )
        return {path: Decision(self.rule, effects) for path, effects in by_path.items()}

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

    def channels(self) -> Channels:
        """Return the numbers of channels, ascending."""
        return tuple(sorted({cell.channels for cell in self.measured}))

    def coded(self, among: Sequence[int] | None = None) -> Channels:
        """Return the numbers of channels, or those among some, at which there are coded cells."""
        coded = {cell.channels for cell in self.measured if cell.path in CODED}
        return tuple(n for n in (self.channels() if among is None else among) if n in coded)

    def paths(self, name: str, after: LinkPath | None = None) -> list[LinkPath]:
        """Return the curves that effects.csv names; "same" and "immediate" refer to ``after``."""
        if after is not None and name == "same":
            return [after]
        if after is not None and name == "immediate":
            return [IMMEDIATE[TITRATED.index(after)]]
        if name not in {"coded", "titrated"}:
            return [LinkPath(path) for path in name.split(";") if path]
        paths = {cell.path for cell in self.measured}
        return [path for path in (CODED if name == "coded" else TITRATED) if path in paths]

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
        every = self.channels()
        return tuple(n for n in every if self.busy_percent(queue_kb, n) < VERY_LOW_PERCENT)

    def curve(self, figure: str, queue_kb: int, channels: Sequence[int], path: LinkPath) -> Curve:
        """Return the area under a curve by seed; nothing if a cell or all channels are missing."""
        cells = [Cell(n, queue_kb, path) for n in channels]
        if not cells or any(cell not in self.measured for cell in cells):
            return {}
        runs = [self.measured[cell].by_seed(figure) for cell in cells]
        seeds = [seed for seed in runs[0] if all(seed in by_seed for by_seed in runs)]
        if not seeds:
            return {}
        values = [[by_seed[seed] for seed in seeds] for by_seed in runs]
        return dict(zip(seeds, area(channels, values), strict=True))


# By name in rules.csv.
_EACH: Final = "each coded"
_CHANNELS: Final[Mapping[str, Callable[[Context], Channels]]] = {
    "all": Context.channels,
    "under load": lambda context: context.loaded(SMALL_KB),
    "very low load": lambda context: context.very_low(SMALL_KB),
    "coded": Context.coded,
    "coded under load": lambda context: context.coded(context.loaded(SMALL_KB)),
    "coded saturated": lambda context: context.coded(context.saturated(SMALL_KB)),
    "coded at the first load": lambda context: context.coded(context.loaded(SMALL_KB))[:1],
    _EACH: Context.coded,
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
        return all(line["after"] in {"coded", "titrated"} for line in self.lines)

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
        # An effect at each number of channels: a gain at one must not hide a loss at another.
        parts = [(n,) for n in channels] if self.channels == _EACH else [channels]
        for after in context.paths(line["after"]):
            befores: list[LinkPath | None] = [*context.paths(line["before"], after)]
            for before in befores or [None]:
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
                        decides=line["after"] != "coded" or after in IMMEDIATE,
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
class Decided:
    """A claim with its decision, and where it holds.

    ``by_channels`` has the decisions with the same bound at each number of channels alone,
    ``variants`` those with other values of what the source does not give.
    """

    claim: Claim
    decision: Decision
    by_channels: Mapping[int, Decision]
    variants: Mapping[str, Decision]

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
        channels = context.coded() if test.is_about_coding else context.channels()
        by_channels = {number: test.decide(context, (number,)) for number in channels}
        contexts = coded_variants if test.is_about_coding else variants
        of_variants = {name: test.decide(varied) for name, varied in contexts.items()}
        decided.append(Decided(claim, test.decide(context), by_channels, of_variants))
    return tuple(decided)


# The main cells have this redundancy, too; its variant has the same runs.
_TWENTY: Final = "redundancy of 20 %"
_INSTEAD: Final = {
    LinkPath.CODED_20: LinkPath.CODED_10,
    LinkPath.TITRATED_20: LinkPath.TITRATED_10,
}


def contexts(
    described: Context,
    variants: Sequence[Variant],
    measured: Mapping[str, Measured],
    loads: Loads,
    few: int,
) -> tuple[dict[str, Context], dict[str, Context]]:
    """Return what claims about the plain link and the PEP, and about coding, are decided with.

    Both are by variant, those about coding with one redundancy. The first variant is the
    configuration as described, with as many runs as a variant has.
    """
    base = {cell: measurement.first(few) for cell, measurement in described.measured.items()}
    uncoded: dict[str, Measured] = {BASE.name: base}
    coded: dict[str, Measured] = {BASE.name: base}
    for variant in variants:
        of_variant = measured.get(variant.name, {})
        if of_variant and not variant.of_code:
            uncoded[variant.name] = of_variant
        if of_variant and set(variant.paths) & set(CODED):
            coded[variant.name] = {**base, **of_variant} if variant.of_code else of_variant
    if len(coded) > 1:
        moved = {
            replace(c, path=_INSTEAD[c.path]): m for c, m in base.items() if c.path in _INSTEAD
        }
        coded[_TWENTY] = {**base, **moved}

    def chosen(
        every: Mapping[str, Measured], channels: Sequence[int], paths: Sequence[LinkPath]
    ) -> dict[str, Context]:
        by_variant = {}
        for name, of_variant in every.items() if len(every) > 1 else ():
            some = {
                c: m for c, m in of_variant.items() if c.channels in channels and c.path in paths
            }
            if some:
                by_variant[name] = replace(described, measured=some)
        return by_variant

    all_coded = chosen(coded, loads.sweep, (*UNCODED, *ONE_CODED))
    return chosen(uncoded, loads.variants, UNCODED), all_coded
