"""The study's tables: curves, verdicts and cells as views, and claims in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

from bentpipe.results.views import Column, View
from bentpipe.studies.auckland import measure
from bentpipe.studies.auckland.cells import LARGE_KB, SMALL_KB, Cell, LinkPath
from bentpipe.studies.auckland.claims import Decided
from bentpipe.studies.auckland.measure import Measured
from bentpipe.studies.auckland.mixed import CODED_HALF, UNCODED_HALF, Share
from bentpipe.studies.auckland.verdicts import Decision, Effect, Rule, Unit, Verdict
from bentpipe.studies.base import tables
from bentpipe.studies.base.samples import Samples
from bentpipe.studies.base.tables import margin_text

# The figures of a cell beside its total goodput.
FIGURES: Final = tuple(column.name for column in tables.columns("auckland", "figures"))
# The figures of the source: queue, figure of a cell, and what it is.
PUBLISHED: Final = {
    1: (SMALL_KB, measure.TOTAL, "total goodput"),
    2: (SMALL_KB, measure.TRANSFER_GOODPUT, "goodput of the transfer"),
    3: (LARGE_KB, measure.TOTAL, "total goodput"),
    4: (LARGE_KB, measure.TRANSFER_GOODPUT, "goodput of the transfer"),
}
_DIGITS: Final[Mapping[Unit, int]] = {"%": 1, "Mbit/s": 2, "times": 2}
# More of a claim are one of each path.
_MANY_EFFECTS: Final = 8
_Key = TypeVar("_Key", int, str)


def curves_view(measured: Measured, figure: int) -> View:
    """Return a figure of the source as a table, with half of the 95 % intervals."""
    queue_kb, name, words = PUBLISHED[figure]
    # Without the space six curves fit 80 columns.
    columns = [
        Column("channels", "channels"),
        *(
            Column(path, path, text=lambda each: margin_text(each).replace(" ", ""))
            for path in LinkPath
        ),
    ]
    rows = [
        [n, *(_value(measured, Cell(n, queue_kb, path), name) for path in LinkPath)]
        for n in sorted({cell.channels for cell in measured})
    ]
    return View(f"Figure {figure}: {words} [Mbit/s], queue of {queue_kb:,} kB", columns, rows)


def _value(measured: Measured, cell: Cell, name: str) -> Samples | None:
    return measured[cell][name] if cell in measured else None


def claim_text(each: Decided) -> str:
    """Return a claim with its verdict, the effects that decide it and their seeds."""
    claim, decision = each.claim, each.decision
    effects = "; ".join(_effect_text(effect, decision.rule) for effect in shown(decision))
    return (
        f"Figure {claim.figure} ({claim.queue_kb:,} kB, {claim.metric}): {claim.text}: "
        f"{decision.verdict.value.upper()}. {_upper(decision.rule.effect)}: {effects}; "
        f"{bound_text(each)}."
    )


def shown(decision: Decision) -> tuple[Effect, ...]:
    """Return the effects, of many only the decisive one of each path."""
    if len(decision.effects) <= _MANY_EFFECTS:
        return decision.effects
    return tuple(each.decisive for each in decision.by_path().values())


def bound_text(each: Decided) -> str:
    """Return what must be so for a claim to hold."""
    rule = each.decision.rule
    text = f"it holds {'below' if rule.bound == 'below' else 'from'} {rule.value:g} {rule.unit}"
    if rule.about_to is None:
        return text
    near = [rule.is_about(effect.values) for effect in each.decision.effects]
    return f"{text}; all within {rule.value:g} to {rule.about_to:g}: {'yes' if all(near) else 'no'}"


def variants_text(each: Decided) -> str:
    """Return in which variants a claim has which verdict, by path if it is about coding."""
    parts = []
    for who, decisions in _by_path(each.variants):
        parts.append(f"{who}{_grouped(decisions, 'with')}")
    return f"With few runs: {'. '.join(parts)}."


def channels_text(each: Decided) -> str:
    """Return at which numbers of channels alone a claim has which verdict."""
    parts = []
    for who, decisions in _by_path(each.by_channels):
        parts.append(f"{who}{_grouped(decisions, 'at')}")
    return f"By the number of channels: {'. '.join(parts)}."


def _by_path(decisions: Mapping[_Key, Decision]) -> list[tuple[str, dict[_Key, Decision]]]:
    """Return decisions as a whole, or by path if their effects are of single paths."""
    by_path: dict[LinkPath, dict[_Key, Decision]] = {}
    for key, decision in decisions.items():
        for path, own in decision.by_path().items():
            by_path.setdefault(path, {})[key] = own
    if not by_path:
        return [("", dict(decisions))]
    return [(f"{path.value}: ", by_path[path]) for path in LinkPath if path in by_path]


def _grouped(decisions: Mapping[_Key, Decision], word: str) -> str:
    parts = []
    for verdict in Verdict:
        names = [str(key) for key, found in decisions.items() if found.verdict is verdict]
        if names:
            parts.append(f"{verdict.value} {word} {', '.join(names)}")
    return "; ".join(parts)


def claims_view(decided: Sequence[Decided]) -> View:
    """Return the table of claims, a row for each effect."""
    rows = []
    for each in decided:
        claim, decision = each.claim, each.decision
        rule = decision.rule
        front = [
            str(claim.figure),
            f"{claim.text} ({claim.queue_kb:,} kB, {claim.metric})",
            decision.verdict.value,
            f"{_upper(rule.effect)}. {_upper(bound_text(each))}: {rule.reason}.",
        ]
        for effect in shown(decision):
            reported = "" if effect.decides else " (reported)"
            alone = f"{rule.verdict(effect.values).value}{reported}"
            value = value_text(effect.values, rule.unit)
            seeds = len(effect.values.values)
            rows.append([*front, effect.of, alone, value, seeds, _channels_text(effect)])
    return tables.view("auckland", "claims", rows)


def channels_view(decided: Sequence[Decided], about: str) -> View:
    """Return the table of each number of channels alone."""
    title = f"The same bounds at each number of channels alone, claims about {about}: where along "
    found = [each.by_channels for each in decided]
    return _decisions(f"{title}the load each claim holds.", "channels", decided, found)


def variants_view(decided: Sequence[Decided], about: str) -> View:
    """Return the table of variants: a verdict and an effect a claim."""
    title = f"Verdict and the effect that decides it, claims about {about}."
    return _decisions(title, "instead", decided, [each.variants for each in decided])


def _decisions(
    title: str, key: str, decided: Sequence[Decided], found: Sequence[Mapping[Any, Decision]]
) -> View:
    columns = [Column(key, key)]
    for i, each in enumerate(decided, start=1):
        name = f"claim_{i}"
        columns.append(Column(name, f"figure {each.claim.figure}", each.claim.text, _decision_text))
    keys = list(found[0]) if found else []
    return View(title, columns, [[name, *(each[name] for each in found)] for name in keys])


def _decision_text(decision: Decision) -> str:
    """Return verdict and effect, for each path if the effects are of single paths."""
    by_path = decision.by_path()
    if not by_path:
        return _verdict_text(decision)
    return "; ".join(f"{path.value} {_verdict_text(own)}" for path, own in by_path.items())


def _verdict_text(decision: Decision) -> str:
    return f"{decision.verdict.value}: {value_text(decision.decisive.values, decision.rule.unit)}"


def value_text(values: Samples, unit: Unit) -> str:
    """Return an effect with its 95 % interval, in its unit."""
    return tables.change_text(values, unit, _DIGITS[unit], sign=unit != "times")


def mixed_view(shares: Sequence[Share]) -> View:
    """Return the table of cells in which half is not coded."""
    rows: list[list[Any]] = [
        [
            *(each.measurement.cell.labels.values()),
            each.measurement[CODED_HALF],
            each.coded_gain_percent,
            each.measurement[UNCODED_HALF],
            each.uncoded_gain_percent,
            len(each.measurement.runs),
        ]
        for each in shares
    ]
    return tables.view("auckland", "mixed", rows)


def _effect_text(effect: Effect, rule: Rule) -> str:
    seeds = f"{len(effect.values.values)} seeds, {_channels_text(effect)} channels"
    reported = "" if effect.decides else ", reported"
    return f"{effect.of} {value_text(effect.values, rule.unit)} ({seeds}{reported})"


def _channels_text(effect: Effect) -> str:
    channels = effect.channels
    if not channels:
        return "no"
    return f"{channels[0]}" if len(channels) == 1 else f"{channels[0]} to {channels[-1]}"


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]
