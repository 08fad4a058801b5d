"""The result of a search, for the largest rate or the largest count, for people and as files."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from bentpipe import _core
from bentpipe.quantities import quantity
from bentpipe.report.html import Exports, environment
from bentpipe.report.style import PALETTE, from_zero, new_figure
from bentpipe.results.files import REPORT, csv_text, json_text
from bentpipe.results.output import write_folder
from bentpipe.results.views import Cell, Column, View, csv_table
from bentpipe.simulation.no_drop import NoDropRate, NoDropSearch
from bentpipe.units import NS_PER_S, format_duration, format_rate

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.figure import Figure

    from bentpipe.results.output import OutputFolder
    from bentpipe.simulation.search import MaxCount

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
_TRIAL_COLUMNS: Final = ("count", "passed", "threshold", "value")
_RATE_NOTE: Final = (
    "A rate passes if nothing is lost and no delay grows by more than the resolution times the "
    "time sent, as it does at a rate above the limit, whatever the buffers. A rate is not proven "
    "if the run is too short, or the delay varies too much, to tell: then buffers may hide more."
)
_NOT_PROVEN: Final = (
    "Not proven: buffers may hide that a rate is too high; send for longer (traffic.N.duration)."
)
_COUNT_NOTE: Final = (
    "A count passes if every threshold holds with every seed. The search assumes that every count "
    "above one that fails fails, too; with random traffic or errors, a larger one may pass by "
    "chance."
)
_OF_MANIFEST: Final = ("scenario", "seed", "seeds", "interrupted")


def search_tables(found: NoDropSearch | MaxCount) -> list[View | str]:
    """Return the table of a search for a terminal, with its answer above it and notes below."""
    page = _page(found)
    return [page["answer"], page["view"], *page["terminal_notes"]]


def write_search(found: NoDropSearch | MaxCount, out: Path | OutputFolder) -> Path:
    """Write report.html with its figure, a CSV file, search.json and the manifest.

    Raises:
        UsageError: the folder contains other files, or cannot be written.
    """
    exports, facts = Exports(), found.to_json()
    kind = "no-drop" if isinstance(found, NoDropSearch) else "max-count"
    of_search: dict[str, Any] = {name: facts[name] for name in _OF_MANIFEST if name in facts}
    return write_folder(
        out,
        kind="search",
        manifest={"bentpipe_version": _core.version(), "search": kind, **of_search},
        files={
            REPORT: search_report(found, exports),
            **exports.files,
            **_page(found)["csv"],
            "search.json": json_text(facts),
        },
    )


def search_report(found: NoDropSearch | MaxCount, exports: Exports | None = None) -> str:
    """Return the report as HTML; the same search gives identical bytes.

    Its figure is added to ``exports``, and linked.
    """
    page = _page(found)
    template = environment().get_template("search.html.j2")
    return template.render(
        **page,
        title=f"{found.scenario or 'Scenario'}: {page['what']}",
        facts=f"bentpipe {_core.version()}; {page['seeds']}",
        figure=page["draw"](),
        interrupted=found.interrupted,
        exports=exports,
    )


def _page(found: NoDropSearch | MaxCount) -> dict[str, Any]:
    """Return what is said and shown of a search: in a terminal, on a page, and as CSV."""
    if isinstance(found, NoDropSearch):
        view = _sizes(found)
        unproven = any(each.rate_bps is not None and not each.proven for each in found.rates)
        return {
            "what": "largest rate without loss",
            "seeds": f"seed {found.seed}",
            "answer": _head(found),
            "so_far": "The rates are those that had passed until then.",
            "draw": partial(_rate_figure, found),
            "name": "no-drop rate",
            "caption": "Largest rate without loss, in payload bits and in packets per second.",
            "view": view,
            "note": f"{_RATE_NOTE} Here the flows send for {_sending(found)}.",
            "terminal_notes": [_NOT_PROVEN] if unproven else [],
            "csv": {"sizes.csv": csv_table(view)},
        }
    rows = [
        [trial["count"], trial["passed"], check["threshold"], check["value"]]
        for trial in found.to_json()["trials"]
        for check in trial["checks"]
    ]
    return {
        "what": f"largest count of {found.entry}",
        "seeds": f"seeds {found.seeds[0]} to {found.seeds[-1]}",
        "answer": _answer(found),
        "so_far": "",
        "draw": partial(_count_figure, found),
        "name": "trials",
        "caption": "The value of each threshold by the count, the worst of all seeds; the line "
        "is the limit.",
        "view": _trials(found),
        "note": _COUNT_NOTE,
        "terminal_notes": [_COUNT_NOTE],
        "csv": {"trials.csv": csv_text(_TRIAL_COLUMNS, rows)},
    }


# --- the largest rate ---------------------------------------------------------------------------


def _rate_figure(found: NoDropSearch) -> Figure:
    """Draw rate in Mbit/s and packets per second of each flow over the payload in bytes."""
    figure, (above, below) = new_figure(2, 1, height_in=4.6)
    sizes = [each.payload_bytes for each in found.rates]
    rates = [math.nan if each.rate_bps is None else each.rate_bps / 1e6 for each in found.rates]
    packets = [each.packets_per_second or math.nan for each in found.rates]
    for axes, values, colour in zip((above, below), (rates, packets), PALETTE, strict=False):
        axes.plot(sizes, values, color=colour, marker="o", markersize=4)
        from_zero(axes)
    above.set_ylabel("Payload [Mbit/s]")
    below.set_ylabel("Packets [1/s]")
    below.set_xlabel("UDP payload [bytes]")
    return figure


def _head(found: NoDropSearch) -> str:
    flows = found.flows
    shown = ", ".join(flows[:_MAX_NAMES])
    if len(flows) > _MAX_NAMES:
        shown += f" and {len(flows) - _MAX_NAMES} more"
    return (
        f"{found.scenario or 'Scenario'}: largest rate without loss, flows: {shown}; to "
        f"{100 * found.resolution:.3g} % of the rate, seed {found.seed}, "
        f"sending for {_sending(found)}"
    )


def _sending(found: NoDropSearch) -> str:
    return format_duration(found.sending_s * NS_PER_S)


def _sizes(found: NoDropSearch) -> View:
    title = "Each rate passed; a rate above it by at most the resolution failed"
    return View(title, _SIZE_COLUMNS, [_row(each) for each in found.rates])


def _row(each: NoDropRate) -> list[Any]:
    loss, facts = each.first_loss, each.to_json()
    limit = facts["limit"]
    text = "none up to the link rate" if each.converged else "unknown (not converged)"
    if loss is not None:
        text = limit if each.converged else f"{limit} (rate not converged)"
    cells = {
        "rate_bps": "none passes" if each.rate_bps is None else format_rate(each.rate_bps),
        "limit": text,
        "proven": "-" if each.rate_bps is None else "yes" if each.proven else "no",
    }
    values = {**facts, "place": None if loss is None else loss.place}
    return [
        Cell(values[column.name], cells[column.name])
        if column.name in cells
        else values[column.name]
        for column in _SIZE_COLUMNS
    ]


# --- the largest count --------------------------------------------------------------------------


def _count_figure(found: MaxCount) -> Figure:
    """Draw the worst value of each threshold over the count, with its limit as a line."""
    figure, axes = new_figure(len(found.thresholds), 1, height_in=2.3 * len(found.thresholds))
    trials = sorted(found.trials, key=lambda trial: trial.count)
    for number, axis in enumerate(axes):
        if not trials:
            continue
        threshold = trials[0].checks[number].threshold
        values = [(trial.count, trial.checks[number].value) for trial in trials]
        points = [(n, value) for n, value in values if value is not None and math.isfinite(value)]
        unit, size = quantity(threshold.metric.unit_column).scale(
            max([abs(threshold.limit), *(abs(value) for _, value in points)])
        )
        scaled = [value / size for _, value in points]
        axis.plot([n for n, _ in points], scaled, color=PALETTE[0], marker="o", markersize=4)
        axis.axhline(threshold.limit / size, color=PALETTE[1], linestyle="--")
        axis.set_ylabel(f"{threshold.metric.title}{f' [{unit}]' if unit else ''}")
    axes[-1].set_xlabel(f"count of {found.entry}")
    return figure


def _answer(found: MaxCount) -> str:
    where = f"{found.scenario or 'Scenario'}: "
    if found.count is None:
        text = "not even 1" if found.converged else "none yet"
        answer = f"{where}{text} of {found.entry} meets the thresholds"
    elif found.fails is None:
        at_most = "" if found.converged else " (interrupted)"
        answer = f"{where}at least {found.count} of {found.entry} meet the thresholds{at_most}"
        if found.converged:
            answer += "; all counts up to the bound (--max) pass"
    else:
        range_ = "" if found.converged else f" (between {found.count} and {found.fails})"
        answer = f"{where}at most {found.count} of {found.entry} meet the thresholds{range_}"
    if found.reason is not None:
        answer += f"; at {found.fails}, {found.reason.message}"
    return answer


def _trials(found: MaxCount) -> View:
    columns = [
        Column("count", "count"),
        Column("passed", "result", text=lambda passed: "passed" if passed else "FAILED"),
        *(Column(text, text) for text in found.thresholds),
    ]
    rows = [
        [trial.count, trial.passed, *(Cell(each.value, each.value_text) for each in trial.checks)]
        for trial in sorted(found.trials, key=lambda trial: trial.count)
    ]
    return View(f"Trials: the worst of {len(found.seeds)} seeds", columns, rows)
