"""The result of a search, for people and as files."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from bentpipe import _core
from bentpipe.quantities import quantity
from bentpipe.report.html import Exports, environment
from bentpipe.report.style import PALETTE, from_zero, new_figure
from bentpipe.results.charts import with_unit
from bentpipe.results.files import REPORT, json_text
from bentpipe.results.metric_values import ThresholdCheck
from bentpipe.results.output import write_folder
from bentpipe.results.views import Cell, Column, View, csv_table
from bentpipe.units import NS_PER_S, format_duration, format_rate

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.figure import Figure

    from bentpipe.results.output import OutputFolder
    from bentpipe.simulation.limits import Limit, Search, Trial

# The names of flows that fit in a line.
_MAX_NAMES: Final = 4
_SIZE_COLUMNS: Final = (
    Column("payload_bytes", "payload", "of UDP", "{:,} B".format),
    Column("rate_bps", "largest rate without loss", "of payload, each flow"),
    Column("fails_bps", ""),
    Column("packets_per_second", "packets", "per second, each flow", "{:,.0f}".format),
    Column("aggregate_packets_per_second", "packets", "per second, all flows", "{:,.0f}".format),
    Column("limit", "limited by"),
    Column("place", "where"),
    Column("converged", ""),
    Column("proven", "proven"),
)
_NOT_PROVEN: Final = (
    "Not proven: buffers may hide that a rate is too high; send for longer (traffic.N.duration)."
)
_NOTE: Final = (
    "A value passes if every threshold holds with every seed. The search assumes that every value "
    "{} one that fails fails, too; with random traffic or errors, a {} one may pass by chance."
)


def search_tables(search: Search) -> list[View | str]:
    """Return the table of a search for a terminal, with its answer above it and notes below."""
    rates = (limit for limit in search.limits if limit.passes is not None and limit.payload_bytes)
    notes = [_note(search)] if search.thresholds else []
    if not all(limit.proven for limit in rates):
        notes.append(_NOT_PROVEN)
    return [_answer(search), _view(search), *notes]


def write_search(search: Search, out: Path | OutputFolder) -> Path:
    """Write report.html with its figure, a CSV file, search.json and the manifest.

    Raises:
        UsageError: the folder contains other files, or cannot be written.
    """
    exports = Exports()
    files = {
        REPORT: search_report(search, exports),
        "trials.csv" if search.thresholds else "sizes.csv": csv_table(_view(search)),
        "search.json": json_text(search.to_json()),
    }
    manifest = {
        "bentpipe_version": _core.version(),
        "search": search.criterion,
        "scenario": search.scenario,
        "seed": search.seeds[0],
        "seeds": list(search.seeds),
        "interrupted": search.interrupted,
    }
    return write_folder(out, kind="search", manifest=manifest, files={**files, **exports.files})


def search_report(search: Search, exports: Exports | None = None) -> str:
    """Return the report as HTML; the same search gives identical bytes.

    Its figure is added to ``exports``, and linked.
    """
    what = search.path if search.thresholds else "rate without loss"
    template = environment().get_template("search.html.j2")
    return template.render(
        title=f"{search.scenario or 'Scenario'}: {_wanted(search)} {what}",
        facts=f"bentpipe {_core.version()}; {_seeds(search)}",
        found=search,
        answer=_answer(search),
        view=_view(search),
        figure=_trial_figure(search) if search.thresholds else _rate_figure(search),
        note=_note(search),
        sending=_sending(search),
        exports=exports,
    )


def _wanted(search: Search) -> str:
    return "smallest" if search.limits[0].smallest else "largest"


def _note(search: Search) -> str:
    return _NOTE.format(
        *(("below", "smaller") if search.limits[0].smallest else ("above", "larger"))
    )


def _answer(search: Search) -> str:
    answer = _value_answer(search) if search.thresholds else _rate_answer(search)
    return f"{search.scenario or 'Scenario'}: {answer}"


def _seeds(search: Search) -> str:
    first, last = search.seeds[0], search.seeds[-1]
    return f"seed {first}" if first == last else f"seeds {first} to {last}"


def _view(search: Search) -> View:
    if search.thresholds:
        return _trials(search)
    title = "Each rate passed; a rate above it by at most the resolution failed"
    return View(title, _SIZE_COLUMNS, [_row(limit) for limit in search.limits])


# --- rates without loss ---------------------------------------------------------------------------


def _rate_answer(search: Search) -> str:
    flows = ", ".join(search.flows[:_MAX_NAMES])
    if len(search.flows) > _MAX_NAMES:
        flows += f" and {len(search.flows) - _MAX_NAMES} more"
    percent = 100 * search.limits[0].resolution
    return (
        f"largest rate without loss, flows: {flows}; to {percent:.3g} % of the rate, "
        f"{_seeds(search)}, sending for {_sending(search)}"
    )


def _sending(search: Search) -> str:
    return format_duration((search.sending_s or 0.0) * NS_PER_S)


def _row(limit: Limit) -> list[Any]:
    loss = limit.first_loss
    text = "none up to the link rate" if limit.converged else "unknown (not converged)"
    if loss is not None:
        text = loss.limit if limit.converged else f"{loss.limit} (rate not converged)"
    is_none = limit.passes is None
    return [
        limit.payload_bytes,
        Cell(limit.passes, "none passes" if limit.passes is None else format_rate(limit.passes)),
        limit.fails,
        limit.packets_per_second,
        limit.aggregate_packets_per_second,
        Cell(loss and loss.limit, text),
        loss and loss.place,
        limit.converged,
        Cell(limit.proven, "-" if is_none else "yes" if limit.proven else "no"),
    ]


def _rate_figure(search: Search) -> Figure:
    """Draw rate in Mbit/s and packets per second of each flow over the payload in bytes."""
    figure, (above, below) = new_figure(2, 1, height_in=4.6)
    sizes = [limit.payload_bytes for limit in search.limits]
    rates = [math.nan if limit.passes is None else limit.passes / 1e6 for limit in search.limits]
    packets = [limit.packets_per_second or math.nan for limit in search.limits]
    for axes, values, colour in zip((above, below), (rates, packets), PALETTE, strict=False):
        axes.plot(sizes, values, color=colour, marker="o", markersize=4)
        from_zero(axes)
    above.set_ylabel("Payload [Mbit/s]")
    below.set_ylabel("Packets [1/s]")
    below.set_xlabel("UDP payload [bytes]")
    return figure


# --- values that meet thresholds ------------------------------------------------------------------


def _value_answer(search: Search) -> str:
    (limit,) = search.limits
    text = quantity(search.unit).text
    ends = (limit.passes, limit.fails)
    value, fails = ("" if end is None else text(end) for end in ends)
    if value and fails:
        side = "above" if limit.smallest else "below"
        between = "" if limit.converged else f", or one {side} {fails}"
        said = f"the {_wanted(search)} value that meets the thresholds is {value}{between}"
    elif value:
        beyond = "smaller" if limit.smallest else "larger"
        said = f"{value} meets the thresholds, and no {beyond} value was tried"
        said += " (--max)" if limit.converged else ""
    else:
        said = f"even {fails} misses the thresholds" if fails else "no value was tried"
    reason = limit.reason
    why = f"; at {fails}, {reason.message}" if isinstance(reason, ThresholdCheck) else ""
    interrupted = "" if limit.converged else " (interrupted)"
    is_low = fails and not value and not limit.smallest
    hint = "; if larger values are better, use --smallest" if is_low else ""
    return f"{search.path}: {said}{interrupted}{why}{hint}"


def _rows(search: Search) -> list[tuple[Trial, list[ThresholdCheck]]]:
    """Return the trials by value, each with the checks of the thresholds."""
    trials = sorted(search.limits[0].trials, key=lambda trial: trial.value)
    return [(trial, [c for c in trial.checks if isinstance(c, ThresholdCheck)]) for trial in trials]


def _trials(search: Search) -> View:
    columns = [
        Column(f"{search.path}_{search.unit}" if search.unit else search.path, search.path),
        Column("passed", "result", text=lambda passed: "passed" if passed else "FAILED"),
        *(Column(text, text) for text in search.thresholds),
    ]
    rows = [
        [trial.value, trial.passed, *(Cell(check.value, check.value_text) for check in checks)]
        for trial, checks in _rows(search)
    ]
    several = f"the worst of {_seeds(search)}" if len(search.seeds) > 1 else _seeds(search)
    return View(f"Trials: {several}", columns, rows)


def _trial_figure(search: Search) -> Figure:
    """Draw the worst value of each threshold over the varied value, with its limit as a line."""
    figure, axes = new_figure(len(search.thresholds), 1, height_in=2.3 * len(search.thresholds))
    rows = _rows(search)
    across, width = quantity(search.unit).scale(max((trial.value for trial, _ in rows), default=0))
    by_threshold = zip(*(checks for _, checks in rows), strict=True)
    for axis, of_threshold in zip(axes, by_threshold, strict=False):
        threshold = of_threshold[0].threshold
        points = [
            (trial.value / width, check.value)
            for (trial, _), check in zip(rows, of_threshold, strict=True)
            if check.value is not None and math.isfinite(check.value)
        ]
        unit, size = quantity(threshold.metric.unit_column).scale(
            max([abs(threshold.limit), *(abs(value) for _, value in points)])
        )
        scaled = [value / size for _, value in points]
        axis.plot([x for x, _ in points], scaled, color=PALETTE[0], marker="o", markersize=4)
        axis.axhline(threshold.limit / size, color=PALETTE[1], linestyle="--")
        axis.set_ylabel(with_unit(threshold.metric.title, unit))
    axes[-1].set_xlabel(with_unit(search.path, across))
    return figure
