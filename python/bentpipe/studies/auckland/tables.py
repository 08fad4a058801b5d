"""The study's tables: curves and verdicts for a terminal, and the tables of the report."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Final

from rich.table import Table

from bentpipe.studies.auckland.cells import Cell
from bentpipe.studies.auckland.claims import Decided, Measured
from bentpipe.studies.auckland.measure import (
    BACKGROUND_BUSY,
    PING_MEAN,
    PING_P95,
    QUEUE_FULL,
    QUEUE_IDLE,
    SIZE_CLASSES,
    TOTAL,
    TRANSFER_GOODPUT,
    download_time,
)
from bentpipe.studies.auckland.verdicts import Decision, Effect, Verdict
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
    *((download_time(name), name, "s, median", 2) for name in SIZE_CLASSES),
)
FIGURES: Final = tuple(figure for figure, *_ in _SHOWN)


def curves_table(measured: Measured, queue_kb: int) -> Table:
    """Return goodputs over the number of channels, with half of their 95 % intervals."""
    title = f"Goodput in Mbit/s over channels, queue of {queue_kb:,} kB"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    paths = tuple(product(((TOTAL, "total"), (TRANSFER_GOODPUT, "transfer")), (False, True)))
    for heading in ("channels", *(f"{name}, {_path(pep)}" for (_, name), pep in paths)):
        table.add_column(heading, justify="right")
    for channels in sorted({cell.channels for cell in measured}):
        table.add_row(
            str(channels),
            *(
                margin_text(measured[Cell(channels, queue_kb, pep)][figure])
                for (figure, _), pep in paths
            ),
        )
    return table


def claim_text(each: Decided) -> str:
    """Return a claim with its verdict, the effects and their seeds."""
    claim, decision = each.claim, each.decision
    effects = "; ".join(_effect_text(effect) for effect in decision.effects)
    return (
        f"Figure {claim.figure} ({claim.queue_kb:,} kB, {claim.metric}): {claim.text}: "
        f"{decision.verdict.value.upper()}. {_upper(decision.rule.effect)}: {effects}; "
        f"{bound_text(each)}."
    )


def bound_text(each: Decided) -> str:
    """Return what must be so for a claim to hold."""
    rule = each.decision.rule
    return f"it holds {'below' if rule.bound == 'below' else 'from'} {rule.percent:g} %"


def variants_text(each: Decided) -> str:
    """Return in which variants a claim has which verdict."""
    parts = []
    for verdict in Verdict:
        names = [name for name, found in each.variants.items() if found.verdict is verdict]
        if names:
            parts.append(f"{verdict.value} with {', '.join(names)}")
    return f"With few runs: {'; '.join(parts)}."


def claims_rows(decided: Sequence[Decided]) -> list[list[str]]:
    """Return the rows of the table of claims: claim, verdict, effect, seeds, channels, bound."""
    return [
        [
            f"{each.claim.figure}",
            f"{each.claim.text} ({each.claim.queue_kb:,} kB, {each.claim.metric})",
            each.decision.verdict.value,
            f"{_upper(each.decision.rule.effect)}. {_upper(bound_text(each))}: "
            f"{each.decision.rule.reason}.",
            effect.of,
            percent_text(effect.percent),
            str(len(effect.percent.values)),
            _channels_text(effect),
        ]
        for each in decided
        for effect in each.decision.effects
    ]


def channels_text(each: Decided) -> str:
    """Return at which numbers of channels alone a claim has which verdict."""
    parts = []
    for verdict in Verdict:
        found = [str(n) for n, decision in each.by_channels.items() if decision.verdict is verdict]
        if found:
            parts.append(f"{verdict.value} at {', '.join(found)}")
    return f"By the number of channels: {'; '.join(parts)}."


def channels_rows(decided: Sequence[Decided]) -> tuple[list[tuple[str, str]], list[list[str]]]:
    """Return the columns and rows of the table of each number of channels alone."""
    columns = [("channels", ""), *(_heading(each) for each in decided)]
    numbers = list(decided[0].by_channels) if decided else []
    rows = [
        [str(number), *(_decision_text(each.by_channels[number]) for each in decided)]
        for number in numbers
    ]
    return columns, rows


def _heading(each: Decided) -> tuple[str, str]:
    return f"figure {each.claim.figure}", each.claim.text


def _decision_text(decision: Decision) -> str:
    return f"{decision.verdict.value}: {percent_text(decision.decisive.percent)}"


def variants_rows(decided: Sequence[Decided]) -> tuple[list[tuple[str, str]], list[list[str]]]:
    """Return the columns and rows of the table of variants: a verdict and an effect a claim."""
    columns = [("instead", ""), *(_heading(each) for each in decided)]
    names = list(decided[0].variants) if decided else []
    rows = [[name, *(_decision_text(each.variants[name]) for each in decided)] for name in names]
    return columns, rows


def percent_text(percent: Samples) -> str:
    """Return an effect in percent with its 95 % interval."""
    if percent.mean is None:
        return "no such cells"
    text = f"{number(percent.mean, 1, sign=True)} %"
    if percent.interval is None:
        return text
    return f"{text} [{interval_text(percent.interval, 1, sign=True)}]"


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


def _effect_text(effect: Effect) -> str:
    seeds = f"{len(effect.percent.values)} seeds, {_channels_text(effect)} channels"
    return f"{effect.of} {percent_text(effect.percent)} ({seeds})"


def _channels_text(effect: Effect) -> str:
    channels = effect.channels
    if not channels:
        return "no"
    return f"{channels[0]}" if len(channels) == 1 else f"{channels[0]} to {channels[-1]}"


def _path(pep: bool) -> str:
    return Cell(0, 0, pep).path


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]
