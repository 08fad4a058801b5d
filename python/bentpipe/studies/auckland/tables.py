"""The study's tables: curves and verdicts for a terminal, and the tables of the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeVar

from rich.table import Table

from bentpipe.studies.auckland.cells import LARGE_KB, SMALL_KB, Cell, LinkPath
from bentpipe.studies.auckland.claims import Decided
from bentpipe.studies.auckland.effects import Measured
from bentpipe.studies.auckland.measure import (
    BACKGROUND_BUSY,
    LOSS_AFTER,
    LOSS_BEFORE,
    ORDER_WAIT,
    PING_MAX,
    PING_MEAN,
    PING_P95,
    QUEUE_FULL,
    QUEUE_IDLE,
    REPAIR_SHARE,
    SIZE_CLASSES,
    TOTAL,
    TRANSFER_GOODPUT,
    download_time,
)
from bentpipe.studies.auckland.mixed import CODED_HALF, UNCODED_HALF, Share
from bentpipe.studies.auckland.verdicts import Decision, Effect, Rule, Unit, Verdict
from bentpipe.studies.base import tables
from bentpipe.studies.base.comparison import Row
from bentpipe.studies.base.samples import Samples
from bentpipe.studies.base.tables import Column, interval_text, margin_text, number

# Each figure of a cell with its heading, its unit and its decimals; the first is `simulated`.
_SHOWN: Final = (
    (TRANSFER_GOODPUT, "transfer", "Mbit/s", 2),
    (BACKGROUND_BUSY, "link busy", "%, channels alone", 1),
    (QUEUE_IDLE, "queue empty", "% of the time", 1),
    (QUEUE_FULL, "queue full", "% of the time", 2),
    (PING_MEAN, "ping", "ms, mean", 0),
    (PING_P95, "ping", "ms, 95 %", 0),
    (PING_MAX, "ping", "ms, maximum", 0),
    (LOSS_BEFORE, "loss", "% of coded packets", 2),
    (LOSS_AFTER, "loss after decoding", "% of coded packets", 2),
    (REPAIR_SHARE, "repair", "% of IP bytes", 1),
    (ORDER_WAIT, "wait for order", "ms, mean", 0),
    *((download_time(name), name, "s, median", 2) for name in SIZE_CLASSES),
)
FIGURES: Final = tuple(figure for figure, *_ in _SHOWN)
# The figures of the source: queue, figure of a cell, and what it is.
PUBLISHED: Final = {
    1: (SMALL_KB, TOTAL, "total goodput"),
    2: (SMALL_KB, TRANSFER_GOODPUT, "goodput of the transfer"),
    3: (LARGE_KB, TOTAL, "total goodput"),
    4: (LARGE_KB, TRANSFER_GOODPUT, "goodput of the transfer"),
}
_DIGITS: Final[Mapping[Unit, int]] = {"%": 1, "Mbit/s": 2, "times": 2}
# More of a claim are one of each path.
_MANY_EFFECTS: Final = 8
_Key = TypeVar("_Key")
Rows = tuple[list[tuple[str, str]], list[list[str]]]


def curves_table(measured: Measured, figure: int) -> Table:
    """Return a figure of the source as a table, with half of the 95 % intervals."""
    queue_kb, name, words = PUBLISHED[figure]
    title = f"Figure {figure}: {words} [Mbit/s], queue of {queue_kb:,} kB"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for heading in ("channels", *LinkPath):
        table.add_column(heading, justify="right")
    for channels in sorted({cell.channels for cell in measured}):
        cells = (Cell(channels, queue_kb, path) for path in LinkPath)
        # Without the space six curves fit 80 columns.
        texts = (
            margin_text(measured[cell][name]).replace(" ", "") if cell in measured else ""
            for cell in cells
        )
        table.add_row(str(channels), *texts)
    return table


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


def claims_rows(decided: Sequence[Decided]) -> list[list[str]]:
    """Return the rows of the table of claims, one for each effect.

    The first one has the claim, its verdict and the bound; all have what the effect is of, its
    verdict alone, value, seeds and channels.
    """
    rows = []
    for each in decided:
        claim, decision = each.claim, each.decision
        front = [
            f"{claim.figure}",
            f"{claim.text} ({claim.queue_kb:,} kB, {claim.metric})",
            decision.verdict.value,
            f"{_upper(decision.rule.effect)}. {_upper(bound_text(each))}: {decision.rule.reason}.",
        ]
        for effect in shown(decision):
            reported = "" if effect.decides else " (reported)"
            alone = f"{decision.rule.verdict(effect.values).value}{reported}"
            value = value_text(effect.values, decision.rule.unit)
            seeds = str(len(effect.values.values))
            rows.append([*front, effect.of, alone, value, seeds, _channels_text(effect)])
            front = [""] * len(front)
    return rows


def channels_rows(decided: Sequence[Decided]) -> Rows:
    """Return the columns and rows of the table of each number of channels alone."""
    columns = [("channels", ""), *(_heading(each) for each in decided)]
    numbers = list(decided[0].by_channels) if decided else []
    rows = [
        [str(number), *(_decision_text(each.by_channels[number]) for each in decided)]
        for number in numbers
    ]
    return columns, rows


def variants_rows(decided: Sequence[Decided]) -> Rows:
    """Return the columns and rows of the table of variants: a verdict and an effect a claim."""
    columns = [("instead", ""), *(_heading(each) for each in decided)]
    names = list(decided[0].variants) if decided else []
    rows = [[name, *(_decision_text(each.variants[name]) for each in decided)] for name in names]
    return columns, rows


def _heading(each: Decided) -> tuple[str, str]:
    return f"figure {each.claim.figure}", each.claim.text


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
    if values.mean is None:
        return "no such cells"
    digits, sign = _DIGITS[unit], unit != "times"
    text = f"{number(values.mean, digits, sign=sign)} {unit}"
    if values.interval is None:
        return text
    return f"{text} [{interval_text(values.interval, digits, sign=sign)}]"


def mixed_rows(shares: Sequence[Share]) -> Rows:
    """Return the columns and rows of the table of cells in which half is not coded."""
    columns = [
        ("queue", "kB"),
        ("path", "of the first half"),
        ("channels", ""),
        ("first half", "Mbit/s"),
        ("change", "from plain"),
        ("second half", "Mbit/s, never coded"),
        ("change", "from plain"),
        ("runs", ""),
    ]
    rows = [
        [
            f"{each.measurement.cell.queue_kb:,}",
            each.measurement.cell.path.value,
            str(each.measurement.cell.channels),
            margin_text(each.measurement[CODED_HALF]),
            value_text(each.coded_gain_percent, "%"),
            margin_text(each.measurement[UNCODED_HALF]),
            value_text(each.uncoded_gain_percent, "%"),
            str(len(each.measurement.runs)),
        ]
        for each in shares
    ]
    return columns, rows


def columns() -> tuple[Column, ...]:
    """Return the columns of the table of all cells."""
    return (
        tables.label("queue_kB", "queue", "kB"),
        tables.label("path", "path"),
        tables.label("channels", "channels"),
        Column(heading="total", unit="Mbit/s", text=lambda row: margin_text(row.simulated)),
        *(_column(*shown) for shown in _SHOWN),
        tables.RUNS,
    )


def _column(figure: str, heading: str, unit: str, digits: int) -> Column:
    def text(row: Row) -> str:
        found = row.more[figure]
        assert isinstance(found, Samples)
        return margin_text(found, digits)

    return Column(heading=heading, unit=unit, text=text)


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
