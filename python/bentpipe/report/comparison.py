"""A comparison of settings: for a terminal, and as a report with distributions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from string import ascii_uppercase
from typing import TYPE_CHECKING, Final

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from bentpipe import _core
from bentpipe.comparison.differences import Comparison, Difference
from bentpipe.comparison.statistics import POWER, Array
from bentpipe.quantities import quantity
from bentpipe.report.export import Exports, write_report
from bentpipe.report.html import environment
from bentpipe.report.style import MUTED, PALETTE, STYLE, add_legend
from bentpipe.report.terminal import Fitted
from bentpipe.results.confidence import CONFIDENCE
from bentpipe.results.text_table import TextTable
from bentpipe.text import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from rich.console import RenderableType

_FIGURE_IN: Final = (8.6, 2.4)
# Up to these values, as many decimals: two digits count.
_DECIMALS: Final = ((1, 2), (10, 1))
_NO_INTERVAL: Final = (
    "The difference may be chance. To get an interval, compare scenarios, which are simulated with "
    "30 seeds each (bentpipe compare A.yaml B.yaml), or sweeps with 5 seeds or more."
)
_KINDS: Final = {
    True: "Difference shown: the 95 % interval excludes zero",
    False: "No difference shown: the 95 % interval contains zero",
    None: "No interval",
}


def comparison_tables(comparison: Comparison) -> list[RenderableType]:
    """Return the lines and tables of a comparison for a terminal."""
    names = _names(comparison)
    lines: list[RenderableType] = [
        f"{names[label]}: {label}, {counted(runs, 'run')}"
        for label, runs in zip(comparison.labels, comparison.runs, strict=True)
    ]
    lines += [Fitted(table) for table in difference_tables(comparison)]
    return [*lines, "", *comparison_notes(comparison)]


def difference_tables(comparison: Comparison) -> list[TextTable]:
    """Return the tables of a comparison, those of each setting after the other."""
    names = _names(comparison)
    return [
        table
        for setting in comparison.labels[1:]
        for table in _tables(
            [each for each in comparison.differences if each.setting == setting], names
        )
    ]


def comparison_notes(comparison: Comparison) -> list[str]:
    """Return what to know about the figures: missing values, seeds, and many metrics."""
    names = _names(comparison)
    found = comparison.differences
    notes = [_pairing(found)]
    without = [each for each in found if each.estimate.shown is None]
    if without:
        notes.append(f"{without[0].verdict.capitalize()}. {_NO_INTERVAL}")
    equal = [_title(each, names) for each in found if each.equal]
    if equal:
        notes.append(f"Equal in every run: {'; '.join(equal)}.")
    exact = [_title(each, names) for each in found if each.estimate.exact and not each.equal]
    if exact:
        notes.append(f"The same difference with every seed: {'; '.join(exact)}.")
    missing = [each for each in found if each.missing]
    notes += [
        f"{_title(each, names)}: {each.missing} of the runs have no value, such as a transfer that "
        "did not end, and are left out."
        for each in missing
    ]
    notes += _seeds(comparison, names)
    tested = sum(_is_uncertain(each) for each in found)
    if tested > 1:
        expected = tested * (1 - CONFIDENCE)
        notes.append(
            f"{tested} intervals: one in 20 misses the true difference, so about "
            f"{expected:.1f} of them show a difference that is none."
        )
    return notes


def comparison_report(comparison: Comparison, exports: Exports | None = None) -> str:
    """Return the report as HTML; the same comparison gives identical bytes.

    Its figures are added to ``exports``, and linked.
    """
    names = _names(comparison)
    sections = []
    for setting in comparison.labels[1:]:
        own = [each for each in comparison.differences if each.setting == setting]
        figures = [
            {
                "drawing": _distributions(each, names),
                "name": f"{setting} {i}",
                "caption": f"{_title(each, names)}: {each.verdict}.",
            }
            for i, each in enumerate(own)
            if not each.equal
        ]
        sections.append({"title": setting, "tables": _tables(own, names), "figures": figures})
    return (
        environment()
        .get_template("compared.html.j2")
        .render(
            title="Comparison",
            facts=f"bentpipe {_core.version()}",
            settings=[
                f"{names[label]}: {label}, {counted(runs, 'run')}"
                for label, runs in zip(comparison.labels, comparison.runs, strict=True)
            ],
            notes=comparison_notes(comparison),
            sections=sections,
            exports=exports,
        )
    )


def write_comparison(comparison: Comparison, path: str | Path) -> Path:
    """Write the report of a comparison as one HTML file, with figures beside it; return its path.

    Raises:
        UsageError: the file cannot be written: see `write_report`.
    """
    return write_report(path, partial(comparison_report, comparison))


def _names(comparison: Comparison) -> dict[str, str]:
    """Return a short name for each setting: A, B, and so on."""
    letters = [
        ascii_uppercase[i] if i < len(ascii_uppercase) else f"S{i + 1}"
        for i in range(len(comparison.labels))
    ]
    return dict(zip(comparison.labels, letters, strict=True))


def _is_uncertain(each: Difference) -> bool:
    """Return whether a difference has an interval that another set of seeds would move."""
    interval = each.estimate.interval
    return interval is not None and interval.low < interval.high


def _pairing(found: Sequence[Difference]) -> str:
    paired = [each.estimate.paired for each in found]
    effects = {True: "Effect size: Cohen's d_z", False: "Effect size: Hedges' g"}
    if all(paired):
        return f"Pairs of runs with the same seed. {effects[True]}."
    if not any(paired):
        return f"Not paired: the runs have no five seeds in common. {effects[False]}."
    return f"Paired by seed where there are five pairs. {effects[True]}; not paired: Hedges' g."


def _seeds(comparison: Comparison, names: dict[str, str]) -> list[str]:
    """Return how many more seeds would show a difference, for metrics that show none."""
    wanted = [
        f"{_title(each, names)}: {each.more_seeds or 'no'} more"
        for each in comparison.differences
        if each.estimate.shown is False and _is_uncertain(each) and each.more_seeds is not None
    ]
    if not wanted:
        return []
    return [
        f"Seeds that would show a difference of {100 * comparison.sought:.3g} % of A, if there is "
        f"one ({100 * POWER:.0f} % of the time): {'; '.join(wanted)}."
    ]


def _title(each: Difference, names: dict[str, str]) -> str:
    cell = "".join(f"{name}={value}, " for name, value in each.cell.items())
    setting = f"{names[each.setting]}, " if len(names) > 2 else ""  # noqa: PLR2004 - A and B
    return f"{setting}{cell}{each.metric.title}"


def _tables(found: Sequence[Difference], names: dict[str, str]) -> list[TextTable]:
    """Return a table of the differences that are shown, one of the others."""
    tables = []
    for shown, title in _KINDS.items():
        rows = [each for each in found if each.estimate.shown is shown and not each.equal]
        if rows:
            tables.append(_table(title, rows, names))
    return tables


def _table(title: str, found: Sequence[Difference], names: dict[str, str]) -> TextTable:
    first, second = names[found[0].baseline], names[found[0].setting]
    varied = list(found[0].cell)
    columns = [
        *((name, "") for name in varied),
        ("metric", ""),
        (first, "mean"),
        (second, "mean"),
        (f"{second} - {first}", f"% of {first}"),
        ("d_z" if all(each.estimate.paired for each in found) else "g", ""),
    ]
    rows = [
        [
            *(str(value) for value in each.cell.values()),
            each.metric.title,
            *(_value(each, mean) for mean in (each.estimate.first.mean, each.estimate.second.mean)),
            _difference(each),
            "-" if each.estimate.effect is None else f"{each.estimate.effect:.2f}",
        ]
        for each in found
    ]
    return TextTable(title, columns, rows, text_columns=len(varied) + 1, grouped=len(varied))


def _value(each: Difference, value: float) -> str:
    return quantity(each.metric.unit_column).text(value)


def _difference(each: Difference) -> str:
    """Return a difference with its interval in percent of the baseline; absolute if that is 0."""
    estimate = each.estimate
    unit, size = quantity(each.metric.unit_column).scale(estimate.difference)
    end = f" {unit}".rstrip()
    if estimate.first.mean:
        end, size = "", abs(estimate.first.mean) / 100
    values = [estimate.difference]
    if estimate.interval is not None:
        values += [estimate.interval.low, estimate.interval.high]
    largest = max(abs(value / size) for value in values)
    decimals = next((digits for limit, digits in _DECIMALS if largest < limit), 0)
    texts = [f"{value / size:+,.{decimals}f}" for value in values]
    interval = f" ({texts[1]} to {texts[2]})" if texts[1:] else ""
    return f"{texts[0]}{interval}{end}"


def _distributions(each: Difference, names: dict[str, str]) -> Figure:
    """Draw the distribution functions of both settings, and that of the differences of pairs."""
    metric = each.metric
    unit, size = quantity(metric.unit_column).scale(max(np.abs(own).max() for own in each.values))
    label = f"{metric.title} [{unit}]" if unit else metric.title
    first, second = names[each.baseline], names[each.setting]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=_FIGURE_IN, layout="constrained")
        left, *right = figure.subplots(1, 2 if each.estimate.paired else 1, squeeze=False).flat
    for name, colour, values in zip((first, second), PALETTE, each.values, strict=False):
        _steps(left, values / size, colour, name)
    add_legend(left)
    left.set_xlabel(label)
    left.set_ylabel("Share of runs")
    for axes in right:
        differences = (each.values[1] - each.values[0]) / size
        _steps(axes, differences, PALETTE[2], f"{second} - {first}, pair by pair")
        axes.axvline(0, color=MUTED, linewidth=0.8)
        if each.estimate.interval is not None:
            low, high = each.estimate.interval.low / size, each.estimate.interval.high / size
            axes.axvspan(low, high, color=PALETTE[2], alpha=0.2, linewidth=0, label="95 % of mean")
        add_legend(axes)
        axes.set_xlabel(f"Difference [{unit}]" if unit else "Difference")
    return figure


def _steps(axes: Axes, values: Array, colour: str, name: str) -> None:
    """Draw a distribution function: it steps up at each value."""
    ordered = np.repeat(np.sort(values), 2)
    share = np.arange(1, values.size + 1) / values.size
    axes.plot(ordered, np.append(0, np.repeat(share, 2)[:-1]), color=colour, label=name)
    axes.set_ylim(0, 1.02)
