"""The study's tables and figures: curves, verdicts and cells, and claims in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from bentpipe.report import INK, PALETTE, add_legend, from_zero, log_axis, new_figure
from bentpipe.results import Column, View
from bentpipe.studies.auckland import runs
from bentpipe.studies.auckland.cells import (
    LARGE_KB,
    QUEUES_KB,
    SMALL_KB,
    TUNNELS,
    UNCODED,
    Cell,
    LinkPath,
)
from bentpipe.studies.auckland.claims import (
    Claim,
    Decided,
    Decision,
    Effect,
    Mechanism,
    Rule,
    Unit,
    Verdict,
)
from bentpipe.studies.auckland.measure import Measured, ratio
from bentpipe.studies.auckland.runs import SIZE_CLASSES, download_time
from bentpipe.studies.base import tables
from bentpipe.studies.base.comparison import Array, Samples
from bentpipe.studies.base.tables import add_figure_legend, margin_text, plot_samples

# The figures of a cell beside its total goodput.
FIGURES: Final = tuple(column.name for column in tables.columns("auckland", "figures"))
# The figures of the source: queue, figure of a cell, and what it is.
PUBLISHED: Final = {
    1: (SMALL_KB, runs.TOTAL, "total goodput"),
    2: (SMALL_KB, runs.TRANSFER_GOODPUT, "goodput of the transfer"),
    3: (LARGE_KB, runs.TOTAL, "total goodput"),
    4: (LARGE_KB, runs.TRANSFER_GOODPUT, "goodput of the transfer"),
}
_DIGITS: Final[Mapping[Unit, int]] = {"%": 1, "Mbit/s": 2, "times": 2}
# Of more effects of a claim, only the decisive one of each path is shown.
_MANY_EFFECTS: Final = 8


def curves_view(measured: Measured, figure: int) -> View:
    """Return a figure of the source as a table, with half of the 95 % intervals.

    Below a figure of the transfer is what the channels leave beside the plain one, over it.
    """
    queue_kb, name, words = PUBLISHED[figure]
    columns = [
        Column("channels", "channels"),
        *(
            Column(path, path, text=lambda samples: margin_text(samples).replace(" ", ""))
            for path in LinkPath
        ),
    ]
    by_cell = {cell: measurement[name] for cell, measurement in measured.items()}
    rows = [
        [n, *(by_cell.get(Cell(n, queue_kb, path)) for path in LinkPath)]
        for n in sorted({cell.channels for cell in measured})
    ]
    title = f"Figure {figure}: {words} [Mbit/s], queue of {queue_kb:,} kB"
    note = _left_text(measured, queue_kb) if name == runs.TRANSFER_GOODPUT else ""
    return View(title, columns, rows, note=note)


def _left_text(measured: Measured, queue_kb: int) -> str:
    """Return how many times its goodput the plain transfer would have with all that is left."""
    times = {
        cell.channels: ratio(of.by_seed(runs.TRANSFER_GOODPUT), of.by_seed(runs.LEFT)).mean
        for cell, of in measured.items()
        if (cell.queue_kb, cell.path) == (queue_kb, LinkPath.PLAIN)
    }
    texts = [f"{n}: {tables.number(mean, 1)}" for n, mean in sorted(times.items()) if mean]
    about = "What the channels leave beside the plain transfer over its goodput, times, by channels"
    return f"{about}: {', '.join(texts)}." if texts else ""


def claim_text(decided_claim: Decided) -> str:
    """Return a claim with its verdict, the effects that decide it and their seeds."""
    claim, decision = decided_claim.claim, decided_claim.decision
    effects = "; ".join(_effect_text(effect, decision.rule) for effect in shown(decision))
    return (
        f"Figure {claim.figure} ({claim.queue_kb:,} kB, {claim.metric}): {claim.text}: "
        f"{decision.verdict.value.upper()}. {_upper(decision.rule.effect)}: {effects}; "
        f"{bound_text(decided_claim)}."
    )


def shown(decision: Decision) -> tuple[Effect, ...]:
    """Return the effects, of many only the decisive one of each path."""
    if len(decision.effects) <= _MANY_EFFECTS:
        return decision.effects
    return tuple(alone.decisive for alone in decision.by_path().values())


def bound_text(decided_claim: Decided) -> str:
    """Return what must be so for a claim to hold."""
    rule = decided_claim.decision.rule
    text = f"it holds {'below' if rule.bound == 'below' else 'from'} {rule.value:g} {rule.unit}"
    if rule.about_to is None:
        return text
    near = {rule.is_about(effect.values) for effect in decided_claim.decision.effects}
    answer = "no" if False in near else "not decided" if None in near else "yes"
    return f"{text}; all within {rule.value:g} to {rule.about_to:g}: {answer}"


def verdicts_text(decisions: Mapping[Any, Decision], word: str) -> str:
    """Return where or with what a claim has which verdict, by path if it is about coding."""
    by_path = {key: decision.by_path() for key, decision in decisions.items()}
    texts = [
        f"{path.value}: {_grouped(alone, word)}"
        for path in LinkPath
        if (
            alone := {
                key: paths[path]
                for key, paths in by_path.items()
                if path in paths and paths[path].was_tried
            }
        )
    ]
    return ". ".join(texts or [_grouped(decisions, word)])


def _grouped(decisions: Mapping[Any, Decision], word: str) -> str:
    names: dict[Verdict, list[str]] = {verdict: [] for verdict in Verdict}
    for key, decision in decisions.items():
        names[decision.verdict].append(str(key))
    return "; ".join(
        f"{verdict.value} {word} {', '.join(of)}" for verdict, of in names.items() if of
    )


def mechanism_text(mechanism: Mechanism) -> str:
    """Return why a claim holds or does not, with its evidence and what would decide more."""
    measured = f" Measured: {_evidence_text(mechanism)}." if mechanism.evidence else ""
    question = f" Open: {mechanism.open}." if mechanism.open else ""
    return f"{mechanism.text}.{measured}{question}"


def _evidence_text(mechanism: Mechanism) -> str:
    headings = {column.name: column.heading for column in tables.columns("auckland", "figures")}
    return "; ".join(
        f"{cell.title}: {headings[figure]} {margin_text(values)}"
        for cell, figure, values in mechanism.evidence
    )


def mechanisms_view(decided: Sequence[Decided]) -> View:
    """Return the mechanism of each claim, with the figures that show it."""
    rows = []
    for decided_claim in decided:
        claim, mechanism = decided_claim.claim, decided_claim.mechanism
        turns = ", ".join(map(str, decided_claim.turns_at)) or "nowhere"
        verdict = decided_claim.decision.verdict.value
        told = [mechanism.text, _evidence_text(mechanism), turns, mechanism.open]
        rows.append([claim.figure, claim.text, verdict, *told])
    return tables.view("auckland", "mechanisms", rows)


def claims_view(decided: Sequence[Decided]) -> View:
    """Return the table of claims, a row for each effect."""
    rows = []
    for decided_claim in decided:
        claim, decision = decided_claim.claim, decided_claim.decision
        rule = decision.rule
        front = [
            str(claim.figure),
            f"{claim.text} ({claim.queue_kb:,} kB, {claim.metric})",
            decision.verdict.value,
            f"{_upper(rule.effect)}. {_upper(bound_text(decided_claim))}: {rule.reason}.",
        ]
        for effect in shown(decision):
            reported = "" if effect.decides else " (reported)"
            alone = f"{rule.verdict(effect.values).value}{reported}"
            value = value_text(effect.values, rule.unit)
            seeds = len(effect.values.values)
            rows.append([*front, effect.of, alone, value, seeds, _channels_text(effect)])
    return tables.view("auckland", "claims", rows)


def decisions_view(title: str, key: str, decisions: Mapping[Claim, Mapping[Any, Decision]]) -> View:
    """Return a verdict and its effect for each claim, a row for each key of its ``decisions``."""
    columns = [
        Column(key, key),
        *(
            Column(f"claim_{i}", f"figure {claim.figure}", claim.text)
            for i, claim in enumerate(decisions, start=1)
        ),
    ]
    of_claims = decisions.values()
    # As texts, which a page folds. Where a claim was not tried, there is none.
    rows = [
        [name, *(_decision_text(by_key[name]) if name in by_key else "" for by_key in of_claims)]
        for name in dict.fromkeys(name for by_key in of_claims for name in by_key)
    ]
    return View(title, columns, rows)


def _decision_text(decision: Decision) -> str:
    """Return verdict and effect, for each path if the effects are of single paths."""
    by_path = {
        f"{path.value} ": alone for path, alone in decision.by_path().items() if alone.was_tried
    }
    return "; ".join(
        f"{who}{part.verdict.value}: {value_text(part.decisive.values, part.rule.unit)}"
        for who, part in (by_path or {"": decision}).items()
    )


def value_text(values: Samples, unit: Unit) -> str:
    """Return an effect with its 95 % interval, in its unit."""
    return tables.change_text(values, unit, _DIGITS[unit], sign=unit != "times")


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


_BLUE, _ORANGE, _GREEN, _RED, _PURPLE = PALETTE[:5]
# A colour is what the gateways do; a dashed line is another setting of it.
_STYLES: Final = {
    LinkPath.PLAIN: (_BLUE, "solid", "o"),
    LinkPath.PEP: (_ORANGE, "solid", "s"),
    LinkPath.AT_ONCE: (_GREEN, "dashed", "^"),
    LinkPath.CODED: (_GREEN, "solid", "^"),
    LinkPath.TITRATED_10: (_RED, "dashed", "v"),
    LinkPath.TITRATED_20: (_RED, "solid", "v"),
    LinkPath.ON_OVERFLOW: (_PURPLE, "solid", "D"),
}
# Those over both queues, by name: figures of cells with labels, the curves, whether y is from zero.
_GRIDS: Final[Mapping[str, tuple[tuple[tuple[str, str], ...], Iterable[LinkPath], bool]]] = {
    "idle_figure": (((runs.QUEUE_IDLE, "Queue empty [% of the time]"),), LinkPath, True),
    "full_figure": (((runs.QUEUE_FULL, "Queue full [% of the time]"),), LinkPath, True),
    "ping_figure": (
        (
            (runs.PING_MEAN, "RTT, mean [ms]"),
            (runs.PING_P95, "RTT, 95 % [ms]"),
            (runs.PING_MAX, "RTT, maximum [ms]"),
        ),
        LinkPath,
        False,
    ),
    "loss_figure": (
        (
            (runs.LOSS_BEFORE, "Loss [%]"),
            (runs.LOSS_AFTER, "Loss after decoding [%]"),
            (runs.REPAIR_SHARE, "Repair [% of bytes]"),
        ),
        TUNNELS,
        True,
    ),
}
# Of direct labels, in parts of the height of the axes: the least distance between two.
_LABEL_STEP: Final = 0.09
# The part of the width that labels take on the right.
_LABEL_ROOM: Final = 0.38


def figures(
    measured: Measured, traces: Mapping[Cell, tuple[Array, Array]]
) -> dict[str, Figure | None]:
    """Return the figures by name; None for those without cells."""
    paths = {cell.path for cell in measured}
    return {
        "figures": _published_figures(measured),
        **{
            name: _grid(measured, *of_grid) if paths.intersection(of_grid[1]) else None
            for name, of_grid in _GRIDS.items()
        },
        "download_figure": _download_figure(measured),
        "trace_figure": _trace_figure(traces),
    }


def _published_figures(measured: Measured) -> Figure:
    """Draw figures 1 to 4 of the source: goodput over channels."""
    figure, panels = new_figure(2, 2, height_in=6.4)
    for axes, (number, (queue_kb, name, words)) in zip(panels, PUBLISHED.items(), strict=True):
        _curves(axes, measured, queue_kb, name, LinkPath)
        _title(axes, f"Figure {number}: queue of {queue_kb:,} kB")
        axes.set_ylabel(f"{_upper(words)} [Mbit/s]")
        from_zero(axes)
    last = max(1, *(cell.channels for cell in measured))
    left = -0.03 * last
    ticks = [tick for tick in panels[0].get_xticks() if 0 <= tick <= last]
    panels[0].set_xticks(ticks)
    panels[0].set_xlim(left, last + (last - left) * _LABEL_ROOM / (1 - _LABEL_ROOM))
    for axes in panels:
        _label_directly(axes)
    for axes in panels[-2:]:
        axes.set_xlabel("Channels")
    return figure


def _grid(
    measured: Measured, shown: Sequence[tuple[str, str]], paths: Iterable[LinkPath], from_0: bool
) -> Figure:
    """Draw figures of cells over channels, a row for each and a panel for each queue."""
    figure, panels = new_figure(len(shown), 2, height_in=3.0 if len(shown) == 1 else 6.6)
    for axes, ((name, label), queue_kb) in zip(panels, product(shown, QUEUES_KB), strict=True):
        _curves(axes, measured, queue_kb, name, paths)
        _title(axes, f"queue of {queue_kb:,} kB")
        axes.set(xlabel="Channels", ylabel=label)
        axes.label_outer()
        if from_0:
            from_zero(axes)
    add_figure_legend(figure, panels[0], columns=6)
    return figure


def _download_figure(measured: Measured) -> Figure:
    """Draw the median time of downloads over their size, for two numbers of channels."""
    every = sorted({cell.channels for cell in measured} - {0})
    chosen = [every[len(every) // 2], every[-1]] if every else [0, 0]
    figure, panels = new_figure(2, 2, height_in=6.0)
    x = list(range(len(SIZE_CLASSES)))
    for axes, (queue_kb, channels) in zip(panels, product(QUEUES_KB, chosen), strict=True):
        for path in LinkPath:
            measurement = measured.get(Cell(channels, queue_kb, path))
            if measurement is not None:
                samples = [measurement[download_time(name)] for name in SIZE_CLASSES]
                plot_samples(axes, x, samples, label=path.value, **_style(path))
        _title(axes, f"queue of {queue_kb:,} kB, {channels} channels")
        axes.set(xlabel="Size of the download", ylabel="Median time [s]")
        axes.label_outer()
    # Without a download there is nothing that a logarithmic scale could begin at.
    if any(np.isfinite(_points(line)[1]).any() for axes in panels for line in axes.lines):
        log_axis(panels[0].yaxis)
    for axes in panels[-2:]:
        axes.set_xticks(x, ["\n".join(name.rsplit(" ", 1)) for name in SIZE_CLASSES])
    add_figure_legend(figure, panels[0], columns=6)
    return figure


def _trace_figure(traces: Mapping[Cell, tuple[Array, Array]]) -> Figure | None:
    """Draw the queue over time in one run of each cell; None without a run."""
    numbers = sorted({cell.channels for cell in traces})
    if not numbers:
        return None
    figure, panels = new_figure(len(numbers), 2, height_in=0.8 + 1.7 * len(numbers))
    for axes, (channels, queue_kb) in zip(panels, product(numbers, QUEUES_KB), strict=True):
        for path in UNCODED:
            trace = traces.get(Cell(channels, queue_kb, path))
            if trace is not None:
                time_s, waiting_kb = trace
                style: dict[str, Any] = {"color": _STYLES[path][0], "linewidth": 0.7, "alpha": 0.8}
                axes.plot(time_s, 100 * waiting_kb / queue_kb, label=path.value, **style)
        _title(axes, f"{queue_kb:,} kB, {channels} channels")
        axes.set(xlabel="Time [s]", ylabel="Queue [% of its limit]", ylim=(0, 105))
        axes.label_outer()
    add_legend(panels[0])
    return figure


def _curves(
    axes: Axes, measured: Measured, queue_kb: int, figure: str, paths: Iterable[LinkPath]
) -> None:
    every = sorted({cell.channels for cell in measured})
    for path in paths:
        channels = [n for n in every if Cell(n, queue_kb, path) in measured]
        samples = [measured[Cell(n, queue_kb, path)][figure] for n in channels]
        if channels:
            plot_samples(axes, channels, samples, label=path.value, **_style(path))


def _style(path: LinkPath) -> dict[str, Any]:
    colour, line, marker = _STYLES[path]
    return {"color": colour, "linestyle": line, "marker": marker, "markersize": 3.5}


def _points(line: Line2D) -> tuple[Array, Array]:
    x, y = (np.asarray(data, dtype=float) for data in (line.get_xdata(), line.get_ydata()))
    return x, y


def _label_directly(axes: Axes) -> None:
    """Write the name of each curve at its right end, apart from the others."""
    ends = []
    low, high = axes.get_ylim()
    for line in axes.lines:
        x, y = _points(line)
        shown = np.flatnonzero(np.isfinite(y))
        if shown.size:
            ends.append(((y[shown[-1]] - low) / (high - low), x[shown[-1]], line))
    ends.sort(key=lambda end: end[0])
    # From below each label keeps its distance, then all go down if the highest is too high.
    places: list[float] = []
    for wanted, _, _ in ends:
        places.append(max(wanted, places[-1] + _LABEL_STEP) if places else wanted)
    top = 1.0
    for number in reversed(range(len(places))):
        places[number] = min(places[number], top)
        top = places[number] - _LABEL_STEP
    for place, (wanted, x, line) in zip(places, ends, strict=True):
        axes.annotate(
            str(line.get_label()),
            xy=(x, wanted),
            xytext=(1 - _LABEL_ROOM + 0.05, place),
            xycoords=("data", "axes fraction"),
            textcoords="axes fraction",
            va="center",
            fontsize=9,
            color=line.get_color(),
            arrowprops={"arrowstyle": "-", "color": line.get_color(), "linewidth": 0.5},
        )


def _title(axes: Axes, text: str) -> None:
    axes.set_title(text, loc="right", fontsize=9, color=INK)
