"""A comparison of settings: for a terminal, and as a report with distributions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from string import ascii_uppercase
from typing import TYPE_CHECKING, Any, Final

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from bentpipe import _core
from bentpipe.comparison.differences import POWER, Array, Comparison, Difference
from bentpipe.quantities import quantity
from bentpipe.report.html import Exports, environment, write_report
from bentpipe.report.style import MUTED, PALETTE, STYLE, add_legend
from bentpipe.results.charts import distribution, with_unit
from bentpipe.results.confidence import CONFIDENCE
from bentpipe.results.views import Cell, Column, View
from bentpipe.sweeps.tables import text_of
from bentpipe.text import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_FIGURE_IN: Final = (7.3, 2.4)
# Up to these values, as many decimals: two digits count.
_DECIMALS: Final = ((1, 2), (10, 1))
_PAIR: Final = 2
# In characters, of the name of a line.
_LINE_MAX: Final = 30
# Of entries of traffic, in a note.
_MAX_NAMES: Final = 5
# Of scenarios that have little in common.
_MAX_CHANGED: Final = 40
_NO_INTERVAL: Final = (
    "The difference may be chance. To get an interval, compare scenarios, which are simulated with "
    "30 seeds each (bentpipe compare A.yaml B.yaml), or sweeps with 5 seeds or more."
)
_KINDS: Final = {
    True: "Difference shown: the 95 % interval excludes zero",
    False: "No difference shown: the 95 % interval contains zero",
    None: "No interval",
}
_EXACT: Final = {True: "Equal in every run", False: "The same difference with every seed"}


def comparison_tables(comparison: Comparison) -> list[View | str]:
    """Return the lines and tables of a comparison for a terminal."""
    views = [*setting_views(comparison), *difference_views(comparison)]
    return [*_settings(comparison), *views, "", *comparison_notes(comparison)]


def setting_views(comparison: Comparison) -> list[View]:
    """Return what differs between the scenarios, and each metric by setting if there are several.

    The tables of differences have the means of two settings already.
    """
    names = _names(comparison)
    views = []
    if comparison.changed:
        columns = [Column("field", "field"), *(Column(f"value_{n}", n) for n in names.values())]
        rows = [
            [path, *(None if value is None else text_of(value) for value in values)]
            for path, values in comparison.changed.items()
        ]
        title = "Changed settings: what the scenarios have, or - for a default"
        more = f"{len(rows) - _MAX_CHANGED} more: --json" if len(rows) > _MAX_CHANGED else ""
        views.append(View(title, columns, rows[:_MAX_CHANGED], more=more))
    if len(names) > _PAIR:
        views.append(_metrics_view(comparison, names))
    return views


def _metrics_view(comparison: Comparison, names: dict[str, str]) -> View:
    """Return the means of each metric by setting, with the differences that are shown."""
    first = comparison.labels[0]
    shown = {
        (difference.metric, *difference.cell.values(), difference.setting): difference.estimate
        for difference in comparison.differences
        if difference.estimate.shown and difference.estimate.first.mean
    }
    varied = list(comparison.metrics[0].cell)
    rows = []
    for means in comparison.metrics:
        text, where = quantity(means.metric.unit_column).text, (means.metric, *means.cell.values())
        row: list[Any] = [*means.cell.values(), means.metric.title]
        for label, summary in means.settings.items():
            change = ""
            if (estimate := shown.get((*where, label))) is not None:
                percent = 100 * estimate.difference / abs(estimate.first.mean)
                change = f" ({_rounded(percent, percent)} %)"
            mean = None if summary is None else summary.mean
            row.append(None if mean is None else Cell(mean, f"{text(mean)}{change}"))
        rows.append(row)
    columns = [
        *(Column(name, name) for name in varied),
        Column("metric", "metric"),
        *(Column(f"mean_{name}", name, "mean") for name in names.values()),
    ]
    title = (
        f"Each metric by setting; in brackets the difference from {names[first]}, where its 95 % "
        "interval excludes zero"
    )
    return View(title, columns, rows, key=len(varied) + 1, group=len(varied))


def difference_views(comparison: Comparison, setting: str | None = None) -> list[View]:
    """Return the tables of a comparison, those of each setting (or one) after the other.

    Differences that are shown are in another table than those that are not; differences of 0 in
    every run are in none.
    """
    names = _names(comparison)
    different = [difference for difference in comparison.differences if not difference.equal]
    groups = (
        (title, [e for e in different if e.setting == label and e.estimate.shown is shown])
        for label in (comparison.labels[1:] if setting is None else [setting])
        for shown, title in _KINDS.items()
    )
    return [_view(title, rows, names) for title, rows in groups if rows]


def comparison_notes(comparison: Comparison) -> list[str]:
    """Return what to know about the figures: missing values, seeds, and many metrics."""
    names = _names(comparison)
    differences = comparison.differences
    notes = [_pairing(differences), *_unmatched(comparison, names)]
    notes += _unfinished(comparison, names)
    without = [difference for difference in differences if difference.estimate.shown is None]
    if without:
        notes.append(f"{without[0].verdict.capitalize()}. {_NO_INTERVAL}")
    exact = [difference for difference in differences if difference.estimate.exact]
    for is_equal, text in _EXACT.items():
        if titles := [
            _title(difference, names) for difference in exact if difference.equal is is_equal
        ]:
            notes.append(f"{text}: {'; '.join(titles)}.")
    notes += [
        f"{_title(difference, names)}: {difference.missing} of the runs have no value, such as a "
        "transfer that did not end, and are left out."
        for difference in differences
        if difference.missing
    ]
    # How many more seeds would show a difference, for metrics that show none.
    seeds = [
        f"{_title(difference, names)}: {difference.more_seeds or 'no'} more"
        for difference in differences
        if difference.estimate.shown is False
        and not difference.estimate.exact
        and difference.more_seeds is not None
    ]
    if seeds:
        notes.append(
            f"Seeds that would show a difference of {100 * comparison.sought:.3g} % of A, if there "
            f"is one ({100 * POWER:.0f} % of the time): {'; '.join(seeds)}."
        )
    # Other seeds would move the ends of these intervals.
    estimates = (difference.estimate for difference in differences)
    tested = sum(estimate.shown is not None and not estimate.exact for estimate in estimates)
    if tested > 1:
        expected = tested * (1 - CONFIDENCE)
        notes.append(
            f"{tested} intervals: one in 20 misses the true difference, so about "
            f"{expected:.1f} of them show a difference that is none."
        )
    return notes


def _unfinished(comparison: Comparison, names: dict[str, str]) -> Iterator[str]:
    """Yield how many transfers of each entry have no completion time, by setting."""
    entries = dict.fromkeys(chain.from_iterable(comparison.unfinished.values()))
    texts = []
    for entry in entries:
        counts = [
            f"{of_setting[entry][0]:,} of {of_setting[entry][1]:,} in {names[label]}"
            for label, of_setting in comparison.unfinished.items()
            if entry in of_setting
        ]
        texts.append(f"{entry}: {', '.join(counts)}")
    if texts:
        others = " and others" if texts[_MAX_NAMES:] else ""
        yield (
            "Transfers that had not ended with the run, and so have no completion time: "
            f"{'; '.join(texts[:_MAX_NAMES])}{others}. A longer duration lets them end."
        )


def _unmatched(comparison: Comparison, names: dict[str, str]) -> Iterator[str]:
    """Yield which flows of two settings cannot be compared, and what to do."""
    first = names[comparison.labels[0]]
    for label, entries in comparison.unmatched.items():
        texts = [
            f"{', '.join(unmatched[:_MAX_NAMES])}{' and others' if unmatched[_MAX_NAMES:] else ''} "
            f"{'has' if len(unmatched) == 1 else 'have'} no counterpart in {other}"
            for unmatched, other in zip(entries, (names[label], first), strict=True)
            if unmatched
        ]
        yield (
            f"Not compared: {', '.join(texts)}. Flows are compared by the name of their entry of "
            "traffic: give those that belong together the same name."
        )


def comparison_report(comparison: Comparison, exports: Exports | None = None) -> str:
    """Return the report as HTML; the same comparison gives identical bytes.

    Its figures are added to ``exports``, and linked.
    """
    names, legend = _names(comparison), _legend(comparison)
    sections = []
    for setting in comparison.labels[1:]:
        differences = [
            difference for difference in comparison.differences if difference.setting == setting
        ]
        figures = [
            {
                "drawing": _distributions(difference, names, *legend),
                "name": _figure_name(difference, names),
                "caption": f"{_title(difference, names)}: {difference.verdict}.",
            }
            for difference in differences
            if not difference.equal
        ]
        views = difference_views(comparison, setting)
        sections.append({"title": setting, "views": views, "figures": figures})
    template = environment().get_template("compared.html.j2")
    return template.render(
        title="Comparison",
        facts=f"bentpipe {_core.version()}",
        settings=_settings(comparison),
        setting_views=setting_views(comparison),
        notes=comparison_notes(comparison),
        sections=sections,
        exports=exports,
    )


def write_comparison(comparison: Comparison, path: str | Path) -> Path:
    """Write the report of a comparison as one HTML file, with figures beside it; return its path.

    Raises:
        UsageError: the file cannot be written: see `write_report`.
    """
    return write_report(path, partial(comparison_report, comparison))


def _settings(comparison: Comparison) -> list[str]:
    return [
        f"{name}: {label}, {counted(runs, 'run')}"
        for (label, name), runs in zip(_names(comparison).items(), comparison.runs, strict=True)
    ]


def _names(comparison: Comparison) -> dict[str, str]:
    """Return a short name for each setting: A, B, and so on."""
    letters = [*ascii_uppercase, *(f"S{i}" for i in range(27, len(comparison.labels) + 1))]
    return dict(zip(comparison.labels, letters, strict=False))


def _legend(comparison: Comparison) -> tuple[str | None, dict[str, str]]:
    """Return the only field that differs, if it is one, and a name for each line by its setting."""
    names, title = _names(comparison), None
    # Of files and folders, the last part says most.
    texts = [label.rpartition("/")[2] for label in names]
    if len(comparison.changed) == 1:
        ((title, values),) = comparison.changed.items()
        texts = ["default" if value is None else text_of(value) for value in values]
    short = (text if len(text) <= _LINE_MAX else f"{text[:_LINE_MAX]}..." for text in texts)
    lines = (f"{name}: {text}" for name, text in zip(names.values(), short, strict=True))
    return title, dict(zip(names, lines, strict=True))


def _figure_name(difference: Difference, names: dict[str, str]) -> str:
    """Return the metric, then what tells its figures apart: the cell, and one of many settings."""
    setting = [names[difference.setting]] if len(names) > _PAIR else []
    return " ".join([str(difference.metric), *map(text_of, difference.cell.values()), *setting])


def _pairing(differences: Sequence[Difference]) -> str:
    paired = [difference.estimate.paired for difference in differences]
    effects = {True: "Effect size: Cohen's d_z", False: "Effect size: Hedges' g"}
    if all(paired):
        return f"Pairs of runs with the same seed. {effects[True]}."
    if not any(paired):
        return f"Not paired: the runs have no five seeds in common. {effects[False]}."
    return f"Paired by seed where there are five pairs. {effects[True]}; not paired: Hedges' g."


def _title(difference: Difference, names: dict[str, str]) -> str:
    cell = "".join(f"{name}={value}, " for name, value in difference.cell.items())
    setting = f"{names[difference.setting]}, " if len(names) > _PAIR else ""
    return f"{setting}{cell}{difference.metric.title}"


def _view(title: str, differences: Sequence[Difference], names: dict[str, str]) -> View:
    first, second = names[differences[0].baseline], names[differences[0].setting]
    varied = list(differences[0].cell)
    paired = all(difference.estimate.paired for difference in differences)
    columns = [
        *(Column(name, name) for name in varied),
        Column("metric", "metric"),
        Column("baseline_mean", first, "mean"),
        Column("setting_mean", second, "mean"),
        Column("difference", f"{second} - {first}", f"% of {first}"),
        Column("effect_size", "d_z" if paired else "g", text="{:.2f}".format),
    ]
    rows = [
        [
            *difference.cell.values(),
            difference.metric.title,
            *(Cell(mean, text(mean)) for mean in (estimate.first.mean, estimate.second.mean)),
            Cell(estimate.difference, _difference(difference)),
            estimate.effect,
        ]
        for difference in differences
        for estimate, text in [(difference.estimate, quantity(difference.metric.unit_column).text)]
    ]
    return View(title, columns, rows, key=len(varied) + 1, group=len(varied))


def _difference(difference: Difference) -> str:
    """Return a difference with its interval in percent of the baseline; absolute if that is 0."""
    estimate = difference.estimate
    unit, size = quantity(difference.metric.unit_column).scale(estimate.difference)
    end = " points" if unit == "%" else f" {unit}".rstrip()
    if estimate.first.mean:
        end, size = "", abs(estimate.first.mean) / 100
    values = [estimate.difference]
    if estimate.interval is not None:
        values += [estimate.interval.low, estimate.interval.high]
    largest = max(abs(value / size) for value in values)
    texts = [_rounded(value / size, largest) for value in values]
    interval = f" ({texts[1]} to {texts[2]})" if texts[1:] else ""
    return f"{texts[0]}{interval}{end}"


def _rounded(value: float, largest: float) -> str:
    """Return a value with its sign, and two digits of the largest one beside it."""
    decimals = next((digits for limit, digits in _DECIMALS if abs(largest) < limit), 0)
    return f"{value:+,.{decimals}f}"


def _distributions(
    difference: Difference, names: dict[str, str], title: str | None, lines: dict[str, str]
) -> Figure:
    """Draw the distribution functions of both settings, and that of the differences of pairs.

    The legend has a title, and a name for each line.
    """
    metric = difference.metric
    unit, size = quantity(metric.unit_column).scale(
        max(np.abs(values).max() for values in difference.values)
    )
    label = with_unit(metric.title, unit)
    first, second = names[difference.baseline], names[difference.setting]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=_FIGURE_IN, layout="constrained")
        left, *right = figure.subplots(
            1, 2 if difference.estimate.paired else 1, squeeze=False
        ).flat
    both = (lines[difference.baseline], lines[difference.setting])
    for name, colour, values in zip(both, PALETTE, difference.values, strict=False):
        _steps(left, values / size, colour, name)
    add_legend(left, title)
    left.set_xlabel(label)
    left.set_ylabel("Share of runs")
    for axes in right:
        differences = (difference.values[1] - difference.values[0]) / size
        _steps(axes, differences, PALETTE[2], f"{second} - {first}, pair by pair")
        axes.axvline(0, color=MUTED, linewidth=0.8)
        if (interval := difference.estimate.interval) is not None:
            low, high = interval.low / size, interval.high / size
            text = "95 % interval of the mean"
            axes.axvspan(low, high, color=PALETTE[2], alpha=0.2, linewidth=0, label=text)
        add_legend(axes)
        axes.set_xlabel(with_unit("Difference", unit))
    return figure


def _steps(axes: Axes, values: Array, colour: str, name: str) -> None:
    axes.plot(*distribution(values), color=colour, label=name)
    axes.set_ylim(0, 1.02)
